"""`trimtab audit export`: who held which slice with which quota and use, span by span."""

from __future__ import annotations

import csv
import errno
import io
import json
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.holding_spans import SPAN_COLUMNS
from collector.batch import Batch, Fact, Subject, make_rows
from collector.settings import StoreSettings
from collector.store import EmbeddedStore, FrameStore
from collector.window import Window
from dashboard.holding_export import held_spans, write_csv, write_json
from tests.dashboard.conftest import Ran

START = datetime(2026, 1, 5, tzinfo=UTC)
GOLDEN = Path(__file__).parent / "golden" / "audit_export.csv"
A_DAY = 24 * 60
HOSTILE = '=cmd|"/c calc"!A1'


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


class Fleet:
    """One node, told minute by minute."""

    def __init__(self, node: str = "n1") -> None:
        self.node = node
        self.batches: list[Batch] = []

    def card(self, gpu: str, minutes: Iterable[int], *, active: float, sms: int = 100) -> None:
        stamps = [int(at(m).timestamp() * 1000) for m in minutes]
        tags = {"cluster": ["c"] * len(stamps), "node": [self.node] * len(stamps), "gpu": [gpu] * len(stamps)}
        rows = make_rows("gpu", stamps, tags, {"sm_active_ratio": np.full(len(stamps), active)})
        fact = Fact(Subject("gpu", "c", self.node, gpu), "sm_count", str(sms), at(0))
        self.batches.append(Batch(rows={"gpu": rows}, facts=[fact]))

    def slice(
        self, gpu: str, name: str, minutes: Iterable[int], *, tenant: str, workload: str = "w", **fields: float
    ) -> None:
        stamps = [int(at(m).timestamp() * 1000) for m in minutes]
        tags = {
            "cluster": ["c"] * len(stamps),
            "node": [self.node] * len(stamps),
            "gpu": [gpu] * len(stamps),
            "slice": [name] * len(stamps),
            "tenant": [tenant] * len(stamps),
            "workload": [workload] * len(stamps),
        }
        values = {field: np.full(len(stamps), value) for field, value in fields.items()}
        self.batches.append(Batch(rows={"slice": make_rows("slice", stamps, tags, values)}))

    def told(self, gpu: str, name: str, minute: float, until: float | None = None, **facts: str) -> None:
        subject = Subject("slice", "c", self.node, gpu, name)
        self.batches.append(Batch(facts=[Fact(subject, fact, value, at(minute)) for fact, value in facts.items()]))
        if until is not None:
            self.batches.append(Batch(facts=[Fact(subject, fact, None, at(until)) for fact in facts]))

    def spans(self, start: float = 0, end: float = 120) -> list[dict[str, Any]]:
        store = FrameStore.of_batches(self.batches)
        return list(held_spans(store, Window(at(start), at(end)), 60.0))


def brief(spans: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(span[name] for name in ("slice", "tenant", "from", "to", *names)) for span in spans]


def two_owners() -> Fleet:
    """A card with 100 SMs: one tenant for an hour at 40 %, then another one for half an hour at 80 %."""
    fleet = Fleet()
    fleet.card("GPU-1", range(60), active=0.4)
    fleet.card("GPU-1", range(60, 90), active=0.8)
    fleet.slice("GPU-1", "whole", range(60), tenant="a", workload="train", sm_quota_ratio=1.0)
    fleet.slice("GPU-1", "whole", range(60, 90), tenant="b", workload=HOSTILE, sm_quota_ratio=1.0)
    fleet.told("GPU-1", "whole", 0, kind="whole", sm_quota_ratio="1", tenant="a", workload="train", pod="a/train-0")
    fleet.told("GPU-1", "whole", 60, 90, tenant="b", workload=HOSTILE, pod="b/x-0", kind="whole", sm_quota_ratio="1")
    return fleet


