"""Empty because idle, or because broken: each state of the rows has its own words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

from dashboard.doctor.check import Check, Status, some, span_text
from dashboard.doctor.rows import Seen, examine_rows

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
NAN = float("nan")


def frame(columns: list[str], rows: list[tuple[object, ...]]) -> pd.DataFrame:
    made = pd.DataFrame(rows, columns=columns)
    made["time"] = pd.to_datetime(made["time"], utc=True)
    return made


def gpus(*rows: tuple[str, float, float]) -> pd.DataFrame:
    """(gpu, age in minutes, activity)."""
    return frame(
        ["time", "cluster", "node", "gpu", "sm_active_ratio", "engine_active_ratio", "busy_ratio"],
        [(NOW - timedelta(minutes=age), "c", "n", gpu, NAN, NAN, activity) for gpu, age, activity in rows],
    )


def slices(*rows: tuple[str, str, float]) -> pd.DataFrame:
    """(slice, workload, activity)."""
    columns = ["time", "cluster", "node", "gpu", "slice", "tenant", "workload", "sm_active_ratio"]
    return frame(columns, [(NOW, "c", "n", "G1", s, "t", workload, activity) for s, workload, activity in rows])


def events(*rows: tuple[float, str, str, str]) -> pd.DataFrame:
    """(age in minutes, code, gpu, message)."""
    columns = ["time", "kind", "cluster", "node", "gpu", "slice", "object", "code", "severity", "message"]
    return frame(
        columns,
        [
            (NOW - timedelta(minutes=age), "node", "c", "n", gpu, "", "", code, "error", message)
            for age, code, gpu, message in rows
        ],
    )


def rejects(*rows: tuple[str, str, str, int]) -> pd.DataFrame:
    """(gpu, field, reason, count)."""
    columns = ["time", "kind", "cluster", "node", "gpu", "slice", "object", "field", "reason", "count"]
    return frame(columns, [(NOW, "gpu", "c", "n", gpu, "", "", field, why, n) for gpu, field, why, n in rows])


def examine(
    gpu: pd.DataFrame | None = None,
    held: pd.DataFrame | None = None,
    happened: pd.DataFrame | None = None,
    invalid: pd.DataFrame | None = None,
    *,
    live: bool = True,
) -> list[Check]:
    def given(value: pd.DataFrame | None, empty: pd.DataFrame) -> pd.DataFrame:
        return empty if value is None else value

    seen = Seen(
        NOW, 60.0, given(gpu, gpus()), given(held, slices()), given(happened, events()), given(invalid, rejects()), live
    )
    return examine_rows(seen)


def problems(checks: list[Check]) -> list[str]:
    assert all(check.advice for check in checks if check.status is Status.PROBLEM)
    return [check.text for check in checks if check.status is Status.PROBLEM]


def test_busy_cards_with_holders_are_alive() -> None:
    checks = examine(gpus(("G1", 0, 0.6), ("G2", 1, 0.0)), slices(("s", "ranker", 0.5)))
    assert problems(checks) == []
    assert checks[-1].text == "alive: 1 card busy, 1 idle, 0 unknown; 1 slice is held"


def test_nothing_allocated_is_idle_and_no_fault() -> None:
    checks = examine(gpus(("G1", 0, 0.0), ("G2", 0, 0.001)))
    assert problems(checks) == []
    assert checks[-1].text == "empty because idle: 2 cards report, all below 1%, and nobody holds a slice"


def test_held_and_idle_is_said() -> None:
    checks = examine(gpus(("G1", 0, 0.0)), slices(("s", "ranker", 0.0), ("t", "none", 0.0)))
    assert problems(checks) == []
    assert checks[-1].text.startswith("idle: 1 card reports, all below 1%; 1 slice is held")


@pytest.mark.parametrize(("live", "words"), [(True, "though sources are configured"), (False, "no source is")])
def test_no_rows_are_a_fault(live: bool, words: str) -> None:
    (check,) = examine(live=live)
    assert check.status is Status.PROBLEM
    assert words in check.text


def test_no_rows_because_the_target_is_down() -> None:
    found = problems(examine(happened=events((30, "target_down", "", "http://n:9400/metrics: refused"))))
    assert found[0] == "down since 2026-01-05 11:30 UTC: http://n:9400/metrics: refused"
    assert "empty because broken" in found[1]


def test_a_target_that_came_back_is_no_fault() -> None:
    happened = events((30, "target_down", "", "refused"), (20, "target_up", "", "answers"))
    assert problems(examine(gpus(("G1", 0, 0.5)), slices(("s", "w", 0.5)), happened)) == []


def test_old_rows_are_a_fault_only_where_new_ones_are_expected() -> None:
    old = gpus(("G1", 90, 0.5))
    held = slices()
    assert problems(examine(old, held))[0] == "the newest row is 1 h 30 min old: the collector is blind"
    assert not any("blind" in text for text in problems(examine(old, held, live=False)))


def test_rows_from_the_future_are_a_clock_fault() -> None:
    assert problems(examine(gpus(("G1", -60, 0.0)))) == ["the newest row lies 1 h in the future"]


def test_a_card_that_went_silent_is_named() -> None:
    checks = examine(
        gpus(("G1", 0, 0.5), ("G2", 60, 0.5)), slices(("s", "w", 0.5)), events((60, "card_lost", "G2", "gone"))
    )
    assert problems(checks) == ["1 of 2 cards stopped reporting: n/G2 since 01-05 11:00 (card lost)"]


def test_a_card_without_activity_is_blind_not_idle() -> None:
    found = problems(examine(gpus(("G1", 0, NAN))))
    assert found == [
        "1 of 1 card reported without any activity: n/G1",
        "empty because broken: no card reports any activity",
    ]
    found = problems(examine(gpus(("G1", 0, NAN)), invalid=rejects(("G1", "busy_ratio", "out of range", 5))))
    assert found[0].endswith("values came and were invalid")


def test_rejects_are_counted_by_field_and_reason() -> None:
    checks = examine(
        gpus(("G1", 0, 0.0)), invalid=rejects(("G1", "power_watts", "blank", 2), ("G2", "power_watts", "blank", 3))
    )
    assert "5 samples of the last day invalid or corrected: 5 x power_watts (blank)" in [check.text for check in checks]


def test_slices_without_a_known_holder_are_a_fault() -> None:
    found = problems(examine(gpus(("G1", 0, 0.5)), slices(("s", "unknown", 0.5), ("t", "w", 0.5))))
    assert found == ["the holder of 1 of 2 slices could not be told: n/s"]


def test_busy_cards_without_any_slice_are_partly_broken() -> None:
    assert problems(examine(gpus(("G1", 0, 0.5)))) == ["partly broken: 1 of 1 card at work, yet no slice is seen"]


def test_slices_without_cards_are_broken() -> None:
    assert problems(examine(held=slices(("s", "w", 0.5)))) == ["broken: slices report and no card does"]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(45, "45 s"), (119, "119 s"), (720, "12 min"), (7200, "2 h"), (12000, "3 h 20 min"), (187200, "2 d 4 h")],
)
def test_spans_in_words(seconds: int, expected: str) -> None:
    assert span_text(timedelta(seconds=seconds)) == expected


def test_long_lists_are_cut_with_a_count() -> None:
    assert some(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert some(["a"]) == "a"


def test_what_the_collector_does_not_trust_is_named_as_long_as_it_holds() -> None:
    told = events(
        (55, "source_frozen", "G1", "G1: nothing that must move has moved"),
        (50, "source_moves", "G1", "G1: its values move again"),
        (52, "source_frozen", "G2", "G2: nothing that must move has moved"),
        (53, "card_doubled", "G2", "G2 is there twice"),
    )
    checks = examine(gpus(("G1", 0, 0.5), ("G2", 0, 0.5)), slices(("s", "w", 0.5)), told)
    found = {check.text: check.status for check in checks}
    assert found["G2: nothing that must move has moved"] is Status.PROBLEM
    assert found["G2 is there twice"] is Status.NOTE
    assert not any(text.startswith("G1") for text in found)


def test_a_card_that_was_replaced_did_not_stop_reporting() -> None:
    told = events((60, "card_replaced", "G2", "G2 was replaced: G3 is in its place"))
    checks = examine(gpus(("G1", 0, 0.5), ("G2", 60, 0.5)), slices(("s", "w", 0.5)), told)
    assert not any("stopped reporting" in check.text for check in checks)
