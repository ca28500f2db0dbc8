"""A week of a fleet: 1,000 cards with 3 slices each at one minute, all detectors of TT1xx, TT3xx, TT4xx and TT6xx.

Two fleets are measured, the second twice the first, and a thousand cards are told from what a card costs;
`python -m benchmarks.fleet_week 1000` measures the whole. Each fleet runs in a process of its own, so that its peak of
memory is its own. Rows are made up as they are read and the making is not counted; neither is the start of Python.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # CPU seconds then measure work, not threads that wait

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.facts import FACT_COLUMNS
from analyzer.protocols import Conclusion, Context, Detector, Partition
from analyzer.settings import AnalyzeSettings
from benchmarks.figures import Figure, calibration_seconds, figure
from collector.window import Window
from tuner.service.analyse import find, load_detectors

Floats = npt.NDArray[np.float64]

FAMILIES = ("TT1", "TT3", "TT4", "TT6")
SMALL, LARGE, WHOLE = 24, 48, 1000  # cards
_CARDS_OF_A_NODE, _SLICES_OF_A_CARD = 8, 3
_MINUTES = 7 * 1440
_BAR_SECONDS, _BAR_BYTES, _BAR_GROWTH = 360.0, 3 * 2.0**30, 2.3  # twice the fleet: twice the time, within 15 %
_CALIBRATED_SECONDS = 0.1
_START = datetime(2026, 1, 5, tzinfo=UTC)
_KINDS = ("mps", "timeslice", "vgpu", "mig")
_QUOTAS = (0.5, 0.3, 0.2)
_PROFILES, _PROFILE_SHARES = ("3g.40gb", "2g.20gb", "1g.10gb"), (60 / 132, 32 / 132, 16 / 132)
_CARD_BYTES = 80 * 2.0**30


class Fleet:
    """What `find` asks of a store, made up as it is read: every node from a seed of its own."""

    def __init__(self, cards: int, seed: int = 0) -> None:
        self.window = Window(_START, _START + timedelta(minutes=_MINUTES))
        self.cards, self.seed = cards, seed
        self.making_seconds = 0.0
        self._nodes = [f"node-{n:03d}" for n in range(math.ceil(cards / _CARDS_OF_A_NODE))]
        self._made: tuple[str, dict[str, pd.DataFrame]] = ("", {})
        self._facts = self._all_facts()

    def partitions(self, _window: Window) -> list[tuple[str, str]]:
        """Return all nodes."""
        return [("bench", node) for node in self._nodes]

    def facts(self, _window: Window, **_rest: object) -> pd.DataFrame:
        """Return what cards and slices are, and what pods asked for."""
        return self._facts

    def events(self, _window: Window, **_rest: object) -> pd.DataFrame:
        """Return an XID a node."""
        rows = [
            (
                _START + timedelta(minutes=100 + n),
                "gpu",
                "bench",
                node,
                _gpu(n, 0),
                "",
                "",
                "xid",
                "warning",
                "XID 31: -",
            )
            for n, node in enumerate(self._nodes)
        ]
        names = ["time", "kind", "cluster", "node", "gpu", "slice", "object", "code", "severity", "message"]
        return pd.DataFrame(rows, columns=names).astype({"time": "datetime64[ms, UTC]"})

    def rejects(self, _window: Window, **_rest: object) -> pd.DataFrame:
        """Return none."""
        names = ["time", "kind", "cluster", "node", "gpu", "slice", "object", "field", "reason", "count"]
        return pd.DataFrame({name: pd.Series(dtype="object") for name in names})

    def read(self, measurement: str, _window: Window, **rest: Any) -> pd.DataFrame:
        """Return a node's rows, or (counted by holder) who is there at all."""
        where: Mapping[str, str] | None = rest.get("where")
        if where is None:
            return self._holders() if measurement == "slice" else pd.DataFrame()
        start = time.process_time()
        if self._made[0] != where["node"]:
            self._made = (where["node"], self._make(where["node"]))
        frame = self._made[1].pop(measurement)
        self.making_seconds += time.process_time() - start
        return frame

    def _holders(self) -> pd.DataFrame:
        names = [_workload(n, s) for n in range(self.cards) for s in range(_SLICES_OF_A_CARD)]
        holders = {"tenant": [t for t, _ in names], "workload": [w for _, w in names]}
        return pd.DataFrame({"cluster": "bench", **holders, "busy_ratio": 1.0})

    def _all_facts(self) -> pd.DataFrame:
        rows: list[tuple[Any, ...]] = []

        def tell(kind: str, name: str, value: str, *place: str) -> None:
            node, gpu, part, thing = (*place, "", "", "", "")[:4]
            rows.append((kind, "bench", node, gpu, part, thing, name, value, _START, None, "measured"))

        for n in range(self.cards):
            node = self._nodes[n // _CARDS_OF_A_NODE]
            gpu, kind = _gpu(*divmod(n, _CARDS_OF_A_NODE)), _kind(n)
            tell("gpu", "model", "NVIDIA H100 80GB HBM3", node, gpu)
            tell("gpu", "sm_count", "132", node, gpu)
            tell("gpu", "memory_total_bytes", f"{_CARD_BYTES:.0f}", node, gpu)
            for s in range(_SLICES_OF_A_CARD):
                tenant, workload = _workload(n, s)
                part, pod = _slice(n, s), f"{tenant}/{workload}-0"
                told = {"kind": kind, "pod": pod, "tenant": tenant, "workload": workload, "service_class": "online"}
                told |= {"profile": _PROFILES[s]} if kind == "mig" else {}
                for name, value in told.items():
                    tell("slice", name, value, node, gpu, part)
                wish = {"cards": 1, "share": _QUOTAS[s], "tenant": tenant, "workload": workload}
                tell("pod", "request", json.dumps(wish), "", "", "", pod)
                tell("pod", "started", _START.isoformat(), "", "", "", pod)
        frame = pd.DataFrame(rows, columns=list(FACT_COLUMNS))
        return frame.astype({"from": "datetime64[ms, UTC]", "to": "datetime64[ms, UTC]"})

    def _make(self, node: str) -> dict[str, pd.DataFrame]:
        first = self._nodes.index(node) * _CARDS_OF_A_NODE
        numbers = range(first, min(first + _CARDS_OF_A_NODE, self.cards))
        cards, slices = zip(*(_card_rows(n, node, self.seed) for n in numbers), strict=True)
        times = _times()
        rng = np.random.default_rng([self.seed, first, 9])
        host = {"time": times, "cluster": "bench", "node": node, "cpu_busy_ratio": rng.uniform(0.2, 0.5, _MINUTES)}
        return {
            "gpu": pd.concat(cards, ignore_index=True),
            "slice": pd.concat([part for parts in slices for part in parts], ignore_index=True),
            "node": pd.DataFrame(host),
        }


def _gpu(node: int, place: int) -> str:
    return f"GPU-{node:04d}-{place}"


def _kind(card: int) -> str:
    return _KINDS[card % len(_KINDS)]


def _workload(card: int, s: int) -> tuple[str, str]:
    return f"team-{(card + s) % 20}", f"app-{card}-{s}"


def _slice(card: int, s: int) -> str:
    tenant, workload = _workload(card, s)
    return f"gi{s + 1}" if _kind(card) == "mig" else f"{tenant}/{workload}-0/main/0"


def _times() -> pd.DatetimeIndex:
    return pd.date_range(_START, periods=_MINUTES, freq="min").as_unit("ms")


def _card_rows(card: int, node: str, seed: int) -> tuple[pd.DataFrame, list[pd.DataFrame]]:
    """Three services or jobs with daily rhythms and bursts; on every third card the last one slows the first."""
    rng = np.random.default_rng([seed, card])
    minute = np.arange(_MINUTES)
    gpu, kind, times = _gpu(*divmod(card, _CARDS_OF_A_NODE)), _kind(card), _times()
    shares = _PROFILE_SHARES if kind == "mig" else _QUOTAS
    active = []
    for share in shares:
        day = 0.5 + 0.3 * np.sin(2 * np.pi * (minute / 1440 + rng.random()))
        bursts = np.repeat(rng.random(_MINUTES // 30) < 0.4, 30).astype(np.float64)
        load = day if rng.random() < 0.5 else bursts
        active.append(share * np.clip(load * rng.uniform(0.4, 1.0) + rng.normal(0, 0.03, _MINUTES), 0, 1))
    slow = 0.25 * active[2] / shares[2] if card % 3 == 0 and kind != "mig" else np.zeros(_MINUTES)
    total = np.clip(np.sum(active, axis=0), 0, 1)
    parts = []
    for s, share in enumerate(shares):
        tenant, workload = _workload(card, s)
        table: dict[str, Any] = {
            "time": times,
            "cluster": "bench",
            "node": node,
            "gpu": gpu,
            "slice": _slice(card, s),
            "tenant": tenant,
            "workload": workload,
            "sm_quota_ratio": share,
            "memory_quota_bytes": share * _CARD_BYTES,
            "memory_used_bytes": share * _CARD_BYTES * (0.5 + 0.2 * rng.random(_MINUTES)),
        }
        if kind == "mig":
            table |= _counters(active[s], rng)
        else:
            table["busy_ratio"] = np.clip(active[s] * 1.5, 0, 1)
        hurt = np.exp(rng.normal(0, 0.03, _MINUTES) + (slow if s == 0 else 0.0))
        if s < 2:
            rate = 20 * active[s] / share
            table |= {"requests_per_second": rate, "within_objective_per_second": 0.99 * rate}
            table |= {"latency_p50_seconds": 0.05 * hurt, "latency_p99_seconds": 0.2 * hurt}
        table |= {"step_seconds": 0.04 * hurt, "steps_count": 60 * active[s] / share / (0.04 * hurt) / 20}
        parts.append(pd.DataFrame(table))
    watts = 90 + 500 * total + rng.normal(0, 5, _MINUTES)
    own = {
        "time": times,
        "cluster": "bench",
        "node": node,
        "gpu": gpu,
        "busy_ratio": np.clip(total * 1.4, 0, 1),
        **_counters(total, rng),
        "memory_used_bytes": 0.6 * _CARD_BYTES,
        "memory_free_bytes": 0.4 * _CARD_BYTES,
        "power_watts": watts,
        "energy_joules": watts * 60,
        "temperature_celsius": 40 + 30 * total + rng.normal(0, 1, _MINUTES),
        "sm_clock_hertz": 1.755e9 * (1 + rng.normal(0, 0.002, _MINUTES)),
        "pcie_rx_bytes_per_second": 1e9 * total,
        "pcie_tx_bytes_per_second": 5e8 * total,
        "throttle_power_ratio": 0.0,
        "throttle_thermal_ratio": 0.0,
        "ecc_corrected_count": 0.0,
        "ecc_uncorrected_count": 0.0,
        "rows_remapped_corrected_count": 0.0,
        "rows_remapped_uncorrected_count": 0.0,
        "pcie_replay_count": 0.0,
    }
    return pd.DataFrame(own), parts


def _counters(active: Floats, rng: np.random.Generator) -> dict[str, Floats]:
    noise = np.exp(rng.normal(0, 0.05, _MINUTES))
    return {
        "engine_active_ratio": np.clip(1.1 * active, 0, 1),
        "sm_active_ratio": active,
        "sm_occupancy_ratio": 0.4 * active,
        "tensor_active_ratio": np.clip(0.5 * active * noise, 0, 1),
        "fp16_active_ratio": 0.1 * active,
        "dram_active_ratio": np.clip(0.6 * active / noise, 0, 1),
    }


class Timed:
    """A detector whose CPU seconds are added up by its name."""

    def __init__(self, name: str, detector: Detector, seconds: dict[str, float]) -> None:
        self._name, self._detector, self._seconds = name, detector, seconds
        self.codes, self.needs = detector.codes, detector.needs
        self.reads: tuple[str, ...] = getattr(detector, "reads", ())

    def measure(self, partition: Partition) -> pd.DataFrame:
        """As the detector does."""
        start = time.process_time()
        try:
            return self._detector.measure(partition)
        finally:
            self._seconds[self._name] += time.process_time() - start

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        """As the detector does."""
        start = time.process_time()
        try:
            return self._detector.conclude(measures, context)
        finally:
            self._seconds[f"{self._name} (conclude)"] += time.process_time() - start


def measure(cards: int) -> dict[str, Any]:
    """Analyse a week of `cards` cards in this process: CPU seconds in all and by detector, bytes at the peak."""
    fleet = Fleet(cards)
    settings = AnalyzeSettings(select=FAMILIES)
    seconds: dict[str, float] = defaultdict(float)
    detectors = {name: Timed(name, detector, seconds) for name, detector in load_detectors(settings).items()}
    start = time.process_time()
    options = {"interval_seconds": 60.0, "settings": settings, "detectors": detectors}
    findings = find(fleet, fleet.window, pd.DataFrame(), **options)  # type: ignore[arg-type]
    total = time.process_time() - start - fleet.making_seconds
    seconds["reading, joining"] = total - sum(seconds.values())
    return {
        "cards": cards,
        "seconds": total,
        "by_detector": dict(seconds),
        "findings": len(findings),
        "pairs": sum(f.code == "TT101" for f in findings),
        "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
        "calibration": calibration_seconds(),
    }


def run(sizes: Sequence[int] = (SMALL, LARGE), whole: int = WHOLE) -> list[Figure]:
    """Measure two fleets, each in a process of its own, and tell a thousand cards from them."""
    small, large = (_apart(cards) for cards in sizes)
    scale = _CALIBRATED_SECONDS / large["calibration"]
    a_card = (large["seconds"] - small["seconds"]) / (large["cards"] - small["cards"])
    fixed = large["seconds"] - a_card * large["cards"]
    growth = (large["bytes"] - small["bytes"]) / (large["cards"] - small["cards"])
    figures = [
        figure(f"a week of a card and its 6 pairs, {name}", value / large["cards"] * 1000, "CPU ms")
        for name, value in sorted(large["by_detector"].items(), key=lambda item: -item[1])
    ]
    bytes_whole = large["bytes"] + growth * (whole - large["cards"])
    told = f"a week of {whole} cards, from {large['cards']}"
    seconds = (fixed + a_card * whole) * scale
    return [
        *figures,
        figure(f"{told}, CPU at the calibration's speed", seconds, "s", at_most=_BAR_SECONDS),
        figure(f"{told}, peak of memory", bytes_whole, "bytes", at_most=_BAR_BYTES),
        figure(
            f"{large['cards']} cards against {small['cards']}, CPU",
            large["seconds"],
            "s",
            peer=small["seconds"],
            peer_name=f"{small['cards']} cards",
            at_most=_BAR_GROWTH * small["seconds"],
        ),
    ]


def _apart(cards: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.fleet_week", str(cards)]
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=alone)  # noqa: S603  ours
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(arguments: Iterable[str]) -> None:
    """Print what one fleet costs, as JSON."""
    print(json.dumps(measure(int(next(iter(arguments)))), indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
