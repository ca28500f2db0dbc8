"""What instruments measure of the cluster, already in the units and roundings in which exporters print it.

Text exporters and `frames` share these values, and with them every quirk that destroys one: a sample that is missing is
NaN for both. Counters stand as the exporter's process holds them; `epoch` counts its restarts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sample_data.cluster.latency import Sojourn
from sample_data.cluster.observation import Observation
from sample_data.cluster.simulation import World
from sample_data.cluster.spec import MIB, MIG_PROFILES, STEP_SECONDS
from sample_data.cluster.streams import stream

FloatArray = npt.NDArray[np.float64]

MISSING_SHARE = 0.005  # samples that a device exporter loses
GARBAGE = 4294967295.0
BLANK = 9223372036854775794.0
# Buckets of the servers' latency histograms, as multiples of the promised bound (one of them is the bound).
BUCKETS = np.array(
    [0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, np.inf]
)
BOUND_BUCKET = 11

THROTTLE_THERMAL = 0x40
THROTTLE_POWER = 0x4
CLOCK_IDLE = 0x1

_RESERVED_MIB = 640
REMAP_WARNING_MINUTES = 90  # an uncorrectable error, XID 63 and a pending row remap come so long before a card is lost


@dataclass(slots=True)
class Readings:
    """One cycle's values: an array over cards, or over the slices of the spec; NaN is a sample that is not there."""

    minute: int
    # cards
    gpu_util: FloatArray  # percent
    memory_util: FloatArray  # percent
    sm_clock: FloatArray  # MHz
    memory_clock: FloatArray
    temperature: FloatArray
    memory_temperature: FloatArray
    power: FloatArray  # W
    energy: FloatArray  # mJ, counter
    pcie_replay: FloatArray
    xid: FloatArray
    fb_used: FloatArray  # MiB
    fb_free: FloatArray
    fb_reserved: FloatArray
    engine: FloatArray  # ratios 0..1
    sm_active: FloatArray
    occupancy: FloatArray
    tensor: FloatArray
    dram: FloatArray
    pcie_tx: FloatArray  # bytes/s
    pcie_rx: FloatArray
    clock_reasons: FloatArray  # bits
    ecc_corrected: FloatArray
    ecc_uncorrected: FloatArray
    rows_corrected: FloatArray
    rows_uncorrected: FloatArray
    remap_pending: FloatArray
    # slices, of the MIG instance
    mig_engine: FloatArray
    mig_sm: FloatArray
    mig_occupancy: FloatArray
    mig_tensor: FloatArray
    mig_dram: FloatArray
    mig_fb_used: FloatArray
    mig_fb_free: FloatArray
    # slices, the processes of a pod on a shared card
    pod_util: FloatArray
    pod_fb_used: FloatArray
    # slices under HAMi
    hami_util: FloatArray
    hami_memory_used: FloatArray
    hami_memory_limit: FloatArray
    hami_cores: FloatArray
    hami_last_kernel: FloatArray
    hami_promised: FloatArray  # bytes, by the scheduler
    # slices, counters of servers and trainers
    buckets: FloatArray  # (slices, buckets), cumulative over buckets
    latency_sum: FloatArray
    requests: FloatArray
    failures: FloatArray
    tokens: FloatArray
    service_sum: FloatArray  # seconds of service over all units (tokens or requests)
    service_units: FloatArray
    waiting: FloatArray
    running_requests: FloatArray
    kv_cache: FloatArray
    steps: FloatArray
    step_seconds_sum: FloatArray


