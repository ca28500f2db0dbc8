"""`trimtab analyze` on pairs that watching leaves open: the probe that waits, or why none is planned."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from sample_data.cluster import SimulatedCluster
from sample_data.cluster.presets import undecided
from tests.dashboard.conftest import Ran
from tuner.journal import record_plan
from tuner.model import Change, Group, Plan, Target, Trial
from tuner.record import ChangeState, GroupRecord
from tuner.settings import StateSettings
from tuner.state import open_state

MINUTES = 150
NONE = "2 open pairs of TT101 cannot be tried out: no share acts on running work at once under this backend"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two pairs that watching cannot decide."""
    path = tmp_path_factory.mktemp("open_pairs")
    cluster, store = SimulatedCluster(undecided(1)), EmbeddedStore(StoreSettings(path=path / "store"))
    for _ in range(MINUTES):
        cluster.step()
        store.write(cluster.frames())
    store.close()
    return path


@pytest.fixture
def analyze(elsewhere: Path, folder: Path, trimtab: Callable[..., Ran]) -> Callable[..., Ran]:
    """Analyse contention in that store, with a state of one's own and further tables."""

    def call(*arguments: str, tables: str = "") -> Ran:
        config = elsewhere / "trimtab.toml"
        config.write_text(f'[store]\npath = "{folder / "store"}"\n{tables}', encoding="utf-8")
        return trimtab("--config", str(config), *(arguments or ("analyze", "contention")))

    return call


def test_no_probe_under_a_dry_run_and_why(analyze: Callable[..., Ran]) -> None:
    assert f"{NONE}, as a probe needs it (vgpu: acts at a restart)" in analyze().out
    document = json.loads(analyze("analyze", "contention", "--json").out)
    assert document["probes"]["planned"] == {}
    (line,) = document["probes"]["withheld"]
    assert line.startswith(NONE)


def test_another_backend_is_not_asked_before_there_is_a_plan(analyze: Callable[..., Ran]) -> None:
    ran = analyze(tables='[[backend]]\nkind = "mine"\n')
    assert "no plan was made yet: `trimtab tune --once` says whether a probe decides them" in ran.out
    assert NONE not in ran.out


def test_what_the_newest_plan_says_is_told(analyze: Callable[..., Ran], elsewhere: Path) -> None:
    at = datetime(2026, 1, 5, 2, 30, tzinfo=UTC)
    card = Target("slice", "demo", "n", "GPU-1", "a")
    trial = Trial(card, "t", "chat", "tt101-1", 7, 16, 240.0, 720.0, 43200.0, 0.1, 7200.0, 10.0, 0.1, 0.05)
    change = Change(replace(card, slice="b"), "sm_quota_ratio", 0.4, 0.1, "held back", "t", "train")
    probe = Group("g-probe", (change,), "whether train slows chat is open", "probe", 0.0, 0.9, 1.0, trial=trial)
    with closing(open_state(StateSettings(path=elsewhere / "var" / "state.db"))) as state:
        for plan_id, groups, notes in (("plan-1", (probe,), ("no probe of x: it is protected",)), ("fast-2", (), ())):
            at += timedelta(minutes=1)
            plan = Plan(plan_id, at, at, groups, simulated=True, notes=notes)
            kept = [GroupRecord(g, plan_id, ChangeState.PLANNED, "ask", "mode approve", at, at) for g in groups]
            record_plan(state, plan, kept, [], actor="tuner", now=at)
    said = analyze().out
    assert "a probe is planned: whether train slows chat is open; `trimtab changes show g-probe`" in said
    assert "no probe of x: it is protected" in said
    assert NONE not in said
