"""A range answer of Prometheus's HTTP API as columns.

An answer is mostly numbers: `{"metric":{...},"values":[[1767571200.123,"0.5"],...]}`, once a series. Made into objects,
each sample would cost three. Here the lists of values are cut out of the text and read as one table of numbers; what is
left, the labels, is small and read as JSON. Where an answer is written in another way (blanks, other orders), all of
it is read as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

# In JSON text, a quote inside a string is escaped: these characters stand nowhere but before a series' list of values.
_VALUES = b'},"values":[['
_END = b"]]"
_BETWEEN = b"],["
_BLOCK_BYTES = 1 << 22
_MOST_SECONDS = 1e12  # since the epoch; in milliseconds that is still a whole number


class BadAnswerError(ValueError):
    """The text is no range answer; the message says in words what it is."""


@dataclass(frozen=True, slots=True)
class RangeAnswer:
    """Samples of several series.

    metrics: labels of each series, `__name__` among them.
    counts: how many samples each series has; those of the first come first.
    times_ms: milliseconds since the epoch, in the server's order (ascending within a series).
    values: as written; NaN and infinities included.
    """

    metrics: Sequence[Mapping[str, str]]
    counts: NDArray[np.int64]
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]


def read_range(body: bytes) -> RangeAnswer:
    """Read the body of a successful answer to a query with a range.

    Raises:
        BadAnswerError: it is no JSON, no matrix, or a sample is no pair of numbers.
    """
    pieces, regions = _cut(body)
    result = _result(b"".join(pieces))
    with_values = [one for one in result if "values" in one]
    if len(with_values) != len(regions) or any(one["values"] for one in with_values):
        result, table = _result(body), None
    else:
        table = _numbers(regions)
        if table is None:
            result = _result(body)
    if table is None:
        lists = [one.get("values", []) for one in result]
        counts = np.array([len(values) for values in lists], dtype=np.int64)
        times, values = _pairs(lists)
    else:
        times, values = table
        there = iter(np.array([region.count(_BETWEEN) + 1 for region in regions], dtype=np.int64))
        counts = np.array([next(there) if "values" in one else 0 for one in result], dtype=np.int64)
    if not (np.abs(times) < _MOST_SECONDS).all():  # NaN is not
        raise BadAnswerError("a time that is no number")
    times_ms = np.rint(times * 1000.0).astype(np.int64)
    return RangeAnswer([one["metric"] for one in result], counts, times_ms, values)


def _cut(body: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the text without the insides of the lists of values, and those insides without the outer brackets."""
    pieces: list[bytes] = []
    regions: list[bytes] = []
    done = 0
    while (found := body.find(_VALUES, done)) >= 0:
        start = found + len(_VALUES)
        end = body.find(_END, start)
        if end < 0:
            break
        pieces.append(body[done : start - 1])
        regions.append(body[start:end])
        done = end + 1
    pieces.append(body[done:])
    return pieces, regions


def _numbers(regions: Sequence[bytes]) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return times and values of all lists, in order; None where they are not written as usual."""
    if not regions:
        return np.empty(0), np.empty(0)
    text = b"\n".join(regions).replace(_BETWEEN, b"\n").replace(b'"', b"")
    try:
        table = csv.read_csv(
            pa.BufferReader(text),
            read_options=csv.ReadOptions(column_names=["time", "value"], use_threads=False, block_size=_BLOCK_BYTES),
            parse_options=csv.ParseOptions(quote_char=False, newlines_in_values=False),
            convert_options=csv.ConvertOptions(
                column_types={"time": pa.float64(), "value": pa.float64()}, null_values=[], strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != text.count(b"\n") + 1:  # an empty line is no row
        return None
    return table.column("time").to_numpy(), table.column("value").to_numpy()


def _pairs(lists: Sequence[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    try:
        times = [float(time) for values in lists for time, _ in values]
        numbers = [float(value) for values in lists for _, value in values]
    except (TypeError, ValueError):
        raise BadAnswerError("a sample that is no pair of numbers") from None
    return np.array(times, dtype=np.float64), np.array(numbers, dtype=np.float64)


def _result(text: bytes) -> list[dict[str, Any]]:
    """Return the list of series of an answer."""
    try:
        data = orjson.loads(text)["data"]
        kind, result = data["resultType"], data["result"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise BadAnswerError("something that is no answer of Prometheus") from None
    if kind != "matrix" or not isinstance(result, list) or not all(map(_is_series, result)):
        raise BadAnswerError(f"a result that is no matrix of series ({str(kind)[:20]!r})")
    return result


def _is_series(one: Any) -> bool:
    if not isinstance(one, dict) or not isinstance(one.get("metric"), dict):
        return False
    return isinstance(one.get("values", []), list) and all(isinstance(v, str) for v in one["metric"].values())
