from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.clock import VirtualClock
from tests.tuner.fakes import START
from tuner.settings import StateSettings
from tuner.state import State, open_state


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database as `open_state` makes it, to copy: the migration runs once."""
    path = tmp_path_factory.mktemp("state") / "empty.db"
    open_state(StateSettings(path=path)).close()
    return path


@pytest.fixture
def state(tmp_path: Path, empty_database: Path) -> Iterator[State]:
    path = tmp_path / "state.db"
    path.write_bytes(empty_database.read_bytes())
    opened = open_state(StateSettings(path=path))
    yield opened
    opened.close()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)
