"""The rules of three schedulers on one pool of whole cards, as observed on the real ones."""

from __future__ import annotations

import dataclasses

import pytest

from sample_data.cluster.arrivals import JobArrival
from sample_data.cluster.presets import mixed
from sample_data.cluster.scheduler import Pool
from sample_data.cluster.spec import ClusterSpec, JobClass, QueueSpec, SchedulerRule, SliceSpec


def pool(rule: SchedulerRule, donor: float, taker: float, **queue: int) -> Pool:
    """Eight seats of four cards each, for two queues."""
    base = mixed(1)
    seat = next(s for s in base.slices if s.seat_class == "whole")
    seats: tuple[SliceSpec, ...] = tuple(dataclasses.replace(seat, ordinal=n) for n in range(8))
    spec: ClusterSpec = base.replace(
        scheduler=rule,
        slices=seats,
        job_classes=(JobClass("whole", 4.0, 1.0, (10.0, 20.0), 0.0),),
        queues=(QueueSpec("donor", donor, 0.5), QueueSpec("taker", taker, 0.5, **queue)),
    )
    return Pool(spec)


def submit(target: Pool, tenant: str, count: int, minute: int = 0) -> None:
    first = 1000 * minute + (500 if tenant == "taker" else 0)
    target.submit([JobArrival(minute, tenant, "whole", 60.0, first + n) for n in range(count)])


def held(target: Pool) -> tuple[float, float]:
    return target.allocated("donor"), target.allocated("taker")


def filled(rule: SchedulerRule, *, waiting: int, **queue: int) -> Pool:
    """The donor uses 24 of its 24 cards, the taker 8 of its 8, and `waiting` jobs of the taker wait."""
    target = pool(rule, 24.0, 8.0, **queue)
    submit(target, "donor", 6)
    submit(target, "taker", 2)
    target.schedule(0)
    assert held(target) == (24.0, 8.0)
    submit(target, "taker", waiting, 1)
    return target


@pytest.mark.parametrize("rule", ["kueue", "kai", "volcano"])
def test_lowering_evicts_nobody_while_nobody_waits(rule: SchedulerRule) -> None:
    target = filled(rule, waiting=0)
    target.quota["donor"] = 8.0
    assert target.schedule(1).evicted == []
    assert held(target) == (24.0, 8.0)


def test_kueue_lowering_alone_evicts_nobody() -> None:
    target = filled("kueue", waiting=6)
    target.quota["donor"] = 8.0
    assert target.schedule(1).evicted == []


def test_kueue_reclaims_when_the_takers_own_quota_rises() -> None:
    target = filled("kueue", waiting=6)
    target.quota |= {"donor": 8.0, "taker": 24.0}
    assert [j.arrival.tenant for j in target.evictions(target.quota, 1)] == ["donor"] * 4
    assert held(target) == (24.0, 8.0)  # a prediction moves nothing
    assert len(target.schedule(1).evicted) == 4
    assert held(target) == (8.0, 24.0)


@pytest.mark.parametrize("rule", ["kai", "volcano"])
def test_others_evict_at_once_down_to_an_even_split(rule: SchedulerRule) -> None:
    target = filled(rule, waiting=6)
    target.quota["donor"] = 8.0
    assert len(target.schedule(1).evicted) == 2
    assert held(target) == (16.0, 16.0)


def test_kai_splits_what_is_above_quota_by_weight_and_priority_goes_before_weight() -> None:
    weighted = pool("kai", 0.0, 0.0, weight=3)
    submit(weighted, "donor", 8)
    submit(weighted, "taker", 8)
    weighted.schedule(0)
    assert held(weighted) == (8.0, 24.0)
    first = pool("kai", 0.0, 0.0, priority=200)
    submit(first, "donor", 8)
    submit(first, "taker", 8)
    first.schedule(0)
    assert held(first) == (0.0, 32.0)


def test_the_newest_job_goes_first_and_waits_again_with_nothing_done() -> None:
    target = filled("volcano", waiting=6)
    done = next(j for j in target.running.values() if j.arrival.number == 5)
    done.done_sm_seconds = 100.0
    target.quota["donor"] = 8.0
    evicted = target.schedule(1).evicted
    assert [j.arrival.number for j in evicted] == [5, 4]
    assert done in target.waiting["donor"]
    assert (done.done_sm_seconds, done.runs, target.discarded_sm_seconds) == (0.0, 1, 100.0)


def test_quota_zero_admits_nobody() -> None:
    target = pool("kueue", 0.0, 0.0)
    submit(target, "donor", 3)
    assert target.schedule(0).started == []


def test_kueue_lends_what_others_do_not_use() -> None:
    target = pool("kueue", 4.0, 8.0)
    submit(target, "donor", 5)
    target.schedule(0)
    assert held(target) == (12.0, 0.0)


def test_a_lost_seat_sends_its_job_back() -> None:
    target = filled("kueue", waiting=0)
    seat, job = next(iter(target.running.items()))
    assert target.lose_seat(seat, 5) is job
    assert seat not in target.running
    assert target.lose_seat(99, 5) is None
    assert target.capacity_cards() == 28.0


def test_free_and_pending_cards_are_told_by_class() -> None:
    target = pool("kueue", 4.0, 4.0)
    submit(target, "donor", 1)
    target.schedule(0)
    submit(target, "taker", 3)
    assert target.pending_cards("taker") == 12.0
    assert target.free_cards("taker") == 12.0
    assert target.free_cards("donor") == 0.0