def test_a_change_of_owner_is_two_spans_with_their_own_use() -> None:
    spans = two_owners().spans()
    assert brief(spans, "pod", "sm_hours_held", "sm_hours_used", "coverage") == [
        ("whole", "a", "2026-01-05T00:00:00Z", "2026-01-05T01:00:00Z", "a/train-0", 100.0, 40.0, 1.0),
        ("whole", "b", "2026-01-05T01:00:00Z", "2026-01-05T01:30:00Z", "b/x-0", 50.0, 40.0, 1.0),
    ]
    assert {span["use_provenance"] for span in spans} == {"measured"}
    assert tuple(spans[0]) == SPAN_COLUMNS


def test_spans_are_cut_to_the_window() -> None:
    spans = two_owners().spans(30, 75)
    assert brief(spans, "sm_hours_held", "sm_hours_used") == [
        ("whole", "a", "2026-01-05T00:30:00Z", "2026-01-05T01:00:00Z", 50.0, 20.0),
        ("whole", "b", "2026-01-05T01:00:00Z", "2026-01-05T01:15:00Z", 25.0, 20.0),
    ]


def test_a_re_cut_ends_slices_and_begins_others_even_of_the_same_name() -> None:
    fleet = Fleet()
    fleet.card("GPU-1", range(120), active=0.5)
    big = {"kind": "mig", "profile": "4g.40gb", "tenant": "a", "workload": "w", "sm_quota_ratio": "0.57"}
    small = {**big, "profile": "1g.10gb", "sm_quota_ratio": "0.14"}
    fleet.told("GPU-1", "gi1", 0, 60, **big)
    fleet.told("GPU-1", "gi1", 60, **small)
    fleet.slice("GPU-1", "gi1", range(60), tenant="a", sm_active_ratio=0.4, sm_quota_ratio=0.57)
    fleet.slice("GPU-1", "gi1", range(60, 120), tenant="a", sm_active_ratio=0.1, sm_quota_ratio=0.14)
    assert brief(fleet.spans(), "profile", "sm_quota_ratio", "sm_hours_held", "sm_hours_used") == [
        ("gi1", "a", "2026-01-05T00:00:00Z", "2026-01-05T01:00:00Z", "4g.40gb", 0.57, 57.0, 40.0),
        ("gi1", "a", "2026-01-05T01:00:00Z", "2026-01-05T02:00:00Z", "1g.10gb", 0.14, 14.0, 10.0),
    ]


def test_a_change_of_quota_is_a_span_and_a_gap_in_the_rows_is_still_held() -> None:
    fleet = Fleet()
    fleet.card("GPU-1", range(120), active=0.3)
    fleet.told("GPU-1", "s", 0, kind="mps", tenant="a", workload="w", pod="a/p-0")
    fleet.told("GPU-1", "s", 0, 30, sm_quota_ratio="0.5")
    fleet.told("GPU-1", "s", 30, sm_quota_ratio="0.25")
    fleet.slice("GPU-1", "s", [*range(60), *range(90, 120)], tenant="a", busy_ratio=0.9)
    first, second = fleet.spans()
    assert (first["sm_quota_ratio"], first["to"], first["sm_hours_held"]) == (0.5, "2026-01-05T00:30:00Z", 25.0)
    assert (second["sm_quota_ratio"], second["sm_hours_held"], second["coverage"]) == (0.25, 37.5, 0.6667)
    assert second["sm_hours_used"] == pytest.approx(0.3 * 100)  # an hour of rows at 0.3 of the card
    assert second["use_provenance"] == "estimated"  # under MPS the card's activity is divided among its slices


def test_who_is_not_known_yet_becomes_who_it_was() -> None:
    fleet = Fleet()
    fleet.card("GPU-1", range(60), active=0.3)
    fleet.told("GPU-1", "s", 0, 60, kind="vgpu")
    fleet.told("GPU-1", "s", 1, 60, tenant="a", workload="w")
    fleet.told("GPU-1", "t", 0, 60, kind="vgpu")  # never known
    assert brief(fleet.spans()) == [
        ("s", "a", "2026-01-05T00:00:00Z", "2026-01-05T01:00:00Z"),
        ("t", "unknown", "2026-01-05T00:00:00Z", "2026-01-05T01:00:00Z"),
    ]


