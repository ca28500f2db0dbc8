"""Instants and milliseconds: one rule for all, exact both ways."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.clock import EARLIEST, LATEST, from_ms, grid_floor, to_ms

instants = st.datetimes(EARLIEST.replace(tzinfo=None), LATEST.replace(tzinfo=None), timezones=st.just(UTC))


@given(milliseconds=st.integers(to_ms(EARLIEST), to_ms(LATEST)))
def test_whole_milliseconds_come_back_exactly(milliseconds: int) -> None:
    instant = from_ms(milliseconds)
    assert instant.tzinfo is UTC
    assert to_ms(instant) == milliseconds
    assert to_ms(pd.Timestamp(milliseconds, unit="ms", tz="UTC")) == milliseconds


@given(instant=instants)
def test_an_instant_lies_in_its_millisecond(instant: datetime) -> None:
    start = from_ms(to_ms(instant))
    assert start <= instant < start + timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("instant", "milliseconds"),
    [
        (datetime(2026, 3, 29, 1, 30, 0, 123_000, UTC), 1_774_747_800_123),
        (datetime(2026, 3, 29, 1, 30, 0, 123_999, UTC), 1_774_747_800_123),
        (datetime(2026, 3, 29, 3, 30, 0, 123_500, timezone(timedelta(hours=2))), 1_774_747_800_123),
        (datetime(2026, 1, 5, 0, 0, 0, 1_000, UTC), 1_767_571_200_001),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), -1),
    ],
)
def test_milliseconds_of_instants(instant: datetime, milliseconds: int) -> None:
    assert to_ms(instant) == milliseconds


@given(instant=instants)
def test_a_cycle_of_whole_milliseconds_stands_on_one(instant: datetime) -> None:
    step = timedelta(milliseconds=250)
    assert to_ms(grid_floor(instant, step.total_seconds())) == to_ms(instant) // 250 * 250
