"""Several clusters in one installation: the same UUIDs, nodes and pods in two of them are never one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from analyzer.settings import AnalyzeSettings
from collector.clock import VirtualClock
from collector.collect import Collector
from collector.plugins import SourceContext
from collector.scrape import ScrapeSource
from collector.settings import SourceSettings, StoreSettings, TargetSettings
from collector.store import EmbeddedStore
from collector.window import Window
from dashboard.cli.collecting import make_sources
from dashboard.config import Settings, source_context
from sample_data.cluster import SimulatedCluster
from sample_data.cluster.presets import mixed
from tests.collector.test_assemble_slices import dcgm, held, kube
from tuner.service.analyse import load_detectors, run_analysis

START = datetime(2026, 1, 5, tzinfo=UTC)


def card(watts: int, pod: str) -> str:
    text = dcgm("DCGM_FI_DEV_POWER_USAGE", watts, **held(pod)) + dcgm("DCGM_FI_DEV_GPU_UTIL", 50, **held(pod))
    return text + dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", watts * 9)


def pages(watts: int, pod: str) -> dict[str, str]:
    owner = {f"ns/{pod}": {"label": f"{pod}-job"}}
    return {"http://cards/metrics": card(watts, pod), "http://kube/metrics": kube(owner)}


def test_rows_and_facts_of_two_clusters_with_the_same_names_stay_apart(tmp_path: Path) -> None:
    settings = Settings(source=(SourceSettings(), SourceSettings(cluster="west")))
    texts = {"default": pages(100, "a"), "west": pages(300, "b")}
    sources = [
        ScrapeSource(
            source.model_copy(update={"name": url, "targets": (TargetSettings(url=url, node="node-a"),)}),
            source_context(source, settings, 60.0),
            fetch=lambda target, said=texts[source.cluster or "default"]: said[target.url],
        )
        for source in settings.source
        for url in pages(0, "x")
    ]
    store = EmbeddedStore(StoreSettings(path=tmp_path / "store"))
    collector = Collector(sources, store, VirtualClock(START), 60.0, state_path=tmp_path / "state.json")
    for minute in range(2):
        collector.run_once(START + timedelta(minutes=minute))
    window = Window(START, START + timedelta(minutes=5))
    rows = store.read("gpu", window)
    assert {(r.cluster, r.gpu): r.power_watts for r in rows.itertuples()} == {
        ("default", "GPU-0"): 100.0,
        ("west", "GPU-0"): 300.0,
    }
    slices = store.latest("slice", at=window.end, lookback=timedelta(hours=1))
    assert set(zip(slices["cluster"], slices["workload"], strict=True)) == {("default", "a-job"), ("west", "b-job")}
    facts = store.facts(window, names=["workload"])
    assert set(zip(facts["cluster"], facts["value"], strict=True)) == {("default", "a-job"), ("west", "b-job")}
    assert store.events(window).empty  # neither a reset of a counter nor a card that moved
    assert store.partitions(window) == [("default", "node-a"), ("west", "node-a")]
    store.close()


def test_sources_of_one_name_in_two_clusters_keep_what_they_know_apart_over_a_restart(tmp_path: Path) -> None:
    texts = {"east": 100, "west": 5000}

    def started() -> Collector:
        sources = [
            ScrapeSource(
                SourceSettings(targets=(TargetSettings(url="http://cards/metrics", node="node-a"),)),
                SourceContext(cluster=name),
                fetch=lambda _, name=name: dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", texts[name] * 1000),
            )
            for name in texts
        ]
        return Collector(sources, store, VirtualClock(START), 60.0, state_path=tmp_path / "state.json")

    store = EmbeddedStore(StoreSettings(path=tmp_path / "store"))
    started().run_once(START)
    texts.update(east=130, west=5007)
    started().run_once(START + timedelta(minutes=1))
    rows = store.latest("gpu", at=START + timedelta(minutes=2), lookback=timedelta(hours=1))
    store.close()
    assert dict(zip(rows["cluster"], rows["energy_joules"], strict=True)) == {"east": 30.0, "west": 7.0}


def test_the_configuration_gives_each_source_its_cluster() -> None:
    urls = ("http://one:9400/metrics", "http://two:9400/metrics", "http://three:9400/metrics")
    tables = [
        SourceSettings(targets=(TargetSettings(url=url),), cluster=c)
        for url, c in zip(urls, ("", "west", "west"), strict=True)
    ]
    made = make_sources(tables, Settings(source=tuple(tables)), 30.0)
    contexts = [source.assembler.context for source in made]  # type: ignore[attr-defined]
    assert [context.cluster for context in contexts] == ["default", "west", "west"]
    assert contexts[1] == contexts[2] != contexts[0]  # those of one cluster are read together


def findings(folder: Path, clusters: Sequence[tuple[str, int]]) -> set[tuple[str, str, str]]:
    """Analyse half an hour of simulated clusters in one store; return code, cluster and subject of each finding."""
    store = EmbeddedStore(StoreSettings(path=folder))
    settings = AnalyzeSettings(select=("TT3", "TT2", "TT6"))
    for name, seed in clusters:
        cluster = SimulatedCluster(dataclasses.replace(mixed(seed), name=name))
        for _ in range(30):
            cluster.step()
            store.write(cluster.frames())
    window = Window(cluster.spec.start, cluster.now)
    found = run_analysis(
        store, window, interval_seconds=60.0, settings=settings, detectors=load_detectors(settings)
    ).findings
    store.close()
    return {
        (f.code, s.cluster, f"{s.node}/{s.gpu}/{s.slice}/{s.tenant}/{s.workload}") for f in found for s in f.subjects
    }


def test_findings_of_two_clusters_together_are_those_of_each_alone(tmp_path: Path) -> None:
    east = findings(tmp_path / "east", [("east", 1)])
    west = findings(tmp_path / "west", [("west", 2)])
    both = findings(tmp_path / "both", [("east", 1), ("west", 2)])
    assert {(code, subject) for code, _, subject in east} & {(code, subject) for code, _, subject in west}
    assert both == east | west


def test_a_context_of_its_own_cluster_is_another_context() -> None:
    settings = Settings()
    assert source_context(SourceSettings(), settings, 60.0) == SourceContext(cluster="default")
    assert source_context(SourceSettings(cluster="west"), settings, 60.0) == SourceContext(cluster="west")
