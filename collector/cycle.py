"""The numbers of one cycle: samples to channels to entries to cells, in a few array operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collector.counters import Growth
from collector.layout import FIELD_INDEX, FIELDS, GAUGE, INCREMENT, NOWHERE, RATE, Registry, parts_of
from collector.slots import Card

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_MEMORY = np.array([FIELD_INDEX[f"memory_{name}_bytes"] for name in ("used", "free", "reserved")])


@dataclass(slots=True)
class Plan:
    """Which sample feeds which channel, for one set of targets; channels numbered densely.

    Arrays by sample, by channel, by counter and by entry; `Places` are positions in one of these.
    """

    samples: Ints
    local: Ints  # position of each sample's channel in `channels`
    cards: Ints
    low: Floats  # by sample: what is out of these bounds is invalid
    high: Floats
    clamp: Floats  # by sample: what is above is cut to it
    caps: Bools  # by sample: and that is counted
    fed: Bools  # by sample: its channel is not the dust bin
    masked: Ints  # positions in `samples` of bit masks
    masks: Ints  # of those
    quiet: Ints  # positions in `samples` whose exporter has a way to say that there is nothing
    absent: Floats  # of those: the value that says so
    either: Ints  # positions in `samples` that are percent or ratio, as their value tells
    alive: Ints  # positions in `samples` that tell whether a device's scrape is valid
    counted: Ints  # positions in `samples` of counters
    channels: Ints  # numbers in the registry
    only: Ints | None  # position of each channel's only sample; None where some channel has several
    scale: Floats  # by channel
    counters: Ints  # positions in `channels` of counters
    counter_numbers: Ints  # of those, in the book
    counter_places: Ints  # of the samples in `counted`: the position of theirs in `counters`
    rates: Bools  # of the counters: a rate is asked for
    kept_over_gap: Bools  # of the counters: growth counts however long it took
    own_intervals: Floats  # of the targets of those counters, in seconds; 0: they are read in each cycle
    entry_count: int
    entry_local: Ints  # position of each channel's entry
    entry_only: Ints | None  # position of each entry's only channel; None where some entry has several, or a floor
    entry_floor: Ints  # parts that an entry needs at least; -1: one that is enough with any
    order: Ints  # positions of entries, the preferred ones last, without the dust bin
    cells: Ints  # of those: where in the matrix
    row_count: int


@dataclass(slots=True)
class Numbers:
    """Results of one cycle.

    matrix: rows of the registry x `layout.FIELDS`, in base units, NaN where absent or invalid.
    growth, seconds, levels: by channel of the registry, for channels that are read by hand.
    invalid: (channel, reason) a bad sample; fallen: channels of counters that fell.
    """

    matrix: Floats
    growth: Floats
    seconds: Floats
    levels: Floats
    invalid: list[tuple[int, str]]
    fallen: Ints
    dead: dict[int, int]

    def dead_cards(self, cards: Sequence[Card]) -> list[tuple[str, int]]:
        """Return (uuid, samples dropped) of cards whose whole scrape is zero."""
        return [(cards[number].uuid, count) for number, count in self.dead.items()]

    def take(self, rows: Ints) -> Floats:
        """Return copies of some rows; NaN for the dust bin and for rows that came after this cycle's layout."""
        there = (rows != NOWHERE) & (rows < len(self.matrix))
        taken = self.matrix[np.where(there, rows, NOWHERE)]
        taken[~there] = np.nan
        return taken

    def instance_memory(self, rows: Ints) -> Floats:
        """Return the whole memory of MIG instances in bytes: used, free and reserved together; NaN without them."""
        used, free, reserved = self.take(rows)[:, _MEMORY].T
        return np.asarray(used + free + np.nan_to_num(reserved))


