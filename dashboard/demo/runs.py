"""The two runs behind the demo: static beside tuned, same seed, same arrivals."""

from __future__ import annotations

import gc
import multiprocessing
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from analyzer.findings import Finding
from analyzer.ledger import Ledger
from analyzer.protocols import Partition
from analyzer.settings import AnalyzeSettings
from collector.clock import VirtualClock
from collector.collect import Collector
from collector.plugins import SourceContext
from collector.protocols import Source, Store
from collector.scrape import ScrapeSource
from collector.settings import SourceSettings, StoreSettings
from collector.store import EmbeddedStore
from collector.window import Window
from dashboard.config_docs import toml_value
from sample_data.cluster.backend import SimulatorBackend
from sample_data.cluster.bound import UpperBound, upper_bound
from sample_data.cluster.cluster import SimulatedCluster
from sample_data.cluster.presets import mixed, trainer_mapping
from sample_data.cluster.score import Score, score
from sample_data.cluster.source import SimulatedSource
from sample_data.cluster.spec import STEP_SECONDS, ClusterSpec
from tuner.model import Mode
from tuner.record import ChangeState
from tuner.service.analyse import Analysis, load_detectors, run_analysis
from tuner.service.cycle import Tuner, TunerParts
from tuner.service.spread import MapNodes
from tuner.settings import StateSettings, TunerSettings
from tuner.state import open_state
from tuner.state.plans import count_states

T = TypeVar("T")
Progress = Callable[[int, int], None]  # minutes done, minutes in all

# At a 60-s step a full cycle every ten minutes is enough, with the fast path half-way between.
_CYCLE_SECONDS = 600.0
# Two days make millions of small objects, hardly one of them in a ring: looking for rings is not worth it so often.
_GARBAGE_AFTER = 50_000
_EXPORTERS = SourceSettings(kind="scrape", name="simulated exporters")


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run: its score from the truth, and what telemetry alone says of it."""

    score: Score
    findings: tuple[Finding, ...]
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Both runs, the bound, and where everything lies."""

    seed: int
    start: datetime
    end: datetime
    before: RunResult
    after: RunResult
    bound: UpperBound
    analysis: Analysis  # of the tuned run
    changes: dict[ChangeState, int]
    folder: Path
    config: Path


def run_demo(folder: Path, *, seed: int = 1, hours: float = 48.0, progress: Progress | None = None) -> DemoResult:
    """Run both, each on a core of its own.

    Args:
        folder: where the stores, the state and a configuration for all other commands go; emptied first.
        seed: of the simulated cluster.
        hours: simulated time.
        progress: called as the tuned run moves on.
    """
    _empty(folder)
    minutes = round(hours * 60)
    gc.set_threshold(_GARBAGE_AFTER)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        static: Future[tuple[RunResult, UpperBound]] = pool.submit(static_run, folder / "static", seed, minutes)
        after, analysis, changes = tuned_run(folder, seed, minutes, progress, partial(_both_cores, pool, static))
        before, bound = static.result()
    spec = mixed(seed)
    return DemoResult(
        seed=seed,
        start=spec.start,
        end=spec.start + timedelta(minutes=minutes),
        before=before,
        after=after,
        bound=bound,
        analysis=analysis,
        changes=changes,
        folder=folder,
        config=_write_config(folder, spec),
    )


def _both_cores(
    pool: ProcessPoolExecutor, busy: Future[Any], measure: Callable[[Partition], T], nodes: Iterable[Partition]
) -> list[T]:
    """Measure nodes here and, once the static run is over, every second one in its process."""
    if not busy.done():
        return [measure(node) for node in nodes]
    pending: list[Future[T] | Partition] = [
        pool.submit(measure, node) if number % 2 else node for number, node in enumerate(nodes)
    ]
    here = [measure(one) if isinstance(one, Partition) else one for one in pending]
    return [one.result() if isinstance(one, Future) else one for one in here]


