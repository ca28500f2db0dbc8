"""A way back is held only where a later change of ours has taken the room that it needs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from collector.clock import VirtualClock
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from tests.tuner.fakes import KNOBS, START, backend_with, change, group, held, plan, slice_target
from tuner.consent import request_roll_back
from tuner.execute import execute
from tuner.guards import domain_of
from tuner.journal import record_plan
from tuner.lease import Lease
from tuner.model import BackendState, Group
from tuner.place import inverse, undone_id
from tuner.record import ChangeState, GroupRecord
from tuner.service.cycle import Tuner, TunerParts
from tuner.service.undo import lacks_room, raised_since
from tuner.settings import StateSettings, TunerSettings
from tuner.state import State, get_group
from tuner.writer import Writer

A, B, C = slice_target("a"), slice_target("b"), slice_target("c", "GPU-1")
CARD = domain_of(A)
LOWER, RAISE = group(change(A, 0.5, 0.2)), group(change(B, 0.5, 0.8), name="g2")


def record(of: Group, minutes: float, state: ChangeState = ChangeState.CONFIRMED, **rest: object) -> GroupRecord:
    at = START + timedelta(minutes=minutes)
    return GroupRecord(of, "p", state, "go", "", at, at, intent_at=at, **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("later", "found"),
    [
        (record(RAISE, 1), {CARD}),
        (record(RAISE, -1), set()),  # it was there before
        (record(RAISE, 1, ChangeState.ROLLED_BACK), set()),
        (record(RAISE, 1, ChangeState.NOT_APPLIED), set()),
        (record(RAISE, 1, evidence={"pretended": True}), set()),
        (record(group(change(B, 0.5, 0.1), name="g2"), 1), set()),
        (record(group(change(C, 0.5, 0.8), name="g2"), 1), set()),
    ],
)
def test_where_a_later_change_raised_something(later: GroupRecord, found: set[object]) -> None:
    assert raised_since(record(LOWER, 0), [record(LOWER, 0), later]) == found


def test_room_is_looked_for_only_where_it_was_taken_and_is_known() -> None:
    undo = inverse(LOWER)
    assert undone_id(undo) == "g1"

    def said(b: float, *, taken: bool = True, whole: float = 1.0, reserve: float = 1.0) -> str | None:
        state = BackendState(START, {t: held(t, {"sm_quota_ratio": v}) for t, v in ((A, 0.2), (B, b))})
        return lacks_room(
            undo,
            state,
            frozenset({CARD} if taken else ()),
            knobs=KNOBS,
            capacity={CARD: {"sm_quota_ratio": whole}},
            reserves={B: reserve},
            settings=TunerSettings(),
        )

    assert said(0.5) is None
    assert said(0.8) == "sm_quota_ratio of card c/n0/GPU-0 has room for 0, the group adds 0.3"
    assert said(0.8, reserve=0.4) is None  # a cap that online work only comes near
    assert said(0.8, taken=False) is None
    assert said(0.8, whole=float("nan")) is None


@pytest.mark.parametrize(("taken", "final"), [(True, ChangeState.ROLLBACK_BLOCKED), (False, ChangeState.ROLLED_BACK)])
def test_the_tuner_does_not_set_back_what_no_longer_fits(
    state: State, clock: VirtualClock, tmp_path: Path, taken: bool, final: ChangeState
) -> None:
    backend = backend_with(clock, held(A, {"sm_quota_ratio": 0.5}), held(B, {"sm_quota_ratio": 0.5}))
    lease, switch = Lease(state, "before", clock), tmp_path / "PAUSED"
    assert lease.acquire()
    writer = Writer(state, backend, clock, lease, switch, revalidate_seconds=0.0)
    for wanted in [LOWER, RAISE][: 1 + taken]:
        now = clock.now()
        planned = GroupRecord(wanted, wanted.id, ChangeState.PLANNED, "go", "", now, now)
        record_plan(state, plan(wanted, now=now, name=wanted.id), [planned], [], actor="test", now=now)
        assert execute(writer, wanted.id).state is ChangeState.VERIFYING
        found = get_group(state, wanted.id)
        assert found is not None
        writer.step(found, ChangeState.CONFIRMED, "kept")
        clock.advance(1)
    lease.release()
    request_roll_back(state, "g1", who="ann", why="back, please", role="operator", now=clock.now())
    store = EmbeddedStore(StoreSettings(path=tmp_path / "store"))
    tuner = Tuner(
        TunerParts(
            store=store,
            backend=backend,
            state=state,
            clock=clock,
            settings=TunerSettings(),
            state_settings=StateSettings(path=tmp_path / "state.db", kill_switch=switch),
            interval_seconds=60.0,
        )
    )
    steps = {s.group_id: s for s in tuner.run_once(clock.now()).steps}
    store.close()
    assert steps["g1"].state is final
    assert backend.value(A) == (0.2 if taken else 0.5)
    assert ("has room for 0" in steps["g1"].reason) is taken
