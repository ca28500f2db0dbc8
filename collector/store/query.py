"""From a request to SQL: the statements for DuckDB.

Rows come as sealed files and as the table `hot` (columns `t`, tags, `seq`, fields; null for absent). Where the time
ranges of two pieces overlap ("contested"), the same key and time may stand twice; only there rows are merged: each
field's last value that is not null, tags of the first row.
"""

# ruff: noqa: S608 - statements are put together from names of the schema and quoted text

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from collector.protocols import Aggregate
from collector.schema import UNKNOWN, Measurement
from collector.store.request import PERCENTILE, RAW, Pieces, Range, Request, Segment, choose_tier
from collector.store.sealed import decode_sql

if TYPE_CHECKING:
    import pandas as pd


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _filter(where: Mapping[str, tuple[str, ...]], tags: Sequence[str]) -> list[str]:
    return [
        f'"{tag}" IN ({", ".join(map(_quote, values))})' if values else "false"
        for tag, values in where.items()
        if tag in tags
    ]


def _inside(ranges: Sequence[Range]) -> str:
    return "(" + " OR ".join(f"t >= {start} AND t < {end}" for start, end in ranges) + ")"


def scan(
    segments: Sequence[Segment],
    spec: Measurement,
    columns: Sequence[str],
    span: Range,
    where: Mapping[str, tuple[str, ...]],
    *,
    with_seq: bool = True,
) -> list[str]:
    """Return SELECTs over sealed files; files whose asked columns are encoded alike share one."""
    groups: dict[tuple[object, ...], list[Segment]] = defaultdict(list)
    for segment in segments:
        exponents = segment.exponents
        groups[tuple(exponents.get(c, "absent") for c in columns)].append(segment)
    # Literal microseconds let the reader skip row groups by their statistics.
    conditions = [
        f"time >= make_timestamptz({span[0] * 1000})",
        f"time < make_timestamptz({span[1] * 1000})",
        *_filter(where, spec.key),
    ]
    seq = ", seq" if with_seq else ""
    selects: list[str] = []
    for alike in groups.values():
        files = ", ".join(_quote(str(segment.path)) for segment in alike)
        decoded = "".join(f", {decode_sql(column, alike[0].exponents)}" for column in columns)
        selects.append(
            f"SELECT epoch_ms(time) AS t, {_names(spec.tags)}{seq}{decoded}"
            f" FROM read_parquet([{files}], union_by_name = true) WHERE {' AND '.join(conditions)}"
        )
    return selects


def merged_rows(
    spec: Measurement,
    fields: Sequence[str],
    segments: Sequence[Segment],
    *,
    span: Range,
    where: Mapping[str, tuple[str, ...]],
    clashes: Sequence[Range],
) -> str:
    """Return a SELECT of raw rows (`t`, tags, `seq`, fields) in `span`, each key and time once.

    Where files and unsealed rows clash, most rows still stand once. So of the largest files that do not overlap each
    other only those rows are looked for (`partner`) whose key and time stands among the rest (`late`), which is small;
    these are merged, and all others pass through.
    """
    hot = (
        f"SELECT t, {_names(spec.tags)}, seq{''.join(f', {c}' for c in map(_one, fields))} FROM hot WHERE "
        + " AND ".join([f"t >= {span[0]} AND t < {span[1]}", *_filter(where, spec.key)])
    )

    def union(chosen: Sequence[Segment], *more: str, within: Range = span) -> str:
        return " UNION ALL ".join([*scan(chosen, spec, fields, within, where), *more])

    clashes = [(max(a, span[0]), min(b, span[1])) for a, b in clashes if a < span[1] and b > span[0]]
    if not clashes:
        return union(segments, hot)
    loud = [s for s in segments if any(s.t_min < end and s.t_max >= start for start, end in clashes)]
    base = _apart(loud)
    rest = union([s for s in loud if s not in base], hot)
    inside = _inside(clashes)
    columns = f"t, {_names((*spec.tags, 'seq', *fields))}"
    carried = "".join(f', arg_min("{tag}", seq) AS "{tag}"' for tag in spec.extra_tags)
    values = "".join(f', arg_max("{name}", seq) AS "{name}"' for name in fields)
    key = _names(spec.key)
    known = f"late AS MATERIALIZED (SELECT * FROM ({rest}) WHERE {inside})"
    twice = "SELECT * FROM late"
    quiet = [s for s in segments if s not in loud]
    others = [f"SELECT {columns} FROM ({rest}) WHERE NOT {inside}", *([union(quiet)] if quiet else [])]
    if base:
        same = " AND ".join(f"b.{name} = k.{name}" for name in ("t", *map(_one, spec.key)))
        hull = (clashes[0][0], clashes[-1][1])
        contested = f"SELECT * FROM ({union(base, within=hull)}) WHERE {inside}"
        known += f", partner AS MATERIALIZED (SELECT b.* FROM ({contested}) AS b SEMI JOIN late AS k ON {same})"
        twice += " UNION ALL SELECT * FROM partner"
        others.append(f"SELECT b.* FROM ({union(base)}) AS b ANTI JOIN partner AS k ON b.seq = k.seq")
    merged = f"SELECT t, {key}{carried}, max(seq) AS seq{values} FROM ({twice}) GROUP BY t, {key}"
    together = " UNION ALL ".join(f"SELECT {columns} FROM ({part})" for part in (merged, *others))
    return f"WITH {known} {together}"


