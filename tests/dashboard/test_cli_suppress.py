"""`trimtab suppress`, and `trimtab explain FINDING`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding
from collector.window import Window
from tests.dashboard.conftest import Ran
from tests.dashboard.test_cli_analysis import store as store  # noqa: PLC0414  a fixture
from tuner.settings import StateSettings
from tuner.state import open_state
from tuner.state.findings import record_findings, unsuppressed

NOW = datetime(2026, 1, 5, 3, tzinfo=UTC)


def finding(workload: str = "notebook", code: str = "TT301") -> Finding:
    return make_finding(
        code,
        Verdict.HOLDS,
        (SubjectRef(Role.SUBJECT, "c", "n", "GPU-1", "a", workload, "search"),),
        Window(NOW - timedelta(hours=3), NOW),
        claim=f"search/{workload} holds [red]25%[/red]",
        risk="it may come back",
        confidence=0.9,
        coverage=1.0,
        effect=Effect(3.0, "gpu_hours", 2.0, 3.0),
        evidence={"owner": "search", "since": NOW - timedelta(hours=3), "quota_ratio": 0.25, "pod": ""},
    )


@pytest.fixture
def recorded(elsewhere: Path) -> list[Finding]:
    found = [finding(), finding("ranker"), finding("notebook", "TT311")]
    state = open_state(StateSettings())
    record_findings(state, found, NOW)
    state.close()
    return found


ADD = ("suppress", "tt301", "search/notebook", "--reason", "back on Monday", "--until", "2099-01-01", "--as", "ann")


def test_a_suppression_says_what_it_covers_and_is_listed(trimtab: Callable[..., Ran], recorded: list[Finding]) -> None:
    ran = trimtab(*ADD)
    assert ran.code == 0
    assert "TT301 on search/notebook until 2099-01-01 00:00 UTC; covers 1 finding recorded" in ran.out
    (line,) = trimtab("suppress").out.splitlines()[1:]
    assert "has hidden nothing yet" in line
    assert "back on Monday" in line
    state = open_state(StateSettings())
    assert [f.id for f in unsuppressed(state, recorded, NOW)] == [recorded[1].id, recorded[2].id]
    state.close()
    (one,) = json.loads(trimtab("suppress", "--json").out)["suppressions"]
    assert (one["standing"], one["who"], one["why"]) == ("holds", "ann", "back on Monday")
    assert trimtab("suppress", "--remove", str(one["id"])).code == 0
    assert trimtab("suppress").out.strip() == "nothing is suppressed"
    assert trimtab("suppress", "--remove", "99").code == 5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("TT999", "x", "--reason", "r", "--until", "1d"), "expected a finding code or its beginning, got 'TT999'"),
        (("TT301", "x", "--until", "1d"), "got no --reason"),
        (("TT301", "--reason", "r"), "got no SUBJECT, --until"),
        (("TT301", "x", "--reason", "r", "--until", "soon"), "or a length such as 2w, got 'soon'"),
    ],
)
def test_what_is_missing_is_said(trimtab: Callable[..., Ran], arguments: tuple[str, ...], says: str) -> None:
    ran = trimtab("suppress", *arguments)
    assert ran.code == 2
    assert says in ran.err
    assert not Path("var/state.db").exists()


def test_one_that_has_expired_is_refused(trimtab: Callable[..., Ran]) -> None:
    ran = trimtab("suppress", "TT301", "x", "--reason", "r", "--until", "2020-01-01")
    assert ran.code == 5
    assert "expected an expiry after" in ran.err


@pytest.mark.usefixtures("store")
def test_what_is_suppressed_is_not_listed_and_still_counted(trimtab: Callable[..., Ran]) -> None:
    before = json.loads(trimtab("analyze", "idle", "--json").out)
    idle = next(f for f in before["findings"] if f["code"] == "TT301")
    assert trimtab("suppress", "TT3", idle["id"], "--reason", "known", "--until", "2099-01-01").code == 0
    ran = trimtab("analyze", "idle")
    assert not any(line.startswith("TT301 ") and "holds" in line for line in ran.out.splitlines())
    assert "1 finding suppressed, not listed" in ran.out
    (line,) = trimtab("suppress").out.splitlines()[1:]
    assert "has hidden nothing yet" not in line  # what an analysis hid was of use, with or without a tuner
    assert "Mon 5 Jan 03:00" in line
    after = json.loads(trimtab("analyze", "idle", "--json").out)
    assert list(after["suppressed"]) == [idle["id"]]
    assert [f["id"] for f in after["findings"]] == [f["id"] for f in before["findings"]]
    assert after["ledger"] == before["ledger"]
    assert trimtab("analyze", "idle", "--fail-on", "TT301").code == 0


@pytest.mark.usefixtures("store")
def test_a_finding_is_explained_with_the_rows_it_rests_on(trimtab: Callable[..., Ran]) -> None:
    listed = json.loads(trimtab("analyze", "idle", "--json").out)["findings"]
    idle = next(f for f in listed if f["code"] == "TT301")
    ran = trimtab("explain", idle["id"][:12].upper())
    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"{idle['id']} (TT301, Idle and held): holds")
    assert re.search(r"^quota_ratio +42.9%$", ran.out, re.MULTILINE)
    assert re.search(r"^since +2026-01-05 00:00 UTC$", ran.out, re.MULTILINE)
    for part in ("owner", "how it is computed: ", "how it can be wrong: ", "what to do: ", "rows of slice "):
        assert part in ran.out
    document = json.loads(trimtab("explain", idle["id"], "--json").out)
    assert document["finding"]["id"] == idle["id"]
    assert document["code"]["code"] == "TT301"
    (table,) = document["evidence_rows"]
    assert table["measurement"] == "slice"
    (field,) = set(table["rows"][0]) - {"time"}
    assert {row[field] for row in table["rows"]} == {0.0}
    other = trimtab("explain", "tt301-ffffffffffff")
    assert other.code == 3
    assert f"of TT301 there are: {idle['id']}" in other.err


@pytest.mark.usefixtures("store")
def test_a_recorded_finding_is_told_as_it_was(trimtab: Callable[..., Ran], recorded: list[Finding]) -> None:
    ran = trimtab("explain", recorded[0].id)
    assert "search/notebook holds [red]25%[/red]" in ran.out
    assert "3 card-hours (2 to 3)" in ran.out
