"""The scoreboard at the end of the demo: before and after, the findings, the changes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from analyzer.findings import Finding
from collector.words import plural
from dashboard.cli.output import print_table, say, say_origin
from dashboard.demo.runs import DemoResult
from dashboard.views.names import card_names, named
from sample_data.cluster.score import Score
from tuner.record import ChangeState

_MOST_FINDINGS = 18
_CHANGE_WORDS = {
    ChangeState.CONFIRMED: "kept after verification",
    ChangeState.VERIFYING: "still being watched",
    ChangeState.ROLLED_BACK: "rolled back",
    ChangeState.SUPERSEDED: "followed by a later change of the same card",
    ChangeState.DROPPED: "dropped by a guard",
    ChangeState.EXPIRED: "overtaken by events before they were applied",
    ChangeState.NOT_APPLIED: "not applied",
    ChangeState.REFUSED: "refused by the backend",
    ChangeState.FOREIGN_CHANGE: "overruled by somebody else",
    ChangeState.PLANNED: "waiting for an answer",
}


def print_board(result: DemoResult) -> None:
    """Print the tables to stdout."""
    say_origin(simulated=True)
    _print_score(result)
    _print_findings(result)
    _print_changes(result)


def _print_score(result: DemoResult) -> None:
    before, after = result.before.score, result.after.score
    kept = [_percent(_kept(s), 2) for s in (before, after)]
    rows = [
        ("useful utilisation", _percent(before.useful_ratio), _percent(after.useful_ratio), _factor(before, after)),
        ("  as telemetry alone estimates it", _estimate(result, tuned=False), _estimate(result, tuned=True), ""),
        ("  upper bound", _percent(result.bound.useful_ratio), "", "known arrivals, no delay, no restarts"),
        ("objectives kept, all services", *kept, _verdict(before, after)),
        ("  worst service", *(_worst(s) for s in (before, after)), ""),
        ("wait of queue jobs, median", _span(before.wait_p50_seconds), _span(after.wait_p50_seconds), ""),
        ("wait of queue jobs, 95 %", _span(before.wait_p95_seconds), _span(after.wait_p95_seconds), ""),
        ("held and not used", _percent(before.waste_ratio), _percent(after.waste_ratio), ""),
        ("energy", f"{before.energy_kwh:.0f} kWh", f"{after.energy_kwh:.0f} kWh", ""),
        ("  a useful SM-second", *(f"{s.energy_per_useful_joules:.2f} J" for s in (before, after)), ""),
    ]
    hours = (result.end - result.start).total_seconds() / 3600
    title = f"{hours:g} simulated hours, seed {result.seed}: as its owners set it up, and tuned"
    print_table(("", ">before", ">after", ""), rows, title=title)
    say("")


def _print_findings(result: DemoResult) -> None:
    found = [f for f in result.analysis.findings if f.verdict.value in {"holds", "suspected"}]
    names = card_names(result.analysis.facts)
    shown = some_of_each_code(found, _MOST_FINDINGS)
    rows = [(f.code, f.verdict.value, f"{f.confidence:.2f}", named(f.claim, names)) for f in shown]
    more = "; the worst of each code, `trimtab analyze` lists all" if len(found) > len(shown) else ""
    print_table(
        ("code", "verdict", ">confidence", "claim"),
        rows,
        title=f"{plural(len(found), 'finding')} of the tuned run{more}",
    )
    say("")


def some_of_each_code(findings: Sequence[Finding], most: int) -> list[Finding]:
    """Return at most so many findings in their order: the first of each code, then the second of each, and so on."""
    seen: Counter[str] = Counter()
    turns = []
    for place, finding in enumerate(findings):
        turns.append((seen[finding.code], place))
        seen[finding.code] += 1
    return [findings[place] for place in sorted(place for _, place in sorted(turns)[:most])]


def _print_changes(result: DemoResult) -> None:
    rows = [(str(result.changes[s]), text) for s, text in _CHANGE_WORDS.items() if result.changes.get(s)]
    print_table((">groups of changes", ""), rows, title="What the tuner did", empty="no change was made")
    say("")


def _estimate(result: DemoResult, *, tuned: bool) -> str:
    ledger = (result.after if tuned else result.before).ledger
    capacity = float(ledger.fleet["capacity"])
    return _percent(float(ledger.fleet["useful"]) / capacity) if capacity > 0 else "unknown"


def _kept(score: Score) -> float:
    minutes = sum(score.service_minutes.values())
    return sum(score.kept_minutes.values()) / minutes if minutes else math.nan


def _worst(score: Score) -> str:
    if not score.kept:
        return "no service"
    name = min(score.kept, key=lambda n: (score.kept[n], n))
    return f"{name} {_percent(score.kept[name], 1)}"


def _verdict(before: Score, after: Score) -> str:
    fewer = [n for n in before.kept if after.kept_minutes[n] < before.kept_minutes[n]]
    return f"fewer kept minutes: {', '.join(sorted(fewer))}" if fewer else "no service kept fewer minutes"


def _factor(before: Score, after: Score) -> str:
    return f"{after.useful_ratio / before.useful_ratio:.2f} times" if before.useful_ratio > 0 else ""


def _percent(ratio: float, digits: int = 1) -> str:
    return "unknown" if math.isnan(ratio) else f"{100 * ratio:.{digits}f} %"


def _span(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