def _apart(segments: Sequence[Segment]) -> list[Segment]:
    """Return files that do not overlap in time, the largest first."""
    chosen: list[Segment] = []
    for segment in sorted(segments, key=lambda s: (-s.rows, s.id)):
        if all(segment.t_max < other.t_min or segment.t_min > other.t_max for other in chosen):
            chosen.append(segment)
    return chosen


def _one(name: str) -> str:
    return f'"{name}"'


def statement(request: Request, pieces: Pieces, *, resolve: bool = False) -> tuple[str, str]:
    """Return the SQL that answers the request, and the tier that its buckets come from.

    With `resolve`, holders that are unknown are taken from the table `owner` as of each row's time. Only raw rows know
    their time: tiers answer, with `unknown`, where those are gone.
    """
    tier = choose_tier(request, pieces.floors)
    if resolve and request.start >= pieces.floors.get(RAW, request.start):
        rows = _after_merge(_with_owners(_rows_of(request, pieces, holders=False), request.spec), request)
        return select_aggregate(request, rows), RAW
    if tier == RAW:
        rows = _rows_of(request, pieces)
        return (select_raw if request.by is None else select_aggregate)(request, rows), RAW
    return _select_partials(request, pieces, tier), tier


def _rows_of(request: Request, pieces: Pieces, *, holders: bool = True, within: Sequence[Range] = ()) -> str:
    """Return a SELECT of merged raw rows; with `within`, of those files only that may hold rows of its ranges."""
    segments, whole = pieces.of(RAW), (request.start, request.end)
    rows = merged_rows(
        request.spec,
        request.fields,
        [s for s in segments if not within or any(s.t_min < end and s.t_max >= start for start, end in within)],
        span=(max(request.start, within[0][0]), min(request.end, within[-1][1])) if within else whole,
        where=request.where,
        clashes=pieces.clashes,
    )
    # Tags beside the key are those of the first row, known only after the merge.
    return _after_merge(rows, request) if holders else rows


def aggregate_within(request: Request, pieces: Pieces, ranges: Sequence[Range]) -> str:
    """Return the statement for aggregates over the raw rows of whole buckets alone."""
    rows = _rows_of(request, pieces, within=ranges)
    return select_aggregate(request, f"SELECT * FROM ({rows}) WHERE {_inside(ranges)}")


def _after_merge(rows: str, request: Request) -> str:
    conditions = _filter(request.where, request.spec.extra_tags)
    return f"SELECT * FROM ({rows}) WHERE {' AND '.join(conditions)}" if conditions else rows


def _with_owners(rows: str, spec: Measurement) -> str:
    joins, replaced = "", []
    for tag in spec.extra_tags:
        same = " AND ".join(f'r."{key}" = {tag}_of."{key}"' for key in spec.key)
        joins += (
            f' LEFT JOIN owner AS {tag}_of ON r."{tag}" = {_quote(UNKNOWN)} AND {tag}_of.name = {_quote(tag)}'
            f" AND {same} AND r.t >= {tag}_of.t_from AND r.t < {tag}_of.t_to"
        )
        replaced.append(f'coalesce({tag}_of.value, r."{tag}") AS "{tag}"')
    return f"SELECT r.* REPLACE ({', '.join(replaced)}) FROM ({rows}) AS r{joins}"


