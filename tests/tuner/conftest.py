from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.clock import VirtualClock
from tests.tuner.fakes import START
from tuner.settings import StateSettings
from tuner.state import State, open_state


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    opened = open_state(StateSettings(path=tmp_path / "state.db"))
    yield opened
    opened.close()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)
