"""InfluxQL's CSV answers as Arrow tables, read block by block as they come."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.csv as pa_csv

from collector.errors import UnreachableError
from collector.influx.client import QueryRefusedError
from collector.influx.lines import unescape_tag

_BLOCK_BYTES = 1 << 18  # the reader is up to 32 of them ahead


def parse_tags(text: str) -> dict[str, str]:
    r"""Read the `tags` column of an answer, such as `gpu=GPU-1,node=a\ b`."""
    found = {}
    for part in text.split(",") if text else ():  # no value holds a comma, `=` or backslash
        tag, _, value = part.partition("=")
        found[tag] = unescape_tag(value.replace("\\", ""))
    return found


def read_answer(
    answer: io.BufferedReader, tags: Sequence[str], fields: Iterable[str], texts: Iterable[str] = ()
) -> Iterator[pa.Table]:
    """Yield the rows of an answer: `t` (int64 ms), the tags as text (absent: empty), fields as float64, texts as text.

    Raises:
        UnreachableError: the server broke off, or answered with something that is no such table.
        QueryRefusedError: the server said that it cannot answer this.
    """
    with answer:
        if not answer.peek(1):
            return
        types = dict.fromkeys(fields, pa.float64()) | dict.fromkeys(texts, pa.string())
        types |= {"name": pa.string(), "tags": pa.dictionary(pa.int32(), pa.string()), "time": pa.int64()}
        try:
            reader = pa_csv.open_csv(
                answer,
                read_options=pa_csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False),
                parse_options=pa_csv.ParseOptions(newlines_in_values=True),
                convert_options=pa_csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=False),
            )
            if reader.schema.names == ["error"]:
                raise QueryRefusedError(f"InfluxDB cannot answer: {_first_text(reader)}")
            for batch in reader:
                if batch.num_rows:
                    yield _shaped(pa.Table.from_batches([batch]), tags, types)
        except (pa.ArrowInvalid, OSError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise UnreachableError(f"InfluxDB's answer cannot be read: {first}; ask for a shorter window") from error


def _first_text(reader: Iterable[pa.RecordBatch]) -> str:
    for batch in reader:
        if batch.num_rows:
            return str(batch.column(0)[0].as_py())
    return "no reason given"


def _shaped(rows: pa.Table, tags: Sequence[str], types: dict[str, pa.DataType]) -> pa.Table:
    columns: dict[str, pa.Array] = {"t": rows.column("time").combine_chunks()}
    columns |= _tag_columns(rows, tags)
    for name, kind in types.items():
        if name in ("name", "tags", "time"):
            continue
        columns[name] = rows.column(name) if name in rows.column_names else pa.nulls(rows.num_rows, kind)
    return pa.table(columns)


def _tag_columns(rows: pa.Table, tags: Sequence[str]) -> dict[str, pa.Array]:
    if not tags:
        return {}
    sets = rows.column("tags").combine_chunks()
    sets = sets.chunk(0) if isinstance(sets, pa.ChunkedArray) else sets
    known = [parse_tags(text) for text in sets.dictionary.to_pylist()]
    take: Callable[[str], pa.Array] = lambda tag: pa.array([k.get(tag, "") for k in known], pa.string()).take(  # noqa: E731
        sets.indices
    )
    return {tag: take(tag) for tag in tags}
