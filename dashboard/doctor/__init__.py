"""The doctor: is everything that Trimtab needs there, and does an empty picture mean idle cards or a fault?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from dashboard.config import Loaded
from dashboard.doctor.check import Check, Status

__all__ = ["Check", "Status", "examine"]


def examine(loaded: Loaded, now: datetime) -> Iterator[Check]:
    """Look at everything, one check after another; nothing is written."""
    # `trimtab collect` takes the words of a check alone, and has no use for pandas.
    from dashboard.doctor.influx import examine_influx  # noqa: PLC0415
    from dashboard.doctor.parts import (  # noqa: PLC0415
        examine_backends,
        examine_configuration,
        examine_pause,
        examine_state,
        examine_store,
    )
    from dashboard.doctor.sources import examine_sources  # noqa: PLC0415

    settings = loaded.settings
    yield from examine_configuration(loaded)
    yield from examine_sources(settings, now)
    yield from examine_store(settings, now)
    yield from examine_influx(settings, now)
    yield from examine_state(settings)
    yield from examine_backends(settings)
    yield from examine_pause(settings, now)
