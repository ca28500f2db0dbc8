"""The one place where every measurement, tag and field is declared: name, unit, kind, range of valid values.

Store columns, line protocol, docs/metrics.md and dashboard labels are derived from this module. Names carry base units.
All values are float64; NaN is absent. Every ratio of a slice is of the WHOLE card (except kv_cache_used_ratio).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


class Kind(StrEnum):
    """How a field behaves over time, hence how it may be aggregated."""

    GAUGE = "gauge"  # a level: mean, min, max, percentiles
    INCREMENT = "increment"  # growth of a counter since the row before: sum
    RATE = "rate"  # per second: mean; times observed seconds it adds up
    QUANTILE = "quantile"  # a percentile of the interval: never averaged; max only


@dataclass(frozen=True, slots=True)
class Field:
    """One column: base-unit name, unit, kind, what it says, valid range (inclusive)."""

    name: str
    unit: str
    kind: Kind
    text: str
    low: float = 0.0
    high: float = math.inf


@dataclass(frozen=True)
class Measurement:
    """One kind of row: its tags in key order, and its fields."""

    name: str
    key: tuple[str, ...]  # identity beside time
    extra_tags: tuple[str, ...]  # carried, never part of the key
    fields: tuple[Field, ...]

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """All text columns: key, then the others."""
        return self.key + self.extra_tags

    @cached_property
    def field_names(self) -> tuple[str, ...]:
        """Names of all float columns, in order."""
        return tuple(f.name for f in self.fields)

    def field(self, name: str) -> Field:
        """Return the field `name`.

        Raises:
            KeyError: this measurement has no such field.
        """
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"measurement {self.name!r} has no field {name!r}; it has {', '.join(self.field_names)}")

    def arrow_schema(self) -> pa.Schema:
        """Columns of a full row: time (ms, UTC), tags (string, not null), fields (float64)."""
        import pyarrow as pa  # noqa: PLC0415  the command line knows the schema without it

        columns = [pa.field("time", pa.timestamp("ms", tz="UTC"), nullable=False)]
        columns += [pa.field(tag, pa.string(), nullable=False) for tag in self.tags]
        columns += [pa.field(field.name, pa.float64()) for field in self.fields]
        return pa.schema(columns)


def _ratio(name: str, text: str) -> Field:
    # Exporters overshoot a little (METRICS: SM_ACTIVE up to 1.05 on MIG); beyond that a value is garbage.
    return Field(name, "ratio", Kind.GAUGE, text, 0.0, 1.05)


def _bytes(name: str, text: str) -> Field:
    return Field(name, "bytes", Kind.GAUGE, text, 0.0, 2.0**50)


def _rate(name: str, unit: str, text: str, most: float = 1e15) -> Field:
    return Field(name, unit, Kind.RATE, text, 0.0, most)


def _count(name: str, text: str) -> Field:
    return Field(name, "count", Kind.INCREMENT, text, 0.0, 1e15)


_AGE = Field("source_age_seconds", "seconds", Kind.GAUGE, "how old the source's value was when it was read", 0.0, 1e9)

_ACTIVITY = (
    _ratio("engine_active_ratio", "share of time the graphics or compute engine was active"),
    _ratio("sm_active_ratio", "share of SM-time with at least one warp resident"),
    _ratio("sm_occupancy_ratio", "resident warps against the most possible"),
    _ratio("tensor_active_ratio", "share of cycles the tensor pipe was active"),
    _ratio("fp64_active_ratio", "share of cycles the FP64 pipe was active"),
    _ratio("fp32_active_ratio", "share of cycles the FP32 pipe was active"),
    _ratio("fp16_active_ratio", "share of cycles the FP16 pipe was active"),
    _ratio("dram_active_ratio", "share of cycles the memory interface moved data"),
    _ratio("encoder_ratio", "video encoder use"),
    _ratio("decoder_ratio", "video decoder use"),
)

GPU = Measurement(
    "gpu",
    ("cluster", "node", "gpu"),
    (),
    (
        _ratio("busy_ratio", "share of time at least one kernel ran; not how much of the card it used"),
        _ratio("memory_busy_ratio", "share of time the memory interface was in use, as the driver samples it"),
        *_ACTIVITY,
        _bytes("memory_used_bytes", "memory in use, without the driver's reserve"),
        _bytes("memory_free_bytes", "memory free"),
        _bytes("memory_reserved_bytes", "memory the driver keeps"),
        Field("power_watts", "watts", Kind.GAUGE, "board power", 0.0, 3000.0),
        Field("energy_joules", "joules", Kind.INCREMENT, "energy since the row before", 0.0, 1e9),
        Field("temperature_celsius", "celsius", Kind.GAUGE, "core temperature", 1.0, 130.0),
        Field("memory_temperature_celsius", "celsius", Kind.GAUGE, "memory temperature", 1.0, 130.0),
        Field("sm_clock_hertz", "hertz", Kind.GAUGE, "SM clock", 1.0, 1e10),
        Field("memory_clock_hertz", "hertz", Kind.GAUGE, "memory clock", 1.0, 1e11),
        _rate("pcie_rx_bytes_per_second", "bytes/s", "PCIe, host to card"),
        _rate("pcie_tx_bytes_per_second", "bytes/s", "PCIe, card to host"),
        _rate("nvlink_rx_bytes_per_second", "bytes/s", "NVLink received"),
        _rate("nvlink_tx_bytes_per_second", "bytes/s", "NVLink sent"),
        _ratio("throttle_power_ratio", "share of time clocks were lowered by the power cap (reason 0x4)"),
        _ratio("throttle_thermal_ratio", "share of time clocks were lowered by heat (0x20, 0x40)"),
        _ratio("throttle_brake_ratio", "share of time under a hardware power brake (0x80, or 0x8 without 0x1)"),
        _ratio("throttle_other_ratio", "share of time in sync boost (0x10)"),
        _count("ecc_corrected_count", "corrected memory errors"),
        _count("ecc_uncorrected_count", "uncorrected memory errors"),
        _count("rows_remapped_corrected_count", "rows remapped after corrected errors"),
        _count("rows_remapped_uncorrected_count", "rows remapped after uncorrected errors"),
        _count("pcie_replay_count", "PCIe replays"),
        _count("nvlink_error_count", "NVLink errors of all kinds"),
        _AGE,
    ),
)

SLICE = Measurement(
    "slice",
    ("cluster", "node", "gpu", "slice"),
    ("tenant", "workload"),
    (
        Field("sm_quota_ratio", "ratio", Kind.GAUGE, "compute share granted, of the whole card", 0.0, 1.0),
        _bytes("memory_quota_bytes", "memory granted"),
        Field("priority", "level", Kind.GAUGE, "higher runs first; the backend's own scale", -1e9, 1e9),
        _ratio("busy_ratio", "time share of the slice's processes, not an SM share"),
        *_ACTIVITY,
        _bytes("memory_used_bytes", "memory in use by the slice"),
        _rate("flops_per_second", "FLOP/s", "pipe activity times the card's peak: an estimate", 1e18),
        _rate("requests_per_second", "requests/s", "requests finished, failed and timed out"),
        _rate("within_objective_per_second", "requests/s", "requests that met the objective"),
        _rate("tokens_per_second", "tokens/s", "tokens generated"),
        Field("latency_p50_seconds", "seconds", Kind.QUANTILE, "median of the objective's quantity", 0.0, 1e6),
        Field("latency_p99_seconds", "seconds", Kind.QUANTILE, "99 % of the objective's quantity", 0.0, 1e6),
        Field("latency_p999_seconds", "seconds", Kind.QUANTILE, "99.9 % of the objective's quantity", 0.0, 1e6),
        Field("step_seconds", "seconds", Kind.GAUGE, "mean service time per unit of work, without queueing", 0.0, 1e7),
        _count("steps_count", "units of work finished"),
        _count("preemption_count", "preemptions"),
        Field("queue_depth_count", "count", Kind.GAUGE, "requests waiting", 0.0, 1e12),
        _ratio("kv_cache_used_ratio", "key-value cache in use, of the server's own pool"),
        _bytes("allocator_reserved_bytes", "memory the framework's allocator holds"),
        _bytes("allocator_allocated_bytes", "memory the framework's tensors use"),
        _bytes("allocator_inactive_split_bytes", "held, free, and not returnable: split blocks"),
        Field("idle_seconds", "seconds", Kind.GAUGE, "since the last kernel", 0.0, 1e9),
        _AGE,
    ),
)

NODE = Measurement(
    "node",
    ("cluster", "node"),
    (),
    (
        _ratio("cpu_busy_ratio", "host CPU in use"),
        _ratio("cpu_iowait_ratio", "host CPU waiting for input or output"),
        _bytes("memory_used_bytes", "host memory in use"),
        _rate("network_rx_bytes_per_second", "bytes/s", "network received"),
        _rate("network_tx_bytes_per_second", "bytes/s", "network sent"),
        _rate("disk_read_bytes_per_second", "bytes/s", "disk read"),
        _rate("disk_write_bytes_per_second", "bytes/s", "disk written"),
    ),
)

QUEUE = Measurement(
    "queue",
    ("cluster", "pool", "tenant"),
    (),
    (
        Field("quota_gpu_count", "cards", Kind.GAUGE, "cards the queue may hold", -1.0, 1e9),
        Field("allocated_gpu_count", "cards", Kind.GAUGE, "cards the queue holds", 0.0, 1e9),
        Field("pending_count", "requests", Kind.GAUGE, "requests that wait", 0.0, 1e9),
        Field("pending_gpu_count", "cards", Kind.GAUGE, "cards that wait to be granted", 0.0, 1e9),
        Field("oldest_wait_seconds", "seconds", Kind.GAUGE, "age of the oldest waiting request", 0.0, 1e9),
        Field("wait_p50_seconds", "seconds", Kind.QUANTILE, "median wait of those admitted in the interval", 0.0, 1e9),
        Field("wait_p95_seconds", "seconds", Kind.QUANTILE, "95 % wait of those admitted in the interval", 0.0, 1e9),
        _count("admitted_count", "requests admitted"),
    ),
)

MEASUREMENTS: dict[str, Measurement] = {m.name: m for m in (GPU, SLICE, NODE, QUEUE)}

# What tells how active a card or a slice is, best first.
ACTIVITY = ("sm_active_ratio", "engine_active_ratio", "busy_ratio")

# Tenant and workload of a slice: nobody holds it / the holder could not be resolved in time.
NOBODY = "none"
UNKNOWN = "unknown"
