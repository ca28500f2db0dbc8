"""Who held which slice, with which quota and use: span by span, out of dated facts, with the rows' use in them.

A span ends where anything that it says changes: holder, pod, quota, profile (a re-cut), or the slice itself. Facts give
the spans; a slice that only rows tell of has one from its first row to its last. Use is each holding's share of the
card's SMs (`analyzer.shares`), times the card's SMs, times the time; what was held is the quota instead of the use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from analyzer.cards import cards
from analyzer.facts import to_float
from analyzer.protocols import Partition
from analyzer.shares import Card, Holding
from collector.clock import to_ms
from collector.schema import NOBODY, UNKNOWN
from collector.window import Window

_STATE = ("tenant", "workload", "pod", "kind", "profile", "sm_quota_ratio", "memory_quota_bytes")
SPAN_FACTS = (*_STATE, "sm_count", "model", "mig", "request")
# A slice's row waits so many intervals for its holder: its facts begin with the kind, and the tenant follows.
_WAIT_INTERVALS = 2
_Slice = tuple[str, str]  # gpu, slice
_Told = Mapping[str, tuple[str, str]]  # fact -> value, provenance


@dataclass(slots=True)
class Span:
    """One slice in one state from `start` to `end` (ms since the epoch, as long as the window reaches).

    sm_quota_ratio is NaN where nobody tells it; `sm_hours_*` are NaN where the card's SMs, the quota or the use are not
    known. `coverage` is the share of the intervals in which its use was seen.
    """

    cluster: str
    node: str
    gpu: str
    slice: str
    start: int
    end: int
    told: _Told
    sm_count: float = math.nan
    quota: float = math.nan
    quota_provenance: str = "unknown"
    used_sm_seconds: float = 0.0
    seen_seconds: float = 0.0
    measured: bool = True

    def document(self, *, simulated: bool) -> dict[str, Any]:
        """Return it as plain values, in the order of the columns; absent is None."""
        hours = (self.end - self.start) / 3_600_000
        seen = self.seen_seconds > 0
        use = self.used_sm_seconds / 3600 if seen and not math.isnan(self.sm_count) else math.nan
        return {
            "cluster": self.cluster,
            "node": self.node,
            "gpu": self.gpu,
            "slice": self.slice,
            "kind": self._text("kind") or UNKNOWN,
            "profile": self._text("profile").removeprefix("mig-"),
            "tenant": self._text("tenant") or UNKNOWN,
            "workload": self._text("workload") or UNKNOWN,
            "pod": self._text("pod"),
            "sm_quota_ratio": _known(self.quota, 6),
            "memory_quota_bytes": _known(to_float(self._text("memory_quota_bytes") or None), 0),
            "from": _iso(self.start),
            "to": _iso(self.end),
            "sm_hours_held": _known(self.quota * self.sm_count * hours, 6),
            "sm_hours_used": _known(use, 6),
            "coverage": round(min(self.seen_seconds / (hours * 3600), 1.0), 4) if hours > 0 else 0.0,
            "holder_provenance": self.told.get("tenant", ("", UNKNOWN))[1],
            "quota_provenance": self.quota_provenance,
            "use_provenance": UNKNOWN if not seen else "measured" if self.measured else "estimated",
            "simulated": simulated,
        }

    def _text(self, name: str) -> str:
        return self.told.get(name, ("", ""))[0]


def _known(value: float, digits: int) -> float | None:
    return None if math.isnan(value) else round(float(value), digits)


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


SPAN_COLUMNS = tuple(Span("", "", "", "", 0, 0, {}).document(simulated=False))


@dataclass(slots=True)
class NodeSpans:
    """Spans of one node, filled with use chunk by chunk, in the order of time."""

    cluster: str
    node: str
    window: Window
    facts: pd.DataFrame
    _spans: dict[_Slice, list[Span]] = field(default_factory=dict)
    _by_rows: set[_Slice] = field(default_factory=set)

    def __post_init__(self) -> None:
        own = self.facts
        own = own[(own["kind"] == "slice") & (own["cluster"] == self.cluster) & (own["node"] == self.node)]
        for (gpu, name), told in own[own["name"].isin(_STATE)].groupby(["gpu", "slice"], sort=True):
            self._spans[str(gpu), str(name)] = list(self._of_facts(str(gpu), str(name), told))

    def _of_facts(self, gpu: str, name: str, told: pd.DataFrame) -> Iterator[Span]:
        first, last = to_ms(self.window.start), to_ms(self.window.end)
        starts = told["from"].to_numpy("datetime64[ms]").astype("int64").clip(first, last)
        ends = np.where(told["to"].isna(), last, told["to"].to_numpy("datetime64[ms]").astype("int64")).clip(
            first, last
        )
        facts = list(zip(starts, ends, told["name"], told["value"], told["provenance"], strict=True))
        edges = sorted({int(edge) for start, end, *_ in facts if end > start for edge in (start, end)})
        before: Span | None = None
        for start, end in pairwise(edges):
            state = {fact: (str(value), str(origin)) for s, e, fact, value, origin in facts if s <= start and e >= end}
            if not state:
                continue
            if before is not None and before.end == start and before.told == state:
                before.end = end
                continue
            if before is not None:
                yield before
            before = Span(self.cluster, self.node, gpu, name, start, end, state)
        if before is not None:
            yield before

    def add(self, partition: Partition) -> None:
        """Add the use that the rows of the next chunk tell of."""
        for card in cards(partition):
            for column, holding in enumerate(card.holdings):
                key = (card.gpu, holding.slice)
                if key not in self._spans or key in self._by_rows:
                    self._by_rows.add(key)
                    self._extend(card, column)
            for key, spans in self._spans.items():
                if key[0] == card.gpu:
                    _fill(spans, card, key[1])

    def _extend(self, card: Card, column: int) -> None:
        """Make or lengthen the span of a slice that no fact tells of."""
        holding = card.holdings[column]
        where = np.flatnonzero(card.alive[:, column])
        if not len(where):
            return
        times = card.times_ms()
        step = int(card.interval_seconds * 1000)
        start, end = int(times[where[0]]), min(int(times[where[-1]]) + step, to_ms(self.window.end))
        spans = self._spans.setdefault((card.gpu, holding.slice), [])
        told = {
            "tenant": (holding.tenant, UNKNOWN if holding.tenant == UNKNOWN else "measured"),
            "workload": (holding.workload, "measured"),
            "kind": (holding.kind, "measured"),
        }
        same = [span for span in spans if span.told == told and start - span.end <= _WAIT_INTERVALS * step]
        if same:
            same[-1].end = end
        else:
            spans.append(Span(card.cluster, card.node, card.gpu, holding.slice, start, end, told))

    def finish(self, interval_seconds: float) -> list[Span]:
        """Return the spans in which somebody held a slice, by slice and time."""
        found: list[Span] = []
        for key in sorted(self._spans):
            spans = sorted(self._spans[key], key=lambda span: span.start)
            found += [span for span in _settled(spans, interval_seconds) if span.told["tenant"][0] != NOBODY]
        return found


def _settled(spans: list[Span], interval_seconds: float) -> Iterable[Span]:
    """Give the beginning of a slice, while its holder was not known yet, to the holder that came of it."""
    settled: list[Span] = []
    for span in reversed(spans):
        following = settled[-1] if settled else None
        if "tenant" not in span.told:
            short = span.end - span.start <= _WAIT_INTERVALS * interval_seconds * 1000
            if following is not None and following.start == span.end and short:
                following.start = span.start
                following.used_sm_seconds += span.used_sm_seconds
                following.seen_seconds += span.seen_seconds
                continue
            span.told = {**span.told, "tenant": (UNKNOWN, UNKNOWN), "workload": (UNKNOWN, UNKNOWN)}
        settled.append(span)
    return reversed(settled)


def _fill(spans: list[Span], card: Card, name: str) -> None:
    """Add a chunk's use of a slice to its spans, and what its quota is where no fact says it.

    A row of a coarser tier may reach over a span's end: its holder tells whose it is, the overlap how much of it.
    """
    columns = [n for n, holding in enumerate(card.holdings) if holding.slice == name]
    times = card.times_ms()
    ends = times + int(card.interval_seconds * 1000)
    for span in spans:
        overlap = np.clip(np.minimum(ends, span.end) - np.maximum(times, span.start), 0, None) / 1000
        if not overlap.any():
            continue
        span.sm_count = card.sm_count if math.isnan(span.sm_count) else span.sm_count
        told = to_float(span.told["sm_quota_ratio"][0]) if "sm_quota_ratio" in span.told else math.nan
        if not math.isnan(told):
            span.quota, span.quota_provenance = told, span.told["sm_quota_ratio"][1]
        for n in columns:
            if not _may_be(span, card.holdings[n]):
                continue
            seconds = np.where(card.alive[:, n] & ~np.isnan(card.used[:, n]), overlap, 0.0)
            if not seconds.any():
                continue
            use = float((np.nan_to_num(card.used[:, n]) * seconds).sum())
            span.used_sm_seconds += use * np.nan_to_num(card.sm_count)
            span.seen_seconds += float(seconds.sum())
            span.measured = span.measured and bool(card.measured[n])
            granted = card.quota[(seconds > 0) & ~np.isnan(card.quota[:, n]), n]
            if math.isnan(told) and len(granted):
                span.quota = float(granted.mean())
                guessed = card.quota_estimated[n] or bool(np.isnan(card.of_slices("sm_quota_ratio")[:, n]).all())
                span.quota_provenance = "estimated" if guessed else "measured"


def _may_be(span: Span, holding: Holding) -> bool:
    """Say whether rows of a holding may be of this span: of the same holder, or of one that was not known then."""
    if holding.tenant == UNKNOWN or "tenant" not in span.told:
        return True
    return (holding.tenant, holding.workload) == (span.told["tenant"][0], span.told.get("workload", ("", ""))[0])
