"""The ledger against the truth of the simulated cluster: what each term misses, and what is unaccounted.

A day of the preset cluster, read from telemetry alone, beside its true ledger; some services keep a declared floor, so
that reserve is told from waste. Real logs and pods of the shared data (`gpu_logs`): what is missing is unobserved.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd

from analyzer.energy import attribute_energy
from analyzer.facts import FACT_COLUMNS
from analyzer.idle import IdleDetector
from analyzer.ledger import LEVEL_1, LEVEL_2, Ledger, conclude_ledger, measure_ledger
from analyzer.protocols import Context, Partition
from analyzer.settings import AnalyzeSettings
from benchmarks.colocation import shared_file
from benchmarks.figures import Figure, figure
from collector.clock import VirtualClock
from collector.collect import Collector
from collector.declarations import Owner, ResolvedWorkload, WorkloadDeclaration
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.window import Window
from sample_data.cluster import SimulatedCluster
from sample_data.cluster.accounts import true_ledger
from sample_data.cluster.presets import mixed
from sample_data.cluster.source import SimulatedSource
from sample_data.cluster.spec import STEP_SECONDS, ClusterSpec
from sample_data.cluster.truth import Truth
from tuner.service.analyse import partitions

SEEDS = (11, 12)  # nothing was chosen by these
HOURS = 24
_POINTS = 0.03
_UNACCOUNTED = 0.001
_FLOOR_OF_QUOTA = 0.6  # of the services of one tenant
_FLOOR_TENANT = "vision"
_PODS = Path("data") / "gpu_logs" / "genai_pods.parquet"
_POD_STEP = 57.0  # seconds between two samples of a pod


def run(seeds: Sequence[int] = SEEDS, hours: int = HOURS) -> list[Figure]:
    """Measure every seed."""
    figures: list[Figure] = []
    for seed in seeds:
        spec, truth, nodes = simulate(seed, hours)
        reserves = floors(spec)
        start = time.process_time()
        told = conclude_ledger([measure_ledger(node) for node in nodes], _context(nodes, reserves))
        spent = time.process_time() - start
        figures += against_truth(f"seed {seed}", told, truth, reserves)
        figures += _energy(f"seed {seed}", nodes)
        days = sum(n.gpu.groupby(["node", "gpu"]).ngroups for n in nodes) * hours / 24
        figures.append(figure(f"seed {seed}: CPU of the ledger, a card and day", spent / days * 1000, "ms"))
    return [*figures, *_real_pods()]


def simulate(seed: int, hours: int) -> tuple[ClusterSpec, Truth, list[Partition]]:
    """Run the preset as its owners set it up; return its truth and what telemetry told, a partition a node."""
    spec = mixed(seed)
    cluster, clock = SimulatedCluster(spec), VirtualClock(spec.start)
    with tempfile.TemporaryDirectory() as folder:
        store = EmbeddedStore(StoreSettings(path=Path(folder) / "store"))
        try:
            collector = Collector([SimulatedSource(cluster)], store, clock, float(STEP_SECONDS))
            for _ in range(hours * 60):
                cluster.step()
                clock.advance(STEP_SECONDS)
                collector.run_once(clock.now())
            window = Window(spec.start, cluster.now)
            return spec, cluster.truth, list(partitions(store, window, float(STEP_SECONDS), AnalyzeSettings()))
        finally:
            store.close()


def floors(spec: ClusterSpec) -> dict[Owner, float]:
    """Return what the services of one tenant keep on purpose, as a share of a card."""
    kept = [s for s in spec.slices if s.online and s.tenant == _FLOOR_TENANT]
    return {(spec.name, s.tenant, s.name): _FLOOR_OF_QUOTA * s.sm_quota for s in kept}


def _context(nodes: Sequence[Partition], reserves: Mapping[Owner, float]) -> Context:
    promises = {
        key: ResolvedWorkload(
            tenant=key[1],
            workload=key[2],
            declaration=WorkloadDeclaration(floor=floor),
            declared=True,
            origin={"floor": "config"},
        )
        for key, floor in reserves.items()
    }
    facts = pd.concat([node.facts for node in nodes]).drop_duplicates(ignore_index=True)
    return Context(
        window=nodes[0].window,
        interval_seconds=float(STEP_SECONDS),
        facts=facts,
        queues=pd.DataFrame(),
        forecasts=pd.DataFrame(),
        declarations=promises,
        simulated=True,
    )


def against_truth(name: str, told: Ledger, truth: Truth, reserves: Mapping[Owner, float]) -> list[Figure]:
    """Compare every term with the truth, in shares of the capacity of all cards."""
    capacity = float(told.fleet["capacity"])
    terms = {term: float(values.sum()) for term, values in true_ledger(truth, reserves).items()}
    lost = sum(m.lost_sm_seconds for m in truth.minutes)  # evictions threw finished work away
    terms["useful"] -= lost
    terms["overhead"] += lost
    figures = [
        figure(
            f"{name}: {term}, off the truth",
            abs(float(told.fleet[term]) - terms[term]) / capacity,
            "of capacity",
            peer=terms[term] / capacity,
            peer_name="truth",
            at_most=_POINTS,
        )
        for term in (*LEVEL_1[:-1], *LEVEL_2)
    ]
    unobserved, level_1 = float(told.fleet["unobserved"]), float(told.fleet["unaccounted_1"])
    worst = float(np.abs(told.gpus["unaccounted_1"] / told.gpus["capacity"]).max())
    return [
        *figures,
        figure(f"{name}: unobserved (outages of exporters)", unobserved / capacity, "of capacity"),
        figure(f"{name}: level 1 unaccounted", abs(level_1) / capacity, "of capacity", at_most=_UNACCOUNTED),
        figure(f"{name}: level 1 unaccounted, worst card", worst, "of capacity", at_most=_UNACCOUNTED),
        figure(f"{name}: level 2 unaccounted", float(told.fleet["unaccounted_2"]) / capacity, "of capacity"),
    ]


def _energy(name: str, nodes: Sequence[Partition]) -> list[Figure]:
    told = pd.concat([attribute_energy(node) for node in nodes])["joules"].sum()
    meter = sum(
        np.nansum(np.where(n.gpu["energy_joules"].isna(), n.gpu["power_watts"] * STEP_SECONDS, n.gpu["energy_joules"]))
        for n in nodes
    )
    return [figure(f"{name}: joules attributed, off the meters", abs(told / meter - 1), "ratio", at_most=1e-9)]


def _real_pods() -> list[Figure]:
    """Production pods, each on a card of its own: a sample that is missing is unobserved, and nobody's use grows."""
    path = shared_file(_PODS)
    if path is None:
        print(f"ledger: pods skipped, {_PODS} is not there (set TRIMTAB_SHARED to the shared folder)", file=sys.stderr)
        return []
    rows = pd.read_parquet(path).dropna(subset=["util_gpu_pct"]).astype({"pod": "str"})
    node = pods_partition(rows)
    told = conclude_ledger([measure_ledger(node)], _context([node], {}))
    detector = IdleDetector()
    found = detector.conclude(detector.measure(node), _context([node], {})).findings
    bare = [f for f in found if not f.evidence or f.coverage < AnalyzeSettings().coverage_floor]
    capacity = float(told.fleet["capacity"])
    intervals = node.window.seconds / _POD_STEP * rows["pod"].nunique()
    missing, used = 1 - len(rows) / intervals, float(rows["util_gpu_pct"].sum()) / 100 / intervals
    return [
        figure(
            f"pods: {name}, off the {what}",
            abs(float(told.fleet[name]) / capacity - wanted),
            "of capacity",
            peer=wanted,
            peer_name=what,
            at_most=_UNACCOUNTED,
        )
        for name, what, wanted in (("unobserved", "missing samples", missing), ("used", "sum of samples", used))
    ] + [
        figure(
            "pods: level 1 unaccounted",
            abs(float(told.fleet["unaccounted_1"])) / capacity,
            "ratio",
            at_most=_UNACCOUNTED,
        ),
        figure("pods: findings", len(found), "count"),
        figure("pods: findings without evidence, or on poor coverage", len(bare), "count", at_most=0),
    ]