def _empty(folder: Path) -> None:
    marker = folder / ".trimtab-demo"
    if folder.exists() and any(folder.iterdir()) and not marker.exists():
        raise FileExistsError(f"{folder} is not empty and no demo made it; name another folder with --folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    marker.touch()


def static_run(folder: Path, seed: int, minutes: int) -> tuple[RunResult, UpperBound]:
    """Run the cluster as its owners set it up; rows are handed over as frames."""
    spec = mixed(seed)
    cluster, clock = SimulatedCluster(spec), VirtualClock(spec.start)
    store = EmbeddedStore(StoreSettings(path=folder))
    try:
        collector = Collector([SimulatedSource(cluster)], store, clock, float(STEP_SECONDS))
        for _ in range(minutes):
            _advance(cluster, clock, collector)
        result, _ = _result(cluster, store)
    finally:
        store.close()
    return result, upper_bound(spec, minutes)


def tuned_run(
    folder: Path, seed: int, minutes: int, progress: Progress | None = None, map_nodes: MapNodes | None = None
) -> tuple[RunResult, Analysis, dict[ChangeState, int]]:
    """Run the same cluster with the tuner in closed loop; telemetry crosses the text formats of the exporters."""
    spec = mixed(seed)
    cluster, clock = SimulatedCluster(spec), VirtualClock(spec.start)
    store = EmbeddedStore(StoreSettings(path=folder / "store"))
    state_settings = StateSettings(path=folder / "state.db", kill_switch=folder / "PAUSED")
    state = open_state(state_settings, durable=False)
    settings = demo_tuner_settings()
    try:
        collector = Collector([text_source(cluster)], store, clock, float(STEP_SECONDS))
        tuner = Tuner(
            TunerParts(
                store=store,
                backend=SimulatorBackend(cluster),
                state=state,
                clock=clock,
                settings=settings,
                state_settings=state_settings,
                interval_seconds=float(STEP_SECONDS),
                analyze=AnalyzeSettings(window="1d"),
                detectors=load_detectors(AnalyzeSettings(), ("contention", "forecast")),
                map_nodes=map_nodes,
            )
        )
        with closing(tuner):
            every = round(settings.cycle_seconds / STEP_SECONDS)
            for minute in range(minutes):
                _advance(cluster, clock, collector)
                if minute % every == every - 1:
                    tuner.run_once(clock.now())
                elif minute % every == every // 2 - 1:
                    tuner.fast_once(clock.now())
                if progress is not None:
                    progress(minute + 1, minutes)
            result, analysis = _result(cluster, store, map_nodes)
            tuner.remember(analysis.findings, clock.now())
        return result, analysis, count_states(state)
    finally:
        state.close()
        store.close()


def text_source(cluster: SimulatedCluster) -> Source:
    """Return the ordinary scrape source, pointed at the simulated exporters."""
    context = SourceContext(
        cluster=cluster.spec.name,
        interval_seconds=float(STEP_SECONDS),
        mappings=trainer_mapping(),
        simulated=True,
    )
    return ScrapeSource(_EXPORTERS, context, fetch=cluster.fetch, discover=cluster.targets)


def demo_tuner_settings() -> TunerSettings:
    """Return the settings of the closed loop: automatic, and armed to restart offline work."""
    return TunerSettings(mode=Mode.AUTO, auto_restart_offline=True, cycle_seconds=_CYCLE_SECONDS)


def _advance(cluster: SimulatedCluster, clock: VirtualClock, collector: Collector) -> None:
    cluster.step()
    clock.advance(STEP_SECONDS)
    collector.run_once(clock.now())


def _result(cluster: SimulatedCluster, store: Store, map_nodes: MapNodes | None = None) -> tuple[RunResult, Analysis]:
    analysis = run_analysis(
        store,
        Window(cluster.spec.start, cluster.now),
        interval_seconds=float(STEP_SECONDS),
        settings=AnalyzeSettings(),
        detectors=load_detectors(AnalyzeSettings()),
        map_nodes=map_nodes,
    )
    result = RunResult(score(cluster.truth, cluster.spec), analysis.findings, analysis.ledger)
    return result, analysis


def _write_config(folder: Path, spec: ClusterSpec) -> Path:
    """Write a configuration with which every other command looks at the demo."""
    path = folder / "trimtab.toml"
    path.write_text(
        f"""# Looks at the demo: trimtab --config {toml_value(path)} dashboard
[cluster]
name = {toml_value(spec.name)}
interval_seconds = {STEP_SECONDS}

[store]
path = {_path(folder / "store")}

[state]
path = {_path(folder / "state.db")}
kill_switch = {_path(folder / "PAUSED")}

[tuner]
mode = "auto"
auto_restart_offline = true

[report]
folder = {_path(folder / "reports")}

[dashboard]
port = 8501
""",
        encoding="utf-8",
    )
    return path


def _path(path: Path) -> str:
    return toml_value(path.resolve())
