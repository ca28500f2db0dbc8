"""Raw samples of a Prometheus become what its targets said in each cycle.

Of each series a cycle takes the newest sample. All series of one scrape carry the same stamp, that of `up`: a series
that was in an earlier scrape of its target and is not in the newest one has ended (Prometheus marks it stale), and is
not taken although its last sample lies in the cycle. A series with stamps of its own (an exporter that writes them,
federation) has no such mark and is taken as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collector.assemble import Scrape
from collector.exposition import Exposition, LineReject
from collector.prometheus_answer import RangeAnswer
from collector.prometheus_api import TooMuchError
from collector.prometheus_roster import Roster

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Of targets that share a job and an instance and cannot be told apart: their values are of nobody.
_MIXED = "several machines behind one address"
_PAIR_BITS = 32
_TIME_BITS = 42  # milliseconds since the epoch, until the year 2109
_SLACK = 4096
_MOST_SAMPLES = 1 << 62


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of numbered series, in no order: number of the series, time, value."""

    numbers: Ints
    times_ms: Ints
    values: Floats

    def __len__(self) -> int:
        return len(self.numbers)


def gather_samples(answers: Iterable[RangeAnswer], roster: Roster, most: int = _MOST_SAMPLES) -> Samples:
    """Number the series of several answers and put their samples together.

    Raises:
        TooMuchError: they are more than `most`.
    """
    parts = [Samples(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
    count = 0
    for answer in answers:
        count += len(answer.values)
        if count > most:
            raise TooMuchError(f"expected at most {most} samples at once, got more")
        numbers = np.array([roster.number(metric) for metric in answer.metrics], dtype=np.int64)
        parts.append(Samples(np.repeat(numbers, answer.counts), answer.times_ms, answer.values))
    return Samples(
        np.concatenate([part.numbers for part in parts]),
        np.concatenate([part.times_ms for part in parts]),
        np.concatenate([part.values for part in parts]),
    )


def renewed(roster: Roster, samples: Samples) -> Roster:
    """Return the roster, or an empty one where most of it is not seen any more (pods come and go)."""
    return Roster(roster.table) if len(roster.series) > 4 * len(np.unique(samples.numbers)) + _SLACK else roster


def strangers_down(samples: Samples, roster: Roster) -> list[tuple[str, str]]:
    """Return job and instance of the targets that are down and not known to be ours; see `_ours`."""
    up = np.array(roster.is_up, dtype=bool)[samples.numbers]
    pair_of = np.array(roster.pair_of, dtype=np.int64)[samples.numbers]
    ours = _ours(roster, pair_of[up & (samples.values == 1)])
    return [roster.address(number) for number in set(pair_of[up & (samples.values == 0)].tolist()) if not ours[number]]


def cycles(samples: Samples, roster: Roster, start_ms: int, step_ms: int) -> Iterator[tuple[int, list[Scrape], Ints]]:
    """Yield (start of the cycle, what its targets said, time of each one's newest sample), oldest first.

    Cycles without a sample are left out. A target is left out where nothing of it can be told.

    Args:
        samples: all of them in [start, ...).
        roster: where the numbers are from.
        start_ms: start of the first cycle.
        step_ms: length of a cycle.
    """
    chosen = _chosen(samples, roster, start_ms, step_ms)
    if not len(chosen.times_ms):
        return
    bounds = np.flatnonzero(np.diff(chosen.group, prepend=-1))
    ends = [*bounds[1:].tolist(), len(chosen.group)]
    now = int(chosen.cycle[0])
    scrapes: list[Scrape] = []
    newest: list[int] = []
    for first, end in zip(bounds.tolist(), ends, strict=True):
        if chosen.cycle[first] != now:
            if scrapes:
                yield start_ms + now * step_ms, scrapes, np.array(newest, dtype=np.int64)
            now, scrapes, newest = int(chosen.cycle[first]), [], []
        scrape = _scrape(chosen, slice(first, end), roster)
        if scrape is not None:
            scrapes.append(scrape)
            newest.append(int(chosen.times_ms[first:end].max()))
    if scrapes:
        yield start_ms + now * step_ms, scrapes, np.array(newest, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Newest samples by cycle, target and series, those that ended left out; group: number of the (cycle, target).

    ours: which are of a target, or a job of targets, that tells anything known; see `_ours`.
    down: which are of a target that Prometheus cannot scrape. mixed: which are of several machines at once.
    """

    cycle: Ints
    group: Ints
    target: Ints
    numbers: Ints
    times_ms: Ints
    values: Floats
    is_up: Bools
    ours: Bools
    down: Bools
    mixed: Bools


def _chosen(samples: Samples, roster: Roster, start_ms: int, step_ms: int) -> _Chosen:
    is_up = np.array(roster.is_up, dtype=bool)
    _settle(samples, roster, is_up[samples.numbers])
    target_of = np.array(roster.target_of, dtype=np.int64)
    pair_of = np.array(roster.pair_of, dtype=np.int64)
    cycle = (samples.times_ms - start_ms) // step_ms
    # Cycle, then target, then series, then time: the last of each series in a cycle is its newest.
    order = np.lexsort((samples.times_ms, samples.numbers, target_of[samples.numbers], cycle))
    cycle, numbers = cycle[order], samples.numbers[order]
    last = np.ones(len(order), dtype=bool)
    last[:-1] = (numbers[1:] != numbers[:-1]) | (cycle[1:] != cycle[:-1])
    times, values = samples.times_ms[order][last], samples.values[order][last]
    cycle, numbers = cycle[last], numbers[last]
    target, up, pair = target_of[numbers], is_up[numbers], pair_of[numbers]
    group = np.cumsum((np.diff(cycle, prepend=-1) != 0) | (np.diff(target, prepend=-1) != 0)) - 1
    groups = int(group[-1]) + 1 if len(group) else 0

    was_scrape = np.isin(
        (pair << _TIME_BITS) | times,
        (pair_of[samples.numbers] << _TIME_BITS | samples.times_ms)[is_up[samples.numbers]],
    )
    # Where several machines are behind one address, `up` may tell of another one's scrape: a machine's own series show
    # when it was scraped, and what is of no machine in particular may be of any.
    shared = roster.shared_pairs()[pair]
    rest = shared & (target == roster.rests()[pair])
    newest_up = np.full(groups, -1, dtype=np.int64)
    shows = up | (shared & was_scrape)
    np.maximum.at(newest_up, group[shows], times[shows])
    kept = ~(was_scrape & (times < newest_up[group])) | (rest & ~up)

    failed = up & (values == 0)
    down = np.zeros(groups, dtype=bool)
    down[group[failed & (times == newest_up[group])]] = True
    lone = roster.lone_ups()[pair]
    key = (cycle << _PAIR_BITS) | pair
    is_down = down[group] | (lone & np.isin(key, key[failed & lone]))
    if lone.any():
        seen, place = np.unique(key, return_inverse=True)
        newest = np.full(len(seen), -1, dtype=np.int64)
        np.maximum.at(newest, place[up], times[up])
        roster.alternating = frozenset(pair[lone & ~rest & (newest_up[group] < newest[place])].tolist())
    mixed = _mixed(samples, roster, is_up, pair_of, target_of)
    roster.mixed = frozenset(mixed.tolist())
    is_mixed = np.isin(numbers, mixed)
    ours = _ours(roster, pair_of[samples.numbers[is_up[samples.numbers] & (samples.values == 1)]])[pair]
    roster.strangers_down = frozenset(roster.targets[number].url for number in set(target[is_down & ~ours].tolist()))
    columns = (cycle, group, target, numbers, times, values, up, ours, is_down, is_mixed)
    return _Chosen(*(column[kept] for column in columns))


def _ours(roster: Roster, answering: Ints) -> Bools:
    """Return, by a pair's number, whether it matters here that it is down.

    A Prometheus scrapes much that is none of ours. A pair matters that ever told something known; and one that never
    did where most of its job's pairs that answer do, as those of a job of dcgm-exporters.

    Args:
        roster: the pairs.
        answering: numbers of pairs that are up.
    """
    told, jobs = roster.told_pairs(), roster.jobs()
    up = np.zeros(len(told), dtype=bool)
    up[answering] = True
    alive = np.bincount(jobs[up], minlength=len(jobs))
    telling = np.bincount(jobs[up & told], minlength=len(jobs))
    return np.asarray(told | ((telling > 0) & (2 * telling >= alive))[jobs], dtype=bool)


def _settle(samples: Samples, roster: Roster, up: Bools) -> None:
    """Tell the roster when each `up` was seen."""
    numbers, times = samples.numbers[up], samples.times_ms[up]
    order = np.lexsort((times, numbers))
    numbers, times = numbers[order], times[order]
    firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
    lasts = np.append(firsts[1:], len(numbers)) - 1
    roster.settle(numbers[firsts].tolist(), times[firsts].tolist(), times[lasts[: len(firsts)]].tolist())


def _mixed(samples: Samples, roster: Roster, is_up: Bools, pair_of: Ints, target_of: Ints) -> Ints:
    """Return series that several targets write into although nothing in them says of which machine a sample is."""
    shared = roster.shared_pairs()[pair_of]
    suspect = shared & np.array(roster.mixable, dtype=bool) & (target_of == roster.rests()[pair_of])
    if not suspect.any():
        return np.empty(0, dtype=np.int64)
    stamps = (pair_of[samples.numbers] << _TIME_BITS) | samples.times_ms
    ups = np.flatnonzero(is_up[samples.numbers])
    ups = ups[np.argsort(stamps[ups], kind="stable")]
    asked = np.flatnonzero(suspect[samples.numbers])
    if not len(ups):
        return np.empty(0, dtype=np.int64)
    at = np.minimum(np.searchsorted(stamps[ups], stamps[asked]), len(ups) - 1)
    same = stamps[ups][at] == stamps[asked]
    written = np.unique(np.column_stack((samples.numbers[asked][same], samples.numbers[ups][at][same])), axis=0)
    series, writers = np.unique(written[:, 0], return_counts=True)
    return series[writers > 1]


def _scrape(chosen: _Chosen, part: slice, roster: Roster) -> Scrape | None:
    target = roster.targets[int(chosen.target[part.start])]
    up = chosen.is_up[part]
    if chosen.down[part].any():
        return Scrape(target, None, "Prometheus says that it is down") if chosen.ours[part.start] else None
    if up.all():
        # One that told something before answers with nothing now; of the others, and of machines behind one address
        # that only the address itself answers for, there is nothing to tell.
        silent = roster.told_alone(int(chosen.target[part.start]))
        return Scrape(target, Exposition([], [], metadata=True)) if silent else None
    mixed = chosen.mixed[part]
    told = ~up & ~mixed
    series = roster.listed(int(chosen.target[part.start]), chosen.numbers[part][told])
    body = Exposition(series=series, values=chosen.values[part][told].tolist(), metadata=True)
    body.rejects = [LineReject(0, _MIXED, roster.series[number].name) for number in chosen.numbers[part][mixed]]
    return Scrape(target, body)
