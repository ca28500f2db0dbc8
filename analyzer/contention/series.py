"""A node's rows as regular series: one `Card` a GPU, one `Lane` a holder of a share of it.

A lane follows its workload: pods that replace one another on a card make one lane, replicas that run at the same time
make one each. Outside its lives a lane's activity is 0 (it is not there); inside, a missing sample stays NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyzer.contention.links import link_peaks
from analyzer.protocols import Partition
from collector.schema import NOBODY, UNKNOWN

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.int64]

MIN_SAMPLES = 24  # fewer leave no degrees of freedom beside the controls

_PIPE_ACTIVITY = (
    "tensor_active_ratio",
    "fp16_active_ratio",
    "fp32_active_ratio",
    "fp64_active_ratio",
    "dram_active_ratio",
)
_FULL = 0.99  # activity of a card from which on it counts as full
_TRACE = 0.01  # unattributed activity below it is rounding
_SELDOM = 0.02  # share of samples with more, below which there is nobody
_ACTIVITY = (("sm_active_ratio", 1.0), ("engine_active_ratio", 0.85), ("busy_ratio", 0.7))
_APPLICATION = (
    "step_seconds",
    "latency_p50_seconds",
    "latency_p99_seconds",
    "requests_per_second",
    "tokens_per_second",
    "steps_count",
)
_PIPES = ("dram_active_ratio", "tensor_active_ratio", "fp32_active_ratio", "fp16_active_ratio", "fp64_active_ratio")
_SLICE_FIELDS = (*(name for name, _ in _ACTIVITY), *_APPLICATION, *_PIPES, "sm_quota_ratio")
_GPU_FIELDS = (
    "sm_active_ratio",
    "sm_clock_hertz",
    "pcie_rx_bytes_per_second",
    "pcie_tx_bytes_per_second",
    "nvlink_rx_bytes_per_second",
    "nvlink_tx_bytes_per_second",
    "throttle_power_ratio",
)


@dataclass(frozen=True, slots=True, eq=False)
class Signal:
    """One series on the window's grid: values, the field it came from, how far it can be trusted (0..1)."""

    values: Floats
    name: str
    trust: float


@dataclass(frozen=True, slots=True)
class Lane:
    """What one holder did on one card. All arrays have the window's length n; NaN is absent.

    Attributes:
        slices: slice ids, oldest first; the last one names the lane.
        lives: first and last grid index of each stay on the card (inclusive).
        cost: natural logarithm of the time (or SM-seconds) per unit of work; None without any such signal.
        load: offered load per second; None where nothing tells it.
        activity: share of the whole card in use; 0 outside the lives.
        pipes: activity of the pipes and of the memory interface, by field.
    """

    slices: tuple[str, ...]
    tenant: str
    workload: str
    kind: str
    lives: tuple[tuple[int, int], ...]
    cost: Signal | None
    load: Floats | None
    activity: Signal | None
    quota: Floats
    pipes: Mapping[str, Floats] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What an operator calls it."""
        return self.workload if self.workload not in ("", UNKNOWN) else self.slices[-1]


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU: its lanes in a fixed order, and what only the card itself tells."""

    gpu: str
    lanes: tuple[Lane, ...]
    clock: Floats
    pcie: Floats
    nvlink: Floats
    power_cap: Floats
    unattributed: Floats  # activity of the card that no lane accounts for; NaN where unknown
    hidden: Bools  # the card is full: activity that no lane accounts for may be more than is seen
    host: Floats  # CPU use of the node
    peaks: Mapping[str, float] = field(default_factory=dict)  # of its links, in bytes/s a direction; unknown: not there


def grid_length(partition: Partition) -> int:
    """Number of samples that the window should have."""
    return math.ceil(partition.window.seconds / partition.interval_seconds)


