"""TT221: stranded slices of one cut (MIG) card."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analyzer.demand import Demand, type_allows
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.mig import Board, Instance, MigMeasure, board_of, fewest_moves, layout_faults, layouts, measure
from analyzer.protocols import Context, Withheld

_PLACEMENT = 0.1  # placement fragmentation of the demand that is reported


@dataclass(frozen=True, slots=True)
class SeenInstance:
    """A GPU instance as telemetry tells it; `start` is None where nobody says where it begins."""

    slice: str
    profile: str
    start: int | None
    held: bool
    tenant: str
    workload: str


@dataclass(frozen=True, slots=True)
class SeenCard:
    """A cut card: its board, its instances, and all layouts that these can have."""

    row: Mapping[str, Any]
    board: Board
    instances: tuple[SeenInstance, ...]
    possible: tuple[tuple[Instance, ...], ...]

    @property
    def placed(self) -> bool:
        """Whether the layout is told."""
        return len(self.possible) == 1

    @property
    def name(self) -> str:
        """The card, as people find it."""
        return f"{self.row['gpu']} on {self.row['node']}"


def read_card(row: Mapping[str, Any]) -> SeenCard | str:
    """Return a cut card of `FragmentationDetector.measure`, or why it cannot be judged."""
    instances = tuple(SeenInstance(*fields) for fields in json.loads(row["instances"]))
    profiles = [i.profile for i in instances]
    if not all(profiles):
        return "an instance's profile is not known (fact `profile`)"
    board = board_of(row["model"], profiles)
    if board is None or board.placements == "unknown" or any(p not in board.profiles for p in profiles):
        return f"no placement table for {row['model'] or 'a card without a model name'}"
    possible = _possible_layouts(board, instances)
    if not possible:
        return "these instances cannot lie together on the board that the model name tells"
    return SeenCard(row, board, instances, tuple(possible))


def _without(row: dict[str, Any], code: str, reason: str, *, applicable: bool = True) -> Withheld:
    return Withheld(code, row["cluster"], row["node"], row["gpu"], "", reason, applicable)


def judge_card(row: dict[str, Any], wanted: Demand, context: Context) -> Finding | Withheld | None:
    """Judge one cut card by itself (TT221); `row` is of `FragmentationDetector.measure`."""
    if row["withheld"]:
        return _without(row, "TT221", row["withheld"])
    seen = read_card(row)
    if isinstance(seen, str):
        return _without(row, "TT221", seen)
    board, instances, possible = seen.board, seen.instances, seen.possible
    asked = Counter(
        {
            wish.profile: count
            for wish, count in wanted.counts.items()
            if wish.profile in board.profiles and type_allows(wish, row["model"])
        }
    )
    total = sum(asked.values())
    mix = {profile: count / total for profile, count in sorted(asked.items())}
    measured = [(measure(board, layout, mix), layout) for layout in possible]
    best, layout = min(measured, key=lambda m: _badness(board, m[0]))
    worst, _ = max(measured, key=lambda m: _badness(board, m[0]))
    unwanted = [i.profile for i in instances if not i.held and mix and i.profile not in mix]
    if not unwanted and not _bad(worst):
        return None
    verdict = Verdict.HOLDS if unwanted or _bad(best) else Verdict.SUSPECTED
    return make_finding(
        "TT221",
        verdict,
        (SubjectRef(Role.SUBJECT, row["cluster"], row["node"], row["gpu"]),),
        context.window,
        claim=_mig_claim(row, board, best if verdict is Verdict.HOLDS else worst, unwanted),
        risk="some stranding comes with the layout itself; where instances begin is often not exported",
        confidence=(0.95 if verdict is Verdict.HOLDS else 0.5) * (1.0 if board.placements == "published" else 0.85),
        coverage=1.0,
        effect=Effect(
            _stranded(board, best, unwanted),
            "ratio",
            _stranded(board, best, unwanted),
            _stranded(board, worst, unwanted),
        ),
        evidence={
            "board": board.name,
            "placements": board.placements,
            "instances": [[i.slice, i.profile, i.start, i.held] for i in instances],
            "layouts_possible": len(possible),
            "best": mig_evidence(best),
            "worst": mig_evidence(worst),
            "demand": mix,
            "unheld_not_asked_for": unwanted,
            "moves": _moves(board, layout, best, mix),
        },
        simulated=context.simulated,
    )


def _possible_layouts(board: Board, instances: Sequence[SeenInstance]) -> list[tuple[Instance, ...]]:
    told = [Instance(i.profile, i.start) for i in instances if i.start is not None]
    if len(told) == len(instances):
        return [] if layout_faults(board, told) else [tuple(told)]
    fixed = Counter(told)
    every = layouts(board, [i.profile for i in instances])
    return [layout for layout in every if fixed <= Counter(layout)]


def _bad(measured: MigMeasure) -> bool:
    stranded = measured.stranded_memory_slices + measured.stranded_compute_slices
    return stranded > 0 or measured.mix_placement_fragmentation >= _PLACEMENT


def _badness(board: Board, measured: MigMeasure) -> tuple[float, float]:
    stranded, misplaced = _stranded(board, measured, []), measured.mix_placement_fragmentation
    return max(stranded, misplaced), stranded + misplaced


def _stranded(board: Board, measured: MigMeasure, unwanted: Sequence[str]) -> float:
    """Return the part of the card that is stranded: of its memory or of its compute slices, whichever is more."""
    memory = measured.stranded_memory_slices + sum(board.profiles[p].size for p in unwanted)
    compute = measured.stranded_compute_slices + sum(board.profiles[p].compute for p in unwanted)
    return max(memory / board.memory_slices, compute / board.compute_slices)


def _mig_claim(row: dict[str, Any], board: Board, measured: MigMeasure, unwanted: Sequence[str]) -> str:
    parts = []
    if measured.stranded_memory_slices:
        parts.append(f"{measured.stranded_memory_slices} of {board.memory_slices} memory slices")
    if measured.stranded_compute_slices:
        parts.append(f"{measured.stranded_compute_slices} of {board.compute_slices} compute slices")
    text = [f"{' and '.join(parts)} can be used by no further instance"] if parts else []
    if unwanted:
        text.append(f"{', '.join(unwanted)} is held by nobody and asked for by nobody")
    if measured.mix_placement_fragmentation >= _PLACEMENT:
        lost = f"{measured.mix_placement_fragmentation:.0%}"
        text.append(f"{lost} of what is asked for would fit if the free slices lay elsewhere")
    return f"{row['gpu']} on {row['node']}: {'; '.join(text)}"


def mig_evidence(measured: MigMeasure) -> dict[str, Any]:
    """Return what a card can still give as JSON values."""
    return {
        "free_memory_slices": measured.free_memory_slices,
        "free_compute_slices": measured.free_compute_slices,
        "stranded_memory_slices": measured.stranded_memory_slices,
        "stranded_compute_slices": measured.stranded_compute_slices,
        "largest_placeable": measured.largest_placeable,
        "capability": measured.capability,
        "mix_unusable_ratio": measured.mix_unusable_ratio,
        "mix_placement_fragmentation": measured.mix_placement_fragmentation,
        "placeable": {name: m.placeable for name, m in measured.per_profile.items()},
    }


def _moves(
    board: Board, layout: Sequence[Instance], measured: MigMeasure, mix: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Return, for each profile that is asked for and fits by capacity alone, the fewest instances to move."""
    found = []
    for profile in sorted(mix, key=lambda name: -mix[name]):
        m = measured.per_profile[profile]
        if m.by_capacity and not m.placeable:
            found.append({"profile": profile, "fewest_moves": fewest_moves(board, layout, profile)})
    return found
