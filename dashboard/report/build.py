"""The report, made of what was gathered: pure functions from frames, findings and records to the model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

import numpy as np
import pandas as pd

from analyzer.codes import codes
from analyzer.facts import hardware_facts, requests
from analyzer.findings import Finding, Role, SubjectRef, Verdict
from analyzer.ledger import LEVEL_1, LEVEL_2
from collector.declarations import Objective
from dashboard.outlook import Outlook
from dashboard.report.model import (
    CardCoverage,
    ChangeLine,
    ChangesPart,
    Claim,
    Claims,
    DropCount,
    EnergyPart,
    ForecastLine,
    ForecastPart,
    HourTerms,
    LedgerPart,
    PromiseCheck,
    QualityPart,
    QueueLine,
    RejectLine,
    Report,
    Service,
    TenantUse,
    Term,
    Unanalysed,
)
from dashboard.report.prices import Prices
from dashboard.report.summary import summarise
from tuner.model import Change
from tuner.outcome import Outcome
from tuner.record import ChangeState, Drop, GroupRecord
from tuner.service.analyse import Analysis

_FAMILY = {"TT1": "fights", "TT2": "stranded", "TT3": "waste", "TT4": "limits", "TT5": "risks", "TT6": "health"}
_UNDONE = frozenset({ChangeState.ROLLED_BACK, ChangeState.ROLLBACK_BLOCKED, ChangeState.ROLLING_BACK})
_MADE = frozenset(
    {ChangeState.APPLIED, ChangeState.READ_BACK, ChangeState.VERIFYING, ChangeState.CONFIRMED, ChangeState.SUPERSEDED}
)
_POOR_COVERAGE = 0.95
_KEPT_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class TunerRecords:
    """What the state database holds about the window."""

    counts: Mapping[ChangeState, int]
    groups: Sequence[GroupRecord]  # written, or waiting for an answer; newest first
    drops: Sequence[Drop]
    outcomes: Sequence[Outcome]


@dataclass(frozen=True, slots=True)
class Gathered:
    """Everything that the report is made of.

    Attributes:
        served: length of an objective's window in seconds -> requests of each workload per such window: columns time,
            tenant, workload, requests, within, p99 (seconds).
        samples: columns cluster, node, gpu, samples: how many rows of each card have a value.
        energy: rows of `analyzer.energy.attribute_energy` of all nodes.
        past: history of the fleet: columns time, value (cards used).
    """

    analysis: Analysis
    interval_seconds: float
    facts: pd.DataFrame
    served: Mapping[float, pd.DataFrame]
    queues: pd.DataFrame
    samples: pd.DataFrame
    rejects: pd.DataFrame
    events: pd.DataFrame
    energy: pd.DataFrame
    outlook: Outlook | None
    past: pd.DataFrame
    no_outlook: str
    records: TunerRecords | None
    no_records: str
    mode: str


def build_report(gathered: Gathered, prices: Prices) -> Report:
    """Make the report; the same input gives the same report."""
    analysis = gathered.analysis
    ledger = _ledger(gathered, prices)
    services = _services(gathered)
    claims = _claims(analysis)
    quality = _quality(gathered)
    queues = _queues(gathered)
    return Report(
        clusters=tuple(sorted(set(gathered.samples["cluster"]))),
        start=analysis.window.start,
        end=analysis.window.end,
        interval_seconds=gathered.interval_seconds,
        simulated=analysis.simulated,
        summary=summarise(ledger, services, claims, queues),
        ledger=ledger,
        services=services,
        claims=claims,
        forecast=_forecast(gathered),
        changes=_changes(gathered),
        queues=queues,
        energy=_energy(gathered, ledger),
        quality=quality,
    )


def _ledger(gathered: Gathered, prices: Prices) -> LedgerPart:
    ledger = gathered.analysis.ledger
    hours = gathered.analysis.window.seconds / 3600
    count = len(ledger.gpus)
    fleet = ledger.fleet
    capacity, used = float(fleet["capacity"]), float(fleet["used"])
    models = {key[:3]: value for key, value in hardware_facts(gathered.facts, "gpu", "model").items()}
    keys = list(ledger.gpus[["cluster", "node", "gpu"]].itertuples(index=False, name=None))
    price = prices.of_fleet([models.get(key, "") for key in keys]) * hours
    per_sm_second = price / capacity if capacity > 0 else math.nan
    joules = gathered.energy.groupby("tenant")["joules"].sum()
    tenants = []
    for row in ledger.tenants.to_dict("records"):
        held = float(row["used"]) + float(row["reserved"]) + float(row["wasted"])
        tenants.append(
            TenantUse(
                tenant=str(row["tenant"]),
                used_ratio=_share(row["used"], capacity),
                useful_ratio=_share(row["useful"], capacity),
                reserved_ratio=_share(row["reserved"], capacity),
                wasted_ratio=_share(row["wasted"], capacity),
                wasted_card_hours=_share(row["wasted"], capacity) * count * hours,
                energy_joules=float(joules.get(row["tenant"], math.nan)),
                cost=held * per_sm_second,
            )
        )
    names_1, names_2 = [*LEVEL_1, "unaccounted_1"], [*LEVEL_2, "unaccounted_2"]
    return LedgerPart(
        cards=count,
        hours=hours,
        capacity_sm_seconds=capacity,
        used_sm_seconds=used,
        level_1=tuple(_term(n, float(fleet[n]), capacity, capacity, count) for n in names_1),
        level_2=tuple(_term(n, float(fleet[n]), used, capacity, count) for n in names_2),
        by_hour=tuple(
            HourTerms(
                row["hour"].to_pydatetime(),
                {n.removesuffix("_1"): _share(row[n], float(row["capacity"])) for n in [*names_1, "useful"]},
            )
            for row in ledger.hours.to_dict("records")
        ),
        tenants=tuple(sorted(tenants, key=lambda t: (-t.wasted_ratio, t.tenant))),
        price=price,
        currency=prices.currency,
        assumed_sm_count=ledger.assumed_sm_count,
        estimated_quota=ledger.estimated_quota,
    )


def _term(name: str, amount: float, whole: float, capacity: float, cards: int) -> Term:
    return Term(name.rpartition("_")[0] or name, amount, _share(amount, whole), _share(amount, capacity) * cards)


def _share(part: float, whole: float) -> float:
    return float(part) / whole if whole > 0 else math.nan


def _services(gathered: Gathered) -> tuple[Service, ...]:
    found = []
    for (tenant, workload), promise in sorted(gathered.analysis.declarations.items()):
        objective = promise.declaration.objective
        if objective is None:
            continue
        rows = gathered.served[max(objective.window_seconds, gathered.interval_seconds)]
        own = rows[(rows["tenant"] == tenant) & (rows["workload"] == workload)]
        found.append(_service(tenant, workload, objective, own, gathered))
    return tuple(sorted(found, key=lambda s: (math.isnan(s.kept_ratio), s.kept_ratio, s.tenant, s.workload)))


def _service(tenant: str, workload: str, objective: Objective, rows: pd.DataFrame, gathered: Gathered) -> Service:
    asked = rows[rows["requests"] > 0]
    judged = asked[asked["within"].notna()]
    missing = ""
    if asked.empty:
        missing = "no requests were seen"
    elif len(judged) < len(asked) / 2:
        missing = "requests were seen, but not how many met the objective"
    if missing:
        judged = judged.iloc[:0]
    met = judged["within"] / judged["requests"] >= objective.share - _KEPT_TOLERANCE
    hours = met.groupby(judged["time"].dt.floor("h")).mean()
    window = gathered.analysis.window
    first = pd.Timestamp(window.start).floor("h")
    every_hour = pd.date_range(first, pd.Timestamp(window.end), freq="h", inclusive="left")
    return Service(
        tenant=tenant,
        workload=workload,
        quantity=objective.quantity,
        share=objective.share,
        bound_seconds=objective.bound_seconds,
        window_seconds=max(objective.window_seconds, gathered.interval_seconds),
        requests=float(judged["requests"].sum()) if not missing else math.nan,
        within_ratio=_share(judged["within"].sum(), float(judged["requests"].sum())),
        windows=len(judged),
        kept_ratio=float(met.mean()) if len(met) else math.nan,
        worst_p99_seconds=float(rows["p99"].max()) if rows["p99"].notna().any() else math.nan,
        by_hour=tuple((hour.to_pydatetime(), float(hours.get(hour, math.nan))) for hour in every_hour),
        missing=missing,
    )


def _claims(analysis: Analysis) -> Claims:
    parts: dict[str, list[Claim]] = {name: [] for name in _FAMILY.values()}
    undecided: Counter[str] = Counter()
    for finding in analysis.findings:
        if finding.verdict in (Verdict.HOLDS, Verdict.SUSPECTED):
            parts[_FAMILY[finding.code[:3]]].append(_claim(finding))
        elif finding.verdict is Verdict.CANNOT_TELL:
            undecided[finding.code] += 1
    return Claims(**{name: tuple(claims) for name, claims in parts.items()}, undecided=dict(sorted(undecided.items())))


def _claim(finding: Finding) -> Claim:
    code = codes()[finding.code]
    victims = [s for s in finding.subjects if s.role is Role.VICTIM]
    others = [s for s in finding.subjects if s.role is not Role.VICTIM]
    effect, evidence = finding.effect, finding.evidence
    since = evidence.get("since") or evidence.get("first") or ""
    return Claim(
        id=finding.id,
        code=finding.code,
        title=code.title,
        verdict=finding.verdict.value,
        claim=finding.claim,
        who=_names(others),
        victim=_names(victims),
        where=_place(finding.subjects),
        effect_value=math.nan if effect is None else effect.value,
        effect_lower=math.nan if effect is None else effect.lower,
        effect_upper=math.nan if effect is None else effect.upper,
        effect_unit="" if effect is None else effect.unit,
        channel=finding.channel or "",
        lag_seconds=math.nan if finding.lag_seconds is None else finding.lag_seconds,
        confidence=finding.confidence,
        coverage=finding.coverage,
        since=since.isoformat() if isinstance(since, datetime) else str(since),
        check=str(evidence.get("check") or ""),
        action=str(evidence.get("what_to_do") or code.action).strip(),
        risk=finding.risk,
    )


def _names(subjects: Sequence[SubjectRef]) -> str:
    return ", ".join(dict.fromkeys(_name(s) for s in subjects))


def _name(subject: SubjectRef) -> str:
    if subject.workload:
        return f"{subject.tenant}/{subject.workload}"
    return subject.tenant or subject.gpu or subject.node or subject.cluster


def _place(subjects: Sequence[SubjectRef]) -> str:
    return ", ".join(dict.fromkeys("/".join(part for part in (s.node, s.gpu) if part) for s in subjects)).strip(", ")


def _forecast(gathered: Gathered) -> ForecastPart:
    past = tuple(
        (time.to_pydatetime(), float(value))
        for time, value in zip(gathered.past["time"], gathered.past["value"], strict=True)
    )
    outlook = gathered.outlook
    if outlook is None:
        return ForecastPart(None, (), past, gathered.no_outlook)
    lines = []
    for (series, horizon), rows in outlook.forecasts.groupby(["series", "horizon_seconds"], dropna=False, sort=True):
        seconds = float(horizon)
        known = rows[rows["value"].notna()]
        lines.append(
            ForecastLine(
                series=str(series),
                horizon_seconds=seconds,
                target_time=None if math.isnan(seconds) else outlook.made_at + timedelta(seconds=seconds),
                quantiles={f"{q:g}": float(v) for q, v in zip(known["quantile"], known["value"], strict=True)},
                note="; ".join(dict.fromkeys(str(text) for text in rows["reason"] if text)),
                **_errors(outlook.errors, str(series), seconds),
            )
        )
    lines.sort(key=lambda line: (line.series != "fleet", line.series, line.horizon_seconds))
    return ForecastPart(outlook.made_at, tuple(lines), past, "")


def _errors(errors: pd.DataFrame, series: str, seconds: float) -> dict[str, float]:
    about = errors[(errors["series"] == series) & (errors["horizon_seconds"] == seconds)]
    names = {"error": "mae", "relative_to_last": "relative_to_last", "coverage_80": "coverage_80"}
    return {ours: float(about[theirs].iloc[0]) if len(about) else math.nan for ours, theirs in names.items()}


def _changes(gathered: Gathered) -> ChangesPart:
    records = gathered.records
    if records is None:
        return ChangesPart(gathered.mode, {}, (), (), (), (), (), gathered.no_records)
    reasons = Counter((d.guard, d.action, d.reason) for d in records.drops)
    return ChangesPart(
        mode=gathered.mode,
        counts={state.value: count for state, count in sorted(records.counts.items())},
        made=tuple(_change_line(r) for r in records.groups if r.state in _MADE),
        rolled_back=tuple(_change_line(r) for r in records.groups if r.state in _UNDONE),
        would=tuple(_change_line(r) for r in records.groups if r.state in (ChangeState.PLANNED, ChangeState.APPROVED)),
        drops=tuple(
            DropCount(*key, count) for key, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        ),
        promises=_promises(records.outcomes),
        missing="",
    )


def _change_line(record: GroupRecord) -> ChangeLine:
    return ChangeLine(
        id=record.id,
        at=record.applied_at or record.updated_at,
        state=record.state.value,
        kind=record.group.kind,
        what=tuple(_change_text(change) for change in record.group.changes),
        why=record.group.why,
        reason=record.reason,
        confidence=record.group.confidence,
    )


def _change_text(change: Change) -> str:
    who = f"{change.tenant}/{change.workload}" if change.workload else str(change.target)
    return f"{who}: {change.knob} {_knob(change.knob, change.before)} to {_knob(change.knob, change.after)}"


def _knob(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return f"{value / 2**30:.1f} GiB"
    return f"{value:.0%}" if name.endswith("_ratio") else f"{value:g}"


def _promises(outcomes: Iterable[Outcome]) -> tuple[PromiseCheck, ...]:
    by_kind: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_kind.setdefault(outcome.kind, []).append(outcome)
    return tuple(
        PromiseCheck(
            kind=kind,
            passed=sum(o.verdict == "pass" for o in found),
            other=sum(o.verdict != "pass" for o in found),
            predicted_sm_seconds_per_hour=_median(o.predicted for o in found),
            realised_ratio=_median(o.realised for o in found),
        )
        for kind, found in sorted(by_kind.items())
    )


def _median(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return median(known) if known else math.nan


def _queues(gathered: Gathered) -> tuple[QueueLine, ...]:
    """Join what queues report with how long pods really waited (from their requests' facts)."""
    window = gathered.analysis.window
    waits: dict[tuple[str, str], list[float]] = {}
    waiting: dict[tuple[str, str], list[float]] = {}
    for request in requests(gathered.facts):
        key = (request.cluster, request.tenant)
        if request.started is not None and window.start <= request.started < window.end:
            waits.setdefault(key, []).append((request.started - request.created).total_seconds())
        elif request.started is None and request.created < window.end:
            if request.ended is None or request.ended > window.end:
                waiting.setdefault(key, []).append((window.end - request.created).total_seconds())
    rows = gathered.queues
    sums = rows.groupby(["cluster", "tenant", "time"])[_QUEUE_FIELDS].sum(min_count=1)
    means = sums.groupby(["cluster", "tenant"]).mean()
    latest = sums.groupby(["cluster", "tenant"]).last()
    keys = sorted({*waits, *waiting, *means.index})
    lines = []
    for key in keys:
        known = key in means.index
        lines.append(
            QueueLine(
                cluster=key[0],
                tenant=key[1],
                started=len(waits.get(key, ())),
                wait_p50_seconds=_nearest_rank(waits.get(key, ()), 0.5),
                wait_p95_seconds=_nearest_rank(waits.get(key, ()), 0.95),
                waiting_now=float(len(waiting[key])) if key in waiting else _at(latest, key, "pending_count"),
                longest_now_seconds=max(waiting.get(key, ()), default=math.nan),
                pending_mean=_at(means, key, "pending_count"),
                quota_cards=_at(latest, key, "quota_gpu_count") if known else math.nan,
                allocated_mean_cards=_at(means, key, "allocated_gpu_count"),
            )
        )
    return tuple(sorted(lines, key=lambda q: (-np.nan_to_num(q.wait_p95_seconds), q.cluster, q.tenant)))


_QUEUE_FIELDS = ["quota_gpu_count", "allocated_gpu_count", "pending_count"]


def _at(frame: pd.DataFrame, key: tuple[str, str], name: str) -> float:
    return float(frame.loc[key, name]) if key in frame.index else math.nan


def _nearest_rank(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[max(math.ceil(q * len(ordered)), 1) - 1] if ordered else math.nan


def _energy(gathered: Gathered, ledger: LedgerPart) -> EnergyPart:
    rows = gathered.energy
    joules = float(rows["joules"].sum()) if len(rows) else math.nan
    useful = next((t.sm_seconds for t in ledger.level_2 if t.name == "useful"), math.nan)
    return EnergyPart(
        joules=joules,
        pool_joules=float(rows.loc[rows["slice"] == "", "joules"].sum()) if len(rows) else math.nan,
        per_useful_sm_second_joules=joules / useful if useful > 0 else math.nan,
        cards_metered=len(rows[["cluster", "node", "gpu"]].drop_duplicates()),
    )


def _quality(gathered: Gathered) -> QualityPart:
    analysis, census = gathered.analysis, gathered.analysis.census
    expected = analysis.window.seconds / gathered.interval_seconds
    cards = [
        CardCoverage(str(cluster), str(node), str(gpu), min(float(count) / expected, 1.0))
        for cluster, node, gpu, count in gathered.samples[["cluster", "node", "gpu", "samples"]].itertuples(index=False)
    ]
    rejects = gathered.rejects
    grouped = rejects.groupby(["field", "reason"], sort=True)
    return QualityPart(
        nodes=census.nodes,
        cards=census.cards,
        slices=census.slices,
        coverage=float(np.mean([c.coverage for c in cards])) if cards else math.nan,
        worst=tuple(
            sorted(
                (c for c in cards if c.coverage < _POOR_COVERAGE), key=lambda c: (c.coverage, c.cluster, c.node, c.gpu)
            )
        ),
        rejects=tuple(
            RejectLine(
                str(field),
                str(reason),
                len(rows[["cluster", "node", "gpu", "slice", "object"]].drop_duplicates()),
                float(rows["count"].sum()),
            )
            for (field, reason), rows in grouped
        ),
        events={str(code): int(count) for code, count in gathered.events.groupby("code").size().items()},
        unanalysed=tuple(
            Unanalysed(
                c.code, codes()[c.code].title, c.subjects, c.analysed, c.withheld, c.not_applicable, dict(c.reasons)
            )
            for c in census.codes
        ),
        undeclared=tuple(
            f"{t}/{w}" for (t, w), promise in sorted(analysis.declarations.items()) if not promise.declared
        ),
    )
