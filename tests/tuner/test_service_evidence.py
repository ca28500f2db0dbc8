"""Before and after of a change, out of rows: who was touched, who was not, and what each is measured by."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from collector.batch import Batch
from collector.store import FrameStore
from collector.window import Window
from tests.tuner.fakes import change, group, queue_target, slice_target
from tests.tuner.service_rows import at, slice_rows
from tuner.model import Group, Target
from tuner.service.evidence import EvidenceReader, WindowCache
from tuner.verify import Evidence, Measured

BEFORE, AFTER = Window(at(0), at(5)), Window(at(5), at(10))
CHAT, TRAIN = slice_target("chat"), slice_target("train")
PEER, PEER_TRAIN = slice_target("chat", "GPU-1"), slice_target("train", "GPU-1")
RAISE = group(change(TRAIN, 0.2, 0.4))


def serving(target: Target, *, rate: float = 10.0, kept: float = 9.0, minutes: range = range(10)) -> Batch:
    return slice_rows(target, minutes, requests_per_second=rate, within_objective_per_second=kept)


def training(target: Target, *, steps: object = 60.0, minutes: range = range(10), tenant: str = "t") -> Batch:
    return slice_rows(target, minutes, tenant=tenant, steps_count=steps, step_seconds=0.5)


def read(wanted: Group, *batches: Batch) -> tuple[dict[Target, Evidence], dict[Target, Evidence]]:
    reader = EvidenceReader(WindowCache(FrameStore.of_batches(batches), 60.0), frozenset({CHAT, PEER}))
    affected, peers = reader(wanted, BEFORE, AFTER)
    return {e.target: e for e in affected}, {e.target: e for e in peers}


def test_everybody_on_the_card_is_affected_and_everybody_else_a_peer() -> None:
    affected, peers = read(RAISE, serving(CHAT), training(TRAIN), serving(PEER), training(PEER_TRAIN))
    assert set(affected) == {CHAT, TRAIN}
    assert set(peers) == {PEER, PEER_TRAIN}
    assert (affected[TRAIN].quota_ratio, affected[CHAT].quota_ratio) == (2.0, 1.0)
    assert (affected[CHAT].online, affected[TRAIN].online, peers[PEER].online) == (True, False, True)


def test_requests_are_summed_kept_is_their_share_and_the_tail_is_the_worst() -> None:
    minutes = slice_rows(
        CHAT,
        range(10),
        requests_per_second=[10, 30, 20, np.nan, np.nan, 10, 10, 10, 10, 10],
        within_objective_per_second=[10, 15, np.nan, np.nan, np.nan, 10, 10, 10, 10, 10],
        latency_p99_seconds=[0.1, 0.4, 0.2, np.nan, np.nan, 0.1, 0.1, 0.1, 0.1, 0.1],
    )
    affected, _ = read(RAISE, minutes)
    was = affected[CHAT].before
    assert was.requests == pytest.approx(60 * 60)
    assert was.kept == pytest.approx(25 / 40)  # the minute without a judgement is not counted
    assert was.latency_seconds == 0.4
    assert math.isnan(was.throughput)
    assert affected[CHAT].after.kept == 1.0


def test_throughput_is_work_over_the_time_it_worked() -> None:
    rows = slice_rows(
        TRAIN,
        range(10),
        steps_count=[60, 0, 30, np.nan, 0, 60, 60, 60, 60, 60],
        step_seconds=[0.5, np.nan, 1.0, np.nan, np.nan, 0.25, 0.25, 0.25, 0.25, 0.25],
    )
    affected, _ = read(RAISE, rows)
    assert affected[TRAIN].before.throughput == pytest.approx(90 / (60 * 0.5 + 30 * 1.0))
    assert affected[TRAIN].after.throughput == pytest.approx(4.0)


def test_without_a_pace_throughput_is_work_over_time() -> None:
    affected, _ = read(RAISE, slice_rows(TRAIN, range(10), steps_count=[30, 60, np.nan, np.nan, np.nan] + [60] * 5))
    assert affected[TRAIN].before.throughput == pytest.approx(90 / 120)
    assert affected[TRAIN].after.throughput == pytest.approx(1.0)


def test_batch_work_that_did_nothing_has_nothing_to_say() -> None:
    silent = slice_rows(slice_target("idle"), range(10), busy_ratio=0.0)
    affected, _ = read(RAISE, silent, training(TRAIN), slice_rows(CHAT, range(10)))
    assert set(affected) == {TRAIN, CHAT}
    assert math.isnan(affected[CHAT].after.requests)


def test_where_nobody_can_speak_what_was_changed_is_not_known() -> None:
    silent = slice_rows(slice_target("idle"), range(10), busy_ratio=0.0)
    affected, _ = read(RAISE, silent, slice_rows(TRAIN, range(10), busy_ratio=0.0))
    assert set(affected) == {TRAIN}
    assert math.isnan(affected[TRAIN].after.throughput)


def test_a_newcomer_counts_from_nothing_and_a_leaver_has_nothing_to_say() -> None:
    new, gone = slice_target("new"), slice_target("gone")
    affected, _ = read(
        RAISE, training(TRAIN), training(new, minutes=range(6, 10)), training(gone, minutes=range(4)), serving(CHAT)
    )
    assert set(affected) == {TRAIN, new, CHAT}
    assert affected[new].before == Measured(requests=0.0, throughput=0.0)
    assert affected[new].after.throughput == pytest.approx(2.0)


def test_a_leaver_whose_share_was_changed_is_not_known_afterwards() -> None:
    affected, _ = read(RAISE, training(TRAIN, minutes=range(4)))
    assert affected[TRAIN].before.throughput == pytest.approx(2.0)
    assert math.isnan(affected[TRAIN].after.throughput)
    assert math.isnan(affected[TRAIN].after.requests)


def test_rows_that_nobody_holds_are_no_evidence() -> None:
    affected, peers = read(RAISE, slice_rows(CHAT, range(10), tenant="none", workload="none", busy_ratio=0.0))
    assert (affected, peers) == ({}, {})


def test_a_raised_queue_affects_the_cards_on_which_its_work_appeared() -> None:
    job = slice_target("job", "GPU-1")
    rows = (
        serving(CHAT),
        serving(PEER),
        training(job, minutes=range(6, 10), tenant="a"),
        training(slice_target("other", "GPU-2"), minutes=range(6, 10), tenant="b"),
        training(slice_target("old", "GPU-3"), tenant="a"),
    )
    up = change(queue_target("a"), 1.0, 2.0, "quota_gpu_count", tenant="a")
    affected, peers = read(group(up, kind="queue"), *rows)
    assert set(affected) == {job, PEER}
    assert {t.gpu for t in peers} == {"GPU-0", "GPU-2", "GPU-3"}
    down = change(queue_target("a"), 2.0, 1.0, "quota_gpu_count", tenant="a")
    affected, _ = read(group(down, kind="queue"), *rows)
    assert affected == {}


def test_a_share_raised_from_nothing_has_no_ratio() -> None:
    affected, _ = read(group(change(TRAIN, 0.0, 0.4)), training(TRAIN))
    assert affected[TRAIN].quota_ratio == 1.0


class CountingStore(FrameStore):
    """Counts reads."""

    reads = 0

    def read(self, *args: object, **rest: object) -> pd.DataFrame:
        self.reads += 1
        return super().read(*args, **rest)  # type: ignore[arg-type]  # passed on as they came


def test_a_window_is_read_once_until_64_later_ones_were_asked_for() -> None:
    store = CountingStore.of_batches([serving(CHAT)])
    assert isinstance(store, CountingStore)
    windows = WindowCache(store, 60.0)
    assert windows(BEFORE) is windows(BEFORE)
    assert store.reads == 1
    for minute in range(63):
        windows(Window(at(minute), at(minute + 2)))
    windows(BEFORE)
    assert store.reads == 64
    windows(Window(at(100), at(101)))
    windows(BEFORE)
    assert store.reads == 66


def test_an_empty_window_measures_nothing() -> None:
    assert WindowCache(FrameStore.of_batches([]), 60.0)(BEFORE) == {}
