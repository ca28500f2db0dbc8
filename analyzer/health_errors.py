"""TT602 memory errors and row remapping, TT603 clocks lowered for heat or by a power brake: faults of a card."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from analyzer.cards import cards
from analyzer.evidence import absent_fields
from analyzer.facts import hardware_facts, records
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.known import known_mean, known_most, known_sum
from analyzer.protocols import Conclusion, Context, Needs, Partition, Withheld
from analyzer.settings import AnalyzeSettings
from analyzer.shares import Card

_ERRORS = (
    "ecc_corrected_count", "ecc_uncorrected_count", "rows_remapped_corrected_count", "rows_remapped_uncorrected_count",
)  # fmt: skip
_MANY_CORRECTED_AN_HOUR = 10.0
_THROTTLED, _OUT = 0.05, 0.2  # shares of the observed time: a fault, and one that makes a card unfit for sharing
_CARD = ["cluster", "node", "gpu"]
_COLUMNS = [
    *_CARD, *_ERRORS, "pending", "failed", "hours", "thermal", "brake", "coverage", "hottest", "hottest_memory",
    "no_errors", "no_throttling",
]  # fmt: skip


class HardwareDetector:
    """Reads error counters, row remapping and clock event reasons of cards."""

    codes = ("TT602", "TT603")
    needs: ClassVar[Needs] = {
        "TT602": {"gpu": ("|".join(_ERRORS),)},
        "TT603": {"gpu": ("throttle_thermal_ratio|throttle_brake_ratio",)},
    }

    def measure(self, partition: Partition) -> pd.DataFrame:
        """Return a row a card that reported at all."""
        settings = AnalyzeSettings.model_validate(partition.settings)
        told = {name: hardware_facts(partition.facts, "gpu", f"row_remap_{name}") for name in ("pending", "failure")}
        rows = []
        for card in cards(partition):
            if card.nameless or not card.observed.any():
                continue
            key = (card.cluster, card.node, card.gpu, "")
            row = _measure(card, settings.coverage_floor, {name: _true(of.get(key)) for name, of in told.items()})
            rows.append(row)
        return pd.DataFrame(rows, columns=_COLUMNS)

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        """Judge each card."""
        if measures.empty:
            return Conclusion([], [])
        findings: list[Finding] = []
        withheld: list[Withheld] = []
        rows = records(measures.sort_values(_CARD, kind="stable"))
        hot = Counter((row["cluster"], row["node"]) for row in rows if row["thermal"] >= _THROTTLED)
        counted = Counter((row["cluster"], row["node"]) for row in rows)
        for row in rows:
            place = (row["cluster"], row["node"], row["gpu"], "")
            for code, reason in (("TT602", row["no_errors"]), ("TT603", row["no_throttling"])):
                if reason:
                    withheld.append(Withheld(code, *place, reason))
            found = None if row["no_errors"] else _memory_errors(row, context)
            throttled = _worse(row)
            if found is not None:
                findings.append(found)
            if not row["no_throttling"] and throttled >= _THROTTLED:
                node = place[:2]
                findings.append(_throttled(row, hot[node] - (row["thermal"] >= _THROTTLED), counted[node] - 1, context))
        return Conclusion(findings, withheld)


def _measure(card: Card, floor: float, told: dict[str, bool]) -> dict[str, Any]:
    series = {name: card.of_card(name) for name in (*_ERRORS, "throttle_thermal_ratio", "throttle_brake_ratio")}
    reasons = {
        code: absent_fields(HardwareDetector.needs[code], lambda _, name: bool(np.isfinite(series[name]).any()))
        for code in HardwareDetector.codes
    }
    why = np.fmax(series["throttle_thermal_ratio"], series["throttle_brake_ratio"])
    coverage = float(np.isfinite(why[card.observed]).mean())
    if not reasons["TT603"] and coverage < floor:
        reasons["TT603"] = f"samples cover less than {floor:.0%} of the time in which the card reported"
    return {
        **card.place,
        **{name: known_sum(series[name]) for name in _ERRORS},
        "pending": told["pending"],
        "failed": told["failure"],
        "hours": float(card.observed.sum()) * card.interval_seconds / 3600,
        "thermal": known_mean(series["throttle_thermal_ratio"]),
        "brake": known_mean(series["throttle_brake_ratio"]),
        "coverage": coverage,
        "hottest": known_most(card.of_card("temperature_celsius")),
        "hottest_memory": known_most(card.of_card("memory_temperature_celsius")),
        "no_errors": "" if told["pending"] or told["failure"] else reasons["TT602"],
        "no_throttling": reasons["TT603"],
    }


def _true(text: str | None) -> bool:
    return text is not None and text.strip().lower() in {"1", "1.0", "true", "yes", "pending"}


def _memory_errors(row: dict[str, Any], context: Context) -> Finding | None:
    """Return the gravest that counters and facts say of a card's memory; None: nothing."""
    uncorrected, remapped = row["ecc_uncorrected_count"], row["rows_remapped_uncorrected_count"]
    corrected_rate = row["ecc_corrected_count"] / max(row["hours"], 1.0)
    verdict, out = Verdict.HOLDS, True
    if row["failed"]:
        severity, what = "critical", "a row could not be remapped"
        do = "take the card out of use and ask the vendor for a replacement"
    elif row["pending"]:
        severity, what = "error", "a row waits to be remapped"
        do = "let its work end, give it no new work, and reset the card: the row is remapped then"
    elif uncorrected > 0 or remapped > 0:
        severity = "critical"
        counted = ((uncorrected, "uncorrectable memory errors"), (remapped, "rows remapped for uncorrectable errors"))
        what = ", ".join(f"{count:.0f} {of}" for count, of in counted if count > 0)
        do = "let its work end and reset the card; when they come again, ask the vendor for a replacement"
    elif row["rows_remapped_corrected_count"] > 0 or corrected_rate > _MANY_CORRECTED_AN_HOUR:
        verdict, severity, out = Verdict.SUSPECTED, "warning", False
        told = (
            (row["ecc_corrected_count"], f"corrected memory errors ({corrected_rate:.1f} an hour)"),
            (row["rows_remapped_corrected_count"], "rows remapped for corrected errors"),
        )
        what = ", ".join(f"{count:.0f} {of}" for count, of in told if count > 0)
        do = "nothing breaks now; watch it, and reset it when it is next empty"
    else:
        return None
    counts = (uncorrected, remapped, row["ecc_corrected_count"], row["rows_remapped_corrected_count"])
    count = next((one for one in counts if one > 0), math.nan)
    return make_finding(
        "TT602",
        verdict,
        (SubjectRef(Role.SUBJECT, row["cluster"], row["node"], row["gpu"]),),
        context.window,
        claim=f"{row['gpu']} on {row['node']}: {what}; {do}",
        risk="counters that restart with the driver lose what was before; corrected errors are normal in small numbers",
        confidence=0.95 if verdict is Verdict.HOLDS else 0.6,
        coverage=1.0,
        effect=None if math.isnan(count) else Effect(count, "count", count, count),
        evidence={
            **{name: row[name] for name in _ERRORS},
            "corrected_an_hour": corrected_rate,
            "row_remap_pending": row["pending"],
            "row_remap_failure": row["failed"],
            "severity": severity,
            "what_to_do": do,
            "take_out": out,
        },
        simulated=context.simulated,
    )


