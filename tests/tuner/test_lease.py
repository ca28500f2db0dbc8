from __future__ import annotations

import pytest

from collector.clock import VirtualClock
from tuner.journal import LeaseLostError, entries
from tuner.lease import Lease
from tuner.state import State


def test_one_holds_it_and_the_others_stand_by(state: State, clock: VirtualClock) -> None:
    first, second = Lease(state, "one", clock), Lease(state, "two", clock)
    assert first.acquire()
    assert not second.acquire()
    clock.advance(14)
    assert first.acquire()  # renewed
    clock.advance(14)
    assert not second.acquire()
    clock.advance(2)
    assert second.acquire()
    assert (first.fence.number, second.fence.number) == (1, 2)
    with pytest.raises(LeaseLostError, match=r"expected the lease 'tuner' with one \(number 1\), it is with two"):
        first.check()
    with pytest.raises(LeaseLostError, match="never acquired or lost"):
        first.check()
    assert not first.acquire()
    assert [e.event for e in entries(state)] == ["lease_taken", "lease_taken"]


def test_a_holder_that_slept_keeps_what_nobody_took(state: State, clock: VirtualClock) -> None:
    lease = Lease(state, "one", clock)
    assert lease.acquire()
    clock.advance(3600)
    assert lease.check().number == 1
    assert not Lease(state, "two", clock).acquire()  # renewed by the check


def test_released_is_free_at_once(state: State, clock: VirtualClock) -> None:
    first, second = Lease(state, "one", clock), Lease(state, "two", clock)
    first.release()
    assert first.acquire()
    first.release()
    assert second.acquire()
    assert second.fence.number == 2
    with pytest.raises(LeaseLostError):
        _ = first.fence


def test_the_same_name_in_a_new_process_is_another_holder(state: State, clock: VirtualClock) -> None:
    assert Lease(state, "one", clock).acquire()
    again = Lease(state, "one", clock)
    assert not again.acquire()
    clock.advance(15)
    assert again.acquire()
    assert again.fence.number == 2
