"""The rows of a minute without the text between: what a collector makes of the exporters' output."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt

from collector.batch import Batch, Event, Fact, Severity, Subject, make_rows
from collector.schema import NOBODY
from sample_data.cluster.counters import Increments
from sample_data.cluster.quirks import Outages
from sample_data.cluster.readings import BLANK, BOUND_BUCKET, GARBAGE, THROTTLE_POWER, THROTTLE_THERMAL, Instruments, Readings
from sample_data.cluster.simulation import World
from sample_data.cluster.spec import MIB, MIG_PROFILES, STEP_SECONDS

FloatArray = npt.NDArray[np.float64]

QUANTILES = {"latency_p50_seconds": 0.5, "latency_p99_seconds": 0.99, "latency_p999_seconds": 0.999}


class Frames:
    """Turns readings into batches; remembers counters and facts from minute to minute."""

    def __init__(self, world: World, instruments: Instruments, outages: Outages) -> None:
        self._world = world
        self._instruments = instruments
        self._outages = outages
        self._cards = Increments()
        self._slices = Increments()
        self._holder_pods: list[str] = [""] * len(world.holders)
        self._facts: dict[tuple[Subject, str], str] = {}
        self._xid: dict[int, float] = {}
        self._lost: set[int] = set()
        spec = world.spec
        self._mig = np.array([s.kind == "mig" for s in spec.slices])
        self._whole = np.array([s.kind == "whole" for s in spec.slices])
        self._vllm = np.array([s.app == "vllm" for s in spec.slices])
        self._online = np.array([s.online for s in spec.slices])
        self._sm_share = np.array(
            [MIG_PROFILES[s.profile].sm_count / spec.cards[s.card].hardware.sm_count if s.profile else 1.0 for s in spec.slices]
        )
        self._memory_share = np.array([MIG_PROFILES[s.profile].memory_slices / 8 if s.profile else 1.0 for s in spec.slices])

    def batch(self) -> Batch:
        """Return the batch of the last minute."""
        readings = self._instruments.read()
        batch = Batch()
        self._gpu_rows(readings, batch)
        self._slice_rows(readings, batch)
        self._queue_rows(batch)
        self._add_facts(batch)
        self._add_events(readings, batch)
        return batch

    # -- rows ------------------------------------------------------------------------------------------------------

    def _time_ms(self) -> int:
        return int(self._world.now.timestamp() * 1000)

    def _gpu_rows(self, r: Readings, batch: Batch) -> None:
        spec = self._world.spec
        alive = np.flatnonzero(self._world.card_alive)
        energy = self._cards.grow("energy", r.energy, r.minute)[0]
        replay = self._cards.grow("replay", r.pcie_replay, r.minute)[0]
        errors = {
            "ecc_corrected_count": r.ecc_corrected,
            "ecc_uncorrected_count": r.ecc_uncorrected,
            "rows_remapped_corrected_count": r.rows_corrected,
            "rows_remapped_uncorrected_count": r.rows_uncorrected,
        }
        reasons = np.nan_to_num(r.clock_reasons).astype(np.int64)
        known = np.isfinite(r.clock_reasons)
        fields = {
            "busy_ratio": r.gpu_util / 100,
            "memory_busy_ratio": r.memory_util / 100,
            "engine_active_ratio": r.engine,
            "sm_active_ratio": r.sm_active,
            "sm_occupancy_ratio": r.occupancy,
            "tensor_active_ratio": r.tensor,
            "dram_active_ratio": r.dram,
            "memory_used_bytes": r.fb_used * MIB,
            "memory_free_bytes": r.fb_free * MIB,
            "memory_reserved_bytes": r.fb_reserved * MIB,
            "power_watts": r.power,
            "energy_joules": energy / 1000,
            "temperature_celsius": np.where(r.temperature == GARBAGE, np.nan, r.temperature),
            "memory_temperature_celsius": r.memory_temperature,
            "sm_clock_hertz": r.sm_clock * 1e6,
            "memory_clock_hertz": np.where(r.memory_clock == BLANK, np.nan, r.memory_clock) * 1e6,
            "pcie_rx_bytes_per_second": r.pcie_rx,
            "pcie_tx_bytes_per_second": r.pcie_tx,
            "throttle_power_ratio": np.where(known, (reasons & THROTTLE_POWER) > 0, np.nan),
            "throttle_thermal_ratio": np.where(known, (reasons & THROTTLE_THERMAL) > 0, np.nan),
            "pcie_replay_count": replay,
        }
        fields |= {name: self._cards.grow(name, values, r.minute)[0] for name, values in errors.items()}
        batch.rows["gpu"] = make_rows(
            "gpu",
            np.full(len(alive), self._time_ms()),
            {
                "cluster": [spec.name] * len(alive),
                "node": [spec.cards[c].node for c in alive],
                "gpu": [spec.cards[c].uuid for c in alive],
            },
            {name: np.asarray(values, dtype=np.float64)[alive] for name, values in fields.items()},
        )

    def _slice_rows(self, r: Readings, batch: Batch) -> None:
        world, spec = self._world, self._world.spec
        fresh = [i for i, h in enumerate(world.holders) if (h.pod if h else "") != self._holder_pods[i]]
        self._holder_pods = [h.pod if h else "" for h in world.holders]
        self._slices.forget(fresh)
        fields = self._slice_fields(r)
        index = np.array(
            [i for i, s in enumerate(spec.slices) if world.card_alive[s.card] and (s.kind == "mig" or world.holders[i])]
        )
        index = index.astype(np.int64)
        holders = [world.holders[i] for i in index]
        batch.rows["slice"] = make_rows(
            "slice",
            np.full(len(index), self._time_ms()),
            {
                "cluster": [spec.name] * len(index),
                "node": [spec.cards[spec.slices[i].card].node for i in index],
                "gpu": [spec.cards[spec.slices[i].card].uuid for i in index],
                "slice": [world.slice_id(int(i)) for i in index],
                "tenant": [h.namespace if h else NOBODY for h in holders],
                "workload": [h.workload if h else NOBODY for h in holders],
            },
            {name: values[index] for name, values in fields.items()},
        )

    def _slice_fields(self, r: Readings) -> dict[str, FloatArray]:
        world = self._world
        card, mig, whole = world.card, self._mig, self._whole
        share = self._sm_share

        def own(instance: FloatArray, device: FloatArray, factor: FloatArray) -> FloatArray:
            return np.where(mig, instance * factor, np.where(whole, device[card], np.nan))

        memory = np.where(mig, r.mig_fb_used * MIB, np.where(whole, r.fb_used[card] * MIB, r.pod_fb_used * MIB))
        memory = np.where(np.isfinite(r.hami_memory_used), r.hami_memory_used, memory)
        busy = np.where(whole, r.gpu_util[card] / 100, r.pod_util / 100)
        busy = np.where(np.isfinite(r.hami_util), np.minimum(r.hami_util / 100, 1.0), busy)
        fields = {
            "sm_quota_ratio": np.where(mig, share, np.where(whole, 1.0, r.hami_cores / 100)),
            "memory_quota_bytes": np.where(mig, (r.mig_fb_used + r.mig_fb_free) * MIB, r.hami_memory_limit),
            "busy_ratio": busy,
            "engine_active_ratio": own(r.mig_engine, r.engine, share),
            "sm_active_ratio": own(r.mig_sm, r.sm_active, share),
            "sm_occupancy_ratio": own(r.mig_occupancy, r.occupancy, share),
            "tensor_active_ratio": own(r.mig_tensor, r.tensor, share),
            "dram_active_ratio": own(r.mig_dram, r.dram, self._memory_share),
            "memory_used_bytes": memory,
            "idle_seconds": r.hami_last_kernel,
        }
        fields |= self._server_fields(r)
        steps, step_seconds = self._trainer_fields(r)
        fields["steps_count"] = steps
        fields["step_seconds"] = np.where(self._online, fields["step_seconds"], step_seconds)
        return fields

    def _server_fields(self, r: Readings) -> dict[str, FloatArray]:
        running = self._world.observation.running if self._world.observation else np.zeros(len(self._online), dtype=bool)
        serving = self._online & running
        buckets = np.where(serving[:, None], r.buckets, np.nan)
        growth, took = self._slices.grow("buckets", buckets, r.minute)
        seconds = took[:, -1] * STEP_SECONDS
        failed, _ = self._slices.grow("failures", np.where(serving, r.failures, np.nan), r.minute)
        tokens, _ = self._slices.grow("tokens", np.where(serving & self._vllm, r.tokens, np.nan), r.minute)
        units, _ = self._slices.grow("units", np.where(serving, r.service_units, np.nan), r.minute)
        total, _ = self._slices.grow("service", np.where(serving, r.service_sum, np.nan), r.minute)
        requests = growth[:, -1]
        with np.errstate(divide="ignore", invalid="ignore"):
            fields = {
                "requests_per_second": (requests + np.where(self._vllm, 0.0, failed)) / seconds,
                "within_objective_per_second": growth[:, BOUND_BUCKET] / seconds,
                "tokens_per_second": tokens / seconds,
                "step_seconds": np.where(units > 0, total / units, np.nan),
                "queue_depth_count": np.where(serving, r.waiting, np.nan),
                "kv_cache_used_ratio": np.where(serving, r.kv_cache, np.nan),
            }
        for name, q in QUANTILES.items():
            fields[name] = histogram_quantile(self._instruments.edges, growth, q)
        return fields

    def _trainer_fields(self, r: Readings) -> tuple[FloatArray, FloatArray]:
        running = self._world.observation.running if self._world.observation else np.zeros(len(self._online), dtype=bool)
        training = self._world.trains & running
        steps, _ = self._slices.grow("steps", np.where(training, r.steps, np.nan), r.minute)
        seconds, _ = self._slices.grow("step_seconds", np.where(training, r.step_seconds_sum, np.nan), r.minute)
        with np.errstate(divide="ignore", invalid="ignore"):
            return steps, np.where(steps > 0, seconds / steps, np.nan)

    def _queue_rows(self, batch: Batch) -> None:
        world, pool, spec = self._world, self._world.pool, self._world.spec
        tenants = list(pool.queues)
        cards = {t: [pool.classes[j.arrival.job_class].cards for j in pool.waiting[t]] for t in tenants}
        waits = {t: [w for tenant, w in world.admitted if tenant == t] for t in tenants}
        ages = {t: [(world.minute - j.waiting_since) * 60.0 for j in pool.waiting[t]] for t in tenants}
        nan = float("nan")
        columns = {
            "quota_gpu_count": [pool.quota[t] for t in tenants],
            "allocated_gpu_count": [pool.allocated(t) for t in tenants],
            "pending_count": [len(pool.waiting[t]) for t in tenants],
            "pending_gpu_count": [sum(cards[t]) for t in tenants],
            "oldest_wait_seconds": [max(ages[t], default=0.0) for t in tenants],
            "wait_p50_seconds": [nearest_rank(waits[t], 0.5) if waits[t] else nan for t in tenants],
            "wait_p95_seconds": [nearest_rank(waits[t], 0.95) if waits[t] else nan for t in tenants],
            "admitted_count": [len(waits[t]) for t in tenants],
        }
        batch.rows["queue"] = make_rows(
            "queue",
            np.full(len(tenants), self._time_ms()),
            {"cluster": [spec.name] * len(tenants), "pool": [spec.pool] * len(tenants), "tenant": tenants},
            {name: np.asarray(values, dtype=np.float64) for name, values in columns.items()},
        )

    # -- facts and events ------------------------------------------------------------------------------------------

    def _add_facts(self, batch: Batch) -> None:
        current = dict(self._all_facts())
        now = self._world.now
        for key, value in current.items():
            if self._facts.get(key) != value:
                provenance = "declared" if key[0].kind == "workload" else "measured"
                batch.facts.append(Fact(key[0], key[1], value, now, provenance))  # type: ignore[arg-type]  # literal
        for key in self._facts.keys() - current.keys():
            batch.facts.append(Fact(key[0], key[1], None, now))
        self._facts = current

    def _all_facts(self) -> list[tuple[tuple[Subject, str], str]]:
        world, spec = self._world, self._world.spec
        facts: list[tuple[tuple[Subject, str], str]] = []

        def add(subject: Subject, **values: str) -> None:
            facts.extend(((subject, name), value) for name, value in values.items())

        add(Subject("cluster", spec.name), interval_seconds=str(STEP_SECONDS), simulated="true")
        for c, card in enumerate(spec.cards):
            if world.card_alive[c]:
                add(
                    Subject("gpu", spec.name, card.node, card.uuid),
                    model=card.hardware.name,
                    pci_bus_id=card.pci_bus_id,
                    ordinal=str(card.index),
                    mig=str(card.sharing == "mig").lower(),
                    sm_count=str(card.hardware.sm_count),
                    memory_total_bytes=str(card.hardware.memory_bytes),
                )
        classes = {s.name: ("online" if s.online else "offline") for s in spec.slices}
        for i, s in enumerate(spec.slices):
            holder = world.holders[i]
            card = spec.cards[s.card]
            if not world.card_alive[s.card] or (holder is None and s.kind != "mig"):
                continue
            subject = Subject("slice", spec.name, card.node, card.uuid, world.slice_id(i))
            add(subject, kind=s.kind)
            if s.profile:
                add(subject, profile=s.profile)
            if holder is not None:
                add(
                    subject,
                    pod=f"{holder.namespace}/{holder.pod}",
                    container=holder.container,
                    service_class=classes.get(holder.workload, "offline"),
                    tenant=holder.namespace,
                    workload=holder.workload,
                )
        for service in spec.services:
            add(
                Subject("workload", spec.name, object=f"{service.tenant}/{service.name}"),
                service_class="online",
                objective=json.dumps(service.objective.model_dump()),
            )
        return facts

    def _add_events(self, r: Readings, batch: Batch) -> None:
        world, spec = self._world, self._world.spec
        for c, card in enumerate(spec.cards):
            subject = Subject("gpu", spec.name, card.node, card.uuid)
            code = r.xid[c]
            if np.isfinite(code) and code != self._xid.get(c, 0.0):
                severity = Severity.CRITICAL if code == 79 else Severity.WARNING
                batch.events.append(Event(subject, "xid", severity, f"XID {code:.0f}: reported by the driver", world.now))
                self._xid[c] = code
            if not world.card_alive[c] and c not in self._lost:
                self._lost.add(c)
                batch.events.append(Event(subject, "card_lost", Severity.CRITICAL, "card no longer listed", world.now))


def nearest_rank(values: list[float], q: float) -> float:
    """Return the nearest-rank percentile of a few values."""
    ordered = sorted(values)
    return ordered[max(int(np.ceil(q * len(ordered))) - 1, 0)]


def histogram_quantile(edges: FloatArray, growth: FloatArray, q: float) -> FloatArray:
    """Return percentiles of many histograms: linear within the bucket, absent under 10 / (1 - q) requests.

    Args:
        edges: upper bounds, (histograms, buckets), the last infinite.
        growth: cumulative counts over buckets in the interval, same shape; NaN where unknown.
        q: 0..1.
    """
    total = growth[:, -1]
    rank = total * q
    with np.errstate(invalid="ignore"):
        bucket = np.argmax(growth >= rank[:, None], axis=1)
    rows = np.arange(len(growth))
    lower = np.where(bucket > 0, edges[rows, np.maximum(bucket - 1, 0)], 0.0)
    upper = edges[rows, bucket]
    below = np.where(bucket > 0, growth[rows, np.maximum(bucket - 1, 0)], 0.0)
    inside = growth[rows, bucket] - below
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.where(np.isfinite(upper), lower + (upper - lower) * (rank - below) / inside, lower)
        return np.asarray(np.where(total * (1 - q) >= 10 - 1e-9, value, np.nan))
