"""TT605 outliers, TT607 impossible or stuck metrics, TT608 blind sources: cards that are not what their rows say.

Outliers are told among equals under the same work: replicas of one workload on one model of card, held in the same way
with the same share. A card is one where it stands apart from their median by more than five robust deviations (median
absolute deviations, scaled to a standard deviation) and by as much as matters.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from analyzer.attribution import first_known
from analyzer.cards import cards
from analyzer.facts import hardware_facts, records, to_float
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.protocols import Conclusion, Context, Needs, Partition, Withheld
from analyzer.runs import longest_run
from analyzer.shares import Card
from collector.gpu_models import gpu_model
from collector.schema import ACTIVITY, NOBODY, UNKNOWN
from collector.words import plural

_LOADED = 0.2  # activity of the card from which its values are compared and must move
_STILL_INTERVALS, _STILL_SECONDS = 10, 120.0
_MOVING = ("power_watts", "temperature_celsius", "sm_clock_hertz")
_FEW_REJECTS = 5
# Several processes of a slice at once: their time shares sum to more than 1, and that is told.
_CAPPED = "above_1_capped"
_TOO_MANY_REJECTS = 0.005  # of the expected samples
_OVER_POWER, _OVER_MEMORY, _OVER_ACTIVITY, _METER_GAP = 1.3, 1.02, 1.1, 0.25
_FEWEST_SAMPLES, _FEWEST_EQUALS, _SURE_EQUALS = 30, 5, 8
_DEVIATIONS, _MAD_TO_SD = 5.0, 1.4826
_BLIND = 0.5  # part of the reported time without any activity
_CARD = ["cluster", "node", "gpu"]


@dataclass(frozen=True, slots=True)
class _Trait:
    """What is compared among equals: how much of a difference matters, which direction is bad, how it is said."""

    name: str
    least: float  # relative to the median; of temperatures in degrees
    worse: int  # 1: high is bad, -1: low is bad
    relative: bool
    text: str


_TRAITS = (
    _Trait("step_seconds", 0.10, 1, relative=True, text="needs {0:.0%} more time for a unit of work"),
    _Trait("sm_clock_hertz", 0.05, -1, relative=True, text="runs {0:.0%} slower by its clock"),
    _Trait("temperature_celsius", 10.0, 1, relative=False, text="is {0:.0f} degrees hotter"),
    _Trait("power_watts", 0.20, 1, relative=True, text="draws {0:.0%} more power"),
)
_TRAIT_NAMES = tuple(trait.name for trait in _TRAITS)
_COLUMNS = [
    *_CARD, "model", "tenant", "workload", "kind", "quota", *_TRAIT_NAMES, "faults", "reporting", "seen", "coverage",
    "comparable",
]  # fmt: skip


class MetricsDetector:
    """Finds cards unlike their equals, metrics that cannot be, and sources that say nothing."""

    codes = ("TT605", "TT607", "TT608")
    needs: ClassVar[Needs] = {
        "TT605": {"gpu": ("sm_clock_hertz|temperature_celsius|power_watts",)},
        "TT607": {},  # whatever is there is looked at
        "TT608": {},
    }

    def measure(self, partition: Partition) -> pd.DataFrame:
        """Return a row a card that reported at all, and one more for each further workload on it."""
        totals = hardware_facts(partition.facts, "gpu", "memory_total_bytes")
        rejected = _rejected(partition)
        rows: list[dict[str, Any]] = []
        for card in cards(partition):
            if card.nameless or card.newest < 0:
                continue
            total = to_float(totals.get((card.cluster, card.node, card.gpu, "")))
            rows += _measure(card, total, rejected.get(card.gpu, {}))
        return pd.DataFrame(rows, columns=_COLUMNS)

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        """Compare equals over the fleet, and judge what each card's rows say."""
        if measures.empty:
            return Conclusion([], [])
        ordered = measures.sort_values([*_CARD, "tenant", "workload", "kind", "quota"], kind="stable")
        rows = records(ordered.reset_index(drop=True))
        findings, compared = _outliers(rows, context)
        withheld: list[Withheld] = []
        seen: set[tuple[str, str, str]] = set()
        for row in rows:
            place = (row["cluster"], row["node"], row["gpu"])
            if place in seen:
                continue
            seen.add(place)
            if place not in compared:
                reason = row["comparable"] or f"fewer than {_FEWEST_EQUALS} equals under the same work"
                withheld.append(Withheld("TT605", *place, "", reason, applicable=bool(row["comparable"])))
            if row["faults"]:
                findings.append(_impossible(row, context))
            if row["seen"] < 1 - _BLIND:
                findings.append(_blind(row, context))
        return Conclusion(findings, withheld)


