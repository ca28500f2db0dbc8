"""A text without its values: a body of the same shape is read by its values alone, all at once.

A shape says exactly which characters stand where, so that a body either has it to the last character or has it not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_
from typing import Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from collector.columns import bools_of, number_column, numbers_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Text = str | bytes | bytearray | memoryview

_DIGITS = b"0123456789+-.eE"
_JSON_NUMBERS = _DIGITS + b","
_NEWLINE = 10
_LARGE_BYTES = 100_000  # below, lines in Python cost less than arrays of bytes
_PIECE_LINES = 4096  # at most: what is made of a text of megabytes would be many times as large
_WINDOW_BYTES = 2**17  # what is looked through at once stays in the processor's cache
_LONGEST_VALUE = 32  # bytes on average; a text with longer ones is read line by line
# Above, the text of a shape is kept packed: a tenth of the memory, for a tenth of the time that a body takes.
_HUGE_BYTES = 1_000_000
_LZ4 = pa.Codec("lz4_raw")
_TO_NUMBERS = pc.CastOptions.safe(pa.float64())


class Shape(Protocol):
    """What a text is like beside its values. `metadata`: some HELP or TYPE is in it."""

    metadata: bool

    def read(self, body: Text) -> Floats | None:
        """Return the values of a body that differs in them alone; None for any other."""
        ...

    def keys(self) -> list[str]:
        """Return of each sample its line up to the value."""
        ...


def shape_of(
    text: str,
    lines: Sequence[str],
    samples: Sequence[bool],
    starts: Sequence[str],
    numbers: Floats,
    *,
    metadata: bool,
) -> Shape:
    """Return the shape of a text.

    Args:
        text: all of it.
        lines: its lines, without their ends.
        samples: which lines are samples.
        starts: of each sample, its line up to the value.
        numbers: of each sample, its value.
        metadata: some HELP or TYPE is in it.
    """
    # In bytes a character must be a byte, and the last line must have an end.
    if len(text) >= _LARGE_BYTES and text.isascii() and text.endswith("\n"):
        return _bytes_shape(text.encode(), samples, starts, numbers, metadata=metadata)
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

    def read(self, body: Text) -> Floats | None:
        """Return the values of a body that differs in them alone; None for any other."""
        text = body if isinstance(body, str) else str(body, "utf-8", errors="replace")
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

    def read(self, body: Text) -> Floats | None:
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

    Another text is laid beside the one that the shape was made of: what stands between its values must be the same, and
    a value that is the same has the same number.

    line_count, lines: how many lines there are, and which of them are samples.
    starts: of each sample, the bytes of its line before the value.
    most: bytes that the piece has at most in any text.
    offsets: where the text is cut: between, value, between, ..., value, between.
    pieces: the text, so cut; None where it is kept packed.
    packed: the text, packed; empty where it is not.
    numbers: the values.
    """

    line_count: int
    lines: Ints
    starts: Ints
    most: int
    offsets: NDArray[np.int32]
    pieces: pa.StringArray | None
    packed: bytes
    numbers: Floats

    def read(self, raw: bytes | bytearray | memoryview, start: int) -> tuple[int, Floats] | None:
        """Return the length and the values of the piece that begins at `start`; None where it is another."""
        view = memoryview(raw)[start : start + self.most]
        offsets = _cut(view, self.line_count, self.lines, self.starts)
        if offsets is None:
            return None
        cuts = _pieces(offsets, view)
        same = bools_of(pc.call_function("equal", [cuts, self._unpacked()]))
        if not same[::2].all():
            return None
        changed = np.flatnonzero(~same[1::2])
        texts = cuts.take(number_column(2 * changed + 1))
        if texts.buffers()[2].to_pybytes().translate(None, _DIGITS):
            return None  # Arrow has its own mind about `nan` and `inf`
        numbers = self.numbers.copy()
        try:
            numbers[changed] = numbers_of(pc.call_function("cast", [texts], _TO_NUMBERS))
        except pa.ArrowInvalid:
            return None
        return int(offsets[-1]), numbers

    def texts(self) -> list[str]:
        """Return of each sample its line up to the value."""
        text, ends = self._unpacked().buffers()[2].to_pybytes().decode("ascii"), self.offsets[1:-1:2].astype(np.int64)
        return [text[a:b] for a, b in zip((ends - self.starts).tolist(), ends.tolist(), strict=True)]

    def _unpacked(self) -> pa.StringArray:
        if self.pieces is not None:
            return self.pieces
        return _pieces(self.offsets, _LZ4.decompress(self.packed, int(self.offsets[-1])))


