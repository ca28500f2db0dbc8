"""Who holds and uses how much of a card."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.cards import cards
from analyzer.shares import Card
from tests.analyzer.conftest import MakeNode, Node


def card_of(node: Node) -> Card:
    found = cards(node.partition())
    assert len(found) == 1
    return found[0]


def used(card: Card) -> dict[str, float]:
    return {h.slice: float(card.used[10, j]) for j, h in enumerate(card.holdings)}


def test_mps_is_weighed_by_busy_times_quota(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    node.card(sm_active_ratio=0.6)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=0.8)
    node.slice("b", sm_quota_ratio=0.2, busy_ratio=1.0)
    card = card_of(node)
    assert used(card) == {"a": pytest.approx(0.4), "b": pytest.approx(0.2)}
    assert card.basis == ("busy_ratio", "busy_ratio")
    assert not card.measured.any()


@pytest.mark.parametrize("kind", ["timeslice", "vgpu"])
def test_turns_are_weighed_by_busy_alone(make_node: MakeNode, kind: str) -> None:
    node = make_node(hours=1)
    node.card(sm_active_ratio=0.6)
    node.slice("a", kind=kind, sm_quota_ratio=0.5, busy_ratio=0.2)
    node.slice("b", kind=kind, sm_quota_ratio=0.2, busy_ratio=0.4)
    assert used(card_of(node)) == {"a": pytest.approx(0.2), "b": pytest.approx(0.4)}


def test_what_a_unit_of_work_costs_is_learnt_from_the_cards_activity(make_node: MakeNode) -> None:
    """HAMi's time share of a capped server says little: 30 % busy may be 3 % of the card, or 30 %."""
    node = make_node(hours=4)
    wave = np.random.default_rng(1)
    requests, steps = wave.uniform(5.0, 20.0, node.count), wave.uniform(10.0, 30.0, node.count)
    served, trained = requests * 0.01, steps * 0.02
    node.card(sm_active_ratio=served + trained)
    node.slice("a", kind="vgpu", busy_ratio=0.3 + requests / 100, requests_per_second=requests)
    node.slice("b", kind="vgpu", busy_ratio=0.9, steps_count=steps)
    card = card_of(node)
    assert card.used[:, 0] == pytest.approx(served, rel=0.03)
    assert card.used[:, 1] == pytest.approx(trained, rel=0.03)


