"""The watch: backend, store and forecast as one view of the fleet, and what it remembers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analyzer.findings import Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.risk import ForecastRiskDetector
from analyzer.settings import AnalyzeSettings
from collector.batch import Batch, Event, Severity, Subject
from collector.clock import VirtualClock
from collector.settings import StoreSettings
from collector.store import EmbeddedStore, FrameStore
from collector.window import Window
from tests.tuner.fakes import MEMORY, FakeBackend, backend_with, held, queue_target, slice_target
from tests.tuner.service_rows import GIB, MINUTE, PROMISES, at, card_rows, promise, slice_rows, slot
from tuner.model import Target, TargetState
from tuner.planner import SliceView
from tuner.planner.memory import propose_memory
from tuner.planner.reserve import BINS
from tuner.service.analyse import run_analysis
from tuner.service.claims import claims_of
from tuner.service.watch import Sight, Watch
from tuner.settings import TunerSettings

CHAT, TRAIN = slice_target("chat"), slice_target("train")
CHAT_2, TRAIN_2 = slice_target("chat", "GPU-1"), slice_target("train", "GPU-1")
CARD = Target("card", "c", "n0", "GPU-0")
FLEET = (
    slot(CHAT, 0.6, workload="chat"),
    slot(TRAIN, 0.2, workload="train"),
    slot(CHAT_2, 0.5, kind="mps", workload="chat"),
    slot(TRAIN_2, 0.3, kind="mps", workload="train"),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(StoreSettings(path=tmp_path / "store"))
    yield opened
    opened.close()


@pytest.fixture
def make_watch(store: EmbeddedStore, clock: VirtualClock) -> Callable[..., Watch]:
    def make(*states: TargetState, batches: tuple[Batch, ...] = ()) -> Watch:
        for batch in batches:
            store.write(batch)
        backend: FakeBackend = backend_with(clock, *(states or FLEET))
        return Watch(
            store, backend, TunerSettings(reserve_quantile=0.975), interval_seconds=60.0, declarations=PROMISES
        )

    return make


def serving(
    target: Target,
    minutes: range,
    *,
    busy: float = 0.3,
    kept: float = 1.0,
    gib: float = 4.0,
    rate: float = 10.0,
    quota: float = math.nan,
) -> Batch:
    return slice_rows(
        target,
        minutes,
        workload="chat",
        busy_ratio=busy,
        requests_per_second=rate,
        within_objective_per_second=rate * kept,
        memory_used_bytes=gib * GIB,
        sm_quota_ratio=quota,
    )


def training(target: Target, minutes: range, *, busy: float = 0.1) -> Batch:
    return slice_rows(target, minutes, workload="train", busy_ratio=busy)


def everybody(minutes: range) -> tuple[Batch, ...]:
    return (
        serving(CHAT, minutes),
        training(TRAIN, minutes),
        serving(CHAT_2, minutes, busy=0.5),
        training(TRAIN_2, minutes, busy=1.0),
        card_rows("GPU-0", minutes, sm_active_ratio=0.4),
        card_rows("GPU-1", minutes, sm_active_ratio=0.44),
    )


def view_of(sight: Sight, target: Target) -> SliceView:
    return next(s for card in sight.planner.cards for s in card.slices if s.target == target)


def test_a_view_joins_backend_rows_and_promises(make_watch: Callable[..., Watch]) -> None:
    sight = make_watch(batches=everybody(range(6))).look(at(5))
    chat, train = view_of(sight, CHAT), view_of(sight, TRAIN)
    assert (chat.kind, chat.tenant, chat.workload, chat.service_class) == ("vgpu", "t", "chat", "online")
    assert (chat.quota, chat.effective, chat.memory_quota_bytes) == (0.6, 0.6, 8 * GIB)
    assert chat.used == pytest.approx(0.3)  # 0.4 of the card by busy time, 0.3 : 0.1
    assert train.used == pytest.approx(0.1)
    assert view_of(sight, CHAT_2).used == pytest.approx(0.2)  # 0.44 by busy time x share, 0.25 : 0.3
    assert (chat.kept, chat.objective_share, chat.memory_peak_bytes) == (1.0, 0.9, 4 * GIB)
    assert (chat.coverage, chat.age_seconds) == (1.0, 0.0)
    assert (train.service_class, train.floor, train.weight, train.protected) == ("offline", 0.05, 2.0, False)
    assert math.isnan(train.kept)
    assert math.isnan(train.objective_share)
    assert sight.activity == pytest.approx((0.3 + 0.1 + 0.2 + 0.24) / 4)
    assert sight.planner.as_of == at(5)
    assert [(c.gpu, c.sharing, c.memory_bytes, c.healthy) for c in sight.planner.cards] == [
        ("GPU-0", "vgpu", 48 * GIB, True),
        ("GPU-1", "mps", 48 * GIB, True),
    ]
    assert sight.capacity[CARD] == {"sm_quota_ratio": 1.0, "memory_quota_bytes": 48 * GIB}


def test_what_nobody_promised_is_online_and_protected(make_watch: Callable[..., Watch]) -> None:
    lonely = slot(CHAT, 0.6, workload="notebook")
    sight = make_watch(lonely, batches=(slice_rows(CHAT, range(6), workload="notebook", busy_ratio=0.1),)).look(at(5))
    view = view_of(sight, CHAT)
    assert (view.online, view.protected, view.floor, view.weight) == (True, True, 0.0, 1.0)


def test_nobodys_slices_are_no_views(make_watch: Callable[..., Watch]) -> None:
    free = slot(CHAT, 0.6, tenant="none", workload="none")
    nameless = replace(slot(TRAIN, 0.2), facts={"kind": "vgpu"})
    batches = (slice_rows(CHAT, range(6), tenant="none", workload="none", busy_ratio=0.0),)
    watch = make_watch(free, nameless, batches=batches)
    assert watch.look(at(5)).planner.cards == ()
    assert watch.watched_seconds("none/none") == 0.0


def test_a_card_of_two_kinds_is_mixed_and_says_what_newcomers_may_take(make_watch: Callable[..., Watch]) -> None:
    card = replace(held(CARD, {}), facts={"open_share": "0.15"})
    odd = replace(held(Target("card", "c", "n0", "GPU-1"), {}), facts={"open_share": "plenty"})
    states = (slot(CHAT, 0.6, kind="mps", workload="chat"), slot(TRAIN, 0.2, workload="train"), FLEET[2], card, odd)
    first, second = make_watch(*states, batches=everybody(range(6))).look(at(5)).planner.cards
    assert (first.sharing, first.open_share) == ("mixed", 0.15)
    assert second.sharing == "mps"
    assert math.isnan(second.open_share)  # told, and not understood


def test_without_word_of_newcomers_only_what_is_granted_may_be_taken(make_watch: Callable[..., Watch]) -> None:
    states = (*FLEET, held(CARD, {}))
    assert [c.open_share for c in make_watch(*states, batches=everybody(range(6))).look(at(5)).planner.cards] == [0, 0]


def test_a_silent_slice_holds_only_itself(make_watch: Callable[..., Watch]) -> None:
    minutes = range(10)
    watch = make_watch(
        batches=(
            serving(CHAT, minutes),
            training(TRAIN, minutes),
            serving(CHAT_2, minutes),
            training(TRAIN_2, range(6)),
        )
    )
    sight = watch.look(at(9.5))
    assert sight.coverage == {CHAT: 1.0, TRAIN: 1.0, CHAT_2: 1.0, TRAIN_2: 0.0}
    assert view_of(sight, TRAIN_2).age_seconds == pytest.approx(4.5 * 60 - 60, abs=0.01)
    assert sight.planner.as_of == at(9.5)


def test_a_slice_never_seen_has_no_coverage(make_watch: Callable[..., Watch]) -> None:
    watch = make_watch(batches=(*everybody(range(6))[:3],))
    sight = watch.look(at(5))
    assert sight.coverage[TRAIN_2] == 0.0
    assert math.isinf(view_of(sight, TRAIN_2).age_seconds)
    assert sight.planner.as_of == at(5)


def test_when_half_of_them_are_silent_the_source_is_stale(make_watch: Callable[..., Watch]) -> None:
    watch = make_watch(
        batches=(
            serving(CHAT, range(10)),
            training(TRAIN, range(10)),
            serving(CHAT_2, range(6)),
            training(TRAIN_2, range(6)),
        )
    )
    sight = watch.look(at(9.5))
    assert sight.planner.as_of == pytest.approx(at(6), abs=timedelta(seconds=0.01))
    assert sight.coverage[CHAT] == 1.0
    assert sight.coverage[CHAT_2] == 0.0


def test_without_any_row_everything_is_stale_and_unknown(make_watch: Callable[..., Watch]) -> None:
    sight = make_watch().look(at(5))
    assert at(5) - sight.planner.as_of > timedelta(days=1)
    assert set(sight.coverage.values()) == {0.0}
    assert math.isnan(sight.activity)
    assert sight.peak_memory_bytes == {}
    assert math.isnan(view_of(sight, CHAT).memory_peak_bytes)


def test_missing_minutes_lower_the_coverage(make_watch: Callable[..., Watch]) -> None:
    gaps = slice_rows(CHAT, [0, 1, 4, 5], workload="chat", busy_ratio=0.3)
    sight = make_watch(batches=(gaps, training(TRAIN, range(6)))).look(at(5))
    assert sight.coverage[CHAT] == pytest.approx(4 / 6)


def test_memory_peaks_outlive_the_rows_that_showed_them(make_watch: Callable[..., Watch], store: EmbeddedStore) -> None:
    watch = make_watch(batches=(serving(CHAT, range(6), gib=6.0),))
    watch.look(at(5))
    store.write(serving(CHAT, range(6, 20), gib=2.0))
    assert watch.look(at(19)).peak_memory_bytes[CHAT] == 6 * GIB
    assert watch.peak_memory(CHAT) == 6 * GIB
    assert math.isnan(watch.peak_memory(TRAIN))


def event(gpu: str, code: str, severity: Severity, minutes: float) -> Event:
    return Event(Subject("gpu", "c", "n0", gpu), code, severity, f"{code} on {gpu}", at(minutes))


def test_health_is_the_evidence_of_a_day_looked_at_every_five_minutes(
    make_watch: Callable[..., Watch], store: EmbeddedStore
) -> None:
    store.write(
        Batch(
            events=[
                event("GPU-0", "xid", Severity.CRITICAL, 1),
                event("GPU-0", "xid", Severity.CRITICAL, 2),
                event("GPU-1", "xid", Severity.INFO, 1),
                event("GPU-1", "target_down", Severity.ERROR, 1),
                event("GPU-9", "card_lost", Severity.ERROR, 1),
            ]
        )
    )
    watch = make_watch(batches=everybody(range(12)))
    sight = watch.look(at(5))
    other = Target("card", "c", "n0", "GPU-1")
    assert sight.health == {CARD: ("xid on GPU-0",), other: ()}
    assert [c.healthy for c in sight.planner.cards] == [False, True]
    store.write(Batch(events=[event("GPU-1", "card_lost", Severity.CRITICAL, 6)]))
    assert watch.look(at(7)).health[other] == ()
    assert watch.look(at(10)).health[other] == ("card_lost on GPU-1",)
    assert watch.look(at(1 + 24 * 60 + 30)).health == {CARD: (), other: ()}


def test_queues_are_read_from_the_backends_facts(make_watch: Callable[..., Watch]) -> None:
    facts = {
        "tenant": "a",
        "allocated_gpu_count": "2",
        "pending_gpu_count": "3",
        "free_gpu_count": "n/a",
        "capacity_gpu_count": "8",
    }
    queue = replace(held(queue_target("a"), {"quota_gpu_count": 4.0}), facts=facts)
    bare = replace(held(queue_target("bare", "other"), {}), facts={})
    sight = make_watch(queue, bare).look(at(5))
    (view,) = sight.planner.queues
    assert (view.target, view.tenant, view.quota, view.allocated, view.pending, view.capacity) == (
        queue_target("a"),
        "a",
        4.0,
        2.0,
        3.0,
        8.0,
    )
    assert math.isnan(view.free)
    pool = Target("queue", "c", name="pool")
    assert sight.capacity[pool] == {"quota_gpu_count": 8.0}
    assert math.isnan(sight.capacity[Target("queue", "c", name="other")]["quota_gpu_count"])


def finding(code: str, verdict: Verdict, *subjects: tuple[Role, Target]) -> Finding:
    refs = tuple(SubjectRef(role, t.cluster, t.node, t.gpu, t.slice) for role, t in subjects)
    return make_finding(code, verdict, refs, Window(at(0), at(5)), claim="", risk="", confidence=1.0, coverage=1.0)


def test_pairs_that_hold_mark_suspect_and_victim(make_watch: Callable[..., Watch]) -> None:
    holds = finding("TT101", Verdict.HOLDS, (Role.VICTIM, CHAT), (Role.SUSPECT, TRAIN))
    maybe = finding("TT101", Verdict.SUSPECTED, (Role.VICTIM, CHAT_2), (Role.SUSPECT, TRAIN_2))
    other = finding("TT301", Verdict.HOLDS, (Role.SUBJECT, TRAIN_2))
    sight = make_watch(batches=everybody(range(6))).look(at(5), [holds, maybe, other])
    assert view_of(sight, TRAIN).suspect_in == (holds.id,)
    assert view_of(sight, CHAT).victim_in == (holds.id,)
    for target in (CHAT_2, TRAIN_2):
        assert view_of(sight, target).suspect_in == view_of(sight, target).victim_in == ()


def leaking(now_gib: float) -> Finding:
    """The detector's own finding on a slice whose memory grew for 30 h by 0.2 GiB an hour, under a quota of 8 GiB."""
    minutes = range(-30 * 60, 0, 5)
    used = now_gib * GIB + 0.2 * GIB * np.array(minutes) / 60
    rows = slice_rows(CHAT, minutes, workload="chat", memory_used_bytes=used, memory_quota_bytes=8 * GIB)
    store = FrameStore.of_batches([rows])
    detectors = {"forecast": ForecastRiskDetector()}
    window = Window(at(minutes[0]), at(0))
    (found,) = run_analysis(
        store, window, interval_seconds=300.0, settings=AnalyzeSettings(), detectors=detectors
    ).findings
    assert found.code == "TT502"
    return found


