"""What happens to the cluster from outside, minute by minute: requests, training waves, queue jobs, noise, hot inlets.

Nothing here depends on what the tuner does: two runs of one spec see the same tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from sample_data.cluster.spec import ALWAYS, INLET, MINUTES_PER_DAY, ClusterSpec, ServiceSpec
from sample_data.cluster.streams import stream

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_SHADOW_DELAY, _SHADOW_REST = 3, 0.25  # minutes; share of epochs
_WEEKEND_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class JobArrival:
    """A queue job as its owner submits it."""

    minute: int  # since the start of the simulation
    tenant: str
    job_class: str
    solo_minutes: float  # work: how long it takes on its seat with nobody in the way
    number: int  # within the cluster, in order of arrival
    owner: str = ""  # a trainer that lost its card and asks for another


@dataclass(frozen=True, slots=True)
class Day:
    """One day of outside causes; arrays are (things, 1440)."""

    requests: IntArray  # per service
    heavier: FloatArray  # per service: service time is multiplied by it
    wave: FloatArray  # per slice: 0..1, how much of its width a trainer wants
    turnover: BoolArray  # per slice: a new job (process) starts in this minute
    noise: FloatArray  # per slice: factor on the service time
    clock: FloatArray  # per card: factor that a failing inlet leaves of the clock
    jobs: tuple[tuple[JobArrival, ...], ...]  # per minute


class Arrivals:
    """Makes the days in order and keeps the last ones."""

    def __init__(self, spec: ClusterSpec) -> None:
        self._spec = spec
        self._days: list[Day] = []
        self._trainers = {
            i: _Waves(spec.seed, f"{s.name}#{s.ordinal}")
            for i, s in enumerate(spec.slices)
            if s.role == "trainer" and not s.waves_of
        }
        self._job_count = 0

    def day(self, number: int) -> Day:
        """Return day `number`, counted from the start."""
        while len(self._days) <= number:
            self._days.append(self._make(len(self._days)))
        return self._days[number]

    def at(self, minute: int) -> tuple[Day, int]:
        """Return the day and the column of a minute since the start."""
        return self.day(minute // MINUTES_PER_DAY), minute % MINUTES_PER_DAY

    def _make(self, number: int) -> Day:
        spec = self._spec
        episodes = {s.name: _episodes(spec.seed, s, number) for s in spec.services}
        rates: dict[str, FloatArray] = {}
        for service in spec.services:
            rates[service.name] = self._rate(service, number, rates, episodes)
        requests = np.stack(
            [stream(spec.seed, "requests", s.name, number).poisson(rates[s.name] * 60.0) for s in spec.services]
        ).astype(np.int64)
        heavier = np.stack([1.0 + s.slow_episode_gain * episodes[s.name] for s in spec.services])
        clock, inlets = self._clock(number)
        wave, turnover = self._waves(number, inlets)
        return Day(requests, heavier, wave, turnover, self._noise(number), clock, self._jobs(number))

    def _rate(
        self,
        service: ServiceSpec,
        number: int,
        rates: dict[str, FloatArray],
        episodes: dict[str, FloatArray],
    ) -> FloatArray:
        seed, minutes = self._spec.seed, np.arange(MINUTES_PER_DAY)
        rng = stream(seed, "rate", service.name, number)
        jitter = np.exp(lfilter([np.sqrt(1 - 0.7**2)], [1, -0.7], rng.normal(0, service.noise, MINUTES_PER_DAY)))
        if service.downstream_of:
            upstream = next(s for s in self._spec.services if s.name == service.downstream_of)
            return np.asarray(
                rates[service.downstream_of] / upstream.peak_per_second * service.peak_per_second * jitter
            )
        angle = 2 * np.pi * (minutes / 60.0 - service.peak_hour) / 24.0
        day_share = ((1 + np.cos(angle)) / 2) ** 1.3
        level = service.night_share + (1 - service.night_share) * day_share
        if (self._spec.start.weekday() + number) % 7 >= 5:
            level = level * _WEEKEND_SHARE
        bursts = np.zeros(MINUTES_PER_DAY)
        for _ in range(rng.poisson(service.bursts_per_day)):
            first, length = int(rng.integers(MINUTES_PER_DAY)), int(rng.integers(8, 25))
            bursts[first : first + length] += service.burst_gain * rng.uniform(0.5, 1.0)
        rate = service.peak_per_second * level * (1 + bursts) * jitter
        if service.reacts_to:
            reaction = np.roll(episodes[service.reacts_to], service.reaction_minutes)
            reaction[: service.reaction_minutes] = 0.0
            rate = rate * (1 + 1.2 * reaction)
        return np.asarray(rate)

    def _waves(self, number: int, inlets: FloatArray) -> tuple[FloatArray, BoolArray]:
        spec = self._spec
        wave = np.ones((len(spec.slices), MINUTES_PER_DAY))
        turnover = np.zeros((len(spec.slices), MINUTES_PER_DAY), dtype=bool)
        for i, waves in self._trainers.items():
            wave[i], turnover[i] = waves.next_day()
        names = {s.name: i for i, s in enumerate(spec.slices)}
        for i, s in enumerate(spec.slices):
            if s.waves_of == INLET:  # starts its epochs when the room's cooling is worst: a coincidence of schedules
                wave[i] = np.where(inlets[s.card] > 0, 1.0, 0.15)
                turnover[i, 0] = True
            elif s.waves_of and s.waves_of != ALWAYS:
                rng = stream(spec.seed, "shadow", s.name, number)
                wave[i], turnover[i] = _shadow(wave[names[s.waves_of]], rng), turnover[names[s.waves_of]]
            if s.role == "held":
                wave[i] = 0.0
            for minute in s.restarts_at_minutes:
                if minute // MINUTES_PER_DAY == number:
                    turnover[i, minute % MINUTES_PER_DAY] = True
        return wave, turnover

    def _noise(self, number: int) -> FloatArray:
        rows = []
        for s in self._spec.slices:
            rng = stream(self._spec.seed, "noise", f"{s.name}#{s.ordinal}", number)
            rows.append(np.exp(lfilter([0.8], [1, -0.6], rng.normal(0, 0.015, MINUTES_PER_DAY))))
        return np.stack(rows)

    def _clock(self, number: int) -> tuple[FloatArray, FloatArray]:
        hot = np.zeros((len(self._spec.cards), MINUTES_PER_DAY))
        for i, card in enumerate(self._spec.cards):
            if card.hot_inlet:
                rng = stream(self._spec.seed, "inlet", card.uuid, number)
                minute = int(rng.integers(30, 90))
                while minute < MINUTES_PER_DAY:
                    length = int(rng.integers(15, 45))
                    hot[i, minute : minute + length] = 1.0
                    minute += length + int(rng.integers(60, 150))
        return 1.0 - 0.22 * hot, hot

    def _jobs(self, number: int) -> tuple[tuple[JobArrival, ...], ...]:
        spec = self._spec
        rng = stream(spec.seed, "jobs", number)
        shares = np.array([q.arrival_share for q in spec.queues])
        hours = np.arange(MINUTES_PER_DAY) / 60.0
        daily = 0.7 + 0.6 * np.exp(-(((hours - 13.0) / 4.5) ** 2))
        counts = np.stack([rng.poisson(c.per_hour / 60.0 * daily) for c in spec.job_classes])
        minutes: list[tuple[JobArrival, ...]] = []
        for m in range(MINUTES_PER_DAY):
            arrived = []
            for k, job_class in enumerate(spec.job_classes):
                for _ in range(counts[k, m]):
                    tenant = spec.queues[int(rng.choice(len(shares), p=shares / shares.sum()))].tenant
                    length = float(rng.uniform(*job_class.minutes))
                    absolute = number * MINUTES_PER_DAY + m
                    arrived.append(JobArrival(absolute, tenant, job_class.name, length, self._job_count))
                    self._job_count += 1
            minutes.append(tuple(arrived))
        return tuple(minutes)


def _shadow(leader: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return the waves of a trainer that is fed by another: it starts some minutes later and sits out some epochs."""
    wave = np.concatenate([np.zeros(_SHADOW_DELAY), leader[:-_SHADOW_DELAY]])
    starts = np.flatnonzero((wave == 1.0) & (np.concatenate([[0.0], wave[:-1]]) < 1.0))
    for first in starts:
        if rng.random() < _SHADOW_REST:
            length = int(np.argmax(np.append(wave[first:], 0.0) < 1.0))
            wave[first : first + length] = 0.0
    return np.asarray(wave)


