"""Sealed files: sorted Parquet in which a column of exact decimals is written as integers, without loss.

A column whose every value is i / 10^d with an integer i is written as i (int32 or int64) and read as `i / 1e<d>`, with
the smallest d that holds for all of them bit by bit; a column for which no d does stays float64. NaN is null. The
exponents stand in the catalogue and in the file's metadata (`trimtab.exponents`, JSON: name -> d, or null for float64);
a field without any value is left out. The idea is that of ALP (Afroozeh et al., SIGMOD 2024), in plain Parquet.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from collector.atomic import force_to_disk
from collector.columns import number_column, numbers_of

MAX_EXPONENT = 7
ROW_GROUP_ROWS = 122_880
_PROBE_ROWS = 2_000
_EXACT_LIMIT = 2.0**53  # beyond it a float64 cannot hold every integer
_INT32_LIMIT = 2.0**31 - 1

Exponents = Mapping[str, int | None]


def _scaled(values: np.ndarray, exponent: int) -> np.ndarray | None:
    power = 10.0**exponent
    scaled = np.rint(values * power)
    if np.abs(scaled).max(initial=0.0) >= _EXACT_LIMIT:
        return None
    # Bit by bit: -0.0 equals 0.0 as a number, but would come back without its sign.
    back = scaled / power
    same = np.array_equal(back.view(np.int64), values.view(np.int64))
    negative_zero = bool(np.any((scaled == 0) & np.signbit(scaled)))
    return scaled if same and not negative_zero else None


def find_exponent(values: np.ndarray) -> int | None:
    """Return the smallest d <= 7 with rint(v x 10^d) / 10^d == v for every value, or None.

    Args:
        values: float64 without NaN.
    """
    finite = np.isfinite(values)
    if not finite.all():
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        step = max(1, len(values) // _PROBE_ROWS)
        probe = np.ascontiguousarray(values[::step])
        for exponent in range(MAX_EXPONENT + 1):
            if _scaled(probe, exponent) is not None and _scaled(values, exponent) is not None:
                return exponent
    return None


def encode_column(column: pa.ChunkedArray | pa.Array) -> tuple[pa.Array, int | None]:
    """Return a float64 column as it is written, and its exponent (None: float64 as it is)."""
    values = numbers_of(column)
    absent = np.isnan(values)
    present = values[~absent] if absent.any() else np.ascontiguousarray(values)
    exponent = find_exponent(present)
    if exponent is None:
        return number_column(values, absent=absent), None
    integers = np.zeros(len(values), dtype=np.float64)
    integers[~absent] = np.rint(present * 10.0**exponent)
    small = np.abs(integers).max(initial=0.0) <= _INT32_LIMIT
    return number_column(integers.astype(np.int32 if small else np.int64), absent=absent), exponent


def decode_sql(name: str, exponents: Exponents) -> str:
    """Return the SQL expression that gives column `name` of a file back as a double."""
    if name not in exponents:
        return f'NULL::DOUBLE AS "{name}"'
    exponent = exponents[name]
    if not exponent:
        return f'"{name}"::DOUBLE AS "{name}"'
    return f'"{name}"::DOUBLE / 1e{exponent} AS "{name}"'


def write_sealed(path: Path, table: pa.Table, tags: Sequence[str]) -> dict[str, int | None]:
    """Write rows (`t` in ms, tags, perhaps `seq`, float64 columns with nulls), force them to disk, return exponents.

    The file's columns are `time` (ms, UTC), tags, `seq` and the encoded fields.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415  a collector seals late, and must start small

    plain = {"t", "seq", *tags}
    columns: dict[str, pa.Array] = {"time": table.column("t").cast(pa.timestamp("ms", tz="UTC"))}
    columns |= {tag: table.column(tag) for tag in tags}
    encodings = {"time": "DELTA_BINARY_PACKED"}
    if "seq" in table.column_names:
        columns["seq"] = table.column("seq")
        encodings["seq"] = "DELTA_BINARY_PACKED"
    exponents: dict[str, int | None] = {}
    for name in table.column_names:
        if name in plain or table.column(name).null_count == table.num_rows:
            continue
        columns[name], exponents[name] = encode_column(table.column(name))
        encodings[name] = "BYTE_STREAM_SPLIT"
    file = pa.table(columns).replace_schema_metadata({"trimtab.exponents": json.dumps(exponents)})
    pq.write_table(
        file,
        path,
        compression="zstd",
        compression_level=3,
        use_dictionary=list(tags),
        column_encoding=encodings,
        row_group_size=ROW_GROUP_ROWS,
    )
    force_to_disk(path)
    force_to_disk(path.parent)
    return exponents


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name; where the file system has no hard links, copy it."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
        force_to_disk(target)
    force_to_disk(target.parent)
