from __future__ import annotations

from datetime import timedelta

import pytest

from collector.errors import RefusedError
from tests.tuner.fakes import START, change, declared, group, held, plan, queue_target, slice_target, world_of
from tuner.consent import approve, decide, propose, reject, request_roll_back
from tuner.guards import Facts, run_guards
from tuner.guards.mode import mode_of
from tuner.journal import entries, record_plan, step
from tuner.model import Eviction, Group, Mode, Target
from tuner.record import ChangeState, Decision, GroupRecord
from tuner.settings import ModeSettings, TunerSettings
from tuner.state import State, get_group

A, V, Q = slice_target("a"), slice_target("v"), queue_target("blue")
CARD = Target("card", "c", "n0", "GPU-0")
STATES = [
    held(A, {"sm_quota_ratio": 0.2}, workload="a"),
    held(V, {"sm_quota_ratio": 0.5}, kind="vgpu", workload="v"),
    held(Q, {"quota_gpu_count": 8.0}, workload="", tenant="blue"),
    held(CARD, {"mig_profile": 1.0}),
]
AUTO = TunerSettings(mode=Mode.AUTO)
HOUR = timedelta(hours=1)


def decision(of: Group, settings: TunerSettings = AUTO, **rest: object) -> tuple[Decision, str]:
    return decide(of, Facts(world_of(STATES, **rest), plan(of)), settings)


def test_modes_by_cluster_tenant_and_kind() -> None:
    settings = TunerSettings(
        mode=Mode.AUTO,
        modes=(
            ModeSettings(tenant="blue", mode=Mode.RECOMMEND),
            ModeSettings(kind="give", cluster="c", mode=Mode.APPROVE),
        ),
    )
    facts = Facts(world_of(STATES), plan())
    one, other = change(A, 0.2, 0.3), change(Q, 8, 9, "quota_gpu_count")
    assert mode_of(group(one), facts, settings) is Mode.APPROVE
    assert mode_of(group(one, kind="reserve"), facts, settings) is Mode.AUTO
    assert mode_of(group(one, other), facts, settings) is Mode.RECOMMEND  # the most careful of all
    assert mode_of(group(), facts, settings) is Mode.AUTO


@pytest.mark.parametrize(
    ("mode", "expected"), [(Mode.RECOMMEND, "write_down"), (Mode.APPROVE, "ask"), (Mode.AUTO, "go")]
)
def test_decision_follows_the_mode(mode: Mode, expected: Decision) -> None:
    assert decision(group(change(A, 0.2, 0.3)), TunerSettings(mode=mode)) == (expected, f"mode {mode.value}")


def test_advice_says_that_nobody_knows_who_would_be_evicted() -> None:
    lower, advice = group(change(Q, 8, 4, "quota_gpu_count")), TunerSettings(mode=Mode.RECOMMEND)
    assert decision(lower, advice) == ("write_down", "mode recommend; it can evict, and nobody has predicted whom")
    assert decision(lower, advice, evictions={"g1": ()}) == ("write_down", "mode recommend")


def test_auto_asks_for_what_cannot_be_undone_at_will() -> None:
    assert decision(group(change(CARD, 1, 2, "mig_profile"))) == ("ask", "it needs drain")
    restart = group(change(V, 0.5, 0.4))
    assert decision(restart) == ("ask", "it restarts offline work, and auto_restart_offline is off")
    allowed = TunerSettings(mode=Mode.AUTO, auto_restart_offline=True)
    assert decision(restart, allowed) == ("go", "mode auto")
    online = {("c", "t", "v"): declared("t", "v", service_class="online")}
    assert decision(restart, allowed, declarations=online)[1] == "it restarts online work (slice c/n0/GPU-0/v)"
    assert decision(restart, allowed, declarations={})[0] == "ask"


def test_evictions_are_off_in_auto_until_armed() -> None:
    lower = group(change(Q, 8, 4, "quota_gpu_count"))
    victims = {"g1": [Eviction(Q, "blue/job", 2, "at once")]}
    assert decision(lower, evictions=victims) == (
        "ask",
        "it lets the scheduler evict 2 of blue/job, and auto_evict is off",
    )
    assert decision(lower, TunerSettings(mode=Mode.AUTO, auto_evict=True), evictions=victims)[0] == "go"
    assert decision(lower, evictions={"g1": ()})[0] == "go"


def test_three_regressions_on_a_card_disarm_the_kind_for_a_day() -> None:
    def failed(hours: float, name: str, kind: str = "give") -> GroupRecord:
        at = START - hours * HOUR
        return GroupRecord(
            group(change(A, 0.2, 0.3), name=name, kind=kind),
            "p0",
            ChangeState.ROLLED_BACK,
            "go",
            "",
            at,
            at,
            intent_at=at,
            settled_at=at,
        )

    wanted = group(change(A, 0.2, 0.3))
    three = [failed(20, "f1"), failed(10, "f2"), failed(5, "f3")]
    assert decision(wanted, past=three) == ("ask", "give was rolled back 3 times on card c/n0/GPU-0 within a day")
    assert decision(wanted, past=three[:2])[0] == "go"
    assert decision(wanted, past=[failed(25, "f1"), *three[1:]])[0] == "go"
    assert decision(wanted, past=[failed(20, "f1", "reserve"), *three[1:]])[0] == "go"


