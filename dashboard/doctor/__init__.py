"""The doctor: is everything that Trimtab needs there, and does an empty picture mean idle cards or a fault?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from dashboard.config import Loaded
from dashboard.doctor.check import Check, Status
from dashboard.doctor.influx import examine_influx
from dashboard.doctor.parts import (
    examine_backends,
    examine_configuration,
    examine_pause,
    examine_state,
    examine_store,
)
from dashboard.doctor.sources import examine_sources

__all__ = ["Check", "Status", "examine"]


def examine(loaded: Loaded, now: datetime) -> Iterator[Check]:
    """Look at everything, one check after another; nothing is written."""
    settings = loaded.settings
    yield from examine_configuration(loaded)
    yield from examine_sources(settings, now)
    yield from examine_store(settings, now)
    yield from examine_influx(settings, now)
    yield from examine_state(settings)
    yield from examine_backends(settings)
    yield from examine_pause(settings, now)
