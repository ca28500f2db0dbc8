"""What could not be analysed, and how complete the rows are that everything rests on."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from analyzer.codes import codes
from collector.words import plural
from dashboard.report.gathered import Gathered
from dashboard.report.model import CardCoverage, QualityPart, RejectLine, Unanalysed
from dashboard.report.view import MOST_ROWS, Block, Cell, Note, Section, Table, Tone, more, numbers, prose, text
from dashboard.views.text import number, percent

_POOR = 0.95
_ABOUT = re.compile(r"^.* against it: ")  # a pair's reason names its suspect: thousands of them are one reason
_FIGURE = re.compile(r"\d+(\.\d+)?( ?%)?")


def build_quality(gathered: Gathered) -> QualityPart:
    """Count samples, rejects, events, and what was withheld."""
    analysis, census = gathered.analysis, gathered.analysis.census
    expected = analysis.window.seconds / gathered.interval_seconds
    samples = gathered.samples[["cluster", "node", "gpu", "samples"]].itertuples(index=False, name=None)
    cards = [CardCoverage(str(c), str(n), str(g), min(float(count) / expected, 1.0)) for c, n, g, count in samples]
    rejects = [
        RejectLine(
            str(rows["field"].iloc[0]),
            str(rows["reason"].iloc[0]),
            len(rows[["cluster", "node", "gpu", "slice", "object"]].drop_duplicates()),
            float(rows["count"].sum()),
        )
        for _, rows in gathered.rejects.groupby(["field", "reason"], sort=True)
    ]
    return QualityPart(
        nodes=census.nodes,
        cards=census.cards,
        slices=census.slices,
        coverage=float(np.mean([c.coverage for c in cards])) if cards else math.nan,
        worst=tuple(
            sorted((c for c in cards if c.coverage < _POOR), key=lambda c: (c.coverage, c.cluster, c.node, c.gpu))
        ),
        rejects=tuple(sorted(rejects, key=lambda r: (-r.count, r.field, r.reason))),
        events={str(code): int(count) for code, count in gathered.events.groupby("code").size().to_dict().items()},
        unanalysed=tuple(
            Unanalysed(c.code, codes()[c.code].title, c.subjects, c.analysed, c.withheld, c.not_applicable, c.reasons)
            for c in census.codes
        ),
        undeclared=tuple(
            f"{t}/{w}" for (_, t, w), promise in sorted(analysis.declarations.items()) if not promise.declared
        ),
    )


def census_section(quality: QualityPart, suppressed: int, idle_suppressions: Sequence[str] = ()) -> Section:
    """Show for each code how many subjects it spoke of, and why not of the others; and suppressions of no use."""
    fleet = ", ".join(
        plural(count, word)
        for count, word in ((quality.nodes, "node"), (quality.cards, "card"), (quality.slices, "slice"))
    )
    blocks: list[Block] = [
        Note(f"{fleet} were there at some time."),
        Table(
            (*text("code", "speaks of"), *numbers("analysed", "withheld", "not meant"), *prose("why not, most often")),
            tuple(_census_row(u) for u in quality.unanalysed),
        ),
    ]
    if suppressed:
        blocks.append(Note(f"{plural(suppressed, 'finding')} that somebody suppressed are not listed above."))
    if idle_suppressions:
        blocks.append(Note(f"Suppressions to look at: {'; '.join(idle_suppressions)}."))
    return Section("census", "What could not be analysed", tuple(blocks))


def _census_row(u: Unanalysed) -> tuple[Cell, ...]:
    why: Counter[str] = Counter()
    for reason, count in u.reasons.items():
        why[_FIGURE.sub("…", _ABOUT.sub("", reason))] += count
    most = sorted(why.items(), key=lambda item: (-item[1], item[0]))[:2]
    words = "; ".join(f"{reason} ({count})" for reason, count in most)
    return (u.code, u.title, f"{u.analysed:,} of {u.subjects:,}", f"{u.withheld:,}", f"{u.not_applicable:,}", words)


def quality_section(quality: QualityPart) -> Section:
    """Show gaps, rejected samples and events."""
    tone: Tone = "good" if quality.coverage >= 0.98 else "fair" if quality.coverage >= 0.9 else "poor"
    there = percent(quality.coverage, 1)
    blocks: list[Block] = [
        Note(f"{there} of the samples that the cards should have given are there.", tone)
        if not math.isnan(quality.coverage)
        else Note("No card gave a sample.", "poor")
    ]
    if quality.worst:
        blocks.append(
            Table(
                (*text("card"), *numbers("samples there")),
                tuple((f"{c.node}/{c.gpu}", percent(c.coverage, 1)) for c in quality.worst[:MOST_ROWS]),
                "Cards with gaps",
                more(len(quality.worst), "card"),
            )
        )
    if quality.rejects:
        blocks.append(
            Table(
                (*text("field", "reason"), *numbers("subjects", "samples")),
                tuple((r.field, r.reason, number(r.subjects), number(r.count)) for r in quality.rejects[:MOST_ROWS]),
                "Samples that were turned away",
                more(len(quality.rejects), "reason"),
            )
        )
    if quality.events:
        counts = ", ".join(f"{code.replace('_', ' ')} {count}" for code, count in sorted(quality.events.items()))
        blocks.append(Note(f"Events: {counts}."))
    return Section("quality", "How good the data is", tuple(blocks))
