"""Pair prediction before co-locating: the model on made-up matrices, what it rests on, and TT111."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.census import measure_subjects, take_census
from analyzer.colocation import DRAM, MEMORY, SM, Basis, MeasuredPair, PairForecast, Solo, predict, rank, share, slower
from analyzer.colocation_detector import ColocationDetector
from analyzer.conformance import DetectorConformance
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.protocols import Context, Partition
from analyzer.settings import AnalyzeSettings
from benchmarks.colocation import REPORTED_SEEDS, additive, draw, load, ours, score, shared_file
from benchmarks.colocation_ceiling import Ceiling
from tests.analyzer.conftest import MakeNode, Node

LIMIT = 1.5
CARD = "A100"


def matrix(seed: int, n: int = 16, rank_: int = 2, noise: float = 0.02) -> np.ndarray:
    """Log slow-downs of n workloads: what each suffers and does, and a low-rank interaction."""
    rng = np.random.default_rng(seed)
    u, w = rng.normal(size=(n, rank_)) * 0.35, rng.normal(size=(n, rank_)) * 0.35
    main = rng.normal(size=(n, 1)) * 0.1 + rng.normal(size=n) * 0.1
    return np.asarray(0.5 + main + u @ w.T + noise * rng.normal(size=(n, n)))


def as_pairs(logs: np.ndarray, card: str = CARD) -> list[MeasuredPair]:
    return [MeasuredPair(f"w{i}", f"w{j}", card, math.exp(logs[i, j])) for i, j in np.ndindex(logs.shape)]


def ask(pairs: list[MeasuredPair]) -> list[tuple[str, str, str]]:
    return [(p.victim, p.suspect, p.card) for p in pairs]


def r2(truth: list[MeasuredPair], told: list[PairForecast]) -> float:
    return score(truth, np.log([f.slowdown for f in told]))[0]


def test_a_low_rank_truth_is_recovered_and_an_additive_model_is_not() -> None:
    pairs = as_pairs(matrix(5))
    known, unknown = draw(pairs, 0.5, 5)
    told = predict([], known, ask(unknown), limit=LIMIT)
    assert r2(unknown, told) > 0.9
    assert score(unknown, additive(known, unknown))[0] < 0.6
    inside = [f.lower <= p.slowdown <= f.upper for p, f in zip(unknown, told, strict=True)]
    assert np.mean(inside) > 0.85
    assert {f.basis for f in told} == {Basis.BOTH}


def test_what_one_kind_of_card_showed_helps_on_another() -> None:
    logs = matrix(7)
    there = as_pairs(logs, "H100")
    here = as_pairs(logs + 0.1, "A100")
    few, rest = draw(here, 0.05, 1)
    both = predict([], there + few, ask(rest), limit=LIMIT)
    told = np.log([f.slowdown for f in both])
    assert score(rest, told)[0] > 0.2
    assert all(f.basis is Basis.OTHER_CARD for f in both)


def test_one_wild_measurement_does_not_move_the_others() -> None:
    pairs = as_pairs(matrix(9))
    known, unknown = draw(pairs, 0.5, 9)
    wild = [replace(known[0], slowdown=30.0), *known[1:]]
    assert r2(unknown, predict([], wild, ask(unknown), limit=LIMIT)) > 0.8


def test_an_inexact_measurement_counts_for_less() -> None:
    base = [MeasuredPair("a", "b", CARD, 1.1)] * 3
    sure = [*base, *[MeasuredPair("c", "b", CARD, 3.0)] * 3]
    vague = [*base, *[MeasuredPair("c", "b", CARD, 3.0, error=2.0)] * 3]
    (told_sure,) = predict([], sure, [("c", "b", CARD)], limit=LIMIT)
    (told_vague,) = predict([], vague, [("c", "b", CARD)], limit=LIMIT)
    assert told_sure.slowdown == pytest.approx(3.0)
    assert told_sure.slowdown > told_vague.slowdown
    assert told_vague.upper / told_vague.lower > told_sure.upper / told_sure.lower


def test_relatives_tell_of_a_workload_that_met_nobody() -> None:
    heavy = [MeasuredPair(f"big{i}", f"x{j}", CARD, 2.6) for i, j in product(range(4), range(4))]
    light = [MeasuredPair(f"small{i}", f"x{j}", CARD, 1.05) for i, j in product(range(4), range(4))]
    solos = [Solo(f"{size}{i}", CARD, family=size) for size, i in product(("big", "small"), range(5))]
    big, small = predict(solos, heavy + light, [("big4", "x0", CARD), ("small4", "x0", CARD)], limit=LIMIT)
    assert big.basis is small.basis is Basis.ONE
    assert big.slowdown > 1.4 * small.slowdown
    assert big.beyond > 0.8 > small.beyond


@pytest.mark.parametrize(("feature", "reach"), [(SM, 1.0), (DRAM, 0.8)])
def test_two_that_ask_for_more_than_the_card_are_slower_by_as_much(feature: str, reach: float) -> None:
    solos = [Solo(name, CARD, features={feature: use * reach}) for name, use in (("a", 0.9), ("b", 0.9), ("c", 0.05))]
    both, light = predict(solos, [], [("a", "b", CARD), ("a", "c", CARD)], limit=LIMIT)
    assert both.basis is Basis.PROFILES
    assert both.slowdown / light.slowdown == pytest.approx(1.8, rel=0.15)


def test_nothing_known_is_said_plainly() -> None:
    (told,) = predict([Solo("a", CARD, features={SM: 0.5})], [], [("a", "stranger", CARD)], limit=LIMIT)
    assert told.basis is Basis.NOTHING
    assert math.isnan(told.slowdown)
    assert math.isnan(told.beyond)
    sharing = share(told, told, LIMIT)
    assert sharing.verdict is Verdict.CANNOT_TELL
    assert "nothing" in sharing.reason
    assert sharing.needs


def test_more_memory_than_the_card_has_needs_no_model() -> None:
    solos = [Solo(name, CARD, features={MEMORY: 0.6}) for name in ("a", "b")]
    there, back = predict(solos, [], [("a", "b", CARD), ("b", "a", CARD)], limit=LIMIT)
    sharing = share(there, back, LIMIT)
    assert not there.fits
    assert (sharing.verdict, sharing.reason) == (Verdict.HOLDS, "together they hold 120% of the card's memory")


def forecast(victim: str, suspect: str, numbers: tuple[float, float, float, float]) -> PairForecast:
    value, lower, upper, beyond = numbers
    return PairForecast(victim, suspect, CARD, value, lower, upper, beyond, Basis.BOTH, math.nan)


@pytest.mark.parametrize(
    ("there", "back", "verdict"),
    [
        ((2.0, 1.6, 2.5, 1.0), (1.1, 1.0, 1.2, 0.0), Verdict.HOLDS),
        ((1.2, 1.1, 1.4, 0.0), (1.1, 1.0, 1.5, 0.02), Verdict.NO_EFFECT),
        ((1.9, 1.4, 2.5, 0.9), (1.1, 1.0, 1.2, 0.0), Verdict.SUSPECTED),
        ((1.6, 1.3, 2.0, 0.6), (1.1, 1.0, 1.2, 0.0), Verdict.CANNOT_TELL),
        ((3.0, 0.9, 9.0, 0.9), (1.1, 1.0, 1.2, 0.0), Verdict.CANNOT_TELL),
        ((1.3, 1.2, 1.4, 0.0), (1.1, 0.7, 1.7, 0.1), Verdict.CANNOT_TELL),
    ],
)
def test_verdicts(
    there: tuple[float, float, float, float], back: tuple[float, float, float, float], verdict: Verdict
) -> None:
    one, other = forecast("a", "b", there), forecast("b", "a", back)
    assert share(one, other, LIMIT).verdict is verdict
    decides = other if back[2] > there[2] and verdict is Verdict.CANNOT_TELL else one
    assert share(other, one, LIMIT).worse == share(one, other, LIMIT).worse == decides
    assert share(other, one, LIMIT).verdict is verdict
    assert share(one, other, LIMIT).reason.endswith("too wide to tell anything") == (there[2] > 4 * there[1])


values = st.floats(1.0, 4.0)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), values), max_size=12), st.floats(1.05, 3.0))
def test_laws(seen: list[tuple[int, int, float]], limit: float) -> None:
    """Intervals hold their value, chances are chances, nobody is told of from nothing, and a seed is an answer."""
    pairs = [MeasuredPair(f"w{i}", f"w{j}", CARD, value) for i, j, value in seen]
    wanted = [(f"w{i}", f"w{j}", CARD) for i, j in product(range(4), repeat=2)]
    told = predict([], pairs, wanted, limit=limit, sweeps=32)
    assert [str(f) for f in predict([], pairs, wanted, limit=limit, sweeps=32)] == [str(f) for f in told]
    met = {name for p in pairs for name in (p.victim, p.suspect)}
    for f in told:
        assert (f.basis is Basis.NOTHING) == (not {f.victim, f.suspect} <= met) == math.isnan(f.slowdown)
        assert f.basis is Basis.NOTHING or (0 < f.lower <= f.upper and 0 <= f.beyond <= 1)
    ranked = rank(told, limit)
    assert len(ranked) == 10
    order = [s.worse.slowdown for s in ranked]
    decided = [value for value in order if not math.isnan(value)]
    assert decided == sorted(decided)
    assert all(math.isnan(value) for value in order[len(decided) :])


@pytest.mark.parametrize(
    ("numbers", "words"),
    [((1.31, 1.2, 1.4, 0.9), "31% slower (20% to 40%)"), ((0.996, 0.84, 1.004, 0.0), "not slower (-16% to 0%)")],
)
def test_a_size_in_words(numbers: tuple[float, float, float, float], words: str) -> None:
    assert slower(forecast("a", "b", numbers)) == f"{words}; both were measured with others"


def test_nothing_asked_nothing_told() -> None:
    assert predict([], [MeasuredPair("a", "b", CARD, 2.0)], [], limit=LIMIT) == []


def test_real_pairs_are_predicted_better_than_by_an_additive_model() -> None:
    path = shared_file()
    if path is None:
        pytest.skip("needs the reference data folder (TRIMTAB_SHARED)")
    data = load(path)
    seed = REPORTED_SEEDS[0]
    for card in ("K80", "P100"):
        known, unknown = draw(data.of(card), 0.25, seed)
        told = ours(known, unknown, tuple(s for s in data.solos if s.card == card), seed)
        mine, auc = score(unknown, told["middle"].to_numpy())
        theirs, theirs_auc = score(unknown, additive(known, unknown))
        assert mine > theirs + 0.05
        assert auc > theirs_auc


def test_the_ceiling_tells_what_its_parts_can_express_and_nothing_of_what_they_cannot() -> None:
    """A truth of rates alone, alike on both kinds, is told from a few pairs; a coin for each pair is not."""
    rates = np.linspace(-1.0, 1.0, 6)
    rng = np.random.default_rng(3)
    solos = [
        Solo(f"w{i}", card, features={"log rate": k * rates[i]}) for card, k in (("A", 1), ("B", 2)) for i in range(6)
    ]
    own = rates[:, None] - rates
    for logs, least, most in ((0.6 + 0.1 * own, 0.9, 1.0), (0.6 + 0.1 * rng.normal(size=(6, 6)), -1.0, 0.3)):
        here, there = as_pairs(logs, "A"), as_pairs(logs if least > 0 else rng.permutation(logs), "B")
        few, rest = draw(here, 0.1, 1)
        told = Ceiling([*here, *there], solos).told([*there, *few], rest)
        assert least <= score(rest, told)[0] <= most


# TT111


def node_with_pair(make_node: MakeNode, *, memory: float = 10e9) -> Node:
    """`a` and `b` share GPU-1 but work alone for an hour each; `c` has GPU-2 to itself; `d` never works."""
    node = make_node(hours=6)
    minutes = np.arange(node.count)
    for gpu in ("GPU-1", "GPU-2"):
        node.fact("gpu", "model", CARD, gpu=gpu)
    a = np.where(minutes < 60, 0.9, np.where(minutes < 120, 0.0, 0.5))
    b = np.where(minutes < 60, 0.0, np.where(minutes < 120, 0.8, 0.5))
    node.card("GPU-1", sm_active_ratio=np.minimum(a + b, 1.0), memory_used_bytes=20e9, memory_free_bytes=20e9)
    node.card("GPU-2", sm_active_ratio=0.1, memory_used_bytes=10e9, memory_free_bytes=30e9)
    node.slice("s-a", workload="a", sm_active_ratio=a, memory_used_bytes=memory)
    node.slice("s-b", workload="b", sm_active_ratio=b, memory_used_bytes=memory)
    node.slice("s-c", gpu="GPU-2", kind="whole", workload="c", sm_active_ratio=0.1, memory_used_bytes=10e9)
    node.slice("s-d", gpu="GPU-2", workload="d", sm_active_ratio=0.0, memory_used_bytes=1e9)
    node.slice("s-u", gpu="GPU-2", workload="unknown", sm_active_ratio=0.0)
    node.slice("gi1", gpu="GPU-2", kind="mig", workload="m", sm_active_ratio=0.0)
    return node


def pair_finding(node: Node, victim: str, suspect: str, effect: tuple[float, float, float], **rest: Any) -> Finding:
    subjects = tuple(
        SubjectRef(role, "c", node.name, "GPU-1", f"s-{name}", name, "team")
        for role, name in ((Role.VICTIM, victim), (Role.SUSPECT, suspect))
    )
    verdict = rest.get("verdict", Verdict.HOLDS)
    size = Effect(effect[0], "ratio", effect[1], effect[2])
    return make_finding(
        "TT101", verdict, subjects, node.window, claim="x", risk="x", confidence=1.0, coverage=1.0, effect=size
    )


class TestConformance(DetectorConformance):
    @pytest.fixture(autouse=True)
    def _node(self, make_node: MakeNode) -> None:
        self.node = node_with_pair(make_node)

    def detector(self) -> ColocationDetector:
        return ColocationDetector(AnalyzeSettings())

    def partition(self) -> Partition:
        return self.node.partition()

    def context(self) -> Context:
        return self.node.context(findings=(pair_finding(self.node, "a", "b", (0.9, 0.85, 0.95)),))


def test_profiles_are_of_the_time_alone_and_at_work(make_node: MakeNode) -> None:
    rows = ColocationDetector().measure(node_with_pair(make_node).partition()).set_index("workload")
    assert rows.loc["a", "sm"] == pytest.approx(0.9)
    assert rows.loc["b", "sm"] == pytest.approx(0.8)
    assert rows.loc["a", "samples"] == 60
    assert rows.loc["a", "memory"] == pytest.approx(0.25)
    assert rows.loc["c", "sm"] == pytest.approx(0.1)
    assert math.isnan(rows.loc["d", "sm"])
    assert (rows["model"] == CARD).all()


def test_a_measured_pair_that_costs_too_much_must_not_share(make_node: MakeNode) -> None:
    node = node_with_pair(make_node)
    detector = ColocationDetector()
    measures = detector.measure(node.partition())
    hurt = [pair_finding(node, "a", "b", (0.9, 0.85, 0.95)), pair_finding(node, "b", "a", (0.8, 0.75, 0.85))]
    found = detector.conclude(measures, node.context(findings=tuple(hurt))).findings
    (pair,) = [f for f in found if {s.workload for s in f.subjects} == {"a", "b"}]
    assert pair.verdict is Verdict.HOLDS
    assert pair.effect is not None
    assert pair.effect.value == pytest.approx(0.9, abs=0.05)
    assert pair.effect.lower > 0.25
    assert pair.evidence["rests_on"] == Basis.MEASURED.value
    assert pair.evidence["met"] is True
    assert "must not share one A100" in pair.claim


@pytest.mark.parametrize("verdict", [Verdict.CANNOT_TELL, Verdict.NO_EFFECT])
def test_what_is_not_the_pairs_doing_says_nothing_of_it(make_node: MakeNode, verdict: Verdict) -> None:
    node = node_with_pair(make_node)
    detector = ColocationDetector()
    measures = detector.measure(node.partition())
    refuted = pair_finding(node, "a", "b", (0.9, 0.85, 0.95), verdict=verdict)
    found = detector.conclude(measures, node.context(findings=(refuted,))).findings
    assert {f.evidence["rests_on"] for f in found} <= {Basis.PROFILES.value, Basis.NOTHING.value}


def test_two_that_do_not_fit_together(make_node: MakeNode) -> None:
    node = node_with_pair(make_node, memory=30e9)
    detector = ColocationDetector()
    found = detector.conclude(detector.measure(node.partition()), node.context()).findings
    (pair,) = [f for f in found if {s.workload for s in f.subjects} == {"a", "b"}]
    assert (pair.verdict, pair.channel) == (Verdict.HOLDS, "memory")
    assert "150%" in pair.claim
    assert pair.effect is None  # they cannot run together: nothing is slower


def test_who_met_and_is_unknown_is_said_and_counted(make_node: MakeNode) -> None:
    node = node_with_pair(make_node)
    detector = ColocationDetector()
    concluded = detector.conclude(detector.measure(node.partition()), node.context())
    (pair,) = [f for f in concluded.findings if {s.workload for s in f.subjects} == {"c", "d"}]
    assert pair.verdict is Verdict.CANNOT_TELL
    assert pair.effect is None
    assert pair.needs
    reasons = {w.slice: (w.applicable, w.reason) for w in concluded.withheld}
    assert set(reasons) == {"s-d", "s-u", "gi1"}
    assert reasons["gi1"][0] is False
    census = take_census(measure_subjects(node.partition()), ["TT111"], concluded.withheld)
    assert (census.codes[0].analysed, census.codes[0].withheld, census.codes[0].not_applicable) == (3, 2, 1)
