"""Slices as an array: rows of numbers put together, granted quotas, and the tables that go into a batch."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from collector.batch import Batch, make_rows
from collector.columns import bool_column, text_column
from collector.cycle import Numbers
from collector.gpu_models import gpu_model
from collector.join import Join, SliceRow
from collector.layout import FIELD_INDEX
from collector.nodes import NodeBoard
from collector.plugins import SourceContext
from collector.schema import GPU, MEASUREMENTS, SLICE
from collector.slots import Card, ServerChannels, instance_share

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Tags = Mapping[str, pa.Array]

SLICE_INDEX: dict[str, int] = {name: index for index, name in enumerate(SLICE.field_names)}
_GPU_COLUMNS = np.array([FIELD_INDEX[name] for name in GPU.field_names])
_SLICE_COLUMNS = np.array([FIELD_INDEX[name] for name in SLICE.field_names])
_GPU_AGE, _SLICE_AGE = GPU.field_names.index("source_age_seconds"), SLICE_INDEX["source_age_seconds"]
_SM_QUOTA, _MEMORY_QUOTA = SLICE_INDEX["sm_quota_ratio"], SLICE_INDEX["memory_quota_bytes"]
_FLOPS = SLICE_INDEX["flops_per_second"]
# A pipe's activity and the peak that it is a share of. What tensor cores work on is not said: dense FP16 is assumed.
PIPES = {
    "tensor_active_ratio": "fp16_tensor",
    "fp64_active_ratio": "fp64",
    "fp32_active_ratio": "fp32",
    "fp16_active_ratio": "fp16",
}
_PIPE_COLUMNS = np.array([SLICE_INDEX[name] for name in PIPES])
# What was granted: each change of these is a fact and an event.
QUOTAS = ("sm_quota_ratio", "memory_quota_bytes", "priority")
QUOTA_STEP = 0.01  # memory of a MIG instance is what its exporter adds up, to a MiB or two
QUOTA_COLUMNS = np.array([SLICE_INDEX[name] for name in QUOTAS])


@dataclass(slots=True)
class SliceTable:
    """Joined slices with the indices that put their rows together.

    base: a row of numbers a slice; allocation and server pairs: (slice, row of numbers).
    granted: slices x (compute share, memory in bytes), where the platform itself fixes them; NaN elsewhere.
    instances, waiting: slices that are MIG instances, and those whose holder Kubernetes does not know yet.
    peaks: slices x `PIPES`, FLOP/s of the whole card; NaN where its model, or the peak, is not known.
    tags: of the rows, a column a tag.
    """

    join: Join
    base: Ints
    allocations: Ints
    allocation_rows: Ints
    servers: Ints
    server_rows: Ints
    granted: Floats
    instances: Ints
    waiting: Ints
    peaks: Floats
    tags: Tags


@dataclass(slots=True)
class CardTable:
    """The cards that are there, their rows of numbers, which are cut into instances, and the tags of their rows."""

    cards: Sequence[Card]
    rows: Ints
    cut: Bools
    tags: Tags


def index_cards(cards: Sequence[Card], cluster: str) -> CardTable:
    """Return the cards with their indices."""
    tags = {
        "cluster": [cluster] * len(cards),
        "node": [card.node for card in cards],
        "gpu": [card.uuid for card in cards],
    }
    cut = np.array([bool(card.instances) for card in cards], dtype=bool)
    return CardTable(cards, _ints(card.row for card in cards), cut, _columns(tags))


def index_slices(join: Join, cluster: str, memory_of: Mapping[str, float]) -> SliceTable:
    """Return the slices with their indices.

    Args:
        join: the slices.
        cluster: name of the cluster.
        memory_of: memory of whole cards in bytes, by UUID.
    """
    slices = join.slices
    allocations = [(n, row) for n, share in enumerate(slices) for row in share.allocations]
    servers = [(n, server.row) for n, share in enumerate(slices) for server in share.servers]
    granted = np.full((len(slices), 2), np.nan)
    for n, share in enumerate(slices):
        granted[n] = _granted(share, memory_of)
    return SliceTable(
        join=join,
        base=_ints(share.base for share in slices),
        allocations=_ints(n for n, _ in allocations),
        allocation_rows=_ints(row for _, row in allocations),
        servers=_ints(n for n, _ in servers),
        server_rows=_ints(row for _, row in servers),
        granted=granted,
        instances=_ints(n for n, share in enumerate(slices) if share.kind == "mig"),
        waiting=_ints(n for n, share in enumerate(slices) if share.waiting),
        peaks=np.array([_peaks(share.card.model) for share in slices]).reshape(-1, len(PIPES)),
        tags=_columns(
            {
                "cluster": [cluster] * len(slices),
                "node": [share.card.node for share in slices],
                "gpu": [share.card.uuid for share in slices],
                "slice": [share.slice for share in slices],
                "tenant": [share.tenant for share in slices],
                "workload": [share.workload for share in slices],
            }
        ),
    )


def slice_matrix(table: SliceTable, numbers: Numbers) -> Floats:
    """Return slices x fields: the base's values, then what allocations and servers add where it has none."""
    matrix = numbers.take(table.base)[:, _SLICE_COLUMNS]
    for slices, rows in ((table.allocations, table.allocation_rows), (table.servers, table.server_rows)):
        values = numbers.take(rows)[:, _SLICE_COLUMNS]
        if len(np.unique(slices)) == len(slices):
            matrix[slices] = np.where(np.isnan(matrix[slices]), values, matrix[slices])
            continue
        for n, own in zip(slices, values, strict=True):
            matrix[n] = np.where(np.isnan(matrix[n]), own, matrix[n])
    return matrix


