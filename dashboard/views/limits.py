"""The Limits page: what keeps work from running faster, how much busy time is hollow, which cut would fit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from analyzer.bottleneck_scores import LIMITS
from analyzer.codes import codes
from analyzer.findings import Finding, SubjectRef
from analyzer.hollow import MEASURES, HollowBusy
from dashboard.cli.output import clean as printable
from dashboard.views.names import CardNames

COLUMNS = ("who", "card", "limit", "of its working time", "next", "busy overstates", "sure", "id")
HOLLOW_COLUMNS = ("who", "class", "held as", "busy card-hours", *MEASURES, "busy overstates")
MEASURE_WORDS = {"sm": "SM low", "occupancy": "occupancy low", "tensor": "tensor low"}
LOW = "SM activity below 50 %, occupancy below 25 %, tensor activity below 10 %, while it ran"


def limits(findings: Sequence[Finding], names: CardNames) -> pd.DataFrame:
    """Return one row a finding of TT4xx with `COLUMNS`; shares in percent, absent ones NaN."""
    return pd.DataFrame([_row(f, names) for f in findings if f.code.startswith("TT4")], columns=list(COLUMNS))


def _row(finding: Finding, names: CardNames) -> tuple[Any, ...]:
    subject = finding.subjects[0]
    rivals = finding.evidence.get("runners_up") or []
    first = f"{_title(LIMITS[rivals[0]['limit']].code)} ({rivals[0]['score']:.0%})" if rivals else ""
    overstated = finding.evidence.get("busy_overstates_sm_times")
    return (
        who(subject),
        names.get(subject.gpu, printable(f"{subject.node} {subject.gpu}")),
        _title(finding.code),
        100 * finding.effect.value if finding.effect is not None else math.nan,
        first,
        math.nan if overstated is None else float(overstated),
        100 * finding.confidence,
        finding.id,
    )


def who(subject: SubjectRef) -> str:
    """Return the holder, or that all who share the card are meant."""
    return printable(f"{subject.tenant}/{subject.workload}") if subject.workload else "all who share the card"


def _title(code: str) -> str:
    return codes()[code].title.removeprefix("Limited by ")


def kinds(findings: Sequence[Finding]) -> dict[str, int]:
    """Return how many subjects each class of limit holds, most first."""
    return dict(Counter(_title(f.code) for f in findings if f.code.startswith("TT4")).most_common())


def hollow_table(found: Sequence[HollowBusy]) -> pd.DataFrame:
    """Return one row a tenant, class and sharing kind: busy card-hours, and hollow parts in percent of them."""
    rows = [
        (
            printable(h.tenant),
            h.service_class,
            h.kind,
            h.busy_card_seconds / 3600,
            *(100 * h.hollow[name] for name in MEASURES),
            h.overstated,
        )
        for h in found
    ]
    return pd.DataFrame(rows, columns=list(HOLLOW_COLUMNS))


def hollow_cells(table: pd.DataFrame) -> pd.DataFrame:
    """Return the map as cells `who`, `measure`, `hollow` (percent; NaN: nobody tells that measure)."""
    labels = [f"{row[0]} · {row[1]} · {row[2]}" for row in table[["who", "class", "held as"]].to_numpy().tolist()]
    parts = [
        pd.DataFrame({"who": labels, "measure": MEASURE_WORDS[name], "hollow": table[name].to_numpy()})
        for name in MEASURES
    ]
    return pd.concat(parts, ignore_index=True) if len(table) else pd.DataFrame(columns=["who", "measure", "hollow"])
