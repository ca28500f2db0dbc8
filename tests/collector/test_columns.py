"""Columns over the memory of arrays are those that Arrow itself makes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from collector.columns import bool_column, bools_of, number_column, numbers_of, text_column

FLOATS = of_numpy.arrays(np.float64, st.integers(0, 40), elements=st.floats())
WHOLE = of_numpy.arrays(np.int64, st.integers(0, 40))


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)))))
def test_texts(texts: list[str]) -> None:
    column = text_column(texts)
    column.validate(full=True)
    assert column.to_pylist() == texts


@given(of_numpy.arrays(np.bool_, st.integers(0, 40)))
def test_truth_values(values: np.ndarray) -> None:
    column = bool_column(values)
    assert column.to_pylist() == values.tolist()
    assert bools_of(column.slice(3)).tolist() == values[3:].tolist()


@given(FLOATS)
def test_absent_floats_are_null_and_come_back_as_nan(values: np.ndarray) -> None:
    column = number_column(values, absent=np.isnan(values))
    column.validate(full=True)
    assert column.equals(pa.array(values, from_pandas=True))
    assert numbers_of(column).tobytes() == np.where(np.isnan(values), np.nan, values).tobytes()


@given(FLOATS, st.integers(0, 40), st.integers(0, 40))
def test_a_part_of_a_column_is_that_part(values: np.ndarray, start: int, size: int) -> None:
    column = number_column(values, absent=np.isnan(values)).slice(start, size)
    np.testing.assert_array_equal(numbers_of(column), values[start : start + size])


@given(st.lists(WHOLE))
def test_whole_numbers_in_chunks(parts: list[np.ndarray]) -> None:
    column = pa.chunked_array([number_column(part) for part in parts], pa.int64())
    assert numbers_of(column).tolist() == [n for part in parts for n in part.tolist()]


def test_instants_are_their_milliseconds() -> None:
    column = number_column(np.array([0, 86_400_000]), kind=pa.timestamp("ms", tz="UTC"))
    assert [str(one) for one in column.to_pylist()] == ["1970-01-01 00:00:00+00:00", "1970-01-02 00:00:00+00:00"]
    assert numbers_of(column).tolist() == [0, 86_400_000]


def test_a_strided_array_is_copied() -> None:
    assert number_column(np.arange(10.0)[::2]).to_pylist() == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_whole_numbers_with_a_null_are_refused() -> None:
    with pytest.raises(ValueError, match="1 nulls"):
        numbers_of(pa.array([1, None]))