def add_flops(table: SliceTable, matrix: Floats) -> None:
    """Fill in FLOP/s: activity of each pipe times the card's peak for it; absent where no pipe, or a peak, is known."""
    activity = matrix[:, _PIPE_COLUMNS]
    seen = ~np.isnan(activity)
    done = np.where(seen & (activity != 0), activity * table.peaks, 0.0).sum(axis=1)
    matrix[:, _FLOPS] = np.where(seen.any(axis=1) & np.isnan(matrix[:, _FLOPS]), done, matrix[:, _FLOPS])


def changed_quotas(before: Floats, now: Floats) -> bool:
    """Say whether any quota of the same slices is another one: by more than a hundredth, or new; a gap is no change."""
    new = np.isnan(before) & ~np.isnan(now)
    return bool((new | (np.abs(now - before) > QUOTA_STEP * np.abs(now))).any())


def fill_constants(table: SliceTable, numbers: Numbers, matrix: Floats, ages: Mapping[str, float]) -> None:
    """Fill in what a slice has whether or not anything was measured: granted quotas, and the age of its source."""
    if len(table.instances):
        matrix[table.instances, _MEMORY_QUOTA] = numbers.instance_memory(table.base[table.instances])
    for column, granted in ((_SM_QUOTA, table.granted[:, 0]), (_MEMORY_QUOTA, table.granted[:, 1])):
        matrix[:, column] = np.where(np.isnan(matrix[:, column]), granted, matrix[:, column])
    matrix[:, _SLICE_AGE] = [ages.get(share.card.uuid, 0.0) for share in table.join.slices] if ages else 0.0


def add_cards(
    batch: Batch,
    table: CardTable,
    numbers: Numbers,
    ages: Mapping[str, float],
    now_ms: int,
    *,
    frozen: Collection[str] = (),
) -> None:
    """Add one `gpu` row a card that has any value, and one that tells nothing but its age a frozen one.

    `ages` are in seconds, of cards whose values are not of now.
    """
    matrix = numbers.take(table.rows)[:, _GPU_COLUMNS]
    keep = any_value(matrix)
    if frozen:
        keep |= np.array([card.uuid in frozen for card in table.cards], dtype=bool)
    matrix[:, _GPU_AGE] = [ages.get(card.uuid, 0.0) for card in table.cards] if ages else 0.0
    add_rows(batch, "gpu", now_ms, *kept(table.tags, matrix, keep))


def add_hosts(batch: Batch, hosts: NodeBoard, numbers: Numbers, context: SourceContext, *, now_ms: int) -> None:
    """Add one `node` row a host that has any value."""
    if not hosts.names:
        return
    matrix = hosts.read(numbers, context.interval_seconds)
    tags = _columns({"cluster": [context.cluster] * len(matrix), "node": hosts.names})
    add_rows(batch, "node", now_ms, *kept(tags, matrix, any_value(matrix)))


def add_rows(batch: Batch, measurement: str, now_ms: int, tags: Tags, matrix: Floats) -> None:
    """Add rows to a batch; `matrix` and `tags` are parallel."""
    if not len(matrix):
        return
    there = any_value(matrix.T)
    by_field = np.ascontiguousarray(matrix.T)
    columns = {name: by_field[n] for n, name in enumerate(MEASUREMENTS[measurement].field_names) if there[n]}
    rows = make_rows(measurement, np.full(len(matrix), now_ms), tags, columns)
    known = batch.rows.get(measurement)
    batch.rows[measurement] = rows if known is None else pa.concat_tables([known, rows], promote_options="default")


def kept(tags: Tags, matrix: Floats, keep: Bools) -> tuple[Tags, Floats]:
    """Return tags and values of the rows that are kept."""
    if keep.all():
        return tags, matrix
    mask = bool_column(keep)
    return {name: values.filter(mask) for name, values in tags.items()}, matrix[keep]


def any_value(matrix: Floats) -> Bools:
    """Say which rows have any value at all."""
    return np.asarray(~np.isnan(matrix).all(axis=1), dtype=bool)


def server_pairs(table: SliceTable) -> list[tuple[int, ServerChannels]]:
    """Return (slice, server) for all servers that sit on a slice."""
    return [(n, server) for n, share in enumerate(table.join.slices) for server in share.servers]


def _peaks(name: str) -> list[float]:
    model = gpu_model(name) if name else None
    return [model.peaks.get(peak, math.nan) if model is not None else math.nan for peak in PIPES.values()]


def _granted(share: SliceRow, memory_of: Mapping[str, float]) -> tuple[float, float]:
    if share.kind == "whole":
        return 1.0, memory_of.get(share.card.uuid, math.nan)
    part = instance_share(share.card, share.instance) if share.kind == "mig" else None
    return (part.compute if part else math.nan), math.nan


def _columns(tags: Mapping[str, Sequence[str]]) -> Tags:
    return {name: text_column(values) for name, values in tags.items()}


def _ints(values: Iterable[int]) -> Ints:
    return np.array(list(values), dtype=np.int64)
