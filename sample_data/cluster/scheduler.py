"""The pool's queues: which job is admitted when, and whom a quota lets the scheduler evict, by the rule of its kind.

A job takes a seat of its class (a free MIG instance, a share that a card's MPS plug-in advertises, a whole card).
- `kueue`: a queue is admitted up to its quota, and beyond it while the quotas of all queues together are not used up.
  Lowering a quota evicts nobody; work that fits its own queue's quota and finds no seat takes one back from the newest
  job of a queue that is over its quota.
- `kai`, `volcano`: quota first; what is left of the seats is shared by priority, then weight (kai), or evenly up to
  demand (volcano). A queue that waits below its share evicts the newest work of one above it, at once.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sample_data.cluster.arrivals import JobArrival
from sample_data.cluster.spec import ClusterSpec, JobClass, QueueSpec, SchedulerRule
from sample_data.cluster.streams import hex_name


@dataclass(slots=True)
class Job:
    """A queue job's life."""

    arrival: JobArrival
    work_sm_seconds: float  # solo work of the whole job; known once it has a seat
    waiting_since: float  # minute, since the start of the simulation
    done_sm_seconds: float = 0.0
    seat: int = -1  # slice index while it runs
    started: int = -1
    runs: int = 0  # how often it was started
    seed: int = 0

    @property
    def pod(self) -> str:
        """Name of the pod; an evicted job comes back as another one."""
        return f"{self.name}-{hex_name(5, self.seed, self.name, self.runs)}"

    @property
    def workload(self) -> str:
        """What all jobs of one kind are called together."""
        return self.arrival.owner or f"{self.arrival.job_class}-job"

    @property
    def name(self) -> str:
        """Workload name."""
        return self.arrival.owner or f"{self.arrival.job_class}-job-{self.arrival.number:04d}"


@dataclass(slots=True)
class Admission:
    """What the scheduler did in one minute."""

    started: list[Job] = field(default_factory=list)
    evicted: list[Job] = field(default_factory=list)


