"""The Waste page: who holds and does not use, what is free now, wrong sizes, whose quota could move, by whom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd

from analyzer.facts import records
from analyzer.findings import CLAIMS, Finding, Role
from analyzer.ledger import LEVEL_1, LEVEL_2, Ledger
from analyzer.quota_moves import QuotaMove
from analyzer.slice_account import FreeNow
from analyzer.waiting import Waiting
from collector.schema import NOBODY, UNKNOWN
from collector.window import parse_instant
from dashboard.cli.output import clean as printable
from dashboard.views.names import CardNames, named
from dashboard.views.text import gib, number, percent, seconds, stamp

IDLE = ("TT301", "TT302")
_SIZED = {"TT311": "compute, too much", "TT312": "memory, too much", "TT313": "too little", "TT314": "starved"}
_JOULES_PER_KWH = 3.6e6
_CARD_TERMS = {
    **{name: name for name in LEVEL_1},
    "unaccounted_1": "unaccounted",
    **{name: name for name in LEVEL_2},
    "unaccounted_2": "used, unaccounted",
}


@dataclass(frozen=True, slots=True)
class ActionCard:
    """An idle holder: who, since when, whether it is still so, how to check, and whom to ask."""

    id: str
    who: str
    owner: str
    state: str
    verdict: str
    claim: str
    facts: tuple[tuple[str, str], ...]
    check: str
    risk: str


def action_cards(findings: Sequence[Finding], names: CardNames) -> list[ActionCard]:
    """Return a card an idle holder, most wasted first."""
    idle = [f for f in findings if f.code in IDLE and f.verdict in CLAIMS]
    idle.sort(key=lambda f: -(0.0 if f.effect is None or math.isnan(f.effect.value) else f.effect.value))
    return [_card(f, names) for f in idle]


def _card(finding: Finding, names: CardNames) -> ActionCard:
    told, subject = finding.evidence, finding.subject(Role.SUBJECT)
    owner = str(told.get("owner") or UNKNOWN)
    since = _instant(told.get("since"))
    facts = (
        ("owner", owner),
        ("since", f"{stamp(since)} UTC"),
        ("still so", f"at {stamp(_instant(told.get('until')))} UTC"),
        ("for", seconds(3600 * float(told.get("idle_hours") or math.nan))),
        ("where", named(f"{subject.gpu} on {subject.node}", names)),
        ("holds", f"{percent(_number(told.get('quota_ratio')))} and {gib(_number(told.get('memory_used_bytes')))}"),
        ("wasted", "no data" if finding.effect is None else f"{number(finding.effect.value)} card-hours"),
        ("pod", str(told.get("pod") or "no data")),
    )
    return ActionCard(
        id=finding.id,
        who=f"{subject.tenant}/{subject.workload}",
        owner=owner,
        state=str(told.get("state") or "idle-held"),
        verdict=finding.verdict.value,
        claim=named(finding.claim, names),
        facts=facts,
        check=str(told.get("check") or ""),
        risk=finding.risk,
    )


def _instant(value: Any) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    return parse_instant(str(value))


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _gib(value: Any) -> str:
    return gib(_number(value))


def _percent(value: Any) -> str:
    return percent(_number(value))


def _card_name(node: str, gpu: str, names: CardNames) -> str:
    return names.get(gpu) or printable(f"{node} {gpu}")


def free_table(free: Sequence[FreeNow], names: CardNames) -> pd.DataFrame:
    """Return what is free now; share in percent of a card."""
    rows = [
        {
            "card": _card_name(f.node, f.gpu, names),
            "piece": f.profile or ("whole card" if f.share >= 1 else "share"),
            "share": 100 * f.share,
            "memory": f.memory_bytes / 2**30,
            "since": f.since,
            "model": f.model,
        }
        for f in free
    ]
    return pd.DataFrame(rows, columns=["card", "piece", "share", "memory", "since", "model"])


def sized_table(findings: Sequence[Finding], names: CardNames) -> pd.DataFrame:
    """Return quotas of the wrong size: what is granted, and what would do (lower, target, upper)."""
    rows = []
    for f in findings:
        if f.code not in _SIZED or f.verdict not in CLAIMS:
            continue
        told, subject = f.evidence, f.subject(Role.SUBJECT)
        unit = "bytes" if f.code == "TT312" or "target_ratio" not in told else "ratio"
        show = _gib if unit == "bytes" else _percent
        granted = told.get("memory_quota_bytes") if unit == "bytes" else told.get("quota_ratio")
        rows.append(
            {
                "what": _SIZED[f.code],
                "tenant": printable(subject.tenant),
                "workload": printable(subject.workload),
                "card": named(subject.gpu, names),
                "granted": _percent(told.get("quota_ratio")) if f.code == "TT314" else show(granted),
                "lower": show(told.get(f"lower_{unit}")),
                "target": str(told.get("target_profile") or show(told.get(f"target_{unit}"))),
                "upper": show(told.get(f"upper_{unit}")),
                "verdict": f.verdict.value,
                "sure": percent(f.confidence),
                "why": named(f.claim, names),
            }
        )
    columns = ["what", "tenant", "workload", "card", "granted", "lower", "target", "upper", "verdict", "sure", "why"]
    return pd.DataFrame(rows, columns=columns)


def moves_table(moves: Sequence[QuotaMove], names: CardNames) -> pd.DataFrame:
    """Return whose quota could go to whom."""
    rows = [
        {
            "from": printable("/".join(filter(None, (m.donor_tenant, m.donor_workload)))),
            "to": printable("/".join(filter(None, (m.receiver_tenant, m.receiver_workload)))),
            "where": printable(named(m.place, names)),
            "lower": _much(m.lower, m.unit),
            "target": _much(m.target, m.unit),
            "upper": _much(m.upper, m.unit),
            "why": m.why,
        }
        for m in moves
    ]
    return pd.DataFrame(rows, columns=["from", "to", "where", "lower", "target", "upper", "why"])


def _much(amount: float, unit: str) -> str:
    return percent(amount) if unit == "ratio" else number(amount, unit)


def waiting_table(waiting: Sequence[Waiting]) -> pd.DataFrame:
    """Return who waited for cards: unmet card-hours, waits of those that were granted, how many wait now."""
    rows = [
        {
            "tenant": printable(w.tenant),
            "pool": printable(w.pool),
            "unmet": w.unmet_card_hours,
            "granted": w.admitted,
            "median wait": seconds(w.wait_p50_seconds),
            "95 % wait": seconds(w.wait_p95_seconds),
            "waiting now": w.waiting_now,
        }
        for w in waiting
        if w.waiting_now > 0 or not w.unmet_card_hours <= 0
    ]
    columns = ["tenant", "pool", "unmet", "granted", "median wait", "95 % wait", "waiting now"]
    return pd.DataFrame(rows, columns=columns)


def tenant_table(ledger: Ledger, accounts: pd.DataFrame) -> pd.DataFrame:
    """Return each tenant's part of all capacity in percent, borrowed and starved card-hours, and attributed energy."""
    capacity = float(ledger.fleet["capacity"])
    own = accounts[(accounts["slice"] != "") & (accounts["tenant"] != NOBODY)]
    sums = own.groupby("tenant")[["borrowed_gpu_seconds", "starved_gpu_seconds", "joules"]].sum(min_count=1)
    rows = []
    for row in records(ledger.tenants):
        if row["tenant"] == NOBODY or not capacity > 0:
            continue
        extra = sums.loc[row["tenant"]] if row["tenant"] in sums.index else None
        rows.append(
            {
                "tenant": printable(row["tenant"]),
                **{name: 100 * row[name] / capacity for name in ("used", "useful", "reserved", "wasted", "unobserved")},
                "borrowed": math.nan if extra is None else extra["borrowed_gpu_seconds"] / 3600,
                "starved": math.nan if extra is None else extra["starved_gpu_seconds"] / 3600,
                "energy": math.nan if extra is None else extra["joules"] / _JOULES_PER_KWH,
            }
        )
    table = pd.DataFrame(
        rows, columns=["tenant", "used", "useful", "reserved", "wasted", "unobserved", "borrowed", "starved", "energy"]
    )
    return table.sort_values("wasted", ascending=False, kind="stable", ignore_index=True)


