"""What sources must remember over a restart, on disk: the counters each cycle, all else when it changed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import orjson

from collector.counters import CounterBook

_LOG = logging.getLogger(__name__)


@runtime_checkable
class Resumable(Protocol):
    """A source that goes on after a restart from what it knew before."""

    def export_state(self) -> dict[str, Any]:
        """Return plain JSON values."""
        ...

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Go on from them."""
        ...


@runtime_checkable
class Counting(Protocol):
    """A resumable whose counters move each cycle, and all else seldom.

    state_version: grows when what `export_state` returns changes in anything but its counters.
    """

    counters: CounterBook
    state_version: int

    def export_state(self, *, counters: bool = True) -> dict[str, Any]:
        """Return plain JSON values, without the counters where they are kept apart."""
        ...


class StateFile:
    """A JSON file of all states, and one beside it of the counters.

    Each is replaced as a whole. Writing hundreds of thousands of facts anew in each cycle would cost more than reading
    the exporters does.

    Args:
        path: the first file; its folder is made now, and never again, so that its loss is noticed.
        keepers: who remembers, each with the names under which its state may stand.
    """

    def __init__(self, path: Path, keepers: Sequence[tuple[Sequence[str], Resumable]]) -> None:
        self._path = path
        self._keepers = keepers
        # Asked once: what a protocol asks of an object's attributes takes longer than many a cycle's step.
        self._counting = {names[0]: keeper for names, keeper in keepers if isinstance(keeper, Counting)}
        self._counters = path.with_suffix(".counters.json")
        self._written: dict[str, int | bytes] | None = None  # what tells each state from the one before
        path.parent.mkdir(parents=True, exist_ok=True)

    def load(self) -> None:
        """Let all go on from what was saved; a file that cannot be read is told and left behind."""
        saved = self._read(self._path)
        for names, keeper in self._keepers:
            for name in names:
                try:
                    keeper.import_state(saved.get(name, {}))
                except (AttributeError, KeyError, TypeError, ValueError):
                    _LOG.warning("%s: expected what %s remembers, got another shape; it begins anew", self._path, name)
        saved = self._read(self._counters)
        for names, _ in self._keepers:
            counting = self._counting.get(names[0])
            for name in names:
                if counting is not None and name in saved:
                    try:
                        counting.counters.load_columns(saved[name])
                    except (AttributeError, KeyError, TypeError, ValueError):
                        _LOG.warning("%s: expected columns of counters; they begin anew", self._counters)

    def save(self) -> None:
        """Save the state of all; a failure is told."""
        marks = {names[0]: self._mark(names[0], keeper) for names, keeper in self._keepers}
        counters = {name: keeper.counters.columns() for name, keeper in self._counting.items()}
        try:
            if counters:
                _replace(self._counters, [orjson.dumps(counters, option=orjson.OPT_SERIALIZE_NUMPY)])
            if marks != self._written:
                _replace(self._path, self._pieces())
                self._written = marks
        except OSError as error:
            _LOG.warning("cannot save %s: %s; after a restart counters would begin anew", self._path, error)

    def _mark(self, name: str, keeper: Resumable) -> int | bytes:
        """Return what is another one whenever the state is: of much state its version, of little the state itself."""
        counting = self._counting.get(name)
        return self._content(name, keeper) if counting is None else counting.state_version

    def _content(self, name: str, keeper: Resumable) -> bytes:
        counting = self._counting.get(name)
        state = keeper.export_state() if counting is None else counting.export_state(counters=False)
        return orjson.dumps(state, option=orjson.OPT_SERIALIZE_NUMPY)

    def _pieces(self) -> Iterator[bytes]:
        """Return the file of all states, piece by piece: the facts of thousands of cards are tens of megabytes."""
        for number, (names, keeper) in enumerate(self._keepers):
            yield b"%s%s:" % (b"," if number else b"{", orjson.dumps(names[0]))
            yield self._content(names[0], keeper)
        yield b"}" if self._keepers else b"{}"

    def _read(self, path: Path) -> dict[str, Any]:
        if not path.exists():
            return {}
        try:
            saved = orjson.loads(path.read_bytes())
        except (orjson.JSONDecodeError, OSError):
            saved = None
        if isinstance(saved, dict) and all(isinstance(value, dict) for value in saved.values()):
            return saved
        _LOG.warning("%s: expected a JSON table of each source, got something else; counters begin anew", path)
        return {}


def _replace(path: Path, pieces: Iterable[bytes]) -> None:
    beside = path.with_suffix(".new")
    with beside.open("wb") as file:
        file.writelines(pieces)
    beside.replace(path)
