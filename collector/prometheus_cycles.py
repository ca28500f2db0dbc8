"""Raw samples of a Prometheus become what its targets said in each cycle.

Of each series a cycle takes the newest sample. All series of one scrape carry the same stamp, that of `up`: a series
that was in an earlier scrape of its target and is not in the newest one has ended (Prometheus marks it stale), and is
not taken although its last sample lies in the cycle. A series with stamps of its own (an exporter that writes them,
federation) has no such mark and is taken as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import orjson
from numpy.typing import NDArray

from collector.assemble import Scrape
from collector.exposition import Exposition, Series
from collector.prometheus_answer import RangeAnswer
from collector.prometheus_api import TooMuchError
from collector.settings import TargetSettings

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Labels that tell copies of one series apart: those of a pair of Prometheus servers that scrape the same targets.
_COPIES = ("__name__", "__replica__")
_UP = "up"
_TIME_BITS = 42  # milliseconds since the epoch, until the year 2109
_SLACK = 4096
_MOST_SAMPLES = 1 << 62


@dataclass(slots=True)
class Roster:
    """Series by number: the same labels are the same number and the same object, from answer to answer.

    series, target_of, is_up: by a series' number: itself, the number of its target, whether it is `up`.
    targets: by a target's number.
    """

    series: list[Series] = field(default_factory=list)
    target_of: list[int] = field(default_factory=list)
    is_up: list[bool] = field(default_factory=list)
    targets: list[TargetSettings] = field(default_factory=list)
    _numbers: dict[bytes, int] = field(default_factory=dict)
    _same: dict[tuple[str, tuple[tuple[str, str], ...]], int] = field(default_factory=dict)
    _target_numbers: dict[str, int] = field(default_factory=dict)
    _rosters: dict[int, tuple[bytes, list[Series]]] = field(default_factory=dict)

    def number(self, metric: Mapping[str, str]) -> int:
        """Return the number of a series."""
        key = orjson.dumps(metric)
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = self._add(metric)
        return known

    def listed(self, target: int, numbers: Ints) -> list[Series]:
        """Return series of a target; the very list of the time before where they are the same ones."""
        key = numbers.tobytes()
        before = self._rosters.get(target)
        if before is not None and before[0] == key:
            return before[1]
        series = [self.series[number] for number in numbers.tolist()]
        self._rosters[target] = (key, series)
        return series

    def _add(self, metric: Mapping[str, str]) -> int:
        name = metric.get("__name__", "")
        labels = {label: value for label, value in metric.items() if label not in _COPIES}
        same = (name, tuple(sorted(labels.items())))
        number = self._same.get(same)
        if number is None:
            number = self._same[same] = len(self.series)
            self.series.append(Series(name, labels))
            self.target_of.append(self._target(labels))
            self.is_up.append(name == _UP)
        return number

    def _target(self, labels: Mapping[str, str]) -> int:
        key = f"{labels.get('job', '')}/{labels.get('instance', '')}"
        number = self._target_numbers.get(key)
        if number is None:
            number = self._target_numbers[key] = len(self.targets)
            self.targets.append(TargetSettings(url=key))
        return number


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
    return Roster() if len(roster.series) > 4 * len(np.unique(samples.numbers)) + _SLACK else roster


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
    """Newest samples by cycle, target and series, those that ended left out; group: number of the (cycle, target)."""

    cycle: Ints
    group: Ints
    target: Ints
    numbers: Ints
    times_ms: Ints
    values: Floats
    is_up: NDArray[np.bool_]


def _chosen(samples: Samples, roster: Roster, start_ms: int, step_ms: int) -> _Chosen:
    target_of = np.array(roster.target_of, dtype=np.int64)
    is_up = np.array(roster.is_up, dtype=bool)
    cycle = (samples.times_ms - start_ms) // step_ms
    # Cycle, then target, then series, then time: the last of each series in a cycle is its newest.
    order = np.lexsort((samples.times_ms, samples.numbers, target_of[samples.numbers], cycle))
    cycle, numbers = cycle[order], samples.numbers[order]
    last = np.ones(len(order), dtype=bool)
    last[:-1] = (numbers[1:] != numbers[:-1]) | (cycle[1:] != cycle[:-1])
    times, values = samples.times_ms[order][last], samples.values[order][last]
    cycle, numbers = cycle[last], numbers[last]
    target, up = target_of[numbers], is_up[numbers]
    group = np.cumsum((np.diff(cycle, prepend=-1) != 0) | (np.diff(target, prepend=-1) != 0)) - 1

    newest_up = np.full(int(group[-1]) + 1 if len(group) else 0, -1, dtype=np.int64)
    np.maximum.at(newest_up, group[up], times[up])
    was_scrape = np.isin(
        (target << _TIME_BITS) | times,
        (target_of[samples.numbers] << _TIME_BITS | samples.times_ms)[is_up[samples.numbers]],
    )
    kept = ~(was_scrape & (times < newest_up[group]))
    return _Chosen(cycle[kept], group[kept], target[kept], numbers[kept], times[kept], values[kept], up[kept])


def _scrape(chosen: _Chosen, part: slice, roster: Roster) -> Scrape | None:
    up, values = chosen.is_up[part], chosen.values[part]
    target = int(chosen.target[part.start])
    if up.any() and (values[up] == 0).any():
        return Scrape(roster.targets[target], None, "Prometheus says that it is down")
    if up.all():
        return None
    series = roster.listed(target, chosen.numbers[part][~up])
    return Scrape(roster.targets[target], Exposition(series=series, values=values[~up].tolist(), metadata=True))