def select_unresolved(request: Request, pieces: Pieces) -> str:
    """Return the statement that gives a row where some row of the request has an unknown holder, else none."""
    spec, span = request.spec, (request.start, request.end)
    tier = choose_tier(request, pieces.floors)
    hot = f"SELECT t, {_names(spec.tags)} FROM hot WHERE t >= {span[0]} AND t < {span[1]}"
    rows = " UNION ALL ".join([*scan(pieces.of(tier), spec, (), span, request.where, with_seq=False), hot])
    unknown = " OR ".join(f'"{tag}" = {_quote(UNKNOWN)}' for tag in spec.extra_tags)
    return f"SELECT t FROM ({rows}) WHERE {unknown} LIMIT 1"


def _raw_buckets(request: Request, pieces: Pieces) -> list[Range]:
    """Return the buckets in which raw rows must be merged first, hence that no tier can answer."""
    floor = pieces.floors.get(RAW, request.start)
    clashes = [c for c in pieces.clashes if c[0] < request.end and c[1] > request.start]
    if request.every is None:
        return [(request.start, request.end)] if clashes and request.start >= floor else []
    every = request.every
    first = -(-floor // every) * every
    grown = [(max(a // every * every, first), -(-b // every) * every) for a, b in clashes]
    return [(a, b) for a, b in grown if a < b]


def _select_partials(request: Request, pieces: Pieces, tier: str) -> str:
    """Aggregate partial rows: sealed tier rows, unsealed rows (each a partial of one), merged rows where contested."""
    spec, where = request.spec, request.where
    span = (request.start, request.end)
    raw_buckets = _raw_buckets(request, pieces)
    of_tier = f"SELECT t, {_names(spec.tags)}" + "".join(
        f', "{f}", coalesce("{f}__min", "{f}") AS "{f}__min", coalesce("{f}__max", "{f}") AS "{f}__max",'
        # A tier whose every step is one row is those rows as they are, without counts.
        f' coalesce("{f}__count", ("{f}" IS NOT NULL)::DOUBLE) AS "{f}__count"'
        for f in request.fields
    )
    of_row = f"SELECT t, {_names(spec.tags)}" + "".join(
        f', "{f}", "{f}" AS "{f}__min", "{f}" AS "{f}__max", ("{f}" IS NOT NULL)::DOUBLE AS "{f}__count"'
        for f in request.fields
    )
    columns = [f"{f}{part}" for f in request.fields for part in ("", "__min", "__max", "__count")]
    elsewhere = f" WHERE NOT {_inside(raw_buckets)}" if raw_buckets else ""
    unsealed = " AND ".join([f"t >= {span[0]} AND t < {span[1]}", *_filter(where, spec.tags)])
    parts = [
        f"{of_tier} FROM ({select}){elsewhere}"
        for select in scan(pieces.of(tier), spec, columns, span, where, with_seq=False)
    ]
    parts.append(f"{of_row} FROM (SELECT * FROM hot WHERE {unsealed}){elsewhere}")
    if raw_buckets:
        rows = _rows_of(request, pieces, within=raw_buckets)
        parts.append(f"{of_row} FROM ({rows}) WHERE {_inside(raw_buckets)}")

    return aggregate_partials(request, " UNION ALL ".join(parts))


def aggregate_partials(request: Request, rows: str) -> str:
    """Return the statement for aggregates over partial rows: `t`, tags, and a field's mean, min, max and count."""

    def value(name: str) -> str:
        wanted = request.aggregates[name]
        total, count = f'fsum("{name}" * "{name}__count")', f'sum("{name}__count")'
        expression = {
            "mean": f"{total} / {count}",
            "sum": total,
            "count": f"coalesce({count}, 0)",
            "min": f'min("{name}__min")',
            "max": f'max("{name}__max")',
        }[wanted]
        return f'{expression} AS "{name}"'

    conditions = _filter(request.where, request.spec.extra_tags)
    if conditions:
        rows = f"SELECT * FROM ({rows}) WHERE {' AND '.join(conditions)}"
    return _grouped(request, [value(name) for name in request.fields], rows)


def downsample(spec: Measurement, fields: Sequence[str], step: int, *, of_partials: bool) -> str:
    """Return the statement that makes tier rows of `step` ms of the table `hot`: raw rows, or rows of a finer tier.

    Columns a field: mean (the field's name), `__min`, `__max` (null where equal to the mean), `__count` (null for 0).
    """

    def values(name: str) -> str:
        if of_partials:
            count = f'sum("{name}__count")'
            mean = f'fsum("{name}" * "{name}__count") / {count}'
            low, high = f'min(coalesce("{name}__min", "{name}"))', f'max(coalesce("{name}__max", "{name}"))'
        else:
            count = f'nullif(count("{name}"), 0)::DOUBLE'
            mean, low, high = f'favg("{name}")', f'min("{name}")', f'max("{name}")'
        return (
            f', {mean} AS "{name}", nullif({low}, {mean}) AS "{name}__min", nullif({high}, {mean}) AS "{name}__max"'
            f', {count} AS "{name}__count"'
        )

    tags = _names(spec.tags)
    return (
        f"SELECT t // {step} * {step} AS bucket, {tags}{''.join(map(values, fields))} FROM hot"
        f" GROUP BY bucket, {tags} ORDER BY {tags}, bucket"
    )


def select_sorted(spec: Measurement, fields: Sequence[str], rows: str) -> str:
    """Return the statement for rows as they are sealed: with `seq`, sorted by key then time."""
    return f"SELECT t, {_names((*spec.tags, 'seq', *fields))} FROM ({rows}) ORDER BY {_names(spec.key)}, t"


def select_kept(rows: str, spec: Measurement, span: Range, where: Mapping[str, tuple[str, ...]]) -> str:
    """Return the statement for all rows but those in `span` that match `where`, sorted by key then time."""
    gone = " AND ".join([f"t >= {span[0]}", f"t < {span[1]}", *_filter(where, spec.tags)])
    return f"SELECT * FROM ({rows}) WHERE NOT ({gone}) ORDER BY {_names(spec.key)}, t"


def select_raw(request: Request, rows: str) -> str:
    """Return the statement for raw rows, sorted by key then time."""
    spec = request.spec
    return f"SELECT t, {_names((*spec.tags, *request.fields))} FROM ({rows}) ORDER BY {_names(spec.key)}, t"


def _bucket(request: Request) -> str:
    return str(request.start) if request.every is None else f"t // {request.every} * {request.every}"


def _grouped(request: Request, values: list[str], rows: str) -> str:
    by = request.by or ()
    columns = ", ".join([f"{_bucket(request)} AS b", *map(_one, by), *values])
    keys = ", ".join(["b", *map(_one, by)])
    order = ", ".join([*map(_one, by), "b"])
    return f"SELECT {columns} FROM ({rows}) GROUP BY {keys} ORDER BY {order}"


def select_aggregate(request: Request, rows: str) -> str:
    """Return the statement for aggregates over raw rows."""
    order = ", ".join(["t", *map(_one, request.spec.key)])

    def value(name: str) -> str:
        wanted = request.aggregates[name]
        column = _one(name)
        if wanted == "mean":
            return f"favg({column}) AS {column}"
        if wanted == "sum":
            return f"fsum({column}) AS {column}"
        if wanted == "count":
            return f"count({column})::DOUBLE AS {column}"
        if wanted in ("first", "last"):
            return f"{wanted}({column} ORDER BY {order}) FILTER ({column} IS NOT NULL) AS {column}"
        if wanted in ("min", "max"):
            return f"{wanted}({column}) AS {column}"
        return f"quantile_disc({column}, {_rank(wanted)}) AS {column}"

    return _grouped(request, [value(name) for name in request.fields], rows)


def _rank(percentile: Aggregate) -> str:
    match = PERCENTILE.match(percentile)
    if match is None:
        raise ValueError(f"expected a percentile such as p99 or p99.9, got {percentile!r}")
    whole, _, part = match[1].partition(".")
    digits = whole.rjust(3, "0") + part
    return f"{digits[0]}.{digits[1:]}"


def to_frame(table: pa.Table, request: Request, tier: str) -> pd.DataFrame:
    """Return DuckDB's answer as a frame: `time` first, text as text, absent as NaN; `attrs["tier"]` says whence."""
    time_column = "t" if request.by is None else "b"
    times = table.column(time_column).cast(pa.timestamp("ms", tz="UTC"))
    others = [name for name in table.column_names if name != time_column]
    frame: pd.DataFrame = pa.table({"time": times, **{name: table.column(name) for name in others}}).to_pandas()
    frame.attrs["tier"] = tier
    return frame