def test_memory_that_is_forecast_to_grow_is_the_largest_expected(make_watch: Callable[..., Watch]) -> None:
    low, high = leaking(7.0), leaking(7.5)
    assert (low.verdict, high.verdict) == (Verdict.HOLDS, Verdict.HOLDS)
    sight = make_watch(batches=everybody(range(6))).look(at(5), [low, high, low])
    need = view_of(sight, CHAT).memory_need_bytes
    assert need == high.evidence["forecast_bytes"]["0.975"] > low.evidence["forecast_bytes"]["0.975"]
    assert need == pytest.approx((7.5 + 24 * 0.2) * GIB, rel=0.1)  # where the line stands a day later
    assert math.isnan(view_of(sight, TRAIN).memory_need_bytes)
    (change,) = propose_memory(sight.planner.cards[0], (replace(MEMORY, quantum=GIB),), TunerSettings())
    assert (change.target, change.before) == (CHAT, 8 * GIB)
    assert change.after == math.floor(need * 1.1 / GIB) * GIB


def test_a_quantile_above_all_that_are_told_takes_the_highest() -> None:
    told = replace(finding("TT502", Verdict.HOLDS, (Role.SUBJECT, CHAT)), evidence={"forecast_bytes": {"0.5": 2.0}})
    maybe = finding("TT502", Verdict.SUSPECTED, (Role.SUBJECT, TRAIN))
    assert claims_of([told, maybe], 0.9).memory_bytes == {CHAT: 2.0}


