"""The Contention page: pairs, their verdicts, and one pair over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analyzer.contention.channel import CHANNEL_WORDS
from analyzer.findings import Finding, Role, SubjectRef
from collector.protocols import StoreReader
from dashboard.cli.output import clean as printable
from dashboard.views.names import CardNames
from dashboard.views.reading import Look
from dashboard.views.slices import SliceKey, over_time
from dashboard.views.text import percent
from tuner.planner.probes import NO_LIVE_SHARE

COLUMNS = ("verdict", "victim", "suspect", "card", "effect", "lower", "upper", "through", "confidence", "id")
# How to read the evidence: name in the finding -> words, best known first.
_WORDS = {
    "reason": "why this verdict",
    "cost": "what stands for the victim's cost",
    "activity": "what stands for the suspect's activity",
    "samples": "samples compared",
    "episodes": "times the suspect came and went",
    "swing": "how far the suspect's activity swung",
    "controls": "held constant",
    "correlation": "correlation left after that",
    "z": "standard errors away from no effect",
    "influence_z": "the same without the most telling episode",
    "lead_z": "victim moves first (standard errors)",
    "lag_z": "suspect moves first (standard errors)",
    "foresight_z": "victim slow before the suspect rose (standard errors)",
    "dose_z": "more activity, more harm (standard errors)",
    "channel_basis": "how the channel is known",
    "twins": "others that run whenever it runs",
}
COSTS = ("step_seconds", "latency_p50_seconds", "latency_p99_seconds")
COST_WORDS = {
    "step_seconds": "service time per unit of work",
    "latency_p50_seconds": "median latency",
    "latency_p99_seconds": "99 % latency",
}


def pairs(findings: Sequence[Finding], names: CardNames) -> pd.DataFrame:
    """Return one row a pair with `COLUMNS`; effect and bounds in percent slower, absent ones NaN."""
    rows = [_row(f, names) for f in findings if f.code.startswith("TT10")]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(finding: Finding, names: CardNames) -> tuple[Any, ...]:
    victim, suspect = finding.subject(Role.VICTIM), finding.subject(Role.SUSPECT)
    effect = finding.effect
    value, lower, upper = (math.nan,) * 3 if effect is None else (effect.value, effect.lower, effect.upper)
    return (
        finding.verdict.value,
        who(victim),
        who(suspect),
        names.get(victim.gpu, victim.gpu),
        100 * value,
        100 * lower,
        100 * upper,
        CHANNEL_WORDS.get(finding.channel or "", ""),
        100 * finding.confidence,
        finding.id,
    )


def asks_for_a_throttle(finding: Finding) -> bool:
    """Whether a probe is among what would decide an open pair of one card."""
    return finding.code == "TT101" and any("a short throttle of" in need for need in finding.needs)


def withheld(finding: Finding, notes: Sequence[str], facts: pd.DataFrame) -> list[str]:
    """Return the lines of a plan that say why an open pair cannot be tried out, by how its suspect shares the card."""
    kind = sharing_kinds(facts).get(slice_of(finding.subject(Role.SUSPECT)), "")
    return [line for line in notes if NO_LIVE_SHARE in line and (not kind or f"{kind}: " in line)]


def sharing_kinds(facts: pd.DataFrame) -> dict[tuple[str, str, str, str], str]:
    """Return (cluster, node, gpu, slice) -> how the slice shares its card, by the newest fact."""
    told = facts[(facts["kind"] == "slice") & (facts["name"] == "kind")].sort_values("from", kind="stable")
    keys = told[["cluster", "node", "gpu", "slice"]].itertuples(index=False, name=None)
    return dict(zip(keys, told["value"].astype(str), strict=True))


def slice_of(subject: SubjectRef) -> tuple[str, str, str, str]:
    """Return (cluster, node, gpu, slice) of a subject."""
    return subject.cluster, subject.node, subject.gpu, subject.slice


def who(subject: SubjectRef) -> str:
    """Return `tenant/workload`, or the slice where nobody is known."""
    return printable(f"{subject.tenant}/{subject.workload}" if subject.workload else subject.slice)


def evidence(finding: Finding) -> pd.DataFrame:
    """Return the evidence in words: columns `what`, `value`."""
    rows = [("coverage of the samples", percent(finding.coverage, 1))]
    if finding.q is not None:
        rows.append(("false-discovery rate (q)", f"{finding.q:.2g}"))
    if finding.lag_seconds is not None:
        rows.append(("delay of the effect", f"{finding.lag_seconds:g} s"))
    for name, words in _WORDS.items():
        value = finding.evidence.get(name)
        if value not in (None, ""):
            rows.append((words, f"{value:.3g}" if isinstance(value, float) else printable(str(value))))
    return pd.DataFrame(rows, columns=["what", "value"])


def key_of(subject: SubjectRef) -> SliceKey:
    """Return the holding that a subject speaks of."""
    return SliceKey(subject.cluster, subject.node, subject.gpu, subject.slice, subject.tenant, subject.workload)


def together(store: StoreReader, look: Look, victim: SliceKey, suspect: SliceKey) -> tuple[pd.DataFrame, str]:
    """Return both over the range: `time`, the victim's `cost` (seconds), the suspect's `activity` (percent of card).

    Also which field the cost is: the first of `COSTS` that the victim has; empty where it has none.
    """
    hurt = over_time(store, look, victim)
    busy = over_time(store, look, suspect)[["time", "used"]]
    field = next((name for name in COSTS if hurt[name].notna().any()), "")
    cost = hurt[["time"]].assign(cost=hurt[field] if field else np.nan)
    joined = cost.merge(busy.rename(columns={"used": "activity"}), on="time", how="outer").sort_values("time")
    return joined.assign(activity=100 * joined["activity"]).reset_index(drop=True), field