def lay_out(
    registry: Registry,
    samples: Sequence[Ints],
    channels: Sequence[Ints],
    cards: Sequence[Ints],
    instances: Mapping[int, int],
    *,
    intervals: Sequence[float] = (),
) -> Plan:
    """Lay out the series of all targets of a cycle.

    Args:
        registry: rows, entries and channels.
        samples: a target's array holds positions in the values of all targets together.
        channels: the channel that each sample feeds.
        cards: the card that each sample speaks of, -1 for none.
        instances: row of a card -> how many MIG instances it has: a sum over fewer is not the card's.
        intervals: how often each target is read, in seconds, where that is not in every cycle; 0: in every one.
    """
    empty = np.empty(0, dtype=np.int64)
    all_samples = np.concatenate([empty, *samples])
    all_channels = np.concatenate([empty, *channels])
    all_cards = np.concatenate([empty, *cards])
    table = registry.tables()
    used, first, local = np.unique(all_channels, return_index=True, return_inverse=True)
    manner, read = table.manner[used], table.manner[all_channels]
    entries, entry_first, entry_local = np.unique(table.entry[used], return_index=True, return_inverse=True)
    rows, saying = parts_of(entries)
    floor = np.full(len(entries), -1, dtype=np.int64)
    for n in np.flatnonzero(table.strict[saying]).tolist():
        floor[n] = instances.get(int(rows[n]), 0)
    order = np.argsort(table.rank[saying])
    order = order[entries[order] != NOWHERE]
    counters = np.flatnonzero(table.kind[manner] != GAUGE)
    place = np.full(len(used), -1, dtype=np.int64)
    place[counters] = np.arange(len(counters))
    counted = np.flatnonzero(table.kind[read] != GAUGE)
    own = np.zeros(len(used))
    if any(intervals):
        own[local] = np.concatenate([np.full(len(s), one) for s, one in zip(samples, intervals, strict=True)])
    masked, quiet = np.flatnonzero(table.mask[read] != 0), np.flatnonzero(table.quiet[read])
    return Plan(
        samples=all_samples,
        local=local,
        cards=all_cards,
        low=table.low[read],
        high=table.high[read],
        clamp=table.clamp[read],
        caps=table.counts_cap[read],
        fed=all_channels != NOWHERE,
        masked=masked,
        masks=table.mask[read[masked]],
        quiet=quiet,
        absent=table.absent[read[quiet]],
        either=np.flatnonzero(table.either[read]),
        alive=np.flatnonzero(table.alive[read] & (all_cards >= 0)),
        counted=counted,
        channels=used,
        only=_only(used, first, local),
        scale=table.scale[manner],
        counters=counters,
        counter_numbers=table.counter[used[counters]],
        counter_places=place[local[counted]],
        rates=table.kind[manner[counters]] == RATE,
        kept_over_gap=(table.kind[manner[counters]] == INCREMENT) & table.keep_over_gap[manner[counters]],
        own_intervals=own[counters],
        entry_count=len(entries),
        entry_local=entry_local,
        entry_only=None if (floor >= 0).any() else _only(entries, entry_first, entry_local),
        entry_floor=floor,
        order=order,
        cells=rows[order] * len(FIELDS) + table.field[saying[order]],
        row_count=len(registry.rows),
    )


def _only(numbers: Ints, first: Ints, local: Ints) -> Ints | None:
    """Return which part each number has, where it has one; what goes into the dust bin may be any."""
    counts = np.bincount(local, minlength=len(numbers))
    return first if (counts[numbers != NOWHERE] == 1).all() else None


def evaluate(
    plan: Plan,
    registry: Registry,
    raw: Floats,
    came: Bools,
    *,
    now_ms: int,
    interval_seconds: float,
    reasons: Mapping[int, str] | None = None,
) -> Numbers:
    """Return the numbers of one cycle; counters move on.

    Args:
        plan: the layout that `raw` follows.
        registry: rows, entries and channels of the plan.
        raw: values as the targets wrote them; NaN where a series of the plan has none this time.
        came: which series have one.
        now_ms: the cycle's instant.
        interval_seconds: over a gap of more than two intervals rates and energy are NaN.
        reasons: position in `raw` -> why it is invalid, where the source itself said so.
    """
    used = plan.channels
    value = raw[plan.samples]
    if len(plan.masked):
        value[plan.masked] = _bits(value[plan.masked], plan.masks)
    there = came[plan.samples]
    if len(plan.quiet):
        said = value[plan.quiet]
        nothing = plan.quiet[np.isnan(said) | (said == plan.absent)]
        there[nothing], value[nothing] = False, np.nan
    if len(plan.either):
        said = value[plan.either]
        unclear = plan.either[said == 1]
        value[plan.either] = np.where((said > 0) & (said < 1), 100 * said, said)
        value[unclear] = np.nan
        reasons = {**(reasons or {}), **dict.fromkeys(plan.samples[unclear].tolist(), "unit_not_clear")}
    valid, invalid, dead = _judge(plan, value, there, reasons or {})
    over = valid & (value > plan.clamp)
    if over.any():
        invalid += [(c, "above_1_capped") for c in used[plan.local[over & plan.caps]].tolist()]
        value = np.minimum(value, plan.clamp)
    sampled, mean = _means(plan, value, there, valid)
    result = mean * plan.scale
    levels = np.full(registry.size, np.nan)
    levels[used] = result
    growth, seconds = np.full(registry.size, np.nan), np.full(registry.size, np.nan)
    fallen = np.empty(0, dtype=np.int64)
    if len(plan.counters):
        channels = used[plan.counters]
        grown = registry.counters.advance(plan.counter_numbers, _highest(plan, value, valid), now_ms)
        growth[channels], seconds[channels], fallen = grown.increment, grown.seconds, channels[grown.fell]
        seconds[used[~sampled]] = np.nan
        result[plan.counters] = _scaled(grown, plan, interval_seconds)
    matrix = _cells(plan, result, sampled)
    return Numbers(matrix, growth, seconds, levels, invalid, fallen, dead)