class Instruments:
    """Watches a cluster; `watch()` is called once a step, `read()` gives the last minute's readings."""

    def __init__(self, cluster: World) -> None:
        spec = cluster.spec
        n = len(spec.slices)
        self._cluster = cluster
        self._rng = stream(spec.seed, "instruments")
        self._hist = np.zeros((n, len(BUCKETS)))
        self._counts = np.zeros((n, len(BUCKETS)))  # whole requests, never falling from bucket to bucket
        self._latency_sum = np.zeros(n)
        self._failures = np.zeros(n)
        self._service_sum = np.zeros(n)
        self._steps = np.zeros(n)
        self._step_seconds = np.zeros(n)
        self._idle_seconds = np.zeros(n)
        self._job: list[str] = [""] * n
        bounds = {s.name: s.objective.bound_seconds for s in spec.services}
        self.edges = np.stack([np.round(BUCKETS * bounds.get(s.name, 1.0), 5) for s in spec.slices])
        self._instance_sms = np.array([MIG_PROFILES[s.profile].sm_count if s.profile else np.nan for s in spec.slices])
        self._dram = np.array([s.dram_per_sm for s in spec.slices])
        self._tensor = np.array([s.tensor_per_sm for s in spec.slices])
        self._pcie = np.array([s.pcie_bytes_per_second for s in spec.slices])
        self._tokens = np.array([s.tokens_per_request for s in spec.slices])
        self._is_mig = np.array([s.kind == "mig" for s in spec.slices])
        self._is_vgpu = np.array([s.kind == "vgpu" for s in spec.slices])
        self._per_pod = np.array([s.kind in ("mps", "timeslice") for s in spec.slices])
        self._vllm = np.array([s.app == "vllm" for s in spec.slices])
        self._card_mig = np.array([c.sharing == "mig" for c in spec.cards])
        self._card_shared = np.array([c.sharing in ("mps", "timeslice") for c in spec.cards])
        self._memory_mib = np.array([c.hardware.memory_bytes / MIB for c in spec.cards])
        self._has_memory_temperature = np.array([c.hardware.memory_temperature for c in spec.cards])
        self._sm_clock = np.array([c.hardware.sm_clock_megahertz for c in spec.cards], dtype=np.float64)
        self._memory_clock = np.array([c.hardware.memory_clock_megahertz for c in spec.cards], dtype=np.float64)
        self._readings: Readings | None = None

    def read(self) -> Readings:
        """Return the readings of the last minute.

        Raises:
            LookupError: no minute has passed yet.
        """
        if self._readings is None:
            raise LookupError("expected a cluster that has made a step; call step() first")
        return self._readings

    def watch(self) -> None:
        """Take up what the last minute did."""
        observation = self._cluster.observation
        assert observation is not None  # noqa: S101 - watch() follows a step
        self._reset(sorted(self._cluster.restarted))
        self._count(observation)
        self._reset(self._changed_seats())
        self._readings = self._take(observation)

    def _changed_seats(self) -> list[int]:
        """Return seats in which another job begins with the next minute."""
        holders = self._cluster.holders
        pods = {i: holder.pod if (holder := holders[i]) is not None else "" for i in self._cluster.pool.seats}
        changed = [i for i, pod in pods.items() if pod != self._job[i]]
        for i in changed:
            self._job[i] = pods[i]
        return changed

    def _reset(self, index: list[int]) -> None:
        """A process that comes up anew counts from zero."""
        if index:
            for array in (
                self._hist,
                self._counts,
                self._latency_sum,
                self._failures,
                self._service_sum,
                self._steps,
                self._step_seconds,
            ):
                array[index] = 0.0

    def _count(self, o: Observation) -> None:
        shares = Sojourn(o.sojourn.mu[:, None], o.sojourn.sigma[:, None]).share_within(self.edges)
        shares[:, -1] = 1.0
        steps_before = np.floor(self._steps + 1e-6)
        self._hist += o.finished[:, None] * shares
        self._hist[:, -1] += o.timed_out * self._vllm
        self._failures += o.timed_out
        self._steps += o.steps
        more = np.maximum.accumulate(np.maximum(np.floor(self._hist + 1e-6) - self._counts, 0.0), axis=1)
        self._counts += more
        requests = more[:, -1]
        steps = np.floor(self._steps + 1e-6) - steps_before
        self._latency_sum += requests * o.sojourn.mean
        self._service_sum += np.where(requests > 0, requests * o.service_seconds, 0.0)
        self._step_seconds += np.where(steps > 0, steps * np.nan_to_num(o.service_seconds), 0.0)
        self._idle_seconds = np.where(o.used > 1e-4, 0.0, self._idle_seconds + STEP_SECONDS)

    def _take(self, o: Observation) -> Readings:
        cluster, rng = self._cluster, self._rng
        n, cards = len(o.used), len(cluster.spec.cards)
        jitter = np.exp(rng.normal(0.0, 0.004, n))
        used = np.minimum(o.used * jitter, 1.0)
        total = np.minimum(self._by_card(used), 1.0)
        dram = np.minimum(used * self._dram, 0.95)
        tensor = used * self._tensor
        busy = 1.0 - np.exp(self._by_card(np.log1p(-np.minimum(o.duty, 0.999))))
        memory = np.floor(o.memory / MIB)
        card_memory = self._by_card(memory)
        occupancy = total * 0.48
        alive = np.where(cluster.card_alive, 1.0, np.nan)
        mig = np.where(self._card_mig, np.nan, 1.0) * alive
        press = o.activity * np.where(cluster.online, 0.5 + used, 1.0)
        reasons = np.where(o.clock < 0.9, THROTTLE_THERMAL, np.where(o.clock < 0.999, THROTTLE_POWER, 0.0))
        reasons = np.where(busy < 0.005, CLOCK_IDLE, reasons)
        thermals = cluster.thermals
        ecc, rows, dead_rows, pending = self._memory_errors()
        counts = self._counts.copy()
        readings = Readings(
            minute=o.minute,
            gpu_util=np.round(busy * 100) * mig,
            memory_util=np.round(np.minimum(self._by_card(dram), 1.0) * 85) * mig,
            sm_clock=np.round(self._sm_clock * o.clock / 15) * 15 * alive,
            memory_clock=self._memory_clock * alive,
            temperature=np.round(thermals.temperature + rng.normal(0, 0.3, cards)) * alive,
            memory_temperature=np.round(thermals.temperature + 8)
            * np.where(self._has_memory_temperature, alive, np.nan),
            power=np.round(thermals.power * np.exp(rng.normal(0, 0.006, cards)), 3) * alive,
            energy=np.floor(cluster.energy_joules * 1000.0) * alive,
            pcie_replay=np.zeros(cards) * alive,
            xid=self._xid(),
            fb_used=card_memory * mig,
            fb_free=(self._memory_mib - _RESERVED_MIB - card_memory) * mig,
            fb_reserved=np.full(cards, float(_RESERVED_MIB)) * mig,
            engine=np.round(busy * 0.995, 6) * mig,
            sm_active=np.round(total, 6) * mig,
            occupancy=np.round(occupancy, 6) * mig,
            tensor=np.round(self._by_card(tensor), 6) * mig,
            dram=np.round(np.minimum(self._by_card(dram), 0.95), 6) * mig,
            pcie_tx=np.round(self._by_card(self._pcie * press) * 0.3) * mig,
            pcie_rx=np.round(self._by_card(self._pcie * press)) * mig,
            clock_reasons=reasons * alive,
            ecc_corrected=ecc * alive,
            ecc_uncorrected=np.where(dead_rows > 0, 1.0, 0.0) * alive,
            rows_corrected=rows * alive,
            rows_uncorrected=dead_rows * alive,
            remap_pending=pending * alive,
            mig_engine=_only(self._is_mig, np.round(np.minimum(o.duty, 1.0) * 0.998, 6)),
            mig_sm=np.round(self._of_instance(used), 6),
            mig_occupancy=np.round(self._of_instance(used) * 0.48, 6),
            mig_tensor=np.round(self._of_instance(tensor), 6),
            mig_dram=_only(self._is_mig, np.round(np.minimum(self._of_instance(used) * self._dram, 0.95), 6)),
            mig_fb_used=np.where(self._is_mig, np.maximum(memory, 14.0), np.nan),
            mig_fb_free=np.where(self._is_mig, np.floor(cluster.memory_quota / MIB) - np.maximum(memory, 14.0), np.nan),
            pod_util=np.where(self._per_pod & cluster.held, np.round(np.minimum(o.duty, 1.0) * 100), np.nan),
            pod_fb_used=np.where(self._per_pod & cluster.held, memory, np.nan),
            hami_util=np.where(
                self._is_vgpu & o.running,
                np.round(np.minimum(o.duty, 1.0) * 100 * np.where(rng.random(n) < 0.05, 1.03, 1.0)),
                np.nan,
            ),
            hami_memory_used=np.where(self._is_vgpu & o.running, memory * MIB, np.nan),
            hami_memory_limit=np.where(self._is_vgpu & o.running, np.floor(cluster.memory_quota / MIB) * MIB, np.nan),
            hami_cores=np.where(self._is_vgpu & cluster.held, np.round(cluster.quota * 100), np.nan),
            hami_last_kernel=np.where(self._is_vgpu & o.running, self._idle_seconds, np.nan),
            hami_promised=np.where(self._is_vgpu & cluster.held, np.floor(cluster.memory_quota / MIB) * MIB, np.nan),
            buckets=counts,
            latency_sum=np.round(self._latency_sum, 6),
            requests=counts[:, -1],
            failures=np.floor(self._failures + 1e-6),
            tokens=np.floor(counts[:, -1] * self._tokens),
            service_sum=np.round(self._service_sum, 6),
            service_units=np.floor(counts[:, -1] * self._tokens),
            waiting=np.round(o.backlog),
            running_requests=np.round(o.finished / STEP_SECONDS * o.sojourn.mean),
            kv_cache=_only(self._vllm & o.running, np.round(np.minimum(o.load * 0.8 + 0.1, 0.98), 4)),
            steps=np.floor(self._steps + 1e-6),
            step_seconds_sum=np.round(self._step_seconds, 6),
        )
        if cluster.spec.quirks:
            self._lose(readings)
        return readings

    def _lose(self, readings: Readings) -> None:
        """Quirks that destroy values: lost samples, a blank and a garbage sample."""
        for names, count in ((_DEVICE_FIELDS, len(readings.gpu_util)), (_SLICE_FIELDS, len(readings.mig_sm))):
            every = self._rng.random((len(names), count)) < MISSING_SHARE
            for name, drawn in zip(names, every, strict=True):
                # Beside the pods' series of the same name a shared card's own is always there.
                lost = drawn & ~self._card_shared if name in ("gpu_util", "fb_used") else drawn
                if lost.any():
                    getattr(readings, name)[lost] = np.nan
        if readings.minute % 997 == 613:
            readings.temperature[readings.minute % len(readings.temperature)] = GARBAGE
        if readings.minute % 997 == 211:
            readings.memory_clock[0] = BLANK

    def _by_card(self, values: FloatArray) -> FloatArray:
        cards = len(self._cluster.spec.cards)
        return np.bincount(self._cluster.card, weights=values, minlength=cards).astype(np.float64)

    def _of_instance(self, share: FloatArray) -> FloatArray:
        """Turn shares of the card into shares of the MIG instance (NaN for other kinds)."""
        return np.asarray(np.minimum(share * self._cluster.sms / self._instance_sms, 1.0))

    def _memory_errors(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Early signs of a failing card: corrected errors, remapped rows, an uncorrectable one, a pending remap."""
        minute = self._cluster.minute
        cards = self._cluster.spec.cards
        ecc, rows, dead, pending = (np.zeros(len(cards)) for _ in range(4))
        for c, card in enumerate(cards):
            if card.fails_at_minute is not None:
                before = card.fails_at_minute - minute
                ecc[c] = max((600 - before) // 12, 0)
                rows[c] = max((420 - before) // 70, 0)
                dead[c] = float(before <= REMAP_WARNING_MINUTES)
                pending[c] = float(before <= REMAP_WARNING_MINUTES)
        return ecc, rows, dead, pending

    def _xid(self) -> FloatArray:
        """Code of the last XID: 0 before any, sticky; a card off the bus shows 79 for its last minutes."""
        minute = self._cluster.minute
        xid = np.zeros(len(self._cluster.spec.cards))
        for c, card in enumerate(self._cluster.spec.cards):
            if card.fails_at_minute is not None:
                since = minute - card.fails_at_minute
                xid[c] = 0.0 if since < -REMAP_WARNING_MINUTES else 63.0 if since < 0 else 79.0 if since < 4 else np.nan
        return xid


def _only(there: npt.NDArray[np.bool_], values: npt.NDArray[np.floating]) -> FloatArray:
    return np.asarray(np.where(there, values, np.nan), dtype=np.float64)


_DEVICE_FIELDS: tuple[str, ...] = (
    "gpu_util", "memory_util", "sm_clock", "temperature", "power", "energy", "fb_used", "fb_free", "engine",
    "sm_active", "occupancy", "tensor", "dram", "pcie_tx", "pcie_rx", "clock_reasons",
)  # fmt: skip
_SLICE_FIELDS: tuple[str, ...] = (
    "mig_engine", "mig_sm", "mig_occupancy", "mig_tensor", "mig_dram", "mig_fb_used", "pod_util", "pod_fb_used",
    "hami_util", "hami_memory_used",
)  # fmt: skip
