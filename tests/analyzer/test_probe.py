"""Probes: the coins give the p-value, the numbers are those that were planted, and a result changes its verdict."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.contention import ContentionDetector
from analyzer.contention.experiment import Experiment, experiment_fact, experiments, judge_experiment
from analyzer.contention.probe import (
    BlockPair,
    Ground,
    ProbeResult,
    Prospect,
    analyse_probe,
    coins,
    nothing,
    pairs_to_run,
    sign_flip,
)
from analyzer.facts import FACT_COLUMNS
from analyzer.findings import Finding, Role, Verdict
from analyzer.protocols import Context, Partition
from benchmarks.contention import partition
from benchmarks.contention_probe import run_trial
from benchmarks.contention_scenarios import make_world
from benchmarks.contention_worlds import START
from collector.batch import Fact, Subject

SEED = 7
CARD = Subject("gpu", "c", "n", "GPU-0")
END = datetime(2026, 3, 4, tzinfo=UTC)
FOUND = ProbeResult(p=0.001, effect=0.3, lower=0.2, upper=0.4, pairs=20, taken=0.75, lag_seconds=60.0)
CLEARED = replace(FOUND, p=0.6, effect=0.01, lower=-0.02, upper=0.04)
NONE = pd.DataFrame()


def frame(*facts: Fact) -> pd.DataFrame:
    rows = [
        (f.subject.kind, f.subject.cluster, f.subject.node, f.subject.gpu, "", "", f.name, f.value, f.at, None, "")
        for f in facts
    ]
    table = pd.DataFrame(rows, columns=list(FACT_COLUMNS))
    return table.assign(**{"from": pd.to_datetime(table["from"], utc=True)})


# -- the test ------------------------------------------------------------------------------------------------------


def test_p_is_the_share_of_flips_that_do_as_well() -> None:
    scores = np.array([[1.0, 1.0, 1.0, 1.0]])
    assert sign_flip(scores, np.array([1.0, 1.0, 1.0, 1.0])) == (1 / 16, 0)
    assert sign_flip(scores, np.array([1.0, 1.0, 1.0, -1.0])) == (5 / 16, 0)  # sums of 2 and 4
    assert sign_flip(scores, np.array([-1.0, -1.0, -1.0, -1.0])) == (1.0, 0)


def test_the_lag_that_fits_best_is_named_and_paid_for() -> None:
    rng = np.random.default_rng(SEED)
    scores = rng.normal(0, 1, (3, 10))
    scores[2] = 3.0
    p, lag = sign_flip(scores, np.ones(10))
    assert lag == 2
    alone, _ = sign_flip(scores[2:], np.ones(10))
    assert alone == pytest.approx(2.0**-10)
    assert alone <= p <= 0.01


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(4, 11), st.integers(0, 1000))
def test_every_flip_of_an_exact_test_has_its_own_rank(k: int, seed: int) -> None:
    scores = np.random.default_rng(seed).standard_t(2, (1, k))
    flips = 1.0 - 2.0 * ((np.arange(2**k)[:, None] >> np.arange(k)) & 1)
    chosen = flips[np.random.default_rng(seed).integers(0, 2**k, 8)]
    sums = flips @ scores[0]
    for signs in chosen:
        assert sign_flip(scores, signs)[0] == pytest.approx(np.mean(sums >= scores[0] @ signs - 1e-9))


def test_many_pairs_are_sampled_and_give_the_same_answer_each_time() -> None:
    scores = np.random.default_rng(1).normal(0.4, 1, (2, 30))
    first = sign_flip(scores, np.ones(30))
    assert first == sign_flip(scores, np.ones(30))
    assert 1 / 4001 <= first[0] < 0.1


def test_coins_are_fair_and_remembered() -> None:
    assert coins(3, 12) == coins(3, 12)
    assert 460 <= sum(coins(3, 1000)) <= 540


# -- worlds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scenario", "number"), [("always_on", 0), ("always_on", 1), ("true_daily", 0)])
def test_an_effect_that_is_there_is_found_with_its_size(scenario: str, number: int) -> None:
    result = run_trial(scenario, SEED, number, ("v", "a"), 24).result
    assert result.problem == ""
    assert result.p < 0.005
    assert result.lower > 0.02
    assert 0.5 < result.taken < 0.9


@pytest.mark.parametrize("scenario", ["null_reverse_sync", "null_daily", "null_throttle", "hidden_third"])
def test_what_only_moves_with_the_victim_is_cleared(scenario: str) -> None:
    result = run_trial(scenario, SEED, 0, ("v", "a"), 24).result
    assert result.p > 0.01
    assert result.lower < 0.02


def trial_of(partition: Partition, gpu: str, throttled: bool) -> ProbeResult:
    start = START.to_pydatetime()
    blocks = [
        BlockPair(*(start + timedelta(minutes=m + s) for s in (0, 4, 8)), throttled_first=first)
        for m, first in zip(range(60, 300, 10), coins(1, 24), strict=True)
    ]
    ground = Ground.of(partition, gpu, "ns/v-0/main/0", "ns/a-0/main/0")
    assert isinstance(ground, Ground)
    return analyse_probe(ground, blocks if throttled else blocks[:3])


def test_a_throttle_that_does_not_bite_decides_nothing() -> None:
    part = partition("always_on", [make_world("always_on", SEED, 0, 360)])
    result = trial_of(part, "GPU-always_on-0", throttled=True)
    assert result.problem == "the throttle did not slow the suspect"
    assert math.isnan(result.p)


def test_too_few_blocks_decide_nothing() -> None:
    part = partition("always_on", [make_world("always_on", SEED, 0, 360)])
    assert "only 3 pairs" in trial_of(part, "GPU-always_on-0", throttled=False).problem


def test_a_ground_that_is_not_there_says_why() -> None:
    part = partition("always_on", [make_world("always_on", SEED, 0, 360)])
    assert Ground.of(part, "GPU-always_on-0", "ns/v-0/main/0", "ns/nobody/main/0") == (
        "the two are not on the card together"
    )
    unsaid = ("latency_p50_seconds", "requests_per_second", "tensor_active_ratio", "dram_active_ratio")
    mute = replace(part, slice=part.slice.assign(**dict.fromkeys(unsaid, np.nan)))
    assert "no time per unit of work" in str(Ground.of(mute, "GPU-always_on-0", "ns/v-0/main/0", "ns/a-0/main/0"))


# -- power ---------------------------------------------------------------------------------------------------------

CALM = Prospect(spread=0.05, level=0.5, swing=0.5, busy_share=1.0)


def test_pairs_follow_the_formula_of_power() -> None:
    contrast = math.log1p(0.05) * 0.75
    assert CALM.contrast(0.05, 0.75) == pytest.approx(contrast)
    z = 2.747781 + 1.644854  # one-sided 0.003, power 0.95
    assert CALM.pairs_needed(0.05, 0.75) == math.ceil((z * 0.05 / contrast) ** 2)
    assert CALM.pairs_needed(0.5, 0.75) == 16  # never fewer
    assert CALM.pairs_needed(0.05, 0.0) == math.inf


def test_what_no_bounded_trial_decides_is_not_tried() -> None:
    assert pairs_to_run(CALM, 0.2, 0.75, 40) == 16
    assert pairs_to_run(CALM, math.nan, 0.75, 40) == 37
    assert pairs_to_run(replace(CALM, spread=0.2), math.nan, 0.75, 40) == 0
    assert pairs_to_run(replace(CALM, spread=math.nan), 0.2, 0.75, 40) == 0


# -- results -------------------------------------------------------------------------------------------------------


def test_a_result_is_a_dated_fact_and_comes_back_whole() -> None:
    facts = frame(experiment_fact(CARD, "t/chat", "t/train", Experiment(FOUND, "g-1", END)))
    (key, experiment), *rest = experiments(facts, END).items()
    assert not rest
    assert key == ("c", "n", "GPU-0", "t/chat", "t/train")
    assert experiment == Experiment(FOUND, "g-1", END, q=0.001)


def test_a_trial_without_an_answer_is_remembered_too() -> None:
    facts = frame(experiment_fact(CARD, "v", "s", Experiment(nothing(3, "it ended early"), "g-1", END)))
    (experiment,) = experiments(facts, END).values()
    assert experiment.result.problem == "it ended early"
    assert judge_experiment(experiment, fdr=0.05, effect_floor=0.02) is None


def test_old_future_and_broken_results_decide_nothing() -> None:
    old = experiment_fact(CARD, "v", "s", Experiment(FOUND, "g-1", END - timedelta(days=15)))
    ahead = experiment_fact(CARD, "v", "t", Experiment(FOUND, "g-1", END + timedelta(days=1)))
    broken = [Fact(CARD, "probe:v<u", value, END) for value in ("{", "[]", '{"p": 1}')]
    assert experiments(frame(old, ahead, *broken), END) == {}
    assert experiments(NONE, END) == {}


def test_the_newest_result_of_a_pair_counts() -> None:
    first = experiment_fact(CARD, "v", "s", Experiment(FOUND, "g-1", END - timedelta(days=1)))
    second = experiment_fact(CARD, "v", "s", Experiment(CLEARED, "g-2", END))
    assert [e.change for e in experiments(frame(second, first), END).values()] == ["g-2"]


def test_probes_share_one_false_discovery_rate() -> None:
    lucky = replace(FOUND, p=0.03)
    facts = [experiment_fact(CARD, "v", f"s{i}", Experiment(CLEARED, "g", END)) for i in range(9)]
    facts.append(experiment_fact(CARD, "v", "s", Experiment(lucky, "g", END)))
    found = experiments(frame(*facts), END)["c", "n", "GPU-0", "v", "s"]
    assert found.q == pytest.approx(0.3)
    assert judge_experiment(found, fdr=0.05, effect_floor=0.02) is None
    assert judge_experiment(replace(found, q=0.03), fdr=0.05, effect_floor=0.02) is not None


def test_a_suspicion_is_cleared_where_not_half_of_it_is_left() -> None:
    wide = Experiment(replace(CLEARED, upper=0.15), "g", END, q=0.9)
    assert judge_experiment(wide, fdr=0.05, effect_floor=0.02) is None
    judgement = judge_experiment(wide, fdr=0.05, effect_floor=0.02, watched=0.4)
    assert judgement is not None
    assert judgement.verdict is Verdict.NO_EFFECT


def test_a_suspicion_of_which_some_is_left_stays() -> None:
    smaller = Experiment(replace(CLEARED, effect=0.12, lower=0.05, upper=0.19), "g", END, q=0.2)
    assert judge_experiment(smaller, fdr=0.05, effect_floor=0.02, watched=0.6) is None
    reaches_nothing = Experiment(replace(smaller.result, lower=0.0), "g", END, q=0.2)
    assert judge_experiment(reaches_nothing, fdr=0.05, effect_floor=0.02, watched=0.6) is not None


def test_the_full_swing_is_known_where_the_suspect_worked_in_the_trial_alone() -> None:
    world = make_world("always_on", SEED, 0, 480)
    blocks = [
        BlockPair(*(START.to_pydatetime() + timedelta(minutes=m + s) for s in (0, 4, 8)), throttled_first=first)
        for m, first in zip(range(240, 468, 12), coins(1, 19), strict=True)
    ]
    when = np.zeros(world.n, dtype=bool)
    for m, block in zip(range(240, 468, 12), blocks, strict=True):
        first = m if block.throttled_first else m + 4
        when[first : first + 4] = True
    tried = world.throttled("a", when, 0.25)
    ground = Ground.of(partition("always_on", [tried]), "GPU-always_on-0", "ns/v-0/main/0", "ns/a-0/main/0")
    assert isinstance(ground, Ground)
    quiet = ground.activity.copy()
    quiet[:238] = 0.001  # it came with the trial
    whole, late = analyse_probe(ground, blocks), analyse_probe(replace(ground, activity=quiet), blocks)
    assert late.effect == pytest.approx(whole.effect, rel=0.2)
    assert 0.02 < late.effect < 1.0


def decided(result: ProbeResult) -> Finding:
    part = partition("always_on", [make_world("always_on", SEED, 0, 720)])
    detector = ContentionDetector()
    card = Subject("gpu", "bench", "always_on", "GPU-always_on-0")
    fact = experiment_fact(card, "ns/v", "ns/a", Experiment(result, "g-1", part.window.end))
    context = Context(part.window, 60.0, frame(fact), NONE, NONE, {})
    for finding in detector.conclude(detector.measure(part), context).findings:
        if (finding.subject(Role.VICTIM).workload, finding.subject(Role.SUSPECT).workload) == ("v", "a"):
            return finding
    raise AssertionError("the pair has no finding")


def test_what_watching_left_open_holds_by_experiment() -> None:
    finding = decided(FOUND)
    assert finding.verdict is Verdict.HOLDS
    assert "by experiment: 20 pairs of blocks" in finding.claim
    assert finding.effect is not None
    assert (finding.effect.value, finding.effect.lower, finding.effect.upper) == (0.3, 0.2, 0.4)
    assert finding.lag_seconds == 60.0
    assert finding.evidence["probe"]["change"] == "g-1"
    assert finding.evidence["probe"]["at"].startswith("2026-")
    assert finding.needs == ()


def test_what_watching_left_open_is_cleared_by_experiment() -> None:
    finding = decided(CLEARED)
    assert finding.verdict is Verdict.NO_EFFECT
    assert "at most 4% slower while it is busiest, by experiment" in finding.claim


def test_a_trial_that_decided_nothing_leaves_the_verdict_and_is_told() -> None:
    finding = decided(nothing(2, "it ended early"))
    assert finding.verdict is Verdict.CANNOT_TELL
    assert finding.evidence["probe"]["problem"] == "it ended early"