def test_proposals_carry_what_the_journal_needs() -> None:
    groups = (group(change(V, 0.5, 0.4)), group(change(Q, 8, 4, "quota_gpu_count"), name="g2"))
    world = world_of(STATES, evictions={"g2": [Eviction(Q, "blue/job", 2, "at once")]})
    records = propose(run_guards(plan(*groups), world, AUTO), world, AUTO, now=START)
    assert [(r.decision, r.restarts, r.evictions) for r in records] == [("ask", 1, 0), ("ask", 0, 2)]
    assert records[0].until == START + timedelta(days=1)
    free = TunerSettings(mode=Mode.RECOMMEND)
    assert propose(run_guards(plan(*groups), world, free), world, free, now=START)[0].until is None


@pytest.fixture
def asked(state: State) -> State:
    wanted = group(change(A, 0.2, 0.3))
    until = START + 2 * HOUR
    record = GroupRecord(wanted, "p1", ChangeState.PLANNED, "ask", "mode approve", START, START, until=until)
    record_plan(state, plan(wanted), [record], [], actor="tuner", now=START)
    return state


def test_approval_says_who_why_and_until_when(asked: State) -> None:
    record = approve(asked, "g1", who="ann", why="looks right", role="operator", now=START, until=START + HOUR)
    assert (record.state, record.until) == (ChangeState.APPROVED, START + HOUR)
    last = entries(asked)[-1]
    assert (last.event, last.actor) == ("approved", "ann")
    assert last.body == {
        "who": "ann",
        "why": "looks right",
        "reason": "looks right",
        "until": "2026-03-02T01:00:00+00:00",
    }


def test_approval_lasts_as_long_as_the_ask_by_default(asked: State) -> None:
    assert approve(asked, "g1", who="ann", why="ok", role="admin", now=START).until == START + 2 * HOUR


def test_rejecting_even_after_approving(asked: State) -> None:
    approve(asked, "g1", who="ann", why="ok", role="operator", now=START)
    record = reject(asked, "g1", who="bob", why="not today", role="operator", now=START)
    assert (record.state, record.reason) == (ChangeState.REFUSED, "not today")
    with pytest.raises(RefusedError, match="g1 is refused: it does not wait"):
        approve(asked, "g1", who="ann", why="ok", role="operator", now=START)


@pytest.mark.parametrize(
    ("change_id", "rest", "words"),
    [
        ("g1", {"role": "viewer"}, "expected the role operator or admin, got 'viewer'"),
        ("g1", {"who": " "}, "needs who and why"),
        ("g1", {"why": ""}, "needs who and why"),
        ("nope", {}, "expected a change 'nope', found none"),
        ("g1", {"now": START + 2 * HOUR}, "its time is over"),
        ("g1", {"until": START}, "expected an approval that ends after"),
    ],
)
def test_refused_answers(asked: State, change_id: str, rest: dict[str, object], words: str) -> None:
    values: dict[str, object] = {"who": "ann", "why": "ok", "role": "operator", "now": START, **rest}
    with pytest.raises(RefusedError, match=words):
        approve(asked, change_id, **values)  # type: ignore[arg-type]
    assert len(entries(asked)) == 1


def test_what_is_only_written_down_cannot_be_approved(state: State) -> None:
    wanted = group(change(A, 0.2, 0.3))
    record = GroupRecord(wanted, "p1", ChangeState.PLANNED, "write_down", "mode recommend", START, START)
    record_plan(state, plan(wanted), [record], [], actor="tuner", now=START)
    with pytest.raises(RefusedError, match="g1 is planned, to write_down"):
        approve(state, "g1", who="ann", why="ok", role="operator", now=START)


def test_an_answer_that_comes_second_is_refused(asked: State, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = get_group(asked, "g1")
    step(asked, "g1", ChangeState.EXPIRED, at=START, actor="tuner", reason="late")
    monkeypatch.setattr("tuner.consent.get_group", lambda _state, _id: stale)
    with pytest.raises(RefusedError, match="g1 is expired: it cannot become approved"):
        approve(asked, "g1", who="ann", why="ok", role="operator", now=START)


def test_only_what_is_in_force_can_be_rolled_back(asked: State) -> None:
    ask = {"who": "ann", "why": "it hurts", "role": "operator", "now": START}
    with pytest.raises(RefusedError, match="only one that is in force"):
        request_roll_back(asked, "g1", **ask)  # type: ignore[arg-type]
    for to in (ChangeState.APPROVED, ChangeState.INTENT, ChangeState.APPLIED, ChangeState.READ_BACK):
        step(asked, "g1", to, at=START, actor="tuner", reason="r")
    step(asked, "g1", ChangeState.VERIFYING, at=START, actor="tuner", reason="r")
    with pytest.raises(RefusedError, match="viewer"):
        request_roll_back(asked, "g1", **{**ask, "role": "viewer"})  # type: ignore[arg-type]
    record = request_roll_back(asked, "g1", **ask)  # type: ignore[arg-type]
    assert (record.state, record.reason) == (ChangeState.ROLLING_BACK, "it hurts")
