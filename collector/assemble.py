"""Parsed samples of one cycle become one batch in the schema.

The assembler is the only place that keeps a memory between cycles: which series feeds which cell, the last raw value of
each counter, which cards and targets were there, the last XID. All of that is plain data and survives a restart through
`export_state` and `import_state`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from collector.batch import Batch, Event, Reject, Severity, Subject, make_rows
from collector.counters import CounterBook
from collector.cycle import Numbers, Plan, correct_cards, correct_shares, evaluate, lay_out
from collector.exposition import Exposition, Series
from collector.facts import FactBook, describe_cards, describe_pods, describe_slices
from collector.health import CardWatch, TargetWatch, XidWatch
from collector.join import Join, SliceRow, join_slices
from collector.kube import KubeState, read_kube_state
from collector.layout import FIELD_INDEX, Registry
from collector.mappings import mapping_table
from collector.plugins import SourceContext
from collector.queues import QueueBook, read_queues
from collector.schema import GPU, SLICE, UNKNOWN
from collector.servers import ServerReader
from collector.settings import TargetSettings
from collector.slots import Card, Holder, ServerChannels, World, instance_share, target_key
from collector.targets import Arrangement, TargetState

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_GPU_COLUMNS = np.array([FIELD_INDEX[name] for name in GPU.field_names])
_SLICE_COLUMNS = np.array([FIELD_INDEX[name] for name in SLICE.field_names])
_SLICE_INDEX = {name: index for index, name in enumerate(SLICE.field_names)}
_QUOTAS = np.array([_SLICE_INDEX["sm_quota_ratio"], _SLICE_INDEX["memory_quota_bytes"]])
_AGE = FIELD_INDEX["source_age_seconds"]


@dataclass(slots=True)
class Scrape:
    """What one target said in one cycle: a parsed body, or the reason why there is none.

    age_seconds: how old the values were at the cycle's instant, where the source knows it.
    """

    target: TargetSettings
    body: Exposition | None
    error: str = ""
    age_seconds: float = 0.0


@dataclass(slots=True)
class _Live:
    """A target with samples in this cycle."""

    state: TargetState
    scrape: Scrape
    body: Exposition
    layout: Arrangement


@dataclass(slots=True)
class _Memory:
    """What is kept of one target."""

    state: TargetState
    series: list[Series] | None = None
    layout: Arrangement | None = None


@dataclass(slots=True)
class _Slices:
    """The joined slices with the indices that put their rows together."""

    join: Join
    base: Ints
    allocation_slices: Ints
    allocation_rows: Ints
    server_slices: Ints
    server_rows: Ints
    constants: Floats  # slices x (sm_quota_ratio, memory_quota_bytes)
    instance_slices: Ints
    tags: dict[str, list[str]]
    readers: list[tuple[int, ServerReader]]


@dataclass(slots=True)
class _Held:
    """Slice rows that wait one interval for their holder."""

    now_ms: int
    rows: list[tuple[SliceRow, Floats]] = field(default_factory=list)


class Assembler:
    """Turns the samples of a cycle, whatever source they come from, into one batch.

    Args:
        context: cluster, interval, declarations, tenants, the user's mappings.

    Raises:
        ConfigurationError: a `[[mapping]]` names an unknown field.
    """

    def __init__(self, context: SourceContext) -> None:
        self.context = context
        self._counters = CounterBook()
        self._world = World(mapping_table(context.mappings), Registry(self._counters))
        self._targets: dict[str, _Memory] = {}
        self._plans: dict[tuple[str, ...], tuple[tuple[int, ...], Plan]] = {}
        self._kube: KubeState | None = None
        self._kube_values: dict[str, list[float]] = {}
        self._kube_parts: dict[str, list[tuple[str, Series, float]]] = {}
        self._slices: _Slices | None = None
        self._readers: dict[int, ServerReader] = {}
        self._facts = FactBook(context)
        self._queues = QueueBook()
        self._target_watch = TargetWatch(context)
        self._card_watch = CardWatch(context)
        self._xids = XidWatch(context)
        self._held: _Held | None = None

    @property
    def metric_names(self) -> tuple[str, ...]:
        """All metric names that are understood."""
        return self._world.table.names

    def assemble(self, now: datetime, scrapes: Sequence[Scrape]) -> Batch:
        """Return rows, facts, events and rejects of one cycle.

        Args:
            now: the instant that the rows stand on, aware; cycles come in the order of time.
            scrapes: what each target said; a target that is not among them is neither up nor down.
        """
        batch = Batch()
        now_ms = int(now.timestamp() * 1000)
        live, dirty = self._take(now, scrapes, batch)
        plan, fresh = self._plan(live)
        raw = np.array([value for one in live for value in one.body.values], dtype=np.float64)
        dirty = self._read_kube(live) | _read_facts(live, raw) | dirty | fresh
        numbers = evaluate(plan, self._world.registry, raw, now_ms, self.context.interval_seconds)
        self._report_samples(numbers, now, batch)
        cards = self._present_cards(live)
        batch.events += self._xids.observe(now, live_xids(live, raw), self._world.cards)
        correct_cards(numbers, cards, self._world.registry, batch, self.context, now)
        ages = self._card_watch.observe(now, cards, numbers, live_cards(live), batch)
        joined = dirty or self._slices is None or self._card_watch.changed
        if joined or self._slices is None:
            self._slices = self._join(live, cards)
        correct_shares(numbers, self._slices.join.slices, batch, self.context, now)
        self._gpu_rows(now_ms, cards, numbers, ages, batch)
        self._slice_rows(now, self._slices, numbers, ages, batch)
        if joined:
            self._tell(now, cards, numbers, batch)
        if self._kube is not None:
            table, facts, events = read_queues(self._kube, self._queues, self.context, now)
            if table is not None:
                batch.rows["queue"] = table
            batch.facts += facts
            batch.events += events
        return batch

    def export_state(self) -> dict[str, Any]:
        """Return what a later start needs to go on, as plain JSON values."""
        return {
            "counters": self._counters.to_json(),
            "targets": self._target_watch.to_json(),
            "cards": self._card_watch.to_json(),
            "xids": self._xids.to_json(),
        }

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `export_state` returned."""
        self._counters.load_json(state.get("counters", {}))
        self._target_watch.load_json(state.get("targets", {}))
        self._card_watch.load_json(state.get("cards", {}))
        self._xids.load_json(state.get("xids", {}))

    def _take(self, now: datetime, scrapes: Sequence[Scrape], batch: Batch) -> tuple[list[_Live], bool]:
        """Sort out targets that are down, lay out those whose list of series changed."""
        live: list[_Live] = []
        dirty = False
        for scrape in scrapes:
            key = target_key(scrape.target)
            memory = self._targets.get(key)
            if memory is None or memory.state.target != scrape.target:
                memory = self._targets[key] = _Memory(TargetState(scrape.target, self._world))
            if not self._target_watch.observe(now, scrape.target, scrape.body, scrape.error, batch):
                if memory.series is not None:
                    memory.series, dirty = None, True
                continue
            body = scrape.body
            if body is None:
                continue
            if memory.layout is None or memory.series is None or memory.series != body.series:
                memory.layout = memory.state.arrange(body.series)
                memory.series = body.series
                dirty = True
            if not self._target_watch.same_machine(now, scrape.target, memory.layout, batch):
                continue
            live.append(_Live(memory.state, scrape, body, memory.layout))
            self._target_watch.clock(now, scrape.target, body, batch)
            _count_rejects(batch, _node_subject(self.context, scrape.target), memory.layout.rejects, now)
        return live, dirty

    def _plan(self, live: Sequence[_Live]) -> tuple[Plan, bool]:
        key = tuple(one.state.key for one in live)
        identity = tuple(id(one.layout) for one in live)
        known = self._plans.get(key)
        if known is not None and known[0] == identity:
            return known[1], False
        if len(self._plans) > 8:
            self._plans.clear()
        offset = 0
        samples, channels, cards = [], [], []
        for one in live:
            samples.append(one.layout.samples + offset)
            channels.append(one.layout.channels)
            cards.append(one.layout.cards)
            offset += len(one.body.values)
        expected: dict[int, int] = {}
        for one in live:
            for uuid, instances in one.layout.instances.items():
                card = self._world.cards.get(uuid)
                if card is not None:
                    expected[card.row] = max(expected.get(card.row, 0), len(instances))
        plan = lay_out(self._world.registry, samples, channels, cards, expected)
        self._plans[key] = (identity, plan)
        return plan, True

    def _read_kube(self, live: Sequence[_Live]) -> bool:
        """Read kube-state-metrics again where a value or a series changed; say whether it did."""
        changed = False
        for one in live:
            if not one.layout.kube:
                continue
            key = one.state.key
            if self._kube_values.get(key) == one.body.values and key in self._kube_parts:
                part = self._kube_parts[key]
                if part and part[0][1] is one.body.series[one.layout.kube[0][0]] and len(part) == len(one.layout.kube):
                    continue
            self._kube_parts[key] = [
                (name, one.body.series[index], one.body.values[index]) for index, name in one.layout.kube
            ]
            self._kube_values[key] = one.body.values
            changed = True
        if changed:
            self._kube = read_kube_state(sample for part in self._kube_parts.values() for sample in part)
        return changed

    def _present_cards(self, live: Sequence[_Live]) -> list[Card]:
        uuids: dict[str, None] = {}
        for one in live:
            uuids.update(dict.fromkeys(sorted(one.layout.uuids)))
        return [self._world.cards[uuid] for uuid in sorted(uuids, key=lambda u: (self._world.cards[u].node, u))]

    def _join(self, live: Sequence[_Live], cards: Sequence[Card]) -> _Slices:
        world = self._world
        holders: list[Holder] = []
        instance_rows: dict[tuple[str, str], int] = {}
        holders_known: set[str] = set()
        servers: dict[int, ServerChannels] = {}
        uuids = {card.uuid for card in cards}
        for one in live:
            holders += one.layout.holders
            if one.layout.holders_known:
                holders_known |= one.layout.uuids
            for uuid, instances in one.layout.instances.items():
                for instance in instances:
                    profile = world.cards[uuid].instances.get(instance, "")
                    instance_rows[uuid, instance] = world.registry.row(("instance", uuid, instance, profile))
            for row in one.layout.servers:
                servers[row] = world.servers[row]
        extra = [world.cards[h.uuid] for h in holders if h.uuid in world.cards and h.uuid not in uuids]
        extra += [world.cards[s.gpu] for s in servers.values() if s.gpu and s.gpu not in uuids]
        every = [*cards, *{card.uuid: card for card in extra}.values()]
        join = join_slices(
            every,
            holders,
            instance_rows,
            list(servers.values()),
            self._kube,
            self.context,
            holders_known=frozenset(holders_known),
            flapping=self._card_watch.flapping(holders, self._kube),
        )
        return self._index(join)

    def _index(self, join: Join) -> _Slices:
        slices = join.slices
        allocation = [(n, row) for n, share in enumerate(slices) for row in share.allocations]
        server = [(n, one) for n, share in enumerate(slices) for one in share.servers]
        constants = np.full((len(slices), 2), np.nan)
        for n, share in enumerate(slices):
            constants[n, 0] = _granted_share(share)
            if share.kind == "whole":
                constants[n, 1] = self._facts.memory_of(share.card)
        readers = []
        for n, one in server:
            reader = self._readers.get(one.row)
            if reader is None:
                reader = self._readers[one.row] = ServerReader(one)
            readers.append((n, reader))
        return _Slices(
            join=join,
            base=np.array([share.base for share in slices], dtype=np.int64),
            allocation_slices=np.array([n for n, _ in allocation], dtype=np.int64),
            allocation_rows=np.array([row for _, row in allocation], dtype=np.int64),
            server_slices=np.array([n for n, _ in server], dtype=np.int64),
            server_rows=np.array([one.row for _, one in server], dtype=np.int64),
            constants=constants,
            instance_slices=np.array([n for n, share in enumerate(slices) if share.kind == "mig"], dtype=np.int64),
            tags={
                "cluster": [self.context.cluster] * len(slices),
                "node": [share.card.node for share in slices],
                "gpu": [share.card.uuid for share in slices],
                "slice": [share.slice for share in slices],
                "tenant": [share.tenant for share in slices],
                "workload": [share.workload for share in slices],
            },
            readers=readers,
        )

    def _tell(self, now: datetime, cards: Sequence[Card], numbers: Numbers, batch: Batch) -> None:
        describe_cards(self._facts, cards, numbers, now)
        if self._slices is not None:
            describe_slices(self._facts, self._slices.join.slices, self._kube, now)
        if self._kube is not None:
            describe_pods(self._facts, self._kube, now)
        facts, events, rejects = self._facts.drain()
        batch.facts += facts
        batch.events += events
        batch.rejects += rejects

    def _gpu_rows(
        self, now_ms: int, cards: Sequence[Card], numbers: Numbers, ages: Mapping[str, float], batch: Batch
    ) -> None:
        if not cards:
            return
        rows = np.array([card.row for card in cards], dtype=np.int64)
        matrix = numbers.take(rows)[:, _GPU_COLUMNS]
        keep = _any_value(matrix)
        matrix[:, GPU.field_names.index("source_age_seconds")] = [ages.get(card.uuid, 0.0) for card in cards]
        tags = {
            "cluster": [self.context.cluster] * len(cards),
            "node": [card.node for card in cards],
            "gpu": [card.uuid for card in cards],
        }
        _add_rows(batch, "gpu", now_ms, tags, matrix, keep)

    def _slice_rows(
        self, now: datetime, slices: _Slices, numbers: Numbers, ages: Mapping[str, float], batch: Batch
    ) -> None:
        now_ms = int(now.timestamp() * 1000)
        held, self._held = self._held, None
        if held is not None:
            self._release(held, batch)
        _count_homeless(batch, slices.join.homeless, self.context, now)
        shares = slices.join.slices
        if not shares:
            return
        matrix = numbers.take(slices.base)[:, _SLICE_COLUMNS]
        if len(slices.allocation_slices):
            _fill(matrix, slices.allocation_slices, numbers.take(slices.allocation_rows)[:, _SLICE_COLUMNS])
        if len(slices.server_slices):
            _fill(matrix, slices.server_slices, numbers.take(slices.server_rows)[:, _SLICE_COLUMNS])
        self._read_servers(slices, numbers, matrix)
        keep = _any_value(matrix)
        if len(slices.instance_slices):
            memory = numbers.instance_memory(slices.base[slices.instance_slices])
            matrix[slices.instance_slices, _QUOTAS[1]] = memory
        quotas = matrix[:, _QUOTAS]
        matrix[:, _QUOTAS] = np.where(np.isnan(quotas), slices.constants, quotas)
        matrix[:, _SLICE_INDEX["source_age_seconds"]] = [ages.get(share.card.uuid, 0.0) for share in shares]
        waiting = np.array([share.waiting and self._facts.waits(share, now) for share in shares])
        if waiting.any():
            self._held = _Held(now_ms, [(shares[n], matrix[n].copy()) for n in np.flatnonzero(waiting & keep)])
        overdue = [n for n, share in enumerate(shares) if share.waiting and not waiting[n]]
        tags = slices.tags
        if overdue:
            tags = {name: list(values) for name, values in tags.items()}
            for n in overdue:
                tags["tenant"][n], tags["workload"][n] = UNKNOWN, UNKNOWN
        _add_rows(batch, "slice", now_ms, tags, matrix, keep & ~waiting)

    def _read_servers(self, slices: _Slices, numbers: Numbers, matrix: Floats) -> None:
        for n, reader in slices.readers:
            share = slices.join.slices[n]
            objective = self._facts.declaration(
                share.tenant, share.workload, self._kube, share.pod_key
            ).declaration.objective
            reading = reader.read(
                numbers.growth, numbers.seconds, numbers.levels, objective, self.context.interval_seconds
            )
            for name, value in reading.values.items():
                column = _SLICE_INDEX[name]
                if not math.isnan(value) and (name != "requests_per_second" or math.isnan(matrix[n, column])):
                    matrix[n, column] = value
            self._facts.latency_quantity(share, reading)

    def _release(self, held: _Held, batch: Batch) -> None:
        """Write rows that waited: with their holder if he is known by now, else as unknown."""
        present = {}
        if self._slices is not None:
            present = {(share.card.uuid, share.slice): share for share in self._slices.join.slices}
        tags: dict[str, list[str]] = {tag: [] for tag in SLICE.tags}
        for share, _ in held.rows:
            later = present.get((share.card.uuid, share.slice))
            known = later is not None and not later.waiting and later.pod_key == share.pod_key
            owner = (later.tenant, later.workload) if known and later is not None else (UNKNOWN, UNKNOWN)
            values = (self.context.cluster, share.card.node, share.card.uuid, share.slice, *owner)
            for tag, value in zip(SLICE.tags, values, strict=True):
                tags[tag].append(value)
        if held.rows:
            matrix = np.stack([values for _, values in held.rows])
            _add_rows(batch, "slice", held.now_ms, tags, matrix, np.ones(len(held.rows), dtype=bool))

    def _report_samples(self, numbers: Numbers, now: datetime, batch: Batch) -> None:
        """Count invalid samples by subject, field and reason; tell of counters that fell."""
        registry = self._world.registry
        counts: dict[tuple[Subject, str, str], int] = {}
        for channel, reason in numbers.invalid:
            row, field_name = registry.where(channel)
            key = (self._subject(registry.row_key(row)), field_name, reason)
            counts[key] = counts.get(key, 0) + 1
        for uuid, count in numbers.dead_cards(self._world.card_list):
            counts[self._subject(("gpu", uuid)), "", "zero_scrape"] = count
        batch.rejects += [
            Reject(subject, name, reason, now, count) for (subject, name, reason), count in counts.items()
        ]
        fallen: dict[Subject, str] = {}
        for channel in numbers.fallen:
            row, field_name = registry.where(int(channel))
            fallen.setdefault(self._subject(registry.row_key(row)), field_name)
        batch.events += [
            Event(subject, "counter_reset", Severity.INFO, f"{name} fell: its source started anew", now)
            for subject, name in fallen.items()
        ]

    def _subject(self, key: tuple[str, ...]) -> Subject:
        """Return whom a row of numbers is about."""
        cluster = self.context.cluster
        kind = key[0]
        if kind == "server":
            return Subject("pod", cluster, object=f"{key[1]}/{key[2]}" if key[2] else key[4])
        card = self._world.cards.get(key[1]) if len(key) > 1 else None
        node = card.node if card is not None else ""
        if kind == "gpu":
            return Subject("gpu", cluster, node, key[1])
        if kind == "instance":
            return Subject("slice", cluster, node, key[1], f"gi{key[2]}")
        row = self._world.registry.row(key)
        known = self._slices.join.slices if self._slices is not None else ()
        share = next((one for one in known if one.base == row or row in one.allocations), None)
        if share is not None:
            return self._facts.slice_subject(share)
        return Subject("slice", cluster, node, key[1], f"{key[2]}/{key[3]}/{key[4]}/0")