def _measure(card: Card, total: float, rejected: dict[tuple[str, str], int]) -> list[dict[str, Any]]:
    activity = first_known([card.of_card(name) for name in ACTIVITY])
    there = np.zeros(card.intervals, dtype=bool)
    there[card.newest] = True
    there |= card.observed | card.present.any(axis=1)
    own = first_known([card.of_slices(name) for name in ACTIVITY])
    told = np.isfinite(activity) | np.isfinite(own).any(axis=1)
    series = {name: card.of_card(name) for name in _MOVING}
    common = {
        **card.place,
        "model": card.model,
        "faults": tuple(_faults(card, activity, series, total, rejected)),
        "reporting": float(there.sum()) * card.interval_seconds / 3600,
        "seen": float(told[there].mean()),
        "coverage": float(there.mean()),
        "comparable": ""
        if any(np.isfinite(values).any() for values in series.values())
        else f"no {', '.join(_MOVING)}",
    }
    rows = []
    work = card.of_slices("step_seconds")
    for j, holding in enumerate(card.holdings):
        if holding.tenant == NOBODY or holding.workload in {"", UNKNOWN, NOBODY}:
            continue
        loaded = card.alive[:, j] & (activity >= _LOADED)
        # What the card does is this workload's doing only where nobody else is on it.
        alone = holding.kind == "whole"
        rows.append(
            {
                **common,
                "tenant": holding.tenant,
                "workload": holding.workload,
                "kind": holding.kind,
                "quota": round(_median(card.quota[:, j][card.alive[:, j]]), 2),
                "step_seconds": _median(work[:, j]),
                **{name: _median(values[loaded]) if alone else math.nan for name, values in series.items()},
            }
        )
    if rows:
        return rows
    return [
        {**common, "tenant": "", "workload": "", "kind": "", "quota": math.nan} | dict.fromkeys(_TRAIT_NAMES, math.nan)
    ]


def _median(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) >= _FEWEST_SAMPLES else math.nan


