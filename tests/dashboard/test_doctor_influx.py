"""What the doctor says of InfluxDB: who refuses what, which setting is missing, which tier waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from collector.conformance import slice_rows
from collector.influx.store import InfluxStore
from dashboard.config import load_settings
from dashboard.doctor import Check, Status, examine
from tests.collector import influx_double
from tests.collector.influx_double import InfluxDouble

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.fixture
def double(elsewhere: Path) -> Iterator[InfluxDouble]:
    with influx_double.running("2.8.0") as running:
        path = Path("trimtab.toml")
        path.write_text(f'[influx]\nurl = "{running.url}"\n')
        path.chmod(0o600)
        yield running


def problems() -> list[Check]:
    return [check for check in examine(load_settings(), NOW) if check.status is Status.PROBLEM]


def test_a_host_that_only_looks_and_has_no_token(double: InfluxDouble) -> None:
    double.token = "wanted"  # noqa: S105 - of a double
    found = [check for check in problems() if check.topic in ("store", "influxdb")]
    assert [check.topic for check in found] == ["influxdb"]
    assert f"InfluxDB at {double.url} answered 401: unauthorized; no token is set" in found[0].text
    assert "TRIMTAB_INFLUX__TOKEN" in found[0].text


def test_a_tier_that_is_missing_is_said_to_wait(double: InfluxDouble) -> None:
    del double.buckets["trimtab_hour"]
    double.missing = {"trimtab_hour"}
    settings = load_settings().settings
    with closing(InfluxStore(settings.influx, settings.store)) as store:
        store.write(slice_rows([0], ["a"], busy_ratio=[0.1]))
    (check,) = [one for one in problems() if one.topic == "influxdb" and "bucket" not in one.advice]
    assert check.text == "trimtab_hour is missing: what belongs there waits, raw rows go on"
    assert check.advice == "trimtab store prepare"