def cards(partition: Partition) -> list[Card]:
    """Return the cards of a partition that hold at least one lane, sorted by GPU."""
    n = grid_length(partition)
    rows = _Rows.of(partition.slice, ("gpu", "slice", "tenant", "workload"), _SLICE_FIELDS, partition, n)
    device = _Rows.of(partition.gpu, ("gpu",), _GPU_FIELDS, partition, n)
    host_rows = _Rows.of(partition.node_rows, (), ("cpu_busy_ratio",), partition, n)
    host = next(iter(host_rows.fields.values()))["cpu_busy_ratio"] if host_rows.fields else np.full(n, np.nan)
    peaks = link_peaks(partition)
    kinds = _facts(partition, "kind")
    replicas = _facts(partition, "replica")
    stints = _stints(rows)
    _share_application_fields(stints, replicas)
    by_gpu: dict[str, list[_Stint]] = {}
    for stint in stints:
        by_gpu.setdefault(stint.gpu, []).append(stint)
    result = []
    for gpu in sorted(by_gpu):
        own = device.fields.get((gpu,))
        card = own if own is not None else {name: np.full(n, np.nan) for name in _GPU_FIELDS}
        seen = np.logical_or.reduce([s.seen for s in by_gpu[gpu]])
        if own is not None:
            seen = seen | device.seen[(gpu,)]
        lanes = tuple(_lane(group, kinds, seen) for group in _chains(by_gpu[gpu]))
        unattributed = _unattributed(card["sm_active_ratio"], lanes)
        somebody = np.mean(unattributed > _TRACE) > _SELDOM
        hidden = (card["sm_active_ratio"] >= _FULL) & somebody
        result.append(
            Card(
                gpu=gpu,
                lanes=lanes,
                clock=card["sm_clock_hertz"],
                pcie=np.fmax(card["pcie_rx_bytes_per_second"], card["pcie_tx_bytes_per_second"]),
                nvlink=np.fmax(card["nvlink_rx_bytes_per_second"], card["nvlink_tx_bytes_per_second"]),
                power_cap=card["throttle_power_ratio"],
                unattributed=np.where(hidden, np.nan, unattributed),
                hidden=hidden,
                host=host,
                peaks=peaks.get(gpu, {}),
            )
        )
    return result


def correlation(left: Floats, right: Floats, fewest: int) -> float:
    """Plain correlation over the samples that both have; 0 with `fewest` or fewer, or where one does not vary."""
    both = np.isfinite(left) & np.isfinite(right)
    if np.count_nonzero(both) <= fewest:
        return 0.0
    u, v = left[both] - left[both].mean(), right[both] - right[both].mean()
    scale = math.sqrt(float(u @ u) * float(v @ v))
    return float(u @ v) / scale if scale > 0 else 0.0


def swing_of(values: Floats) -> tuple[float, float]:
    """Return the 2 % and 98 % quantiles (nearest rank from below and above) of finite values; 0, 0 of none."""
    if not values.size:
        return 0.0, 0.0
    low = round(0.02 * (values.size - 1))
    ordered = np.partition(values, (low, values.size - 1 - low))
    return float(ordered[low]), float(ordered[values.size - 1 - low])