def test_promises_are_read_anew_after_a_while_and_when_a_workload_is_new(
    make_watch: Callable[..., Watch], store: EmbeddedStore
) -> None:
    job = slice_target("job")
    watch = make_watch(slot(job, 0.2, workload="job"), batches=(slice_rows(job, range(40), workload="job"),))
    store.write(slice_rows(job, range(40), workload="job", busy_ratio=0.2))
    assert view_of(watch.look(at(5)), job).protected
    store.write(Batch(facts=[promise("service_class", "offline", 6, workload="t/job")]))
    assert view_of(watch.look(at(10)), job).protected
    assert not view_of(watch.look(at(25)), job).protected
    store.write(slice_rows(CHAT, range(26, 30), workload="late", busy_ratio=0.1))
    store.write(Batch(facts=[promise("service_class", "offline", 26, workload="t/late")]))
    assert ("c", "t", "late") in watch.look(at(29)).declarations


def test_a_minute_counts_once_however_often_it_is_looked_at(
    make_watch: Callable[..., Watch], store: EmbeddedStore
) -> None:
    watch = make_watch()
    for minute in (3, 4):  # both miss the objective at half of the quota
        store.write(serving(CHAT, range(minute, minute + 1), busy=0.3, kept=0.1))
        watch.look(at(minute))
    assert watch.utilisation_limit("c/t/chat") == 0.6  # two minutes prove nothing
    store.write(serving(CHAT, range(5, 6), busy=0.3, kept=0.1))
    watch.look(at(5))
    assert watch.utilisation_limit("c/t/chat") == pytest.approx(10 / BINS)


