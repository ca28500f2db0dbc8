"""A backend may raise or answer anything: the tuner outlives it, and what decides is what the backend holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import pytest

from collector.clock import VirtualClock
from collector.errors import UnreachableError
from tests.tuner.fakes import FakeBackend, backend_with, held
from tests.tuner.test_execute import MOVE, A, B, Bench
from tuner.audit import verify_chain
from tuner.edge import apply_to, read_backend
from tuner.execute import execute
from tuner.model import ApplyResult, ApplyStatus, BackendState, Group, Target, TargetState
from tuner.record import ChangeState
from tuner.settle import recover
from tuner.state import State
from tuner.undo import roll_back

BEFORE, AFTER, HALF, FOREIGN = (0.2, 0.6), (0.5, 0.3), (0.2, 0.3), (0.07, 0.6)


@pytest.fixture
def rig(state: State, clock: VirtualClock, tmp_path: Path) -> Bench:
    states = [held(A, {"sm_quota_ratio": 0.2}), held(B, {"sm_quota_ratio": 0.6})]
    return Bench(state, backend_with(clock, *states), clock, tmp_path)


def lying(backend: FakeBackend, values: tuple[float, float], answer: Callable[[], object]) -> None:
    """Let the next write leave `values` behind and answer as told; later ones are honest."""
    honest = backend.apply

    def apply(group: Group, expected: Mapping[Target, str]) -> ApplyResult:
        backend.apply = honest  # type: ignore[method-assign]
        for change, value in zip(MOVE.changes, values, strict=True):
            backend.foreign(change, value)
        return cast("ApplyResult", answer())

    backend.apply = apply  # type: ignore[method-assign]


def broken() -> object:
    raise KeyError("pod \ud800 x")


ANSWERS: list[Callable[[], object]] = [
    broken,
    lambda: None,
    lambda: ApplyResult("applied"),  # type: ignore[arg-type]
    lambda: ApplyResult(ApplyStatus.APPLIED, "", math.nan),
    lambda: ApplyResult(ApplyStatus.ACCEPTED, "", math.inf),
    lambda: ApplyResult(ApplyStatus.ACCEPTED, "", 86401.0),
    lambda: ApplyResult(ApplyStatus.ACCEPTED, "", -1.0),
    lambda: ApplyResult(ApplyStatus.ACCEPTED, "", "soon"),  # type: ignore[arg-type]
    lambda: ApplyResult(ApplyStatus.REFUSED, "no"),
    lambda: ApplyResult(ApplyStatus.CONFLICT),
    lambda: ApplyResult(ApplyStatus.RETRY_LATER),
]
FINALS = {
    AFTER: (ChangeState.VERIFYING, AFTER),
    HALF: (ChangeState.ROLLED_BACK, BEFORE),
    FOREIGN: (ChangeState.FOREIGN_CHANGE, FOREIGN),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("left", list(FINALS))
def test_what_was_written_decides_whatever_the_answer_was(
    rig: Bench, answer: Callable[[], object], left: tuple[float, float]
) -> None:
    rig.planned(MOVE)
    lying(rig.backend, left, answer)
    assert execute(rig.writer, "g1").state is ChangeState.INTENT
    rig.clock.advance(200)
    assert recover(rig.writer)[0].state is FINALS[left][0]
    assert rig.values == FINALS[left][1]
    assert verify_chain(rig.state).ok


def test_the_longest_settling_that_is_believed_is_a_day(rig: Bench) -> None:
    rig.planned(MOVE)
    lying(rig.backend, BEFORE, lambda: ApplyResult(ApplyStatus.ACCEPTED, "slow", 86400.0))
    assert execute(rig.writer, "g1").state is ChangeState.APPLIED
    rig.clock.advance(86000)
    assert recover(rig.writer)[0].state is ChangeState.APPLIED


def test_a_refused_way_back_that_was_gone_is_rolled_back(rig: Bench) -> None:
    rig.planned(MOVE)
    execute(rig.writer, "g1")
    lying(rig.backend, BEFORE, lambda: ApplyResult(ApplyStatus.REFUSED))
    record = rig.writer.get("g1")
    assert roll_back(rig.writer, record, "worse").state is ChangeState.ROLLED_BACK


def odd(value: object) -> BackendState:
    return BackendState(  # what a careless plug-in builds
        read_at=None,  # type: ignore[arg-type]
        targets={A: TargetState(A, {"sm_quota_ratio": value}, {}, "1")},  # type: ignore[dict-item]
    )


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (broken, "KeyError"),
        (lambda: None, "expected a BackendState, got None"),
        (lambda: BackendState(None, [A]), "expected a BackendState"),  # type: ignore[arg-type]
        (lambda: BackendState(None, {A: 0.2}), "expected a TargetState"),  # type: ignore[arg-type, dict-item]
        (lambda: odd("0.2"), "expected a number for sm_quota_ratio"),
        (lambda: odd(True), "expected a number for sm_quota_ratio"),
        (lambda: odd(math.inf), "expected a number for sm_quota_ratio"),
    ],
)
def test_a_read_that_is_no_state_counts_as_no_answer(rig: Bench, answer: Callable[[], object], words: str) -> None:
    rig.planned(MOVE)
    rig.backend.read = lambda targets=None: cast("BackendState", answer())  # type: ignore[method-assign]
    with pytest.raises(UnreachableError, match=words):
        read_backend(rig.backend)
    step = execute(rig.writer, "g1")
    assert step.state is ChangeState.PLANNED
    assert words in step.reason


def test_a_proper_answer_passes_unchanged(rig: Bench) -> None:
    assert read_backend(rig.backend, [A]) == rig.backend.read([A])
    assert apply_to(rig.backend, MOVE, {A: "9"}) == ApplyResult(ApplyStatus.CONFLICT, "generation moved")
