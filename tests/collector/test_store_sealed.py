"""Sealed columns come back bit by bit, and decimals are found where they are."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.schema import MEASUREMENTS
from collector.store import query, sealing
from collector.store.engine import Engine
from collector.store.sealed import decode_sql, encode_column, find_exponent, write_sealed


def bits(values: np.ndarray) -> list[int]:
    """Bit patterns, with one pattern for every NaN."""
    return [-1 if np.isnan(v) else int(np.float64(v).view(np.int64)) for v in values]


def back(folder: Path, values: list[float]) -> np.ndarray:
    path = folder / "column.parquet"
    table = pa.table({"t": np.arange(len(values)), "x": pa.array(values, pa.float64(), from_pandas=True)})
    exponents = write_sealed(path, table, ())
    engine = Engine()
    column = decode_sql("x", exponents)
    found = engine.run(f"SELECT {column} FROM read_parquet('{path}') ORDER BY time")  # noqa: S608
    engine.close()
    return found.column("x").to_numpy()


decimals = st.integers(0, 9).flatmap(
    lambda d: st.lists(
        st.integers(-(10**10), 10**10).map(lambda i: float(Decimal(i).scaleb(-d))) | st.just(float("nan")), min_size=1
    )
)
anything = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=64), min_size=1)


@settings(max_examples=60, deadline=None)
@given(values=decimals | anything)
def test_columns_come_back_bit_by_bit(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    assert bits(back(tmp_path_factory.mktemp("sealed"), values)) == bits(np.array(values))


@pytest.mark.parametrize(
    ("values", "exponent", "kind"),
    [
        ([1.0, 2.0, -3.0], 0, pa.int32()),
        ([0.5, 0.25], 2, pa.int32()),
        ([0.1234567], 7, pa.int32()),
        ([85899345920.0], 0, pa.int64()),
        ([0.1, float("nan")], 1, pa.int32()),
        ([1 / 3], None, pa.float64()),
        ([0.12345678], None, pa.float64()),
        ([-0.0, 1.0], None, pa.float64()),
        ([float("inf")], None, pa.float64()),
        ([2.0**60], None, pa.float64()),
    ],
)
def test_the_smallest_exponent_that_holds_is_taken(
    values: list[float], exponent: int | None, kind: pa.DataType
) -> None:
    column, found = encode_column(pa.array(values))
    assert found == exponent
    assert column.type == kind
    assert column.null_count == sum(np.isnan(values))


def test_one_value_that_is_no_decimal_keeps_the_column_as_it_is() -> None:
    values = np.round(np.arange(10_000) / 100, 2)
    assert find_exponent(values) == 2
    values[4_321] = np.pi  # between the probed values
    assert find_exponent(values) is None


def test_files_are_plain_parquet_with_their_exponents(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = pa.table(
        {
            "t": pa.array([1000, 2000]),
            "gpu": ["a", "b"],
            "seq": pa.array([7, 8]),
            "x": [0.25, 0.5],
            "empty": pa.array([None, None], pa.float64()),
        }
    )
    assert write_sealed(path, table, ["gpu"]) == {"x": 2}
    file = pq.ParquetFile(path)
    assert file.schema_arrow.names == ["time", "gpu", "seq", "x"]
    assert file.schema_arrow.metadata[b"trimtab.exponents"] == b'{"x": 2}'
    assert file.schema_arrow.field("time").type == pa.timestamp("ms", tz="UTC")
    assert file.read()["x"].to_pylist() == [25, 50]
    assert file.metadata.row_group(0).column(3).compression == "ZSTD"
    assert "BYTE_STREAM_SPLIT" in file.metadata.row_group(0).column(3).encodings


words = st.sampled_from(["", "a", "A", "b", "ab", "a b", "\u00e4", "\uffff", "\U0001f600", "z\x00", "~", "10", "9"])


@pytest.mark.parametrize("most", [2**62, 3])
@settings(deadline=None)
@given(keys=st.lists(st.tuples(words, words, words, words, st.integers(0, 5)), unique=True, max_size=30))
def test_rows_are_sorted_as_the_engine_sorts_them(most: int, keys: list[tuple[str, str, str, str, int]]) -> None:
    spec = MEASUREMENTS["slice"]
    *tags, times = map(list, zip(*keys, strict=True)) if keys else ([], [], [], [], [])
    columns = {"t": pa.array(times, pa.int64())}
    columns |= {tag: pa.array(tags[n % 4], pa.string()) for n, tag in enumerate(spec.tags)}
    columns |= {"seq": pa.array(range(len(keys)), pa.int64()), "busy_ratio": pa.array([0.5] * len(keys))}
    rows = pa.table(columns)
    engine = Engine()
    wanted = engine.run(query.select_sorted(spec, ["busy_ratio"], "SELECT * FROM hot"), hot=rows)
    engine.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealing, "_MOST_PLACES", most)
        assert sealing._in_order(spec, rows).to_pydict() == wanted.to_pydict()
