"""Parsed samples of one cycle become one batch in the schema.

The assembler is the only place that keeps a memory between cycles: which series feeds which cell, the last raw value of
each counter, which cards and targets were there, the last XID. What a later start needs of it is plain data, through
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
import pyarrow.compute as pc
from numpy.typing import NDArray

from collector.batch import Batch, Event, Fact, Reject, Severity, Subject
from collector.card_watch import CardWatch
from collector.clock import to_ms
from collector.counters import CounterBook
from collector.cycle import Numbers, Plan, check_profiles, correct_cards, correct_shares, evaluate, lay_out
from collector.demand import SchedulerState
from collector.describe import describe_cards, describe_pods, describe_slices, learn_memory
from collector.exposition import Exposition, Series
from collector.facts import FactBook
from collector.health import TargetWatch, XidWatch
from collector.join import Claims, Join, SliceRow, join_slices
from collector.kube import KubeState, read_kube_state
from collector.layout import Registry
from collector.mappings import mapping_table
from collector.nodes import NodeBoard, present_nodes
from collector.plugins import SourceContext
from collector.queues import QueueBook, read_queues
from collector.report import Report
from collector.rows import (
    QUOTA_COLUMNS,
    SLICE_INDEX,
    CardTable,
    SliceTable,
    add_cards,
    add_flops,
    add_hosts,
    add_rows,
    any_value,
    changed_quotas,
    fill_constants,
    index_cards,
    index_slices,
    kept,
    server_pairs,
    slice_matrix,
)
from collector.schedulers.board import SchedulerBoard
from collector.schedulers.pods import merged_kube
from collector.schema import SLICE, UNKNOWN
from collector.servers import ServerBoard
from collector.settings import TargetSettings
from collector.slots import Card, Holder, ServerChannels, World, XidReading, target_key
from collector.targets import Arrangement, TargetState

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# The simulator's exporters say with this metric what they are; its presence counts, whatever its value.
SIMULATED_METRIC = "trimtab_simulated"

_PLANS_KEPT = 8
# Numbers of rows and channels are never given back one by one: with pods that come and go they are all given out anew
# once there are twice as many, and so many more, as are in use. Counters of subjects that left wait a week for them.
_SPARE_CHANNELS = 20_000
_COUNTERS_KEPT_MS = 7 * 86_400_000
_ACTIVITY = [SLICE_INDEX[name] for name in ("sm_active_ratio", "engine_active_ratio")]
_AT_WORK = 0.1
_SILENCE, _NOWHERE = Exposition(), np.empty(0, dtype=np.int64)
_NO_BODY = Exposition(metadata=True)  # of a scheduler that answered: no text, and nothing wrong


@dataclass(slots=True)
class Scrape:
    """What one target said in one cycle: a parsed body, or the reason why there is none.

    age_seconds: how old the values were at the cycle's instant, where the source knows it.
    resting: nothing was asked, or the answer is still awaited: what was said before holds, and there are no values.
    interval_seconds: how often it is asked, where that is not in every cycle; 0: in every one.
    skew_seconds: how far its clock is ahead of ours; NaN where it does not say.
    kube, demand: what a scheduler's own interface said instead of a body.
    denied: parts of it that could not be read, with the reason.
    """

    target: TargetSettings
    body: Exposition | None
    error: str = ""
    age_seconds: float = 0.0
    resting: bool = False
    interval_seconds: float = 0.0
    skew_seconds: float = math.nan
    kube: KubeState | None = None
    demand: SchedulerState | None = None
    denied: Mapping[str, str] = field(default_factory=dict)

    @property
    def of_scheduler(self) -> bool:
        """Say whether a scheduler spoke, not an exporter."""
        return self.kube is not None or self.demand is not None


@dataclass(slots=True)
class _Live:
    """A target with samples in this cycle.

    offset: the position of its layout's first series among those of all targets.
    places: where in the layout its values belong; None where there is one of every series.
    """

    memory: _Memory
    state: TargetState
    scrape: Scrape
    body: Exposition
    layout: Arrangement
    offset: int
    places: Ints | None


@dataclass(slots=True)
class _Watched:
    """Values of a layout that say something new only when one of them changes."""

    layout: Arrangement | None = None
    values: Floats = field(default_factory=lambda: np.empty(0))

    def moved(self, layout: Arrangement, values: Floats) -> bool:
        """Say whether these differ from those of the last call."""
        if self.layout is layout and np.array_equal(values, self.values, equal_nan=True):
            return False
        self.layout, self.values = layout, values
        return True


@dataclass(slots=True)
class _Memory:
    """What is kept of one target."""

    state: TargetState
    series: Sequence[Series] | None = None
    layout: Arrangement | None = None
    places: Ints | None = None
    interval_seconds: float = 0.0
    xids: _Watched = field(default_factory=_Watched)
    facts: _Watched = field(default_factory=_Watched)


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
        self.counters = CounterBook()
        self.state_version = 0
        self._world = World(mapping_table(context.mappings), Registry(self.counters))
        self._channels_in_use = 0  # when numbers were last given out; 0: not known yet
        self._targets: dict[str, _Memory] = {}
        self._plans: dict[tuple[str, ...], tuple[tuple[Arrangement, ...], Plan]] = {}
        self._kube: KubeState | None = None
        self._kube_parts: dict[str, tuple[Exposition, list[tuple[str, Series, float]]]] = {}
        self._schedulers = SchedulerBoard()
        self._slices = index_slices(Join([], []), context.cluster, {})
        self._busy_servers: frozenset[str] = frozenset()  # targets of servers whose slices were at work
        self._said: object = None
        self._layouts: tuple[Arrangement, ...] = ()
        self._joined_layouts: tuple[Arrangement, ...] = ()
        self._flapping: frozenset[str] = frozenset()
        self._shared: tuple[tuple[Arrangement, ...], frozenset[str]] = ((), frozenset())
        self._cards: CardTable | None = None
        self._board = ServerBoard([], [], [])
        self._hosts = NodeBoard([], np.zeros(0, dtype=np.int64))
        self._quotas: Floats = np.empty((0, len(QUOTA_COLUMNS)))
        self._facts = FactBook(context)
        self._queues = QueueBook()
        self._target_watch = TargetWatch(context)
        self._card_watch = CardWatch(context)
        self._xids = XidWatch()
        self._held = _Held(0)
        self._simulated = context.simulated

    @property
    def metric_names(self) -> tuple[str, ...]:
        """All metric names that are understood."""
        return (*self._world.table.names, SIMULATED_METRIC)

    def assemble(self, now: datetime, scrapes: Sequence[Scrape]) -> Batch:
        """Return rows, facts, events and rejects of one cycle.

        Args:
            now: the instant that the rows stand on, aware; cycles come in the order of time.
            scrapes: what each target said; a target that is not among them is neither up nor down.
        """
        report = Report(self.context.cluster, now)
        now_ms = to_ms(now)
        live = self._take(scrapes, report)
        laid_out = self._layouts
        changed = self._describe(live)
        self._tell_versions(now, live, report)
        plan = self._plan(live)
        raw, came = _values(live)
        changed |= self._read_kube(scrapes, live, raw, came) | _read_facts(live, raw)
        numbers = evaluate(
            plan,
            self._world.registry,
            raw,
            came,
            now_ms=now_ms,
            interval_seconds=self.context.interval_seconds,
            reasons=_reasons(live),
        )
        self._report_samples(numbers, report)
        if self._cards is None or laid_out is not self._layouts:
            self._cards = index_cards(self._present_cards(live), self.context.cluster)
        cards = self._cards.cards
        xids = _xids(live, raw)
        self._xids.observe(xids, self._world.cards, report)
        correct_cards(numbers, cards, self._world.registry, report)
        shown = {one.state.key: (one.layout, one.scrape.age_seconds) for one in live}
        ages = self._card_watch.observe(cards, numbers, shown, report)
        self._compare_counts(live, now, report)
        if changed or laid_out is not self._layouts:
            learn_memory(self._facts, cards, numbers)
        changed |= self._join(live, cards, again=changed)
        if changed or laid_out is not self._layouts:
            self._seat_servers()
        correct_shares(numbers, self._slices.join.slices, report)
        batch = Batch()
        add_cards(batch, self._cards, numbers, ages, now_ms, frozen=self._card_watch.frozen)
        add_hosts(batch, self._hosts, numbers, self.context, now_ms=now_ms)
        self._release(batch)
        changed |= self._add_slices(now, numbers, ages, batch)
        if changed or laid_out is not self._layouts:  # a field that is new has an origin to tell
            check_profiles(numbers, self._slices.join.slices, report)
            self._tell(now, cards)
        if self._simulated:
            self._facts.tell(Subject("cluster", self.context.cluster), "simulated", "true", now)
        facts, events, rejects = self._facts.drain()
        if self._kube is not None or self._schedulers.demand is not None:
            self._add_queues(batch, now, facts, events, rejects)
        _reject_homeless(self._slices.join, report)
        batch.facts = facts
        batch.events = report.events + events
        batch.rejects = report.rejects + rejects
        if changed or xids or batch.facts or batch.events or laid_out is not self._layouts:
            self.state_version += 1
        return batch

    def _keep_numbers_few(self, now: datetime) -> None:
        size = self._world.registry.size
        if self._channels_in_use and size > 2 * self._channels_in_use + _SPARE_CHANNELS:
            self._give_out_numbers_anew(to_ms(now))
        elif not self._channels_in_use and self._layouts:
            self._channels_in_use = size

    def _give_out_numbers_anew(self, now_ms: int) -> None:
        """Forget rows, channels and targets that are gone; what is still there is laid out anew in this cycle."""
        self.counters.compact(now_ms - _COUNTERS_KEPT_MS)
        before = self._world
        self._world = World(before.table, Registry(self.counters), mig=before.mig, mig_version=before.mig_version)
        self._channels_in_use = 0
        self._targets, self._plans = {}, {}
        self._layouts = self._joined_layouts = ()
        self._shared = ((), frozenset())
        self._cards = self._said = None
        self.state_version += 1

    def export_state(self, *, counters: bool = True) -> dict[str, Any]:
        """Return what a later start needs to go on, as plain JSON values; `counters` may be kept apart."""
        return {
            **({"counters": self.counters.to_json()} if counters else {}),
            "targets": self._target_watch.to_json(),
            "cards": self._card_watch.to_json(),
            "xids": self._xids.to_json(),
            "facts": self._facts.to_json(),
        }

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `export_state` returned."""
        self.counters.load_json(state.get("counters", {}))
        self._target_watch.load_json(state.get("targets", {}))
        self._card_watch.load_json(state.get("cards", {}))
        self._xids.load_json(state.get("xids", {}))
        self._facts.load_json(state.get("facts", {}))

    def _take(self, scrapes: Sequence[Scrape], report: Report) -> list[_Live]:
        """Sort out targets that are down; lay out those whose list of series changed."""
        self._keep_numbers_few(report.now)
        live: list[_Live] = []
        offset = 0
        for scrape in scrapes:
            key = target_key(scrape.target)
            memory = self._targets.get(key)
            if memory is None or (memory.state.target is not scrape.target and memory.state.target != scrape.target):
                memory = self._targets[key] = _Memory(TargetState(scrape.target, self._world))
            if scrape.resting:
                if memory.layout is not None:
                    live.append(_Live(memory, memory.state, scrape, _SILENCE, memory.layout, offset, _NOWHERE))
                    offset += memory.layout.size
                continue
            memory.interval_seconds = scrape.interval_seconds
            body = _NO_BODY if scrape.of_scheduler else scrape.body
            up = self._target_watch.observe(scrape.target, body, scrape.error, report)
            if up and scrape.of_scheduler:
                self._target_watch.denied(scrape.target, scrape.denied, report)
            if not up or scrape.body is None:
                continue
            series = scrape.body.series
            if (
                memory.layout is None
                or memory.state.outdated
                or (memory.series is not series and memory.series != series)
            ):
                memory.layout, memory.places = memory.state.arrange(series)
                memory.series = series
                self._simulated = self._simulated or any(one.name == SIMULATED_METRIC for one in series)
            must_move = memory.layout.must_move or key in self._busy_servers
            if self._target_watch.frozen(scrape.target, scrape.body, report, must_move=must_move):
                report.reject(report.target(scrape.target), "", "stale", len(series))
                continue
            if self._target_watch.same_machine(scrape.target, memory.layout, report):
                live.append(_Live(memory, memory.state, scrape, scrape.body, memory.layout, offset, memory.places))
                offset += memory.layout.size
                own_clock = self._target_watch.clock(
                    scrape.target, scrape.body, report, skew_seconds=scrape.skew_seconds
                )
                scrape.age_seconds = scrape.age_seconds or own_clock
                if memory.layout.rejects:
                    report.reject_all(report.target(scrape.target), memory.layout.rejects)
        return live

    def _describe(self, live: Sequence[_Live]) -> bool:
        """Take what the present labels tell of cards; say whether it is anything new."""
        layouts = tuple(one.layout for one in live)
        if len(layouts) == len(self._layouts) and all(a is b for a, b in zip(layouts, self._layouts, strict=True)):
            return False
        self._layouts = layouts
        hosts = present_nodes((row for layout in layouts for row in layout.nodes), self._world.nodes)
        self._hosts = NodeBoard(hosts, self._world.registry.tables().kind)
        changed = False
        instances: dict[str, dict[str, str]] = {uuid: {} for layout in layouts for uuid in layout.uuids}
        for layout in layouts:
            for uuid, cut in layout.instances.items():
                known = instances[uuid]
                known.update((number, profile) for number, profile in cut.items() if profile or number not in known)
            for uuid, described in layout.described.items():
                facts = self._world.cards[uuid].facts
                if self._facts.steps(self._facts.card_subject(self._world.cards[uuid]), described):
                    self._world.registry.begin_anew(uuid=uuid)
                changed |= any(facts.get(name) != text for name, text in described.items())
                facts.update(described)
        for uuid, cut in instances.items():
            card = self._world.cards[uuid]
            changed |= card.instances != cut
            card.instances = cut
        return changed

    def _tell_versions(self, now: datetime, live: Sequence[_Live], report: Report) -> None:
        """Tell which exporters answer; another version of one may count otherwise than the one before."""
        for one in live:
            if not one.layout.version:
                continue
            subject = report.target(one.scrape.target)
            if self._facts.steps(subject, {"exporter_version": one.layout.version}):
                self._world.registry.begin_anew(target=one.state.key)
            self._facts.tell(subject, "exporter_version", one.layout.version, now)

    def _plan(self, live: Sequence[_Live]) -> Plan:
        """Return the layout of all targets together."""
        key = tuple(one.state.key for one in live)
        layouts = tuple(one.layout for one in live)
        known = self._plans.get(key)
        if known is not None and all(a is b for a, b in zip(known[0], layouts, strict=True)):
            return known[1]
        if len(self._plans) >= _PLANS_KEPT:
            self._plans.clear()
        instances: dict[int, int] = {}
        for layout in layouts:
            for uuid, cut in layout.instances.items():
                row = self._world.cards[uuid].row
                instances[row] = max(instances.get(row, 0), len(cut))
        plan = lay_out(
            self._world.registry,
            [one.layout.samples + one.offset for one in live],
            [layout.channels for layout in layouts],
            [layout.cards for layout in layouts],
            instances,
            intervals=[one.memory.interval_seconds for one in live],
        )
        self._plans[key] = (layouts, plan)
        return plan

    def _read_kube(self, scrapes: Sequence[Scrape], live: Sequence[_Live], raw: Floats, came: Bools) -> bool:
        """Read what Kubernetes says again where a value or a series changed; say whether it did."""
        changed = self._schedulers.take({target_key(one.target): (one.kube, one.demand) for one in scrapes})
        for one in live:
            if one.scrape.resting:
                continue
            if not one.layout.kube:
                changed |= self._kube_parts.pop(one.state.key, None) is not None
                continue
            known = self._kube_parts.get(one.state.key)
            if known is None or (known[0] is not one.body and not _same_body(known[0], one.body)):
                samples = [
                    (name, one.state.series(n), float(raw[one.offset + n]))
                    for n, name in one.layout.kube
                    if came[one.offset + n]
                ]
                self._kube_parts[one.state.key] = (one.body, samples)
                changed = True
        if changed:
            told = [read_kube_state(sample for _, part in self._kube_parts.values() for sample in part)]
            self._kube = merged_kube([*(told if self._kube_parts else []), *self._schedulers.kube])
        return changed

    def _present_cards(self, live: Sequence[_Live]) -> list[Card]:
        uuids = {uuid for one in live for uuid in one.layout.uuids}
        cards = [self._world.cards[uuid] for uuid in uuids]
        return sorted(cards, key=lambda card: (card.node, card.uuid))

    def _join(self, live: Sequence[_Live], cards: Sequence[Card], *, again: bool) -> bool:
        """Join anew where anybody's word about holders changed, or `again`; say whether it was done."""
        if not again and self._joined_layouts is self._layouts and not self._flapping:
            return False
        self._joined_layouts = self._layouts
        world = self._world
        holders: list[Holder] = []
        instance_rows: dict[tuple[str, str], int] = {}
        servers: dict[int, ServerChannels] = {}
        holders_known: set[str] = set()
        for one in live:
            holders += one.layout.holders
            holders_known |= one.layout.holders_known
            for uuid, instances in one.layout.instances.items():
                for instance, profile in instances.items():
                    if profile or (uuid, instance) not in instance_rows:
                        instance_rows[uuid, instance] = world.registry.row(("instance", uuid, instance, profile))
            servers.update((row, world.servers[row]) for row in one.layout.servers)
        # Cards that only a vGPU layer or a bare host's server speaks of have slices too.
        named = {card.uuid: card for card in cards}
        spoken_of = [holder.uuid for holder in holders] + [server.gpu for server in servers.values()]
        named.update((uuid, world.cards[uuid]) for uuid in spoken_of if uuid in world.cards)
        flapping = self._flapping = self._card_watch.flapping(holders, self._kube)
        said = (frozenset(holders), instance_rows, servers.keys(), named.keys(), holders_known, flapping)
        if said == self._said and not again:
            return False
        self._said = said
        join = join_slices(
            Claims(
                cards=list(named.values()),
                holders=holders,
                instance_rows=instance_rows,
                servers=list(servers.values()),
                kube=self._kube,
                context=self.context,
                holders_known=frozenset(holders_known),
                flapping=flapping,
                jobs=self._schedulers.jobs(),
            )
        )
        memory = {card.uuid: self._facts.memory_of(card) for card in named.values()}
        self._slices = index_slices(join, self.context.cluster, memory)
        return True

    def _add_queues(
        self, batch: Batch, now: datetime, facts: list[Fact], events: list[Event], rejects: list[Reject]
    ) -> None:
        """Add what schedulers tell of queues: their rows, and what their requests bring up."""
        told = read_queues(self._kube, self._schedulers.demand, self._queues, self.context, now)
        if told[0] is not None:
            batch.rows["queue"] = told[0]
        facts += told[1]
        events += told[2]
        rejects += told[3]

    def _compare_counts(self, live: Sequence[_Live], now: datetime, report: Report) -> None:
        """Compare how many cards each source counts, and tell of what no exporter shows; end the facts of who left."""
        for uuid in self._card_watch.departed:
            self._facts.end_card(uuid, now)
        self._card_watch.departed.clear()
        counted = self._schedulers.counted(self._kube, self._shared_nodes(live))
        unseen = self._card_watch.census.compare(counted, self._card_watch.counts(), report) if counted else {}
        self._facts.unobserved_cards(unseen, now)

    def _shared_nodes(self, live: Sequence[_Live]) -> frozenset[str]:
        """Return nodes whose cards a vGPU layer shares out, as its own exporters show."""
        if self._shared[0] is not self._layouts:
            layered = ("container", "allocation")
            nodes = {h.node for one in live for h in one.layout.holders if h.origin in layered}
            self._shared = self._layouts, frozenset(nodes)
        return self._shared[1]

    def _tell(self, now: datetime, cards: Sequence[Card]) -> None:
        describe_cards(self._facts, cards, self._world.registry, now)
        describe_slices(
            self._facts, self._slices.join.slices, self._quotas, self._world.registry, kube=self._kube, now=now
        )
        if self._kube is not None:
            describe_pods(self._facts, self._kube, now)
        self._facts.end_absent(now)

    def _add_slices(self, now: datetime, numbers: Numbers, ages: Mapping[str, float], batch: Batch) -> bool:
        """Add a row a slice; say whether a quota is another one than in the cycle before."""
        table = self._slices
        shares = table.join.slices
        if not shares:
            had, self._quotas = len(self._quotas) > 0, self._quotas[:0]
            return had
        matrix = slice_matrix(table, numbers)
        self._busy_servers = _at_work(table, matrix)
        own = (memory.interval_seconds for memory in self._targets.values())
        self._board.read(numbers, max((self.context.interval_seconds, *own)), matrix)
        add_flops(table, matrix)
        keep = any_value(matrix)
        fill_constants(table, numbers, matrix, ages)
        quotas = matrix[:, QUOTA_COLUMNS]
        changed = quotas.shape != self._quotas.shape or changed_quotas(self._quotas, quotas)
        self._quotas = quotas if changed else np.where(np.isnan(quotas), self._quotas, quotas)
        tags = table.tags
        waiting = np.zeros(len(shares), dtype=bool)
        waiting[table.waiting] = [self._facts.waits(shares[n], now) for n in table.waiting]
        now_ms = to_ms(now)
        held = np.flatnonzero(waiting & keep).tolist()
        self._held = _Held(now_ms, [(shares[n], matrix[n].copy()) for n in held])
        overdue = np.zeros(len(shares), dtype=bool)
        overdue[table.waiting] = ~waiting[table.waiting]
        if overdue.any():
            unknown = {name: pc.if_else(pa.array(overdue), UNKNOWN, tags[name]) for name in ("tenant", "workload")}
            tags = {**tags, **unknown}
        add_rows(batch, "slice", now_ms, *kept(tags, matrix, keep & ~waiting))
        return changed

    def _seat_servers(self) -> None:
        """Work out which channels of which server feed which slice."""
        pairs = server_pairs(self._slices)
        shares = [self._slices.join.slices[n] for n, _ in pairs]
        objectives = [
            self._facts.declaration(share.tenant, share.workload, self._kube).declaration.objective for share in shares
        ]
        self._board = ServerBoard([n for n, _ in pairs], [server for _, server in pairs], objectives)
        for share, quantity in zip(shares, self._board.quantities, strict=True):
            self._facts.latency_quantity(share, quantity)

    def _release(self, batch: Batch) -> None:
        """Add rows that waited: with their holder if he is known by now, else as unknown."""
        held, self._held = self._held, _Held(0)
        if not held.rows:
            return
        present = {(share.card.uuid, share.slice): share for share in self._slices.join.slices}
        tags: dict[str, list[str]] = {tag: [] for tag in SLICE.tags}
        for share, _ in held.rows:
            later = present.get((share.card.uuid, share.slice))
            owner = (UNKNOWN, UNKNOWN)
            if later is not None and not later.waiting and later.pod_key == share.pod_key:
                owner = (later.tenant, later.workload)
            values = (self.context.cluster, share.card.node, share.card.uuid, share.slice, *owner)
            for tag, value in zip(SLICE.tags, values, strict=True):
                tags[tag].append(value)
        columns = {tag: pa.array(values, pa.string()) for tag, values in tags.items()}
        add_rows(batch, "slice", held.now_ms, columns, np.stack([values for _, values in held.rows]))

    def _report_samples(self, numbers: Numbers, report: Report) -> None:
        """Count invalid samples by subject, field and reason; tell of counters that fell."""
        registry = self._world.registry
        counts: dict[tuple[Subject, str, str], int] = {}
        for channel, reason in numbers.invalid:
            row, field_name = registry.where(channel)
            key = (self._subject(registry.row_key(row)), field_name, reason)
            counts[key] = counts.get(key, 0) + 1
        for (subject, field_name, reason), count in counts.items():
            report.reject(subject, field_name, reason, count)
        for uuid, count in numbers.dead_cards(self._world.card_list):
            report.reject(self._subject(("gpu", uuid)), "", "zero_scrape", count)
        fallen: dict[Subject, str] = {}
        for channel in numbers.fallen.tolist():
            row, field_name = registry.where(channel)
            fallen.setdefault(self._subject(registry.row_key(row)), field_name)
        for subject, field_name in fallen.items():
            report.event(subject, "counter_reset", Severity.INFO, f"{field_name} fell: its source started anew")

    def _subject(self, key: tuple[str, ...]) -> Subject:
        """Return whom a row of numbers is about."""
        cluster, kind = self.context.cluster, key[0]
        if kind == "server":
            return Subject("pod", cluster, object=f"{key[1]}/{key[2]}" if key[2] else key[4])
        if kind == "node":
            return Subject("node", cluster, key[1])
        node = self._world.cards[key[1]].node
        if kind == "process":
            return Subject("slice", cluster, node, key[1], key[2])
        if kind == "gpu":
            return Subject("gpu", cluster, node, key[1])
        if kind == "instance":
            return Subject("slice", cluster, node, key[1], f"gi{key[2]}")
        row = self._world.registry.row(key)
        known = (one for one in self._slices.join.slices if one.base == row or row in one.allocations)
        share = next(known, None)
        return Subject("slice", cluster, node, key[1], share.slice if share else f"{key[2]}/{key[3]}/{key[4]}/0")


