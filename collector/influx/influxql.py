"""From a request to InfluxQL: one statement, with the aggregation in it.

`rows_count` is written beside the fields of every row (1 in a raw row, the number of raw rows in a tier's): a row or a
bucket whose asked fields are all absent is then still seen.
"""

# ruff: noqa: S608 - statements are put together from names of the schema and quoted text

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

from collector.influx.lines import EMPTY, kept_tag
from collector.store.request import PERCENTILE, Request

ROWS = "rows_count"
_FUNCTIONS = {name: name for name in ("mean", "min", "max", "sum", "count", "first", "last")}


def name(text: str) -> str:
    """Return a quoted identifier."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def literal(text: str) -> str:
    """Return a quoted text."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def names(texts: Iterable[str]) -> str:
    """Return quoted identifiers with commas between."""
    return ", ".join(map(name, texts))


def condition(start: int, end: int, where: Mapping[str, tuple[str, ...]]) -> str:
    """Return the condition for rows of [start, end) ms whose tags have one of the values each; none is empty."""
    parts = [f"time >= {start}ms AND time < {end}ms"]
    for tag, values in where.items():
        kept = [form for value in values for form in ((kept_tag(value),) if value else ("", EMPTY))]
        parts.append("(" + " OR ".join(f"{name(tag)} = {literal(value)}" for value in kept) + ")")
    return " AND ".join(parts)


def select_rows(request: Request, columns: Iterable[str] = ()) -> str:
    """Return the statement for rows with the columns given (the request's fields where none are), by series."""
    asked = tuple(columns) or request.fields
    return (
        f"SELECT {names((ROWS, *asked))} FROM {name(request.spec.name)}"
        f" WHERE {condition(request.start, request.end, request.where)} GROUP BY {names(request.spec.tags)}"
    )


def select_latest(request: Request) -> str:
    """Return the statement for the newest row of each series: the fields beside a selector are those of its point."""
    fields = "".join(f", {name(field)}" for field in request.fields)
    return (
        f"SELECT last({name(ROWS)}) AS {name(ROWS)}{fields} FROM {name(request.spec.name)}"
        f" WHERE {condition(request.start, request.end, request.where)} GROUP BY {names(request.spec.tags)}"
    )


def select_aggregate(request: Request) -> str:
    """Return the statement for a request's buckets and groups.

    The server's percentile rounds its rank to the nearest, hence may be one order statistic below nearest rank, and
    gives nothing where that is 0: the minimum beside it (`<field>__min`) is the answer there.
    """
    columns = [f"count({name(ROWS)}) AS {name(ROWS)}"]
    for field in request.fields:
        wanted = request.aggregates[field]
        match = PERCENTILE.match(wanted)
        if match is None:
            columns.append(f"{_FUNCTIONS[wanted]}({name(field)}) AS {name(field)}")
        else:
            columns.append(f"percentile({name(field)}, {match[1]}) AS {name(field)}")
            columns.append(f"min({name(field)}) AS {name(f'{field}__min')}")
    groups = [] if request.every is None else [f"time({request.every}ms)"]
    groups += [name(tag) for tag in request.by or ()]
    return (
        f"SELECT {', '.join(columns)} FROM {name(request.spec.name)}"
        f" WHERE {condition(request.start, request.end, request.where)}"
        + (f" GROUP BY {', '.join(groups)}" if groups else "")
        + ("" if request.every is None else " fill(none)")
    )


def select_unresolved(request: Request) -> str:
    """Return the statement that counts rows of a request whose holder is unknown."""
    unknown = " OR ".join(f"{name(tag)} = 'unknown'" for tag in request.spec.extra_tags)
    where = {tag: values for tag, values in request.where.items() if tag in request.spec.key}
    return (
        f"SELECT count({name(ROWS)}) AS {name(ROWS)} FROM {name(request.spec.name)}"
        f" WHERE {condition(request.start, request.end, where)} AND ({unknown})"
    )


def can_push_down(request: Request) -> bool:
    """Whether the server's aggregates are ours.

    Its `first` and `last` break ties of one instant by value; ours by key. Without the whole key in `by` there are
    such ties.
    """
    if request.by is None:
        return False
    ordered = any(wanted in ("first", "last") for wanted in request.aggregates.values())
    return not ordered or set(request.spec.key) <= set(request.by)


def delete_predicates(request: Request) -> list[str]:
    """Return delete predicates: the API takes equalities joined by AND, so one a combination of values."""
    tags = list(request.where)
    return [
        " AND ".join(
            [
                f'_measurement="{request.spec.name}"',
                *(f'"{tag}"={name(kept_tag(value))}' for tag, value in zip(tags, values, strict=True)),
            ]
        )
        for values in product(*(request.where[tag] for tag in tags))
    ]
