"""Parsed samples of one cycle become one batch in the schema.

The assembler holds what is remembered between cycles: how targets were laid out (`intake`), the last raw value of each
counter, which cards and targets were there, the slices as they were joined last (`slice_board`). What a later start
needs of it is plain data, through `export_state` and `import_state`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.batch import Batch, Event, Fact, Reject, Subject
from collector.card_watch import CardWatch
from collector.clock import to_ms
from collector.corrections import check_profiles, correct_cards, correct_shares
from collector.counters import CounterBook
from collector.cycle import Plan, evaluate, lay_out
from collector.describe import describe_cards, describe_pods, describe_slices, learn_memory
from collector.facts import FactBook
from collector.health import XidWatch
from collector.intake import (
    SIMULATED_METRIC,
    Intake,
    Live,
    Scrape,
    invalid_reasons,
    read_facts,
    sample_values,
    strike_doubles,
    xid_readings,
)
from collector.join import Claims, join_slices
from collector.kube import KubeState
from collector.kube_texts import KubeTexts
from collector.layout import Registry
from collector.mappings import mapping_table
from collector.memory import give_back_free_memory
from collector.nodes import NodeBoard, present_nodes
from collector.plugins import SourceContext
from collector.queues import QueueBook, read_queues
from collector.report import Report
from collector.rows import CardTable, add_cards, add_hosts, index_cards
from collector.sample_report import reject_homeless, report_samples
from collector.schedulers.board import SchedulerBoard
from collector.schedulers.pods import merged_kube
from collector.slice_board import SliceBoard
from collector.slots import Card, Holder, ServerChannels, World, target_key
from collector.targets import Arrangement

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

__all__ = ["SIMULATED_METRIC", "Assembler", "Scrape"]

_PLANS_KEPT = 3  # of all targets, and of those that answer while some do not
# Numbers of rows and channels are never given back one by one: with pods that come and go they are all given out anew
# once there are twice as many, and so many more, as are in use. Counters of subjects that left wait a week for them.
_SPARE_CHANNELS = 20_000
_COUNTERS_KEPT_MS = 7 * 86_400_000


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
        self._intake = Intake(context, self._world)
        self._channels_in_use = 0  # when numbers were last given out; 0: not known yet
        self._plans: dict[tuple[str, ...], tuple[tuple[Arrangement, ...], Plan]] = {}
        self._kube: KubeState | None = None
        self._kube_texts = KubeTexts()
        self._schedulers = SchedulerBoard()
        self._said: object = None
        self._layouts: tuple[Arrangement, ...] = ()
        self._joined_layouts: tuple[Arrangement, ...] = ()
        self._flapping: frozenset[str] = frozenset()
        self._shared: tuple[tuple[Arrangement, ...], frozenset[str]] = ((), frozenset())
        self._cards: CardTable | None = None
        self._hosts = NodeBoard([], self._world.registry.kinds)
        self._facts = FactBook(context)
        self._slices = SliceBoard(context.cluster, self._facts)
        self._queues = QueueBook()
        self._card_watch = CardWatch(context)
        self._xids = XidWatch()

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
        self._keep_numbers_few(now_ms)
        live = self._intake.take(scrapes, report, self._slices.busy_servers)
        laid_out = self._layouts
        changed = self._describe(live)
        self._tell_versions(now, live, report)
        plan = self._plan(live)
        raw, came = sample_values(live)
        unlike = strike_doubles(live, raw, came, report)
        changed |= self._read_kube(scrapes, live, raw, came) | read_facts(live, raw)
        numbers = evaluate(
            plan,
            self._world.registry,
            raw,
            came,
            now_ms=now_ms,
            interval_seconds=self.context.interval_seconds,
            reasons={**invalid_reasons(live), **unlike},
        )
        report_samples(numbers, self._world, self._slices.rows, report)
        if self._cards is None or laid_out is not self._layouts:
            self._cards = index_cards(self._present_cards(live), self.context.cluster)
        cards = self._cards.cards
        xids = xid_readings(live, raw)
        self._xids.observe(xids, self._world.cards, report)
        correct_cards(numbers, self._cards, self._world.registry, report)
        shown = {one.state.key: (one.layout, one.scrape.age_seconds) for one in live}
        ages = self._card_watch.observe(cards, numbers, shown, report)
        self._compare_counts(live, now, report)
        if changed or laid_out is not self._layouts:
            learn_memory(self._facts, cards, numbers)
        changed |= self._join(live, cards, again=changed)
        if changed or laid_out is not self._layouts:
            self._slices.seat_servers(self._kube)
        correct_shares(numbers, self._slices.rows, report)
        batch = Batch()
        add_cards(batch, self._cards, numbers, ages, now_ms, frozen=self._card_watch.frozen)
        add_hosts(batch, self._hosts, numbers, self.context, now_ms=now_ms)
        self._slices.release(batch)
        longest = max(self.context.interval_seconds, self._intake.longest_interval_seconds())
        changed |= self._slices.add(now, numbers, ages, batch, interval_seconds=longest)
        if changed or laid_out is not self._layouts:  # a field that is new has an origin to tell
            check_profiles(numbers, self._slices.rows, report)
            self._tell(now, cards)
        if self._intake.simulated:
            self._facts.tell(Subject("cluster", self.context.cluster), "simulated", "true", now)
        facts, events, rejects = self._facts.drain()
        if self._kube is not None or self._schedulers.demand is not None:
            self._add_queues(batch, now, facts, events, rejects)
        reject_homeless(self._slices.table.join, report)
        batch.facts = facts
        batch.events = report.events + events
        batch.rejects = report.rejects + rejects
        if changed or xids or batch.facts or batch.events or laid_out is not self._layouts:
            self.state_version += 1
        return batch

    def _keep_numbers_few(self, now_ms: int) -> None:
        size = self._world.registry.size
        if self._channels_in_use and size > 2 * self._channels_in_use + _SPARE_CHANNELS:
            # What targets say that were not there yet when it was counted, as at a start, is in use too.
            self._channels_in_use = max(self._channels_in_use, sum(len(one.channels) for one in self._layouts))
            if size > 2 * self._channels_in_use + _SPARE_CHANNELS:
                self._give_out_numbers_anew(now_ms)
        elif not self._channels_in_use and self._layouts:
            self._channels_in_use = size

    def _give_out_numbers_anew(self, now_ms: int) -> None:
        """Forget rows, channels and targets that are gone; what is still there is laid out anew in this cycle."""
        self.counters.compact(now_ms - _COUNTERS_KEPT_MS)
        before = self._world
        self._world = World(before.table, Registry(self.counters), mig=before.mig, mig_version=before.mig_version)
        self._channels_in_use = 0
        self._intake.begin_anew(self._world)
        self._plans = {}
        self._layouts = self._joined_layouts = ()
        self._shared = ((), frozenset())
        self._cards = self._said = None
        self.state_version += 1

    def export_state(self, *, counters: bool = True) -> dict[str, Any]:
        """Return what a later start needs to go on, as plain JSON values; `counters` may be kept apart."""
        return {
            **({"counters": self.counters.to_json()} if counters else {}),
            "targets": self._intake.watch.to_json(),
            "cards": self._card_watch.to_json(),
            "xids": self._xids.to_json(),
            "facts": self._facts.to_json(),
        }

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `export_state` returned."""
        self.counters.load_json(state.get("counters", {}))
        self._intake.watch.load_json(state.get("targets", {}))
        self._card_watch.load_json(state.get("cards", {}))
        self._xids.load_json(state.get("xids", {}))
        self._facts.load_json(state.get("facts", {}))

    def _describe(self, live: Sequence[Live]) -> bool:
        """Take what the present labels tell of cards; say whether it is anything new."""
        layouts = tuple(one.layout for one in live)
        if len(layouts) == len(self._layouts) and all(a is b for a, b in zip(layouts, self._layouts, strict=True)):
            return False
        self._layouts = layouts
        hosts = present_nodes((row for layout in layouts for row in layout.nodes), self._world.nodes)
        self._hosts = NodeBoard(hosts, self._world.registry.kinds)
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

    def _tell_versions(self, now: datetime, live: Sequence[Live], report: Report) -> None:
        """Tell which exporters answer; another version of one may count otherwise than the one before."""
        for one in live:
            if not one.layout.version:
                continue
            subject = report.target(one.scrape.target)
            if self._facts.steps(subject, {"exporter_version": one.layout.version}):
                self._world.registry.begin_anew(target=one.state.key)
            self._facts.tell(subject, "exporter_version", one.layout.version, now)

    def _plan(self, live: Sequence[Live]) -> Plan:
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
        give_back_free_memory()  # to learn what targets say takes far more than it leaves
        return plan

    def _read_kube(self, scrapes: Sequence[Scrape], live: Sequence[Live], raw: Floats, came: Bools) -> bool:
        """Read what Kubernetes and schedulers say again where any of it changed; say whether it did."""
        changed = self._schedulers.take({target_key(one.target): (one.kube, one.demand) for one in scrapes})
        changed |= self._kube_texts.read(live, raw, came)
        if changed:
            self._kube = merged_kube([*self._kube_texts.states(), *self._schedulers.kube])
        return changed

    def _present_cards(self, live: Sequence[Live]) -> list[Card]:
        uuids = {uuid for one in live for uuid in one.layout.uuids}
        cards = [self._world.cards[uuid] for uuid in uuids]
        return sorted(cards, key=lambda card: (card.node, card.uuid))

    def _join(self, live: Sequence[Live], cards: Sequence[Card], *, again: bool) -> bool:
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
        self._slices.seat(join, named)
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

    def _compare_counts(self, live: Sequence[Live], now: datetime, report: Report) -> None:
        """Compare how many cards each source counts, and tell of what no exporter shows; end the facts of who left."""
        for uuid in self._card_watch.departed:
            self._facts.end_card(uuid, now)
        self._card_watch.departed.clear()
        counted = self._schedulers.counted(self._kube, self._shared_nodes(live))
        unseen = self._card_watch.census.compare(counted, self._card_watch.counts(), report) if counted else {}
        self._facts.unobserved_cards(unseen, now)

    def _shared_nodes(self, live: Sequence[Live]) -> frozenset[str]:
        """Return nodes whose cards a vGPU layer shares out, as its own exporters show."""
        if self._shared[0] is not self._layouts:
            layered = ("container", "allocation")
            nodes = {h.node for one in live for h in one.layout.holders if h.origin in layered}
            self._shared = self._layouts, frozenset(nodes)
        return self._shared[1]

    def _tell(self, now: datetime, cards: Sequence[Card]) -> None:
        describe_cards(self._facts, cards, self._world.registry, now)
        describe_slices(
            self._facts, self._slices.rows, self._slices.quotas, self._world.registry, kube=self._kube, now=now
        )
        if self._kube is not None:
            describe_pods(self._facts, self._kube, now)
        self._facts.end_absent(now)