def _means(plan: Plan, value: Floats, there: Bools, valid: Bools) -> tuple[Bools, Floats]:
    """Return which channels have a sample, and the mean of their valid ones: copies of the same value; else NaN."""
    if plan.only is not None:
        return there[plan.only], np.where(valid, value, np.nan)[plan.only] + 0.0  # of -0 too it makes 0
    size = len(plan.channels)
    sampled = np.bincount(plan.local, weights=there, minlength=size) > 0
    count = np.bincount(plan.local, weights=valid, minlength=size)
    total = np.bincount(plan.local, weights=np.where(valid, value, 0.0), minlength=size)
    with np.errstate(invalid="ignore", divide="ignore"):
        return sampled, np.where(count > 0, total / count, np.nan)


def _judge(
    plan: Plan, value: Floats, there: Bools, reasons: Mapping[int, str]
) -> tuple[Bools, list[tuple[int, str]], dict[int, int]]:
    """Return which samples are valid, (channel, reason) of those that are not, and cards whose scrape is zero."""
    valid = (value >= plan.low) & (value <= plan.high)
    big = np.flatnonzero(value >= 2147483632)
    blank = np.zeros(len(value), dtype=bool)
    if len(big):
        blank[big] = is_blank(value[big])
        valid &= ~blank
    dead: dict[int, int] = {}
    zero = plan.alive[value[plan.alive] == 0]
    zeroed = np.zeros(len(value), dtype=bool)
    if len(zero):
        numbers = np.unique(plan.cards[zero])
        zeroed = np.isin(plan.cards, numbers)
        dead = {int(number): int(((plan.cards == number) & there).sum()) for number in numbers}
        valid &= ~zeroed
    bad = np.flatnonzero(~valid & ~zeroed & there & plan.fed)
    invalid = []
    for n in bad:
        reason = "blank" if blank[n] else "not_a_number" if np.isnan(value[n]) else "out_of_range"
        if reasons:
            reason = reasons.get(int(plan.samples[n]), reason)
        invalid.append((int(plan.channels[plan.local[n]]), reason))
    return valid, invalid, dead


def is_blank(value: Floats) -> Bools:
    """Say which values are DCGM's marks for blank, not found, not supported or not permitted (and those times 100)."""
    int32 = (value >= 2147483632) & (value <= 2147483635)
    fp64 = (value >= 140737488355328) & (value < 140737488355332)
    times_100 = (value >= 14073748835532800) & (value < 14073748835533200)
    return int32 | fp64 | times_100 | (value >= 9.2e18)


def _bits(value: Floats, mask: Ints) -> Floats:
    """Return 1.0 where a bit of the mask is set; mask -1 is the power brake: 0x80, or 0x8 without 0x1."""
    finite = np.isfinite(value) & (value >= 0) & (value < 2**53)
    word = np.where(finite, value, 0.0).astype(np.int64)
    brake = ((word & 0x80) != 0) | (((word & 0x8) != 0) & ((word & 0x1) == 0))
    return np.where(finite, np.where(mask < 0, brake, (word & mask) != 0), np.nan)


def _highest(plan: Plan, value: Floats, valid: Bools) -> Floats:
    """Return the highest valid sample of each counter: its copies are read at slightly different instants."""
    good = valid[plan.counted]
    highest = np.full(len(plan.counters), -np.inf)
    np.maximum.at(highest, plan.counter_places[good], value[plan.counted[good]])
    highest[np.isinf(highest)] = np.nan
    return highest


def _scaled(grown: Growth, plan: Plan, interval_seconds: float) -> Floats:
    """Return increments and rates in base units; over a gap only counts of errors keep theirs."""
    scaled = grown.increment * plan.scale[plan.counters]
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled = np.where(plan.rates, scaled / grown.seconds, scaled)
    gap = grown.seconds > 2 * np.maximum(plan.own_intervals, interval_seconds) + 1e-6
    scaled[gap & ~plan.kept_over_gap] = np.nan
    return scaled


def _cells(plan: Plan, result: Floats, sampled: Bools) -> Floats:
    """Add up the parts of each entry and let the preferred entry of each cell win."""
    total = _totals(plan, result, sampled) if plan.entry_only is None else result[plan.entry_only]
    matrix = np.full((plan.row_count, len(FIELDS)), np.nan)
    ordered = total[plan.order]
    there = ~np.isnan(ordered)
    matrix.ravel()[plan.cells[there]] = ordered[there]
    return matrix


def _totals(plan: Plan, result: Floats, sampled: Bools) -> Floats:
    """Return the sum of each entry's parts; NaN without one, or with fewer than it needs."""
    there = ~np.isnan(result)
    size = plan.entry_count
    # An empty bincount is of integers, weights or not.
    total = np.bincount(plan.entry_local, weights=np.where(there, result, 0.0), minlength=size).astype(np.float64)
    parts = np.bincount(plan.entry_local, weights=there, minlength=size)
    said = np.bincount(plan.entry_local, weights=sampled, minlength=size)
    total[(parts == 0) | ((plan.entry_floor >= 0) & (parts < np.maximum(said, plan.entry_floor)))] = np.nan
    return total
