"""What the pages show, without Streamlit: numbers, names, frames and drawings."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as some

from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.ledger import LEVEL_1, LEVEL_2, Ledger
from collector.declarations import Objective, WorkloadDeclaration
from collector.errors import RefusedError
from collector.store import FrameStore
from collector.window import Window
from collector.words import plural
from dashboard.app_parts.acting import is_loopback
from dashboard.outlook import Outlook
from dashboard.views import changes, contention, findings, fleet, forecast, fragmentation, reading, slices, svg, switch
from dashboard.views.holders import kept_intervals, read_holders, read_kept
from dashboard.views.names import card_names, named
from dashboard.views.palette import tenant_colours
from dashboard.views.text import escaped, gib, number, percent, seconds, shortened, stamp
from tuner import journal, killswitch
from tuner.model import Change, Freeze, Group, Target
from tuner.planner.probes import NO_LIVE_SHARE
from tuner.record import ChangeState, Drop, GroupRecord
from tuner.settings import StateSettings
from tuner.state import open_state
from tuner.state.findings import add_suppression, list_findings, record_findings

START = datetime(2026, 1, 5, tzinfo=UTC)
HOSTILE = '<script>alert(1)</script> **bold** [x](javascript:1) :red[y] $z$ :material/bomb: `c` & "q"'


# --- text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.996, ">99 %"),
        (0.004, "<1 %"),
        (0.5, "50 %"),
        (math.nan, "no data"),
        (None, "no data"),
    ],
)
def test_percent_never_rounds_to_all_or_nothing(ratio: float | None, text: str) -> None:
    assert percent(ratio) == text


def test_percent_with_digits() -> None:
    assert (percent(0.9391, 1), percent(0.9999, 1), percent(1.23, 1)) == ("93.9 %", ">99.9 %", "123.0 %")
    assert (percent(-0.0001), percent(-0.02)) == ("0 %", "-2 %")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123, "12.3 ms"),
        (1.5, "1.5 s"),
        (90, "90 s"),
        (1500, "25 min"),
        (27000, "7.5 h"),
        (259200, "3 d"),
        (math.nan, "no data"),
    ],
)
def test_seconds_take_their_natural_unit(value: float, text: str) -> None:
    assert seconds(value) == text


def test_amounts() -> None:
    assert number(2700.4, "cards") == "2,700 cards"
    assert number(0.01234) == "0.0123"
    assert gib(3 * 2**30) == "3.0 GiB"
    assert gib(math.nan) == number(None) == stamp(None) == "no data"
    assert stamp(datetime(2026, 1, 6, 14, 5, tzinfo=UTC)) == "Tue 6 Jan 14:05"
    assert (plural(1, "card"), plural(2, "card"), plural(2, "query", "queries")) == ("1 card", "2 cards", "2 queries")


@given(some.text(some.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp"))))
def test_escaping_keeps_every_character_and_leaves_no_markup(name: str) -> None:
    text = escaped(name)
    assert re.sub(r"\\(.)", r"\1", text) == name
    assert not re.search(r"(?<!\\)(?:\\\\)*[*_`\[\]<>:$|#~]", text)


def test_control_characters_do_not_survive() -> None:
    assert "\n" not in escaped("a\nb\u202e")
    assert "\u202e" not in escaped("a\nb\u202e")
    assert shortened("abcdefgh", 5) == "abcd…"


# --- rows


def _store() -> FrameStore:
    """Two cards for an hour: the first, with two MPS slices, goes silent after 30 minutes; facts know of a third."""
    times = pd.date_range(START, periods=60, freq="min").as_unit("ms")
    gpu = pd.concat(
        [
            pd.DataFrame({"time": times[:30], "gpu": "GPU-a", "busy_ratio": 0.9, "sm_active_ratio": 0.5}),
            pd.DataFrame({"time": times, "gpu": "GPU-b", "busy_ratio": 0.4, "sm_active_ratio": math.nan}),
        ]
    ).assign(cluster="c", node="n")
    slices_ = pd.concat(
        [
            _slice_rows(times[:30], "GPU-a", "s/web/x/0", "shop", "web", 0.25, 0.4).assign(
                requests_per_second=10.0,
                within_objective_per_second=[10.0] * 15 + [9.0] * 15,
                memory_used_bytes=2.0**30,
                memory_quota_bytes=2.0**31,
            ),
            _slice_rows(times[:30], "GPU-a", "s/train/x/0", "lab", "train", 0.5, 0.6),
            _slice_rows(times, "GPU-b", "s/name/x/0", HOSTILE, HOSTILE, 1.0, 0.4),
        ]
    )
    queue = pd.DataFrame(
        [
            {
                "time": times[-1],
                "cluster": "c",
                "pool": "p",
                "tenant": "lab",
                "pending_count": 3.0,
                "oldest_wait_seconds": 7200.0,
            }
        ]
    )
    facts = [("gpu", "GPU-a", "", "ordinal", "0"), ("gpu", "GPU-b", "", "ordinal", "1")]
    facts += [("gpu", "GPU-gone", "", "ordinal", "2"), ("cluster", "", "", "simulated", "true")]
    facts += [("slice", "GPU-a", s, "kind", "mps") for s in ("s/web/x/0", "s/train/x/0")]
    facts += [("slice", "GPU-b", "s/name/x/0", "kind", "vgpu")]
    return FrameStore(
        {"gpu": gpu, "slice": slices_, "queue": queue},
        facts=pd.DataFrame(
            [
                {
                    "kind": kind,
                    "cluster": "c",
                    "node": "" if kind == "cluster" else "n",
                    "gpu": gpu,
                    "slice": slice_,
                    "object": "",
                    "name": name,
                    "value": value,
                    "from": pd.Timestamp(START),
                    "to": pd.NaT,
                    "provenance": "measured",
                }
                for kind, gpu, slice_, name, value in facts
            ]
        ),
    )


def _slice_rows(  # noqa: PLR0917  a row has so many parts
    times: pd.DatetimeIndex, gpu: str, slice_: str, tenant: str, workload: str, quota: float, busy: float
) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "time": times,
            "cluster": "c",
            "node": "n",
            "gpu": gpu,
            "slice": slice_,
            "tenant": tenant,
            "workload": workload,
            "sm_quota_ratio": quota,
            "busy_ratio": busy,
        }
    )


PROMISES = (WorkloadDeclaration(match="web", objective=Objective(share=0.99, bound_seconds=0.1)),)


@pytest.fixture
def store() -> FrameStore:
    return _store()


@pytest.fixture
def seen(store: FrameStore) -> reading.Look:
    found = reading.look(store, timedelta(hours=24), 60.0)
    assert found is not None
    return found


def test_the_range_ends_with_the_newest_row_and_begins_with_the_oldest(seen: reading.Look) -> None:
    assert seen.window == Window(START, START + timedelta(hours=1))
    assert seen.newest == START + timedelta(minutes=59)
    assert seen.simulated
    assert seen.cards == 2
    assert seen.coverage == pytest.approx(90 / 120)


def test_an_empty_store_has_no_range() -> None:
    assert reading.look(FrameStore({}), timedelta(hours=1), 60.0) is None


@pytest.mark.parametrize(
    ("hours", "interval", "minutes"), [(1, 60, 1), (24, 60, 10), (48, 60, 15), (168, 60, 60), (1, 300, 5)]
)
def test_buckets_divide_the_range_into_few(hours: int, interval: float, minutes: int) -> None:
    window = Window(START, START + timedelta(hours=hours))
    assert reading.bucket(window, interval) == timedelta(minutes=minutes)


def test_holders_say_who_holds_uses_and_keeps_what(store: FrameStore, seen: reading.Look) -> None:
    holdings, cards = read_holders(store, seen.window, 60.0, PROMISES)
    web = holdings[holdings["workload"] == "web"].iloc[0]
    assert (web["kind"], web["quota"], web["index"], web["memory_used_bytes"]) == ("mps", 0.25, "0", 2.0**30)
    assert web["kept"] == pytest.approx(0.5)
    assert web["promised"] == 0.99
    # The card was half active: by time share x quota, web had 0.1 of 0.4.
    assert web["used"] == pytest.approx(0.5 * 0.1 / 0.4)
    assert web["last_seen"] == pd.Timestamp(START + timedelta(minutes=29))
    assert math.isnan(holdings[holdings["workload"] == "train"].iloc[0]["kept"])
    assert cards.set_index("gpu")["last_seen"].isna().to_dict() == {"GPU-a": False, "GPU-b": False, "GPU-gone": True}


def test_kept_counts_only_intervals_with_requests() -> None:
    asked = np.array([0.0, 10.0, 10.0, math.nan, 10.0])
    within = np.array([0.0, 10.0, 9.0, 5.0, math.nan])
    assert kept_intervals(asked, within, 0.99) == 0.5
    assert math.isnan(kept_intervals(asked, within, math.nan))
    assert math.isnan(kept_intervals(asked[:1], within[:1], 0.99))


def test_kept_by_the_hour(store: FrameStore, seen: reading.Look) -> None:
    table = read_kept(store, seen.window, PROMISES)
    assert table.to_dict("records") == [{"time": pd.Timestamp(START), "judged": 30, "kept": 15}]


def test_the_heat_map_tells_absent_from_idle(store: FrameStore, seen: reading.Look) -> None:
    heat = fleet.heat(store, seen)
    assert heat.labels == ("n GPU 0", "n GPU 1")
    assert heat.values.dtype == np.uint8
    assert heat.values[0, :30].tolist() == [50] * 30
    assert set(heat.values[0, 30:]) == {fleet.NO_SAMPLE}
    assert set(heat.values[1]) == {40}  # without SM counters: busy


def test_one_slice_over_time(store: FrameStore, seen: reading.Look) -> None:
    key = slices.SliceKey("c", "n", "GPU-a", "s/web/x/0", "shop", "web")
    table = slices.over_time(store, seen, key)
    assert table["quota"].dropna().unique().tolist() == [0.25]
    assert table["used"].notna().sum() == 30
    assert table["within_objective_per_second"].iloc[[0, 29]].tolist() == [10.0, 9.0]
    assert slices.over_time(store, seen, replace(key, tenant="other")).empty
    assert slices.over_time(store, seen, replace(key, node="other")).empty


def test_the_list_of_slices_shows_percent_and_who_lives_first(store: FrameStore, seen: reading.Look) -> None:
    holdings, _ = read_holders(store, seen.window, 60.0, PROMISES)
    table = slices.table(holdings)
    assert table.iloc[0]["workload"] == HOSTILE  # shown as it is: cells are no markup
    assert table.iloc[0]["quota"] == 100
    assert table.set_index("workload").loc["web", ["card", "quota", "kept"]].tolist() == ["n GPU 0", 25, 50]


# --- fleet


def _problems(store: FrameStore, seen: reading.Look, **given: object) -> list[fleet.Problem]:
    holdings, cards = read_holders(store, fleet.recent(seen), 60.0, PROMISES)
    arguments = {
        "queues": store.latest("queue", at=seen.newest, lookback=fleet.NOW),
        "findings": (),
        "changes": (),
        "pause": killswitch.Pause(Freeze.NONE),
    } | given
    return fleet.problems(seen, cards, holdings, **arguments)  # type: ignore[arg-type]


def test_silent_cards_come_first_and_waiting_requests_are_told(store: FrameStore, seen: reading.Look) -> None:
    found = _problems(store, seen)
    assert [(p.level, p.text) for p in found] == [
        ("critical", "n GPU 0 sends nothing"),
        ("critical", "n GPU 2 sends nothing"),
        ("info", "3 requests for cards waiting, the oldest for 2 h"),
    ]


def test_findings_pauses_and_blocked_rollbacks_are_problems(store: FrameStore, seen: reading.Look) -> None:
    found = _problems(
        store,
        seen,
        findings=(_pair(0.2), _pair(0.4, suspect="other"), replace(_pair(2.0), code="TT111"), _health()),
        changes=(_record(state=ChangeState.ROLLBACK_BLOCKED), _record()),
        pause=killswitch.Pause(Freeze.ALL, "ann", "storm"),
    )
    texts = [p.text for p in found]
    assert "2 pairs of slices in conflict, the worst is 40 % slower" in texts
    assert "GPU-a shows XID 79" in texts
    assert "n GPU 0 sends nothing" not in texts  # said once, in the words of the analysis
    assert "The tuner is paused (freeze_all) by ann: storm" in texts
    assert "1 change could not be undone: a person must look" in texts
    assert "1 recommendation waiting for an answer" in texts
    assert [p.level for p in found] == sorted((p.level for p in found), key=["critical", "warning", "info"].index)


def test_idle_holders_are_one_problem(store: FrameStore, seen: reading.Look) -> None:
    idle = [
        replace(_health(), id=code, code=code, effect=Effect(hours, "gpu_hours", hours, hours))
        for code, hours in (("TT301", 3.0), ("TT302", 9.5))
    ]
    (found,) = [p for p in _problems(store, seen, findings=tuple(idle)) if p.page == "waste"]
    assert (found.level, found.text) == ("warning", "2 holders of what nobody uses: 12.5 card-hours wasted")


def test_findings_about_one_card_are_one_problem(store: FrameStore, seen: reading.Look) -> None:
    lost = replace(_health(), id="x", code="TT604", claim="GPU-a on n is gone")
    found = _problems(store, seen, findings=(_health(), lost), names=NAMES)
    assert [p.text for p in found if "n GPU 0" in p.text] == ["n GPU 0 is gone (and 1 more finding about it)"]


def test_a_picture_that_stands_still_is_told(store: FrameStore, seen: reading.Look) -> None:
    found = _problems(store, seen, now=seen.newest + timedelta(hours=5))
    assert found[0].text.startswith("No row came for 5 h")
    assert _problems(store, seen, now=seen.newest + timedelta(minutes=2)) == _problems(store, seen)


def test_a_missed_objective_is_named(store: FrameStore, seen: reading.Look) -> None:
    holdings, cards = read_holders(
        store, Window(START + timedelta(minutes=20), START + timedelta(minutes=30)), 60, PROMISES
    )
    look = replace(seen, window=Window(START, START + timedelta(minutes=30)))
    found = fleet.problems(
        look,
        cards[cards["gpu"] == "GPU-a"],
        holdings,
        queues=pd.DataFrame({"pending_count": [], "oldest_wait_seconds": []}),
        findings=(),
        changes=(),
        pause=killswitch.Pause(Freeze.NONE),
    )
    assert [p.text for p in found] == ["shop/web misses the objective now"]


def _ledger() -> Ledger:
    terms = dict.fromkeys(["capacity", *LEVEL_1, "unaccounted_1", *LEVEL_2, "unaccounted_2"], 0.0)
    hour = terms | {
        "capacity": 7200.0,
        "used": 3600.0,
        "wasted": 1800.0,
        "free": 1800.0,
        "useful": 2700.0,
        "overhead": 900.0,
    }
    both = {name: 2 * value for name, value in hour.items()}
    hours = pd.DataFrame(
        [{"hour": pd.Timestamp(START), **hour}, {"hour": pd.Timestamp(START + timedelta(hours=1)), **hour}]
    )
    gpus = pd.DataFrame([{"cluster": "c", "node": "n", "gpu": g, **hour} for g in ("GPU-a", "GPU-b")])
    return Ledger(gpus, pd.DataFrame(), hours, pd.Series(both), (), ())


def test_ledger_terms_add_up_and_count_cards_hours() -> None:
    terms = fleet.ledger_terms(_ledger()).set_index(["level", "term"])
    assert terms.loc[(1, "used"), "share"] == 0.5
    assert terms.loc[(2, "useful"), "share"] == 0.75
    assert terms["share"].groupby("level").sum().to_dict() == pytest.approx({1: 1.0, 2: 1.0})
    # Two cards for two hours: four card hours, half of them used.
    assert terms.loc[(1, "used"), "card_hours"] == pytest.approx(2.0)


def test_utilisation_sets_useful_beside_busy(store: FrameStore, seen: reading.Look) -> None:
    table = fleet.utilisation(store, seen, _ledger())
    assert table["useful"].unique().tolist() == [0.375]
    assert table["wasted"].unique().tolist() == [0.25]
    assert table["busy"].iloc[[0, -1]].tolist() == pytest.approx([0.65, 0.4])
    assert table["active"].iloc[0] == 0.5
    assert math.isnan(table["active"].iloc[-1])


def test_the_map_draws_hostile_names_as_text(store: FrameStore, seen: reading.Look) -> None:
    holdings, cards = read_holders(store, fleet.recent(seen), 60.0, PROMISES)
    (drawn,) = fleet.node_maps(seen, cards, holdings, svg.DARK)
    root = ET.fromstring(drawn.drawing)  # noqa: S314  our own text
    assert not root.findall(".//{*}script")
    words = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(str(w).startswith("<script>") for w in words)
    assert "GPU 0: sends nothing" in drawn.alt.replace("  ", " ").replace(" :", ":")


def test_tenants_keep_their_colours() -> None:
    assert tenant_colours(["b", "a", "b"]) == tenant_colours(["a", "b"])


# --- contention


def _subject(role: Role, workload: str, gpu: str = "GPU-a") -> SubjectRef:
    return SubjectRef(role, "c", "n", gpu, f"s/{workload}/x/0", workload, "shop")


def _pair(effect: float = 0.3, *, suspect: str = "train", verdict: Verdict = Verdict.HOLDS) -> Finding:
    return make_finding(
        "TT101",
        verdict,
        (_subject(Role.VICTIM, "web"), _subject(Role.SUSPECT, suspect)),
        Window(START, START + timedelta(hours=1)),
        claim=f"web on GPU-a is {effect:.0%} slower",
        risk="a third one",
        confidence=0.7,
        coverage=0.9,
        effect=Effect(effect, "ratio", effect - 0.1, effect + 0.1),
        channel="sm",
        q=0.01,
        lag_seconds=60.0,
        evidence={"cost": "step_seconds", "samples": 50.0, "reason": HOSTILE, "z": None},
        needs=("a longer window",),
        simulated=True,
    )


def _health() -> Finding:
    return make_finding(
        "TT601",
        Verdict.HOLDS,
        (SubjectRef(Role.SUBJECT, "c", "n", "GPU-a"),),
        Window(START, START + timedelta(hours=1)),
        claim="GPU-a shows XID 79",
        risk="-",
        confidence=1.0,
        coverage=1.0,
    )


def test_pairs_show_effect_and_interval_in_percent() -> None:
    table = contention.pairs([_pair(), _health()], {"GPU-a": "n GPU 0"})
    (row,) = table.to_dict("records")
    assert (row["victim"], row["suspect"], row["card"], row["through"]) == (
        "shop/web",
        "shop/train",
        "n GPU 0",
        "compute time",
    )
    assert [row["lower"], row["effect"], row["upper"]] == pytest.approx([20, 30, 40])


def test_a_throttle_is_asked_for_by_open_pairs_of_a_card() -> None:
    needs = ("a second start", "a short throttle of the suspect")
    assert contention.asks_for_a_throttle(replace(_pair(), code="TT101", needs=needs))
    assert not contention.asks_for_a_throttle(replace(_pair(), code="TT102", needs=needs))
    assert not contention.asks_for_a_throttle(replace(_pair(), code="TT101", needs=("a longer window",)))


def test_a_withheld_probe_is_told_for_the_kind_of_its_suspect() -> None:
    note = f"1 open pair of TT101 cannot be tried out: {NO_LIVE_SHARE} (mps: acts on new work only)"
    finding = replace(_pair(), code="TT101")
    suspect = finding.subject(Role.SUSPECT)

    def facts(kind: str) -> pd.DataFrame:
        key = {"cluster": suspect.cluster, "node": suspect.node, "gpu": suspect.gpu, "slice": suspect.slice}
        return pd.DataFrame([{"kind": "slice", "name": "kind", "value": kind, "from": 0, **key}])

    assert contention.withheld(finding, (note, "another line"), facts("mps")) == [note]
    assert contention.withheld(finding, (note,), facts("vgpu")) == []
    assert contention.withheld(finding, (note,), facts("mps").iloc[:0]) == [note]  # nobody knows its kind


def test_evidence_is_in_words_without_what_is_absent() -> None:
    rows = dict(contention.evidence(_pair()).itertuples(index=False, name=None))
    assert rows["why this verdict"] == HOSTILE
    assert rows["coverage of the samples"] == "90.0 %"
    assert rows["samples compared"] == "50"
    assert "standard errors away from no effect" not in rows


def test_a_pair_over_time_joins_cost_and_activity(seen: reading.Look) -> None:
    times = pd.date_range(START, periods=60, freq="min").as_unit("ms")
    victim = _slice_rows(times, "GPU-b", "s/name/x/0", "t", "v", 1.0, 0.4).assign(step_seconds=0.2)
    found = FrameStore(
        {
            "gpu": pd.DataFrame({"time": times, "cluster": "c", "node": "n", "gpu": "GPU-b", "busy_ratio": 0.4}),
            "slice": victim,
        }
    )
    key = slices.SliceKey("c", "n", "GPU-b", "s/name/x/0", "t", "v")
    table, field = contention.together(found, seen, key, key)
    assert field == "step_seconds"
    assert table["cost"].unique().tolist() == [0.2]
    assert len(table) == 60
    assert contention.together(found, seen, replace(key, workload="?"), key)[1] == ""


# --- names and findings


def test_cards_are_named_inside_sentences(store: FrameStore) -> None:
    names = card_names(store.facts())
    assert names["GPU-a"] == "n GPU 0"
    assert named("x holds 13% of GPU-a on n and GPU-b", names) == "x holds 13% of n GPU 0 and n GPU 1"
    assert named("x on GPU-a", {}) == "x on GPU-a"
    assert named("y on GPU-a of n: full; GPU-b (n), GPU-a on n.", names) == "y on n GPU 0: full; n GPU 1, n GPU 0."
    assert named("y on GPU-a of n-2, GPU-a of n.x", names) == "y on n GPU 0 of n-2, n GPU 0 of n.x"


def test_stored_findings_come_back_whole_and_only_the_newest(tmp_path: Path) -> None:
    state = open_state(StateSettings(path=tmp_path / "state.db", kill_switch=tmp_path / "PAUSED"))
    record_findings(state, [_pair(0.2), _pair(0.5, suspect="old")], START)
    record_findings(state, [_pair(0.3), _health()], START + timedelta(hours=1))
    found = findings.stored_claims(state, START)
    assert found.findings == (_pair(0.3), replace(_health(), simulated=False))
    assert found.as_of == START + timedelta(hours=1)
    assert found.of("TT10", verdict=Verdict.HOLDS) == [_pair(0.3)]
    add_suppression(state, code="TT1", subject="shop/web", who="ann", why="known", now=START, until=None)
    again = findings.stored_claims(state, START)
    assert ([f.code for f in again.findings], again.suppressed) == (["TT601"], 1)
    assert findings.stored_claims(state, START + timedelta(days=9)) == findings.Claims()
    assert findings.finding_of(list_findings(state, code="TT601")[0]).effect is None
    state.close()


# --- fragmentation


def _mig(profiles: list[tuple[str, str, str]], starts: dict[str, int] | None = None) -> list[fragmentation.CutCard]:
    end = START + timedelta(hours=1)
    look = reading.Look(Window(START, end), 60.0, False, 1.0, 1)
    cards = pd.DataFrame(
        [
            {
                "cluster": "c",
                "node": "n",
                "gpu": "GPU-a",
                "index": "0",
                "model": "NVIDIA A100-SXM4-80GB",
                "activity": 0.5,
                "last_seen": end,
            }
        ]
    )
    holdings = pd.DataFrame(
        [
            {
                "cluster": "c",
                "node": "n",
                "gpu": "GPU-a",
                "slice": s,
                "kind": "mig",
                "profile": p,
                "tenant": t,
                "workload": "w",
                "last_seen": pd.Timestamp(look.newest),
            }
            for s, p, t in profiles
        ]
    )
    rows = [
        {
            "kind": "slice",
            "cluster": "c",
            "node": "n",
            "gpu": "GPU-a",
            "slice": s,
            "object": "",
            "name": "placement",
            "value": str(v),
            "from": START,
            "to": pd.NaT,
            "provenance": "",
        }
        for s, v in (starts or {}).items()
    ]
    facts = pd.DataFrame(
        rows, columns=["kind", "cluster", "node", "gpu", "slice", "object", "name", "value", "from", "to", "provenance"]
    )
    return fragmentation.cut_cards(look, cards.assign(cluster="c"), holdings, facts)


def test_a_full_row_of_small_instances_strands_the_last_slice() -> None:
    (card,) = _mig([(f"gi{i}", "1g.10gb", "shop") for i in range(7)])
    assert card.layout is not None
    assert card.layout.blocked == frozenset({7})
    assert (card.stranded_slices, card.largest, card.placed) == (1, "nothing", False)
    assert card.words == "1 of 8 memory slices free, 1 stranded"


def test_told_placements_are_drawn_where_they_are() -> None:
    (card,) = _mig([("gi1", "3g.40gb", "none"), ("gi2", "1g.10gb", "shop")], {"gi1": 4, "gi2": 2})
    assert card.layout is not None
    assert card.placed
    assert [(c.start, c.size, c.label, bool(c.colour)) for c in card.layout.cells] == [
        (4, 4, "free", False),
        (2, 1, "w", True),
    ]
    assert card.largest == "2g.20gb"
    ET.fromstring(svg.layouts([card.layout], svg.LIGHT))  # noqa: S314  well-formed


def test_the_largest_instance_that_fits_anywhere() -> None:
    full = _mig([(f"gi{i}", "1g.10gb", "shop") for i in range(7)])
    roomy = _mig([("gi1", "1g.10gb", "shop")], {"gi1": 6})
    assert fragmentation.largest_instance(full) == "nothing"
    assert fragmentation.largest_instance(full + roomy) == "4g.40gb"
    assert fragmentation.largest_instance([]) == ""


def test_an_impossible_layout_is_said() -> None:
    (card,) = _mig([("gi1", "3g.40gb", "shop"), ("gi2", "3g.40gb", "shop")], {"gi1": 0, "gi2": 0})
    assert card.layout is None
    assert "cannot lie together" in card.words


def test_free_pieces_and_shares(store: FrameStore, seen: reading.Look) -> None:
    window = Window(START, START + timedelta(minutes=30))
    holdings, cards = read_holders(store, window, 60.0, PROMISES)
    pieces = fragmentation.free_pieces(replace(seen, window=window), cards, holdings)
    assert pieces.to_dict("records") == [
        {"card": "n GPU 0", "node": "n", "free": 0.25},
        {"card": "n GPU 1", "node": "n", "free": 0.0},
    ]
    assert fragmentation.fleet_shares(_ledger()) == {"idle": 0.25, "stranded_of_idle": 0.0}
    idle = fragmentation.idle_capacity(_ledger(), {"GPU-a": "n GPU 0"})
    assert idle.to_dict("list") == {"card": ["GPU-b", "n GPU 0"], "free": [25.0, 25.0], "stranded": [0.0, 0.0]}


def _fleet(**changes: Any) -> dict[str, Any]:
    room = {"pool": "train", "model": "NVIDIA A100-SXM4-80GB", "nodes": 1, "cards": 8, "free_cards": 2.26}
    room |= {"largest_piece": 0.6, "most_whole_cards": 1, "biggest_placeable": None, "fits_part": 0.75}
    return {
        "rooms": [room],
        "demand": [
            {"request": "a whole card", "part": 0.25, "fits": False, "waiting": 2, "lost_for": ["cpu"]},
            {"request": "two", "part": 0.5, "fits": False, "waiting": 0, "lost_for": []},
            {"request": "half", "part": 0.25, "fits": True, "waiting": 0, "lost_for": []},
        ],
        "free_cards": 2.0,
        "by_cause_cards": {"cpu": 0.5, "gpu_share": 1.0},
        "compute_without_memory_cards": 0.75,
        "memory_without_compute_bytes": 30 * 2.0**30,
        "compute_without_cpu_cards": None,
        **changes,
    }


def test_the_demand_table_says_what_fits_and_what_keeps_the_rest_out() -> None:
    table = fragmentation.demand_table(_fleet())
    assert table["for want of"].tolist() == ["cpu", "several together", ""]
    assert table.iloc[0].tolist() == ["a whole card", "25.0 %", "no", 2, "cpu"]


def test_what_still_fits_and_why_the_rest_does_not() -> None:
    [row] = fragmentation.rooms_table(_fleet()).to_dict("records")
    assert (row["pool"], row["free"], row["largest piece"], row["biggest that fits"]) == (
        "train",
        2.3,
        "60 %",
        "nothing",
    )
    causes = fragmentation.lost_causes(_fleet())
    assert causes.to_dict("list") == {"why": ["pieces too small", "no CPU on the node"], "of free share": [50.0, 25.0]}
    assert fragmentation.lost_causes(_fleet(free_cards=0.0)).empty


def test_idle_dimensions_in_words() -> None:
    words = fragmentation.dimensions_text(_fleet(compute_without_cpu_cards=1.0))
    assert words == (
        "0.8 cards' worth of compute lie beside full memory; 30 GiB of memory lie beside compute that is given away; "
        "1.0 cards' worth lie on nodes without CPU for any request"
    )
    none = _fleet(compute_without_memory_cards=0.0, memory_without_compute_bytes=0.0)
    assert fragmentation.dimensions_text(none) == ""


# --- forecast


def test_the_ladder_holds_the_horizons_and_steps_between() -> None:
    steps = forecast.ladder(("1h", "6h", "24h"), 5.0)
    assert {timedelta(hours=1), timedelta(hours=6), timedelta(hours=24)} <= set(steps)
    assert steps == sorted(set(steps))
    assert min(steps) >= timedelta(minutes=5)


def test_bands_begin_where_the_measured_ends() -> None:
    made = START + timedelta(hours=1)
    history = pd.DataFrame(
        {"series": "fleet", "time": pd.date_range(START, periods=12, freq="5min"), "value": np.arange(12.0) * 2**30}
    )
    told = pd.DataFrame(
        [
            ("fleet", made, made + timedelta(hours=1), 3600.0, q, v * 2**30, "short")
            for q, v in ((0.1, 8), (0.5, 10), (0.9, 12))
        ],
        columns=["series", "made_at", "target_time", "horizon_seconds", "quantile", "value", "reason"],
    )
    errors = pd.DataFrame(
        [("fleet", 3600.0, 5, 2.0**30, 0.5, 0.6, 0.8, 1.0)],
        columns=[
            "series",
            "horizon_seconds",
            "count",
            "mae",
            "relative_to_last",
            "relative_to_daily",
            "coverage_80",
            "coverage_95",
        ],
    )
    ahead = forecast.Ahead("memory_used_bytes", history, Outlook(made, 300.0, told, errors))
    table = forecast.bands(ahead, "fleet", timedelta(minutes=30))
    assert table["measured"].dropna().tolist() == [6, 7, 8, 9, 10, 11]
    assert table["q0.5"].dropna().tolist() == [11, 10]
    assert forecast.note(ahead, "fleet") == "short"
    assert forecast.errors(ahead, "fleet").to_dict("records") == [
        {
            "ahead": 1.0,
            "compared": 5,
            "error": 1.0,
            "against_last": 0.5,
            "against_daily": 0.6,
            "inside_80": 80.0,
            "inside_95": 100.0,
        }
    ]
    without = replace(ahead, outlook=None)
    assert forecast.errors(without, "fleet").empty
    assert list(forecast.bands(without, "fleet", timedelta(hours=1))) == ["time", "measured"]
    assert ahead.series == ["fleet"]


# --- changes


def _record(state: ChangeState = ChangeState.PLANNED, **rest: object) -> GroupRecord:
    target = Target("slice", "c", "n", "GPU-a", "s/train/x/0")
    change = Change(target, "sm_quota_ratio", 0.5, 0.25, "more for web", "lab", "train")
    group = Group("g-1", (change,), "web on GPU-a needs more", "reserve", -360.0, 0.8, 1.0)
    values = {"decision": "ask", "reason": "mode approve", "made_at": START, "updated_at": START, "restarts": 1} | rest
    return GroupRecord(group, "plan-1", state, **values)  # type: ignore[arg-type]


NAMES = {"GPU-a": "n GPU 0"}


def test_waiting_are_the_asked_and_those_of_the_newest_plan() -> None:
    asked, old = _record(), _record(decision="write_down")
    found = changes.waiting([asked, old, _record(ChangeState.CONFIRMED)], "plan-2")
    assert (found.asked, found.written_down) == ((asked,), ())
    assert changes.waiting([old], "plan-1").written_down == (old,)


def test_a_change_is_told_in_words_and_exactly() -> None:
    assert changes.change_words(_record(), NAMES) == "lab/train on n GPU 0: 50.0% → 25.0%"
    (row,) = changes.change_table(_record(), NAMES).to_dict("records")
    assert (row["knob"], row["before"], row["after"]) == ("sm_quota_ratio", "50.0%", "25.0%")
    assert changes.costs(_record()) == [
        "360 useful SM-seconds an hour less, to keep promises",
        "confidence 80 %",
        "coverage 100 %",
        "restarts 1 slice",
    ]
    assert changes.change_list([_record()], NAMES).iloc[0]["why"] == "web on n GPU 0 needs more"
    assert changes.counted([_record(), _record(ChangeState.CONFIRMED)]) == {"waits for an answer": 1, "kept": 1}


def test_drops_keep_their_reason_even_without_the_group() -> None:
    table = changes.drop_list(
        [Drop("g-1", "cooldown", "dropped", "GPU-a rests"), Drop("g-9", "x", "lessened", "y")],
        {"g-1": _record()},
        NAMES,
    )
    assert table["reason"].tolist() == ["n GPU 0 rests", "y"]
    assert table["wanted"].tolist() == ["lab/train on n GPU 0: 50.0% → 25.0%", "no data"]


def test_verification_numbers_stand_side_by_side() -> None:
    side = {"kept": 0.9, "latency_seconds": None, "requests": 5.0, "throughput": 2.0}
    numbers = {
        "slice c/n/GPU-a/s/train/x/0": {"before": side, "after": side | {"kept": None}, "says": "pass", "why": "held"}
    }
    (row,) = changes.verification(_record(evidence={"numbers": numbers}), NAMES).to_dict("records")
    assert (row["slice"], row["kept_before"], row["latency_after"]) == ("s/train/x/0 on n GPU 0", 90.0, "no data")
    assert math.isnan(row["kept_after"])
    assert changes.verification(_record(), NAMES).empty


def test_the_switch_checks_the_role_and_writes_the_journal(tmp_path: Path) -> None:
    state = open_state(StateSettings(path=tmp_path / "state.db", kill_switch=tmp_path / "PAUSED"))
    file = tmp_path / "PAUSED"
    with pytest.raises(RefusedError, match="operator"):
        switch.pause(file, state, Freeze.ALL, who="ann", why="x", role="viewer", now=START)
    assert not file.exists()
    assert switch.pause(file, state, Freeze.NEW, who="ann", why="storm", role="operator", now=START).level is Freeze.NEW
    with pytest.raises(RefusedError, match="why"):
        switch.resume(file, state, who="ann", why=" ", role="operator", now=START)
    with pytest.raises(RefusedError, match="operator"):
        switch.resume(file, state, who="ann", why="over", role="viewer", now=START)
    assert switch.resume(file, state, who="ann", why="over", role="operator", now=START)
    assert [(e.event, e.actor) for e in journal.entries(state)] == [("paused", "ann"), ("resumed", "ann")]
    table = changes.journal_table(journal.entries(state))
    assert table["reason"].tolist() == ["storm", "over"]
    assert not switch.resume(file, None, who="ann", why="over", role="operator", now=START)
    state.close()


@pytest.mark.parametrize(
    ("address", "alone"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),  # noqa: S104  it is not bound
        ("10.0.0.1", False),
        ("gpu-1", False),
        (None, False),
    ],
)
def test_only_loopback_lets_a_reader_act(address: str | None, alone: bool) -> None:
    assert is_loopback(address) is alone