def pods_partition(rows: pd.DataFrame) -> Partition:
    """Return pods as whole cards of one node: columns pod, ts, util_gpu_pct, mem_used_mib; one sample in 57 s."""
    times = pd.to_datetime(rows["ts"]).dt.tz_localize("UTC").dt.as_unit("ms")
    place = {"time": times, "cluster": "c", "node": "n", "gpu": rows["pod"]}
    holder = {"slice": "whole", "tenant": "pods", "workload": rows["pod"]}
    values = {"busy_ratio": rows["util_gpu_pct"] / 100, "memory_used_bytes": rows["mem_used_mib"] * 2.0**20}
    start, end = times.min().to_pydatetime(), times.max().to_pydatetime() + timedelta(seconds=_POD_STEP)
    facts = [("gpu", "c", "n", pod, "", "", "sm_count", "100", start, None, "measured") for pod in set(rows["pod"])]
    empty = pd.DataFrame()
    told = pd.DataFrame(facts, columns=list(FACT_COLUMNS))
    return Partition(
        cluster="c",
        node="n",
        window=Window(start, end),
        interval_seconds=_POD_STEP,
        gpu=pd.DataFrame({**place, **values}).reset_index(drop=True),
        slice=pd.DataFrame({**place, **holder}).reset_index(drop=True),
        node_rows=empty,
        facts=told.astype({"from": "datetime64[ms, UTC]", "to": "datetime64[ms, UTC]"}),
        events=empty,
        rejects=empty,
    )