def _faults(
    card: Card, activity: np.ndarray, series: dict[str, np.ndarray], total: float, rejected: dict[tuple[str, str], int]
) -> list[str]:
    """Return in words what cannot be, or never moves, in a card's rows."""
    found = []
    for (name, reason), count in sorted(rejected.items(), key=lambda item: -item[1]):
        were = "was" if count == 1 else "were"
        found.append(f"{plural(count, 'sample')} of {name or 'it'} {were} no value ({reason.replace('_', ' ')})")
    long_ = max(_STILL_INTERVALS, math.ceil(_STILL_SECONDS / card.interval_seconds))
    busy = activity > _LOADED
    still = np.zeros(card.intervals, dtype=bool)
    still[1:] = np.logical_and.reduce([values[1:] == values[:-1] for values in series.values()]) & busy[1:]
    if (run := longest_run(still)) >= long_:
        found.append(f"power, temperature and clock all stood still for {_span(run, card)} under load")
    meter, watts = card.of_card("energy_joules"), series["power_watts"]
    if (run := longest_run((meter == 0) & busy)) >= long_:
        found.append(f"the energy meter stood still for {_span(run, card)} under load")
    both = np.isfinite(meter) & np.isfinite(watts)
    if both.sum() >= _FEWEST_SAMPLES and (drawn := float(watts[both].sum()) * card.interval_seconds) > 0:
        ratio = float(meter[both].sum()) / drawn
        if 0 < ratio < 1 - _METER_GAP or ratio > 1 + _METER_GAP:
            found.append(f"the energy meter says {ratio:.2f} times what power adds up to")
    engine, kernel = card.of_card("engine_active_ratio"), card.of_card("busy_ratio")
    if (run := longest_run((engine == 0) & (kernel > 0.1))) >= long_:
        found.append(f"profiling counters said 0 for {_span(run, card)} while kernels ran: they are paused")
    model = gpu_model(card.model) if card.model else None
    if model is not None and model.tdp_watts and (watts > _OVER_POWER * model.tdp_watts).sum() >= long_:
        found.append(f"power of up to {np.nanmax(watts):.0f} W, where the model has {model.tdp_watts:.0f} W")
    slices = np.nansum(card.of_slices("sm_active_ratio"), axis=1)
    if longest_run(slices > _OVER_ACTIVITY) >= long_:
        found.append(f"its slices' SM activity sums to {float(slices.max()):.0%} of the card")
    memory = np.nansum(card.of_slices("memory_used_bytes"), axis=1)
    if total > 0 and longest_run(memory > _OVER_MEMORY * total) >= long_:
        found.append(f"its slices use {float(memory.max()) / total:.0%} of its memory")
    return found


def _span(intervals: int, card: Card) -> str:
    minutes = intervals * card.interval_seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _rejected(partition: Partition) -> dict[str, dict[tuple[str, str], int]]:
    """Return card -> (field, reason) -> samples that were no value, where there were more than a stray few."""
    rejects = partition.rejects
    if rejects.empty:
        return {}
    mine = rejects[(rejects["gpu"] != "") & (rejects["reason"] != _CAPPED)]
    counts: Counter[tuple[str, str, str]] = Counter()
    columns = zip(mine["gpu"], mine["field"], mine["reason"], mine["count"], strict=True)
    for gpu, name, reason, count in columns:
        counts[str(gpu), str(name), str(reason)] += int(count)
    expected = partition.window.seconds / partition.interval_seconds
    found: dict[str, dict[tuple[str, str], int]] = {}
    for (gpu, name, reason), count in counts.items():
        if count >= max(_FEW_REJECTS, _TOO_MANY_REJECTS * expected):
            found.setdefault(gpu, {})[name, reason] = count
    return found


