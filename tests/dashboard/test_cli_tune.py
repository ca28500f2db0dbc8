"""`trimtab tune`: from rows to a recommendation, an ask, or a dry run; never a row of its own making."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from collector.batch import Batch, Fact, Subject, make_rows
from collector.errors import ConfigurationError
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from dashboard.cli.tune import chosen_backend
from dashboard.config import Settings
from dashboard.origin import SIMULATED
from tests.dashboard.conftest import Ran
from tuner.settings import BackendSettings

START = datetime(2026, 1, 5, tzinfo=UTC)
MINUTES = 240
NOW = "2026-01-05T04:00:00Z"
CONFIG = """
[[workload]]
match = "ranker"
objective = { bound_seconds = 0.2 }
[[workload]]
match = "trainer"
service_class = "offline"
"""


def batch() -> Batch:
    """One MPS card: `ranker` uses a tenth of its half at most, `trainer` all of the other half."""
    times = np.arange(MINUTES) * 60_000 + int(START.timestamp() * 1000)
    card = {"cluster": ["c"] * MINUTES, "node": ["n"] * MINUTES, "gpu": ["GPU-1"] * MINUTES}
    light = 0.05 + 0.01 * np.random.default_rng(0).random(MINUTES)
    facts = [Fact(Subject("cluster", "c"), "interval_seconds", "60", START)]
    facts += [
        Fact(Subject("gpu", "c", "n", "GPU-1"), "model", "NVIDIA A100-SXM4-80GB", START),
        Fact(Subject("gpu", "c", "n", "GPU-1"), "memory_total_bytes", str(80 * 2**30), START),
    ]
    tables = []
    for workload, busy in (("ranker", light), ("trainer", np.full(MINUTES, 0.98))):
        name = f"s/{workload}/main/0"
        fields = {
            "sm_quota_ratio": np.full(MINUTES, 0.5),
            "sm_active_ratio": busy * 0.5,
            "busy_ratio": busy,
            "memory_quota_bytes": np.full(MINUTES, 30 * 2.0**30),
            "memory_used_bytes": np.full(MINUTES, 10 * 2.0**30),
        }
        if workload == "ranker":
            fields |= dict.fromkeys(("requests_per_second", "within_objective_per_second"), np.full(MINUTES, 10.0))
        tags = {**card, "slice": [name] * MINUTES, "tenant": ["s"] * MINUTES, "workload": [workload] * MINUTES}
        tables.append(make_rows("slice", times, tags, fields))
        held = Subject("slice", "c", "n", "GPU-1", name)
        facts += [Fact(held, "kind", "mps", START), Fact(held, "pod", f"s/{workload}", START)]
    gpu = make_rows(
        "gpu",
        times,
        card,
        {
            "sm_active_ratio": light * 0.5 + 0.49,
            "busy_ratio": np.full(MINUTES, 0.99),
            "memory_used_bytes": np.full(MINUTES, 20 * 2.0**30),
        },
    )
    return Batch({"gpu": gpu, "slice": pa.concat_tables(tables, promote_options="default")}, facts)


@pytest.fixture
def store(elsewhere: Path) -> Path:
    opened = EmbeddedStore(StoreSettings())
    opened.write(batch())
    opened.close()
    (elsewhere / "trimtab.toml").write_text(CONFIG)
    return elsewhere


def newest() -> datetime:
    opened = EmbeddedStore(StoreSettings(), read_only=True)
    span = opened.span("slice")
    opened.close()
    assert span is not None
    return span.end


@pytest.mark.usefixtures("store")
def test_recommend_writes_down_who_gets_what_is_left_over(trimtab: Callable[..., Ran]) -> None:
    before = newest()
    ran = trimtab("tune", "--once", "--now", NOW, "--json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert document["held"] is None
    (change,) = document["changes"]
    assert (change["decision"], change["state"]) == ("write_down", "planned")
    (part,) = change["changes"]
    assert (part["workload"], part["knob"], part["before"]) == ("trainer", "sm_quota_ratio", 0.5)
    assert 0.6 < part["after"] < 1.0
    assert document["steps"] == []
    assert newest() == before  # the store's own quotas are not written back as if they were news
    listed = json.loads(trimtab("changes", "--json").out)["changes"]
    assert [entry["id"] for entry in listed] == [change["id"]]
    assert trimtab("audit", "verify").code == 0


@pytest.mark.usefixtures("store")
def test_approve_asks_and_the_lease_is_given_back(trimtab: Callable[..., Ran]) -> None:
    ran = trimtab("tune", "--once", "--now", NOW, "--mode", "approve")
    assert ran.code == 0, ran.err
    line = ran.out.splitlines()[1]
    assert "waits for an answer" in line
    assert "trainer sm_quota_ratio 50.0% -> " in line
    # A second tuner may start at once: the first gave its lease back.
    later = "2026-01-05T04:00:40Z"
    again = json.loads(trimtab("tune", "--once", "--now", later, "--mode", "approve", "--json").out)
    assert again["held"] is None
    # The same instant twice would be the same plan twice.
    ran = trimtab("tune", "--once", "--now", later, "--mode", "approve")
    assert ran.code == 0
    assert ran.out.startswith("held: ")


@pytest.mark.usefixtures("store")
def test_a_pause_drops_what_would_be_new(trimtab: Callable[..., Ran]) -> None:
    assert trimtab("pause", "maintenance").code == 0
    ran = trimtab("tune", "--once", "--now", NOW, "--mode", "auto")
    assert ran.code == 0
    assert "nothing to change" in ran.out
    assert "guards dropped: " in ran.out


@pytest.mark.usefixtures("store")
def test_stale_rows_hold_the_tuner(trimtab: Callable[..., Ran]) -> None:
    document = json.loads(trimtab("tune", "--once", "--now", "2026-01-05T09:00:00Z", "--json").out)
    assert document["changes"] == []


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--now", NOW], "expected --once beside them, found none; add it"),
        (["--json"], "expected --once beside them"),
        (["--once", "--backend", "simulator"], "lives inside a simulated cluster; run `trimtab demo`"),
        (["--once", "--backend", "slurm"], "got 'slurm'"),
        (["--once", "--mode", "full"], "Invalid value for '--mode'"),
    ],
)
def test_a_wrong_call_is_code_2(trimtab: Callable[..., Ran], arguments: list[str], expected: str) -> None:
    ran = trimtab("tune", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert expected in ran.err


def test_which_backend_counts() -> None:
    two = Settings(backend=({"kind": "dry-run"}, {"kind": "other"}))
    assert chosen_backend(two, "other").kind == "other"
    assert chosen_backend(Settings(backend=({"kind": "other"},)), None).kind == "other"
    assert chosen_backend(Settings(), None) == BackendSettings(kind="dry-run")
    with pytest.raises(ConfigurationError, match="expected one"):
        chosen_backend(two, None)


@pytest.mark.usefixtures("store")
def test_the_loop_ends_on_a_signal_and_gives_its_lease_back(store: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "dashboard.cli", "tune"],
        cwd=store,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TRIMTAB_FORECAST__HISTORY_DAYS": "0.01"},
    )
    assert process.stderr is not None
    try:
        first = process.stderr.readline()
        assert "until stopped" in first
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "Traceback" not in err


def test_a_simulation_says_so_and_is_answered_at_its_own_time(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    opened = EmbeddedStore(StoreSettings())
    made = batch()
    made.facts.append(Fact(Subject("cluster", "c"), "simulated", "true", START))
    opened.write(made)
    opened.close()
    (elsewhere / "trimtab.toml").write_text(CONFIG)
    ran = trimtab("tune", "--once", "--now", NOW, "--mode", "approve")
    assert ran.out.splitlines()[0] == SIMULATED
    again = json.loads(trimtab("tune", "--once", "--now", "2026-01-05T04:00:40Z", "--json").out)
    assert again["simulated"] is True
    (asked,) = [c for c in json.loads(trimtab("changes", "--json").out)["changes"] if c["decision"] == "ask"]
    assert asked["simulated"] is True
    assert trimtab("changes").out.splitlines()[0] == SIMULATED
    # By the clock on the wall the ask ended long ago.
    ran = trimtab("changes", "approve", asked["id"], "--why", "try it", "--as", "ann")
    assert (ran.code, ran.out) == (0, f"{asked['id']} is now approved\n")
    shown = trimtab("changes", "show", asked["id"]).out.splitlines()
    assert shown[0] == SIMULATED
    assert shown[-1].startswith("2026-01-05 04:0")
    assert "by ann" in shown[-1]


@pytest.mark.usefixtures("store")
def test_real_rows_are_not_called_simulated(trimtab: Callable[..., Ran]) -> None:
    assert "simulated" not in trimtab("tune", "--once", "--now", NOW).out
    assert "simulated" not in trimtab("changes").out
    assert json.loads(trimtab("analyze", "--json").out)["simulated"] is False
    assert json.loads(trimtab("forecast", "--json").out)["simulated"] is False


def test_the_backend_of_the_guide_is_built_from_its_table() -> None:
    guide = (Path(__file__).resolve().parents[2] / "CONTRIBUTING.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "class MyBackend" in block]
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102  our own page
    backend = names["MyBackend"](BackendSettings(kind="mine", options={"address": "https://quotas:8443"}))
    assert (backend.name, backend.simulated) == ("mine", False)
    assert [knob.name for knob in backend.knobs()] == ["quota_gpu_count"]
    assert backend._address == "https://quotas:8443"
