"""Whose limits are judged, and out of which counters.

Cards, slices with counters of their own, and slices that have a shared card to themselves for a while. Series are (T,)
on the window's grid, each relative to the subject's own share; NaN is absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from analyzer.attribution import first_known
from analyzer.bottleneck_scores import LIMITS, Series
from analyzer.cards import cards
from analyzer.facts import hardware_facts, to_float
from analyzer.mig import board_of
from analyzer.protocols import Partition
from analyzer.shares import Card, Holding
from collector.clock import to_ms
from collector.gpu_models import gpu_model

PIPES = ("tensor_active_ratio", "fp64_active_ratio", "fp32_active_ratio", "fp16_active_ratio")
_ALONE = 0.9  # part of a shared card's use in an interval from which its counters are this slice's own
_CAPPED = ("mps", "vgpu")  # kinds whose quota is a limit; a turn in rotation may be longer where others are idle
_THROTTLES_BY_TIME = 1.2  # busiest time share over quota up to which a layer throttles by time
# PCIe, bytes/s a lane and direction, by generation.
_LANE_BYTES = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
_LANES = 16
_OF_A_CARD = ("power", "heat")
_OF_COUNTERS = ("compute", "memory_bandwidth", "transfer", "latency", "small_grid", "host")
_OF_A_SLICE = tuple(name for name in LIMITS if name not in _OF_A_CARD)


@dataclass(frozen=True, slots=True)
class Subject:
    """A slice, or (slice empty) a card: what it is judged for, its series, and what it cannot be judged for and why.

    `work` is its activity relative to its own share; `alive` where it lived (and its counters were its own).
    """

    card: Card
    holding: Holding | None
    limits: tuple[str, ...]
    series: Mapping[str, Series]
    work: Series
    alive: npt.NDArray[np.bool_]
    counters: str  # whose counters: own, card, alone (the card's, while nobody else used it)
    pipes: int = 0  # how many pipes are known
    told_elsewhere: Mapping[str, str] = field(default_factory=dict)  # limit -> why it is not judged here
    foreign: frozenset[str] = frozenset()  # limits that do not exist for such a subject


@dataclass(frozen=True, slots=True)
class _Peaks:
    """What a card's links and clock reach, and its memory; NaN where it is not known."""

    pcie: float
    nvlink: float
    clock: float
    memory: float


def subjects(partition: Partition) -> list[Subject]:
    """Return what can be judged on this node."""
    told = {
        name: hardware_facts(partition.facts, "gpu", name)
        for name in (
            "pcie_generation", "pcie_lanes", "nvlink_peak_bytes_per_second", "max_sm_clock_hertz", "memory_total_bytes",
        )
    }  # fmt: skip
    host = {"host": on_grid(partition, "cpu_busy_ratio"), "iowait": on_grid(partition, "cpu_iowait_ratio")}
    killed = _killed(partition)
    found = []
    for card in cards(partition):
        if any(holding.held for holding in card.holdings):
            key = (card.cluster, card.node, card.gpu, "")
            peaks = _peaks(card, {name: to_float(values.get(key)) for name, values in told.items()})
            found += _of_card(card, peaks, host, killed)
    return found


def _of_card(card: Card, peaks: _Peaks, host: Mapping[str, Series], killed: Mapping[str, list[int]]) -> list[Subject]:
    pipes = [card.of_card(name) for name in PIPES]
    own = {**_card_series(card, peaks, pipes), **host}
    work = first_known([own["engine"], own["sm"], own["busy"]])
    known = _known(pipes)
    divided = [h.held and h.kind not in {"whole", "mig"} for h in card.holdings]
    limits = _OF_A_CARD + (_OF_COUNTERS if any(divided) else ("transfer",) if card.mig else ())
    found = [Subject(card, None, limits, own, work, card.observed, "card", known)]
    total = card.used.sum(axis=1)  # NaN: nobody knows what one of them uses
    for j, holding in enumerate(card.holdings):
        if not holding.held:
            continue
        alive = card.alive[:, j]
        memory = _memory_series(card, j, peaks, killed)
        if holding.kind == "mig":
            found.append(_instance(card, j, memory, host))
        elif holding.kind == "whole":
            foreign = frozenset({"quota"})
            found.append(Subject(card, holding, _OF_A_SLICE, own | memory, work, alive, "card", known, foreign=foreign))
        else:
            found.append(_sharer(card, j, own | memory, total))
    return found


