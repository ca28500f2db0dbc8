"""Each page of the application, run without a browser: what it says and does, full, empty and with hostile names."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import streamlit as st
from streamlit import config as streamlit_config
from streamlit.testing.v1 import AppTest

from collector.batch import Batch, Fact, Subject, make_rows
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from dashboard.app_parts import loaders
from dashboard.app_parts.loaders import NewestPlan
from dashboard.app_parts.page import PAGES
from dashboard.serve import APP
from dashboard.views import contention
from tuner import journal, killswitch
from tuner.model import Freeze
from tuner.planner.probes import NO_LIVE_SHARE
from tuner.record import ChangeState
from tuner.settings import StateSettings
from tuner.state import open_state
from tuner.state.plans import get_group, waiting_groups

HOSTILE = "<script>alert(1)</script> **b** [x](javascript:1) :red[y] $z$"
TITLES = {name: name.capitalize() for name in PAGES}


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve as `trimtab dashboard` does, and forget what other tests have cached."""
    before = streamlit_config.get_option("server.address")
    streamlit_config.set_option("server.address", "127.0.0.1")
    yield
    streamlit_config.set_option("server.address", before)
    st.cache_data.clear()
    st.cache_resource.clear()


def open_page(name: str) -> AppTest:
    app = AppTest.from_file(str(APP), default_timeout=120).run()
    return app if name == "fleet" else app.switch_page(PAGES[name]).run()


def said(app: AppTest) -> str:
    """Return everything that the page says, escapes taken away."""
    parts = [*app.markdown, *app.caption, *app.info, *app.warning, *app.error, *app.subheader, *app.title]
    return "\n".join(str(part.value) for part in parts).replace("\\", "")


def tables(app: AppTest) -> list[pd.DataFrame]:
    return [frame.value for frame in app.dataframe]