def _episodes(seed: int, service: ServiceSpec, number: int) -> FloatArray:
    """Minutes in which the requests of a service are heavier (0..1), the same for all of its replicas."""
    slow = np.zeros(MINUTES_PER_DAY)
    rng = stream(seed, "episodes", service.name, number)
    for _ in range(rng.poisson(service.slow_episodes_per_day)):
        first, length = int(rng.integers(MINUTES_PER_DAY)), int(rng.integers(4, 14))
        slow[first : first + length] = rng.uniform(0.5, 1.0)
    return slow


class _Waves:
    """A trainer's endless sequence of jobs of 40..120 min: start-up, epochs at full width, evaluation, checkpoints."""

    def __init__(self, seed: int, name: str) -> None:
        self._rng = stream(seed, "waves", name)
        self._levels: list[float] = []
        self._starts: list[bool] = []

    def next_day(self) -> tuple[FloatArray, BoolArray]:
        while len(self._levels) < MINUTES_PER_DAY:
            self._job()
        levels, self._levels = self._levels[:MINUTES_PER_DAY], self._levels[MINUTES_PER_DAY:]
        starts, self._starts = self._starts[:MINUTES_PER_DAY], self._starts[MINUTES_PER_DAY:]
        return np.array(levels), np.array(starts)

    def _job(self) -> None:
        rng = self._rng
        length = int(rng.integers(40, 121))
        levels = [0.0, 0.2]  # loading
        while len(levels) < length:
            levels += [1.0] * int(rng.integers(12, 25))
            levels += [0.25] * int(rng.integers(2, 4)) if rng.random() < 0.5 else [0.0] * int(rng.integers(1, 4))
        levels = levels[:length]
        self._levels += levels
        self._starts += [True] + [False] * (length - 1)
