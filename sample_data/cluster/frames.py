"""The rows of a minute without the text between: what a collector makes of the exporters' output."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from collector.batch import Batch, Event, Severity, Subject, make_rows
from collector.clock import to_ms
from collector.gpu_models import gpu_model
from collector.schema import NOBODY
from sample_data.cluster.counters import Increments
from sample_data.cluster.facts import FactTeller
from sample_data.cluster.pods import SERVING_POOL
from sample_data.cluster.quirks import Outages, flapping
from sample_data.cluster.readings import (
    BLANK,
    BOUND_BUCKET,
    GARBAGE,
    THROTTLE_POWER,
    THROTTLE_THERMAL,
    Instruments,
    Readings,
)
from sample_data.cluster.simulation import World
from sample_data.cluster.spec import MIB, MIG_PROFILES, MINUTES_PER_DAY, STEP_SECONDS

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

_QUEUE_FIELDS = (
    "quota_gpu_count", "allocated_gpu_count", "pending_count", "pending_gpu_count", "oldest_wait_seconds",
    "wait_p50_seconds", "wait_p95_seconds", "admitted_count",
)  # fmt: skip
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
        self._facts = FactTeller(world)
        self._xid: dict[int, float] = {}
        self._lost: set[int] = set()
        self._tags: tuple[object, IntArray, dict[str, pa.Array]] = ((), np.array([], dtype=np.int64), {})
        spec = world.spec
        self._card_mig = np.array([c.sharing == "mig" for c in spec.cards])
        self._card_memory = np.array([c.hardware.memory_bytes for c in spec.cards], dtype=np.float64)
        models = [gpu_model(c.hardware.name) for c in spec.cards]
        self._peak = np.array([model.peaks["fp16_tensor"] if model else np.nan for model in models])
        self._quotas = np.full((len(spec.slices), 2), np.nan)
        self._mig = np.array([s.kind == "mig" for s in spec.slices])
        self._whole = np.array([s.kind == "whole" for s in spec.slices])
        self._vllm = np.array([s.app == "vllm" for s in spec.slices])
        self._online = np.array([s.online for s in spec.slices])
        self._sm_share = np.array(
            [
                MIG_PROFILES[s.profile].sm_count / spec.cards[s.card].hardware.sm_count if s.profile else 1.0
                for s in spec.slices
            ]
        )
        self._memory_share = np.array(
            [MIG_PROFILES[s.profile].memory_slices / 8 if s.profile else 1.0 for s in spec.slices]
        )

    def batch(self) -> Batch:
        """Return the batch of the last minute."""
        readings = self._instruments.read()
        batch = Batch()
        self._gpu_rows(readings, batch)
        self._slice_rows(readings, batch)
        batch.facts = self._facts.changes(self._quotas)
        self._queue_rows(batch)
        self._add_events(readings, batch)
        return batch

    # -- rows ------------------------------------------------------------------------------------------------------

    def _seen(self, minute: int) -> BoolArray:
        """Cards that their node's exporter shows."""
        spec = self._world.spec
        up = [not self._outages.node_down(card.node, minute) for card in spec.cards]
        return np.logical_and(self._world.card_alive, up)

    def _flaps(self, minute: int) -> BoolArray:
        """Cards of which nothing can be told from what its pods use, because its own series carries a pod's name."""
        spec = self._world.spec
        return np.array([flapping(spec, c, minute) for c in range(len(spec.cards))])

    def _server_up(self, minute: int) -> BoolArray:
        """Slices whose pod's own page can be read."""
        world = self._world
        observation = world.observation
        assert observation is not None  # noqa: S101 - readings follow a step
        up = [
            holder is not None and holder.started_minute <= minute and not self._outages.server_down(i, minute)
            for i, holder in enumerate(world.holders)
        ]
        return np.logical_and(observation.running, up)

    def _time_ms(self) -> int:
        return to_ms(self._world.now)

    def _gpu_rows(self, r: Readings, batch: Batch) -> None:
        spec = self._world.spec
        seen = self._seen(r.minute)
        alive = np.flatnonzero(seen)
        energy = self._cards.grow("energy", np.where(seen, r.energy, np.nan), r.minute)[0]
        replay = self._cards.grow("replay", np.where(seen, r.pcie_replay, np.nan), r.minute, max_gap=MINUTES_PER_DAY)[0]
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
            "throttle_brake_ratio": np.where(known, 0.0, np.nan),
            "throttle_other_ratio": np.where(known, 0.0, np.nan),
            "source_age_seconds": np.zeros(len(r.gpu_util)),
        }
        flaps = self._flaps(r.minute)
        for name in ("busy_ratio", "memory_used_bytes"):
            fields[name] = np.where(flaps, np.nan, fields[name])
        for name, of_instances in self._instance_sums(r).items():
            fields[name] = np.where(self._card_mig, of_instances, fields[name])
        fields |= {
            name: self._cards.grow(name, np.where(seen, values, np.nan), r.minute, max_gap=MINUTES_PER_DAY)[0]
            for name, values in errors.items()
        }
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

    def _instance_sums(self, r: Readings) -> dict[str, FloatArray]:
        """Return what a cut card shows: the sum over its instances, each by its share (NaN where one is missing)."""
        parts = {
            "engine_active_ratio": r.mig_engine * self._sm_share,
            "sm_active_ratio": r.mig_sm * self._sm_share,
            "sm_occupancy_ratio": r.mig_occupancy * self._sm_share,
            "tensor_active_ratio": r.mig_tensor * self._sm_share,
            "dram_active_ratio": r.mig_dram * self._memory_share,
            "memory_used_bytes": r.mig_fb_used * MIB,
        }
        card, cards = self._world.card, len(self._world.spec.cards)
        return {
            name: np.bincount(card, weights=np.where(self._mig, values, 0.0), minlength=cards).astype(np.float64)
            for name, values in parts.items()
        }

    def _slice_rows(self, r: Readings, batch: Batch) -> None:
        world, spec = self._world, self._world.spec
        pods = [h.pod if h else "" for h in world.holders]
        self._slices.forget([i for i, pod in enumerate(pods) if pod != self._holder_pods[i]])
        self._holder_pods = pods
        fields = self._slice_fields(r)
        seen = self._seen(r.minute)
        key = (tuple(pods), tuple(seen.tolist()))
        if key != self._tags[0]:
            index = [i for i, s in enumerate(spec.slices) if seen[s.card] and (s.kind == "mig" or pods[i])]
            self._tags = (key, np.array(index, dtype=np.int64), self._slice_tags(index))
        _, rows, tags = self._tags
        times = np.full(len(rows), self._time_ms())
        batch.rows["slice"] = make_rows("slice", times, tags, {name: values[rows] for name, values in fields.items()})

    def _slice_tags(self, index: list[int]) -> dict[str, pa.Array]:
        world, spec = self._world, self._world.spec
        cards = [spec.cards[spec.slices[i].card] for i in index]
        holders = [world.holders[i] for i in index]
        tags = {
            "cluster": [spec.name] * len(index),
            "node": [card.node for card in cards],
            "gpu": [card.uuid for card in cards],
            "slice": [world.slice_id(i) for i in index],
            "tenant": [h.namespace if h else NOBODY for h in holders],
            "workload": [h.workload if h else NOBODY for h in holders],
        }
        return {name: pa.array(values, type=pa.string()) for name, values in tags.items()}

    def _slice_fields(self, r: Readings) -> dict[str, FloatArray]:
        world = self._world
        card, mig, whole = world.card, self._mig, self._whole
        share = self._sm_share

        def own(instance: FloatArray, device: FloatArray, factor: FloatArray) -> FloatArray:
            return np.where(mig, instance * factor, np.where(whole, device[card], np.nan))

        flaps = self._flaps(r.minute)[card]
        pod_util, pod_memory = np.where(flaps, np.nan, r.pod_util), np.where(flaps, np.nan, r.pod_fb_used)
        memory = np.where(mig, r.mig_fb_used * MIB, np.where(whole, r.fb_used[card] * MIB, pod_memory * MIB))
        memory = np.where(np.isfinite(r.hami_memory_used), r.hami_memory_used, memory)
        busy = np.where(whole, r.gpu_util[card] / 100, pod_util / 100)
        busy = np.where(np.isfinite(r.hami_util), np.minimum(r.hami_util / 100, 1.0), busy)
        cores = np.where(r.hami_cores > 0, r.hami_cores / 100, np.nan)  # 0: no limit
        fields = {
            "sm_quota_ratio": np.where(mig, share, np.where(whole, 1.0, cores)),
            "memory_quota_bytes": np.where(
                mig,
                (r.mig_fb_used + r.mig_fb_free) * MIB,
                np.where(
                    whole,
                    self._card_memory[card],
                    np.where(np.isnan(r.hami_memory_limit), r.hami_promised, r.hami_memory_limit),
                ),
            ),
            "busy_ratio": busy,
            "engine_active_ratio": own(r.mig_engine, r.engine, share),
            "sm_active_ratio": own(r.mig_sm, r.sm_active, share),
            "sm_occupancy_ratio": own(r.mig_occupancy, r.occupancy, share),
            "tensor_active_ratio": own(r.mig_tensor, r.tensor, share),
            "dram_active_ratio": own(r.mig_dram, r.dram, self._memory_share),
            "memory_used_bytes": memory,
            "idle_seconds": r.hami_last_kernel,
            "source_age_seconds": np.zeros(len(card)),
        }
        fields["flops_per_second"] = fields["tensor_active_ratio"] * self._peak[card]
        self._quotas = np.stack([fields["sm_quota_ratio"], fields["memory_quota_bytes"]], axis=1)
        fields |= self._server_fields(r)
        steps, step_seconds = self._trainer_fields(r)
        fields["steps_count"] = np.where(self._online, fields["steps_count"], steps)
        fields["step_seconds"] = np.where(self._online, fields["step_seconds"], step_seconds)
        return fields

    def _server_fields(self, r: Readings) -> dict[str, FloatArray]:
        serving = self._online & self._server_up(r.minute)
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
                "steps_count": units,
                "step_seconds": np.where(units > 0, total / units, np.nan),
                "queue_depth_count": np.where(serving, r.waiting, np.nan),
                "kv_cache_used_ratio": np.where(serving, r.kv_cache, np.nan),
            }
        for name, q in QUANTILES.items():
            fields[name] = histogram_quantile(self._instruments.edges, growth, q)
        return fields

    def _trainer_fields(self, r: Readings) -> tuple[FloatArray, FloatArray]:
        training = self._world.trains & self._server_up(r.minute)
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
        rows = [
            (
                (spec.pool, t),
                (
                    pool.quota[t],
                    pool.allocated(t),
                    len(pool.waiting[t]),
                    sum(cards[t]),
                    max(ages[t], default=0.0),
                    nearest_rank(waits[t], 0.5) if waits[t] else nan,
                    nearest_rank(waits[t], 0.95) if waits[t] else nan,
                    len(waits[t]),
                ),
            )
            for t in tenants
        ]
        rows += [((SERVING_POOL, t), (nan, held, 0, 0, 0, nan, nan, 0)) for t, held in self._facts.serving.items()]
        rows.sort(key=lambda row: row[0])
        values = np.array([row[1] for row in rows], dtype=np.float64)
        batch.rows["queue"] = make_rows(
            "queue",
            np.full(len(rows), self._time_ms()),
            {"cluster": [spec.name] * len(rows), "pool": [r[0][0] for r in rows], "tenant": [r[0][1] for r in rows]},
            dict(zip(_QUEUE_FIELDS, values.T, strict=True)),
        )

    # -- events ----------------------------------------------------------------------------------------------------

    def _add_events(self, r: Readings, batch: Batch) -> None:
        world = self._world
        for c, code in enumerate(r.xid.tolist()):
            if code == code and code != self._xid.get(c, 0.0):  # noqa: PLR0124 - NaN test
                self._xid[c] = code
                severity = Severity.CRITICAL if code == 79 else Severity.WARNING
                message = f"XID {code:.0f}: reported by the driver"
                batch.events.append(Event(self._card_subject(c), "xid", severity, message, world.now))
        for c in np.flatnonzero(~world.card_alive).tolist():
            if c not in self._lost:
                self._lost.add(c)
                message = "card no longer listed"
                batch.events.append(Event(self._card_subject(c), "card_lost", Severity.CRITICAL, message, world.now))

    def _card_subject(self, c: int) -> Subject:
        card = self._world.spec.cards[c]
        return Subject("gpu", self._world.spec.name, card.node, card.uuid)


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
