"""Line protocol from columns: one line a row, one text pass a column.

Numbers are written by orjson (shortest text that reads back as the same double), a column at once; its text is cut
into cells without a copy, and Arrow joins all cells into lines. Nothing is done a value or a row in Python but a look
into a dictionary of escaped tag sets.

Line protocol has no way to write some tag values: a newline, a trailing backslash. And 1.x gives the tags of a series
back as one text in which a comma or `=` of a value cannot be told from one between them. These, control characters and
`%` itself are therefore written as `%XX` in tags, and `unescape_tag` gives the value back, whatever the server. An
empty value is left out; where the set of tags of a table is fixed (3.x) it is written as `%`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

EMPTY = "%"
_KEPT = {code: f"%{code:02X}" for code in (*range(0x20), 0x7F, *map(ord, "%\\,="))}
_ESCAPED = _KEPT | {ord(" "): "\\ "}
_HOSTILE = re.compile(r"[\x00-\x1f\x7f%\\,= ]")
_CACHED_TAG_SETS = 200_000


def kept_tag(value: str) -> str:
    """Return a tag value as the server keeps it."""
    return value.translate(_KEPT) if _HOSTILE.search(value) else value


def escape_tag(value: str) -> str:
    """Return a tag value, tag key or measurement name as it stands in a line."""
    return value.translate(_ESCAPED) if _HOSTILE.search(value) else value


def unescape_tag(value: str) -> str:
    """Return the tag value that a server gives back for one written by `escape_tag`."""
    return unquote(value) if "%" in value and value != EMPTY else value.removeprefix(EMPTY)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class LineEncoder:
    """Encodes rows of one measurement; remembers the tag sets that it has escaped.

    Args:
        measurement: name.
        tags: names of the text columns.
        fixed_tags: write every tag in every line, an empty one as `%`.
    """

    def __init__(self, measurement: str, tags: Sequence[str], *, fixed_tags: bool = False) -> None:
        self._empty = EMPTY if fixed_tags else ""
        self._tags = sorted(tags)  # servers sort them anyway
        self._names = [f",{escape_tag(tag)}=" for tag in self._tags]
        self._measurement = escape_tag(measurement)
        self._known: dict[tuple[str, ...], bytes] = {}

    def encode(self, rows: pa.Table, fields: Mapping[str, NDArray[np.float64]]) -> bytes:
        r"""Return lines in ms precision, each ended by `\n`; NaN and infinity are absent, a row without values no line.

        Args:
            rows: `time` (timestamp ms) and the tags as text columns.
            fields: float64 columns parallel to `rows`.
        """
        columns = {name: np.ascontiguousarray(values) for name, values in fields.items()}
        if not columns or not rows.num_rows:
            return b""
        present = np.zeros(rows.num_rows, dtype=bool)
        for values in columns.values():
            finite = np.isfinite(values)
            present |= finite
            if present.all():
                break
        if not present.all():
            rows = rows.filter(pa.array(present))
            columns = {name: values[present] for name, values in columns.items()}
            if not rows.num_rows:
                return b""
        parts: list[Any] = [self._prefixes(rows), _scalar(b" ")]
        # A value that every row has stands last: what follows it need not be found out row by row.
        last = next((name for name in reversed(columns) if np.isfinite(columns[name]).all()), None)
        for name, values in columns.items():
            if name != last:
                parts += _cells(name, values)
        if last is not None:
            parts += [_scalar(_field_key(last)), _numbers(columns[last], b" ")]
        else:
            parts.append(_scalar(b"\r"))
        times = rows.column("time").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()).to_numpy()
        parts.append(_numbers(np.ascontiguousarray(times), b"\n"))
        text = _text_of(pc.binary_join_element_wise(*parts, _scalar(b"")))
        return text if last is not None else text.replace(b",\r", b" ")  # nothing else in a line is a return

    def _prefixes(self, rows: pa.Table) -> pa.Array:
        columns = [rows.column(tag).to_numpy().tolist() for tag in self._tags]
        if len(self._known) > _CACHED_TAG_SETS:
            self._known.clear()
        known = self._known
        sets = zip(*columns, strict=True) if columns else iter([()] * rows.num_rows)
        return pa.array([known.get(tag_set) or self._learn(tag_set) for tag_set in sets], pa.binary())

    def _learn(self, tag_set: tuple[str, ...]) -> bytes:
        values = [escape_tag(value) or self._empty for value in tag_set]
        tags = [name + value for name, value in zip(self._names, values, strict=True) if value]
        prefix = self._known[tag_set] = f"{self._measurement}{''.join(tags)}".encode()
        return prefix


@lru_cache(maxsize=1024)
def _field_key(name: str) -> bytes:
    return f"{escape_tag(name)}=".encode()


def _scalar(text: bytes) -> pa.Scalar:
    return pa.scalar(text, pa.binary())


def _numbers(values: NDArray[Any], end: bytes) -> pa.Array:
    """Return the text of each number, with `end` (one byte) after it: orjson's array of them, cut at its commas."""
    text = np.frombuffer(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY), np.uint8).copy()
    commas = np.flatnonzero(text == ord(","))
    text[commas] = text[-1] = ord(end)  # the array's own `]` stands after the last one
    offsets = np.concatenate([[1], commas + 1, [len(text)]]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def _cells(name: str, values: NDArray[np.float64]) -> list[Any]:
    """Return what makes `name=value,` in a row that has the value, and nothing in others."""
    key = _field_key(name)
    if np.isfinite(values).all():
        return [_scalar(key), _numbers(values, b",")]
    text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    text = (key + text.replace(b",", b",\n" + key) + b",").replace(key + b"null,", b"")
    return [pa.array(text.split(b"\n"), pa.binary())] if len(text) >= len(values) else []


def _text_of(lines: pa.Array) -> bytes:
    """Return the texts of an array one after the other: its own buffer."""
    _, offsets, text = lines.buffers()
    ends = np.frombuffer(offsets, np.int32, count=len(lines) + 1, offset=4 * lines.offset)
    return bytes(text[int(ends[0]) : int(ends[-1])])


def text_line(
    measurement: str,
    tags: Mapping[str, str],
    fields: Mapping[str, str | float],
    time_ns: int,
    *,
    fixed_tags: bool = False,
) -> str:
    """Return one line with text or number fields, in ns precision, without its end."""
    empty = EMPTY if fixed_tags else ""
    values = {tag: escape_tag(tags[tag]) or empty for tag in sorted(tags)}
    names = "".join(f",{escape_tag(tag)}={value}" for tag, value in values.items() if value)
    cells = ",".join(
        f"{escape_tag(name)}={_quoted(value) if isinstance(value, str) else repr(float(value))}"
        for name, value in fields.items()
    )
    return f"{escape_tag(measurement)}{names} {cells} {time_ns}"
