"""The demo's bars, three seeds: useful work won, promises kept, the estimate against the truth, who hurts whom."""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path

import numpy as np

from analyzer.findings import Finding, Role
from benchmarks.figures import Figure, figure
from dashboard.demo import DemoResult, RunResult, run_demo
from sample_data.cluster import SimulatedCluster
from sample_data.cluster.pairs import Pair
from sample_data.cluster.presets import mixed

SEEDS = (1, 2, 3)
HOURS = 48
_POINTS = 0.05
_REAL, _INNOCENT = 0.15, 0.02  # slow-down at full swing


def run() -> list[Figure]:
    """Run the demo with three seeds."""
    figures: list[Figure] = []
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            watch = _Watch()
            result = run_demo(Path(folder) / "demo", seed=seed, hours=HOURS, progress=watch)
            whole = watch.seconds()
        figures += [*_gain(seed, result), *_estimates(seed, result), *_pairs(seed, result.before)]
        figures.append(figure(f"seed {seed}: two simulated days", watch.passed, "s", at_most=120))
        figures.append(figure(f"seed {seed}: the same with the last analyses of both runs", whole, "s"))
    return figures


class _Watch:
    """Stops the time at which the simulated days have passed."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self.passed = math.nan

    def seconds(self) -> float:
        return time.monotonic() - self._start

    def __call__(self, _minutes: int, _of: int) -> None:
        self.passed = self.seconds()


def _gain(seed: int, result: DemoResult) -> list[Figure]:
    before, after, bound = result.before.score, result.after.score, result.bound.useful_ratio
    start = before.useful_ratio
    wanted = 1.5 * start if bound >= 2 * start else start + 0.6 * (bound - start)
    fewer = [n for n in before.kept if after.kept_minutes[n] < before.kept_minutes[n]]
    return [
        figure(f"seed {seed}: useful before", start, "ratio", at_least=0.30, at_most=0.40),
        figure(f"seed {seed}: upper bound", bound, "ratio"),
        figure(
            f"seed {seed}: useful after",
            after.useful_ratio,
            "ratio",
            peer=start,
            peer_name="before",
            at_least=round(wanted, 4),
        ),
        figure(
            f"seed {seed}: services with fewer kept minutes {' '.join(fewer)}".strip(), len(fewer), "count", at_most=0
        ),
    ]


def _estimates(seed: int, result: DemoResult) -> list[Figure]:
    figures = []
    for name, one in (("before", result.before), ("after", result.after)):
        hours = one.ledger.hours
        estimate = (hours["useful"] / hours["capacity"]).to_numpy(np.float64)[: len(one.score.hourly_useful)]
        error = np.abs(estimate - np.array(one.score.hourly_useful)[: len(estimate)])
        share = float(np.mean(error <= _POINTS)) if len(error) else math.nan
        figures.append(figure(f"seed {seed}: hours within 5 points, {name}", share, "ratio", at_least=0.9))
    return figures


def _pairs(seed: int, before: RunResult) -> list[Figure]:
    cluster = SimulatedCluster(mixed(seed))
    for _ in range(HOURS * 60):
        cluster.step()
    verdicts = {_names(f): f.verdict.value for f in before.findings if f.code == "TT101"}
    truth = [p for p in cluster.truth.pairs if not math.isnan(p.effect)]
    real = [p for p in truth if p.planted and p.effect >= _REAL]
    innocent = [p for p in truth if p.effect < _INNOCENT or p.decoy]
    missed = [p for p in real if verdicts.get(_key(p)) != "holds"]
    accused = [p for p in innocent if verdicts.get(_key(p)) == "holds"]
    return [
        figure(f"seed {seed}: planted pairs of 15 % or more", len(real), "count", at_least=8),
        figure(f"seed {seed}: of them not found {_listed(missed)}".strip(), len(missed), "count", at_most=0),
        figure(
            f"seed {seed}: innocent pairs and decoys accused {_listed(accused)}".strip(),
            len(accused),
            "count",
            at_most=0,
        ),
    ]


def _names(finding: Finding) -> tuple[str, str, str]:
    victim, suspect = finding.subject(Role.VICTIM), finding.subject(Role.SUSPECT)
    return victim.workload, suspect.workload, victim.gpu


def _key(pair: Pair) -> tuple[str, str, str]:
    return pair.victim.partition("#")[0], pair.suspect.partition("#")[0], pair.gpu


def _listed(pairs: list[Pair]) -> str:
    return " ".join(f"{p.victim}<-{p.suspect}" for p in pairs)