def test_history_is_the_mean_over_the_slices_of_a_workload(make_watch: Callable[..., Watch]) -> None:
    watch = make_watch(batches=everybody(range(6)))
    watch.look(at(5))
    (chat,) = watch._history.frame().query("series == 'c/t/chat'")["value"]
    assert chat == pytest.approx((0.3 + 0.2) / 2)


def test_a_warm_watch_has_learned_what_a_watching_one_saw(make_watch: Callable[..., Watch]) -> None:
    batches = (
        serving(CHAT, range(120), busy=0.3, kept=1.0, quota=0.6),
        serving(CHAT_2, range(120), busy=0.4, kept=0.1, gib=7.0, quota=0.5),
        training(TRAIN, range(60, 120)),
    )
    watch = make_watch(batches=batches)
    assert watch.watched_seconds("c/t/chat") == 0.0
    watch.warm(at(120), timedelta(minutes=120))
    assert watch.watched_seconds("c/t/chat") == 120 * 60
    assert watch.watched_seconds("c/t/train") == 60 * 60
    assert watch.peak_memory(CHAT_2) == 7 * GIB
    assert watch.utilisation_limit("c/t/chat") == pytest.approx(0.4)  # all lost at 0.4 of 0.5
    assert all(math.isnan(need) for need in watch.needs("c/t/chat"))
    sight = watch.look(at(120))
    lead, hold = watch.needs("c/t/chat")
    assert 0.2 <= lead <= hold  # never less further ahead
    assert (view_of(sight, CHAT).need_lead, view_of(sight, CHAT).need_hold) == (lead, hold)
    rows = watch.forecasts()
    assert rows["series"].tolist() == ["c/t/chat#each", "c/t/train#each"]
    assert set(rows["quantile"]) == {0.975}
    assert rows["value"].iloc[0] == lead