def _values(live: Sequence[_Live]) -> tuple[Floats, Bools]:
    """Return the values of all targets in the order of their layouts, NaN where one is missing, and which are not."""
    flat = np.concatenate([np.empty(0), *(one.body.values for one in live)])
    if all(one.places is None for one in live):
        return flat, np.ones(len(flat), dtype=bool)
    places: list[Ints] = []
    for one in live:
        own = np.arange(one.layout.size) if one.places is None else one.places
        places.append(own + one.offset)
    size = sum(one.layout.size for one in live)
    raw, came = np.full(size, np.nan), np.zeros(size, dtype=bool)
    index = np.concatenate(places)
    raw[index], came[index] = flat, True
    return raw, came


def _reasons(live: Sequence[_Live]) -> dict[int, str]:
    """Return why values are invalid, by their position among those of all targets."""
    return {
        one.offset + (index if one.places is None else int(one.places[index])): reason
        for one in live
        for index, reason in one.body.reasons.items()
    }


def _same_body(one: Exposition, other: Exposition) -> bool:
    return one.series == other.series and np.array_equal(one.values, other.values, equal_nan=True)


def _read_facts(live: Sequence[_Live], raw: Floats) -> bool:
    """Keep values that are facts of cards; say whether any is new."""
    changed = False
    for one in live:
        if one.scrape.resting:
            continue
        values = raw[one.offset + one.layout.fact_places]
        if not one.memory.facts.moved(one.layout, values):
            continue
        for value, reading in zip(
            (values * [fact.scale for fact in one.layout.facts]).tolist(), one.layout.facts, strict=True
        ):
            if math.isfinite(value):
                text = f"{value:.15g}"
                changed |= reading.card.facts.get(reading.name) != text
                reading.card.facts[reading.name] = text
    return changed


def _xids(live: Sequence[_Live], raw: Floats) -> list[tuple[XidReading, float]]:
    """Return the readings of targets where any differs from the last cycle's, or tells of this cycle alone."""
    readings: list[tuple[XidReading, float]] = []
    for one in live:
        if one.scrape.resting:
            continue
        values = raw[one.offset + one.layout.xid_places]
        if one.memory.xids.moved(one.layout, values) or one.layout.new_xids:
            readings += zip(one.layout.xids, values.tolist(), strict=True)
    return readings


def _at_work(table: SliceTable, matrix: Floats) -> frozenset[str]:
    """Return targets of servers whose slices' own counters show work, where a server's own would have to move."""
    pairs = server_pairs(table)
    if not pairs:
        return frozenset()
    busy = np.asarray((matrix[:, _ACTIVITY] > _AT_WORK).any(axis=1))
    return frozenset(server.target for n, server in pairs if busy[n])


def _reject_homeless(join: Join, report: Report) -> None:
    pods = [f"{one.namespace}/{one.pod}" if one.pod else one.target for one in join.homeless]
    for name in dict.fromkeys((*pods, *join.uncovered)):
        report.reject(Subject("pod", report.cluster, object=name), "", "no slice known of this pod")
