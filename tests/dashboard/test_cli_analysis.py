"""`trimtab analyze`: from the store and from files alike, with the window that rows allow."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.idle import IdleDetector
from collector.batch import Batch, Event, Fact, Severity, Subject, make_rows
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.window import Window
from dashboard.cli.analysis_tables import effect_text, subjects_text
from tests.dashboard.conftest import Ran

START = datetime(2026, 1, 5, tzinfo=UTC)
MINUTES = 180
CARD = Subject("gpu", "c", "n", "GPU-1")


def batch() -> Batch:
    """Three hours of a card: `ranker` works on half of it, `notebook` holds the other half and does nothing."""
    times = np.arange(MINUTES) * 60_000 + int(START.timestamp() * 1000)
    card = {"cluster": ["c"] * MINUTES, "node": ["n"] * MINUTES, "gpu": ["GPU-1"] * MINUTES}
    gpu = make_rows("gpu", times, card, {"sm_active_ratio": np.full(MINUTES, 0.3)})
    slices = []
    facts = [
        Fact(Subject("cluster", "c"), "interval_seconds", "60", START),
        Fact(CARD, "model", "NVIDIA A100-SXM4-80GB", START),
    ]
    for name, workload, activity in (("gi1", "ranker", 0.3), ("gi2", "[red]notebook", 0.0)):
        tags = {**card, "slice": [name] * MINUTES, "tenant": ["search"] * MINUTES, "workload": [workload] * MINUTES}
        fields = {"sm_quota_ratio": np.full(MINUTES, 3 / 7), "sm_active_ratio": np.full(MINUTES, activity)}
        slices.append(make_rows("slice", times, tags, fields))
        facts += [
            Fact(Subject("slice", "c", "n", "GPU-1", name), fact, value, START)
            for fact, value in (("kind", "mig"), ("profile", "3g.40gb"))
        ]
    xid = Event(CARD, "xid", Severity.CRITICAL, "XID 79: GPU has fallen off the bus", START + timedelta(hours=1))
    return Batch({"gpu": gpu, "slice": pa.concat_tables(slices)}, facts, [xid])


@pytest.fixture
def store(elsewhere: Path) -> Path:
    opened = EmbeddedStore(StoreSettings())
    opened.write(batch())
    opened.close()
    return elsewhere


@pytest.mark.usefixtures("store")
def test_the_document_is_that_of_the_contract_and_the_same_from_files(trimtab: Callable[..., Ran]) -> None:
    ran = trimtab("analyze", "--json")
    assert ran.code == 0
    document = json.loads(ran.out)
    own = {"free_now", "quota_moves", "slices", "suppressed", "hollow_busy", "probes"}
    assert set(document) == {"schema_version", "simulated", "findings", "census", "ledger", "waiting", *own}
    holding = {f["code"]: f for f in document["findings"] if f["verdict"] == "holds"}
    assert {"TT301", "TT601"} <= set(holding)
    assert holding["TT301"]["subjects"][0]["workload"] == "[red]notebook"
    assert holding["TT301"]["window"] == {"start": "2026-01-05T00:00:00Z", "end": "2026-01-05T03:00:00Z"}
    assert document["census"]["cards"] == 1
    assert document["ledger"]["fleet"]["capacity"] == pytest.approx(108 * MINUTES * 60)
    assert trimtab("export", "rows").code == 0
    assert json.loads(trimtab("analyze", "--rows", "rows", "--json").out) == document


@pytest.mark.usefixtures("store")
def test_the_table_prints_names_literally_and_ends_with_the_census(trimtab: Callable[..., Ran]) -> None:
    ran = trimtab("analyze", "idle")
    assert "search/[red]notebook on n" in ran.out
    assert "where the capacity went: used " in ran.out
    assert "who holds and does not use\n" in ran.out
    assert "dcgmi dmon -e 1001,1002 -i GPU-1/" in ran.out
    assert "by tenant, of all capacity\n" in ran.out
    assert "1 node, 1 card, 2 slices" in ran.out
    codes = {line.split()[0] for line in ran.out.splitlines() if line.startswith("TT")}
    assert codes <= set(IdleDetector.codes)
    assert "2026-01-05 00:00 to 2026-01-05 03:00 UTC" in ran.err


@pytest.mark.usefixtures("store")
def test_cards_to_take_out_of_sharing_are_listed(trimtab: Callable[..., Ran]) -> None:
    said = trimtab("analyze", "health").out
    assert "take these cards out of sharing" in said
    assert "the card is off the bus" in said.split("take these cards out of sharing")[1]
    assert "take these cards" not in trimtab("analyze", "idle").out


@pytest.mark.usefixtures("store")
def test_fail_on_speaks_of_findings_that_hold(trimtab: Callable[..., Ran]) -> None:
    assert trimtab("analyze", "--fail-on", "TT3").code == 1
    assert trimtab("analyze", "--fail-on", "TT1").code == 0
    misspelt = trimtab("analyze", "--fail-on", "tt3")
    assert (misspelt.code, misspelt.err.count("\n")) == (2, 1)
    assert trimtab("analyze", "--ignore", "TT3", "--fail-on", "TT3").code == 0
    only = json.loads(trimtab("analyze", "--select", "TT601", "--json").out)
    assert {f["code"] for f in only["findings"]} == {"TT601"}


@pytest.mark.usefixtures("store")
def test_the_window_can_be_chosen_and_must_hold_rows(trimtab: Callable[..., Ran]) -> None:
    ran = trimtab("analyze", "health", "--now", "2026-01-05T00:30:00Z", "--json")
    assert json.loads(ran.out)["findings"] == []  # the XID came later
    ran = trimtab("analyze", "--now", "2025-01-01T00:00:00Z")
    assert ran.code == 3
    assert "expected rows between 2024-12-30 00:00 and 2025-01-01 00:00 UTC, found none" in ran.err
    assert trimtab("analyze", "--window", "soon").code == 2
    assert trimtab("analyze", "--select", "TT9").code == 2


def test_what_was_hidden_is_counted(trimtab: Callable[..., Ran], store: Path) -> None:
    every = json.loads(trimtab("analyze", "--json").out)["findings"]
    hidden = [f for f in every if f["verdict"] in ("cannot tell", "no effect found")]
    text = trimtab("analyze").out
    assert ("not listed:" in text) is bool(hidden)
    assert "not listed:" not in trimtab("analyze", "--all").out


def finding(effect: Effect | None, *subjects: SubjectRef) -> Finding:
    window = Window(START, START + timedelta(hours=1))
    return make_finding(
        "TT101", Verdict.HOLDS, subjects, window, claim="c", risk="r", confidence=0.9, coverage=1.0, effect=effect
    )


@pytest.mark.parametrize(
    ("effect", "expected"),
    [
        (None, "-"),
        (Effect(0.2, "ratio", 0.1, 0.3), "20% (10% to 30%)"),
        (Effect(0.2, "ratio", 0.2, 0.2), "20%"),
        (Effect(2.0**31, "bytes", 2.0**30, 2.0**32), "2.0 GiB (1.0 GiB to 4.0 GiB)"),
        (Effect(3, "count", 3, 3), "3"),
        (Effect(14400, "seconds", 3600, 21600), "4 h (60 min to 6 h)"),
        (Effect(14400, "seconds", 7200, math.inf), "4 h (2 h to no end)"),
        (Effect(0.06, "ratio", -0.001, 0.12), "6% (0% to 12%)"),
        (Effect(6.224, "gpu_hours", 6.224, 6.224), "6.22 card-hours"),
    ],
)
def test_effects_in_words(effect: Effect | None, expected: str) -> None:
    assert effect_text(finding(effect)) == expected


def test_subjects_in_words() -> None:
    def ref(role: Role, workload: str, node: str = "n") -> SubjectRef:
        return SubjectRef(role, "c", node, "GPU-1", "gi1", workload, "t")

    pair = finding(None, ref(Role.VICTIM, "chat"), ref(Role.SUSPECT, "train"))
    assert subjects_text(pair, {}) == "t/train on n -> t/chat on n"
    many = finding(None, *(ref(Role.SUBJECT, f"w{i}") for i in range(5)))
    assert subjects_text(many, {}) == "t/w0 on n, t/w1 on n, t/w2 on n and 2 more"
    card = finding(None, SubjectRef(Role.SUBJECT, "c", "n", "GPU-1"))
    assert subjects_text(card, {}) == "n/GPU-1"
    assert subjects_text(card, {"GPU-1": "n GPU 0"}) == "n GPU 0"
    fleet = finding(None, SubjectRef(Role.SUBJECT, "c"))
    assert subjects_text(fleet, {}) == "c"


@pytest.mark.usefixtures("store")
def test_the_weekly_report_is_a_file_or_a_document(trimtab: Callable[..., Ran]) -> None:
    for name in ("html", "md", "json"):
        ran = trimtab("report", "weekly", "--format", name)
        assert ran.code == 0, ran.err
        path = Path(ran.out.strip())
        assert path.suffix == f".{name}"
        assert path.stat().st_size > 1000
    document = json.loads(trimtab("report", "weekly", "--json").out)
    assert document == json.loads(path.read_text())
    assert trimtab("report", "weekly", "--now", "2020-01-01").code == 3
    assert trimtab("report", "weekly", "--format", "pdf").code == 2