def test_what_nobody_holds_is_not_listed_and_what_nobody_knows_is_empty() -> None:
    fleet = Fleet()
    fleet.told("GPU-1", "gi1", 0, kind="mig", tenant="none", workload="none")
    fleet.told("GPU-1", "gi2", 0, kind="mig", profile="1g.10gb", tenant="a", workload="w")
    (span,) = fleet.spans()
    assert (span["slice"], span["sm_quota_ratio"], span["sm_hours_held"], span["sm_hours_used"]) == (
        "gi2",
        None,
        None,
        None,
    )
    assert (span["coverage"], span["use_provenance"], span["quota_provenance"]) == (0.0, "unknown", "unknown")


def test_rows_without_facts_have_a_span_from_first_to_last_row() -> None:
    fleet = Fleet()
    fleet.card("GPU-1", range(120), active=0.5)
    fleet.slice("GPU-1", "whole", range(10, 40), tenant="a")
    fleet.slice("GPU-1", "whole", range(40, 100), tenant="b")
    assert brief(fleet.spans(), "sm_hours_held", "sm_hours_used", "quota_provenance") == [
        ("whole", "a", "2026-01-05T00:10:00Z", "2026-01-05T00:40:00Z", 50.0, 25.0, "estimated"),
        ("whole", "b", "2026-01-05T00:40:00Z", "2026-01-05T01:40:00Z", 100.0, 50.0, "estimated"),
    ]


def test_a_span_runs_over_days() -> None:
    fleet = Fleet()
    minutes = range(A_DAY - 60, 2 * A_DAY + 60)
    fleet.card("GPU-1", minutes, active=0.5)
    fleet.slice("GPU-1", "whole", minutes, tenant="a", sm_quota_ratio=1.0)
    fleet.told("GPU-1", "whole", A_DAY - 60, 2 * A_DAY + 60, kind="whole", tenant="a", workload="w")
    fleet.slice("GPU-2", "whole", minutes, tenant="b", busy_ratio=0.5)
    one, other = fleet.spans(0, 3 * A_DAY)
    for span in (one, other):
        assert (span["from"], span["to"]) == ("2026-01-05T23:00:00Z", "2026-01-07T01:00:00Z")
    assert (one["sm_hours_held"], one["sm_hours_used"], one["coverage"]) == (2600.0, 1300.0, 1.0)
    assert one["quota_provenance"] == "measured"


def test_held_is_never_more_than_the_card_and_all_spans_add_up() -> None:
    spans = two_owners().spans(0, 120)
    assert sum(span["sm_hours_held"] for span in spans) == 150.0
    assert sum(span["sm_hours_used"] for span in spans) == 80.0


def test_csv_is_golden_and_json_says_the_same() -> None:
    spans = two_owners().spans()
    out = io.StringIO()
    assert write_csv(spans, out) == 2
    assert out.getvalue() == GOLDEN.read_text(encoding="utf-8")
    window = Window(at(0), at(120))
    out = io.StringIO()
    assert write_json(spans, window, out) == 2
    document = json.loads(out.getvalue())
    assert document["schema_version"] == 1
    assert document["spans"] == spans
    out = io.StringIO()
    assert write_json([], window, out) == 0
    assert json.loads(out.getvalue())["spans"] == []


@pytest.fixture
def stored(elsewhere: Path) -> Path:
    with closing(EmbeddedStore(StoreSettings())) as store:
        for batch in two_owners().batches:
            store.write(batch)
    return elsewhere


