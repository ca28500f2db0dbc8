"""What the backend holds as rows: MPS shares and queue quotas, on the grid."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.window import Window
from tests.tuner.fakes import held, queue_target, slice_target
from tests.tuner.service_rows import at
from tuner.model import BackendState, TargetState
from tuner.service.readback import quota_rows


def state_of(*states: TargetState) -> BackendState:
    return BackendState(at(0), {s.target: s for s in states})


def test_running_mps_shares_and_queue_quotas_become_rows(tmp_path: Path) -> None:
    mps = replace(
        held(slice_target("m"), {"sm_quota_ratio": 0.5}, workload="chat", tenant="a"),
        effective={"sm_quota_ratio": 0.3},
    )
    batch = quota_rows(
        state_of(
            mps,
            held(slice_target("v"), {"sm_quota_ratio": 0.2}, kind="vgpu"),
            held(queue_target("a"), {"quota_gpu_count": 4.0}),
        ),
        at(7) + timedelta(seconds=42),
        60.0,
    )
    store = EmbeddedStore(StoreSettings(path=tmp_path))
    try:
        store.write(batch)
        window = Window(at(0), at(60))
        (row,) = store.read("slice", window).to_dict("records")
        (queue,) = store.read("queue", window).to_dict("records")
    finally:
        store.close()
    assert (row["slice"], row["tenant"], row["workload"], row["sm_quota_ratio"]) == ("m", "a", "chat", 0.3)
    assert row["time"] == queue["time"] == at(7)
    assert (queue["pool"], queue["tenant"], queue["quota_gpu_count"]) == ("pool", "a", 4.0)


def test_a_holder_that_the_backend_does_not_name_is_unknown() -> None:
    nameless = replace(held(slice_target("m"), {"sm_quota_ratio": 0.5}), facts={"kind": "mps"})
    rows = quota_rows(state_of(nameless), at(0), 60.0).rows
    assert rows["slice"].column("tenant").to_pylist() == ["unknown"]
    assert "queue" not in rows


def test_what_has_no_quota_makes_no_rows() -> None:
    bare = replace(held(slice_target("m"), {}), effective={})
    assert quota_rows(state_of(bare, held(queue_target("a"), {})), at(0), 60.0).row_count == 0