def _read_facts(live: Sequence[_Live], raw: Floats) -> bool:
    """Keep values that are facts of cards; say whether a card's MIG mode changed, which changes its slices."""
    offset, switched = 0, False
    for one in live:
        for index, reading in one.layout.facts:
            value = raw[offset + index] * reading.scale
            if math.isfinite(value):
                text = f"{value:.15g}"
                switched |= reading.name == "mig" and reading.card.facts.get("mig") != text
                reading.card.facts[reading.name] = text
        offset += len(one.body.values)
    return switched


def live_xids(live: Sequence[_Live], raw: Floats) -> list[tuple[Any, float]]:
    """Return each XID reading with its value."""
    found = []
    offset = 0
    for one in live:
        found += [(reading, float(raw[offset + index])) for index, reading in one.layout.xids]
        offset += len(one.body.values)
    return found


def live_cards(live: Sequence[_Live]) -> dict[str, tuple[frozenset[str], float]]:
    """Return, a target, the cards that it shows and the age of what it says."""
    return {one.state.key: (one.layout.uuids, one.scrape.age_seconds) for one in live}


def _granted_share(share: SliceRow) -> float:
    if share.kind == "whole":
        return 1.0
    if share.kind == "mig":
        part = instance_share(share.card, share.instance)
        return part.compute if part else math.nan
    return math.nan


