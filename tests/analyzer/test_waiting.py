"""Who waited for cards: by each request's own dates where they are told, else by the queues' counts."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.demand import demand
from analyzer.facts import FACT_COLUMNS, Request, requests
from analyzer.waiting import Waiting, measure_waiting
from collector.window import Window

START = datetime(2026, 1, 5, tzinfo=UTC)
DAY = Window(START, START + timedelta(days=1))
NO_ROWS = pd.DataFrame()


def hours(value: float) -> datetime:
    return START + timedelta(hours=value)


def asked(
    created: float, started: float | None = None, ended: float | None = None, *, cards: int = 1, **more: Any
) -> Request:
    """Return a request; times in hours since the window's start."""
    fields: dict[str, Any] = {
        "cluster": "c",
        "pod": "ns/p",
        "tenant": "lab",
        "workload": "w",
        "cards": cards,
        "share": 1.0,
        "memory_bytes": math.nan,
        "cpu_cores": math.nan,
        "profile": "",
        "gpu_type": "",
        "service_class": "offline",
        "created": hours(created),
        "started": None if started is None else hours(started),
        "ended": None if ended is None else hours(ended),
    }
    return Request(**fields | more)


def waiting(*found: Request, rows: pd.DataFrame = NO_ROWS) -> Waiting:
    (only,) = measure_waiting(found, rows, DAY, 60.0)
    return only


def test_a_request_that_waited_and_was_granted() -> None:
    told = waiting(asked(1, 3, 5, cards=4))
    assert (told.admitted, told.wait_p50_seconds, told.wait_p95_seconds) == (1, 7200, 7200)
    assert told.unmet_card_hours == 8  # 4 cards for 2 hours
    assert told.waiting_now == 0
    assert math.isnan(told.longest_now_seconds)
    assert told.basis == "requests"


def test_only_what_lies_in_the_window_counts() -> None:
    told = waiting(asked(-5, 2, cards=2), asked(22, None), asked(23, 30), asked(-9, -8, 3))
    assert told.unmet_card_hours == 4 + 2 + 1
    assert told.admitted == 1  # granted in the window; it had waited since before
    assert told.wait_p50_seconds == 7 * 3600
    assert told.waiting_now == 1
    assert told.longest_now_seconds == 2 * 3600


def test_one_that_was_withdrawn_was_unmet_and_never_granted() -> None:
    told = waiting(asked(1, None, 4))
    assert (told.admitted, told.waiting_now, told.unmet_card_hours) == (0, 0, 3)


def test_shares_and_pods_weigh() -> None:
    told = waiting(asked(0, 1, share=0.25), asked(0, 1, share=math.nan), asked(0, 1, cards=2, pods=4))
    assert told.unmet_card_hours == 0.25 + 1 + 8


def test_a_wait_that_pods_take_over_counts_once() -> None:
    gang = asked(0, 2, 2.001, pods=2, to_pods=True)
    pods = [asked(2, 2.5, 9, queued_as="ns/gang") for _ in range(2)]
    told = waiting(gang, *pods)
    assert told.admitted == 1
    assert told.wait_p50_seconds == 7200
    assert told.unmet_card_hours == 2 * 2 + 2 * 0.5
    # In the mix of what is asked for, the pods stand for it; while it waited, it stood for them.
    assert sum(demand([gang, *pods], DAY).counts.values()) == 2
    assert sum(demand([asked(0, None, pods=2, to_pods=True)], DAY).waiting.values()) == 2


def queue_rows(*rows: tuple[int, float, float, float]) -> pd.DataFrame:
    """Return rows of one queue: minute, pending requests, pending cards, oldest wait."""
    minutes, pending, cards, oldest = zip(*rows, strict=True)
    return pd.DataFrame(
        {
            "time": [START + timedelta(minutes=m) for m in minutes],
            "cluster": "c",
            "pool": "research",
            "tenant": "lab",
            "pending_count": pending,
            "pending_gpu_count": cards,
            "oldest_wait_seconds": oldest,
            "admitted_count": 0.0,
        }
    )


def test_a_queue_that_only_counts_is_told_by_its_rows() -> None:
    told = waiting(rows=queue_rows((0, 2, 30, 60), (1, 1, 30, 120)))
    assert told.unmet_card_hours == pytest.approx(1.0)  # 30 cards for two minutes
    assert (told.waiting_now, told.longest_now_seconds, told.basis) == (1, 120, "rows")
    assert math.isnan(told.wait_p50_seconds)


def test_what_waits_without_a_size_is_not_zero() -> None:
    told = waiting(rows=queue_rows((0, 2, math.nan, math.nan)))
    assert math.isnan(told.unmet_card_hours)
    assert told.to_json()["unmet_card_hours"] is None


def test_a_queue_in_which_nobody_waits_is_not_listed() -> None:
    assert measure_waiting([], queue_rows((0, 0, 0, 0)), DAY, 60.0) == ()
    assert measure_waiting([asked(1, 1)], queue_rows((0, 0, 0, 0)), DAY, 60.0)[0].admitted == 1
    assert measure_waiting([], NO_ROWS, DAY, 60.0) == ()


def test_facts_tell_pool_pods_and_who_waited_for_whom() -> None:
    document = {"cards": 4, "share": 1, "tenant": "lab", "workload": "w", "pool": "research", "pods": 2}
    rows = [
        (
            "pod",
            "c",
            "",
            "",
            "",
            "ns/a",
            "request",
            json.dumps(document | {"to_pods": True}),
            START,
            pd.NaT,
            "measured",
        ),
        ("pod", "c", "", "", "", "ns/b", "request", json.dumps({"queued_as": "ns/a"}), START, pd.NaT, "measured"),
    ]
    facts = pd.DataFrame(rows, columns=list(FACT_COLUMNS))
    facts["from"], facts["to"] = pd.to_datetime(facts["from"], utc=True), pd.to_datetime(facts["to"], utc=True)
    one, other = requests(facts)
    assert (one.pool, one.pods, one.to_pods, one.queued_as) == ("research", 2, True, "")
    assert (other.pool, other.pods, other.to_pods, other.queued_as) == ("default", 1, False, "ns/a")


@given(
    st.lists(st.tuples(st.floats(-20, 30), st.floats(0, 20), st.integers(1, 8), st.booleans()), min_size=1, max_size=12)
)
def test_unmet_card_hours_are_the_area_under_what_waits(told: list[tuple[float, float, int, bool]]) -> None:
    found = [asked(c, None if never else c + w, cards=n) for c, w, n, never in told]
    area = sum(n * max(min(24.0 if never else c + w, 24.0) - max(c, 0.0), 0.0) for c, w, n, never in told)
    measured = measure_waiting(found, NO_ROWS, DAY, 60.0)
    total = sum(w.unmet_card_hours for w in measured)
    assert total == pytest.approx(area, abs=1e-6)
    assert np.isfinite(total)
