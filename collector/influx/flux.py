"""Where InfluxQL is refused: rows by Flux, pivoted on the server; every aggregate is then made here."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from collector.errors import UnreachableError
from collector.influx.lines import kept_tag, unescape_tag


def literal(text: str) -> str:
    """Return a quoted text without interpolation."""
    return json.dumps(text, ensure_ascii=False).replace("${", "\\${")


def select_rows(
    bucket: str, measurement: str, fields: Iterable[str], span: tuple[int, int], where: Mapping[str, tuple[str, ...]]
) -> str:
    """Return the script for rows of [start, end) ms, a column a field."""
    start, end = (datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds") for ms in span)
    wanted = " or ".join(f"r._field == {literal(field)}" for field in fields)
    conditions = [f"r._measurement == {literal(measurement)}", f"({wanted})"]
    for tag, values in where.items():
        same = " or ".join(_is(tag, kept_tag(value)) for value in values)
        conditions.append(f"({same})")
    return (
        f"from(bucket: {literal(bucket)}) |> range(start: {start}, stop: {end})"
        f" |> filter(fn: (r) => {' and '.join(conditions)})"
        ' |> pivot(rowKey: ["_time"], columnKey: ["_field"], valueColumn: "_value")'
        ' |> drop(columns: ["_start", "_stop", "_measurement"])'
    )


def _is(tag: str, value: str) -> str:
    column = f"r[{literal(tag)}]"
    return f"{column} == {literal(value)}" if value else f"not exists {column}"


def read_answer(
    answer: io.BufferedReader, tags: Sequence[str], fields: Sequence[str], texts: Sequence[str] = ()
) -> Iterator[pa.Table]:
    """Yield the rows of an answer; see `answers.read_answer`.

    Series of different tags come as blocks of different columns, with an empty line between.

    Raises:
        UnreachableError: the server broke off, or answered with something that is no such table.
    """
    kinds = dict.fromkeys(fields, pa.float64()) | dict.fromkeys((*tags, *texts), pa.string())
    kinds |= {"_time": pa.timestamp("ns", tz="UTC")}
    options = pa_csv.ConvertOptions(column_types=kinds, null_values=[""], strings_can_be_null=False)
    parse = pa_csv.ParseOptions(newlines_in_values=True)
    with answer:
        try:
            for block in _blocks(answer):
                rows = pa_csv.read_csv(pa.BufferReader(block), convert_options=options, parse_options=parse)
                if "error" in rows.column_names and "_time" not in rows.column_names:
                    raise UnreachableError(f"InfluxDB cannot answer: {rows.column('error')[0].as_py()}")
                yield _shaped(rows, tags, fields, texts)
        except (pa.ArrowInvalid, OSError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise UnreachableError(f"InfluxDB's answer cannot be read: {first}; ask for a shorter window") from error


def _blocks(answer: io.BufferedReader) -> Iterator[bytes]:
    lines: list[bytes] = []
    quoted = False
    for line in answer:
        quoted ^= line.count(b'"') % 2 == 1
        if not quoted and line in (b"\r\n", b"\n"):
            if len(lines) > 1:
                yield b"".join(lines)
            lines = []
        else:
            lines.append(line)
    if len(lines) > 1:
        yield b"".join(lines)


def _shaped(rows: pa.Table, tags: Sequence[str], fields: Sequence[str], texts: Sequence[str]) -> pa.Table:
    present = set(rows.column_names)
    columns: dict[str, pa.Array] = {"t": rows.column("_time").cast(pa.timestamp("ms"), safe=False).cast(pa.int64())}
    for tag in tags:
        values = rows.column(tag).to_pylist() if tag in present else [""] * rows.num_rows
        columns[tag] = pa.array(map(unescape_tag, values), pa.string())
    for name in fields:
        columns[name] = rows.column(name) if name in present else pa.nulls(rows.num_rows, pa.float64())
    for name in texts:
        found = rows.column(name) if name in present else pa.nulls(rows.num_rows, pa.string())
        columns[name] = pc.replace_substring(found, "\r\n", "\n")  # the server ends lines so, those within a text too
    return pa.table(columns)