def _any_value(matrix: Floats) -> NDArray[np.bool_]:
    """Say which rows have any value at all."""
    return np.asarray(~np.isnan(matrix).all(axis=1), dtype=bool)


def _fill(matrix: Floats, targets: Ints, values: Floats) -> None:
    """Put `values` into those cells of the rows `targets` that have none."""
    for n, row in zip(targets, values, strict=True):
        matrix[n] = np.where(np.isnan(matrix[n]), row, matrix[n])


def _add_rows(
    batch: Batch,
    measurement: str,
    now_ms: int,
    tags: Mapping[str, list[str]],
    matrix: Floats,
    keep: NDArray[np.bool_],
) -> None:
    names = GPU.field_names if measurement == "gpu" else SLICE.field_names
    if not keep.any():
        return
    if not keep.all():
        chosen = np.flatnonzero(keep)
        matrix = matrix[chosen]
        tags = {name: [values[n] for n in chosen] for name, values in tags.items()}
    there = _any_value(matrix.T)
    columns = {name: matrix[:, n] for n, name in enumerate(names) if there[n]}
    table = make_rows(measurement, np.full(len(matrix), now_ms), tags, columns)
    known = batch.rows.get(measurement)
    if known is None:
        batch.rows[measurement] = table
    else:
        batch.rows[measurement] = pa.concat_tables([known, table], promote_options="default")


def _node_subject(context: SourceContext, target: TargetSettings) -> Subject:
    return Subject("node", context.cluster, target.node or target.url)


def _count_rejects(batch: Batch, subject: Subject, reasons: Mapping[str, int], now: datetime) -> None:
    batch.rejects += [Reject(subject, "", reason, now, count) for reason, count in reasons.items()]


def _count_homeless(batch: Batch, servers: Sequence[ServerChannels], context: SourceContext, now: datetime) -> None:
    for server in servers:
        name = f"{server.namespace}/{server.pod}" if server.pod else server.target
        batch.rejects.append(
            Reject(Subject("pod", context.cluster, object=name), "", "no slice known of this pod", now)
        )
