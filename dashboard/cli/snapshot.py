"""`trimtab analyze fragmentation --snapshot FILE`: what is stranded in a cluster, from one look at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collector.errors import InputRejectedError
from collector.words import plural
from dashboard.cli.output import note, print_json, print_table, say
from dashboard.views.text import percent

if TYPE_CHECKING:
    from analyzer.snapshot import Snapshot, SnapshotAnalysis

_MOST_REJECTED = 5
_CAUSES = {
    "gpu_share": "share in pieces that are too small",
    "cpu": "no CPU left on the node",
    "cpu_and_gpu_share": "neither CPU nor share",
    "gpu_type": "card type that is not asked for",
    "gpu_memory": "no memory left on the card",
    "task_without_gpu": "requests that want no card",
    "task_without_gpu_cpu": "requests that want no card, and no CPU",
}


def read_snapshots(paths: Sequence[Path]) -> Snapshot:
    """Read the files of a snapshot, plain or gzip.

    Raises:
        InputRejectedError: a file cannot be read, or nothing in it.
    """
    from analyzer.snapshot import Snapshot  # noqa: PLC0415  pandas loads slowly
    from analyzer.snapshot_files import read_snapshot  # noqa: PLC0415
    from collector.importing.text import TextFile, said  # noqa: PLC0415

    whole = Snapshot()
    for path in paths:
        try:
            file = TextFile(path)
            text = file.text()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise InputRejectedError(f"expected a readable file, got {said(path)}: {reason}") from None
        if file.torn:
            raise InputRejectedError(f"expected a whole file, got {said(path)}: {file.torn}")
        whole.add(read_snapshot(text, said(path)))
    if not whole.nodes:
        raise InputRejectedError("expected nodes in the snapshot, found none; see docs/snapshot.md")
    return whole


def print_snapshot(paths: Sequence[Path], now: datetime, *, json: bool) -> SnapshotAnalysis:
    """Analyse a snapshot and print the answer."""
    from analyzer.snapshot import analyse_snapshot, instant_window  # noqa: PLC0415

    snapshot = read_snapshots(paths)
    found = analyse_snapshot(snapshot, instant_window(now))
    if json:
        print_json(found.to_json())
    else:
        _print(found)
    return found


def _print(found: SnapshotAnalysis) -> None:
    from dashboard.cli.analysis_tables import print_findings  # noqa: PLC0415  loads every analyzer

    told = found.snapshot
    for line in told["rejected"][:_MOST_REJECTED]:
        note(f"rejected: {line}")
    if len(told["rejected"]) > _MOST_REJECTED:
        note(f"rejected: {len(told['rejected']) - _MOST_REJECTED} more entries; --json lists them")
    say(
        f"{plural(told['nodes'], 'node')}, {plural(told['cards'], 'card')} ({told['cut_cards']} cut), "
        f"{plural(told['pods'], 'pod')} running, {told['waiting']} waiting"
    )
    for reason, count in told["left_out"].items():
        say(f"left out: {count} x {reason}")
    if told["places_assumed"]:
        say(f"where {plural(told['places_assumed'], 'share')} lie is not told: put on the fullest cards that take them")
    if told["nodes_over_given"]:
        say(f"on {plural(told['nodes_over_given'], 'node')} more is given than there is")
    if found.fragmentation is not None:
        _print_fleet(found.fragmentation)
    elif told["cards"] > told["cut_cards"]:
        say("nothing is asked for: without requests or pods there is no measure of what fits")
    if found.cut_cards:
        _print_cut(found.cut_cards)
    say("")
    print_findings(found.findings, {})


def _print_fleet(told: Mapping[str, Any]) -> None:
    say("")
    say(
        f"{told['free_cards']:.1f} cards' worth of share is free, {told['fragmented_cards']:.1f} of it "
        f"({percent(told['fragmentation_ratio'])}) does not serve what is asked for"
    )
    if told["free_memory_bytes"] > 0:
        say(
            f"{told['free_memory_bytes'] / 2**30:,.0f} GiB of card memory is free, "
            f"{told['fragmented_memory_bytes'] / 2**30:,.0f} GiB of it ({percent(told['memory_fragmentation_ratio'])}) "
            "does not serve what is asked for"
        )
    print_table(
        ["why", ">cards"],
        [
            (_CAUSES[cause], f"{cards:.1f}")
            for cause, cards in sorted(told["by_cause_cards"].items(), key=lambda i: -i[1])
        ],
        empty="all of it serves",
    )
    say("")
    print_table(
        [
            "pool",
            "model",
            ">nodes",
            ">cards",
            ">free",
            ">largest piece",
            ">whole on a node",
            ">mix that fits",
            "biggest",
        ],
        [
            (
                room["pool"],
                room["model"] or "?",
                room["nodes"],
                room["cards"],
                f"{room['free_cards']:.1f}",
                percent(room["largest_piece"]),
                room["most_whole_cards"],
                percent(room["fits_part"]),
                room["biggest_placeable"] or "none",
            )
            for room in told["rooms"]
        ],
        title="what still fits",
    )
    say("")
    print_table(
        ["request", ">part", "fits", ">waiting", "out for want of"],
        [
            (
                one["request"],
                percent(one["part"], 1),
                {True: "yes", False: "no", None: "-"}[one["fits"]],
                one["waiting"],
                ", ".join(one["lost_for"]) or ("several together" if one["fits"] is False else ""),
            )
            for one in told["demand"]
        ],
        title="what is asked for",
    )


def _print_cut(cards: Sequence[Mapping[str, Any]]) -> None:
    say("")
    print_table(
        ["node", "card", "board", ">memory free", ">stranded", ">compute free", ">stranded", "largest", "layout"],
        [
            (card["node"], card["gpu"], "unknown", "", "", "", "", "", card["unknown"])
            if "unknown" in card
            else (
                card["node"],
                card["gpu"],
                card["board"],
                card["free_memory_slices"],
                card["stranded_memory_slices"],
                card["free_compute_slices"],
                card["stranded_compute_slices"],
                card["largest_placeable"] or "none",
                "told" if card["layout_told"] else "the best of those possible",
            )
            for card in cards
        ],
        title="cards that are cut",
    )