def metrics(app: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


@pytest.fixture
def world(app_world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIMTAB_CONFIG", str(app_world))
    return app_world.parent


@pytest.mark.parametrize("name", list(PAGES))
def test_every_page_renders_and_says_that_it_is_a_simulation(world: Path, name: str) -> None:
    app = open_page(name)
    assert not app.exception
    assert app.title[0].value == TITLES[name]
    assert "simulated" in said(app)
    assert "16 cards" in said(app)


def test_fleet_adds_up(world: Path) -> None:
    app = open_page("fleet")
    ledger = next(t for t in tables(app) if "term" in t)
    first = ledger[ledger["level"] == "all capacity"]
    percents = first["share"].str.extract(r"(-?[\d.]+)")[0].astype(float)
    assert percents.sum() == pytest.approx(100, abs=0.5)
    assert set(metrics(app)) >= {"Useful", "SMs active", "Objectives kept"}
    assert "waiting for an answer" in said(app)


def test_a_shorter_range_reads_less(world: Path) -> None:
    app = open_page("fleet")
    app.button_group(key="range").set_value("1 h").run()
    assert not app.exception
    assert "Mon 5 Jan 00:31 to Mon 5 Jan 01:31" in said(app)


def test_waste_says_what_is_free_and_by_whom(world: Path) -> None:
    app = open_page("waste")
    found = tables(app)
    free = next(t for t in found if "piece" in t)
    assert "whole card" in set(free["piece"])
    tenants = next(t for t in found if "borrowed" in t and "useful" in t)
    assert set(tenants["tenant"]) == {"language", "research", "vision"}
    assert tenants["energy"].gt(0).all()
    cards = next(t for t in found if "stranded" in t)
    parts = cards[["used", "reserved", "wasted", "free", "stranded", "unobserved"]]
    assert parts.sum(axis=1).tolist() == pytest.approx([100.0] * 16)
    slices = next(t for t in found if "used from" in t)
    assert set(slices["used from"]) <= {"measured", "estimated", "unknown"}
    assert set(metrics(app)) >= {"Wasted", "Reserved", "Idle holders", "Free cards"}


def test_slices_can_be_found(world: Path) -> None:
    app = open_page("slices")
    everything = tables(app)[0]
    assert set(everything["kind"].str.split().str[0]) == {"mig", "mps", "timeslice", "vgpu", "whole"}
    app.text_input(key="slices_find").set_value("segment-train").run()
    found = tables(app)[0]
    assert found["workload"].unique().tolist() == ["segment-train"]
    assert len(found) < len(everything)
    app.text_input(key="slices_find").set_value("no such thing").run()
    assert not app.exception
    assert "Nothing fits these filters" in said(app)


def test_contention_shows_what_the_tuner_found(world: Path) -> None:
    app = open_page("contention")
    counts = metrics(app)
    assert sum(int(v) for v in counts.values()) > 0
    assert "How this could be wrong" in said(app)
    assert "Who must not share a card" in [heading.value for heading in app.subheader]
    assert "may share, of" in said(app)


def test_fragmentation_draws_the_cut_cards(world: Path) -> None:
    app = open_page("fragmentation")
    assert "of 8 memory slices free" in said(app)
    assert metrics(app)["Requests waiting"].isdigit()


def test_forecast_shows_another_series(world: Path) -> None:
    app = open_page("forecast")
    assert app.selectbox(key="forecast_series").value == "fleet"
    assert metrics(app)["Now"].endswith("cards")
    app.selectbox(key="forecast_series").select_index(1).run()
    assert not app.exception


def test_open_pairs_that_no_probe_can_decide_are_told(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = "mig: none can be set; mps: acts on new work only; timeslice: none can be set; vgpu: acts at a restart"
    note = f"4 open pairs of TT101 cannot be tried out: {NO_LIVE_SHARE} ({kinds})"
    monkeypatch.setattr(contention, "asks_for_a_throttle", lambda _: True)
    monkeypatch.setattr(loaders, "newest_plan", lambda: NewestPlan("plan-9", (), {}))
    assert "cannot throttle it" not in said(open_page("contention"))
    monkeypatch.setattr(loaders, "newest_plan", lambda: NewestPlan("plan-9", (), {}, (note,)))
    assert f"The tuner cannot throttle it: {note}." in said(open_page("contention"))
    assert "4 open pairs of TT101 cannot be tried out" in said(open_page("recommendations"))


def test_a_recommendation_is_approved_with_a_reason(world: Path) -> None:
    state = open_state(StateSettings(path=world / "state.db", kill_switch=world / "PAUSED"))
    first = next(r for r in waiting_groups(state) if r.state is ChangeState.PLANNED)
    app = open_page("recommendations")
    app.button(key=f"approve_{first.id}_send").click().run()
    assert "needs who and why" in said(app)  # the tuner's own words
    app.text_input(key=f"approve_{first.id}_who").set_value("ann")
    app.text_input(key=f"approve_{first.id}_why").set_value("the night is quiet")
    app.button(key=f"approve_{first.id}_send").click().run()
    assert not app.exception
    record = get_group(state, first.id)
    assert record is not None
    assert record.state is ChangeState.APPROVED
    last = journal.entries(state, group_id=first.id)[-1]
    assert (last.actor, last.body["why"]) == ("ann", "the night is quiet")
    state.close()


def test_nobody_acts_from_an_address_that_others_reach(world: Path) -> None:
    streamlit_config.set_option("server.address", "0.0.0.0")  # noqa: S104  nothing is bound here
    for name in ("recommendations", "changes"):
        app = open_page(name)
        assert not app.exception
        assert [b.label for b in app.button if b.label in ("Approve", "Reject", "Stop", "Roll back")] == []


def test_changes_show_verification_and_are_rolled_back(world: Path) -> None:
    app = open_page("changes")
    table = next(t for t in tables(app) if "outcome" in t)
    assert len(table) > 0
    kept = table[table["state"] == "kept"]
    assert len(kept) > 0
    app.button_group(key="changes_states").set_value(["kept"]).run()
    shown = next(t for t in tables(app) if "outcome" in t)
    first = shown.iloc[0]["id"]
    assert any("verdict" in t and (t["verdict"] == "pass").any() for t in tables(app))
    app.text_input(key=f"undo_{first}_why").set_value("it looks odd")
    app.text_input(key=f"undo_{first}_who").set_value("ann")
    app.button(key=f"undo_{first}_send").click().run()
    assert not app.exception
    state = open_state(StateSettings(path=world / "state.db", kill_switch=world / "PAUSED"))
    record = get_group(state, first)
    assert record is not None
    assert record.state is ChangeState.ROLLING_BACK
    state.close()


def test_the_kill_switch_is_turned_on_and_off(world: Path) -> None:
    app = open_page("changes")
    app.text_input(key="pause_freeze_all_why").set_value("storm")
    app.text_input(key="pause_freeze_all_who").set_value("ann")
    app.button(key="pause_freeze_all_send").click().run()
    assert killswitch.read(world / "PAUSED").level is Freeze.ALL
    assert "Paused (freeze_all) by ann" in said(app)
    assert "Nothing that is approved is carried out" in said(app.switch_page(PAGES["recommendations"]).run())
    app = app.switch_page(PAGES["changes"]).run()
    app.text_input(key="resume_why").set_value("over")
    app.text_input(key="resume_who").set_value("ann")
    app.button(key="resume_send").click().run()
    assert killswitch.read(world / "PAUSED").level is Freeze.NONE
    assert "The tuner may act" in said(app)


def test_health_shows_cards_worst_first(world: Path) -> None:
    app = open_page("health")
    shown = metrics(app)
    board = next((t for t in tables(app) if "what to do" in t), None)
    states = ["take out of sharing", "see to it soon", "watch"]
    counted = [int(shown[name]) for name in ("Take out of sharing", "See to it soon", "Watch")]
    assert sum(counted) == (0 if board is None else len(board))
    if board is not None:
        places = [states.index(state) for state in board["state"]]
        assert places == sorted(places)
        assert int(shown["Without a finding"]) == 16 - len(board)


def test_limits_shows_where_busy_time_is_hollow(world: Path) -> None:
    app = open_page("limits")
    table = next(t for t in tables(app) if "busy card-hours" in t)
    assert len(table)
    assert (table["busy card-hours"] > 0).all()
    assert table[["sm", "occupancy", "tensor"]].stack().between(0, 100).all()
    assert metrics(app)["Busy, SM low"].endswith("%")
    assert set(table["held as"]) <= {"mig", "mps", "vgpu", "timeslice", "whole", "unknown"}


@pytest.mark.parametrize("name", list(PAGES))
def test_without_rows_a_page_says_what_to_do(elsewhere: Path, name: str) -> None:
    app = open_page(name)
    assert not app.exception
    words = said(app)
    assert any(text in words for text in ("trimtab doctor", "trimtab tune", "Nothing was ever changed"))
    assert "0 %" not in words


def test_a_configuration_that_is_wrong_is_one_line(elsewhere: Path) -> None:
    config = elsewhere / "trimtab.toml"
    config.write_text("[stoer]\npath = 'x'\n", encoding="utf-8")
    app = open_page("fleet")
    assert not app.exception
    assert len(app.error) == 1
    assert "stoer" in said(app)


@pytest.mark.parametrize("name", ["fleet", "slices", "health", "contention", "limits", "fragmentation", "forecast"])
def test_hostile_names_are_shown_and_never_marked_up(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    start = datetime(2026, 1, 5, tzinfo=UTC)
    times = [int((start + timedelta(minutes=m)).timestamp() * 1000) for m in range(30)]
    card = {"cluster": ["c"] * 30, "node": [HOSTILE] * 30, "gpu": [f"GPU-{HOSTILE}"] * 30}
    holder = {"slice": [f"{HOSTILE}/x/y/0"] * 30, "tenant": [HOSTILE] * 30, "workload": [HOSTILE] * 30}
    half, whole = np.full(30, 0.5), np.full(30, 1.0)
    rows = {
        "gpu": make_rows("gpu", times, card, {"busy_ratio": half}),
        "slice": make_rows("slice", times, card | holder, {"busy_ratio": half, "sm_quota_ratio": whole}),
    }
    subject = Subject("gpu", "c", HOSTILE, f"GPU-{HOSTILE}")
    store = EmbeddedStore(StoreSettings(path=elsewhere / "var" / "store"))
    store.write(Batch(rows, [Fact(subject, "ordinal", HOSTILE, start), Fact(subject, "model", HOSTILE, start)]))
    store.close()
    app = open_page(name)
    assert not app.exception
    for part in [*app.markdown, *app.caption, *app.subheader]:
        text = str(part.value)
        assert "<script" not in text.replace("\\<", "")
        assert "**b**" not in text
        assert " :red[y]" not in text.replace(":red[:material", "")
    assert "simulated" not in said(app)
