"""Who held which slice, written span by span as CSV or JSON, node after node, a day of rows at a time."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TextIO

import orjson
import pandas as pd

from analyzer.facts import says_simulated
from analyzer.holding_spans import SPAN_COLUMNS, SPAN_FACTS, NodeSpans
from analyzer.protocols import Partition
from collector.protocols import StoreReader
from collector.schema import ACTIVITY
from collector.window import Window
from dashboard.cli.output import clean

SCHEMA_VERSION = 1
_CHUNK = timedelta(days=1)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_TIER_SECONDS = (60.0, 3600.0)
_SLICE_FIELDS = [*ACTIVITY, "sm_quota_ratio"]
_NO_ROWS = pd.DataFrame({"time": pd.Series(dtype="datetime64[ms, UTC]"), "cluster": "", "node": ""})


def held_spans(store: StoreReader, window: Window, interval_seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the spans of a window as plain values, by node, slice and time.

    Args:
        store: rows and facts.
        window: what is looked at; spans are cut to it.
        interval_seconds: grid of raw rows; use of times of which there are none any more comes from coarser ones.
    """
    facts = store.facts(window, names=[*SPAN_FACTS, "simulated"])
    simulated = says_simulated(facts)
    chunks = list(_chunks(window, _span(store)))
    told = facts[(facts["kind"] == "slice") & (facts["node"] != "")]
    nodes = {(str(c), str(n)) for c, n in zip(told["cluster"], told["node"], strict=True)}
    for cluster, node in sorted(nodes | set(store.partitions(window))):
        about = facts[(facts["cluster"] == cluster) & facts["node"].isin([node, ""])].reset_index(drop=True)
        spans = NodeSpans(cluster, node, window, about)
        for chunk in chunks:
            spans.add(_partition(store, chunk, (cluster, node), about, interval_seconds))
        for span in spans.finish(interval_seconds):
            yield span.document(simulated=simulated)


def _span(store: StoreReader) -> Window | None:
    """Return the window from the oldest row of a card or a slice to just after the newest."""
    spans = [span for name in ("gpu", "slice") if (span := store.span(name)) is not None]
    return Window(min(span.start for span in spans), max(span.end for span in spans)) if spans else None


def _chunks(window: Window, rows: Window | None) -> Iterator[Window]:
    """Cut a window into chunks; those before the first row and after the last are left out, however many there are."""
    if rows is None:
        return
    start = window.start + max((rows.start - window.start) // _CHUNK, 0) * _CHUNK
    while start < min(window.end, rows.end):
        end = min(start + _CHUNK, window.end)
        yield Window(start, end)
        start = end


def _partition(
    store: StoreReader, chunk: Window, place: tuple[str, str], facts: pd.DataFrame, interval_seconds: float
) -> Partition:
    grid, gpu, slices = _finest(store, chunk, place, interval_seconds)
    alive = facts[facts["from"] < chunk.end]
    return Partition(
        cluster=place[0],
        node=place[1],
        window=chunk,
        interval_seconds=grid,
        gpu=gpu,
        slice=slices,
        node_rows=_NO_ROWS,
        facts=alive[alive["to"].isna() | (alive["to"] > chunk.start)],
        events=pd.DataFrame(),
        rejects=pd.DataFrame(),
        settings={},
    )


def _finest(
    store: StoreReader, chunk: Window, place: tuple[str, str], interval_seconds: float
) -> tuple[float, pd.DataFrame, pd.DataFrame]:
    """Return the step and rows of cards and slices: raw ones, or those of the finest tier that reaches back further."""
    best = interval_seconds, *_rows(store, chunk, place, None)
    for step in _TIER_SECONDS:
        began = _first(best)
        if began <= chunk.start + timedelta(seconds=step) or step <= interval_seconds:
            continue
        coarser = step, *_rows(store, chunk, place, timedelta(seconds=step))
        if _first(coarser) < began - timedelta(seconds=step):
            best = coarser
    return best


def _first(read: tuple[float, pd.DataFrame, pd.DataFrame]) -> datetime:
    stamps = [frame["time"].min().to_pydatetime() for frame in read[1:] if len(frame)]
    return min(stamps, default=datetime.max.replace(tzinfo=UTC))


def _rows(
    store: StoreReader, chunk: Window, place: tuple[str, str], every: timedelta | None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    where, key = {"cluster": place[0], "node": place[1]}, ["cluster", "node", "gpu"]
    holder = [*key, "slice", "tenant", "workload"]
    grouped = every is not None
    return (
        store.read("gpu", chunk, fields=ACTIVITY, where=where, every=every, by=key if grouped else None),
        store.read("slice", chunk, fields=_SLICE_FIELDS, where=where, every=every, by=holder if grouped else None),
    )


def write_csv(spans: Iterable[dict[str, Any]], out: TextIO) -> int:
    """Write spans as CSV with a header, one a line; absent is an empty cell. Returns how many.

    A name that a spreadsheet would take for a formula gets an apostrophe before it, and what a terminal would act on or
    would begin a new line is replaced.
    """
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(SPAN_COLUMNS)
    count = 0
    for count, span in enumerate(spans, start=1):  # noqa: B007  the last one is the number of them
        writer.writerow(_cell(value) for value in span.values())
    return count


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return clean(f"'{value}" if value.startswith(_FORMULA) else value)
    return "" if value is None else value


def write_json(spans: Iterable[dict[str, Any]], window: Window, out: TextIO) -> int:
    """Write spans as one JSON document, each as it comes; absent is null. Returns how many."""
    head = {"schema_version": SCHEMA_VERSION, "from": window.start.isoformat(), "to": window.end.isoformat()}
    out.write(orjson.dumps(head).decode()[:-1] + ',"spans":[')
    count = 0
    for count, span in enumerate(spans, start=1):
        out.write(("," if count > 1 else "") + "\n" + orjson.dumps(span).decode())
    out.write("\n]}\n")
    return count
