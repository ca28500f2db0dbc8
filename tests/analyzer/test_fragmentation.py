"""TT211 to TT214, TT221 to TT223."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analyzer.findings import Finding, Role, Verdict
from analyzer.fragmentation import FragmentationDetector
from analyzer.protocols import Conclusion
from collector.declarations import Owner, ResolvedWorkload, WorkloadDeclaration
from tests.analyzer.conftest import MakeNode, Node

GIB = 2.0**30
A100 = "NVIDIA A100-SXM4-40GB"


def judge(*nodes: Node, **context: Any) -> Conclusion:
    detector = FragmentationDetector()
    measures = pd.concat([detector.measure(node.partition()) for node in nodes], ignore_index=True)
    facts = pd.concat([node.facts() for node in nodes], ignore_index=True)
    return detector.conclude(measures, nodes[0].context(facts=facts, **context))


def of(conclusion: Conclusion, code: str) -> list[Finding]:
    return [f for f in conclusion.findings if f.code == code and f.verdict is not Verdict.NO_EFFECT]


def reasons(conclusion: Conclusion, code: str) -> list[tuple[str, bool]]:
    return [(w.reason, w.applicable) for w in conclusion.withheld if w.code == code]


def pieces(make_node: MakeNode, *held: float, name: str = "node-a", **card: Any) -> Node:
    node = make_node(hours=1, name=name)
    for i, share in enumerate(held):
        gpu = f"{name}-{i}"
        node.card(gpu, sm_active_ratio=0.2, **card)
        node.slice(f"ns/p{i}/c/0", gpu=gpu, sm_quota_ratio=share, busy_ratio=0.5, pod=f"{name}/p{i}")
    return node


def test_enough_in_all_and_in_no_piece(make_node: MakeNode) -> None:
    node = pieces(make_node, 0.4, 0.5, 0.7)
    for i in range(3):
        node.request(f"ns/small-{i}", cards=1, share=0.25)
    node.request("ns/whole", cards=1, share=1.0, waiting=True)
    finding = of(judge(node), "TT211")[0]
    assert finding.verdict is Verdict.HOLDS
    assert finding.subject(Role.SUBJECT).cluster == "c"
    assert finding.evidence["free_cards"] == pytest.approx(1.4)
    assert finding.evidence["lost_part"] == pytest.approx(0.25)
    assert finding.evidence["waiting_now"] == 1
    assert finding.evidence["biggest_placeable"] == "25% of a card"
    assert finding.evidence["free_share_by_node"] == {"node-a": [0.6, 0.5, 0.3]}
    # A whole card finds 1.4 too small; 0.25 fits everywhere.
    assert finding.effect is not None
    assert finding.effect.value == pytest.approx(0.25)
    assert "1.4 cards' worth of share is free in 3 pieces, the largest 60% of a card" in finding.claim
    assert "1 of these wait now" in finding.claim
    json.dumps(finding.to_json(), allow_nan=False)


def test_a_full_fleet_is_not_fragmented(make_node: MakeNode) -> None:
    node = pieces(make_node, 0.8, 0.9)
    node.request("ns/whole", cards=1, share=1.0)
    assert of(judge(node), "TT211") == []
    full = pieces(make_node, 1.0)
    full.request("ns/whole", cards=1, share=1.0)
    assert of(judge(full), "TT211") == []


def test_a_request_that_fits_somewhere_is_not_lost(make_node: MakeNode) -> None:
    one, other = pieces(make_node, 0.4, 0.5), pieces(make_node, 0.0, name="node-b")
    one.request("ns/whole", cards=1, share=1.0)
    one.request("ns/small", cards=1, share=0.25)
    got = judge(one, other)
    assert of(got, "TT211") == []
    [open_] = [f for f in got.findings if f.code == "TT211"]  # the picture is told all the same
    assert open_.verdict is Verdict.NO_EFFECT
    assert open_.evidence["free_cards"] == pytest.approx(2.1)
    assert "100% of the requests still fit somewhere" in open_.claim


def test_most_of_the_free_share_serving_nobody_is_suspected(make_node: MakeNode) -> None:
    # The whole card still fits on one empty card; all the other pieces serve nobody.
    node = pieces(make_node, 0.0, 0.4, 0.4, 0.4, 0.4, 0.4)
    node.request("ns/whole", cards=1, share=1.0)
    finding = of(judge(node), "TT211")[0]
    assert finding.verdict is Verdict.SUSPECTED
    assert finding.effect is not None
    assert finding.effect.value == pytest.approx(3.0 / 4.0)


def test_cpu_type_and_memory_are_other_claims(make_node: MakeNode) -> None:
    node = pieces(make_node, 0.0, 0.0, memory_used_bytes=39 * GIB, memory_free_bytes=GIB)
    for gpu in ("node-a-0", "node-a-1"):
        node.fact("gpu", "model", A100, gpu=gpu)
        node.fact("gpu", "memory_total_bytes", str(40 * GIB), gpu=gpu)
    node.fact("node", "allocatable_cpu", "8")
    node.request("node-a/p0", cards=1, share=0.1, cpu=6)
    node.request("ns/cpu", cards=1, share=0.5, cpu=4)
    node.request("ns/type", cards=1, share=0.5, type="H100")
    node.request("ns/memory", cards=1, share=0.5, memory_bytes=60 * GIB)
    got = judge(node)
    assert of(got, "TT211") == []
    assert reasons(got, "TT211") == []
    wanted = {"TT212": ("CPU of its node", 0.5), "TT213": ("card type", 0.25), "TT214": ("card memory", 0.25)}
    for code, (word, part) in wanted.items():  # of CPU a second pod like the one that runs would lack some as well
        [finding] = of(got, code)
        assert finding.verdict is Verdict.HOLDS
        assert finding.evidence["lost_part"] == pytest.approx(part)
        assert f"{part:.0%} of what people ask for fits nowhere for want of {word} alone" in finding.claim
        json.dumps(finding.to_json(), allow_nan=False)
    causes = [d["lost_for"] for d in of(got, "TT212")[0].evidence["demand"]]
    assert sorted(causes) == [["cpu"], ["cpu"], ["memory"], ["type"]]


def test_free_cards_of_a_type_that_nobody_names_are_suspected(make_node: MakeNode) -> None:
    node = pieces(make_node, 0.0, 0.0)
    for gpu, model in (("node-a-0", A100), ("node-a-1", "Tesla T4")):
        node.fact("gpu", "model", model, gpu=gpu)
    node.request("ns/a", cards=1, share=0.5, type="A100")
    got = judge(node)
    [finding] = of(got, "TT213")
    assert finding.verdict is Verdict.SUSPECTED
    assert (
        "1.0 free cards' worth of share cannot be used because they are of types that nobody asks for" in finding.claim
    )
    rooms = {room["model"]: room for room in finding.evidence["rooms"]}
    assert rooms[A100]["biggest_placeable"] == "50% of a card of type A100"
    assert rooms["Tesla T4"]["biggest_placeable"] is None
    assert (rooms["Tesla T4"]["free_cards"], rooms["Tesla T4"]["most_whole_cards"]) == (1.0, 1)
    assert of(got, "TT214") == []
    # Nothing is known of CPU and memory.
    assert reasons(got, "TT212") == [("no node's CPU is known (fact `allocatable_cpu`)", True)]
    assert reasons(got, "TT214") == [("no card's memory is known", True)]


def test_idle_compute_beside_full_memory_and_the_reverse(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    for gpu, share, memory in (("full-memory", 0.25, 40 * GIB), ("full-compute", 1.0, 10 * GIB)):
        node.card(gpu, memory_used_bytes=5 * GIB, memory_free_bytes=35 * GIB)
        node.slice(f"of {gpu}", gpu=gpu, sm_quota_ratio=share, memory_quota_bytes=memory, busy_ratio=0.5)
    node.request("ns/a", cards=1, share=0.5, memory_bytes=4 * GIB)
    finding = of(judge(node), "TT214")[0]
    assert finding.evidence["compute_without_memory_cards"] == pytest.approx(0.75)
    assert finding.evidence["memory_without_compute_bytes"] == pytest.approx(30 * GIB)
    assert finding.evidence["free_memory_bytes"] == pytest.approx(30 * GIB)
    assert finding.evidence["memory_fragmentation_ratio"] == 1.0
    assert finding.evidence["fragmentation_ratio"] == 0.0  # no card has both
    assert finding.evidence["stranded_cards"]["memory"] == pytest.approx(0.75)


def test_whole_cards_on_one_node_and_of_a_type(make_node: MakeNode) -> None:
    one, other = pieces(make_node, 0.0, 1.0), pieces(make_node, 0.0, 1.0, name="node-b")
    for node, gpus in ((one, ("node-a-0", "node-a-1")), (other, ("node-b-0", "node-b-1"))):
        for gpu in gpus:
            node.fact("gpu", "model", A100, gpu=gpu)
    one.request("ns/pair", cards=2, share=1.0, type="A100|H100", memory_bytes=10 * GIB)
    finding = of(judge(one, other), "TT211")[0]
    assert finding.evidence["biggest_placeable"] is None
    assert "2 x whole cards with 10 GiB of type A100|H100" in finding.claim


def test_without_requests_or_quotas_nothing_is_said(make_node: MakeNode) -> None:
    node = pieces(make_node, 0.4)
    assert reasons(judge(node), "TT211") == [("nobody's requests are known (fact `request`)", True)]
    blind = make_node(hours=1)
    blind.card(sm_active_ratio=0.2)
    blind.slice("a", busy_ratio=0.5)
    blind.request("ns/x", cards=1, share=0.5)
    assert reasons(judge(blind), "TT211") == [("no shared card whose holders' quotas are known", True)]


def test_a_lost_card_and_an_unknown_quota_are_left_out(make_node: MakeNode) -> None:
    node = pieces(make_node, 0.4, 0.4)
    node.card("lost", sm_active_ratio=0.2, keep=np.arange(60) < 20)
    node.card("vague", sm_active_ratio=0.2)
    node.slice("v", gpu="vague", busy_ratio=0.5)
    node.request("ns/whole", cards=1, share=1.0)
    finding = of(judge(node), "TT211")[0]
    assert finding.evidence["cards_left_out"] == 2
    assert finding.coverage == 0.5


# --- TT221 ------------------------------------------------------------------------------------------------------------


def cut(make_node: MakeNode, *instances: tuple[str, int | None, str], model: str = A100) -> Node:
    node = make_node(hours=1)
    node.card("GPU-1", power_watts=100.0)
    node.fact("gpu", "model", model, gpu="GPU-1")
    for i, (profile, start, tenant) in enumerate(instances):
        workload = tenant if tenant == "none" else "app"
        node.slice(f"gi{i}", kind="mig", profile=profile, sm_active_ratio=0.05, tenant=tenant, workload=workload)
        if start is not None:
            node.fact("slice", "placement", str(start), gpu="GPU-1", part=f"gi{i}")
    return node


def test_a_place_that_spoils_the_big_profile(make_node: MakeNode) -> None:
    node = cut(make_node, ("1g.5gb", 0, "team"))
    node.request("ns/big", cards=1, profile="4g.20gb")
    node.request("ns/small", cards=1, profile="mig-1g.5gb")
    finding = of(judge(node), "TT221")[0]
    assert finding.verdict is Verdict.HOLDS
    assert finding.evidence["layouts_possible"] == 1
    assert finding.evidence["best"]["mix_placement_fragmentation"] == pytest.approx(0.5)
    assert finding.evidence["moves"] == [{"profile": "4g.20gb", "fewest_moves": 1}]
    assert "50% of what is asked for would fit if the free slices lay elsewhere" in finding.claim
    json.dumps(finding.to_json(), allow_nan=False)


def test_where_nobody_tells_the_place_the_best_layout_decides(make_node: MakeNode) -> None:
    node = cut(make_node, ("1g.5gb", None, "team"))
    node.request("ns/big", cards=1, profile="4g.20gb")
    finding = of(judge(node), "TT221")[0]
    assert finding.verdict is Verdict.SUSPECTED
    assert finding.evidence["layouts_possible"] == 7
    assert finding.evidence["best"]["mix_placement_fragmentation"] == 0.0
    assert finding.evidence["worst"]["mix_placement_fragmentation"] == 1.0


def test_stranded_slices_hold_in_every_layout(make_node: MakeNode) -> None:
    finding = of(judge(cut(make_node, *(("1g.5gb", None, "team") for _ in range(7)))), "TT221")[0]
    assert finding.verdict is Verdict.HOLDS
    assert finding.effect is not None
    assert (finding.effect.value, finding.effect.unit) == (1 / 8, "ratio")
    assert "1 of 8 memory slices can be used by no further instance" in finding.claim
    threes = of(judge(cut(make_node, ("3g.20gb", 0, "team"), ("3g.20gb", 4, "team"))), "TT221")[0]
    assert "1 of 7 compute slices" in threes.claim


def test_an_instance_that_nobody_wants_is_stranded(make_node: MakeNode) -> None:
    node = cut(make_node, ("4g.20gb", 0, "team"), ("3g.20gb", 4, "none"))
    node.request("ns/small", cards=1, profile="1g.5gb")
    finding = of(judge(node), "TT221")[0]
    assert finding.evidence["unheld_not_asked_for"] == ["3g.20gb"]
    assert finding.effect is not None
    assert finding.effect.value == pytest.approx(0.5)
    assert "3g.20gb is held by nobody and asked for by nobody" in finding.claim


def test_a_well_cut_card_is_no_finding(make_node: MakeNode) -> None:
    node = cut(make_node, ("4g.20gb", 0, "team"), ("3g.20gb", 4, "team"))
    got = judge(node)
    assert of(got, "TT221") == []
    assert reasons(got, "TT221") == []
    assert reasons(got, "TT211") == [("no card is shared by quota", False)]


def test_an_assumed_table_weighs_less(make_node: MakeNode) -> None:
    node = cut(make_node, *(("1g.18gb", None, "team") for _ in range(7)), model="NVIDIA H200")
    finding = of(judge(node), "TT221")[0]
    assert finding.evidence["placements"] == "assumed"
    assert finding.confidence < 0.95


@pytest.mark.parametrize(
    ("instances", "model", "reason"),
    [
        ([("", 0, "team")], A100, "an instance's profile is not known (fact `profile`)"),
        ([("1g.5gb", 0, "team")], "NVIDIA RTX PRO 5000 Blackwell", "no placement table for"),
        ([("9g.9gb", 0, "team")], "", "no placement table for a card without a model name"),
        ([("1g.5gb", 7, "team")], A100, "these instances cannot lie together"),
        ([("4g.20gb", None, "team"), ("4g.20gb", None, "x")], A100, "these instances cannot lie together"),
    ],
)
def test_what_cannot_be_measured_is_said(
    make_node: MakeNode, instances: list[tuple[str, int | None, str]], model: str, reason: str
) -> None:
    got = judge(cut(make_node, *instances, model=model))
    assert of(got, "TT221") == []
    [(said, applicable)] = reasons(got, "TT221")
    assert said.startswith(reason)
    assert applicable


def test_a_shared_card_is_no_subject_of_tt221(make_node: MakeNode) -> None:
    assert reasons(judge(pieces(make_node, 0.4)), "TT221") == [("not a MIG card", False)]


def test_a_lost_mig_card_is_withheld(make_node: MakeNode) -> None:
    node = cut(make_node, ("1g.5gb", 0, "team"))
    node.card("GPU-2", sm_active_ratio=0.1, keep=np.arange(60) < 10)
    node.fact("gpu", "mig", "true", gpu="GPU-2")
    assert ("the card is not there now", True) in reasons(judge(node), "TT221")


# --- TT222, TT223 -----------------------------------------------------------------------------------------------------


def declared(*workloads: tuple[str, str], protected: bool = False) -> dict[Owner, ResolvedWorkload]:
    return {
        ("c", *key): ResolvedWorkload(
            tenant=key[0],
            workload=key[1],
            declaration=WorkloadDeclaration(service_class="offline", protected=protected),
            declared=True,
            origin={},
        )
        for key in workloads
    }


def test_a_free_instance_is_cut_anew_for_what_waits(make_node: MakeNode) -> None:
    node = cut(make_node, ("1g.5gb", 6, "team"), ("3g.20gb", 0, "none"))
    node.request("ns/big", waiting=True, cards=1, profile="4g.20gb")
    [finding] = of(judge(node), "TT222")
    assert finding.verdict is Verdict.HOLDS
    assert (finding.evidence["destroy"], finding.evidence["create"]) == ([["3g.20gb", 0]], [["4g.20gb", 0]])
    assert finding.evidence["held"] == [["1g.5gb", 6]]
    assert "1 waiting request would fit (4g.20gb@0) if what nobody holds were cut anew" in finding.claim
    assert of(judge(node), "TT223") == []
    json.dumps(finding.to_json(), allow_nan=False)


def test_what_fits_as_it_is_needs_no_other_cut(make_node: MakeNode) -> None:
    node = cut(make_node, ("1g.5gb", 6, "team"), ("3g.20gb", 0, "none"))
    node.request("ns/same", waiting=True, cards=1, profile="3g.20gb")
    node.request("ns/free", waiting=True, cards=1, profile="1g.5gb")
    got = judge(node)
    assert of(got, "TT222") == of(got, "TT223") == []


def test_a_place_that_is_not_told_makes_it_a_suspicion(make_node: MakeNode) -> None:
    node = cut(make_node, ("1g.5gb", None, "team"), ("3g.20gb", None, "none"))
    node.request("ns/big", waiting=True, cards=1, profile="4g.20gb")
    assert of(judge(node), "TT222")[0].verdict is Verdict.SUSPECTED


def test_the_fewest_who_must_move(make_node: MakeNode) -> None:
    node = cut(make_node, ("1g.5gb", 0, "team"), ("3g.20gb", 4, "team"))
    node.request("ns/big", waiting=True, cards=1, profile="4g.20gb")
    assert of(judge(node), "TT223") == []  # nobody said that they may be moved
    got = judge(node, declarations=declared(("team", "app"), protected=True))
    assert of(got, "TT223") == []
    full = cut(make_node, ("1g.5gb", 0, "team"), ("2g.10gb", 4, "team"))
    full.request("ns/big", waiting=True, cards=1, profile="4g.20gb")
    got = judge(full, declarations=declared(("team", "app")))
    [finding] = of(got, "TT223")
    assert finding.verdict is Verdict.HOLDS
    assert finding.evidence["moves"] == [
        {
            "profile": "1g.5gb",
            "gpu": "GPU-1",
            "start": 0,
            "to_gpu": "GPU-1",
            "to_start": 6,
            "slice": "gi0",
            "tenant": "team",
            "workload": "app",
        }
    ]
    assert finding.evidence["fewest"] is True
    assert "a waiting 4g.20gb fits if 1 instance moves (1g.5gb@0 to 6); 1 such wait" in finding.claim


def test_an_unknown_board_is_withheld_from_a_re_cut_too(make_node: MakeNode) -> None:
    node = cut(make_node, ("1g.12gb", 0, "team"), model="NVIDIA RTX PRO 5000 Blackwell")
    got = judge(node)
    for code in ("TT221", "TT222", "TT223"):
        [(said, applicable)] = reasons(got, code)
        assert said.startswith("no placement table")
        assert applicable
