"""Pairs across the cards of a node (TT102): tested only where a shared channel is full, and not counted elsewhere."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context

import numpy as np
import pandas as pd
import pytest

from analyzer.contention import ContentionDetector
from analyzer.contention.across import NO_PRESSURE
from analyzer.facts import FACT_COLUMNS
from analyzer.findings import CLAIMS, Finding, Role
from analyzer.protocols import Conclusion, Context, Partition
from benchmarks import contention_nodes
from benchmarks.contention import partition
from benchmarks.contention_scenarios import make_world
from benchmarks.contention_worlds import DAY
from collector.window import Window

NONE = pd.DataFrame()
PEAK = 16 * 1.969e9  # PCIe 4, 16 lanes


def conclude(*parts: Partition) -> Conclusion:
    detector = ContentionDetector()
    measures = pd.concat([detector.measure(part) for part in parts], ignore_index=True)
    return detector.conclude(measures, Context(parts[0].window, 60.0, NONE, NONE, NONE, {}))


def across(conclusion: Conclusion) -> list[Finding]:
    return [finding for finding in conclusion.findings if finding.code == "TT102"]


def node(*, full: bool, hurts: bool, told: bool = True) -> Partition:
    """Two cards: `a` moves to the second, fills its PCIe (or not), and slows `v` on the first as before (or not)."""
    scenario = "true_burst" if hurts else "null_indep"
    part = partition(scenario, [make_world(scenario, 7, 0, DAY)])
    first, second = f"GPU-{scenario}-0", "GPU-second"
    rows = part.slice.copy()
    rows.loc[rows["workload"] == "a", "gpu"] = second
    use = rows.loc[rows["workload"] == "a", "sm_active_ratio"].to_numpy()
    top = 0.9 if full else 0.2
    one = part.gpu.assign(pcie_rx_bytes_per_second=0.1 * PEAK, pcie_tx_bytes_per_second=0.05 * PEAK)
    one["sm_active_ratio"] = np.nan
    two = one.assign(gpu=second, pcie_rx_bytes_per_second=top * PEAK * np.minimum(use / np.quantile(use, 0.9), 1.0))
    facts = [
        ("gpu", "bench", scenario, gpu, "", "", name, value, pd.Timestamp(part.window.start), pd.NaT, "measured")
        for gpu in (first, second)
        for name, value in (("pcie_generation", "4"), ("pcie_lanes", "16"))
    ]
    table = pd.DataFrame(facts if told else [], columns=list(FACT_COLUMNS))
    return replace(part, slice=rows, gpu=pd.concat([one, two], ignore_index=True), facts=table)


def test_a_full_link_carries_the_harm_to_another_card() -> None:
    found = across(conclude(node(full=True, hurts=True)))
    claims = [f for f in found if f.verdict.value == "holds"]
    assert len(claims) == 1
    finding = claims[0]
    assert finding.subject(Role.VICTIM).gpu == "GPU-true_burst-0"
    assert finding.subject(Role.SUSPECT).gpu == "GPU-second"
    assert finding.subject(Role.SUSPECT).slice == "ns/a-0/main/0"
    assert finding.channel == "pcie"
    assert finding.evidence["pressure"] == "pcie"
    assert "while ns/a on GPU-second is busy, 19 times since" in finding.claim
    assert "through PCIe; move one of them to another node" in finding.claim


def test_a_full_link_alone_accuses_nobody() -> None:
    found = across(conclude(node(full=True, hurts=False)))
    assert found
    assert all(f.verdict.value in {"no effect found", "cannot tell"} for f in found)


@pytest.mark.parametrize("part", [node(full=False, hurts=True), node(full=True, hurts=True, told=False)])
def test_without_pressure_nothing_is_tested_and_all_is_counted(part: Partition) -> None:
    conclusion = conclude(part)
    assert not across(conclusion)
    untested = [w for w in conclusion.withheld if w.code == "TT102"]
    assert {w.slice for w in untested} == set(part.slice["slice"].unique())
    assert {w.reason for w in untested} == {NO_PRESSURE} == {"not tested: no shared pressure"}
    assert not any(w.applicable for w in untested)


def test_untested_pairs_do_not_enter_the_control_of_false_discoveries() -> None:
    apart, alone = node(full=False, hurts=True), partition("true_burst", [make_world("true_burst", 7, 0, DAY)])
    single = {f.id: f.q for f in conclude(alone).findings}
    both = {f.id: f.q for f in conclude(alone, replace(apart, slice=apart.slice.iloc[:0])).findings}
    assert {key: both[key] for key in single} == single


def test_a_full_host_reaches_every_card() -> None:
    part = node(full=False, hurts=True)
    use = part.slice.loc[part.slice["workload"] == "a", "sm_active_ratio"].to_numpy()
    stamps = part.gpu["time"].iloc[:DAY]
    host = pd.DataFrame(
        {"time": stamps, "cluster": "bench", "node": part.node, "cpu_busy_ratio": 0.5 + 0.5 * (use > 0.05)}
    )
    found = across(conclude(replace(part, node_rows=host)))
    claims = {(f.subject(Role.VICTIM).workload, f.subject(Role.SUSPECT).workload) for f in found if f.channel == "host"}
    assert ("v", "a") in claims


@pytest.mark.parametrize(
    ("scenario", "channel"), [("true_pcie", "pcie"), ("true_nvlink", "nvlink"), ("true_host", "host")]
)
def test_the_full_channel_is_named(scenario: str, channel: str) -> None:
    found = across(conclude(contention_nodes.partition(contention_nodes.make_node(scenario, 1, 0, DAY))))
    claims = {pair_of(f): f.channel for f in found if f.verdict in CLAIMS}
    assert claims == {(0, "v", 1, "a"): channel}


def test_of_two_cards_that_fill_their_links_together_the_one_that_does_it_is_named() -> None:
    found = across(conclude(contention_nodes.partition(contention_nodes.make_node("third_card", 1, 0, DAY))))
    assert {pair_of(f) for f in found if f.verdict in CLAIMS} == {(0, "v", 2, "a")}


@pytest.mark.parametrize("scenario", ["null_daily", "null_reverse", "null_neighbour", "null_throttle", "always_full"])
def test_what_only_looks_like_it_is_not_claimed(scenario: str) -> None:
    found = across(conclude(contention_nodes.partition(contention_nodes.make_node(scenario, 1, 0, DAY))))
    assert found
    assert not [pair_of(f) for f in found if f.verdict in CLAIMS]


def pair_of(finding: Finding) -> tuple[int, str, int, str]:
    victim, suspect = finding.subject(Role.VICTIM), finding.subject(Role.SUSPECT)
    card_of = contention_nodes.card_of
    return card_of(victim.gpu), victim.workload, card_of(suspect.gpu), suspect.workload


def test_processes_and_a_loop_give_the_same_to_the_last_digit() -> None:
    parts = [partition(s, [make_world(s, 7, 0, 240)]) for s in ("true_burst", "null_daily", "third_party")]
    detector = ContentionDetector()
    # Spawned, as a cluster's workers are: nothing is shared but what is sent.
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        apart = pd.concat(pool.map(partial(_measure, detector), reversed(parts)), ignore_index=True)
    together = pd.concat([detector.measure(part) for part in parts], ignore_index=True)
    window = Window(parts[0].window.start, parts[0].window.end)
    context = Context(window, 60.0, NONE, NONE, NONE, {})
    one, other = detector.conclude(apart, context), detector.conclude(together, context)
    assert [f.to_json() for f in one.findings] == [f.to_json() for f in other.findings]
    assert one.withheld == other.withheld


def _measure(detector: ContentionDetector, part: Partition) -> pd.DataFrame:
    return detector.measure(part)
