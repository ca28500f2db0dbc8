"""What targets said in one cycle, laid out one behind the other; what is kept of each target between cycles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from collector.demand import SchedulerState
from collector.exposition import Exposition, Series
from collector.health import TargetWatch
from collector.kube import KubeState
from collector.plugins import SourceContext
from collector.report import Report
from collector.settings import TargetSettings
from collector.slots import World, XidReading, target_key
from collector.targets import Arrangement, TargetState

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# The simulator's exporters say with this metric what they are; its presence counts, whatever its value.
SIMULATED_METRIC = "trimtab_simulated"

_UNLIKE = "one series with unlike values"

_SILENCE, _NOWHERE = Exposition(), np.empty(0, dtype=np.int64)
_NO_BODY = Exposition(metadata=True)  # of a scheduler that answered: no text, and nothing wrong


@dataclass(slots=True)
class Scrape:
    """What one target said in one cycle: a parsed body, or the reason why there is none.

    age_seconds: how old the values were at the cycle's instant, where the source knows it.
    resting: nothing was asked, or the answer is still awaited: what was said before holds, and there are no values.
    interval_seconds: how often it is asked, where that is not in every cycle; 0: in every one.
    skew_seconds: how far its clock is ahead of ours; NaN where it does not say.
    kube, demand: what a scheduler's own interface said instead of a body.
    denied: parts of it that could not be read, with the reason.
    """

    target: TargetSettings
    body: Exposition | None
    error: str = ""
    age_seconds: float = 0.0
    resting: bool = False
    interval_seconds: float = 0.0
    skew_seconds: float = math.nan
    kube: KubeState | None = None
    demand: SchedulerState | None = None
    denied: Mapping[str, str] = field(default_factory=dict)

    @property
    def of_scheduler(self) -> bool:
        """Say whether a scheduler spoke, not an exporter."""
        return self.kube is not None or self.demand is not None


@dataclass(slots=True)
class Live:
    """A target with samples in this cycle.

    offset: the position of its layout's first series among those of all targets.
    places: where in the layout its values belong; None where there is one of every series.
    """

    memory: TargetMemory
    state: TargetState
    scrape: Scrape
    body: Exposition
    layout: Arrangement
    offset: int
    places: Ints | None


@dataclass(slots=True)
class _Watched:
    """Values of a layout that say something new only when one of them changes."""

    layout: Arrangement | None = None
    values: bytes = b""  # NaN is NaN, bit by bit, and comparing costs a tenth

    def moved(self, layout: Arrangement, values: Floats) -> bool:
        """Say whether these differ from those of the last call."""
        written = values.tobytes()
        if self.layout is layout and written == self.values:
            return False
        self.layout, self.values = layout, written
        return True


@dataclass(slots=True)
class TargetMemory:
    """What is kept of one target."""

    state: TargetState
    series: Sequence[Series] | None = None
    layout: Arrangement | None = None
    places: Ints | None = None
    interval_seconds: float = 0.0
    xids: _Watched = field(default_factory=_Watched)
    facts: _Watched = field(default_factory=_Watched)


class Intake:
    """Takes bodies in, target by target; remembers how each was laid out.

    Attributes:
        watch: which targets answer, and what was told of that.
        simulated: whether any target has said that it is simulated.
    """

    def __init__(self, context: SourceContext, world: World) -> None:
        self.watch = TargetWatch(context)
        self.simulated = context.simulated
        self._world = world
        self._memories: dict[str, TargetMemory] = {}

    def begin_anew(self, world: World) -> None:
        """Forget how targets were laid out: rows and channels are given out anew, by `world`."""
        self._world = world
        self._memories = {}

    def longest_interval_seconds(self) -> float:
        """Return the longest interval among targets that are not asked in every cycle; 0 without any."""
        return max((memory.interval_seconds for memory in self._memories.values()), default=0.0)

    def take(self, scrapes: Sequence[Scrape], report: Report, busy: frozenset[str]) -> list[Live]:
        """Sort out targets that are down; lay out those whose list of series changed.

        Args:
            scrapes: what each target said; `age_seconds` is filled in where the target's own clock tells it.
            report: takes what is told of targets.
            busy: targets of servers whose slices were at work, so that their values have to move.
        """
        live: list[Live] = []
        offset = 0
        for scrape in scrapes:
            key = target_key(scrape.target)
            memory = self._memories.get(key)
            if memory is None or (memory.state.target is not scrape.target and memory.state.target != scrape.target):
                memory = self._memories[key] = TargetMemory(TargetState(scrape.target, self._world))
            if scrape.resting:
                if memory.layout is not None:
                    live.append(Live(memory, memory.state, scrape, _SILENCE, memory.layout, offset, _NOWHERE))
                    offset += memory.layout.size
                continue
            memory.interval_seconds = scrape.interval_seconds
            body = _NO_BODY if scrape.of_scheduler else scrape.body
            up = self.watch.observe(scrape.target, body, scrape.error, report)
            if up and scrape.of_scheduler:
                self.watch.denied(scrape.target, scrape.denied, report)
            if not up or scrape.body is None:
                continue
            series = scrape.body.series
            if (
                memory.layout is None
                or memory.state.outdated
                or (memory.series is not series and memory.series != series)
            ):
                memory.layout, memory.places = memory.state.arrange(series)
                memory.series = series
                self.simulated = self.simulated or any(one.name == SIMULATED_METRIC for one in series)
            must_move = memory.layout.must_move or key in busy
            if self.watch.frozen(scrape.target, scrape.body, report, must_move=must_move):
                report.reject(report.target(scrape.target), "", "stale", len(series))
                continue
            if self.watch.same_machine(scrape.target, memory.layout, report):
                live.append(Live(memory, memory.state, scrape, scrape.body, memory.layout, offset, memory.places))
                offset += memory.layout.size
                own_clock = self.watch.clock(scrape.target, scrape.body, report, skew_seconds=scrape.skew_seconds)
                scrape.age_seconds = scrape.age_seconds or own_clock
                if memory.layout.rejects:
                    report.reject_all(report.target(scrape.target), memory.layout.rejects)
        there = {target_key(scrape.target) for scrape in scrapes}
        self.watch.forget_gone(there, self.longest_interval_seconds(), report)
        return live


def sample_values(live: Sequence[Live]) -> tuple[Floats, Bools]:
    """Return the values of all targets in the order of their layouts, NaN where one is missing, and which are not."""
    flat = np.concatenate([np.empty(0), *(one.body.values for one in live)])
    if all(one.places is None for one in live):
        return flat, np.ones(len(flat), dtype=bool)
    places: list[Ints] = []
    for one in live:
        own = np.arange(one.layout.size) if one.places is None else one.places
        places.append(own + one.offset)
    size = sum(one.layout.size for one in live)
    raw, came = np.full(size, np.nan), np.zeros(size, dtype=bool)
    index = np.concatenate(places)
    raw[index], came[index] = flat, True
    return raw, came


def strike_doubles(live: Sequence[Live], raw: Floats, came: Bools, report: Report) -> dict[int, str]:
    """Make of each series that a target says more than once one sample, in place.

    Equal values are one value; of unlike ones nobody knows which is right.

    Returns:
        Position -> reason of those that are invalid.
    """
    reasons: dict[int, str] = {}
    for one in live:
        for same in one.layout.doubled:
            places = same[came[same + one.offset]] + one.offset
            if len(places) < 2:
                continue
            came[places[1:]] = False
            values = raw[places]
            if (values == values[0]).all() or np.isnan(values).all():
                raw[places[1:]] = np.nan
                continue
            raw[places] = np.nan
            reasons[int(places[0])] = _UNLIKE
            if not np.isin(same, one.layout.samples).any():  # no number of a row: a fact, an XID, a scheduler's word
                report.reject(report.target(one.scrape.target), "", _UNLIKE, 1)
    return reasons


def invalid_reasons(live: Sequence[Live]) -> dict[int, str]:
    """Return why values are invalid, by their position among those of all targets."""
    return {
        one.offset + (index if one.places is None else int(one.places[index])): reason
        for one in live
        for index, reason in one.body.reasons.items()
    }


def read_facts(live: Sequence[Live], raw: Floats) -> bool:
    """Keep values that are facts of cards; say whether any is new."""
    changed = False
    for one in live:
        if one.scrape.resting:
            continue
        values = raw[one.offset + one.layout.fact_places]
        if not one.memory.facts.moved(one.layout, values):
            continue
        for value, reading in zip(
            (values * [fact.scale for fact in one.layout.facts]).tolist(), one.layout.facts, strict=True
        ):
            if math.isfinite(value):
                text = f"{value:.15g}"
                changed |= reading.card.facts.get(reading.name) != text
                reading.card.facts[reading.name] = text
    return changed


def xid_readings(live: Sequence[Live], raw: Floats) -> list[tuple[XidReading, float]]:
    """Return the readings of targets where any differs from the last cycle's, or tells of this cycle alone."""
    readings: list[tuple[XidReading, float]] = []
    for one in live:
        if one.scrape.resting:
            continue
        values = raw[one.offset + one.layout.xid_places]
        if one.memory.xids.moved(one.layout, values) or one.layout.new_xids:
            readings += zip(one.layout.xids, values.tolist(), strict=True)
    return readings