def card_table(ledger: Ledger, names: CardNames) -> pd.DataFrame:
    """Return each card's ledger, level 1 and 2, in percent of the card."""
    rows = []
    for row in records(ledger.gpus):
        terms = {words: 100 * row[name] / row["capacity"] for name, words in _CARD_TERMS.items()}
        rows.append(
            {"card": named(row["gpu"], names) if row["gpu"] in names else f"{row['node']} {row['gpu']}", **terms}
        )
    return pd.DataFrame(rows, columns=["card", *_CARD_TERMS.values()])


def slice_table(accounts: pd.DataFrame, names: CardNames) -> pd.DataFrame:
    """Return every holding with its true use, quota, borrowed, starved and energy, and where each number comes from."""
    own = accounts[(accounts["slice"] != "") & (accounts["tenant"] != NOBODY)]
    return pd.DataFrame(
        {
            "tenant": own["tenant"].map(printable),
            "workload": own["workload"].map(printable),
            "card": [named(gpu, names) for gpu in own["gpu"]],
            "kind": own["kind"],
            "state": own["state"].replace("", "ended"),
            "held": 100 * own["quota_ratio"],
            "held from": own["quota_provenance"],
            "used": 100 * own["used_ratio"],
            "used from": own["used_provenance"],
            "of its share": 100 * own["of_quota_ratio"],
            "busy": 100 * own["busy_ratio"],
            "overstated": own["overstated_by"],
            "borrowed": own["borrowed_gpu_seconds"] / 3600,
            "starved": own["starved_gpu_seconds"] / 3600,
            "energy": own["joules"] / _JOULES_PER_KWH,
            "energy from": own["joules_provenance"],
        }
    ).reset_index(drop=True)


def idle_shares(accounts: pd.DataFrame) -> dict[str, float]:
    """Return state -> cards that holdings in it hold now (free: cards that nobody holds)."""
    now = accounts[accounts["state"] != ""]
    held = now.assign(cards=now["quota_ratio"].where(now["state"] != "free", now["free_ratio"]))
    return {str(state): float(total) for state, total in held.groupby("state")["cards"].sum(min_count=1).items()}
