"""Facts as of a time, pods' requests, and the demand mix."""

from __future__ import annotations

import math
from datetime import timedelta

import numpy as np
import pytest

from analyzer.cards import cards
from analyzer.demand import Wish, demand, fits_free, free_memory, type_allows
from analyzer.facts import hardware_facts, hardware_spans, requests, to_float, value_at
from analyzer.mig import board_of
from tests.analyzer.conftest import START, MakeNode

HOUR = timedelta(hours=1)


def test_values_hold_from_when_they_were_told(make_node: MakeNode) -> None:
    node = make_node()
    node.fact("slice", "profile", "1g.5gb", gpu="G", part="gi1", start=START, end=START + HOUR)
    node.fact("slice", "profile", "2g.10gb", gpu="G", part="gi1", start=START + HOUR)
    key = ("c", "node-a", "G", "gi1")
    assert hardware_facts(node.facts(), "slice", "profile") == {key: "2g.10gb"}
    spans = hardware_spans(node.facts(), "slice", "profile")[key]
    start = int(START.timestamp() * 1000)
    assert [value_at(spans, start + hours * 3_600_000) for hours in (-1, 0, 1, 2)] == [
        "1g.5gb",
        "1g.5gb",
        "2g.10gb",
        "2g.10gb",
    ]
    assert value_at(None, start, "unknown") == "unknown"


def test_a_slice_is_what_it_was_when_it_was_last_seen(make_node: MakeNode) -> None:
    node = make_node(hours=2)
    minute = np.arange(node.count)
    node.card()
    for tenant, profile, keep, start in (
        ("a", "1g.5gb", minute < 60, START),
        ("b", "2g.10gb", minute >= 60, START + HOUR),
    ):
        node.rows(
            "slice", {"gpu": "GPU-1", "slice": "gi1", "tenant": tenant, "workload": "w"}, {"busy_ratio": 0.1}, keep
        )
        node.fact("slice", "kind", "mig", gpu="GPU-1", part="gi1", start=start)
        node.fact("slice", "profile", profile, gpu="GPU-1", part="gi1", start=start)
    card = cards(node.partition())[0]
    assert {h.tenant: h.profile for h in card.holdings} == {"a": "1g.5gb", "b": "2g.10gb"}


def test_numbers() -> None:
    assert to_float("3.5") == 3.5
    assert math.isnan(to_float("many"))
    assert math.isnan(to_float(None))


def test_requests(make_node: MakeNode) -> None:
    node = make_node()
    node.request("ns/b", cards=2, share=1.0, cpu=4, type="A100", tenant="t", workload="w", start=START + HOUR)
    node.request("ns/a", waiting=True, cards=1, profile="mig-1g.5gb", share=None, memory_bytes=True)
    node.fact("pod", "request", "not json", thing="ns/x")
    node.fact("pod", "request", "[1]", thing="ns/y")
    first, second = requests(node.facts())
    assert (first.pod, first.profile, first.started) == ("ns/a", "1g.5gb", None)
    assert math.isnan(first.share)
    assert math.isnan(first.memory_bytes)  # a truth value is no size
    assert (second.cards, second.cpu_cores, second.gpu_type, second.tenant) == (2, 4.0, "A100", "t")
    assert second.created == START + HOUR
    assert second.started is not None
    assert second.ended is None


def test_a_waiting_pod_of_a_workload_that_shares_by_unit(make_node: MakeNode) -> None:
    node = make_node()
    node.slice("a", kind="timeslice", pod="ns/a-1", tenant="t", workload="jobs", busy_ratio=0.1)
    node.fact("slice", "tenant", "t", gpu="GPU-1", part="a")
    node.fact("slice", "workload", "jobs", gpu="GPU-1", part="a")
    for pod, workload in (("ns/a-1", "jobs"), ("ns/a-2", "jobs"), ("ns/z", "train")):
        node.request(pod, cards=1, share=1.0, tenant="t", workload=workload)
    shares = {r.pod: r.share for r in requests(node.facts())}
    assert math.isnan(shares["ns/a-1"])
    assert math.isnan(shares["ns/a-2"])
    assert shares["ns/z"] == 1.0


def test_the_mix_counts_what_was_alive_in_the_window(make_node: MakeNode) -> None:
    node = make_node(hours=2)
    node.request("ns/a", cards=1, share=0.5)
    node.request("ns/b", cards=1, share=0.5, waiting=True)
    node.request("ns/c", cards=1, profile="1g.5gb")
    node.request("ns/later", cards=1, share=0.5, start=START + 5 * HOUR)
    node.request("ns/no-card", cards=0, share=0.5)
    node.request("ns/no-share", cards=1)
    node.fact(
        "pod",
        "request",
        '{"cards": 1, "share": 0.9}',
        thing="ns/over",
        start=START - 5 * HOUR,
        end=START - HOUR,
    )
    got = demand(requests(node.facts()), node.window)
    half, cut = Wish(1, 0.5, 0.0, 0.0, "", ""), Wish(1, 1.0, 0.0, 0.0, "1g.5gb", "")
    assert got.counts == {half: 2, cut: 1}
    assert got.waiting == {half: 1}
    assert got.total == 3


@pytest.mark.parametrize(
    ("asked", "model", "allowed"),
    [
        ("", "Tesla T4", True),
        ("A100|H100", "NVIDIA H100 80GB HBM3", True),
        ("a100", "NVIDIA A100", True),
        ("A100|", "Tesla T4", False),
    ],
)
def test_types(asked: str, model: str, allowed: bool) -> None:
    assert type_allows(Wish(1, 1.0, 0.0, 0.0, "", asked), model) is allowed


def test_free_memory_counts_grants_and_use_without_a_grant(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    node.card(memory_used_bytes=10e9, memory_free_bytes=30e9)
    node.slice("a", memory_quota_bytes=15e9, memory_used_bytes=5e9)
    node.slice("b", memory_used_bytes=4e9)
    assert free_memory(cards(node.partition())[0]) == pytest.approx(21e9)


def test_a_cut_card_of_no_known_board_fits_only_what_waits(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    node.card()
    node.slice("gi1", kind="mig", profile="9g.9gb", tenant="none", workload="none", sm_active_ratio=0.0)
    node.request("ns/a", cards=1, profile="1g.5gb")
    card = cards(node.partition())[0]
    wanted = demand(requests(node.facts()), node.window)
    nothing_free = np.zeros(card.intervals)
    assert not fits_free(card, None, wanted, nothing_free).any()
    assert not fits_free(card, board_of("NVIDIA A100-SXM4-40GB"), wanted, nothing_free).any()
    node.request("ns/b", cards=1, profile="9g.9gb")
    wanted = demand(requests(node.facts()), node.window)
    assert fits_free(card, None, wanted, nothing_free).all()
