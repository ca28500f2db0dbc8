"""The Fragmentation page: what is free, what of it serves nobody, how cards are cut, what still fits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pandas as pd

from analyzer.facts import hardware_facts, to_float
from analyzer.findings import Finding
from analyzer.fleet_verdicts import FLEET_CODES
from analyzer.ledger import Ledger
from analyzer.mig import Board, Instance, MigMeasure, board_of, layout_faults, measure
from analyzer.mig import layouts as possible_layouts
from collector.schema import NOBODY, UNKNOWN
from dashboard.cli.output import clean as printable
from dashboard.views import svg
from dashboard.views.fleet import card_name, current_holdings, short_model
from dashboard.views.palette import tenant_colours
from dashboard.views.reading import Look
from dashboard.views.text import NO_DATA, percent

NOTHING = "nothing"
_SHOWN_CARDS = 0.05  # less is noise of rounding


@dataclass(frozen=True, slots=True)
class CutCard:
    """A MIG card: its drawing, what it can still give in words, and why it cannot be drawn (empty: it can)."""

    name: str
    layout: svg.Layout | None
    largest: str
    stranded_slices: int
    words: str
    placed: bool = False  # where its instances begin was told


def cut_cards(look: Look, cards: pd.DataFrame, holdings: pd.DataFrame, facts: pd.DataFrame) -> list[CutCard]:
    """Return the MIG cards as they are cut now.

    Where an instance begins is read from fact `placement`; where that is not known, of all layouts that the instances
    can have the least stranded one is drawn and called so.
    """
    late = look.newest - timedelta(minutes=5)
    current = current_holdings(holdings[holdings["kind"] == "mig"], late)
    starts = hardware_facts(facts, "slice", "placement")
    colours = tenant_colours(t for t in holdings["tenant"] if t not in (NOBODY, UNKNOWN))
    found = []
    for card in cards.sort_values(["cluster", "node", "index", "gpu"]).to_dict("records"):
        own = current[(current["node"] == card["node"]) & (current["gpu"] == card["gpu"])]
        if len(own):
            found.append(_cut(card, own, starts, colours))
    return found


def largest_instance(cut: Sequence[CutCard]) -> str:
    """Return the profile with most compute slices that still fits on some card; empty: no card's layout is known."""
    fitting = {card.largest for card in cut if card.layout is not None}
    return max(
        fitting - {NOTHING}, key=lambda name: (int(name.split("g")[0]), name), default=NOTHING if fitting else ""
    )


def _cut(
    card: Mapping[Any, Any],
    own: pd.DataFrame,
    starts: Mapping[tuple[str, str, str, str], str],
    colours: Mapping[str, str],
) -> CutCard:
    name = printable(card_name(card))
    rows = own.sort_values("slice").to_dict("records")
    board = board_of(str(card["model"]), {str(r["profile"]) for r in rows})
    if board is None or board.placements == "unknown" or any(r["profile"] not in board.profiles for r in rows):
        return CutCard(name, None, "", 0, f"no placement table for {printable(str(card['model'])) or 'this card'}")
    told = [to_float(starts.get((r["cluster"], r["node"], r["gpu"], r["slice"]))) for r in rows]
    known = not any(math.isnan(start) for start in told)
    placed = _place(board, [str(r["profile"]) for r in rows], told if known else None)
    if placed is None:
        return CutCard(name, None, "", 0, "these instances cannot lie together on the board that its model names")
    measured = measure(board, placed)
    largest = measured.largest_placeable or NOTHING
    free = measured.free_memory_slices
    words = f"{free} of {board.memory_slices} memory slices free, {measured.stranded_memory_slices} stranded"
    layout = svg.Layout(
        title=f"{name}  {short_model(str(card['model']))}",
        note=f"still fits: {largest}",
        slices=board.memory_slices,
        cells=tuple(_cells(board, rows, placed, colours)),
        blocked=_blocked(board, placed, measured),
    )
    return CutCard(name, layout, largest, measured.stranded_memory_slices, words, known)


def _place(board: Board, profiles: Sequence[str], starts: Sequence[float] | None) -> tuple[Instance, ...] | None:
    if starts is not None:
        layout = tuple(Instance(p, int(s)) for p, s in zip(profiles, starts, strict=True))
        return None if layout_faults(board, layout) else layout
    return min(
        possible_layouts(board, profiles),
        key=lambda layout: (measure(board, layout).stranded_memory_slices, layout),
        default=None,
    )


def _cells(
    board: Board,
    rows: Sequence[Mapping[Any, Any]],
    placed: Sequence[Instance],
    colours: Mapping[str, str],
) -> list[svg.Cell]:
    left = list(placed)
    cells = []
    for row in rows:
        instance = next(i for i in left if i.profile == row["profile"])
        left.remove(instance)
        profile = board.profiles[instance.profile]
        held = row["tenant"] != NOBODY
        label = str(row["workload"]) if held else "free"
        colour = colours.get(str(row["tenant"]), "#6d7a88") if held else ""
        cells.append(svg.Cell(instance.start, profile.size, profile.compute, label, colour))
    return cells


def _blocked(board: Board, placed: Sequence[Instance], measured: MigMeasure) -> frozenset[int]:
    """Return the free memory slices that no further instance of any plain profile can cover."""
    taken = {s for i in placed for s in range(i.start, i.start + board.profiles[i.profile].size)}
    usable = {
        slot
        for name, found in measured.per_profile.items()
        if found.placeable and board.profiles[name].plain
        for start in found.feasible_starts
        for slot in range(start, start + board.profiles[name].size)
    }
    return frozenset(range(board.memory_slices)) - taken - usable


