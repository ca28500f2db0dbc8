"""Numbers that no clock can hold are refused where they are set."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from collector.errors import ConfigurationError
from collector.window import parse_duration, parse_instant
from dashboard.config import load_settings

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[store]\nraw_days = inf\n", "`raw_days`: expected a finite number, got inf"),
        ("[tuner]\nreserve_margin = nan\n", "`reserve_margin`: expected"),
        ("[store]\nraw_days = 1e300\n", "[store]: `raw_days`: expected at most ten years, got 1e+300"),
        ("[store]\nraw_days = 3651\n", "`raw_days`: expected at most ten years, got 3651"),
        ("[analyze]\nidle_minutes = 6e6\n", "`idle_minutes`: expected at most ten years"),
        ("[tuner]\ncooldown_seconds = 1e9\n", "`cooldown_seconds`: expected at most ten years"),
        ("[[source]]\ntimeout_seconds = 1e7\n", "`timeout_seconds`: expected less than or equal to 3600"),
        ('[[workload]]\ntenant = "t"\nweight = inf\n', "`weight`: expected a finite number"),
    ],
)
def test_numbers_out_of_all_bounds_are_refused(text: str, expected: str) -> None:
    path = Path("trimtab.toml")
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert expected in str(caught.value)


def test_ten_years_is_the_longest_length_of_time() -> None:
    assert parse_duration("3650d") == timedelta(days=3650)
    for text in ("3651d", "99999999999999d", "9" * 400 + "s"):
        with pytest.raises(ConfigurationError, match="at most ten years"):
            parse_duration(text)


def test_an_instant_before_the_calendar_begins_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected an instant"):
        parse_instant("0001-01-01T00:00:00+14:00")