def test_without_units_of_work_the_busy_time_that_explains_the_card_is_taken(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    wave = np.random.default_rng(2)
    first, second = wave.uniform(0.1, 0.9, node.count), wave.uniform(0.1, 0.9, node.count)
    node.card(sm_active_ratio=0.1 * first + 0.6 * second)
    node.slice("a", kind="vgpu", busy_ratio=first)
    node.slice("b", kind="vgpu", busy_ratio=second)
    assert card_of(node).used[:, 0] == pytest.approx(0.1 * first, abs=0.01)


def test_without_card_activity_the_weights_stand_for_themselves(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    node.card(power_watts=100.0)
    node.slice("a", kind="vgpu", sm_quota_ratio=0.5, busy_ratio=0.9)
    node.slice("b", kind="vgpu", sm_quota_ratio=0.5, busy_ratio=0.6)
    assert used(card_of(node)) == {"a": pytest.approx(0.6), "b": pytest.approx(0.4)}  # at most one card in all


def test_engine_activity_stands_in_for_sm_activity(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    node.card(engine_active_ratio=0.5)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=0.8)
    node.slice("gi", kind="mig", sm_quota_ratio=0.3, engine_active_ratio=0.1)
    card = card_of(node)
    assert used(card) == {"a": pytest.approx(0.4), "gi": pytest.approx(0.1)}
    assert card.basis == ("busy_ratio", "engine_active_ratio")


def test_a_mig_instance_that_only_shows_busy_counts_by_its_quota(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    node.card()
    node.slice("gi", kind="mig", sm_quota_ratio=0.25, busy_ratio=0.4)
    assert used(card_of(node)) == {"gi": pytest.approx(0.1)}


def test_a_whole_card_is_its_holders(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    node.card(sm_active_ratio=0.7)
    node.slice("whole", kind="whole", requests_per_second=1.0)
    card = card_of(node)
    assert used(card) == {"whole": pytest.approx(0.7)}
    assert card.quota[10, 0] == 1.0
    assert card.basis == ("sm_active_ratio",)
    assert bool(card.sampled[10, 0])


def test_quotas_that_no_row_tells(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    node.card()
    node.fact("gpu", "model", "NVIDIA H100 80GB HBM3", gpu="GPU-1")
    node.slice("gi1", kind="mig", profile="mig-1g.20gb", workload="cut")
    node.slice("m", kind="mps", pod="ns/m", workload="asked")
    node.slice("t1", kind="timeslice", workload="turn1")
    node.slice("u", kind="unknown", workload="nobody-knows")
    node.request("ns/m", cards=1, share=0.4)
    card = card_of(node)
    quota = {h.workload: float(card.quota[10, j]) for j, h in enumerate(card.holdings)}
    assert quota["cut"] == pytest.approx(26 / 132)
    assert quota["asked"] == 0.4
    assert quota["turn1"] == pytest.approx(1 / 4)  # four live on the card
    assert np.isnan(quota["nobody-knows"])
    estimated = {h.workload for j, h in enumerate(card.holdings) if card.quota_estimated[j]}
    assert estimated == {"turn1"}


def test_one_of_so_many_units_is_no_whole_card(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    node.card()
    node.slice("a", kind="mps", pod="ns/a", workload="a")
    node.slice("b", kind="vgpu", pod="ns/b", workload="b")
    node.request("ns/a", cards=1, share=1.0)
    node.request("ns/b", cards=1, share=1.0)
    card = card_of(node)
    assert card.quota[10].tolist() == [0.5, 1.0]
    assert card.quota_estimated.tolist() == [True, False]


def test_a_quota_holds_until_it_changes(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    told = np.full(60, np.nan)
    told[5], told[30] = 0.5, 0.2
    node.card(sm_active_ratio=0.1)
    node.slice("a", sm_quota_ratio=told, busy_ratio=0.5)
    assert card_of(node).quota[[0, 10, 30, 59], 0].tolist() == [0.5, 0.5, 0.2, 0.2]


def test_a_short_gap_of_one_slice_does_not_go_to_its_neighbour(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    minute = np.arange(60)
    node.card(sm_active_ratio=0.6)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=0.5, keep=minute != 10)
    node.slice("b", sm_quota_ratio=0.5, busy_ratio=0.5)
    card = card_of(node)
    assert used(card) == {"a": pytest.approx(0.3), "b": pytest.approx(0.3)}
    assert not card.sampled[10, 0]


def test_a_long_gap_stays_open(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    minute = np.arange(60)
    node.card()
    node.slice("gi", kind="mig", sm_quota_ratio=0.5, sm_active_ratio=0.2, keep=(minute < 5) | (minute > 20))
    card = card_of(node)
    assert np.isnan(card.used[10, 0])
    assert card.used[3, 0] == pytest.approx(0.2)


def test_an_instance_that_changes_hands_is_two_holdings(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    minute = np.arange(60)
    node.card()
    for tenant, keep in (("a", minute < 20), ("none", (minute >= 20) & (minute < 40)), ("a", minute >= 40)):
        node.slice("gi", kind="mig", tenant=tenant, workload="w", sm_quota_ratio=0.5, sm_active_ratio=0.2, keep=keep)
    card = card_of(node)
    names = [h.tenant for h in card.holdings]
    assert sorted(names) == ["a", "none"]
    held = card.held[:, names.index("a")]
    assert held[[5, 30, 50]].tolist() == [True, False, True]
    assert card.alive.sum(axis=1).max() == 1


def test_a_fact_tells_the_sm_count_else_the_model(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    node.rows("gpu", {"gpu": "GPU-1"}, {"sm_active_ratio": 0.1})
    assert np.isnan(card_of(node).sm_count)
    node.fact("gpu", "model", "NVIDIA A100-SXM4-80GB", gpu="GPU-1")
    assert card_of(node).sm_count == 108
    node.fact("gpu", "sm_count", "98", gpu="GPU-1")
    assert card_of(node).sm_count == 98
    node.fact("gpu", "sm_count", "many", gpu="GPU-1")
    assert card_of(node).sm_count == 108


ratios = st.lists(st.integers(0, 10).map(lambda n: n / 10), min_size=6, max_size=6).map(np.array)


@settings(max_examples=40, deadline=None)
@given(
    ratios,
    st.lists(st.tuples(st.sampled_from(["mps", "vgpu", "timeslice", "mig", "unknown"]), ratios, ratios), max_size=4),
)
def test_use_is_never_negative_nor_more_than_the_card(
    activity: np.ndarray, slices: list[tuple[str, np.ndarray, np.ndarray]]
) -> None:
    node = Node(1.0, 600.0)
    node.card(sm_active_ratio=activity)
    for i, (kind, quota, busy) in enumerate(slices):
        field = "sm_active_ratio" if kind == "mig" else "busy_ratio"
        node.slice(f"s{i}", kind=kind, sm_quota_ratio=quota, **{field: busy})
    card = card_of(node)
    assert (card.used >= 0).all()
    assert (card.used.sum(axis=1) <= 1 + 1e-9).all()
    if slices and all(kind != "mig" for kind, _, _ in slices):
        # Divided activity neither gains nor loses anything.
        assert card.used.sum(axis=1) + card.unattributed == pytest.approx(activity)