def _outliers(rows: Sequence[dict[str, Any]], context: Context) -> tuple[list[Finding], set[tuple[str, str, str]]]:
    """Return one finding a card that stands apart, by its gravest trait, and the cards that could be compared."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["workload"]:
            key = tuple(row[name] for name in ("cluster", "model", "tenant", "workload", "kind"))
            groups.setdefault((*key, "" if math.isnan(row["quota"]) else row["quota"]), []).append(row)
    worst: dict[tuple[str, str, str], tuple[float, dict[str, Any]]] = {}
    compared: set[tuple[str, str, str]] = set()
    for equals in groups.values():
        for trait in _TRAITS:
            values = np.array([row[trait.name] for row in equals])
            known = np.flatnonzero(np.isfinite(values))
            if len({(equals[n]["node"], equals[n]["gpu"]) for n in known}) < _FEWEST_EQUALS:
                continue
            middle = float(np.median(values[known]))
            spread = _MAD_TO_SD * float(np.median(np.abs(values[known] - middle)))
            for n in known.tolist():
                row = equals[n]
                place = (row["cluster"], row["node"], row["gpu"])
                compared.add(place)
                apart = trait.worse * (values[n] - middle)
                size = apart / middle if trait.relative and middle else apart
                z = apart / max(spread, 1e-3 * abs(middle), 1e-12)
                if size >= trait.least and z > _DEVIATIONS and z > worst.get(place, (0.0, {}))[0]:
                    told = {"trait": trait, "size": size, "z": z, "value": float(values[n]), "median": middle}
                    told |= {"equals": len(known) - 1, "spread": spread}
                    worst[place] = (z, {**row, **told})
    nodes: dict[tuple[str, str], int] = {}
    for cluster, node, _ in worst:
        nodes[cluster, node] = nodes.get((cluster, node), 0) + 1
    found = [_outlier(row, nodes[place[:2]], context) for place, (_, row) in sorted(worst.items())]
    return found, compared


def _outlier(row: dict[str, Any], on_node: int, context: Context) -> Finding:
    trait: _Trait = row["trait"]
    margin = _DEVIATIONS * row["spread"] / (row["median"] if trait.relative and row["median"] else 1.0)
    sure = row["equals"] >= _SURE_EQUALS
    do = "look at its clock limits, cooling and link; move the work and see whether the difference stays with the card"
    if on_node > 1:
        do = f"{on_node} cards of the node stand apart: look at the node first (power, cooling, host)"
    return make_finding(
        "TT605",
        Verdict.HOLDS if sure else Verdict.SUSPECTED,
        (SubjectRef(Role.SUBJECT, row["cluster"], row["node"], row["gpu"]),),
        context.window,
        claim=(
            f"{row['gpu']} on {row['node']} {trait.text.format(row['size'])} than the median of {row['equals']} equals "
            f"that do the same work ({row['tenant']}/{row['workload']}); {do}"
        ),
        risk="replicas of one workload can have unequal load; a limit that somebody set on purpose looks the same",
        confidence=(0.85 if sure else 0.6) * min(row["coverage"] + 0.2, 1.0),
        coverage=row["coverage"],
        effect=Effect(
            row["size"], "ratio" if trait.relative else "celsius", row["size"] - margin, row["size"] + margin
        ),
        evidence={
            "trait": trait.name,
            "value": row["value"],
            "median_of_equals": row["median"],
            "deviations": row["z"],
            "equals": row["equals"],
            "on_node": on_node,
            "severity": "warning",
            "what_to_do": do,
            "take_out": False,
        },
        simulated=context.simulated,
    )


def _impossible(row: dict[str, Any], context: Context) -> Finding:
    faults: tuple[str, ...] = row["faults"]
    do = "do not trust these figures: look at the exporter, its version and the driver"
    count = float(len(faults))
    return make_finding(
        "TT607",
        Verdict.HOLDS,
        (SubjectRef(Role.SUBJECT, row["cluster"], row["node"], row["gpu"]),),
        context.window,
        claim=f"{row['gpu']} on {row['node']} has metrics that cannot be or never move: {'; '.join(faults)}",
        risk="a card under a constant load with a fixed clock moves little; a data sheet may not know the variant",
        confidence=0.85,
        coverage=row["coverage"],
        effect=Effect(count, "count", count, count),
        evidence={"faults": list(faults), "severity": "warning", "what_to_do": do, "take_out": False},
        simulated=context.simulated,
    )


def _blind(row: dict[str, Any], context: Context) -> Finding:
    hours = row["reporting"] * (1 - row["seen"])
    do = "let the exporter tell utilisation (profiling counters, or GPU_UTIL), or look at its log"
    return make_finding(
        "TT608",
        Verdict.HOLDS,
        (SubjectRef(Role.SUBJECT, row["cluster"], row["node"], row["gpu"]),),
        context.window,
        claim=(
            f"{row['gpu']} on {row['node']} reported for {row['reporting']:.1f} h and said nothing of its activity in "
            f"{hours:.1f} h of them: whether it works is not known"
        ),
        risk="an exporter may be set up to tell other things on purpose",
        confidence=0.95,
        coverage=row["coverage"],
        effect=Effect(hours, "gpu_hours", hours, hours),
        evidence={"seen": row["seen"], "severity": "warning", "what_to_do": do, "take_out": False},
        simulated=context.simulated,
    )
