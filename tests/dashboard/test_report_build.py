"""The figures of the report, against a store whose content is known to the last sample."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.settings import AnalyzeSettings
from collector.batch import Batch, Event, Fact, Reject, Severity, Subject, make_rows
from collector.declarations import Objective, WorkloadDeclaration
from collector.errors import ConfigurationError, InputRejectedError, UnreachableError
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.window import Window
from dashboard.config import Settings
from dashboard.report import weekly_report, write_weekly
from dashboard.report.model import Report
from dashboard.settings import ReportSettings
from dashboard.views.text import stamp
from tests.dashboard.conftest import Ran
from tuner.journal import record_plan, step
from tuner.model import Change, Group, Plan, Target
from tuner.outcome import record_outcome
from tuner.record import ChangeState, Drop, GroupRecord
from tuner.service.analyse import run_analysis
from tuner.settings import PriceSettings, StateSettings
from tuner.state import add_suppression, open_state

START = datetime(2026, 1, 5, tzinfo=UTC)
MINUTES = 180
END = START + timedelta(minutes=MINUTES)
CARD = ("c", "n", "GPU-1")


def batch() -> Batch:
    """Three hours of one card of 100 SMs in two MIG instances.

    `search/ranker` serves 10 requests a second; in the last 45 minutes one of ten is late. `lab/sleeper` holds a
    half and does nothing. The meter counts 6 kJ a minute. The last 18 minutes of the card are missing.
    """
    times = np.arange(MINUTES) * 60_000 + int(START.timestamp() * 1000)
    late = np.arange(MINUTES) >= MINUTES - 45
    seen = MINUTES - 18

    def tags(name: str, tenant: str, workload: str) -> dict[str, list[str]]:
        place = dict(zip(("cluster", "node", "gpu"), CARD, strict=True))
        values = {**place, "slice": name, "tenant": tenant, "workload": workload}
        return {key: [value] * MINUTES for key, value in values.items()}

    half = np.full(MINUTES, 0.5)
    ranker = {
        "sm_quota_ratio": half,
        "sm_active_ratio": np.full(MINUTES, 0.2),
        "requests_per_second": np.full(MINUTES, 10.0),
        "within_objective_per_second": np.where(late, 9.0, 10.0),
        "latency_p99_seconds": np.where(late, 0.4, 0.05),
    }
    sleeper = {"sm_quota_ratio": half, "sm_active_ratio": np.zeros(MINUTES)}
    card = {
        "sm_active_ratio": np.full(seen, 0.2),
        "power_watts": np.full(seen, 100.0),
        "energy_joules": np.full(seen, 6000.0),
    }
    rows = {
        "gpu": make_rows("gpu", times[:seen], {k: v[:seen] for k, v in _card_tags().items()}, card),
        "slice": make_rows("slice", times, tags("gi1", "search", "ranker"), ranker),
    }
    facts = [
        Fact(Subject("cluster", "c"), "interval_seconds", "60", START),
        Fact(Subject("gpu", *CARD), "sm_count", "100", START),
        Fact(Subject("gpu", *CARD), "model", "NVIDIA A100-SXM4-80GB", START),
        *(Fact(Subject("slice", *CARD, name), "kind", "mig", START) for name in ("gi1", "gi2")),
        *_pods(),
    ]
    extra = make_rows("slice", times, tags("gi2", "lab", "sleeper"), sleeper)
    import pyarrow as pa  # noqa: PLC0415

    rows["slice"] = pa.concat_tables([rows["slice"], extra], promote_options="default")
    events = [Event(Subject("gpu", *CARD), "target_down", Severity.WARNING, "no answer", START + timedelta(hours=1))]
    rejects = [
        Reject(Subject("gpu", *CARD), "power_watts", "out of range", START + timedelta(minutes=5), 3),
        Reject(Subject("gpu", *CARD), "power_watts", "out of range", START + timedelta(minutes=9), 4),
    ]
    return Batch(rows, facts, events, rejects)


def _card_tags() -> dict[str, list[str]]:
    return {name: [value] * MINUTES for name, value in zip(("cluster", "node", "gpu"), CARD, strict=True)}


def _pods() -> Iterator[Fact]:
    """Ten pods of `lab` that waited 1, 2, .. 10 minutes, and one that still waits after 100 minutes."""
    request = json.dumps({"cards": 1, "share": 0.25, "tenant": "lab", "workload": "job"})
    for index in range(10):
        pod = Subject("pod", "c", object=f"lab/job-{index}")
        yield Fact(pod, "request", request, START + timedelta(minutes=10))
        yield Fact(pod, "started", "true", START + timedelta(minutes=11 + index))
    yield Fact(Subject("pod", "c", object="lab/job-x"), "request", request, END - timedelta(minutes=100))


def settings_of(folder: Path, **changed: Any) -> Settings:
    values: dict[str, Any] = {
        "store": StoreSettings(path=folder / "store"),
        "state": StateSettings(path=folder / "state.db"),
        "report": ReportSettings(folder=folder / "reports"),
        "workload": (
            WorkloadDeclaration(
                match="ranker", service_class="online", objective=Objective(share=0.95, bound_seconds=0.2)
            ),
        ),
    }
    return Settings(**{**values, **changed})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report")
    store = EmbeddedStore(StoreSettings(path=path / "store"))
    store.write(batch())
    store.close()
    return path


@pytest.fixture(scope="module")
def found(folder: Path) -> Report:
    return weekly_report(settings_of(folder))


def test_the_window_is_what_exists_of_the_week_before_the_newest_row(found: Report) -> None:
    assert (found.start, found.end) == (START, END)
    assert found.clusters == ("c",)
    assert not found.simulated


def test_now_ends_the_window(folder: Path) -> None:
    report = weekly_report(settings_of(folder), now=START + timedelta(hours=2))
    assert (report.start, report.end) == (START, START + timedelta(hours=2))


def test_both_levels_of_the_ledger_add_up(found: Report) -> None:
    ledger = found.ledger
    assert ledger.capacity_sm_seconds == pytest.approx(100 * MINUTES * 60)
    assert sum(term.sm_seconds for term in ledger.level_1) == pytest.approx(ledger.capacity_sm_seconds)
    assert sum(term.ratio for term in ledger.level_1) == pytest.approx(1.0)
    assert sum(term.cards for term in ledger.level_1) == pytest.approx(1.0)
    assert sum(term.sm_seconds for term in ledger.level_2) == pytest.approx(ledger.used_sm_seconds)
    terms = {term.name: term.ratio for term in ledger.level_1}
    assert terms["used"] == pytest.approx(0.2)
    assert {hour.start for hour in ledger.by_hour} == {START + timedelta(hours=h) for h in range(3)}


def test_a_promise_is_kept_in_the_windows_in_which_it_was(found: Report) -> None:
    (service,) = found.services
    assert (service.tenant, service.workload, service.missing) == ("search", "ranker", "")
    assert service.windows == MINUTES
    assert service.kept_ratio == pytest.approx(1 - 45 / MINUTES)
    assert service.requests == pytest.approx(10 * 60 * MINUTES)
    assert service.within_ratio == pytest.approx((135 * 10 + 45 * 9) / (MINUTES * 10))
    assert service.worst_p99_seconds == pytest.approx(0.4)
    assert [ratio for _, ratio in service.by_hour] == pytest.approx([1.0, 1.0, 0.25])


def test_the_idle_holder_is_named_with_how_to_check(found: Report) -> None:
    (claim,) = [c for c in found.claims.waste if c.code == "TT301"]
    assert claim.who == "lab/sleeper"
    assert claim.where == "n/GPU-1"
    assert claim.check
    assert claim.action
    assert datetime.fromisoformat(claim.since) == START


def test_waits_come_from_the_requests_themselves(found: Report) -> None:
    (line,) = found.queues
    assert (line.tenant, line.started, line.waiting_now) == ("lab", 10, 1.0)
    assert line.wait_p50_seconds == 5 * 60
    assert line.wait_p95_seconds == 10 * 60
    assert line.longest_now_seconds == 100 * 60


def test_energy_is_what_the_meter_counted_and_the_tenants_share_it(found: Report) -> None:
    assert found.energy.joules == pytest.approx(6000.0 * (MINUTES - 18))
    attributed = sum(tenant.energy_joules for tenant in found.ledger.tenants)
    assert attributed + found.energy.pool_joules == pytest.approx(found.energy.joules)
    assert found.energy.cards_metered == 1


def test_gaps_rejects_and_events_are_counted(found: Report) -> None:
    quality = found.quality
    (card,) = quality.worst
    assert card.coverage == pytest.approx(1 - 18 / MINUTES)
    assert quality.coverage == pytest.approx(card.coverage)
    (reject,) = quality.rejects
    assert (reject.field, reject.reason, reject.subjects, reject.count) == ("power_watts", "out of range", 1, 7.0)
    assert quality.events == {"target_down": 1}
    assert quality.undeclared == ("lab/sleeper",)
    for code in quality.unanalysed:
        assert code.analysed + code.withheld + code.not_applicable == code.subjects


def test_forecasts_stand_beside_their_own_error(found: Report) -> None:
    part = found.forecast
    assert part.made_at == END
    fleet = [line for line in part.lines if line.series == "fleet"]
    assert fleet
    assert fleet[0].quantiles["0.5"] == pytest.approx(0.2, abs=0.02)
    assert all(line.series.count("#") == 0 for line in part.lines)
    assert part.past[0] == (START, pytest.approx(0.2))


def test_without_a_state_database_it_says_so_and_makes_none(found: Report, folder: Path) -> None:
    assert found.changes.missing == "the tuner has not run yet"
    assert not (folder / "state.db").exists()


def test_prices_turn_shares_into_money(folder: Path) -> None:
    priced = weekly_report(settings_of(folder, price=(PriceSettings(model="*a100*", per_gpu_hour=2.0),)))
    assert priced.ledger.price == pytest.approx(2.0 * 3)
    ratios = {term.name: term.ratio for term in priced.ledger.level_1}
    held = ratios["used"] + ratios["reserved"] + ratios["wasted"]
    assert sum(tenant.cost for tenant in priced.ledger.tenants) == pytest.approx(6.0 * held)
    other = weekly_report(settings_of(folder, price=(PriceSettings(model="*h100*", per_gpu_hour=2.0),)))
    assert np.isnan(other.ledger.price)


def test_prices_in_two_currencies_cannot_be_added_up(folder: Path) -> None:
    prices = (PriceSettings(per_gpu_hour=2.0), PriceSettings(per_gpu_hour=2.0, currency="EUR"))
    with pytest.raises(ConfigurationError, match="expected one currency, got EUR, USD"):
        weekly_report(settings_of(folder, price=prices))


@pytest.mark.parametrize("fmt", ["html", "md", "json"])
def test_the_same_rows_give_the_same_bytes(folder: Path, tmp_path: Path, fmt: Any) -> None:
    settings = settings_of(folder, report=ReportSettings(folder=tmp_path / "reports"))
    path = write_weekly(settings, fmt=fmt)
    assert path == tmp_path / "reports" / f"weekly-2026-01-05.{fmt}"
    first = path.read_bytes()
    assert write_weekly(settings, fmt=fmt).read_bytes() == first
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_an_empty_store_is_said(tmp_path: Path) -> None:
    EmbeddedStore(StoreSettings(path=tmp_path / "store")).close()
    with pytest.raises(InputRejectedError, match="found none"):
        write_weekly(settings_of(tmp_path))


def test_a_folder_that_cannot_be_written_is_said(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnreachableError, match=r"\[report\] folder"):
        write_weekly(settings_of(folder, report=ReportSettings(folder=tmp_path / "file")))


def _group(name: str, kind: str, after: float) -> Group:
    target = Target("slice", "c", "n", "GPU-1", "gi2")
    change = Change(target, "sm_quota_ratio", 0.5, after, "unused", "lab", "sleeper")
    return Group(name, (change,), f"{name} is why", kind, 100.0, 0.9, 0.95)


def test_what_the_tuner_did_would_do_dropped_and_took_back(folder: Path, tmp_path: Path) -> None:
    settings = settings_of(folder, state=StateSettings(path=tmp_path / "state.db"))
    at = START + timedelta(hours=1)
    state = open_state(settings.state)
    walk = [ChangeState.INTENT, ChangeState.APPLIED, ChangeState.READ_BACK, ChangeState.VERIFYING]
    ends = {"g-kept": [ChangeState.CONFIRMED], "g-back": [ChangeState.ROLLING_BACK, ChangeState.ROLLED_BACK]}
    for cycle, (name, after) in enumerate([("g-kept", 0.4), ("g-back", 0.3), ("g-advice-1", 0.2), ("g-advice-2", 0.1)]):
        now = at + timedelta(minutes=5 * cycle)
        group, dropped = _group(name, "give", after), _group(f"{name}-dropped", "reserve", 0.45)
        decision = "go" if name in ends else "write_down"
        plan = Plan(f"p{cycle}", now, now, (group, dropped))
        record = GroupRecord(group, plan.id, ChangeState.PLANNED, decision, "mode", now, now)
        drop = Drop(dropped.id, "cooldown", "dropped", "rests for 5 min" if cycle else "rests for 9 min")
        record_plan(state, plan, [record], [drop], actor="t", now=now)
        for next_state in [*walk, *ends[name]] if name in ends else []:
            step(state, name, next_state, at=now, actor="t", reason=f"{name} {next_state.value}")
    record_outcome(state, _group("g-kept", "give", 0.4), "pass", 0.04, at)
    record_outcome(state, _group("g-back", "give", 0.3), "fail", -0.2, at)
    add_suppression(state, code="TT301", subject="lab/*", who="ann", why="known", now=START, until=None)
    for code, until in (("TT604", START + timedelta(minutes=30)), ("TT211", None)):
        add_suppression(state, code=code, subject="x", who="bo", why="known", now=START, until=until)
    state.close()

    report = weekly_report(settings)
    changes = report.changes
    assert changes.counts == {"confirmed": 1, "dropped": 4, "planned": 2, "rolled_back": 1}
    assert [(c.id, c.state, c.reason) for c in changes.made] == [("g-kept", "confirmed", "g-kept confirmed")]
    assert changes.made[0].what == ("lab/sleeper: compute share 50 % to 40 %",)
    assert [(c.id, c.state) for c in changes.rolled_back] == [("g-back", "rolled_back")]
    (would,) = changes.would  # the same knob twice: told once, as it was asked last
    assert (would.id, would.state, would.times) == ("g-advice-2", "recommended", 2)
    (drop_count,) = changes.drops
    assert (drop_count.guard, drop_count.count, drop_count.example) == ("cooldown", 4, "rests for 5 min")
    (promise,) = changes.promises
    assert (promise.passed, promise.other, promise.predicted_sm_seconds_per_hour) == (1, 1, 100.0)
    assert promise.realised_ratio == pytest.approx(-0.08)
    assert report.claims.suppressed == 1
    assert report.claims.idle_suppressions == (
        f"TT604 on x (number 2, by bo) expired on {stamp(START + timedelta(minutes=30))}",
        "TT211 on x (number 3, by bo) hid nothing",
    )
    assert not [c for c in report.claims.waste if c.code == "TT301"]


def test_the_command_prints_where_the_report_lies(folder: Path, elsewhere: Path, trimtab: Callable[..., Ran]) -> None:
    config = elsewhere / "trimtab.toml"
    config.write_text(f'[store]\npath = "{folder / "store"}"\n[report]\nfolder = "out"\n', encoding="utf-8")
    ran = trimtab("report", "weekly", "--format", "md")
    assert (ran.code, ran.out) == (0, "out/weekly-2026-01-05.md\n")
    assert Path("out/weekly-2026-01-05.md").read_text("utf-8").startswith("# GPU report: c\n")
    assert json.loads(trimtab("report", "weekly", "--json").out)["schema_version"] == 1


def test_an_analysis_that_was_just_made_is_reported_as_it_is(folder: Path) -> None:
    window = Window(START, START + timedelta(hours=2))
    store = EmbeddedStore(StoreSettings(path=folder / "store"), read_only=True)
    analysis = run_analysis(store, window, interval_seconds=60.0, settings=AnalyzeSettings(), detectors={})
    store.close()
    report = weekly_report(settings_of(folder), analysis=analysis)
    assert (report.start, report.end) == (window.start, window.end)
    assert report.claims.waste == ()  # no detector ran, and none runs again
    assert report.ledger.capacity_sm_seconds == pytest.approx(100 * 7200)
