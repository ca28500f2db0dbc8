"""The sentence of a pair: names that tell two apart, the interval, since when, the channel, what to do."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from analyzer.contention.record import PairMeasure
from analyzer.contention.verdict import Judgement, judge
from analyzer.contention.words import describe, names
from analyzer.findings import Verdict

START = datetime(2026, 3, 2, tzinfo=UTC)


def pair(**changes: object) -> PairMeasure:
    values = {
        "cluster": "c",
        "node": "n",
        "gpu": "GPU-1",
        "victim": "ns/chat-0/main/0",
        "suspect": "ns/train-0/main/0",
        "victim_tenant": "language",
        "victim_workload": "chat",
        "suspect_tenant": "research",
        "suspect_workload": "train",
        "effect": 0.23,
        "effect_lower": 0.17,
        "effect_upper": 0.29,
        "lag_seconds": 0.0,
        "episodes": 14.0,
        "first_met": 373.0,
        "channel": "dram",
    }
    return PairMeasure(**{**values, **changes})  # type: ignore[arg-type]  # a test's own values


def told(measure: PairMeasure, verdict: Verdict, reason: str = "", needs: tuple[str, ...] = ()) -> str:
    return describe(measure, Judgement(verdict, reason, needs, 0.9), START, 60.0)


def test_what_holds_is_told_whole() -> None:
    assert told(pair(), Verdict.HOLDS) == (
        "language/chat on GPU-1 is 23% slower (17% to 29%) while research/train is busy, "
        "14 times since 2026-03-02 06:13 UTC, "
        "through memory bandwidth; move one of them to another card, or lower the share of research/train"
    )


def test_a_late_effect_of_another_card_from_the_start_on() -> None:
    across = pair(suspect_gpu="GPU-2", channel="pcie", lag_seconds=120.0, first_met=0.0, episodes=1.0)
    assert told(across, Verdict.HOLDS) == (
        "language/chat on GPU-1 is 23% slower (17% to 29%) 2 min after research/train on GPU-2 is busy, "
        "since 2026-03-02 00:00 UTC or earlier, through PCIe; "
        "move one of them to another node, or to cards that do not share the link"
    )


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"victim_kind": "mig", "suspect_kind": "mig", "channel": "pcie"}, "; move one of them to another card"),
        (
            {"suspect_gpu": "GPU-2", "channel": "host"},
            "; give them CPUs of their own, or move one of them to another node",
        ),
    ],
)
def test_the_advice_is_one_that_can_help(changes: dict[str, object], advice: str) -> None:
    assert told(pair(**changes), Verdict.HOLDS).endswith(advice)


def test_what_is_suspected_says_why_it_is_no_more_and_what_would_decide_it() -> None:
    reason = "the suspect serves requests, and more of them may come because the victim is slow (retries)"
    needs = ("a scheduled start or stop of the suspect", "a short throttle of the suspect")
    claim = told(pair(), Verdict.SUSPECTED, reason, needs)
    assert claim.endswith(
        "but research/train serves requests, and more of them may come because language/chat is slow (retries); "
        "it would take a scheduled start or stop of research/train, or a short throttle of research/train"
    )


def test_what_cannot_be_told_names_both_and_what_would_decide_it() -> None:
    claim = told(pair(), Verdict.CANNOT_TELL, "the suspect became busy only once", ("a second start of the suspect",))
    assert claim == (
        "whether research/train slows language/chat on GPU-1 cannot be told: research/train became busy only once; "
        "it would take a second start of research/train"
    )


def test_two_alike_are_told_apart_by_their_slices() -> None:
    twins = pair(suspect_tenant="language", suspect_workload="chat")
    assert names(twins) == ("language/chat (ns/chat-0/main/0)", "language/chat (ns/train-0/main/0)")


def test_who_has_no_workload_is_its_slice() -> None:
    assert names(pair(victim_workload="unknown", suspect_workload=""))[0] == "ns/chat-0/main/0"
    assert names(pair(victim_workload="unknown", suspect_workload=""))[1] == "ns/train-0/main/0"


@pytest.mark.parametrize(
    ("upper", "hidden"), [(0.43, "43% slower would not show"), (11.3, "twice as slow would not show")]
)
def test_a_noisy_victim_says_what_could_hide(upper: float, hidden: str) -> None:
    noisy = pair(p=0.5, effect_lower=-0.1, effect_upper=upper)
    judgement = judge(noisy, 0.9, fdr=0.005, effect_floor=0.02, coverage_floor=0.5)
    assert judgement.verdict is Verdict.CANNOT_TELL
    assert hidden in judgement.reason