class Pool:
    """Queues, seats and jobs."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.rule: SchedulerRule = spec.scheduler
        self._seed = spec.seed
        self.classes: Mapping[str, JobClass] = {c.name: c for c in spec.job_classes}
        self.queues: Mapping[str, QueueSpec] = {q.tenant: q for q in spec.queues}
        self.quota: dict[str, float] = {q.tenant: q.quota_gpu_count for q in spec.queues}
        self.seats: dict[int, str] = {i: s.seat_class for i, s in enumerate(spec.slices) if s.role == "seat"}
        self.lost_seats: set[int] = set()
        self.waiting: dict[str, list[Job]] = {q.tenant: [] for q in spec.queues}
        self.running: dict[int, Job] = {}
        self.discarded_sm_seconds = 0.0  # work that evictions threw away, since it was last read

    def submit(self, arrivals: Sequence[JobArrival]) -> None:
        """Put new jobs at the end of their queues."""
        for arrival in arrivals:
            self.waiting[arrival.tenant].append(Job(arrival, 0.0, arrival.minute + 0.5, seed=self._seed))

    def allocated(self, tenant: str) -> float:
        """Cards that a tenant's running jobs hold."""
        return sum(self._cards(j) for j in self.running.values() if j.arrival.tenant == tenant)

    def pending_cards(self, tenant: str) -> float:
        """Cards that a tenant's waiting jobs ask for."""
        return sum(self._cards(j) for j in self.waiting[tenant])

    def free_cards(self, tenant: str) -> float:
        """Cards in empty seats of the classes that a tenant's waiting jobs ask for, up to what they ask."""
        free = 0.0
        for name, job_class in self.classes.items():
            seats = sum(c == name and s not in self.running and s not in self.lost_seats for s, c in self.seats.items())
            asked = sum(j.arrival.job_class == name for j in self.waiting[tenant])
            free += min(seats, asked) * job_class.cards
        return free

    def capacity_cards(self) -> float:
        """Cards in all seats that are left."""
        return sum(self.classes[c].cards for s, c in self.seats.items() if s not in self.lost_seats)

    def finish(self, seat: int) -> Job:
        """Take a finished job from its seat."""
        job = self.running.pop(seat)
        job.seat = -1
        return job

    def evict(self, seat: int, minute: int) -> Job:
        """Put a running job back at the head of its queue; its work since the last checkpoint is lost (all of it)."""
        job = self.running.pop(seat)
        self.discarded_sm_seconds += job.done_sm_seconds
        job.seat, job.done_sm_seconds, job.waiting_since, job.runs = -1, 0.0, minute + 0.5, job.runs + 1
        self.waiting[job.arrival.tenant].insert(0, job)
        return job

    def lose_seat(self, seat: int, minute: int) -> Job | None:
        """Mark a seat gone with its card; its job waits again."""
        self.lost_seats.add(seat)
        return self.evict(seat, minute) if seat in self.running else None

    def schedule(self, minute: int) -> Admission:
        """Admit (and evict) by the rule, tenants in turn, oldest jobs first, skipping classes without a seat."""
        admission = Admission()
        progress = True
        while progress:
            progress = False
            for tenant in self.queues:
                job = self._next(tenant, self._entitled(), admission, minute)
                if job is not None:
                    progress = True
        return admission

    def evictions(self, quota: Mapping[str, float], minute: int) -> list[Job]:
        """Say which running jobs the next pass would evict, were the quotas `quota`."""
        trial = copy.copy(self)
        trial.quota = dict(quota)
        trial.running = {seat: dataclasses.replace(job) for seat, job in self.running.items()}
        trial.waiting = {t: [dataclasses.replace(job) for job in jobs] for t, jobs in self.waiting.items()}
        running = {job.arrival.number for job in self.running.values()}
        evicted = trial.schedule(minute).evicted
        return [job for job in evicted if job.arrival.number in running]

    def _cards(self, job: Job) -> float:
        return self.classes[job.arrival.job_class].cards

    def _free(self, job_class: str) -> int | None:
        for seat, name in self.seats.items():
            if name == job_class and seat not in self.running and seat not in self.lost_seats:
                return seat
        return None

    def _entitled(self) -> dict[str, float]:
        """Cards that each queue may hold by the rule, given who wants how much."""
        if self.rule == "kueue":
            return dict(self.quota)
        demand = {t: self.allocated(t) + sum(self._cards(j) for j in self.waiting[t]) for t in self.queues}
        total = self.capacity_cards()
        share = {t: min(self.quota[t], demand[t]) for t in self.queues}
        left = max(total - sum(share.values()), 0.0)
        for level in (
            sorted({q.priority for q in self.queues.values()}, reverse=True) if self.rule == "kai" else (None,)
        ):
            asking = [t for t, q in self.queues.items() if level is None or q.priority == level]
            left = _spread(share, demand, asking, left, self._weights())
        return share

    def _weights(self) -> dict[str, float]:
        return {t: (q.weight if self.rule == "kai" else 1.0) for t, q in self.queues.items()}

    def _next(self, tenant: str, entitled: Mapping[str, float], admission: Admission, minute: int) -> Job | None:
        held = self.allocated(tenant)
        spare = sum(self.quota.values()) - sum(self.allocated(t) for t in self.queues)
        tried: set[str] = set()
        for job in self.waiting[tenant]:
            name = job.arrival.job_class
            if name in tried:
                continue
            if len(tried) == len(self.classes):
                break
            tried.add(name)
            cards = self._cards(job)
            own = held + cards <= entitled[tenant] + 1e-9
            if not own and not (self.rule == "kueue" and cards <= spare + 1e-9):
                continue
            seat = self._free(name)
            if seat is None and own:
                seat = self._take_back(tenant, name, entitled, admission, minute)
            if seat is None:
                continue
            self.waiting[tenant].remove(job)
            job.seat, job.started = seat, minute
            self.running[seat] = job
            admission.started.append(job)
            return job
        return None

    def _take_back(
        self, tenant: str, job_class: str, entitled: Mapping[str, float], admission: Admission, minute: int
    ) -> int | None:
        candidates = [
            j
            for j in self.running.values()
            if j.arrival.job_class == job_class
            and j.arrival.tenant != tenant
            and j not in admission.started
            and self.allocated(j.arrival.tenant) > entitled[j.arrival.tenant] + 1e-9
        ]
        if not candidates:
            return None
        victim = max(candidates, key=lambda j: (j.started, j.arrival.number))
        seat = victim.seat
        admission.evicted.append(self.evict(seat, minute))
        return seat


def _spread(
    share: dict[str, float],
    demand: Mapping[str, float],
    asking: Sequence[str],
    left: float,
    weights: Mapping[str, float],
) -> float:
    """Give what is left to those that ask, by weight, up to their demand; return what stays."""
    open_to = [t for t in asking if demand[t] > share[t]]
    while left > 1e-9 and open_to:
        unit = left / sum(weights[t] for t in open_to)
        for t in open_to:
            more = min(unit * weights[t], demand[t] - share[t])
            share[t] += more
            left -= more
        open_to = [t for t in open_to if demand[t] - share[t] > 1e-9]
    return left
