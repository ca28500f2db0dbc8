"""The runner of the analyses: the same answer however nodes are spread, selection of codes, and its document."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pandas as pd
import pytest

from analyzer.findings import SCHEMA_VERSION, Effect, Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.protocols import Conclusion, Context, Detector, Needs, Partition, Withheld
from analyzer.settings import AnalyzeSettings
from collector.batch import Batch, Event, Fact, Reject, Severity, Subject, make_rows
from collector.declarations import WorkloadDeclaration
from collector.store import FrameStore
from collector.window import Window
from sample_data.cluster import SimulatedCluster
from sample_data.cluster.presets import mixed
from tests.tuner.fakes import slice_target
from tests.tuner.service_rows import at, slice_rows
from tuner.service.analyse import Analysis, NodeMeasures, load_detectors, partitions, run_analysis

FAMILIES = ("fragmentation", "idle", "health")
ALL = AnalyzeSettings()


@pytest.fixture(scope="module")
def cluster() -> SimulatedCluster:
    return SimulatedCluster(mixed(1))


@pytest.fixture(scope="module")
def store(cluster: SimulatedCluster) -> FrameStore:
    """A quarter of an hour of the preset, as rows in memory."""
    batches = []
    for _ in range(15):
        cluster.step()
        batches.append(cluster.frames())
    return FrameStore.of_batches(batches)


@pytest.fixture(scope="module")
def window(store: FrameStore) -> Window:
    span = store.span("slice")
    assert span is not None
    return span


@pytest.fixture(scope="module")
def plain(store: FrameStore, window: Window) -> Analysis:
    return analyse(store, window)


def analyse(store: FrameStore, window: Window, settings: AnalyzeSettings = ALL, **rest: object) -> Analysis:
    detectors = load_detectors(settings, FAMILIES)
    return run_analysis(store, window, interval_seconds=60.0, settings=settings, detectors=detectors, **rest)  # type: ignore[arg-type]  # keywords of run_analysis


def test_a_simulated_fleet_is_measured_whole_and_says_so(plain: Analysis, cluster: SimulatedCluster) -> None:
    assert plain.simulated
    assert {f.simulated for f in plain.findings} == {True}
    assert (plain.census.nodes, plain.census.cards) == (4, 16)
    assert {f.code for f in plain.findings} >= {"TT221"}  # a card that is cut so that memory slices are lost
    assert plain.declarations[cluster.spec.name, "vision", "segment-train"].declaration.service_class == "offline"
    assert plain.declarations[cluster.spec.name, "language", "chat"].declaration.objective is not None
    document = plain.to_json()
    own = {"free_now", "quota_moves", "slices", "hollow_busy"}
    assert set(document) == {"schema_version", "simulated", "findings", "census", "ledger", "waiting", *own}
    assert document["simulated"] is True
    assert document["schema_version"] == SCHEMA_VERSION
    assert [f["id"] for f in document["findings"]] == [f.id for f in plain.findings]


def test_findings_come_worst_first(plain: Analysis) -> None:
    order = [Verdict.HOLDS, Verdict.SUSPECTED, Verdict.CANNOT_TELL, Verdict.NO_EFFECT]
    ranks = [(order.index(f.verdict), f.code) for f in plain.findings]
    assert ranks == sorted(ranks)


def backwards(measure: Callable[[Partition], NodeMeasures], nodes: Iterable[Partition]) -> list[NodeMeasures]:
    return [measure(node) for node in reversed(list(nodes))]


def test_the_order_of_nodes_changes_nothing(plain: Analysis, store: FrameStore, window: Window) -> None:
    other = analyse(store, window, map_nodes=backwards)
    assert other.to_json() == plain.to_json()
    assert other.withheld == plain.withheld


def test_select_and_ignore_decide_which_codes_are_looked_for(
    plain: Analysis, store: FrameStore, window: Window
) -> None:
    chosen = analyse(store, window, AnalyzeSettings(select=("TT2", "TT3"), ignore=("TT3", "TT221")))
    codes = set(chosen.to_json()["census"]["codes"])
    assert codes
    assert all(code.startswith("TT2") for code in codes)
    assert "TT221" not in codes
    assert {f.code for f in chosen.findings} <= codes
    assert {w.code for w in chosen.withheld} <= codes
    assert [f for f in plain.findings if f.code in codes] == list(chosen.findings)


def test_detectors_are_loaded_by_what_they_can_say() -> None:
    assert set(load_detectors(ALL)) >= {"contention", "forecast", *FAMILIES}
    chosen = load_detectors(AnalyzeSettings(select=("TT2",)))
    assert "fragmentation" in chosen
    assert all(any(code.startswith("TT2") for code in detector.codes) for detector in chosen.values())
    assert set(load_detectors(ALL, ("idle",))) == {"idle"}
    assert load_detectors(AnalyzeSettings(ignore=("TT",))) == {}


@pytest.mark.parametrize("chosen", [AnalyzeSettings(select=("TT111",)), AnalyzeSettings(ignore=("TT10",))])
def test_what_a_detector_rests_on_is_measured_though_it_is_not_told(
    store: FrameStore, window: Window, chosen: AnalyzeSettings
) -> None:
    detectors = load_detectors(chosen)
    assert {"colocation", "contention"} <= set(detectors)
    assert set(load_detectors(ALL, ("colocation",))) == {"colocation", "contention"}
    told = run_analysis(store, window, interval_seconds=60.0, settings=chosen, detectors=detectors)
    codes = {f.code for f in told.findings} | {w.code for w in told.withheld} | set(told.census.to_json()["codes"])
    assert "TT111" in codes
    assert "TT101" not in codes


def test_an_empty_store_gives_an_empty_answer(window: Window) -> None:
    empty = analyse(FrameStore.of_batches([]), window)
    assert (empty.findings, empty.withheld, empty.declarations, empty.simulated) == ((), (), {}, False)
    assert (empty.census.nodes, empty.census.cards, empty.census.slices) == (0, 0, 0)


def test_a_partition_holds_its_node_and_what_belongs_to_none() -> None:
    def about(node: str, name: str) -> Batch:
        subject = Subject("gpu" if node else "workload", "c", node, "GPU-0" if node else "", object=name)
        return Batch(
            facts=[Fact(subject, "model", name, at(0))],
            events=[Event(subject, "xid", Severity.INFO, name, at(0))],
            rejects=[Reject(subject, "busy_ratio", name, at(0))],
        )

    target, far = slice_target("a"), slice_target("a", node="n1")
    store = FrameStore.of_batches(
        [
            *(about(node, name) for node, name in (("n0", "here"), ("n1", "there"), ("", "nowhere"))),
            slice_rows(target, range(3), busy_ratio=0.1),
            slice_rows(far, range(3), busy_ratio=0.2),
            slice_rows(replace(target, cluster="d"), range(3), busy_ratio=0.3),
        ]
    )
    parts = list(partitions(store, Window(at(0), at(3)), 60.0, AnalyzeSettings(fdr=0.2)))
    assert [(p.cluster, p.node) for p in parts] == [("c", "n0"), ("c", "n1"), ("d", "n0")]
    assert parts[0].settings["fdr"] == 0.2
    assert [p.slice["busy_ratio"].tolist() for p in parts] == [[0.1] * 3, [0.2] * 3, [0.3] * 3]
    for frame, column in ((parts[0].facts, "value"), (parts[0].events, "message"), (parts[0].rejects, "reason")):
        assert sorted(frame[column]) == ["here", "nowhere"]
    assert parts[2].facts.empty


class Telling:
    """Says what it was told, and withholds a verdict on each node."""

    codes = ("TT101", "TT301")

    def __init__(self, *findings: Finding) -> None:
        self.needs: Needs = {}
        self.findings = list(findings)
        self.context: Context | None = None

    def measure(self, partition: Partition) -> pd.DataFrame:
        return partition.slice.head(1)

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        self.context = context
        nodes = measures[["cluster", "node", "gpu", "slice"]].itertuples(index=False)
        return Conclusion(self.findings, [Withheld("TT101", *row, reason="too short") for row in nodes])


class Reading(Telling):
    """Rests on what others found."""

    reads = ("TT101",)


def claim(code: str, name: str, effect: float | None, verdict: Verdict = Verdict.HOLDS) -> Finding:
    return make_finding(
        code,
        verdict,
        (SubjectRef(Role.SUBJECT, "c", slice=name),),
        Window(at(0), at(3)),
        claim=name,
        risk="",
        confidence=1.0,
        coverage=1.0,
        effect=None if effect is None else Effect(effect, "ratio", 0.0, 1.0),
    )


def card_batch(node: str, minutes: Iterable[int]) -> Batch:
    """Return rows of one card of a node, and the fact that it is there."""
    stamps = [int(at(m).timestamp() * 1000) for m in minutes]
    tags = {"cluster": ["c"] * len(stamps), "node": [node] * len(stamps), "gpu": [f"GPU-{node}"] * len(stamps)}
    rows = make_rows("gpu", stamps, tags, {"busy_ratio": np.full(len(stamps), 0.5)})
    fact = Fact(Subject("gpu", "c", node, f"GPU-{node}"), "sm_count", "100", at(0))
    return Batch(rows={"gpu": rows}, facts=[fact])


def test_a_node_that_fell_silent_keeps_its_capacity_and_one_that_nobody_shows_has_it() -> None:
    day = 24 * 60
    never = Fact(Subject("node", "c", "never"), "unobserved_cards", "4", at(0))
    gone = Fact(Subject("gpu", "c", "sold", "GPU-sold"), "sm_count", None, at(30))
    batches = [card_batch("old", [0]), card_batch("sold", [10]), Batch(facts=[never, gone])]
    batches += [card_batch("silent", [3 * day]), card_batch("works", range(8 * day, 8 * day + 10))]
    store = FrameStore.of_batches(batches)
    window = Window(at(8 * day), at(8 * day + 10))
    found = run_analysis(store, window, interval_seconds=60.0, settings=ALL, detectors=load_detectors(ALL, FAMILIES))
    # `old` has been silent for more than a week: it left. `sold` left with its facts.
    assert sorted(set(found.ledger.gpus["node"])) == ["never", "silent", "works"]
    assert found.census.cards == 1 + 1 + 4
    silent = found.ledger.gpus.set_index("node").loc["silent"]
    assert silent["unobserved"] == silent["capacity"] == pytest.approx(100 * 600)


def test_larger_effects_come_first_and_what_was_not_asked_for_is_left_out() -> None:
    store = FrameStore.of_batches([slice_rows(slice_target("a"), range(3), busy_ratio=0.1)])
    telling = Telling(
        claim("TT101", "none", None),
        claim("TT301", "unwanted", 9.0),
        claim("TT101", "small", 0.1),
        claim("TT101", "large", -0.5),
        claim("TT101", "unsure", 0.9, Verdict.CANNOT_TELL),
    )
    detectors: dict[str, Detector] = {"telling": telling}
    found = run_analysis(
        store,
        Window(at(0), at(3)),
        interval_seconds=60.0,
        settings=AnalyzeSettings(ignore=("TT3",)),
        detectors=detectors,
        declarations=[WorkloadDeclaration(match="w", service_class="offline")],
    )
    assert [f.claim for f in found.findings] == ["large", "small", "none", "unsure"]
    assert telling.context is not None
    assert telling.context.declarations["c", "t", "w"].declaration.service_class == "offline"
    assert telling.context.forecasts.empty
    assert not found.simulated
    assert math.isclose(telling.context.window.length / timedelta(minutes=1), 3.0)


def test_a_detector_that_reads_others_comes_after_them() -> None:
    store = FrameStore.of_batches([slice_rows(slice_target("a"), range(3), busy_ratio=0.1)])
    teller, reader = Telling(claim("TT101", "read", 0.2), claim("TT301", "not read", 0.2)), Reading()
    detectors: dict[str, Detector] = {"a-reader": reader, "teller": teller}
    run_analysis(store, Window(at(0), at(3)), interval_seconds=60.0, settings=AnalyzeSettings(), detectors=detectors)
    assert reader.context is not None
    assert [f.claim for f in reader.context.findings] == ["read"]
    assert teller.context is not None
    assert teller.context.findings == ()


def test_what_is_withheld_is_told_in_the_order_of_places() -> None:
    nodes = [slice_rows(slice_target("a", node=node), range(3), busy_ratio=0.1) for node in ("n0", "n1", "n2")]
    store, detectors = FrameStore.of_batches(nodes), {"telling": Telling()}
    answers = [
        run_analysis(
            store,
            Window(at(0), at(3)),
            interval_seconds=60.0,
            settings=AnalyzeSettings(),
            detectors=detectors,
            map_nodes=spread,
        )
        for spread in (map, backwards)
    ]
    assert [[w.node for w in a.withheld] for a in answers] == [["n0", "n1", "n2"]] * 2
    assert answers[0].census == answers[1].census