def _instance(card: Card, j: int, memory: Mapping[str, Series], host: Mapping[str, Series]) -> Subject:
    """Return a MIG instance: its counters are its own; PCIe and NVLink are counted of the card alone."""
    holding = card.holdings[j]
    alive = card.alive[:, j]
    lives = np.where(alive, 1.0, np.nan)
    compute = np.where(card.quota[:, j] > 0, card.quota[:, j], np.nan)
    board = board_of(card.model, [holding.profile])
    profile = board.profiles.get(holding.profile) if board is not None else None
    part = profile.size / board.memory_slices if board is not None and profile is not None else math.nan
    own = {name: card.of_slices(name)[:, j] * lives / compute for name in ("sm_active_ratio", "engine_active_ratio")}
    pipes = [card.of_slices(name)[:, j] * lives / compute for name in PIPES]
    series = {
        "sm": own["sm_active_ratio"],
        "engine": own["engine_active_ratio"],
        "dram": card.of_slices("dram_active_ratio")[:, j] * lives / part,
        "busy": card.of_slices("busy_ratio")[:, j],
        "pipe": np.asarray(np.fmax.reduce(pipes)),
        **memory,
        **host,
    }
    elsewhere = {"transfer": "PCIe and NVLink are counted of the card, not of its instances"}
    if profile is None:
        unknown = f"share of memory slices of {holding.profile or 'an unnamed profile'} is not known"
        elsewhere |= dict.fromkeys(("memory_bandwidth", "latency"), unknown)
        if np.isnan(compute).all():
            elsewhere |= dict.fromkeys(_OF_COUNTERS, unknown)
    work = first_known([series["engine"], series["sm"], series["busy"]])
    foreign = frozenset({"quota"})
    return Subject(card, holding, _OF_A_SLICE, series, work, alive, "own", _known(pipes), elsewhere, foreign)


def _sharer(card: Card, j: int, series: Mapping[str, Series], total: Series) -> Subject:
    """Return a slice of a shared card: its counters are the card's while nobody else uses the card."""
    holding, alive = card.holdings[j], card.alive[:, j]
    pipes = _known([card.of_card(name) for name in PIPES])
    used = card.used[:, j]
    alone = alive & (used >= _ALONE * total) & (total > 0)
    capped = holding.kind in _CAPPED and not card.quota_estimated[j]
    quota = np.where(card.quota[:, j] > 0, card.quota[:, j], np.nan)
    of_quota = _quota_use(card, j) / quota if capped else np.full(len(used), np.nan)
    elsewhere, foreign = {}, frozenset[str]()
    # What works a little beside it all the time leaves no interval of its own, and yet hardly anything in the counters.
    known = ~np.isnan(total)
    mostly = float(used[known].sum()) >= _ALONE * float(total[known].sum()) > 0
    mine = alive if mostly else alone
    if not mine.any():
        reason = f"under {holding.kind} the counters are the card's: see what is said of the card"
        elsewhere = dict.fromkeys(_OF_COUNTERS, reason)
    if holding.kind not in _CAPPED:
        foreign = frozenset({"quota"})
    of_counters = ("sm", "pipe", "dram", "engine", "busy", "transfer", "power_cap", "clock", "heat")
    own = {name: np.where(mine, values, np.nan) if name in of_counters else values for name, values in series.items()}
    work = np.where(np.isnan(used / quota), used, used / quota)
    return Subject(
        card, holding, _OF_A_SLICE, own | {"of_quota": of_quota}, work, alive, "alone", pipes, elsewhere, foreign
    )


def _quota_use(card: Card, j: int) -> Series:
    """Return what counts against a hard quota, (T,): use; under a vGPU layer that throttles by it, the time share."""
    busy, quota = card.of_slices("busy_ratio")[:, j], card.quota[:, j]
    known = np.isfinite(busy) & (quota > 0)
    if card.holdings[j].kind != "vgpu" or not known.any():
        return np.asarray(card.used[:, j])
    # A time share far beyond the quota shows that this layer goes by something else.
    by_time = float(np.quantile(busy[known], 0.95)) <= _THROTTLES_BY_TIME * float(np.median(quota[known]))
    return busy if by_time else np.asarray(card.used[:, j])


