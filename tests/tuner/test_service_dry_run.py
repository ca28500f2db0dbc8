"""The tuner on rows alone: what the store knows is enough to advise on queues and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from collector.batch import Batch, Fact, Subject, make_rows
from collector.clock import VirtualClock
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from tests.tuner.fakes import START, queue_target, slice_target
from tests.tuner.service_rows import GIB, PROMISES, at, card_rows, slice_rows
from tuner.backends import DryRunBackend, common_knobs, read_store
from tuner.model import Mode, Target
from tuner.service.cycle import Tuner, TunerParts
from tuner.settings import StateSettings, TunerSettings
from tuner.state import State

CHAT = slice_target("chat")
LOOKBACK = timedelta(minutes=15)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(StoreSettings(path=tmp_path / "store"))
    yield opened
    opened.close()


def queue_rows(minutes: range, *, pool: str = "pool", tenant: str = "t", **counts: float) -> Batch:
    size = len(minutes)
    tags = {"cluster": ["c"] * size, "pool": [pool] * size, "tenant": [tenant] * size}
    times = [round(at(m).timestamp() * 1000) for m in minutes]
    return Batch(rows={"queue": make_rows("queue", times, tags, {n: np.full(size, v) for n, v in counts.items()})})


def fill(store: EmbeddedStore, minutes: range) -> None:
    """A card of 48 GiB with one service near its memory quota, and a card that nobody holds while work waits."""
    store.write(
        slice_rows(
            CHAT,
            minutes,
            workload="chat",
            busy_ratio=0.3,
            sm_quota_ratio=0.5,
            memory_used_bytes=7.9 * GIB,
            memory_quota_bytes=8 * GIB,
        )
    )
    store.write(card_rows("GPU-0", minutes, sm_active_ratio=0.3))
    store.write(card_rows("GPU-1", minutes, sm_active_ratio=0.0))
    store.write(queue_rows(minutes, quota_gpu_count=1.0, allocated_gpu_count=1.0, pending_gpu_count=2.0))
    card = Subject("gpu", "c", "n0", "GPU-0")
    held = Subject("slice", "c", "n0", "GPU-0", "chat")
    store.write(
        Batch(
            facts=[
                Fact(card, "memory_total_bytes", f"{48 * GIB:.0f}", at(minutes[0])),
                Fact(held, "kind", "vgpu", at(minutes[0])),
            ]
        )
    )


def test_rows_alone_lead_to_advice_on_queue_and_memory(
    store: EmbeddedStore, state: State, clock: VirtualClock, tmp_path: Path
) -> None:
    fill(store, range(-10, 1))
    backend = DryRunBackend(lambda: read_store(store, at=clock.now(), lookback=LOOKBACK), common_knobs())
    tuner = Tuner(
        TunerParts(
            store=store,
            backend=backend,
            state=state,
            clock=clock,
            settings=TunerSettings(mode=Mode.RECOMMEND, memory_margin=0.25),
            state_settings=StateSettings(path=tmp_path / "state.db", kill_switch=tmp_path / "PAUSED"),
            interval_seconds=60.0,
            declarations=PROMISES,
            read_back=False,
        )
    )
    result = tuner.run_once(START)
    assert (result.held, result.drops) == ("", ())
    found = {r.group.kind: [(c.target, c.before, c.after) for c in r.group.changes] for r in result.kept}
    assert set(found) == {"queue", "right_size"}
    assert found["queue"] == [(queue_target("t"), 1.0, 2.0)]
    ((target, before, after),) = found["right_size"]
    assert (target, before) == (CHAT, 8 * GIB)
    assert 7.9 * 1.25 * GIB - 2**20 < after <= 7.9 * 1.25 * GIB
    assert backend.said == []


def counts(store: EmbeddedStore, pool: str = "pool", tenant: str = "t") -> tuple[str | None, str | None]:
    facts = read_store(store, at=START, lookback=LOOKBACK).targets[queue_target(tenant, pool)].facts
    return facts.get("capacity_gpu_count"), facts.get("free_gpu_count")


def test_a_card_is_free_when_nobody_holds_it(store: EmbeddedStore) -> None:
    fill(store, range(-5, 1))
    assert counts(store) == ("2", "1")
    store.write(slice_rows(slice_target("whole", "GPU-1"), [0], tenant="none", workload="none"))
    assert counts(store) == ("2", "1")
    store.write(slice_rows(slice_target("other", "GPU-1"), [0], tenant="unknown", workload="unknown"))
    assert counts(store) == ("2", "0")


def test_what_no_exporter_names_still_counts_as_allocated(store: EmbeddedStore) -> None:
    fill(store, range(-5, 1))
    store.write(queue_rows(range(1), tenant="u", allocated_gpu_count=0.5, pending_gpu_count=0.0))
    assert counts(store) == ("2", "0")


def test_a_card_cut_into_instances_is_no_free_card(store: EmbeddedStore) -> None:
    fill(store, range(-5, 1))
    store.write(Batch(facts=[Fact(Subject("gpu", "c", "n0", "GPU-1"), "mig", "enabled", at(-5))]))
    assert counts(store) == ("2", "0")


def test_cards_of_several_pools_and_unknown_allocations_are_not_guessed(store: EmbeddedStore) -> None:
    fill(store, range(-5, 1))
    store.write(queue_rows(range(1), tenant="u", quota_gpu_count=1.0))
    assert counts(store) == ("2", None)
    store.write(queue_rows(range(1), pool="second", quota_gpu_count=1.0, allocated_gpu_count=0.0))
    assert counts(store) == (None, None)


def test_counts_that_pass_do_not_make_another_state(store: EmbeddedStore) -> None:
    fill(store, range(-5, 1))
    target: Target = queue_target("t")
    before = read_store(store, at=START, lookback=LOOKBACK).targets[target]
    store.write(queue_rows(range(1), pending_gpu_count=5.0))
    after = read_store(store, at=START, lookback=LOOKBACK).targets[target]
    assert (before.facts["pending_gpu_count"], after.facts["pending_gpu_count"]) == ("2", "5")
    assert replace(before, facts=after.facts) == after