def test_the_past_is_judged_by_the_quotas_of_its_own_time(make_watch: Callable[..., Watch]) -> None:
    """Two MPS clients whose shares were the other way round; the first tells its share now and then only."""
    told = np.where(np.arange(60) % 5 == 0, 0.2, np.nan)
    batches = (
        slice_rows(CHAT_2, range(60), workload="chat", busy_ratio=1.0, sm_quota_ratio=told),
        slice_rows(TRAIN_2, range(60), workload="train", busy_ratio=1.0, sm_quota_ratio=0.6),
        card_rows("GPU-1", range(60), sm_active_ratio=0.4),
    )
    watch = make_watch(batches=batches)  # today: 0.5 and 0.3
    watch.warm(at(60), timedelta(hours=1))
    history = watch._history.frame()
    assert history.query("series == 'c/t/chat'")["value"].tolist() == pytest.approx([0.1] * 12)
    assert history.query("series == 'c/t/train'")["value"].tolist() == pytest.approx([0.3] * 12)


def test_warming_reads_hours_at_once(
    make_watch: Callable[..., Watch], store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = make_watch(batches=(serving(CHAT, range(-13 * 60, 0)),))
    windows: list[Window] = []
    read = store.read

    def counted(measurement: str, window: Window, **how: Any) -> pd.DataFrame:
        windows.append(window)
        return read(measurement, window, **how)

    monkeypatch.setattr(store, "read", counted)
    watch.warm(at(0), timedelta(hours=13))
    assert [w.seconds / 3600 for w in windows] == [6, 6, 6, 6, 1, 1]  # slices and cards
    assert watch.watched_seconds("c/t/chat") == 13 * 3600


def test_forecasts_are_made_anew_after_a_quarter_of_an_hour(
    make_watch: Callable[..., Watch], store: EmbeddedStore
) -> None:
    watch = make_watch(batches=(serving(CHAT, range(90), busy=0.2),))
    watch.warm(at(90), timedelta(minutes=90))
    watch.look(at(90))
    first = watch.needs("c/t/chat")
    store.write(serving(CHAT, range(90, 120), busy=0.8, rate=40.0))
    watch.look(at(100))
    assert watch.needs("c/t/chat") == first
    watch.look(at(105))
    assert watch.needs("c/t/chat")[0] > first[0]


def test_models_are_fitted_once_a_day_was_seen_and_again_after_half_a_day(
    make_watch: Callable[..., Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = make_watch()
    fits: list[float] = []
    fit = watch._forecaster.fit

    def counted(history: object) -> object:
        fits.append(len(fits))
        return fit(history)  # type: ignore[arg-type]  # passed on as it came

    monkeypatch.setattr(watch._forecaster, "fit", counted)
    wave = 0.2 + 0.1 * np.sin(np.arange(0, 26 * 12) / 144 * np.pi)
    for step, value in enumerate(wave):
        watch._history.add(at(5 * step), {"c/t/chat": float(value)})
    last = at(5 * (len(wave) - 1))
    watch.look(last)
    assert len(fits) == 1
    watch.look(last + 719 * MINUTE)
    assert len(fits) == 1
    watch.look(last + 735 * MINUTE)
    assert len(fits) == 2


def test_warming_looks_back_no_further_than_the_history_reaches(make_watch: Callable[..., Watch]) -> None:
    watch = make_watch(batches=(serving(CHAT, range(10)),))
    watch.warm(at(10), timedelta())
    assert watch.watched_seconds("c/t/chat") == 0.0
