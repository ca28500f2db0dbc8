"""Contention on seeded little worlds: every confounder gets its right verdict, and what must not matter does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzer.contention import ContentionDetector
from analyzer.findings import Finding, Role
from analyzer.protocols import Conclusion, Context, Partition
from analyzer.settings import AnalyzeSettings
from benchmarks.contention import partition
from benchmarks.contention_scenarios import make_world
from benchmarks.contention_worlds import DAY
from collector.window import Window

SEED = 7
NONE = pd.DataFrame()
LAW = settings(
    max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def conclude(*parts: Partition, settings: AnalyzeSettings | None = None) -> Conclusion:
    detector = ContentionDetector(settings)
    measures = pd.concat([detector.measure(part) for part in parts], ignore_index=True)
    return detector.conclude(measures, Context(parts[0].window, 60.0, NONE, NONE, NONE, {}, simulated=True))


def verdicts(conclusion: Conclusion) -> dict[tuple[str, str], str]:
    return {
        (f.subject(Role.VICTIM).workload, f.subject(Role.SUSPECT).workload): f.verdict.value
        for f in conclusion.findings
    }


def documents(conclusion: Conclusion) -> list[object]:
    """Plain values, in which absent numbers equal one another."""
    return [*(finding.to_json() for finding in conclusion.findings), *conclusion.withheld]


def world(scenario: str, number: int = 0, n: int = 2 * DAY, seed: int = SEED) -> Partition:
    return partition(scenario, [make_world(scenario, seed, number, n)])


def pair(conclusion: Conclusion, victim: str = "v", suspect: str = "a") -> Finding | None:
    for finding in conclusion.findings:
        if (finding.subject(Role.VICTIM).workload, finding.subject(Role.SUSPECT).workload) == (victim, suspect):
            return finding
    return None


def said(conclusion: Conclusion, victim: str = "v", suspect: str = "a") -> str:
    finding = pair(conclusion, victim, suspect)
    return "withheld" if finding is None else finding.verdict.value


@pytest.mark.parametrize(
    ("scenario", "right"),
    [
        ("true_burst", {"holds"}),
        ("true_ownload", {"holds"}),
        ("third_party", {"no effect found", "suspected", "cannot tell", "withheld"}),
        ("missing_mcar", {"holds"}),
        ("missing_mnar", {"holds"}),
        ("true_lag", {"holds"}),
        ("true_heavy", {"holds"}),
        ("true_interact", {"holds"}),
        ("true_multi", {"holds"}),
        ("true_mutual", {"holds"}),
        ("few_samples", {"holds"}),
        ("true_daily", {"holds", "suspected"}),
        ("null_indep", {"no effect found"}),
        ("null_daily", {"no effect found", "cannot tell", "withheld"}),
        ("null_ownload", {"no effect found", "cannot tell"}),
        ("null_reverse_lag", {"no effect found"}),
        ("null_throttle", {"no effect found"}),
        ("null_heavy", {"no effect found", "cannot tell"}),
        ("null_hourly", {"no effect found", "cannot tell"}),
        ("null_missing", {"no effect found", "cannot tell"}),
        ("null_randomwalk", {"no effect found", "cannot tell"}),
        ("null_few", {"withheld", "no effect found", "cannot tell"}),
        ("null_deploy", {"withheld", "cannot tell"}),
        ("arrival_step", {"cannot tell"}),
        ("always_on", {"cannot tell"}),
        ("hidden_third", {"no effect found", "cannot tell", "withheld", "suspected"}),
    ],
)
def test_each_confounder_gets_its_verdict(scenario: str, right: set[str]) -> None:
    assert said(conclude(world(scenario))) in right


@pytest.mark.parametrize("number", range(4))
def test_a_reaction_in_the_same_sample_is_suspected_and_never_holds(number: int) -> None:
    assert said(conclude(world("null_reverse_sync", number))) == "suspected"


def test_a_claim_carries_numbers_that_a_person_can_check() -> None:
    part = world("true_burst")
    planted = make_world("true_burst", SEED, 0).true[("v", "a")]
    conclusion = conclude(part)
    finding = pair(conclusion)
    assert finding is not None
    assert finding.effect is not None
    assert finding.effect.lower < planted < finding.effect.upper or abs(finding.effect.value - planted) < 0.03
    size = f"{finding.effect.value:.0%} slower ({finding.effect.lower:.0%} to {finding.effect.upper:.0%})"
    assert finding.claim.startswith(
        f"ns/v on GPU-true_burst-0 is {size} while ns/a is busy, 63 times since 2026-03-02 "
    )
    assert finding.claim.endswith("; move one of them to another card, or lower the share of ns/a")
    assert finding.p is not None
    assert finding.q is not None
    assert finding.p <= finding.q < 0.05
    assert finding.lag_seconds == 0.0
    assert finding.channel in {"sm", "dram"}
    assert finding.simulated
    assert finding.confidence > 0.6
    assert finding.evidence["controls"].startswith("offered load, hour of day, minute of hour, trend")
    assert finding.evidence["samples"] > 2800
    assert finding.to_json()["verdict"] == "holds"


def test_latency_says_that_it_holds_queueing() -> None:
    finding = pair(conclude(world("true_burst")))
    assert finding is not None
    assert "queueing" in finding.risk


def test_every_pair_is_counted_once() -> None:
    conclusion = conclude(world("null_indep"), world("always_on"))
    withheld = [entry for entry in conclusion.withheld if entry.code == "TT101"]
    assert len(conclusion.findings) + len(withheld) == 24
    assert len({finding.id for finding in conclusion.findings}) == len(conclusion.findings)


def test_what_cannot_be_tested_says_what_would_decide_it() -> None:
    finding = pair(conclude(world("always_on")))
    assert finding is not None
    assert "hardly varies" in finding.claim
    assert any("short throttle" in need for need in finding.needs)


def test_a_late_effect_has_its_lag() -> None:
    finding = pair(conclude(world("true_lag")))
    assert finding is not None
    assert finding.lag_seconds is not None
    assert 120.0 <= finding.lag_seconds <= 360.0


def test_the_fleet_shares_one_false_discovery_rate() -> None:
    strict = AnalyzeSettings(fdr=1e-300)
    assert "holds" not in set(verdicts(conclude(world("true_burst"), settings=strict)).values())


def test_effects_below_the_floor_are_no_finding() -> None:
    high = AnalyzeSettings(contention_effect_floor=2.0)
    assert said(conclude(world("true_burst"), settings=high)) == "no effect found"


def test_poor_coverage_withholds() -> None:
    part = world("true_burst")
    rows = part.slice.copy()
    rng = np.random.default_rng(1)
    victim = (rows["workload"] == "v") & (rng.random(len(rows)) < 0.8)
    rows.loc[victim, "latency_p50_seconds"] = np.nan
    conclusion = conclude(replace(part, slice=rows))
    assert said(conclusion) == "withheld"
    assert any("of the samples of the victim are there" in entry.reason for entry in conclusion.withheld)


def test_a_suspect_with_gaps_withholds() -> None:
    part = world("true_burst")
    rows = part.slice.copy()
    rng = np.random.default_rng(1)
    rows.loc[(rows["workload"] == "a") & (rng.random(len(rows)) < 0.8), "sm_active_ratio"] = np.nan
    conclusion = conclude(replace(part, slice=rows))
    assert any("of the samples of the suspect are there" in entry.reason for entry in conclusion.withheld)


def test_below_the_coverage_floor_nothing_holds() -> None:
    part = world("true_burst")
    rows = part.slice.copy()
    rng = np.random.default_rng(1)
    victim = (rows["workload"] == "v") & (rng.random(len(rows)) < 0.6)
    rows.loc[victim, "latency_p50_seconds"] = np.nan
    finding = pair(conclude(replace(part, slice=rows)))
    assert finding is not None
    assert finding.verdict.value == "suspected"
    assert "of the samples are there" in finding.claim


def test_a_cron_job_in_a_short_window_cannot_be_told_from_others() -> None:
    reasons = [entry.reason for entry in conclude(world("null_hourly", n=240)).withheld]
    assert any("runs by the clock" in reason and "6 hours" in reason for reason in reasons)


@pytest.mark.parametrize("seed", range(3))
def test_a_full_card_hides_its_unlisted_tenant_and_clears_the_bystander(seed: int) -> None:
    part = world("hidden_third", seed=seed)
    gpu = part.gpu.assign(sm_active_ratio=part.gpu["sm_active_ratio"].clip(upper=0.8) / 0.8)
    assert said(conclude(replace(part, gpu=gpu))) != "holds"


def test_missing_signals_are_named() -> None:
    part = world("true_burst")
    rows = part.slice.copy()
    told = ["latency_p50_seconds", "requests_per_second", "tensor_active_ratio", "dram_active_ratio"]
    rows.loc[rows["workload"] == "v", told] = np.nan
    rows.loc[rows["workload"] == "a", ["sm_active_ratio"]] = np.nan
    reasons = [entry.reason for entry in conclude(replace(part, slice=rows)).withheld]
    assert any("nothing tells how long the victim takes" in reason for reason in reasons)
    assert any("nothing tells how busy the suspect is" in reason for reason in reasons)


def test_too_short_a_time_together_cannot_be_told() -> None:
    part = world("true_burst")
    rows = part.slice
    end = part.window.start + timedelta(minutes=20)
    rows = rows[(rows["workload"] != "a") | (rows["time"] < end)]
    reasons = [entry.reason for entry in conclude(replace(part, slice=rows)).withheld]
    assert any("were there together for" in reason for reason in reasons)


def test_holders_that_never_met_are_no_pair() -> None:
    part = world("true_burst")
    rows = part.slice
    half = part.window.start + timedelta(days=1)
    early = (rows["workload"] == "a") & (rows["time"] < half)
    late = (rows["workload"] == "c") & (rows["time"] >= half)
    keep = rows[early | late | rows["workload"].isin(["v", "d"])]
    measured = ContentionDetector().measure(replace(part, slice=keep))
    met = set(zip(measured["victim_workload"], measured["suspect_workload"], strict=True))
    assert ("a", "c") not in met
    assert ("v", "a") in met
    assert ("v", "c") in met


def test_pods_that_replace_one_another_are_one_suspect() -> None:
    part = world("true_burst")
    rows = part.slice.copy()
    later = (rows["workload"] == "a") & (rows["time"] >= part.window.start + timedelta(days=1))
    rows.loc[later, "slice"] = "ns/a-1/main/0"
    conclusion = conclude(replace(part, slice=rows))
    finding = pair(conclusion)
    assert finding is not None
    assert finding.verdict.value == "holds"
    assert finding.subject(Role.SUSPECT).slice == "ns/a-1/main/0"
    withheld = [entry for entry in conclusion.withheld if entry.code == "TT101"]
    assert len(conclusion.findings) + len(withheld) == 12


def test_rows_whose_holder_came_late_go_to_the_only_holder() -> None:
    part = world("true_burst")
    rows = part.slice.copy()
    first = (rows["workload"] == "a") & (rows["time"] < part.window.start + timedelta(hours=2))
    rows.loc[first, ["workload", "tenant"]] = "unknown"
    nobody = rows[rows["workload"] == "d"].assign(slice="gi9", workload="none", tenant="none")
    conclusion = conclude(replace(part, slice=pd.concat([rows, nobody], ignore_index=True)))
    assert said(conclusion) == "holds"
    withheld = [entry for entry in conclusion.withheld if entry.code == "TT101"]
    assert len(conclusion.findings) + len(withheld) == 12


def test_service_time_comes_before_latency_and_cost_per_request_is_the_last_resort() -> None:
    part = world("true_burst")
    rows = part.slice.copy()
    victim = rows["workload"] == "v"
    rows.loc[victim, "step_seconds"] = rows.loc[victim, "latency_p50_seconds"]
    finding = pair(conclude(replace(part, slice=rows)))
    assert finding is not None
    assert finding.evidence["cost"] == "step_seconds"
    rows.loc[victim, ["step_seconds", "latency_p50_seconds"]] = np.nan
    poorer = pair(conclude(replace(part, slice=rows)))
    assert poorer is not None
    assert poorer.evidence["cost"] == "sm_active_ratio per requests"
    assert poorer.confidence < finding.confidence
    assert "GPU cost per unit of work" in poorer.risk


def test_without_any_application_the_card_itself_tells_the_cost_of_work() -> None:
    part = world("true_burst")
    rows = part.slice.copy()
    rows[["step_seconds", "latency_p50_seconds", "requests_per_second"]] = np.nan
    finding = pair(conclude(replace(part, slice=rows)))
    assert finding is not None
    assert finding.verdict.value == "holds"
    assert finding.evidence["cost"] == "sm_active_ratio per tensor_active_ratio"
    assert finding.confidence < 0.5
    assert "no application told its work" in finding.risk


def test_coarser_activity_lowers_confidence_and_is_said() -> None:
    part = world("true_burst")
    fine = pair(conclude(part))
    rows = part.slice.rename(columns={"sm_active_ratio": "busy_ratio"})
    coarse = pair(conclude(replace(part, slice=rows, gpu=part.gpu.drop(columns="sm_active_ratio"))))
    assert fine is not None
    assert coarse is not None
    assert coarse.verdict.value == "holds"
    assert coarse.confidence < fine.confidence
    assert "busy_ratio" in coarse.risk


def facts(part: Partition, name: str, values: dict[str, str]) -> pd.DataFrame:
    at = pd.Timestamp(part.window.start)
    return pd.DataFrame(
        [
            {
                "kind": "slice",
                "cluster": "bench",
                "node": part.node,
                "gpu": part.slice["gpu"].iloc[0],
                "slice": s,
                "object": "",
                "name": name,
                "value": v,
                "from": at,
                "to": pd.NaT,
                "provenance": "measured",
            }
            for s, v in values.items()
        ]
    )


def as_mig(part: Partition) -> Partition:
    return replace(part, facts=facts(part, "kind", dict.fromkeys(part.slice["slice"].unique(), "mig")))


def test_under_mig_the_fabric_is_what_remains_where_it_is_not_counted() -> None:
    finding = pair(conclude(as_mig(world("true_burst"))))
    assert finding is not None
    assert finding.verdict.value == "holds"
    assert finding.channel == "pcie"
    assert finding.evidence["channel_basis"] == "excluded"


def test_under_mig_a_quiet_fabric_leaves_a_suspicion() -> None:
    part = as_mig(world("true_burst"))
    rng = np.random.default_rng(3)
    flat = 1e9 + 1e6 * rng.normal(size=len(part.gpu))
    gpu = part.gpu.assign(pcie_rx_bytes_per_second=flat, pcie_tx_bytes_per_second=flat)
    finding = pair(conclude(replace(part, gpu=gpu)))
    assert finding is not None
    assert finding.verdict.value == "suspected"
    assert "MIG" in finding.claim


def test_under_mig_the_fabric_is_measured_where_it_is_counted() -> None:
    part = as_mig(world("true_burst"))
    own = part.slice[part.slice["workload"] == "a"]["sm_active_ratio"].to_numpy()
    gpu = part.gpu.assign(pcie_rx_bytes_per_second=2e9 * own, pcie_tx_bytes_per_second=1e8)
    finding = pair(conclude(replace(part, gpu=gpu)))
    assert finding is not None
    assert finding.channel == "pcie"
    assert finding.evidence["channel_basis"] == "measured"
    assert "through PCIe" in finding.claim


def test_two_that_always_run_together_are_named_together() -> None:
    part = world("true_burst")
    twin = part.slice[part.slice["workload"] == "a"].assign(workload="b", slice="ns/b-0/main/0", step_seconds=np.nan)
    conclusion = conclude(replace(part, slice=pd.concat([part.slice, twin], ignore_index=True)))
    finding = pair(conclusion)
    assert finding is not None
    assert finding.verdict.value == "suspected"
    assert "b always runs at the same times" in finding.claim
    assert said(conclusion, "v", "b") == "suspected"


def test_a_replica_elsewhere_that_slows_at_the_same_time_clears_the_suspect() -> None:
    part = world("true_burst")
    there = part.slice[part.slice["workload"] == "v"].assign(gpu="GPU-other", slice="ns/v-1/main/0")
    there["latency_p50_seconds"] *= np.exp(np.random.default_rng(2).normal(0, 0.005, len(there)))
    beside = part.slice[part.slice["workload"] == "d"].assign(gpu="GPU-other", slice="ns/e-0/main/0", workload="e")
    conclusion = conclude(replace(part, slice=pd.concat([part.slice, there, beside], ignore_index=True)))
    here = [f for f in conclusion.findings if f.subject(Role.VICTIM).gpu != "GPU-other"]
    mine = [f for f in here if f.subject(Role.VICTIM).workload == "v" and f.subject(Role.SUSPECT).workload == "a"]
    assert all(f.verdict.value == "no effect found" for f in mine)


def test_a_replica_of_several_cards_takes_its_figures_from_ordinal_zero() -> None:
    part = world("true_burst")
    rows = part.slice.copy()
    part = replace(part, facts=facts(part, "replica", {"ns/v-0/main/0": "ns/first/main/0"}))
    victim = rows["workload"] == "v"
    first = rows[victim].assign(gpu="GPU-first", slice="ns/first/main/0")
    rows.loc[victim, ["latency_p50_seconds", "requests_per_second"]] = np.nan
    conclusion = conclude(replace(part, slice=pd.concat([rows, first], ignore_index=True)))
    assert said(conclusion) == "holds"


def test_suspects_that_serve_requests_need_more() -> None:
    part = world("true_burst")
    rows = part.slice.copy()
    suspect = rows["workload"] == "a"
    busy = rows.loc[suspect, "sm_active_ratio"].round(1)
    rows.loc[suspect, "sm_active_ratio"] = busy
    rows.loc[suspect, "requests_per_second"] = 100 * busy
    finding = pair(conclude(replace(part, slice=rows)))
    assert finding is not None
    assert finding.verdict.value == "suspected"
    assert "serves requests" in finding.claim


def test_own_quota_is_a_control() -> None:
    part = world("null_indep")
    rows = part.slice.copy()
    victim = (rows["workload"] == "v").to_numpy()
    suspect = rows.loc[rows["workload"] == "a", "sm_active_ratio"].to_numpy()
    quota = np.where(suspect > 0.06, 0.2, 0.3)
    rows.loc[victim, "sm_quota_ratio"] = quota
    rows.loc[victim, "latency_p50_seconds"] *= (0.3 / quota) ** 0.8
    finding = pair(conclude(replace(part, slice=rows)))
    assert finding is None or finding.verdict.value != "holds"


def test_no_rows_give_no_pairs() -> None:
    part = replace(world("null_indep"), slice=NONE, gpu=NONE)
    measures = ContentionDetector().measure(part)
    assert measures.empty
    assert ContentionDetector().conclude(measures, Context(part.window, 60.0, NONE, NONE, NONE, {})) == Conclusion(
        [], []
    )


def test_rows_outside_the_window_are_left_out() -> None:
    part = world("null_indep")
    late = Window(datetime(2027, 1, 1, tzinfo=UTC), datetime(2027, 1, 2, tzinfo=UTC))
    assert ContentionDetector().measure(replace(part, window=late)).empty


def test_codes_and_needs() -> None:
    detector = ContentionDetector()
    assert detector.codes == ("TT101", "TT102")
    assert set(detector.needs) == {"TT101", "TT102"}


def test_numbers_survive_a_trip_through_a_file(tmp_path: pytest.TempPathFactory) -> None:
    part = world("true_burst", n=DAY)
    detector = ContentionDetector()
    measures = detector.measure(part)
    path = f"{tmp_path}/measures.parquet"
    measures.to_parquet(path)
    context = Context(part.window, 60.0, NONE, NONE, NONE, {})
    again = detector.conclude(pd.read_parquet(path), context)
    assert documents(again) == documents(detector.conclude(measures, context))


BASE = world("true_burst", n=DAY)
BASE_DOCUMENTS = documents(conclude(BASE))
BASE_VERDICTS = verdicts(conclude(BASE))


@LAW
@given(st.integers(0, 2**32 - 1))
def test_the_order_of_rows_does_not_matter(seed: int) -> None:
    shuffled = BASE.slice.sample(frac=1.0, random_state=seed)
    assert documents(conclude(replace(BASE, slice=shuffled))) == BASE_DOCUMENTS


@LAW
@given(st.sampled_from([1e-3, 0.01, 60.0, 1000.0]))
def test_the_unit_of_latency_does_not_matter(factor: float) -> None:
    rows = BASE.slice.assign(
        latency_p50_seconds=BASE.slice["latency_p50_seconds"] * factor, step_seconds=BASE.slice["step_seconds"] * factor
    )
    assert verdicts(conclude(replace(BASE, slice=rows))) == BASE_VERDICTS


@LAW
@given(st.floats(0.0, 0.001))
def test_an_idle_neighbour_does_not_matter(level: float) -> None:
    idle = BASE.slice[BASE.slice["workload"] == "c"].assign(
        slice="ns/idle/main/0", workload="idle", sm_active_ratio=level, dram_active_ratio=0.0, step_seconds=np.nan
    )
    with_idle = replace(BASE, slice=pd.concat([BASE.slice, idle], ignore_index=True))
    assert verdicts(conclude(with_idle)) == BASE_VERDICTS


def test_a_fleet_without_rows_has_no_pairs() -> None:
    none = pd.DataFrame()
    start = datetime(2026, 1, 5, tzinfo=UTC)
    window = Window(start, start + timedelta(hours=1))
    concluded = ContentionDetector().conclude(none, Context(window, 60.0, none, none, none, {}))
    assert (list(concluded.findings), list(concluded.withheld)) == ([], [])
