"""What is asked of a store, checked; what may hold the answer; and which tier gives it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from collector.clock import to_ms
from collector.protocols import Aggregate, Where
from collector.schema import Kind, Measurement
from collector.store.hot import measurement_of
from collector.window import Window

RAW, MINUTE, HOUR = "raw", "minute", "hour"
STEP_MS = {MINUTE: 60_000, HOUR: 3_600_000}
Range = tuple[int, int]  # [start, end) in ms

PERCENTILE = re.compile(r"^p(\d{1,2}(?:\.\d+)?|100)$")
_AGGREGATES = ("mean", "min", "max", "sum", "count", "first", "last")
# From this length of window on a tier is read where it gives the same answer.
_WORTH_MS = {HOUR: 2 * 86_400_000, MINUTE: 6 * 3_600_000}
_FROM_TIERS = frozenset({"mean", "min", "max", "sum", "count"})


@dataclass(frozen=True, slots=True)
class Segment:
    """A sealed file as the catalogue knows it. Times in ms, inclusive; exponents as `write_sealed` gave them."""

    id: int
    tier: str
    path: Path
    t_min: int
    t_max: int
    rows: int
    seq_min: int
    seq_max: int
    exponents: Mapping[str, int | None]
    source: int | None


@dataclass(frozen=True, slots=True)
class Request:
    """A checked `read`: times in ms, half open; `by` None means raw rows."""

    spec: Measurement
    start: int
    end: int
    fields: tuple[str, ...]
    where: Mapping[str, tuple[str, ...]]
    by: tuple[str, ...] | None
    every: int | None
    aggregates: Mapping[str, Aggregate]

    @property
    def names_holders(self) -> bool:
        """Whether groups are made, or chosen, by tags that are no part of the key (tenant, workload)."""
        return self.by is not None and not set(self.spec.extra_tags).isdisjoint((*self.by, *self.where))

    @property
    def from_tiers(self) -> bool:
        """Whether every aggregate asked for follows from mean, min, max and count."""
        return self.by is not None and all(a in _FROM_TIERS for a in self.aggregates.values())


def make_request(
    measurement: str,
    window: Window,
    *,
    fields: Sequence[str] | None,
    where: Where | None,
    by: Sequence[str] | None,
    every: timedelta | None,
    aggregate: Aggregate | Mapping[str, Aggregate],
) -> Request:
    """Check the arguments of `Store.read`.

    One aggregate for all fields leaves percentiles out of averaging: where it is mean or sum, a field of kind quantile
    is answered by its maximum.

    Raises:
        KeyError: unknown measurement, field or tag.
        ValueError: unknown aggregate, a mean or sum of a quantile asked by name, or `every` not in whole ms.
    """
    spec = measurement_of(measurement)
    chosen = spec.field_names if fields is None else tuple(fields)
    for name in chosen:
        spec.field(name)
    for tag in (*(where or {}), *(by or ())):
        if tag not in spec.tags:
            raise KeyError(f"measurement {measurement!r} has no tag {tag!r}; it has {', '.join(spec.tags)}")
    step = None if every is None else round(every / timedelta(milliseconds=1))
    if step is not None and step <= 0:
        raise ValueError(f"expected `every` of at least 1 ms, got {every}")
    grouped = every is not None or by is not None
    return Request(
        spec=spec,
        start=to_ms(window.start),
        end=to_ms(window.end),
        fields=chosen,
        where={tag: (v,) if isinstance(v, str) else tuple(v) for tag, v in (where or {}).items()},
        by=(spec.key if by is None else tuple(by)) if grouped else None,
        every=step,
        aggregates=_check_aggregates(spec, chosen, aggregate) if grouped else {},
    )


def _check_aggregates(
    spec: Measurement, fields: Sequence[str], aggregate: Aggregate | Mapping[str, Aggregate]
) -> dict[str, Aggregate]:
    chosen: dict[str, Aggregate] = {}
    for name in fields:
        wanted = aggregate if isinstance(aggregate, str) else aggregate.get(name, "mean")
        if wanted not in _AGGREGATES and not PERCENTILE.match(wanted):
            raise ValueError(f"expected an aggregate out of {', '.join(_AGGREGATES)} or pNN, got {wanted!r}")
        if spec.field(name).kind is Kind.QUANTILE and wanted in ("mean", "sum"):
            if not isinstance(aggregate, str) and name in aggregate:
                raise ValueError(f"percentiles are never averaged: expected max, min or last of {name!r}, got {wanted}")
            wanted = "max"
        chosen[name] = wanted
    return chosen


def contested(ranges: Iterable[Range]) -> list[Range]:
    """Return where at least two of the half-open ranges overlap, merged and in order."""
    points = sorted(point for start, end in ranges for point in ((start, 1), (end, -1)))
    found: list[Range] = []
    depth, opened = 0, 0
    for at, change in points:
        before, depth = depth, depth + change
        if before < 2 <= depth:
            opened = at
        elif depth < 2 <= before and at > opened:
            if found and found[-1][1] == opened:
                found[-1] = (found[-1][0], at)
            else:
                found.append((opened, at))
    return found


@dataclass(frozen=True, slots=True)
class Pieces:
    """What may hold rows of a request: sealed files of all tiers, hot ranges, and where retention has dropped rows."""

    segments: Sequence[Segment]
    hot: Sequence[Range]  # a blob that holds a key and time twice stands here twice
    floors: Mapping[str, int]  # tier -> instant before which its rows were dropped

    def of(self, tier: str) -> list[Segment]:
        """Return the sealed files of one tier."""
        return [segment for segment in self.segments if segment.tier == tier]

    @property
    def clashes(self) -> list[Range]:
        """Where a key and time may stand twice among raw rows."""
        return contested([*((s.t_min, s.t_max + 1) for s in self.of(RAW)), *self.hot])


def choose_tier(request: Request, floors: Mapping[str, int]) -> str:
    """Return the tier that answers: the coarsest that gives the same answer where it saves work, or that is left.

    A coarser tier fits where every bucket is made of whole steps of it and all aggregates follow from mean, min, max
    and count. Below the floor of raw rows a tier answers even where the window's edges cut its steps; a step then
    belongs to the window that holds its start.
    """
    if not request.from_tiers:
        return RAW

    def gone(tier: str) -> bool:
        return request.start < floors.get(tier, request.start)

    left = [tier for tier in (HOUR, MINUTE) if request.every is None or request.every % STEP_MS[tier] == 0]
    if HOUR in left and gone(MINUTE):
        left = [HOUR]
    for tier in left:
        step = STEP_MS[tier]
        aligned = request.start % step == 0 and request.end % step == 0
        if aligned and (gone(RAW) or request.end - request.start >= _WORTH_MS[tier]):
            return tier
    return left[-1] if left and gone(RAW) else RAW
