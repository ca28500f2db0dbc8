"""What sources must remember over a restart, on disk: the counters each cycle, all else when it changed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
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
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._counters = path.with_suffix(".counters.json")
        self._parts: dict[str, tuple[int, bytes]] = {}
        self._written: list[bytes] | None = None
        path.parent.mkdir(parents=True, exist_ok=True)

    def load(self, keepers: Sequence[tuple[Sequence[str], Resumable]]) -> None:
        """Let all go on from what was saved; a file that cannot be read is told and left behind.

        Args:
            keepers: who remembers, each with the names under which its state may stand.
        """
        saved = self._read(self._path)
        for names, keeper in keepers:
            for name in names:
                try:
                    keeper.import_state(saved.get(name, {}))
                except (AttributeError, KeyError, TypeError, ValueError):
                    _LOG.warning("%s: expected what %s remembers, got another shape; it begins anew", self._path, name)
        saved = self._read(self._counters)
        for names, keeper in keepers:
            for name in names:
                if isinstance(keeper, Counting) and name in saved:
                    try:
                        keeper.counters.load_columns(saved[name])
                    except (AttributeError, KeyError, TypeError, ValueError):
                        _LOG.warning("%s: expected columns of counters; they begin anew", self._counters)

    def save(self, keepers: Sequence[tuple[Sequence[str], Resumable]]) -> None:
        """Save the state of all; a failure is told."""
        parts = {names[0]: self._part(names[0], keeper) for names, keeper in keepers}
        content = list(parts.values())
        counters = {names[0]: keeper.counters.columns() for names, keeper in keepers if isinstance(keeper, Counting)}
        try:
            if counters:
                _replace(self._counters, orjson.dumps(counters, option=orjson.OPT_SERIALIZE_NUMPY))
            if content != self._written:  # parts that are the very same object cost nothing to compare
                _replace(self._path, orjson.dumps({name: orjson.Fragment(part) for name, part in parts.items()}))
                self._written = content
        except OSError as error:
            _LOG.warning("cannot save %s: %s; after a restart counters would begin anew", self._path, error)

    def _part(self, name: str, keeper: Resumable) -> bytes:
        if not isinstance(keeper, Counting):
            return orjson.dumps(keeper.export_state(), option=orjson.OPT_SERIALIZE_NUMPY)
        version, content = self._parts.get(name, (-1, b""))
        if version != keeper.state_version:
            content = orjson.dumps(keeper.export_state(counters=False), option=orjson.OPT_SERIALIZE_NUMPY)
            self._parts[name] = keeper.state_version, content
        return content

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


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_suffix(".new")
    beside.write_bytes(content)
    beside.replace(path)
