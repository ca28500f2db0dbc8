"""What sources must remember over a restart, on disk: the counters each cycle, all else when it changed.

A process can die between the commit of a cycle's rows and the write of its counters. Went the next start on from the
counters before, their growth would be stored twice. So counters are written *before* the rows, the ones before are kept
beside them, and a start takes the oldest that are not older than the newest row in the store:

    died before the commit:  those before; their next growth covers the cycle that was lost
    died after it:           the new ones
    the store is newer than both, as after a restore: none; counters begin anew, and a gap shows

Whatever is taken, what a row in the store has counted is never counted again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import orjson

from collector.clock import LATEST, from_ms, to_ms
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


@runtime_checkable
class Dating(Protocol):
    """A store that can say up to when it has rows that this host wrote."""

    def written_until(self) -> datetime | None:
        """Return the time of the newest of them; None without one."""
        ...


class StateFile:
    """A JSON file of all states, and one beside it of the counters, which keeps the ones before it.

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
        self._before = path.with_suffix(".counters.before.json")
        self._written: dict[str, int | bytes] | None = None  # what tells each state from the one before
        path.parent.mkdir(parents=True, exist_ok=True)

    def load(self, newest: datetime | None) -> None:
        """Let all go on from what was saved; a file that cannot be read is told and left behind.

        Args:
            newest: of the rows in the store; None: it has none, or does not tell.
        """
        saved = self._read_states()
        for names, keeper in self._keepers:
            for name in names:
                try:
                    keeper.import_state(saved.get(name, {}))
                except (AttributeError, KeyError, TypeError, ValueError):
                    _LOG.warning("%s: expected what %s remembers, got another shape; it begins anew", self._path, name)
        counters = self._choose(newest)
        for names, _ in self._keepers:
            counting = self._counting.get(names[0])
            for name in names:
                if counting is not None and name in counters:
                    try:
                        counting.counters.load_columns(counters[name])
                    except (AttributeError, KeyError, TypeError, ValueError):
                        _LOG.warning("%s: expected columns of counters; they begin anew", self._counters)

    def _choose(self, newest: datetime | None) -> dict[str, Any]:
        """Return the counters to go on from, by source; they are then the ones that the next are written beside."""
        known = sorted(one for path in (self._counters, self._before) if (one := self._read_counters(path)) is not None)
        # Without a row to compare with, only the newer ones are surely not older than what was stored.
        fitting = known[-1:] if newest is None else [one for one in known if one[0] >= to_ms(newest)]
        if not fitting:
            if known and newest is not None:
                _LOG.warning(
                    "%s: its counters are of %s, the store has rows up to %s; they begin anew, a gap shows",
                    *(self._counters, from_ms(known[-1][0]).isoformat(), newest.isoformat()),
                )
            return {}
        _, path = fitting[0]
        sources = dict(self._read(path)["sources"])
        if path != self._counters:
            try:
                path.replace(self._counters)
            except OSError as error:
                self._tell(error)
        return sources

    def save_counters(self, at: datetime) -> None:
        """Save the counters of a cycle whose rows are written next; a failure is told.

        Args:
            at: not before the time of any of those rows.
        """
        if not self._counting:
            return
        columns = {name: keeper.counters.columns() for name, keeper in self._counting.items()}
        content = orjson.dumps({"at_ms": to_ms(at), "sources": columns}, option=orjson.OPT_SERIALIZE_NUMPY)
        try:
            _replace(self._counters, [content], keep=self._before)
        except OSError as error:
            self._tell(error)

    def save(self) -> None:
        """Save all else of the states that changed; a failure is told."""
        marks = {names[0]: self._mark(names[0], keeper) for names, keeper in self._keepers}
        if marks == self._written:
            return
        try:
            _replace(self._path, self._pieces())
        except OSError as error:
            self._tell(error)
        else:
            self._written = marks

    def _tell(self, error: OSError) -> None:
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

    def _read_states(self) -> dict[str, Any]:
        saved = self._read(self._path)
        if all(isinstance(value, dict) for value in saved.values()):
            return saved
        _LOG.warning("%s: expected a JSON table of each source, got something else; counters begin anew", self._path)
        return {}

    def _read_counters(self, path: Path) -> tuple[int, Path] | None:
        """Return the instant of a file of counters, for the choice; None where it is none."""
        saved = self._read(path)
        at_ms, sources = saved.get("at_ms"), saved.get("sources")
        if isinstance(at_ms, int) and 0 <= at_ms < to_ms(LATEST) and isinstance(sources, dict):
            return at_ms, path
        if saved:
            _LOG.warning("%s: expected counters and their instant, got something else; they begin anew", path)
        return None

    def _read(self, path: Path) -> dict[str, Any]:
        if not path.exists():
            return {}
        try:
            saved = orjson.loads(path.read_bytes())
        except (orjson.JSONDecodeError, OSError):
            saved = None
        if isinstance(saved, dict):
            return saved
        _LOG.warning("%s: expected a JSON table, got something else; counters begin anew", path)
        return {}


def _replace(path: Path, pieces: Iterable[bytes], *, keep: Path | None = None) -> None:
    beside = path.with_suffix(".new")
    with beside.open("wb") as file:
        file.writelines(pieces)
    if keep is not None and path.exists():
        path.replace(keep)
    beside.replace(path)