def free_pieces(look: Look, cards: pd.DataFrame, holdings: pd.DataFrame) -> pd.DataFrame:
    """Return a row a card that is not cut: `card`, `node`, `free` (share that nobody holds; NaN: not known)."""
    late: datetime = look.newest - timedelta(minutes=5)
    current = current_holdings(holdings, late)
    held = current[current["tenant"] != NOBODY]
    rows = []
    for card in cards.sort_values(["cluster", "node", "index", "gpu"]).to_dict("records"):
        mine = held[(held["node"] == card["node"]) & (held["gpu"] == card["gpu"])]
        if (mine["kind"] == "mig").any() or pd.isna(card["last_seen"]) or card["last_seen"] < late:
            continue
        unknown = mine["quota"].isna().any() or mine["quota_estimated"].any()
        free = math.nan if unknown else max(1.0 - float(mine["quota"].sum()), 0.0)
        rows.append((printable(card_name(card)), str(card["node"]), free))
    return pd.DataFrame(rows, columns=["card", "node", "free"])


def idle_capacity(ledger: Ledger, names: Mapping[str, str]) -> pd.DataFrame:
    """Return what nobody held, a row a card: `card`, `free`, `stranded` (percent of the card over the range)."""
    table = ledger.gpus
    return pd.DataFrame(
        {
            "card": [printable(names.get(str(gpu), str(gpu))) for gpu in table["gpu"]],
            "free": (100 * table["free"] / table["capacity"]).to_numpy(),
            "stranded": (100 * table["stranded"] / table["capacity"]).to_numpy(),
        }
    ).sort_values("card", ignore_index=True)


def fleet_shares(ledger: Ledger) -> dict[str, float]:
    """Return `idle` (held by nobody, of all capacity) and `stranded_of_idle`; NaN without capacity."""
    capacity = float(ledger.fleet["capacity"])
    free, stranded = float(ledger.fleet["free"]), float(ledger.fleet["stranded"])
    idle = free + stranded
    return {
        "idle": idle / capacity if capacity > 0 else math.nan,
        "stranded_of_idle": stranded / idle if idle > 0 else math.nan,
    }


CAUSES = {
    "gpu_share": "pieces too small",
    "cpu": "no CPU on the node",
    "cpu_and_gpu_share": "neither CPU nor share",
    "gpu_type": "card type not asked for",
    "gpu_memory": "no memory on the card",
    "task_without_gpu": "requests without a card",
    "task_without_gpu_cpu": "requests without a card, no CPU",
}


def fleet_picture(findings: Sequence[Finding]) -> list[Finding]:
    """Return of each cluster one finding that carries the whole picture of its cards that are not cut."""
    found: dict[str, Finding] = {}
    for finding in findings:
        if finding.code in FLEET_CODES and "rooms" in finding.evidence:
            found.setdefault(finding.subjects[0].cluster, finding)
    return [found[cluster] for cluster in sorted(found)]


def demand_table(evidence: Mapping[str, Any]) -> pd.DataFrame:
    """Return the demand mix of a TT211 to TT214: `request`, `part` of the mix, `fits`, `waiting`, `for want of`."""
    rows = [
        (
            printable(str(d["request"])),
            percent(d["part"], 1),
            {True: "yes", False: "no"}.get(d["fits"], NO_DATA),
            d.get("waiting", 0),
            ", ".join(d.get("lost_for", ())) or ("several together" if d["fits"] is False else ""),
        )
        for d in evidence["demand"]
    ]
    return pd.DataFrame(rows, columns=["request", "part", "fits", "waiting", "for want of"])


def rooms_table(evidence: Mapping[str, Any]) -> pd.DataFrame:
    """Return what still fits, a row a pool and card model."""
    rows = [
        (
            printable(str(room["pool"])),
            printable(short_model(str(room["model"]))) or NO_DATA,
            room["cards"],
            round(room["free_cards"], 1),
            percent(room["largest_piece"]),
            room["most_whole_cards"],
            percent(room["fits_part"]),
            printable(str(room["biggest_placeable"] or NOTHING)),
        )
        for room in evidence["rooms"]
    ]
    columns = [
        "pool",
        "model",
        "cards",
        "free",
        "largest piece",
        "whole on a node",
        "of the mix fits",
        "biggest that fits",
    ]
    return pd.DataFrame(rows, columns=columns)


def lost_causes(evidence: Mapping[str, Any]) -> pd.DataFrame:
    """Return why free share serves nobody: `why`, `of free share` (percent of it), the largest first."""
    free = float(evidence["free_cards"])
    causes = sorted(evidence["by_cause_cards"].items(), key=lambda item: -item[1])
    rows = [(CAUSES.get(cause, cause), 100 * cards / free) for cause, cards in causes if free > 0]
    return pd.DataFrame(rows, columns=["why", "of free share"])


def dimensions_text(evidence: Mapping[str, Any]) -> str:
    """Return which idle amounts lack another dimension, in words; empty: none does, or nobody knows."""
    parts = []
    beside = evidence["compute_without_memory_cards"]
    if beside is not None and beside >= _SHOWN_CARDS:
        parts.append(f"{beside:.1f} cards' worth of compute lie beside full memory")
    memory = evidence["memory_without_compute_bytes"]
    if memory is not None and memory >= 2**30:
        parts.append(f"{memory / 2**30:,.0f} GiB of memory lie beside compute that is given away")
    starved = evidence["compute_without_cpu_cards"]
    if starved is not None and starved >= _SHOWN_CARDS:
        parts.append(f"{starved:.1f} cards' worth lie on nodes without CPU for any request")
    return "; ".join(parts)
