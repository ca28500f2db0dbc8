"""Pods that come and go for weeks: what the collector remembers stays as small as what is there."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path

import orjson
import pandas as pd
import pytest

from collector import assemble
from collector.assemble import Assembler
from collector.batch import Batch, Subject
from collector.clock import VirtualClock
from collector.plugins import SourceContext
from collector.settings import StoreSettings
from collector.store import EmbeddedStore, FrameStore
from collector.store.info import describe_store
from collector.window import Window
from tests.collector.conftest import START, Cycles

DCGM, HAMI, KSM = "http://a:9400/metrics", "http://a:9394/metrics", "http://k:8080/metrics"


def texts(cycle: int, *, pods: int = 4) -> dict[str, str]:
    """Two cards whose pods are others in every cycle, beside one that stays."""
    dcgm, hami, ksm = [], [], []
    for card in range(2):
        for name in (f"steady-{'ab'[card]}", *(f"run-{cycle}-{n}-{'ab'[card]}" for n in range(pods))):
            held = (
                f'gpu="{card}",UUID="GPU-{card}",device="nvidia{card}",modelName="NVIDIA A100-SXM4-80GB",'
                f'container="main",namespace="ml",pod="{name}"'
            )
            dcgm.append(f"DCGM_FI_DEV_GPU_TEMP{{{held}}} {40 + cycle % 7}")
            dcgm.append(f"DCGM_FI_PROF_SM_ACTIVE{{{held}}} 0.{cycle % 9 + 1}")
            dcgm.append(f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{held}}} {1000 * cycle + card}")
            mine = f'ctrname="main",podnamespace="ml",podname="{name}",deviceuuid="GPU-{card}",vdeviceid="0"'
            hami.append(f"vGPU_device_memory_usage_in_bytes{{{mine}}} {(cycle % 5 + 1) * 10**9}")
            hami.append(f"vGPU_device_memory_limit_in_bytes{{{mine}}} 8000000000")
            hami.append(f"Device_utilization_desc_of_container{{{mine}}} {10 + cycle % 9}")
            about = f'namespace="ml",pod="{name}",uid="u-{name}"'
            ksm.append(f'kube_pod_info{{{about},node="node-a",created_by_kind="Job",created_by_name="job-{name}"}} 1')
            ksm.append(f'kube_pod_status_phase{{{about},phase="Running"}} 1')
            ksm.append(
                f'kube_pod_container_resource_requests{{{about},container="main",node="node-a",'
                'resource="nvidia_com_gpu",unit="integer"} 1'
            )
    return {url: "\n".join(lines) + "\n" for url, lines in ((DCGM, dcgm), (HAMI, hami), (KSM, ksm))}


def churn(count: int) -> tuple[Cycles, list[Batch]]:
    """Run so many cycles of pods that live for one."""
    cycles = Cycles(SourceContext(cluster="test"))
    return cycles, [cycles.poll(texts(cycle)) for cycle in range(count)]


def facts_of(batches: list[Batch], name: str, kind: str) -> pd.DataFrame:
    """Spans of a fact of one kind of subject."""
    store = FrameStore.of_batches(batches)
    facts = store.facts(names=[name])
    store.close()
    return facts[facts["kind"] == kind]


def test_numbers_given_out_anew_change_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    _, plain = churn(40)
    anew: list[int] = []
    give_out = Assembler._give_out_numbers_anew

    def counting(assembler: Assembler, now_ms: int) -> None:
        anew.append(now_ms)
        give_out(assembler, now_ms)

    monkeypatch.setattr(Assembler, "_give_out_numbers_anew", counting)
    monkeypatch.setattr(assemble, "_SPARE_CHANNELS", 10)
    cycles, compacted = churn(40)
    assert 3 <= len(anew) < 40
    assert cycles.assembler._world.registry.size < 500
    for one, other in zip(compacted, plain, strict=True):
        assert one.rows.keys() == other.rows.keys()
        for name, table in one.rows.items():
            pd.testing.assert_frame_equal(
                table.to_pandas().sort_values(table.column_names[1:5], ignore_index=True),
                other.rows[name].to_pandas().sort_values(table.column_names[1:5], ignore_index=True),
            )
        assert sorted(map(str, one.facts)) == sorted(map(str, other.facts))
        assert (one.events, one.rejects) == (other.events, other.rejects)
    energy = compacted[-1].rows["gpu"].to_pandas()["energy_joules"]
    assert energy.tolist() == [1.0, 1.0]  # 1000 mJ a cycle, never lost


def test_targets_that_come_late_are_no_reason_to_give_out_numbers_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "_SPARE_CHANNELS", 0)
    cycles = Cycles(SourceContext(cluster="test"))
    first, *others = [
        {f"http://{n}:9400/metrics": f'DCGM_FI_DEV_GPU_TEMP{{gpu="0",UUID="GPU-{n}",Hostname="n{n}"}} 40\n'}
        for n in range(9)
    ]
    cycles.poll(first)
    cycles.poll(first)
    together = {url: text for one in (first, *others) for url, text in one.items()}
    cycles.poll(together)
    registry = cycles.assembler._world.registry
    cycles.poll(together)
    assert cycles.assembler._world.registry is registry


def test_counters_of_who_left_wait_for_a_week(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "_SPARE_CHANNELS", 10)
    cycles, _ = churn(30)
    known = len(cycles.assembler.counters.to_json())
    cycles.now += timedelta(days=8)
    for cycle in range(30, 60):
        cycles.poll(texts(cycle))
    assert len(cycles.assembler.counters.to_json()) < 1.2 * known


def test_what_was_told_of_workloads_that_left_ends() -> None:
    cycles, batches = churn(20)
    classes = facts_of(batches, "service_class", "workload")
    assert len(classes) == 2 + 20 * 8
    still = classes[classes["to"].isna()]["object"].tolist()
    assert sorted(still) == sorted(
        [f"ml/{name}-{card}" for card in "ab" for name in ("steady", *(f"run-19-{n}" for n in range(4)))]
    )
    ended = classes[classes["to"].notna()]
    assert (ended["to"] - ended["from"] == timedelta(minutes=1)).all()
    assert sum(len(names) for *_, names in cycles.assembler._facts.to_json()["told"]) < 250


def test_the_state_stays_as_small_as_what_is_there() -> None:
    cycles, _ = churn(10)
    early = len(orjson.dumps(cycles.assembler.export_state(counters=False)))
    for cycle in range(10, 60):
        cycles.poll(texts(cycle))
    assert len(orjson.dumps(cycles.assembler.export_state(counters=False))) < 1.1 * early


def test_a_workload_that_left_while_the_collector_was_down_ends_too() -> None:
    cycles, batches = churn(3)
    state = orjson.loads(orjson.dumps(cycles.assembler.export_state()))
    again = Cycles(SourceContext(cluster="test"))
    again.assembler.import_state(state)
    again.now = cycles.now
    batches += [again.poll(texts(cycle)) for cycle in (3, 4)]
    classes = facts_of(batches, "service_class", "workload")
    assert len(classes[classes["to"].isna()]) == 10


def test_open_facts_in_a_store_are_those_of_who_is_there() -> None:
    _, batches = churn(20)
    store = FrameStore.of_batches(batches)
    facts = store.facts(Window(START + timedelta(minutes=19), START + timedelta(minutes=20)))
    gone = {Subject("slice", "test", "node-a", "GPU-0", f"ml/run-{n}-0-a/main/0") for n in range(18)}
    assert not {s.slice for s in gone} & set(facts["slice"])
    store.close()


def test_a_store_under_pod_churn_stops_growing(tmp_path: Path) -> None:
    """Four cycles a day, each with pods of its own; hours are kept for four days, and so is who held what."""
    settings = StoreSettings(path=tmp_path / "store", raw_days=1, minute_days=2, hour_days=4)
    clock = VirtualClock(START)
    cycles = Cycles(SourceContext(cluster="test", interval_seconds=21_600))
    counts: list[tuple[int, int]] = []
    with closing(EmbeddedStore(settings, clock=clock)) as store:
        for cycle in range(56):
            store.write(cycles.poll(texts(cycle, pods=1)))
            clock.advance(21_600)
            if cycle % 4 == 3:
                store.maintain()
                store.retain(clock.now())
                found = describe_store(settings)
                counts.append((found.facts, sum(held.files for held in found.holdings)))
    assert counts[6][0] > counts[1][0]
    # Grown up after a week: what comes is what goes.
    assert max(facts for facts, _ in counts[7:]) <= counts[7][0] * 1.05
    assert max(files for _, files in counts[7:]) <= counts[7][1] + 6
