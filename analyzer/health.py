"""TT601 XID errors by severity with what to do, TT604 lost cards."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from analyzer.facts import records
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, finding_id, make_finding
from analyzer.protocols import Conclusion, Context, Needs, Partition, Withheld
from analyzer.shares import cards
from collector.clock import to_ms
from collector.history import imported_until

_XID = re.compile(r"xid(?:\s*\(PCI[^)]*\))?\D{0,3}(\d+)", re.IGNORECASE)
# An XID that follows another of the same card within so many seconds is its companion.
_COMPANION_SECONDS = 60.0
_RECURRING = timedelta(days=7)
# A card is lost when its node went on reporting for so many intervals, and so many seconds, without it.
_LOST_INTERVALS = 3
_LOST_SECONDS = 180.0
_NOT_LOST = ("card_returned", "card_replaced", "card_forgotten")
_COLUMNS = ["cluster", "node", "gpu", "code", "at_ms", "number", "lost_since_ms", "how", "withheld"]


@dataclass(frozen=True, slots=True)
class Xid:
    """What one XID number means: short name, severity, what to do first, what to do when it recurs."""

    number: int
    name: str
    action: str
    severity: str
    text: str
    recurring: str


@cache
def xids() -> Mapping[int, Xid]:
    """Return all classified XID numbers of the data table."""
    data = tomllib.loads(resources.files("analyzer").joinpath("data/xid.toml").read_text("utf-8"))
    found = {}
    for action, entry in data["action"].items():
        for number in entry["codes"]:
            name = data["name"].get(str(number), "")
            found[number] = Xid(number, name, action, entry["severity"], entry["text"], entry["recurring"])
    return found


def xid(number: int) -> Xid:
    """Return what is known of an XID number; one that nobody classified says so."""
    known = xids().get(number)
    if known is not None:
        return known
    other = next(x for x in xids().values() if x.action == "unclassified")
    return Xid(number, "", "unclassified", other.severity, other.text, other.recurring)


def xid_number(message: str) -> int | None:
    """Return the number in a message such as `XID 79: ...`; None where there is none."""
    match = _XID.search(message)
    return int(match[1]) if match else None


class HealthDetector:
    """Reads XID events and notices cards that went away while their node went on reporting."""

    codes = ("TT601", "TT604")
    needs: ClassVar[Needs] = {"TT601": {}, "TT604": {}}  # events and the presence of rows; no field

    def measure(self, partition: Partition) -> pd.DataFrame:
        """Return a row an XID event, and a row a card for TT604: lost since when, or why that cannot be told."""
        rows: list[dict[str, Any]] = []
        common = {"cluster": partition.cluster, "node": partition.node}
        events = partition.events
        for time, gpu, message in events[events["code"] == "xid"][["time", "gpu", "message"]].itertuples(index=False):
            number = xid_number(message)
            if number:
                rows.append({**common, "gpu": gpu, "code": "TT601", "at_ms": to_ms(time), "number": number})
        rows += [{**common, **row} for row in self._presence(partition)]
        return pd.DataFrame([{"how": "", "withheld": "", **row} for row in rows], columns=_COLUMNS)

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
        findings.append(_xid_finding(subject, known, at, sorted(set(led)), context))
    return findings


def _xid_finding(
    subject: tuple[SubjectRef, ...], known: Xid, at: np.ndarray, led: list[int], context: Context
) -> Finding:
    first, last = _instant(at.min()), _instant(at.max())
    again = len(at) > 1 and bool((np.diff(np.sort(at)) <= _RECURRING / timedelta(milliseconds=1)).any())
    name = f" ({known.name})" if known.name else ""
    often = f"{len(at)} times" if len(at) > 1 else "once"
    card = f"{subject[0].gpu} on {subject[0].node}"
    return Finding(
        id=finding_id("TT601", subject, f"xid {known.number}"),  # one finding a number
        code="TT601",
        verdict=Verdict.HOLDS,
        subjects=subject,
        window=context.window,
        claim=f"XID {known.number}{name} {often} on {card}, last {last:%Y-%m-%d %H:%M} UTC: {known.text}",
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
        claim=f"{subject[0].gpu} {since_text} while its node {subject[0].node} goes on reporting{because}",
        risk="a card that was taken out on purpose, or whose exporter lost it alone, looks the same",
        confidence=0.95 if told or numbers else 0.8,
        coverage=1.0,
        effect=Effect(hours, "gpu_hours", hours, hours),
        evidence={"since": since, "how": row["how"], "xids_before": numbers, "still": True},
        simulated=context.simulated,
    )


def _instant(ms: float) -> datetime:
    return pd.Timestamp(int(ms), unit="ms", tz="UTC").to_pydatetime()
