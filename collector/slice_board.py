"""Slices as they are joined at present, their rows, and what is kept of them between cycles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from collector.batch import Batch
from collector.clock import to_ms
from collector.columns import bool_column, text_column
from collector.cycle import Numbers
from collector.facts import FactBook
from collector.join import Join, SliceRow
from collector.kube import KubeState
from collector.rows import (
    QUOTA_COLUMNS,
    SLICE_INDEX,
    SliceTable,
    add_flops,
    add_rows,
    any_value,
    changed_quotas,
    fill_constants,
    index_slices,
    kept,
    server_pairs,
    slice_matrix,
)
from collector.schema import SLICE, UNKNOWN
from collector.servers import ServerBoard
from collector.slots import Card

Floats = NDArray[np.float64]

_ACTIVITY = [SLICE_INDEX[name] for name in ("sm_active_ratio", "engine_active_ratio")]
_AT_WORK = 0.1
_UNKNOWN = text_column([UNKNOWN])[0]


@dataclass(slots=True)
class _Held:
    """Slice rows that wait one interval for their holder."""

    now_ms: int
    rows: list[tuple[SliceRow, Floats]] = field(default_factory=list)


class SliceBoard:
    """The slices that there are, and their rows.

    Attributes:
        table: the slices as they were joined last.
        quotas: slices x `QUOTA_COLUMNS`, what each was granted; NaN where nothing is.
        busy_servers: targets of servers whose slices were at work in the cycle before.
    """

    def __init__(self, cluster: str, facts: FactBook) -> None:
        self._cluster = cluster
        self._facts = facts
        self.table: SliceTable = index_slices(Join([], []), cluster, {})
        self.quotas: Floats = np.empty((0, len(QUOTA_COLUMNS)))
        self.busy_servers: frozenset[str] = frozenset()
        self._servers = ServerBoard([], [], [])
        self._held = _Held(0)

    @property
    def rows(self) -> list[SliceRow]:
        """The slices, in the order of the table."""
        return self.table.join.slices

    def seat(self, join: Join, cards: Mapping[str, Card]) -> None:
        """Put these slices in the place of those before."""
        self.table = index_slices(
            join, self._cluster, {uuid: self._facts.memory_of(card) for uuid, card in cards.items()}
        )

    def seat_servers(self, kube: KubeState | None) -> None:
        """Work out which channels of which server feed which slice."""
        pairs = server_pairs(self.table)
        shares = [self.table.join.slices[n] for n, _ in pairs]
        objectives = [
            self._facts.declaration(share.tenant, share.workload, kube).declaration.objective for share in shares
        ]
        self._servers = ServerBoard([n for n, _ in pairs], [server for _, server in pairs], objectives)
        for share, quantity in zip(shares, self._servers.quantities, strict=True):
            self._facts.latency_quantity(share, quantity)

    def add(
        self, now: datetime, numbers: Numbers, ages: Mapping[str, float], batch: Batch, *, interval_seconds: float
    ) -> bool:
        """Add a row a slice; say whether a quota is another one than in the cycle before.

        Args:
            now: the instant of the rows.
            numbers: of this cycle.
            ages: how old a card's values are, in seconds, by uuid.
            batch: takes the rows.
            interval_seconds: the longest time between two values of a target.
        """
        table = self.table
        shares = table.join.slices
        if not shares:
            had, self.quotas = len(self.quotas) > 0, self.quotas[:0]
            return had
        matrix = slice_matrix(table, numbers)
        self.busy_servers = _at_work(table, matrix)
        self._servers.read(numbers, interval_seconds, matrix)
        add_flops(table, matrix)
        keep = any_value(matrix)
        fill_constants(table, numbers, matrix, ages)
        quotas = matrix[:, QUOTA_COLUMNS]
        changed = quotas.shape != self.quotas.shape or changed_quotas(self.quotas, quotas)
        self.quotas = quotas if changed else np.where(np.isnan(quotas), self.quotas, quotas)
        tags = table.tags
        waiting = np.zeros(len(shares), dtype=bool)
        waiting[table.waiting] = [self._facts.waits(shares[n], now) for n in table.waiting]
        now_ms = to_ms(now)
        held = np.flatnonzero(waiting & keep).tolist()
        self._held = _Held(now_ms, [(shares[n], matrix[n].copy()) for n in held])
        overdue = np.zeros(len(shares), dtype=bool)
        overdue[table.waiting] = ~waiting[table.waiting]
        if overdue.any():
            unknown = {name: pc.if_else(bool_column(overdue), _UNKNOWN, tags[name]) for name in ("tenant", "workload")}
            tags = {**tags, **unknown}
        add_rows(batch, "slice", now_ms, *kept(tags, matrix, keep & ~waiting))
        return changed

    def release(self, batch: Batch) -> None:
        """Add rows that waited: with their holder if he is known by now, else as unknown."""
        held, self._held = self._held, _Held(0)
        if not held.rows:
            return
        present = {(share.card.uuid, share.slice): share for share in self.table.join.slices}
        tags: dict[str, list[str]] = {tag: [] for tag in SLICE.tags}
        for share, _ in held.rows:
            later = present.get((share.card.uuid, share.slice))
            owner = (UNKNOWN, UNKNOWN)
            if later is not None and not later.waiting and later.pod_key == share.pod_key:
                owner = (later.tenant, later.workload)
            values = (self._cluster, share.card.node, share.card.uuid, share.slice, *owner)
            for tag, value in zip(SLICE.tags, values, strict=True):
                tags[tag].append(value)
        columns = {tag: text_column(values) for tag, values in tags.items()}
        add_rows(batch, "slice", held.now_ms, columns, np.stack([values for _, values in held.rows]))


def _at_work(table: SliceTable, matrix: Floats) -> frozenset[str]:
    """Return targets of servers whose slices' own counters show work, where a server's own would have to move."""
    pairs = server_pairs(table)
    if not pairs:
        return frozenset()
    busy = np.asarray((matrix[:, _ACTIVITY] > _AT_WORK).any(axis=1))
    return frozenset(server.target for n, server in pairs if busy[n])
