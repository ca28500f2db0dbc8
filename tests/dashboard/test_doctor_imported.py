"""Logs that were imported after the fact are the past: neither the doctor nor an analysis calls their cards lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from analyzer.health import HealthDetector
from analyzer.settings import AnalyzeSettings
from collector.batch import Batch, make_rows
from collector.history import imported_until
from collector.store import EmbeddedStore
from collector.window import Window
from dashboard.config import load_settings
from dashboard.doctor import Check, Status, examine
from tests.dashboard.conftest import Ran
from tuner.service.analyse import partitions

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
LOG = "timestamp, index, uuid, utilization.gpu [%]\n"


def log(name: str, start: datetime, minutes: int, *cards: str, without: str = "") -> Path:
    """A log of a row a minute and card; `without` is left out from the middle on."""
    lines = [LOG]
    for minute in range(minutes):
        stamp = f"{start + timedelta(minutes=minute):%Y/%m/%d %H:%M:%S.000}"
        shown = [card for card in cards if card != without or minute < minutes // 2]
        lines += [f"{stamp}, {number}, {card}, 50 %\n" for number, card in enumerate(shown)]
    path = Path(name)
    path.write_text("".join(lines))
    return path


def live_rows(minutes: int) -> None:
    with closing(EmbeddedStore(load_settings().settings.store)) as store:
        for minute in range(minutes):
            at = NOW - timedelta(minutes=minutes - 1 - minute)
            tags = {"cluster": ["default"], "node": ["live"], "gpu": ["GPU-live"]}
            rows = make_rows("gpu", [int(at.timestamp() * 1000)], tags, {"busy_ratio": np.array([0.5])})
            store.write(Batch({"gpu": rows}))


def of_data() -> list[Check]:
    return [check for check in examine(load_settings(), NOW) if check.topic == "data"]


def bad() -> list[str]:
    return [check.text for check in of_data() if check.status is Status.PROBLEM]


def lost() -> list[str]:
    settings = load_settings().settings
    with closing(EmbeddedStore(settings.store, read_only=True)) as store:
        window = Window(NOW - timedelta(days=1), NOW + timedelta(minutes=1))
        found = [HealthDetector().measure(p) for p in partitions(store, window, 60.0, AnalyzeSettings())]
    return [gpu for frame in found for gpu in frame.loc[frame["lost_since_ms"].notna(), "gpu"]]


def test_a_card_of_a_log_does_not_fall_silent(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    first = log("first.csv", NOW - timedelta(hours=9), 30, "GPU-a", "GPU-b")
    second = log("second.csv", NOW - timedelta(hours=4), 30, "GPU-c")
    assert trimtab("import", str(first), str(second), "--node", "box", "--tz", "UTC").code == 0
    live_rows(5)
    with closing(EmbeddedStore(load_settings().settings.store, read_only=True)) as store:
        until = {gpu: time.to_pydatetime() for (_, _, gpu), time in imported_until(store.facts()).items()}
    ends = [NOW - timedelta(hours=9) + timedelta(minutes=29), NOW - timedelta(hours=4) + timedelta(minutes=29)]
    assert until == {"GPU-a": ends[0], "GPU-b": ends[0], "GPU-c": ends[1]}
    assert not any("stopped reporting" in text or "blind" in text for text in bad())
    assert lost() == []


def test_a_card_that_its_own_log_goes_on_without_is_lost(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    path = log("torn.csv", NOW - timedelta(hours=9), 60, "GPU-a", "GPU-b", without="GPU-b")
    assert trimtab("import", str(path), "--node", "box", "--tz", "UTC").code == 0
    assert lost() == ["GPU-b"]


def test_imported_rows_do_not_hide_a_collector_that_sees_nothing(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    path = log("recent.csv", NOW - timedelta(minutes=10), 10, "GPU-a")
    assert trimtab("import", str(path), "--node", "box", "--tz", "UTC").code == 0
    assert not any("blind" in text for text in bad())
    config = Path("trimtab.toml")
    config.write_text('[[source]]\ntargets = ["http://127.0.0.1:9/metrics"]\n')
    config.chmod(0o600)
    assert bad() == ["all rows of the last day were imported after the fact; no configured source has given any"]


def test_a_live_card_that_was_imported_too_may_fall_silent(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    path = log("past.csv", NOW - timedelta(hours=9), 30, "GPU-live")
    assert trimtab("import", str(path), "--node", "live", "--tz", "UTC").code == 0
    live_rows(5)
    with closing(EmbeddedStore(load_settings().settings.store)) as store:
        for minute in range(30):
            at = int((NOW + timedelta(minutes=minute)).timestamp() * 1000)
            tags = {"cluster": ["default"], "node": ["live"], "gpu": ["GPU-other"]}
            store.write(Batch({"gpu": make_rows("gpu", [at], tags, {"busy_ratio": np.array([0.5])})}))
    found = [check.text for check in examine(load_settings(), NOW + timedelta(minutes=29)) if check.topic == "data"]
    assert any(text.startswith("1 of 2 cards stopped reporting: live/GPU-live") for text in found)