def _card_series(card: Card, peaks: _Peaks, pipes: list[Series]) -> dict[str, Series]:
    pcie = np.fmax(card.of_card("pcie_rx_bytes_per_second"), card.of_card("pcie_tx_bytes_per_second"))
    nvlink = np.fmax(card.of_card("nvlink_rx_bytes_per_second"), card.of_card("nvlink_tx_bytes_per_second"))
    return {
        "sm": card.of_card("sm_active_ratio"),
        "engine": card.of_card("engine_active_ratio"),
        "dram": card.of_card("dram_active_ratio"),
        "busy": card.of_card("busy_ratio"),
        "transfer": np.fmax(pcie / peaks.pcie, nvlink / peaks.nvlink),
        "heat": np.fmax(card.of_card("throttle_thermal_ratio"), card.of_card("throttle_brake_ratio")),
        "power_cap": card.of_card("throttle_power_ratio"),
        "clock": card.of_card("sm_clock_hertz") / peaks.clock,
        "pipe": np.asarray(np.fmax.reduce(pipes)),
    }


def _memory_series(card: Card, j: int, peaks: _Peaks, killed: Mapping[str, list[int]]) -> dict[str, Series]:
    """Return memory beside what it may be, the server's pool, and where work was turned away or killed for memory."""
    limit = card.of_slices("memory_quota_bytes")[:, j]
    limit = np.fmin(np.where(limit > 0, limit, np.nan), peaks.memory)
    pressed = (np.nan_to_num(card.of_slices("preemption_count")[:, j]) > 0).astype(np.float64)
    pressed[[at for at in killed.get(card.holdings[j].pod, ()) if at < len(pressed)]] = 1.0
    used = card.of_slices("memory_used_bytes")[:, j]
    if card.holdings[j].kind == "whole":
        used = first_known([used, card.of_card("memory_used_bytes")])
    return {"memory": used / limit, "cache": card.of_slices("kv_cache_used_ratio")[:, j], "pressed": pressed}


def _peaks(card: Card, told: Mapping[str, float]) -> _Peaks:
    model = gpu_model(card.model) if card.model else None
    generation = told["pcie_generation"]
    if math.isnan(generation) and model is not None:
        generation = model.pcie_generation
    lane = _LANE_BYTES.get(int(generation), math.nan) if not math.isnan(generation) else math.nan
    lanes = told["pcie_lanes"] if told["pcie_lanes"] > 0 else _LANES
    nvlink, clock, memory = (
        _positive(told["nvlink_peak_bytes_per_second"]) if model is None else model.nvlink_bytes_per_second,
        _positive(told["max_sm_clock_hertz"]),
        _positive(told["memory_total_bytes"]),
    )
    if math.isnan(clock) and model is not None:
        clock = _positive(model.max_sm_clock_hertz)
    if math.isnan(memory):
        size = card.of_card("memory_used_bytes") + card.of_card("memory_free_bytes")
        memory = float(np.nanmedian(size)) if np.isfinite(size).any() else math.nan
    return _Peaks(lane * lanes, _positive(nvlink), clock, memory)


def _positive(value: float) -> float:
    return value if value > 0 else math.nan


def _killed(partition: Partition) -> dict[str, list[int]]:
    """Return pod -> intervals in which a container of it was killed for want of memory."""
    events = partition.events
    start_ms, step_ms = to_ms(partition.window.start), partition.interval_seconds * 1000
    found: dict[str, list[int]] = {}
    for time, pod in events.loc[events["code"] == "oom", ["time", "object"]].itertuples(index=False):
        found.setdefault(pod, []).append(int((to_ms(time) - start_ms) // step_ms))
    return found


def _known(pipes: list[Series]) -> int:
    return sum(not bool(np.isnan(pipe).all()) for pipe in pipes)


def on_grid(partition: Partition, name: str) -> Series:
    """Return a field of the node's rows on the grid, (T,)."""
    count = max(math.ceil(partition.window.seconds / partition.interval_seconds), 1)
    out = np.full(count, np.nan)
    rows = partition.node_rows
    if name in rows and len(rows):
        start = to_ms(partition.window.start)
        times = rows["time"].to_numpy("datetime64[ms]").astype(np.int64)
        bins = np.clip((times - start) // (partition.interval_seconds * 1000), 0, count - 1).astype(np.intp)
        out[bins] = rows[name].to_numpy(np.float64)
    return out
