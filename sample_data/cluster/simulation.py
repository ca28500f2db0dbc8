"""The simulated world: moves minute by minute, remembers the truth, and shows each minute as an observation."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt

from sample_data.cluster.arrivals import Arrivals, Day, JobArrival
from sample_data.cluster.latency import Sojourn, serve, sojourn
from sample_data.cluster.observation import Holder, Observation, first_holder
from sample_data.cluster.power import Thermals, power_clock
from sample_data.cluster.scheduler import Job, Pool
from sample_data.cluster.sharing import Divider, Grant, Pairs, pressing
from sample_data.cluster.spec import STEP_SECONDS, ClusterSpec
from sample_data.cluster.truth import Minute, Truth

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

RESTART_MINUTES = 3


class World:
    """The cards, pods and queues of a spec. `step()` simulates the minute that ends at the new `now`."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.minute = 0
        self.arrivals = Arrivals(spec)
        self.pairs = Pairs.of(spec)
        self.pool = Pool(spec)
        self.thermals = Thermals(spec)
        self._divider = Divider(spec)
        slices, cards = spec.slices, spec.cards
        self.card = np.array([s.card for s in slices])
        self.sms = np.array([cards[s.card].hardware.sm_count for s in slices], dtype=np.float64)
        self._card_sms = np.array([c.hardware.sm_count for c in cards], dtype=np.float64)
        self.online = np.array([s.online for s in slices])
        self.kind = np.array([s.kind for s in slices])
        self._unit = np.array([s.unit_sm_seconds for s in slices])
        self._unit_seconds = np.array([s.unit_seconds for s in slices])
        self._width = np.array([s.width for s in slices])
        self._cv = np.array([s.cv for s in slices])
        self._load_slowing = np.array([s.load_slowing for s in slices])
        self._intensity = np.array([s.power_intensity for s in slices])
        # A limiter that is asked at each launch holds launches back: the process is on the card for part of the time.
        self._in_turns = np.array([s.kind == "vgpu" and not s.online and spec.live_limits for s in slices])
        self._trains = np.array([s.app == "trainer" for s in slices])
        names = [s.name for s in spec.services]
        self.service = np.array([names.index(s.name) if s.online else -1 for s in slices])
        self._bound = np.array([spec.services[k].objective.bound_seconds if k >= 0 else np.nan for k in self.service])
        # Quotas: in force for running work, and for what starts next.
        self.quota = np.array([s.sm_quota for s in slices])
        self._nominal = np.array([s.width if s.kind == "timeslice" else s.sm_quota for s in slices])
        self.quota_next = self.quota.copy()
        self.memory_quota = np.array([s.memory_quota_bytes for s in slices])
        self._memory_base = np.array([s.memory_used_bytes for s in slices])
        self._memory_growth = np.array([s.memory_growth_bytes_per_hour for s in slices])
        self._grown = np.zeros(len(slices))
        self.out_of_memory: list[int] = []  # slices whose process died of it in the last minute
        self.card_alive = np.ones(len(cards), dtype=bool)
        self.down_until = np.zeros(len(slices), dtype=np.int64)
        self.backlog = np.zeros(len(slices))
        self.seat = np.array([s.role == "seat" for s in slices])
        self.job_width = np.zeros(len(slices))
        self.holders: list[Holder | None] = [None if s.role == "seat" else first_holder(s) for s in slices]
        self.restarted: set[int] = set()  # slices whose process came up anew in the last minute
        self.energy_joules = np.zeros(len(cards))
        self.pods_version = 0  # grows whenever the list of pods, or one of them, changes
        self.finished_jobs: list[tuple[int, str, Job]] = []  # (minute, node, job) of the last hour: still listed
        self.killed: set[int] = set()  # slices whose process was once killed for want of memory
        self.admitted: list[tuple[str, float]] = []  # (tenant, wait seconds) in the last minute
        self.observation: Observation | None = None
        capacity = sum(c.hardware.sm_count for c in cards) * float(STEP_SECONDS)
        self.truth = Truth(spec, tuple(names), capacity)

    @property
    def now(self) -> datetime:
        """The instant up to which everything has happened."""
        return self.spec.start + timedelta(minutes=self.minute)

    @property
    def held(self) -> BoolArray:
        """Slices that somebody holds."""
        return np.array([h is not None for h in self.holders], dtype=np.bool_)

    @property
    def trains(self) -> BoolArray:
        """Slices whose pod does steps of training."""
        return np.asarray(self._trains & self.held)

    def slice_id(self, index: int) -> str:
        """Return the id that rows carry; empty for a share that nobody holds and that is no MIG instance."""
        s, holder = self.spec.slices[index], self.holders[index]
        if s.kind == "mig":
            return f"gi{s.instance}"
        if s.kind == "whole":
            return "whole"
        return "" if holder is None else f"{holder.namespace}/{holder.pod}/{holder.container}/0"

    def step(self) -> None:
        """Simulate one minute."""
        day, column = self.arrivals.at(self.minute)
        self._fail_cards()
        self._turn_over(day.turnover[:, column])
        running = self.held & self.card_alive[self.card] & (self.down_until <= self.minute)
        arrived, lost = self._route(day.requests[:, column].astype(np.float64), running)
        wave = np.where(self.seat, self.job_width, day.wave[:, column]) * running
        demand = arrived * self._unit / (STEP_SECONDS * self.sms)
        grant = self._divider.divide(self.quota * running, demand, wave)

        turns = np.where(self._in_turns, grant.granted / self._width, wave)
        duty = np.where(self.online, pressing(demand), turns)
        full = np.divide(grant.granted, turns, out=np.zeros_like(wave), where=turns > 0)
        activity = np.where(self.online, duty, turns * pressing(full))
        slowing = self.pairs.slowing(activity)
        clock = day.clock[:, column] * power_clock(self._card_activity())
        drag = slowing / clock[self.card]  # SM-seconds that a unit of work takes, against solo

        rate = grant.available * self.sms / (self._unit * drag * np.where(self.online, grant.stretch, 1.0))
        served = serve(arrived, self.backlog, np.where(self.online, rate, 0.0), STEP_SECONDS)
        service_seconds, times, load = self._latency(arrived, grant, drag, rate, (day, column))
        if served.delay_seconds.any():
            times = sojourn(service_seconds, load, self._lanes(grant.available), self._cv, served.delay_seconds)
        steps = np.where(
            self.online, 0.0, grant.granted * self.sms * STEP_SECONDS / (self._unit * drag * grant.stretch)
        )
        noise = day.noise[:, column]
        with np.errstate(divide="ignore", invalid="ignore"):
            step_seconds = np.where(steps > 0, STEP_SECONDS * wave / steps * noise, np.nan)
        within = np.where(self.online, served.finished * times.share_within(self._bound), 0.0)
        used = np.where(self.online, served.finished * self._unit * drag / (STEP_SECONDS * self.sms), grant.granted)
        busy = np.where(self.online, np.minimum(load * (1.0 + 0.5 * (1.0 - load)), 1.0), turns)

        quota = np.where(self.held & self.card_alive[self.card], self._share(), 0.0)  # before a finished job leaves
        steps, discarded = self._jobs(steps)
        hampered = np.where(self.online, slowing, slowing * grant.stretch)
        done = np.where(self.online, served.finished, steps) * self._unit  # solo SM-seconds
        power = self.thermals
        power.move(self._sum_cards(used * self._intensity), day.clock[:, column], self.card_alive)
        self.energy_joules += power.power * STEP_SECONDS
        self.backlog = np.where(running, served.backlog, 0.0)
        self.observation = Observation(
            self.minute,
            running,
            np.minimum(used, 1.0),
            np.where(running, busy, 0.0),
            self._memory(running),
            np.where(self.online, service_seconds, step_seconds),
            times,
            served.finished,
            served.timed_out,
            served.backlog,
            load,
            steps,
            np.where(self.online, 0.0, wave * STEP_SECONDS),
            clock,
            activity,
            slowing,
        )
        self._remember(
            arrived=arrived,
            lost=lost,
            within=within,
            steps=steps,
            used=used,
            demand=demand,
            wave=wave,
            activity=activity,
            discarded=discarded,
            quota=quota,
            contention=done * (hampered - 1.0),
            throttling=done * hampered * (1.0 / clock[self.card] - 1.0),
            vain=np.where(
                self.online,
                (served.finished - within) * self._unit,
                used * self.sms * STEP_SECONDS - steps * self._unit * drag * grant.stretch,
            ),
        )
        self._schedule(day.jobs[column])
        self.minute += 1

    # -- what happens to slices ------------------------------------------------------------------------------------

    def restart(self, index: int) -> None:
        """Restart the process of a slice: it comes back in three minutes, with the quota set for new work."""
        self.down_until[index] = self.minute + RESTART_MINUTES
        self.backlog[index] = 0.0

    def _turn_over(self, turnover: BoolArray) -> None:
        self.restarted = set()
        for i in np.flatnonzero(turnover | (self.down_until == self.minute)):
            if self.minute == 0 or self.holders[i] is None:
                continue
            planned = self.online[i] and turnover[i] and self.down_until[i] < self.minute
            if planned:
                self.restart(int(i))
            elif self.kind[i] != "vgpu" or self.down_until[i] == self.minute:
                self.quota[i] = self.quota_next[i]
            if self.down_until[i] == self.minute:
                self.restarted.add(int(i))

    def _fail_cards(self) -> None:
        for c, card in enumerate(self.spec.cards):
            if card.fails_at_minute is None or self.minute != card.fails_at_minute:
                continue
            self.card_alive[c] = False
            self.pods_version += 1
            for i in np.flatnonzero(self.card == c):
                s = self.spec.slices[i]
                if s.role == "seat":
                    self.pool.lose_seat(int(i), self.minute)
                elif s.role == "trainer":
                    self.pool.submit([JobArrival(self.minute, s.tenant, s.kind, 1440.0, 100_000 + int(i), s.name)])
                self.holders[i] = None

    def _route(self, requests: FloatArray, running: BoolArray) -> tuple[FloatArray, FloatArray]:
        """Spread each service's requests over its replicas that run; without one they are lost."""
        serving = self.online & running
        replicas = np.bincount(self.service[serving], minlength=len(requests))
        lost = np.where(replicas == 0, requests, 0.0)
        share = np.divide(requests, replicas, out=np.zeros_like(requests), where=replicas > 0)
        return np.where(serving, share[np.maximum(self.service, 0)], 0.0), lost

    def _lanes(self, available: FloatArray) -> FloatArray:
        """Requests that run side by side on what is available, each at its own width."""
        return np.asarray(np.maximum(available / self._width, 1.0))

    def _latency(
        self, arrived: FloatArray, grant: Grant, drag: FloatArray, rate: FloatArray, outside: tuple[Day, int]
    ) -> tuple[FloatArray, Sojourn, FloatArray]:
        """Return service time, sojourn times and load of every server (1 s where there is none)."""
        day, column = outside
        available = grant.available
        with np.errstate(divide="ignore", invalid="ignore"):
            load = np.where(rate > 0, (arrived + self.backlog) / (rate * STEP_SECONDS), 0.0)
            narrow = np.where(available > 0, np.maximum(self._width / available, 1.0), 1.0)
        heavier = np.where(self.online, day.heavier[np.maximum(self.service, 0), column], 1.0)
        fill = arrived * self._unit / (STEP_SECONDS * self.sms * self._nominal)  # of the share it was sized for
        batching = 1.0 + self._load_slowing * np.minimum(fill, 1.0)
        seconds = self._unit_seconds * drag * grant.stretch * narrow * heavier * batching * day.noise[:, column]
        seconds = np.where(self.online, seconds, 1.0)
        return seconds, sojourn(seconds, load, self._lanes(available), self._cv, np.zeros_like(seconds)), load

    def _jobs(self, steps: FloatArray) -> tuple[FloatArray, float]:
        """Move queue jobs on; the last minute of a job counts what it had left."""
        done = steps.copy()
        for seat, job in list(self.pool.running.items()):
            left = (job.work_sm_seconds - job.done_sm_seconds) / self._unit[seat]
            done[seat] = min(done[seat], left)
            job.done_sm_seconds += done[seat] * self._unit[seat]
            if job.done_sm_seconds >= job.work_sm_seconds - 1e-6:
                node = self.spec.cards[self.spec.slices[seat].card].node
                self.finished_jobs.append((self.minute, node, self.pool.finish(seat)))
                self.holders[seat] = None
                self.pods_version += 1
        before = len(self.finished_jobs)
        self.finished_jobs = [(m, n, j) for m, n, j in self.finished_jobs if m > self.minute - 60]
        self.pods_version += before != len(self.finished_jobs)
        discarded, self.pool.discarded_sm_seconds = self.pool.discarded_sm_seconds, 0.0
        return done, discarded

    def _schedule(self, arrivals: tuple[JobArrival, ...]) -> None:
        self.pool.submit(arrivals)
        admission = self.pool.schedule(self.minute)
        self.pods_version += bool(arrivals or admission.started or admission.evicted)
        self.admitted = []
        for job in admission.evicted:
            self._discard(job)
        for job in admission.started:
            s = self.spec.slices[job.seat]
            self.job_width[job.seat] = 1.0
            if job.work_sm_seconds == 0.0:
                job.work_sm_seconds = job.arrival.solo_minutes * 60.0 * min(s.width, s.sm_quota) * self.sms[job.seat]
            self.quota[job.seat] = self.quota_next[job.seat] = s.sm_quota
            wait = (self.minute + 1 - job.waiting_since) * float(STEP_SECONDS)
            self.admitted.append((job.arrival.tenant, wait))
            self.holders[job.seat] = Holder(
                job.arrival.tenant, job.pod, "main", job.workload, job.waiting_since, self.minute + 1
            )
        self.truth.minutes[-1].waits_seconds = tuple(w for _, w in self.admitted)
        open_waits = [(self.minute + 1 - j.waiting_since) * 60.0 for w in self.pool.waiting.values() for j in w]
        self.truth.open_waits_seconds = open_waits
        self.truth.minutes[-1].waiting = len(open_waits)

    def _discard(self, job: Job) -> None:
        for i in self.pool.seats:
            holder = self.holders[i]
            if holder is not None and holder.pod.startswith(f"{job.name}-"):
                self.holders[i] = None

    def _share(self) -> FloatArray:
        """Return the share of its card that each slice stands for; in a rotation everyone has the same."""
        rotating = self.kind == "timeslice"
        members = np.bincount(self.card, weights=rotating & self.held, minlength=len(self.spec.cards))
        return np.asarray(np.where(rotating, 1.0 / np.maximum(members, 1.0)[self.card], self.quota))

    # -- sums ------------------------------------------------------------------------------------------------------

    def _sum_cards(self, values: FloatArray) -> FloatArray:
        return np.bincount(self.card, weights=values, minlength=len(self.spec.cards)).astype(np.float64)

    def _card_activity(self) -> FloatArray:
        if self.observation is None:
            return np.zeros(len(self.spec.cards))
        return self._sum_cards(self.observation.used * self._intensity)

    def _memory(self, running: BoolArray) -> FloatArray:
        """Memory in use: what is refused more dies and starts anew; a lower quota alone frees nothing."""
        self._grown = np.where(running, self._grown + self._memory_growth / 60.0, 0.0)
        used = self._memory_base + self._grown
        self.out_of_memory = [
            int(i) for i in np.flatnonzero(running & (self._memory_growth > 0) & (used > self.memory_quota))
        ]
        for i in self.out_of_memory:
            self._grown[i], used[i] = 0.0, self.memory_quota[i]
            self.killed.add(i)
            self.pods_version += 1
            self.restart(i)
        return np.where(running, used, 0.0)

    def _remember(
        self,
        *,
        arrived: FloatArray,
        lost: FloatArray,
        within: FloatArray,
        steps: FloatArray,
        used: FloatArray,
        demand: FloatArray,
        wave: FloatArray,
        activity: FloatArray,
        discarded: float,
        quota: FloatArray,
        contention: FloatArray,
        throttling: FloatArray,
        vain: FloatArray,
    ) -> None:
        services = len(self.spec.services)
        online = self.online
        held = (
            np.where(self.held, np.where(self.kind == "timeslice", 1.0, self.quota), 0.0) * self.card_alive[self.card]
        )
        requests = np.bincount(self.service[online], weights=arrived[online], minlength=services) + lost
        inside = np.bincount(self.service[online], weights=within[online], minlength=services).astype(np.float64)
        self.truth.minutes.append(
            Minute(
                useful=np.where(online, within, steps) * self._unit,
                used=used * self.sms * STEP_SECONDS,
                demand=np.where(online, demand, wave * self._width),
                requests=requests,
                within=inside,
                activity=activity,
                turn=np.where(self.kind == "timeslice", np.where(online, demand / self._width, wave), 0.0),
                energy_joules=self.thermals.power * STEP_SECONDS,
                waits_seconds=(),
                lost_sm_seconds=discarded,
                held_sm_seconds=float((np.minimum(self._sum_cards(held), 1.0) * self._card_sms).sum() * STEP_SECONDS),
                waiting=0,
                quota=quota,
                contention=contention,
                throttling=throttling,
                vain=vain,
            )
        )
