"""Between NumPy and Arrow by their memory alone.

Arrow's own ways, such as `pa.array` and `to_numpy`, ask of each value whether it is one of pandas', and load pandas for
the question: a tenth of the memory of a collector that has no other use for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Bools = NDArray[np.bool_]

_KINDS: dict[np.dtype[Any], pa.DataType] = {
    np.dtype(np.float64): pa.float64(),
    np.dtype(np.int64): pa.int64(),
    np.dtype(np.int32): pa.int32(),
    np.dtype(np.uint64): pa.uint64(),
}


def text_column(texts: Sequence[str]) -> pa.StringArray:
    """Return texts as a column.

    Raises:
        ValueError: all together are 2 GiB or longer.
    """
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    if ends[-1] > np.iinfo(np.int32).max:
        raise ValueError(
            f"expected a column of less than 2 GiB, got {ends[-1]} bytes of text; write fewer rows at once"
        )
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def bool_column(values: Bools) -> pa.BooleanArray:
    """Return truth values as a column."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def bools_of(column: pa.BooleanArray) -> Bools:
    """Return a column of truth values, none of them null, as an array."""
    return _read_bits(column.buffers()[1], column.offset, len(column))


def number_column(values: NDArray[Any], *, absent: Bools | None = None, kind: pa.DataType | None = None) -> pa.Array:
    """Return numbers (float64, int64 or int32) as a column over the very memory of `values`.

    Args:
        values: the numbers.
        absent: where the column is null; nowhere by default.
        kind: what the numbers stand for, such as instants; by default themselves.
    """
    nulls = None if absent is None or not absent.any() else _bits(~absent)
    buffers = [nulls, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(kind or _KINDS[values.dtype], len(values), buffers)


def numbers_of(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """Return a column of numbers (or of instants, as int64) as an array; null is NaN, and only floats have it.

    Raises:
        ValueError: a column of whole numbers has a null.
    """
    if isinstance(column, pa.ChunkedArray):
        chunks = [numbers_of(chunk) for chunk in column.chunks]
        return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, _dtype(column.type)), *chunks])
    bits, data = column.buffers()
    start, size = column.offset, len(column)
    dtype = _dtype(column.type)
    values = np.empty(0, dtype) if data is None else np.frombuffer(data, dtype)[start : start + size]
    if not column.null_count:
        return values
    if dtype.kind != "f":
        raise ValueError(f"expected a value in every row of a column of {column.type}, got {column.null_count} nulls")
    return np.where(_read_bits(bits, start, size), values, np.nan)


def _dtype(kind: pa.DataType) -> np.dtype[Any]:
    return next((dtype for dtype, known in _KINDS.items() if known == kind), np.dtype(np.int64))


def _bits(values: Bools) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def _read_bits(bits: pa.Buffer, start: int, size: int) -> Bools:
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=start + size, bitorder="little")[start:].view(np.bool_)
