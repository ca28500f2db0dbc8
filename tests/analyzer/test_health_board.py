"""The health board: which cards to take out of sharing, and why."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from analyzer.findings import Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.health_board import CardState, health_board
from collector.window import Window

WINDOW = Window(datetime(2026, 1, 5, tzinfo=UTC), datetime(2026, 1, 6, tzinfo=UTC))


def finding(code: str, gpu: str, verdict: Verdict = Verdict.HOLDS, **evidence: Any) -> Finding:
    return make_finding(
        code,
        verdict,
        (SubjectRef(Role.SUBJECT, "c", "n", gpu),),
        WINDOW,
        claim="a claim",
        risk="a risk",
        confidence=0.9,
        coverage=1.0,
        evidence=evidence,
    )


def test_the_board_is_worst_first_and_takes_out_what_says_so() -> None:
    board = health_board(
        [
            finding("TT605", "watched", severity="warning", what_to_do="look"),
            finding("TT603", "hot", severity="error", what_to_do="cool it"),
            finding("TT601", "broken", severity="warning", what_to_do="restart"),
            finding("TT602", "broken", severity="critical", take_out=True, what_to_do="reset it"),
            finding("TT604", "gone", severity="critical", take_out=True),
        ]
    )
    assert [(card.gpu, card.state) for card in board] == [
        ("broken", CardState.TAKE_OUT),
        ("gone", CardState.TAKE_OUT),
        ("hot", CardState.SEE_TO),
        ("watched", CardState.WATCH),
    ]
    assert board[0].what_to_do == "reset it"
    assert [f.code for f in board[0].findings] == ["TT602", "TT601"]


def test_what_is_only_suspected_takes_no_card_out() -> None:
    board = health_board([finding("TT602", "a", Verdict.SUSPECTED, severity="critical", take_out=True)])
    assert board[0].state is CardState.WATCH


def test_other_claims_are_not_faults_of_a_card() -> None:
    nothing = [
        finding("TT606", "a", severity="error"),
        finding("TT401", "a"),
        finding("TT603", "a", Verdict.NO_EFFECT, severity="error"),
        finding("TT604", ""),
    ]
    assert health_board(nothing) == ()
