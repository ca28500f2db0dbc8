"""The catalogue of finding codes: what each claims, how it is computed, how it can be wrong, what to do.

`python -m analyzer.codes DIR` writes one Markdown page a code and an index (docs/codes).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from analyzer.settings import AnalyzeSettings


class Scope(StrEnum):
    """What a code speaks of; the census counts these."""

    SLICE = "slice"
    CARD = "card"
    FLEET = "cluster"


@dataclass(frozen=True, slots=True)
class Code:
    """One finding code. `settings` are keys of `[analyze]`; `fixed` are thresholds that nobody needs to set."""

    code: str
    title: str
    scope: Scope
    claim: str
    computed: str = ""
    settings: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    risk: str = ""
    action: str = ""
    implemented: bool = True


NOT_THERE_YET = "Not there yet: this code is reserved, nothing computes it, and no finding carries it."

_FAMILIES = {
    "TT1": "Contention",
    "TT2": "Fragmentation and stranded capacity",
    "TT3": "Idle and wrong-sized",
    "TT4": "Bottlenecks",
    "TT5": "Forecast risk",
    "TT6": "Health",
}


def _later(code: str, title: str, scope: Scope, claim: str) -> Code:
    return Code(code, title, scope, claim, computed=NOT_THERE_YET, implemented=False)


_ALL = (
    Code(
        "TT101",
        "One slice hurts another on the same card",
        Scope.SLICE,
        "While the suspect is active, the victim's time per unit of work is longer than its own load, the clock, the time "
        "of day and the other slices of the card explain.",
        computed="For every directed pair on one card: the logarithm of the victim's time per unit of work, with load, time "
        "of day, trend, clock and the other slices' activity projected out, is correlated with the suspect's remaining "
        "activity over a few lags. The p-value comes from shifting the suspect in time; false discoveries are held down "
        "over the whole fleet. Pairs whose evidence rests on one event, runs the other way round, or is explained better by "
        "a third slice, are not claimed.",
        settings=("fdr", "contention_effect_floor", "coverage_floor"),
        risk="Two things that always happen within the same interval cannot be told apart by watching: a suspect that reacts "
        "at once to the victim's slowness looks guilty. An antagonist that never varies is not seen.",
        action="Confirm it where it matters: throttle the suspect for a few minutes and look at the victim. Then move one of "
        "the two to another card, lower the suspect's share or priority, or give the victim a MIG instance of its own.",
    ),
    _later(
        "TT102",
        "One slice hurts another across a node",
        Scope.SLICE,
        "Two slices of different cards of a node fight over PCIe, NVLink or the host.",
    ),
    _later(
        "TT111",
        "These two must not share a card",
        Scope.SLICE,
        "The cost of sharing between two workloads is above what their promises allow, on every card they met on.",
    ),
    _later(
        "TT112",
        "Sharing costs this workload too much",
        Scope.SLICE,
        "A workload loses more by sharing a card, with whomever, than it saves.",
    ),
    Code(
        "TT211",
        "Fleet demand that no longer fits: share",
        Scope.FLEET,
        "Part of what people ask for fits on no card any more, although the fleet has enough free share in all: what is free "
        "lies in pieces that are too small.",
        computed="The demand mix is what pods asked for in the window, weighed by how often. What is free on each card is what "
        "no holder's quota covers, at the end of the window. The measure is FGD: for each kind of request, all free share "
        "of a node that cannot run it, else the pieces too small for it; weighed by the mix. Causes (share, CPU, type) "
        "are kept apart. It holds when kinds of request that make up the named part of the mix would fit by the sum of "
        "free share and fit on no node; it is suspected when they still fit, but most of the free share serves nobody.",
        fixed=("5 % of the mix must have lost its place", "suspected from a fragment of 50 % of the free share on"),
        risk="The mix is the past; a request that was never made because everybody knows it does not fit is not in it. Cards "
        "whose holders' quotas are not known are left out.",
        action="Pack small requests onto the fullest cards, right-size what is over-provisioned (TT311) on the card that is "
        "nearest to a whole rest, or wait for the work that ends next there.",
    ),
    _later(
        "TT212",
        "Fleet demand that no longer fits: CPU",
        Scope.FLEET,
        "Free cards cannot be used because their node's CPU is given away.",
    ),
    _later(
        "TT213", "Fleet demand that no longer fits: type", Scope.FLEET, "Free cards are of types that nobody asks for."
    ),
    _later(
        "TT214",
        "Fleet demand that no longer fits: memory",
        Scope.FLEET,
        "Free share cannot be used because the card's memory is given away.",
    ),
    Code(
        "TT221",
        "MIG: stranded slices",
        Scope.CARD,
        "Memory or compute slices of this card can be used by no further instance, or a profile that is asked for does not "
        "fit although there are slices enough for it.",
        computed="Exact, from the board's placement table: all starts at which each profile still fits beside the instances "
        "that exist. Stranded memory is what no placement covers; stranded compute what no set of placements takes; "
        "placement fragmentation of a profile is 1 - placeable / possible by capacity, weighed by the profiles that pods "
        "asked for. Where instances begin is often not exported: then all layouts that hold these instances are tried, "
        "and the claim holds only if it holds in the best of them (else it is suspected).",
        fixed=("one slice stranded, or 10 % placement fragmentation of the demand",),
        risk="Some stranding comes with the layout itself: seven 1g instances always leave one memory slice. Placement tables "
        "of some boards are assumed from their sisters; the evidence says so.",
        action="Move the fewest instances that the evidence names (their work stops meanwhile), or choose another layout when "
        "the card is next empty: 1g and 3g from the high end, 2g and 4g from the low end.",
    ),
    _later("TT222", "MIG: a better layout", Scope.CARD, "Another layout would serve the demand mix better."),
    _later(
        "TT223", "MIG: re-cut", Scope.CARD, "The mix has changed for good: another set of profiles is worth a drain."
    ),
    _later(
        "TT231",
        "Memory oversubscribed",
        Scope.CARD,
        "More memory is granted on a card than it has, and its holders come near to using it.",
    ),
    _later("TT232", "Memory over-reserved", Scope.SLICE, "A framework keeps far more memory than it uses."),
    _later("TT233", "Ghost memory", Scope.CARD, "Memory is in use that no living process accounts for."),
    _later(
        "TT241",
        "The allocator fragments",
        Scope.SLICE,
        "A framework holds free memory that it can neither use nor return.",
    ),
    _later("TT242", "Releasable memory", Scope.SLICE, "A framework holds whole free segments that it could give back."),
    _later("TT243", "Key-value cache", Scope.SLICE, "A server's key-value cache is the limit, or is mostly empty."),
    Code(
        "TT301",
        "Idle and held",
        Scope.SLICE,
        "Somebody holds this slice and has not used it for a long time, up to now.",
        computed="The stretch without activity that reaches to the newest sample. Activity is the slice's own: of its own share "
        "of the SMs for MIG and whole cards, the time share of its processes elsewhere; a request served is activity too. "
        "Missing samples are neither: the stretch must be covered by samples. What the workload keeps on purpose (its "
        "declared floor, the forecast's upper quantile) is reserve and is not counted as waste.",
        settings=("idle_activity", "idle_minutes", "coverage_floor"),
        risk="Work that comes less often than the stretch is long looks idle; so does work that runs only between two samples.",
        action="Ask the holder, with the command in the evidence at hand. Then scale it down, or give it a smaller slice, or "
        "let offline work run there at a lower priority.",
    ),
    _later(
        "TT302",
        "Zombie or abandoned",
        Scope.SLICE,
        "A slice is held by a process whose client is gone, or by nobody who answers.",
    ),
    Code(
        "TT311",
        "Compute over-provisioned",
        Scope.SLICE,
        "The slice's peak use is far below its quota; the named share would do.",
        computed="Peak is the 99 % quantile of use over the window (nearest rank). Lower, target and upper are the Vertical Pod "
        "Autoscaler's: 50 %, 90 % and 95 % of use with a margin of 15 %, for an online or undeclared workload the 99 % as "
        "target; with N days of history the upper bound is multiplied by 1 + 1/N, the lower by (1 + 0.001/N)^-2. It holds "
        "when even the upper bound is below the quota, else it is suspected. Under a vGPU layer use is the time share that "
        "the layer throttles by. A MIG instance is compared with the smaller profiles of its board.",
        settings=("over_provisioned_share", "coverage_floor"),
        fixed=("60 samples at least",),
        risk="A rhythm longer than the window (a month's end) is not in it. A smaller share can make requests queue at a load "
        "at which they do not queue now.",
        action="Lower the quota to the target in steps, and look at the objective after each; for MIG, ask for the named profile "
        "at the next restart.",
    ),
    _later("TT312", "Memory over-provisioned", Scope.SLICE, "The slice's memory peak is far below its memory quota."),
    _later(
        "TT313",
        "Under-provisioned",
        Scope.SLICE,
        "The slice works at its quota most of the time and misses its objective.",
    ),
    _later("TT314", "Starved", Scope.SLICE, "The slice gets less than its quota although it asks for it."),
    _later(
        "TT321", "Wrong granularity", Scope.SLICE, "Another sharing kind or profile would serve this workload better."
    ),
    Code(
        "TT401",
        "Limited by compute",
        Scope.SLICE,
        "While it works, this slice is limited by its compute units.",
        computed="Windows of ten minutes with at least 80 % of their samples, of those in which it works. In each: the busiest "
        "pipe against 60 % and SM activity against 80 %, both of the slice's own share; the lesser of the two is the "
        "compute score. The highest score of all classes names the window if it reaches 1; it must hold for two windows in "
        "a row, and gives way only to a class that is 5 points better. The finding needs half of the working windows.",
        settings=("coverage_floor",),
        fixed=("pipe 60 %, SM activity 80 %", "memory interface 75 % of the reachable 80 %, 10 points above the pipes"),
        risk="Counters tell that units are busy, not that the work is needed: a spin-wait is busy too. Under MPS, time slicing "
        "and vGPU the counters are the card's.",
        action="More SMs help: a larger profile or share. Lower precision or a better kernel helps more.",
    ),
    Code(
        "TT402",
        "Limited by memory bandwidth",
        Scope.SLICE,
        "While it works, this slice is limited by the bandwidth of its memory.",
        computed="As TT401. The memory score is the interface's activity over the 80 % that is reachable, against 75 %; it counts "
        "only where it lies at least ten points above the busiest pipe.",
        settings=("coverage_floor",),
        fixed=("memory interface 75 % of the reachable 80 %, 10 points above the pipes",),
        risk="As TT401. The interface of a MIG instance is its own; elsewhere the neighbours' traffic is in it.",
        action="More SMs do not help. Batch more, fuse kernels, use smaller types; keep it away from other bandwidth-hungry "
        "neighbours, or give it MIG memory slices of its own.",
    ),
    _later(
        "TT403",
        "Limited by memory capacity",
        Scope.SLICE,
        "The slice's memory is full and it preempts or fails for it.",
    ),
    _later("TT404", "Limited by transfer", Scope.SLICE, "PCIe or NVLink is the limit."),
    _later("TT405", "Limited by power", Scope.CARD, "The power cap lowers this card's clock."),
    _later("TT406", "Limited by heat", Scope.CARD, "Heat lowers this card's clock."),
    _later("TT407", "Launch-bound", Scope.SLICE, "Latency and kernel launches are the limit; the units wait."),
    _later("TT408", "Small grid", Scope.SLICE, "Kernels are too small for the SMs that the slice has."),
    _later("TT409", "Limited by the host", Scope.SLICE, "The host's CPU or data loading is the limit."),
    _later("TT410", "Limited by its quota", Scope.SLICE, "The slice works at its quota and nothing else limits it."),
    _later("TT501", "Will exceed its quota", Scope.SLICE, "The forecast's upper quantile of demand passes the quota."),
    Code(
        "TT502",
        "Will run out of memory",
        Scope.SLICE,
        "The forecast's upper quantile of this slice's memory use passes its memory quota within the horizon.",
        computed="Memory use is forecast with quantiles, by models that are judged on the past of the same series. The claim is "
        "made where the upper quantile passes the quota at some horizon, and it names the first such instant.",
        risk="A forecast is no promise: its own back-test error stands beside it. A framework that reserves memory up front has "
        "a flat line and never grows into its quota.",
        action="Grow the memory quota before that instant, or make the workload's own limit smaller.",
    ),
    _later("TT503", "Pool will run out", Scope.FLEET, "Demand on a pool will pass what it has."),
    _later("TT504", "Time to exhaustion", Scope.FLEET, "At the present growth the fleet is full by a date."),
    _later(
        "TT511",
        "A rhythm that a calendar rule could serve",
        Scope.SLICE,
        "The load has a rhythm that a rule of hours would serve as well as a forecast.",
    ),
    Code(
        "TT601",
        "XID",
        Scope.CARD,
        "The driver reported an XID error on this card.",
        computed="XID events of the window, one finding a card and number, with severity and first action out of a table. One "
        "that only follows another of the same card within a minute is told with that one. When the same number comes "
        "again within seven days, the advice is the one for a recurring fault.",
        risk="An exporter shows the last XID only, so that one between two scrapes can be missed. A program alone can cause some.",
        action="What the claim says: restart the program, reset the card, or reboot the node. Work is moved away first.",
    ),
    _later(
        "TT602", "Memory errors and row remapping", Scope.CARD, "Memory errors grow, or a remap is pending or failed."
    ),
    _later("TT603", "Throttling", Scope.CARD, "Clocks are lowered for heat or by a power brake."),
    Code(
        "TT604",
        "Lost card",
        Scope.CARD,
        "A card that was there is gone, while its node goes on reporting.",
        computed="Either an event says so and none took it back, or the card has no row for as long as the fixed limit while "
        "other cards or the node itself have. An XID before it is named.",
        fixed=("3 intervals, and 180 s at least",),
        risk="A card taken out on purpose, or one that only its exporter lost, looks the same.",
        action="Its slices are down: move their work. Reboot the node when an XID 79 came before; else look at the exporter.",
    ),
    _later("TT605", "Outlier", Scope.CARD, "A card behaves unlike its equals under the same work."),
    _later("TT606", "Isolation broken", Scope.SLICE, "A slice uses more than its sharing kind should allow."),
    _later("TT607", "Impossible or stuck metric", Scope.CARD, "A metric has values that cannot be, or never moves."),
    _later("TT608", "Blind source", Scope.CARD, "A source answers, but says nothing."),
)

CODES: Mapping[str, Code] = {code.code: code for code in _ALL}


def explain(code: str) -> str:
    """Return the page of a code, in Markdown.

    Raises:
        KeyError: there is no such code.
    """
    name = code.strip().upper()
    if name not in CODES:
        raise KeyError(f"expected a finding code such as TT101, got {code!r}; known: {', '.join(CODES)}")
    return page(CODES[name])


def page(code: Code) -> str:
    """Return a code's page, in Markdown."""
    parts = [f"# {code.code}: {code.title}", f"Speaks of: a {code.scope.value}.", "## What it claims", code.claim]
    if not code.implemented:
        return "\n\n".join([*parts, NOT_THERE_YET]) + "\n"
    parts += ["## How it is computed", code.computed]
    limits = [f"- `[analyze] {name}` = {_default(name)}: {_about(name)}" for name in code.settings]
    limits += [f"- fixed: {text}" for text in code.fixed]
    if limits:
        parts += ["## Thresholds", "\n".join(limits)]
    parts += ["## How it can be wrong", code.risk, "## What to do", code.action]
    return "\n\n".join(parts) + "\n"


def _default(name: str) -> str:
    return str(AnalyzeSettings.model_fields[name].default)


def _about(name: str) -> str:
    return AnalyzeSettings.model_fields[name].description or ""


def pages() -> dict[str, str]:
    """Return file name -> text of all pages and their index."""
    found = {f"{code.code}.md": page(code) for code in CODES.values()}
    lines = ["# Finding codes", "", "Generated from `analyzer/codes.py`. A code is never reused or renamed."]
    for prefix, family in _FAMILIES.items():
        lines += ["", f"## {prefix}xx: {family}", "", "| code | claim | there |", "|---|---|---|"]
        lines += [
            f"| [{c.code}]({c.code}.md) | {c.title} | {'yes' if c.implemented else 'not yet'} |"
            for c in CODES.values()
            if c.code.startswith(prefix)
        ]
    found["README.md"] = "\n".join(lines) + "\n"
    return found


def write_pages(folder: Path) -> None:
    """Write all pages into `folder`, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/codes"))
