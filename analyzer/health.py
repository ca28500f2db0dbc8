"""TT601 XID errors by severity with what to do, TT604 lost cards."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime, timedelta
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from analyzer.cards import cards
from analyzer.facts import records
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, finding_id, make_finding
from analyzer.isolation import faults
from analyzer.protocols import Conclusion, Context, Needs, Partition, Withheld
from analyzer.xids import Xid, xid, xid_number
from collector.clock import to_ms
from collector.history import imported_until

# An XID that follows another of the same card within so many seconds is its companion.
_COMPANION_SECONDS = 60.0
_RECURRING = timedelta(days=7)
# A card is lost when its node went on reporting for so many intervals, and so many seconds, without it.
_LOST_INTERVALS = 3
_LOST_SECONDS = 180.0
_NOT_LOST = ("card_returned", "card_replaced", "card_forgotten")
_COLUMNS = ["cluster", "node", "gpu", "code", "at_ms", "number", "charged", "lost_since_ms", "how", "withheld"]


class HealthDetector:
    """Reads XID events and notices cards that went away while their node went on reporting."""

    codes = ("TT601", "TT604")
    needs: ClassVar[Needs] = {"TT601": {}, "TT604": {}}  # events and the presence of rows; no field

    def measure(self, partition: Partition) -> pd.DataFrame:
        """Return a row an XID event, and a row a card for TT604: lost since when, or why that cannot be told."""
        rows: list[dict[str, Any]] = []
        common = {"cluster": partition.cluster, "node": partition.node}
        events = partition.events[partition.events["code"] == "xid"]
        charged = _charges(partition) if len(events) else {}
        for time, gpu, message in events[["time", "gpu", "message"]].itertuples(index=False):
            number, at_ms = xid_number(message), to_ms(time)
            if number:
                whose = charged.get((gpu, at_ms, number), "")
                rows.append({**common, "gpu": gpu, "code": "TT601", "at_ms": at_ms, "number": number, "charged": whose})
        rows += [{**common, **row} for row in self._presence(partition)]
        return pd.DataFrame([{"how": "", "withheld": "", "charged": "", **row} for row in rows], columns=_COLUMNS)

    def _presence(self, partition: Partition) -> list[dict[str, Any]]:
        found = [card for card in cards(partition) if not card.nameless]
        step = partition.interval_seconds
        own_rows = partition.node_rows["time"]
        start_ms = to_ms(partition.window.start)
        node_last = int((to_ms(own_rows.max()) - start_ms) // (step * 1000)) if len(own_rows) else -1
        last = {card.gpu: card.newest for card in found}
        reporting = max([node_last, *last.values()], default=-1)
        limit = max(_LOST_INTERVALS, math.ceil(_LOST_SECONDS / step))
        told = _told_lost(partition.events)
        imported = imported_until(partition.facts)
        left = set(partition.events.loc[partition.events["code"].isin(_NOT_LOST[1:]), "gpu"])
        rows = []
        for card in found:
            if card.gpu in left:
                continue  # another card is in its place, or it was taken out of the capacity, and that was told
            past = imported.get((partition.cluster, partition.node, card.gpu))
            newest_ms = start_ms + last[card.gpu] * step * 1000
            # A log ends, and no card with it; one that its own log goes on without is lost all the same.
            if past is not None and (last[card.gpu] < 0 or newest_ms <= to_ms(past) <= newest_ms + limit * step * 1000):
                continue
            row: dict[str, Any] = {"gpu": card.gpu, "code": "TT604"}
            seen = last[card.gpu]
            if card.gpu in told and told[card.gpu] >= start_ms + seen * step * 1000:
                row |= {"lost_since_ms": told[card.gpu], "how": "event"}
            elif reporting - seen >= limit:
                since = start_ms + (seen + 1) * step * 1000
                row |= {"lost_since_ms": since, "how": "silence" if seen >= 0 else "silence throughout"}
            elif len(found) == 1 and node_last < 0:
                row |= {"withheld": "nothing else on its node reports: a lost card and a silent node look alike"}
            rows.append(row)
        return rows

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        """Group XIDs a card and number, and judge each card that went away."""
        if measures.empty:
            return Conclusion([], [])
        ordered = measures.sort_values(["cluster", "node", "gpu", "code", "at_ms", "number"], kind="stable")
        findings, withheld = [], []
        for key, rows in ordered.groupby(["cluster", "node", "gpu"], sort=True):
            cluster, node, gpu = map(str, key)
            subject = (SubjectRef(Role.SUBJECT, cluster, node, gpu),)
            errors = rows[rows["code"] == "TT601"]
            findings += _xid_findings(subject, errors, context)
            for row in records(rows[rows["code"] == "TT604"]):
                if row["withheld"]:
                    withheld.append(Withheld("TT604", cluster, node, gpu, "", row["withheld"]))
                elif not math.isnan(row["lost_since_ms"]):
                    findings.append(_lost(subject, row, errors, context))
        return Conclusion(findings, withheld)


def _charges(partition: Partition) -> dict[tuple[str, int, int], str]:
    """Return (card, ms, XID) -> tenant/workload of the slice whose program caused it, where that can be told."""
    found = {}
    for card in cards(partition):
        for fault in faults(card, partition):
            if fault.number and fault.culprit >= 0:
                whose = card.holdings[fault.culprit]
                found[card.gpu, fault.at_ms, fault.number] = f"{whose.tenant}/{whose.workload}"
    return found


def _told_lost(events: pd.DataFrame) -> dict[str, float]:
    """Return cards whose newest such event is `card_lost`, and when it was (ms)."""
    about = events[events["code"].isin(["card_lost", *_NOT_LOST])].sort_values("time", kind="stable")
    newest = about.drop_duplicates("gpu", keep="last")
    lost = newest[newest["code"] == "card_lost"]
    return {gpu: float(to_ms(time)) for gpu, time in zip(lost["gpu"], lost["time"], strict=True)}


def _xid_findings(subject: tuple[SubjectRef, ...], errors: pd.DataFrame, context: Context) -> list[Finding]:
    """Return one finding a number, without those that only follow another."""
    times = errors["at_ms"].to_numpy(np.float64)
    numbers = errors["number"].to_numpy(np.float64).astype(int)
    findings = []
    for number in sorted(set(numbers.tolist())):
        at = times[numbers == number]
        known = xid(number)
        led = [
            int(other)
            for other, when in zip(numbers, times, strict=True)
            if other != number and ((at - when >= 0) & (at - when <= _COMPANION_SECONDS * 1000)).any()
        ]
        if known.action == "follow_companion" and led:
            continue
        charged = Counter(name for name in errors.loc[numbers == number, "charged"] if name)
        findings.append(
            _xid_finding(subject, known, at, sorted(set(led)), context, charged=dict(charged.most_common()))
        )
    return findings


def _xid_finding(
    subject: tuple[SubjectRef, ...],
    known: Xid,
    at: np.ndarray,
    led: list[int],
    context: Context,
    *,
    charged: dict[str, int],
) -> Finding:
    first, last = _instant(at.min()), _instant(at.max())
    again = len(at) > 1 and bool((np.diff(np.sort(at)) <= _RECURRING / timedelta(milliseconds=1)).any())
    name = f" ({known.name})" if known.name else ""
    often = f"{len(at)} times" if len(at) > 1 else "once"
    card = f"{subject[0].gpu} on {subject[0].node}"
    by = f" by {', '.join(charged)}" if charged else ""
    return Finding(
        id=finding_id("TT601", subject, f"xid {known.number}"),  # one finding a number
        code="TT601",
        verdict=Verdict.HOLDS,
        subjects=subject,
        window=context.window,
        claim=f"XID {known.number}{name} {often} on {card}{by}, last {last:%Y-%m-%d %H:%M} UTC: {known.text}",
        risk="an exporter shows only the last XID, so one between two scrapes can be missed; a program can cause some",
        confidence=0.95,
        coverage=1.0,
        effect=Effect(float(len(at)), "count", float(len(at)), float(len(at))),
        evidence={
            "xid": known.number,
            "name": known.name,
            "severity": known.severity,
            "action": known.action,
            "what_to_do": known.recurring if again else known.text,
            "count": len(at),
            "first": first,
            "last": last,
            "recurring": again,
            "after_xid": led,
            "charged_to": charged,
            "take_out": known.take_out,
        },
        simulated=context.simulated,
    )


def _lost(subject: tuple[SubjectRef, ...], row: dict[str, Any], errors: pd.DataFrame, context: Context) -> Finding:
    since = _instant(row["lost_since_ms"])
    hours = max((context.window.end - since).total_seconds() / 3600, 0.0)
    before = errors[errors["at_ms"] <= row["lost_since_ms"] + _COMPANION_SECONDS * 1000]
    numbers = sorted({int(n) for n in before["number"]})
    told = row["how"] == "event"
    never = row["how"] == "silence throughout"
    because = f"; XID {', '.join(map(str, numbers))} came before" if numbers else ""
    since_text = "was not seen in the window" if never else f"is gone since {since:%Y-%m-%d %H:%M} UTC ({hours:.1f} h)"
    return make_finding(
        "TT604",
        Verdict.HOLDS,
        subject,
        context.window,
        claim=f"{subject[0].gpu} {since_text} while {subject[0].node} goes on reporting{because}",
        risk="a card that was taken out on purpose, or whose exporter lost it alone, looks the same",
        confidence=0.95 if told or numbers else 0.8,
        coverage=1.0,
        effect=Effect(hours, "gpu_hours", hours, hours),
        evidence={
            "since": since,
            "how": row["how"],
            "xids_before": numbers,
            "still": True,
            "severity": "critical",
            "take_out": True,
        },
        simulated=context.simulated,
    )


def _instant(ms: float) -> datetime:
    return pd.Timestamp(int(ms), unit="ms", tz="UTC").to_pydatetime()
