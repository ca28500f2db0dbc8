"""What nobody holds at the end of the window, and whose quota could go to whom."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.report.capacity import FreeLine, MoveLine
from dashboard.report.gathered import Gathered
from dashboard.report.view import MOST_ROWS, Block, Note, Section, Table, more, numbers, prose, text
from dashboard.report.words import amount
from dashboard.views.names import card_names, named
from dashboard.views.text import gib, number, percent, stamp


def build_free(gathered: Gathered) -> tuple[FreeLine, ...]:
    """Return the cards, shares and instances that nobody holds, the largest first."""
    names = card_names(gathered.facts)
    return tuple(
        FreeLine(
            card=names.get(f.gpu, f"{f.node} {f.gpu}"),
            piece=f.profile or ("whole card" if f.share >= 1 else "share"),
            model=f.model,
            share_ratio=f.share,
            memory_bytes=f.memory_bytes,
            since=f.since,
        )
        for f in gathered.analysis.free
    )


def build_moves(gathered: Gathered) -> tuple[MoveLine, ...]:
    """Return the quota moves that findings and queues ask for."""
    names = card_names(gathered.facts)
    return tuple(
        MoveLine(
            donor="/".join(filter(None, (m.donor_tenant, m.donor_workload))),
            receiver="/".join(filter(None, (m.receiver_tenant, m.receiver_workload))),
            place=named(m.place, names),
            unit=m.unit,
            lower=m.lower,
            target=m.target,
            upper=m.upper,
            why=m.why,
        )
        for m in gathered.analysis.moves
    )


def free_section(free: Sequence[FreeLine], moves: Sequence[MoveLine]) -> Section:
    """Show what is free at the end of the window, and the moves."""
    title = "Free now, and quota that could move"
    blocks: list[Block] = []
    if free:
        blocks.append(
            Table(
                (*text("card", "piece"), *numbers("share", "memory"), *text("since", "model")),
                tuple(
                    (f.card, f.piece, percent(f.share_ratio), gib(f.memory_bytes), stamp(f.since), f.model)
                    for f in free[:MOST_ROWS]
                ),
                "Held by nobody at the end of the window",
                more(len(free), "place"),
            )
        )
    else:
        blocks.append(Note("Every share of every card is held."))
    if moves:
        blocks.append(
            Table(
                (*text("from", "to", "where"), *numbers("how much"), *prose("why")),
                tuple((m.donor, m.receiver, m.place, _much(m), m.why) for m in moves[:MOST_ROWS]),
                "Quota moves: a target between a lower and an upper bound, which little history widens",
                more(len(moves), "move"),
            )
        )
    return Section("free", title, tuple(blocks))


def _much(move: MoveLine) -> str:
    if move.unit == "ratio":
        target, lower, upper = (amount(v, "ratio") for v in (move.target, move.lower, move.upper))
    else:
        target, lower, upper = number(move.target, move.unit), number(move.lower), number(move.upper)
    return f"{target} ({lower} to {upper})"
