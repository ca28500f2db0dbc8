"""What is wrong with the samples of one cycle, told of whom they are about."""

from __future__ import annotations

from collections.abc import Sequence

from collector.batch import Severity, Subject
from collector.cycle import Numbers
from collector.join import Join, SliceRow
from collector.report import Report
from collector.slots import World


def report_samples(numbers: Numbers, world: World, slices: Sequence[SliceRow], report: Report) -> None:
    """Count invalid samples by subject, field and reason; tell of counters that fell."""
    registry = world.registry
    counts: dict[tuple[Subject, str, str], int] = {}
    for channel, reason in numbers.invalid:
        row, field_name = registry.where(channel)
        key = (_subject(registry.row_key(row), report.cluster, world, slices), field_name, reason)
        counts[key] = counts.get(key, 0) + 1
    for (subject, field_name, reason), count in counts.items():
        report.reject(subject, field_name, reason, count)
    for uuid, count in numbers.dead_cards(world.card_list):
        report.reject(_subject(("gpu", uuid), report.cluster, world, slices), "", "zero_scrape", count)
    fallen: dict[Subject, str] = {}
    for channel in numbers.fallen.tolist():
        row, field_name = registry.where(channel)
        fallen.setdefault(_subject(registry.row_key(row), report.cluster, world, slices), field_name)
    for subject, field_name in fallen.items():
        report.event(subject, "counter_reset", Severity.INFO, f"{field_name} fell: its source started anew")


def reject_homeless(join: Join, report: Report) -> None:
    """Count pods that no slice is known of."""
    pods = [f"{one.namespace}/{one.pod}" if one.pod else one.target for one in join.homeless]
    for name in dict.fromkeys((*pods, *join.uncovered)):
        report.reject(Subject("pod", report.cluster, object=name), "", "no slice known of this pod")


def _subject(key: tuple[str, ...], cluster: str, world: World, slices: Sequence[SliceRow]) -> Subject:
    """Return whom a row of numbers is about."""
    kind = key[0]
    if kind == "server":
        return Subject("pod", cluster, object=f"{key[1]}/{key[2]}" if key[2] else key[4])
    if kind == "node":
        return Subject("node", cluster, key[1])
    node = world.cards[key[1]].node
    if kind == "process":
        return Subject("slice", cluster, node, key[1], key[2])
    if kind == "gpu":
        return Subject("gpu", cluster, node, key[1])
    if kind == "instance":
        return Subject("slice", cluster, node, key[1], f"gi{key[2]}")
    row = world.registry.row(key)
    known = (one for one in slices if one.base == row or row in one.allocations)
    share = next(known, None)
    return Subject("slice", cluster, node, key[1], share.slice if share else f"{key[2]}/{key[3]}/{key[4]}/0")