def _worse(row: dict[str, Any]) -> float:
    return float(np.fmax(row["thermal"], row["brake"]))


def _throttled(row: dict[str, Any], others: int, of: int, context: Context) -> Finding:
    share = _worse(row)
    heat = row["thermal"] == share
    whole_node = heat and of > 0 and others * 2 >= of
    if not heat:
        why, do = "by a hardware power brake", "look at the power supply and its cables, and at what else it feeds"
    elif whole_node:
        why = f"for heat, as those of {others} of the {of} other cards of its node"
        do = "look at the node's fans, filters and inlet temperature"
    else:
        why = "for heat, while its node's other cards stay cool" if of else "for heat"
        do = "look at the card's heatsink, seating and airflow"
    out = share >= _OUT
    degrees = "" if math.isnan(row["hottest"]) else f", up to {row['hottest']:.0f} °C"
    return make_finding(
        "TT603",
        Verdict.HOLDS,
        (SubjectRef(Role.SUBJECT, row["cluster"], row["node"], row["gpu"]),),
        context.window,
        claim=f"clocks of {row['gpu']} on {row['node']} are lowered {why} in {share:.0%} of the time{degrees}; {do}",
        risk="a reason that is sampled once an interval is the share of samples; a sensor may be wrong",
        confidence=0.9 * row["coverage"],
        coverage=row["coverage"],
        effect=Effect(share, "ratio", share, share),
        evidence={
            "thermal_share": row["thermal"],
            "brake_share": row["brake"],
            "hottest_celsius": row["hottest"],
            "hottest_memory_celsius": row["hottest_memory"],
            "node_wide": whole_node,
            "others_hot": others,
            "severity": "error" if out else "warning",
            "what_to_do": do,
            "take_out": out,
        },
        simulated=context.simulated,
    )
