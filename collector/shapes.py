"""A text without its values: a body of the same shape is read by its values alone, all at once.

A shape says exactly which characters stand where, so that a body either has it to the last character or has it not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_
from typing import NamedTuple, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_DIGITS = b"0123456789+-.eE"
_JSON_NUMBERS = _DIGITS + b","
_NEWLINE = 10
_LARGE_BYTES = 100_000  # below, lines in Python cost less than arrays of bytes
_PIECE_LINES = 4096  # at most: what is made of a text of megabytes would be many times as large
_LONGEST_VALUE = 32  # bytes on average; a text with longer ones is read line by line
# Above, a skeleton is kept packed: a tenth of the memory, for a tenth of the time that a body takes.
_HUGE_BYTES = 1_000_000
_LZ4 = pa.Codec("lz4_raw")


class Shape(Protocol):
    """What a text is like beside its values. `metadata`: some HELP or TYPE is in it."""

    metadata: bool

    def read(self, body: str | bytes | bytearray) -> Floats | None:
        """Return the values of a body that differs in them alone; None for any other."""
        ...

    def keys(self) -> list[str]:
        """Return of each sample its line up to the value."""
        ...


def shape_of(
    text: str, lines: Sequence[str], samples: Sequence[bool], starts: Sequence[str], *, metadata: bool
) -> Shape:
    """Return the shape of a text.

    Args:
        text: all of it.
        lines: its lines, without their ends.
        samples: which lines are samples.
        starts: of each sample, its line up to the value.
        metadata: some HELP or TYPE is in it.
    """
    # In bytes a character must be a byte, and the last line must have an end.
    if len(text) >= _LARGE_BYTES and text.isascii() and text.endswith("\n"):
        return _bytes_shape(text.encode(), samples, starts, metadata=metadata)
    others = list(map(not_, samples))
    comments = list(compress(lines, others))
    fixed = sum(map(len, starts)) + sum(map(len, comments)) + len(lines) - 1
    return LineShape(list(starts), list(samples), others, comments, fixed, metadata)


@dataclass(slots=True)
class LineShape:
    """A shape as lines.

    starts: of the samples, all of the line but its value.
    samples, others: for each line, whether it is a sample or something else (a comment, an empty line).
    comments: the lines that are no samples.
    fixed: how many characters of the text are not of values.
    """

    starts: list[str]
    samples: list[bool]
    others: list[bool]
    comments: list[str]
    fixed: int
    metadata: bool

    def read(self, body: str | bytes | bytearray) -> Floats | None:
        """Return the values of a body that differs in them alone; None for any other."""
        text = body if isinstance(body, str) else body.decode("utf-8", errors="replace")
        lines = text.split("\n")
        if len(lines) != len(self.samples):
            return None
        values = list(map(str.removeprefix, compress(lines, self.samples), self.starts))
        # A line that does not begin as expected stays whole, and then the values together are too long.
        if sum(map(len, values)) != len(text) - self.fixed or list(compress(lines, self.others)) != self.comments:
            return None
        return read_numbers(values)

    def keys(self) -> list[str]:
        """Return of each sample its line up to the value."""
        return self.starts


@dataclass(slots=True)
class BytesShape:
    """A shape as arrays, of a text of one byte a character: a third of the cost where there are thousands of lines."""

    pieces: list[_Piece]
    metadata: bool

    def read(self, body: str | bytes | bytearray) -> Floats | None:
        """Return the values of a body that differs in them alone; None for any other."""
        raw = body.encode("utf-8", errors="replace") if isinstance(body, str) else body
        found: list[Floats] = []
        start = 0
        for piece in self.pieces:
            read = piece.read(raw, start)
            if read is None:
                return None
            start += read[0]
            found.append(read[1])
        return np.concatenate(found) if start == len(raw) else None

    def keys(self) -> list[str]:
        """Return of each sample its line up to the value."""
        return [key for piece in self.pieces for key in piece.texts()]


@dataclass(slots=True)
class _Piece:
    """Some lines of a text that follow one another, so few that little memory is needed to read them.

    line_count, lines: how many lines there are, and which of them are samples.
    starts: of each sample, the bytes of its line before the value.
    between, skeleton: lengths and bytes of all that is not values: before the first, between two, behind the last.
    packed: the skeleton is kept packed.
    values, rest: pick out of (between, value, between, ..., between) the ones and the others.
    """

    line_count: int
    lines: Ints
    starts: Ints
    between: NDArray[np.int32]
    skeleton: pa.Buffer | bytes
    packed: bool
    values: pa.BooleanArray
    rest: pa.BooleanArray

    def read(self, raw: bytes | bytearray, start: int) -> tuple[int, Floats] | None:
        """Return the length and the values of the piece that begins at `start`; None where it is another."""
        most = int(self.between.sum()) + _LONGEST_VALUE * len(self.lines)
        cuts = _cut(memoryview(raw)[start : start + most], self.line_count, self.lines, self.starts)
        if cuts is None or not np.array_equal(cuts.between, self.between):
            return None
        if not cuts.pieces.filter(self.rest).buffers()[2].equals(self._unpacked()):
            return None
        values = cuts.pieces.filter(self.values)
        if values.buffers()[2].to_pybytes().translate(None, _DIGITS):
            return None  # Arrow has its own mind about `nan` and `inf`
        try:
            return cuts.length, np.asarray(pc.cast(values, pa.float64()).to_numpy())
        except pa.ArrowInvalid:
            return None

    def texts(self) -> list[str]:
        """Return of each sample its line up to the value."""
        text = self._unpacked().to_pybytes().decode("ascii")
        ends = np.cumsum(self.between[:-1], dtype=np.int64)
        return [text[a:b] for a, b in zip((ends - self.starts).tolist(), ends.tolist(), strict=True)]

    def _unpacked(self) -> pa.Buffer:
        return _LZ4.decompress(self.skeleton, int(self.between.sum())) if self.packed else self.skeleton


def _bytes_shape(raw: bytes, samples: Sequence[bool], starts: Sequence[str], *, metadata: bool) -> BytesShape:
    is_sample, sizes = np.array(samples, dtype=bool), np.array(list(map(len, starts)), dtype=np.int64)
    line_count = raw.count(b"\n")
    pieces: list[_Piece] = []
    begin = told = 0
    for first in range(0, line_count, _PIECE_LINES):
        count = min(_PIECE_LINES, line_count - first)
        lines = np.flatnonzero(is_sample[first : first + count])
        mine = sizes[told : told + len(lines)]
        cuts = _cut(memoryview(raw)[begin:], count, lines, mine)
        if cuts is None:
            raise AssertionError("a text has its own shape")
        picked = np.zeros(2 * len(lines) + 1, dtype=bool)
        picked[1::2] = True
        values, rest = pa.array(picked), pa.array(~picked)
        skeleton = cuts.pieces.filter(rest).buffers()[2].slice(0, int(cuts.between.sum()))
        packed = len(raw) > _HUGE_BYTES
        kept = _LZ4.compress(skeleton, asbytes=True) if packed else skeleton
        pieces.append(_Piece(count, lines, mine, cuts.between, kept, packed, values, rest))
        begin, told = begin + cuts.length, told + len(lines)
    return BytesShape(pieces, metadata)


class _Cuts(NamedTuple):
    """A piece of a text cut where values begin and end.

    pieces: between, value, between, ..., value, between; `between` are the lengths of the former.
    length: of all of them in bytes.
    """

    pieces: pa.StringArray
    between: NDArray[np.int32]
    length: int


def _cut(raw: memoryview, line_count: int, lines: Ints, starts: Ints) -> _Cuts | None:
    """Cut the first `line_count` lines of a text; None where they are not so many, or too short."""
    ends = np.flatnonzero(np.frombuffer(raw, np.uint8) == _NEWLINE)[:line_count]
    if len(ends) != line_count:
        return None
    begins = np.empty_like(ends)
    begins[0], begins[1:] = 0, ends[:-1] + 1
    length = int(ends[-1]) + 1
    offsets = np.empty(2 * len(lines) + 2, dtype=np.int32)
    offsets[0], offsets[-1] = 0, length
    offsets[1:-1:2], offsets[2:-1:2] = begins[lines] + starts, ends[lines]
    lengths = np.diff(offsets)
    if (lengths < 0).any():
        return None
    pieces = pa.StringArray.from_buffers(2 * len(lines) + 1, pa.py_buffer(offsets), pa.py_buffer(raw))
    return _Cuts(pieces, lengths[::2], length)


def read_number(text: str) -> float:
    """Return a number as exporters write it; Python alone reads `1_000`, and digits of other scripts, as one.

    Raises:
        ValueError: it is none.
    """
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return float(text)


def read_numbers(texts: list[str]) -> Floats | None:
    """Return many numbers at once; None where any text is none."""
    try:
        return np.array(
            list(map(read_number, texts)) if (read := _json_numbers(texts)) is None else read, dtype=np.float64
        )
    except ValueError:
        return None


def _json_numbers(texts: list[str]) -> list[float] | None:
    """Read numbers at a tenth of `float`'s cost where all are written as JSON's are (no NaN, no infinity)."""
    joined = ",".join(texts).encode()
    if joined.translate(None, _JSON_NUMBERS):
        return None
    try:
        numbers: list[float] = orjson.loads(b"[%b]" % joined)
    except orjson.JSONDecodeError:
        return None
    return numbers if len(numbers) == len(texts) else None