def fill(values: Floats) -> Floats:
    """Close gaps by straight lines (constant at the ends): for controls only, never for an outcome."""
    good = np.isfinite(values)
    if good.all():
        return values
    if not good.any():
        return np.zeros_like(values)
    at = np.arange(values.size, dtype=np.float64)
    return np.asarray(np.interp(at, at[good], values[good]))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows laid on the grid: subject -> field -> values, and where the subject had a row at all."""

    fields: dict[tuple[str, ...], dict[str, Floats]]
    seen: dict[tuple[str, ...], Bools]

    @classmethod
    def of(cls, frame: pd.DataFrame, tags: tuple[str, ...], names: tuple[str, ...], part: Partition, n: int) -> _Rows:
        if frame.empty:
            return cls({}, {})
        stamps = frame["time"].dt.tz_convert("UTC").dt.tz_localize(None).to_numpy().astype("datetime64[ms]")
        seconds = stamps.astype(np.int64) / 1000.0 - part.window.start.timestamp()
        index = np.floor(seconds / part.interval_seconds + 1e-9).astype(np.int64)
        inside = np.flatnonzero((index >= 0) & (index < n))
        if not inside.size:
            return cls({}, {})
        # Of two rows in one place the later one stays.
        inside = inside[np.argsort(seconds[inside], kind="stable")]
        columns = {name: frame[name].to_numpy(np.float64) for name in names if name in frame}
        empty = np.full(n, np.nan)
        fields: dict[tuple[str, ...], dict[str, Floats]] = {}
        seen: dict[tuple[str, ...], Bools] = {}
        for key, where in _groups(frame, tags, inside).items():
            at = index[where]
            seen[key] = np.zeros(n, dtype=bool)
            seen[key][at] = True
            fields[key] = dict.fromkeys(names, empty)
            for name, column in columns.items():
                values = np.full(n, np.nan)
                values[at] = column[where]
                fields[key][name] = values
        return cls(fields, seen)


def _groups(frame: pd.DataFrame, tags: tuple[str, ...], rows: Indices) -> dict[tuple[str, ...], Indices]:
    """Split row numbers by their combination of tags, in the order of the tags."""
    code = np.zeros(len(frame), dtype=np.int64)
    named = np.ones(len(frame), dtype=bool)
    texts = []
    for tag in tags:
        codes, names = pd.factorize(frame[tag], sort=True)
        code = code * max(len(names), 1) + codes
        named &= codes >= 0
        texts.append((codes, names))
    rows = rows[named[rows]]  # a row without its tag belongs to nobody
    narrow = code if code.max(initial=0) > np.iinfo(np.uint16).max else code.astype(np.uint16)  # sorted by radix
    rows = rows[np.argsort(narrow[rows], kind="stable")]
    if not rows.size:
        return {}
    parts = np.split(rows, np.flatnonzero(np.diff(code[rows])) + 1)
    return {tuple(str(names[codes[part[0]]]) for codes, names in texts): part for part in parts}


@dataclass(slots=True)
class _Stint:
    """One slice while one workload held it."""

    gpu: str
    slice: str
    tenant: str
    workload: str
    seen: Bools
    fields: dict[str, Floats]

    @property
    def span(self) -> tuple[int, int]:
        where = np.flatnonzero(self.seen)
        return int(where[0]), int(where[-1])


def _stints(rows: _Rows) -> list[_Stint]:
    """Split rows by slice and holder; rows whose holder came late go to the only holder the slice ever had."""
    by_slice: dict[tuple[str, str], list[_Stint]] = {}
    for (gpu, slice_id, tenant, workload), fields in rows.fields.items():
        if workload == NOBODY:
            continue
        stint = _Stint(gpu, slice_id, tenant, workload, rows.seen[(gpu, slice_id, tenant, workload)], fields)
        by_slice.setdefault((gpu, slice_id), []).append(stint)
    result = []
    for stints in by_slice.values():
        late = [s for s in stints if s.workload == UNKNOWN]
        known = [s for s in stints if s.workload != UNKNOWN]
        if late and len(known) == 1:
            known[0].seen = known[0].seen | late[0].seen
            known[0].fields = {
                name: np.where(np.isfinite(values), values, late[0].fields[name])
                for name, values in known[0].fields.items()
            }
            result += known
        else:
            result += stints
    return result


def _share_application_fields(stints: list[_Stint], replicas: Mapping[tuple[str, str], str]) -> None:
    """Give a replica's other slices the application's figures, which stand on its slice of ordinal 0."""
    by_name = {s.slice: s for s in stints}
    for stint in stints:
        first = by_name.get(replicas.get((stint.gpu, stint.slice), ""))
        if first is not None and first is not stint:
            stint.fields |= {name: first.fields[name] for name in _APPLICATION}


def _chains(stints: list[_Stint]) -> list[list[_Stint]]:
    """Group stints into lanes: same workload, one after the other."""
    lanes: list[list[_Stint]] = []
    for stint in sorted(stints, key=lambda s: (s.span, s.slice, s.tenant, s.workload)):
        for lane in lanes:
            last = lane[-1]
            same_holder = (last.tenant, last.workload) == (stint.tenant, stint.workload)
            named = stint.workload not in ("", UNKNOWN) or last.slice == stint.slice
            if same_holder and named and last.span[1] < stint.span[0]:
                lane.append(stint)
                break
        else:
            lanes.append([stint])
    return sorted(lanes, key=lambda lane: (lane[-1].slice, lane[-1].tenant, lane[-1].workload))


def _lane(stints: list[_Stint], kinds: Mapping[tuple[str, str], str], card_seen: Bools) -> Lane:
    merged = {name: _merge([s.fields[name] for s in stints]) for name in _SLICE_FIELDS}
    lives = tuple(s.span for s in stints)
    away = card_seen.copy()
    for start, end in lives:
        away[start : end + 1] = False
    counts = {name: int(np.isfinite(merged[name]).sum()) for name, _ in _ACTIVITY}
    most = max(counts.values())
    activity = None
    for name, trust in _ACTIVITY:
        if counts[name] > most / 2:  # the best signal that is not a mere sprinkle
            activity = Signal(np.where(away, 0.0, merged[name]), name, trust)
            break
    last = stints[-1]
    load = merged["requests_per_second"]
    return Lane(
        slices=tuple(s.slice for s in stints),
        tenant=last.tenant,
        workload=last.workload,
        kind=kinds.get((last.gpu, last.slice), ""),
        lives=lives,
        cost=_cost(merged, activity),
        load=load if np.isfinite(load).sum() >= MIN_SAMPLES else None,
        activity=activity,
        quota=merged["sm_quota_ratio"],
        pipes={name: np.where(away, 0.0, merged[name]) for name in _PIPES if np.isfinite(merged[name]).any()},
    )


def _cost(fields: Mapping[str, Floats], activity: Signal | None) -> Signal | None:
    """Choose the victim's signal: service time, else latency, else SM-seconds per unit of work.

    Where no application tells its work, what the pipes did stands in for it: a kernel that waits holds its SMs longer
    and issues the same instructions, so that SM activity a pipe activity is the card's own cost per unit of work.
    """
    for name, trust in (("step_seconds", 1.0), ("latency_p50_seconds", 0.85), ("latency_p99_seconds", 0.7)):
        values = _log(fields[name])
        if np.isfinite(values).sum() >= MIN_SAMPLES:
            return Signal(values, name, trust)
    for name in ("requests_per_second", "tokens_per_second", "steps_count"):
        work = fields[name]
        if activity is not None and np.isfinite(work).sum() >= MIN_SAMPLES:
            # Where the slice is all but idle the quotient is made of rounding.
            quotient = np.where(
                (work > 0) & (activity.values > 0.005), activity.values / np.maximum(work, 1e-12), np.nan
            )
            values = _log(quotient)
            if np.isfinite(values).sum() >= MIN_SAMPLES:
                return Signal(values, f"{activity.name} per {name.removesuffix('_per_second')}", 0.6 * activity.trust)
    if activity is not None and activity.name == "sm_active_ratio":
        for name in _PIPE_ACTIVITY:
            working = np.where((fields[name] > _TRACE) & (activity.values > _TRACE), fields[name], np.nan)
            if np.isfinite(working).sum() >= MIN_SAMPLES:
                return Signal(_log(activity.values / working), f"{activity.name} per {name}", 0.4)
    return None


def _unattributed(total: Floats, lanes: tuple[Lane, ...]) -> Floats:
    parts = [lane.activity.values for lane in lanes if lane.activity is not None and lane.activity.trust == 1.0]
    if not parts:
        return np.full_like(total, np.nan)
    return np.asarray(np.maximum(total - np.nansum(parts, axis=0), 0.0))


def _merge(parts: list[Floats]) -> Floats:
    merged = parts[0]
    for part in parts[1:]:
        merged = np.where(np.isfinite(part), part, merged)
    return merged


def _log(values: Floats) -> Floats:
    return np.asarray(np.log(np.where(values > 0, values, np.nan)))


def _facts(partition: Partition, name: str) -> dict[tuple[str, str], str]:
    """Return the newest value of a fact of the node's slices, by (gpu, slice)."""
    facts = partition.facts
    if facts.empty:
        return {}
    wanted = facts[(facts["name"] == name) & (facts["kind"] == "slice")].sort_values("from", kind="stable")
    return {(str(g), str(s)): str(v) for g, s, v in zip(wanted["gpu"], wanted["slice"], wanted["value"], strict=True)}