def test_the_command_writes_csv_and_json(trimtab: Callable[..., Ran], stored: Path) -> None:
    ran = trimtab("audit", "export", "--from", "2026-01-05", "--to", "2026-01-05T02:00:00Z")
    assert ran.code == 0
    assert ran.out == GOLDEN.read_text(encoding="utf-8")
    assert "2 spans, 2026-01-05 00:00 to 2026-01-05 02:00 UTC" in ran.err
    ran = trimtab("audit", "export", "--format", "json", "--output", "held.json")
    assert (ran.code, ran.out) == (0, "")
    found = json.loads(Path("held.json").read_text())
    assert [span["tenant"] for span in found["spans"]] == ["a", "b"]
    # Without --from and --to it is all there is, up to the newest row.
    assert found["from"] == "2026-01-05T00:00:00+00:00"
    (first, *_) = list(csv.DictReader(io.StringIO(GOLDEN.read_text(encoding="utf-8"))))
    assert {name: str(value) for name, value in found["spans"][0].items() if name in ("sm_hours_used", "pod")} == {
        name: first[name] for name in ("pod", "sm_hours_used")
    }


def test_a_window_that_ends_before_it_begins_is_code_2(trimtab: Callable[..., Ran], stored: Path) -> None:
    ran = trimtab("audit", "export", "--from", "2026-01-06", "--to", "2026-01-05")
    assert ran.code == 2
    assert "expected --from before --to" in ran.err
    ran = trimtab("audit", "export", "--output", "nowhere/held.csv")
    assert ran.code == 4
    assert "expected to write nowhere/held.csv" in ran.err


def test_an_export_that_fails_leaves_the_file_of_the_time_before(
    trimtab: Callable[..., Ran], stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("held.csv").write_text("of yesterday")

    def fails(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dashboard.holding_export.write_csv", fails)
    ran = trimtab("audit", "export", "--output", "held.csv")
    assert (ran.code, "No space left on device" in ran.err) == (4, True)
    assert Path("held.csv").read_text() == "of yesterday"
    assert not list(Path().glob(".held*"))


def test_use_of_days_whose_raw_rows_are_gone_comes_from_coarser_ones(elsewhere: Path) -> None:
    fleet = two_owners()
    with closing(EmbeddedStore(StoreSettings())) as store:
        for batch in fleet.batches:
            store.write(batch)
        store.seal()
        store.merge()
        store.retain(at(0) + timedelta(days=30))  # raw rows go after 7 days, 1-min rows stay
        window = Window(at(0), at(120))
        assert store.read("gpu", window).empty
        spans = list(held_spans(store, window, 30.0))
    assert brief(spans, "sm_hours_held", "sm_hours_used") == [
        ("whole", "a", "2026-01-05T00:00:00Z", "2026-01-05T01:00:00Z", 100.0, 40.0),
        ("whole", "b", "2026-01-05T01:00:00Z", "2026-01-05T01:30:00Z", 50.0, 40.0),
    ]


def test_a_window_of_all_times_asks_for_the_days_that_have_rows() -> None:
    store = FrameStore.of_batches(two_owners().batches)
    ever = Window(datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC))
    asked: list[Window] = []
    read = store.read

    def counted(measurement: str, window: Window, **options: Any) -> Any:
        asked.append(window)
        return read(measurement, window, **options)

    store.read = counted  # type: ignore[method-assign]  # counts
    spans = list(held_spans(store, ever, 60.0))
    assert brief(spans, "sm_hours_used") == brief(two_owners().spans(), "sm_hours_used")
    assert 0 < len(asked) <= 12


def test_rows_in_no_part_of_a_window_are_not_asked_for() -> None:
    spans = two_owners().spans(-A_DAY, -1)
    assert spans == []


def test_a_name_in_csv_neither_acts_on_a_terminal_nor_begins_a_line() -> None:
    fleet = two_owners()
    spans = [{**span, "pod": "a\x1b[31m\nb\u202e"} for span in fleet.spans()]
    out = io.StringIO()
    assert write_csv(spans, out) == 2
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert "a\ufffd[31m\ufffdb\ufffd" in lines[1]
    assert "\x1b" not in out.getvalue()