def _bytes_shape(
    raw: bytes, samples: Sequence[bool], starts: Sequence[str], numbers: Floats, *, metadata: bool
) -> BytesShape:
    is_sample, sizes = np.array(samples, dtype=bool), np.array(list(map(len, starts)), dtype=np.int64)
    line_count = raw.count(b"\n")
    pieces: list[_Piece] = []
    begin = told = 0
    for first in range(0, line_count, _PIECE_LINES):
        count = min(_PIECE_LINES, line_count - first)
        lines = np.flatnonzero(is_sample[first : first + count])
        mine = sizes[told : told + len(lines)]
        offsets = _cut(memoryview(raw)[begin:], count, lines, mine)
        if offsets is None:
            raise AssertionError("a text has its own shape")
        end = begin + int(offsets[-1])
        most = int(np.diff(offsets)[::2].sum()) + _LONGEST_VALUE * len(lines)
        huge, text = len(raw) > _HUGE_BYTES, raw[begin:end]
        cut, packed = (None, _LZ4.compress(text, asbytes=True)) if huge else (_pieces(offsets, text), b"")
        own = numbers[told : told + len(lines)]
        pieces.append(_Piece(count, lines, mine, most, offsets, cut, packed, own))
        begin, told = end, told + len(lines)
    return BytesShape(pieces, metadata)


def _pieces(offsets: NDArray[np.int32], text: memoryview | bytes | pa.Buffer) -> pa.StringArray:
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(text))


def _cut(raw: memoryview, line_count: int, lines: Ints, starts: Ints) -> NDArray[np.int32] | None:
    """Cut the first `line_count` lines of a text; None where they are not so many, or too short.

    Returns:
        Where they are cut: between, value, between, ..., value, between. The last one is their length.
    """
    ends = _newlines(raw)[:line_count]
    if len(ends) != line_count:
        return None
    begins = np.empty_like(ends)
    begins[0], begins[1:] = 0, ends[:-1] + 1
    offsets = np.empty(2 * len(lines) + 2, dtype=np.int32)
    offsets[0], offsets[-1] = 0, ends[-1] + 1
    offsets[1:-1:2], offsets[2:-1:2] = begins[lines] + starts, ends[lines]
    return None if (offsets[1:] < offsets[:-1]).any() else offsets


def _newlines(raw: memoryview) -> Ints:
    """Return where lines end: eight characters at a time, which suffices unless two of them end a line."""
    text = np.frombuffer(raw, np.uint8)
    marks = np.empty(_WINDOW_BYTES, dtype=bool)
    words = marks.view("<u8")
    places, found = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.uint64)]
    for first in range(0, len(text), _WINDOW_BYTES):
        window = text[first : first + _WINDOW_BYTES]
        marks[len(window) :] = False
        np.equal(window, _NEWLINE, out=marks[: len(window)])
        own = np.flatnonzero(words.astype(bool))
        found.append(words[own])
        places.append(own + first // 8)
    below = np.concatenate(found) - 1  # of one bit as many bits as it stands above the lowest
    if (below & (below + 1)).any():
        return np.flatnonzero(text == _NEWLINE)
    return np.asarray(8 * np.concatenate(places) + np.bitwise_count(below) // 8, dtype=np.int64)


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
