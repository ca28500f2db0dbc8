"""What one series means: the channels it feeds, the card it speaks of, who it says holds that card.

Worked out once a series of a target, by the mapping tables and the rules that exporters' quirks ask for; when a target's
list of series changes only new series are looked at, and `TargetState.arrange` lays the known ones out again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from collector.exposition import Series
from collector.gpu_models import SliceShare, gpu_model, slice_share
from collector.layout import NOWHERE, Registry
from collector.mappings import ExporterMapping, MappedMetric, MappingTable
from collector.settings import TargetSettings

_EXPORTER_POD = re.compile(r"^(?:nvidia-)?dcgm-exporter|^hami-|^kube-prometheus|^prometheus-")
_BARE_UUID = re.compile(r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-")
_NO_UUID = re.compile(r"^[0-]*$")
_NO_PARTITION = frozenset(("", "NA", "4294967295"))
_COMPUTE_RATIOS = frozenset(f"{name}_active_ratio" for name in ("engine", "sm", "tensor", "fp64", "fp32", "fp16")) | {
    "sm_occupancy_ratio"
}
# A card's own figure under MIG is not what it seems; the sum over its instances goes before it. For memory the other
# way round: what is used outside of instances is known only by the card's own figure.
_SUM_BEFORE, _SUM_BEHIND = -5, 5
_PER_PROCESS_FIELDS = frozenset(("busy_ratio", "memory_used_bytes"))
SUMMED_OVER_INSTANCES = _COMPUTE_RATIOS | {"dram_active_ratio", "memory_used_bytes"}


@dataclass(slots=True, eq=False)
class Card:
    """A physical card, as exporters describe it. `facts` are texts by the fact's name."""

    uuid: str
    node: str
    row: int
    number: int
    assumed: bool = False
    model: str = ""
    ordinal: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)  # GPU instance id -> profile
    preference: int = 10**6


@dataclass(frozen=True, slots=True)
class Holder:
    """Somebody who holds a card, an instance or a share, as one exporter says."""

    uuid: str
    instance: str
    namespace: str
    pod: str
    container: str
    shared: bool  # one of several by the exporter's own word
    origin: str  # device, container (a vGPU layer's monitor) or allocation (its scheduler)
    place: str = ""
    row: int = NOWHERE
    node: str = ""


@dataclass(slots=True)
class Part:
    """One use of a series. `copies`: where it goes if the device has no series of its own, `own` if it has."""

    metric: int
    rank: int
    channels: tuple[int, ...]
    own: tuple[int, ...] = ()
    device_key: tuple[str, str] | None = None
    labelled: bool = False


@dataclass(slots=True)
class XidReading:
    """A series that tells of XIDs. `nature` as in the mapping table, `code` from a label where there is one."""

    uuid: str
    instance: str
    nature: str
    code: str
    text: str


@dataclass(slots=True)
class Reading:
    """A value that is a fact of a card."""

    card: Card
    name: str
    scale: float


@dataclass(slots=True)
class Slot:
    """Everything that one series means."""

    parts: list[Part] = field(default_factory=list)
    card: int = -1
    holder: Holder | None = None
    xid: XidReading | None = None
    fact: Reading | None = None
    kube: str = ""
    reject: str = ""
    hostname: str = ""
    server: int = NOWHERE
    index: tuple[str, str] | None = None  # (uuid, index) for the check that no UUID is used twice


@dataclass(slots=True)
class ServerChannels:
    """Channels of one server that are read by hand: bound -> channels a quantity, quantile -> channel, sum and count."""

    row: int
    namespace: str
    pod: str
    container: str
    target: str
    gpu: str = ""  # a bare host's server says its card itself
    buckets: dict[str, dict[float, list[int]]] = field(default_factory=dict)
    summaries: dict[str, dict[float, int]] = field(default_factory=dict)
    step_sums: list[int] = field(default_factory=list)
    step_counts: list[int] = field(default_factory=list)
    step_scale: float = 1.0


@dataclass(slots=True)
class World:
    """What all targets of an assembler share: the mapping, the numbers of rows, the cards, the servers."""

    table: MappingTable
    registry: Registry
    cards: dict[str, Card] = field(default_factory=dict)
    card_list: list[Card] = field(default_factory=list)
    servers: dict[int, ServerChannels] = field(default_factory=dict)
    metric_numbers: dict[int, int] = field(default_factory=dict)

    def metric_number(self, mapped: MappedMetric) -> int:
        """Return a number for a row of the mapping table, in the order of first use of its exporter."""
        number = self.metric_numbers.get(id(mapped.row))
        if number is None:
            for row in mapped.exporter.metric:
                self.metric_numbers.setdefault(id(row), len(self.metric_numbers))
            number = self.metric_numbers[id(mapped.row)]
        return number

    def card(self, uuid: str, node: str, preference: int, *, assumed: bool) -> Card:
        """Return the card; its node is the one that the most preferred exporter says."""
        card = self.cards.get(uuid)
        if card is None:
            card = Card(uuid, node, self.registry.row(("gpu", uuid)), len(self.card_list), assumed=assumed)
            self.cards[uuid] = card
            self.card_list.append(card)
        if node and preference < card.preference:
            card.node, card.preference = node, preference
        return card


@dataclass(slots=True)
class Arrangement:
    """A target's present list of series, laid out: which sample feeds which channel."""

    samples: NDArray[np.int64]
    channels: NDArray[np.int64]
    cards: NDArray[np.int64]
    holders: list[Holder]
    xids: list[tuple[int, XidReading]]
    facts: list[tuple[int, Reading]]
    kube: list[tuple[int, str]]
    uuids: frozenset[str]
    instances: dict[str, set[str]]
    hostnames: frozenset[str]
    rejects: dict[str, int]
    holders_known: bool
    servers: list[int] = field(default_factory=list)


class TargetState:
    """What is known of one target from cycle to cycle."""

    def __init__(self, target: TargetSettings, world: World) -> None:
        self.target = target
        self.key = target_key(target)
        self._world = world
        self._slots: dict[Series, Slot] = {}

    def arrange(self, series: Sequence[Series]) -> Arrangement:
        """Lay out a list of series; only those never seen before are looked at closely."""
        known = self._slots
        slots = []
        for one in series:
            slot = known.get(one)
            if slot is None:
                slot = known[one] = self._slot(one)
            slots.append(slot)
        if len(known) > 2 * len(slots) + 1024:
            self._slots = {one: known[one] for one in series}
        twice = _used_twice(slots)
        ranks: dict[int, int] = {}
        own: set[tuple[str, str]] = set()
        for slot in slots:
            for part in slot.parts:
                ranks[part.metric] = min(part.rank, ranks.get(part.metric, part.rank))
                if part.device_key is not None and not part.labelled:
                    own.add(part.device_key)
        samples: list[int] = []
        channels: list[int] = []
        cards: list[int] = []
        result = Arrangement(
            samples=np.empty(0, dtype=np.int64),
            channels=np.empty(0, dtype=np.int64),
            cards=np.empty(0, dtype=np.int64),
            holders=[],
            xids=[],
            facts=[],
            kube=[],
            uuids=frozenset(),
            instances={},
            hostnames=frozenset(),
            rejects={},
            holders_known=False,
        )
        holders: dict[Holder, None] = {}
        uuids: set[str] = set()
        for index, slot in enumerate(slots):
            if slot.index is not None and slot.index[0] in twice:
                result.rejects["one UUID for several cards"] = result.rejects.get("one UUID for several cards", 0) + 1
                continue
            if slot.reject:
                result.rejects[slot.reject] = result.rejects.get(slot.reject, 0) + 1
            for part in slot.parts:
                if part.rank != ranks[part.metric]:
                    continue
                for channel in part.own if part.labelled and part.device_key in own else part.channels:
                    samples.append(index)
                    channels.append(channel)
                    cards.append(slot.card)
            if slot.holder is not None:
                holders[slot.holder] = None
            if slot.index is not None:
                uuids.add(slot.index[0])
            if slot.xid is not None:
                result.xids.append((index, slot.xid))
            if slot.fact is not None:
                result.facts.append((index, slot.fact))
            if slot.kube:
                result.kube.append((index, slot.kube))
        result.samples = np.array(samples, dtype=np.int64)
        result.channels = np.array(channels, dtype=np.int64)
        result.cards = np.array(cards, dtype=np.int64)
        result.holders = list(holders)
        result.uuids = frozenset(uuids)
        result.hostnames = frozenset(slot.hostname for slot in slots if slot.hostname)
        result.servers = sorted({slot.server for slot in slots if slot.server != NOWHERE})
        result.holders_known = any(holder.origin == "device" for holder in holders)
        for one, slot in zip(series, slots, strict=True):
            instance = one.labels.get("GPU_I_ID", "")
            if instance and slot.index is not None:
                result.instances.setdefault(slot.index[0], set()).add(instance)
        return result

    def _slot(self, series: Series) -> Slot:
        slot = Slot()
        for mapped in self._world.table.find(series.name, series.labels):
            reader = _READERS[mapped.exporter.subject]
            reader(self, series, mapped, slot)
        return slot

    def _rank(self, series: Series, mapped: MappedMetric) -> int:
        suffix = {"bucket": "_bucket", "sum": "_sum", "count": "_count"}.get(mapped.part, "")
        for rank, name in enumerate(mapped.row.metric):
            if series.name in (name, name + suffix):
                return rank
        return 0

    def _order(self, mapped: MappedMetric, shift: int = 0) -> tuple[int, int]:
        adds = mapped.row.adds_to_field
        return mapped.exporter.preference + shift, 0 if adds else self._world.metric_number(mapped)

    def _device(self, series: Series, mapped: MappedMetric, slot: Slot) -> None:
        world, labels, exporter, metric = self._world, series.labels, mapped.exporter, mapped.row
        node = self.node(labels, exporter)
        uuid, assumed = _uuid(labels, exporter, node)
        if not uuid:
            slot.reject = "no device named"
            return
        if _foreign_partition(labels):
            return
        card = world.card(uuid, node, exporter.preference, assumed=assumed)
        _describe(card, labels, exporter)
        index = pick(labels, exporter.index)
        slot.card, slot.index = card.number, (uuid, index)
        slot.hostname = "" if self.target.node else pick(labels, exporter.node)
        instance = labels.get("GPU_I_ID", "")
        if instance:
            card.instances[instance] = labels.get("GPU_I_PROFILE", "")
        namespace, pod, container = _holder_names(labels, exporter)
        labelled = bool(pod) and not instance
        if pod:
            slot.holder = Holder(uuid, instance, namespace, pod, container, "vgpu" in labels, "device", node=node)
        if metric.measurement == "event":
            text = labels.get("err_msg", "")
            slot.xid = XidReading(uuid, instance, metric.nature, labels.get("xid", ""), text)
            return
        if metric.measurement == "fact":
            if metric.field != "labels":
                slot.fact = Reading(card, metric.field, metric.scale)
            return
        part = Part(
            world.metric_number(mapped),
            self._rank(series, mapped),
            (),
            device_key=(uuid, series.name),
            labelled=labelled,
        )
        own_part = tuple(labels.get(name, "") for name in metric.adds_up)
        if metric.adds_to_field:
            own_part = (metric.metric[0], *own_part)
        if instance and metric.mig == "absent":
            return
        if instance and metric.mig == "instance":
            part.channels = self._instance_channels(mapped, card, instance)
            part.device_key = None
        else:
            entry = world.registry.entry(self.key, card.row, metric.field, self._order(mapped))
            channel = world.registry.channel(self.key, card.row, mapped, own_part, entry=entry, field_name=metric.field)
            part.channels = (channel,)
        if labelled and metric.per_process and "vgpu" in labels and metric.field in _PER_PROCESS_FIELDS:
            row = world.registry.row(("container", uuid, namespace, pod, container))
            entry = world.registry.entry(self.key, row, metric.field, self._order(mapped))
            part.own = (world.registry.channel(self.key, row, mapped, entry=entry, field_name=metric.field),)
            slot.holder = Holder(uuid, "", namespace, pod, container, True, "device", row=row, node=node)  # noqa: FBT003
        slot.parts.append(part)

    def _instance_channels(self, mapped: MappedMetric, card: Card, instance: str) -> tuple[int, ...]:
        """Return the instance's own channel and, for what adds up, its part of the whole card."""
        registry, name = self._world.registry, mapped.row.field
        profile = card.instances[instance]
        row = registry.row(("instance", card.uuid, instance, profile))
        share = instance_share(card, instance)
        factor = 1.0
        if name in _COMPUTE_RATIOS:
            factor = share.compute if share else math.nan
        elif name == "dram_active_ratio":
            factor = share.memory if share else math.nan
        entry = registry.entry(self.key, row, name, self._order(mapped))
        own = registry.channel(self.key, row, mapped, entry=entry, field_name=name, share=factor)
        if name not in SUMMED_OVER_INSTANCES:
            return (own,)
        shift = _SUM_BEHIND if name == "memory_used_bytes" else _SUM_BEFORE
        total = registry.entry(self.key, card.row, name, self._order(mapped, shift), strict=True)
        part = registry.channel(
            self.key, card.row, mapped, (instance, profile), entry=total, field_name=name, share=factor
        )
        return own, part

    def _container(self, series: Series, mapped: MappedMetric, slot: Slot) -> None:
        labels, exporter, registry = series.labels, mapped.exporter, self._world.registry
        uuid = pick(labels, exporter.uuid)
        namespace, pod, container = _holder_names(labels, exporter)
        if not uuid or not pod:
            slot.reject = "no container named"
            return
        row = registry.row(("container", uuid, namespace, pod, container))
        place = pick(labels, exporter.index)
        node = self.node(labels, exporter)
        self._world.card(uuid, node, exporter.preference, assumed=False)
        slot.holder = Holder(uuid, "", namespace, pod, container, True, "container", place, row, node)  # noqa: FBT003
        self._simple_part(series, mapped, slot, row)

    def _allocation(self, series: Series, mapped: MappedMetric, slot: Slot) -> None:
        labels, exporter, registry = series.labels, mapped.exporter, self._world.registry
        uuid = pick(labels, exporter.uuid)
        namespace, pod, container = _holder_names(labels, exporter)
        if not uuid or not pod:
            slot.reject = "no container named"
            return
        row = registry.row(("allocation", uuid, namespace, pod, container))
        node = pick(labels, exporter.node)
        self._world.card(uuid, node, exporter.preference, assumed=False)
        slot.holder = Holder(uuid, "", namespace, pod, container, True, "allocation", row=row, node=node)  # noqa: FBT003
        self._simple_part(series, mapped, slot, row)

    def _simple_part(self, series: Series, mapped: MappedMetric, slot: Slot, row: int) -> None:
        world, name = self._world, mapped.row.field
        entry = world.registry.entry(self.key, row, name, self._order(mapped))
        channel = world.registry.channel(self.key, row, mapped, entry=entry, field_name=name)
        slot.parts.append(Part(world.metric_number(mapped), self._rank(series, mapped), (channel,)))

    def _server(self, series: Series, mapped: MappedMetric, slot: Slot) -> None:
        world, labels, metric = self._world, series.labels, mapped.row
        target_labels = self.target.labels
        namespace, pod, container = _holder_names({**target_labels, **labels}, mapped.exporter)
        row = world.registry.row(("server", namespace, pod, container, "" if pod else self.key))
        server = world.servers.get(row)
        if server is None:
            gpu = target_labels.get("gpu", "")
            server = world.servers[row] = ServerChannels(row, namespace, pod, container, self.key, gpu)
            if gpu:
                world.card(gpu, self.node({}, mapped.exporter), mapped.exporter.preference, assumed=False)
        slot.server = row
        part_name = tuple(labels.get(name, "") for name in metric.adds_up)
        if metric.adds_to_field:
            part_name = (metric.metric[0], *part_name)
        part = Part(world.metric_number(mapped) * 4 + _PART_NUMBER[mapped.part], self._rank(series, mapped), ())
        if metric.nature == "histogram":
            part.channels = self._bucket_channels(labels, mapped, server, part_name)
        elif metric.nature == "mean":
            channel = world.registry.channel(self.key, row, mapped, part_name, held=True)
            channels = server.step_sums if mapped.part == "sum" else server.step_counts
            if channel not in channels:
                channels.append(channel)
            if mapped.part == "sum":
                server.step_scale = metric.scale
            part.channels = (channel,)
        elif metric.nature == "summary":
            quantile = labels.get("quantile", "")
            if not quantile:
                return
            channel = world.registry.channel(self.key, row, mapped, (quantile, *part_name))
            server.summaries.setdefault(metric.quantity, {})[float(quantile)] = channel
            part.channels = (channel,)
        else:
            strict = metric.nature == "gauge" and bool(metric.adds_up)
            entry = world.registry.entry(self.key, row, metric.field, self._order(mapped), strict=strict)
            channel = world.registry.channel(self.key, row, mapped, part_name, entry=entry, field_name=metric.field)
            part.channels = (channel,)
        slot.parts.append(part)

    def _bucket_channels(
        self, labels: Mapping[str, str], mapped: MappedMetric, server: ServerChannels, part_name: tuple[str, ...]
    ) -> tuple[int, ...]:
        if mapped.part != "bucket" or "le" not in labels:
            return ()
        try:
            bound = float(labels["le"]) * mapped.row.scale
        except ValueError:
            return ()
        channel = self._world.registry.channel(self.key, server.row, mapped, (labels["le"], *part_name), held=True)
        channels = server.buckets.setdefault(mapped.row.quantity, {}).setdefault(bound, [])
        if channel not in channels:
            channels.append(channel)
        return (channel,)

    def _kube(self, _series: Series, mapped: MappedMetric, slot: Slot) -> None:
        slot.kube = mapped.row.field

    def node(self, labels: Mapping[str, str], exporter: ExporterMapping) -> str:
        """Return the node: the target's own word, else a label that is no pod's name, else the address's host."""
        if self.target.node:
            return self.target.node
        for name in ("node", "kubernetes_node", "nodename"):
            if self.target.labels.get(name):
                return self.target.labels[name]
        said = pick(labels, exporter.node)
        if said and said != "localhost" and not _EXPORTER_POD.match(said):
            return said
        return urlsplit(self.target.url).hostname or said or "unknown"


_READERS = {
    "device": TargetState._device,
    "container": TargetState._container,
    "allocation": TargetState._allocation,
    "server": TargetState._server,
    "kube": TargetState._kube,
}
_PART_NUMBER = {"": 0, "bucket": 1, "sum": 2, "count": 3}


def target_key(target: TargetSettings) -> str:
    """Return the text by which a target is known from cycle to cycle."""
    return target.url


def pick(labels: Mapping[str, str], names: Sequence[str]) -> str:
    """Return the first label of `names` that has a value; `exported_` ones go first, they are the workload's own."""
    for name in names:
        value = labels.get("exported_" + name) or labels.get(name)
        if value:
            return value
    return ""


def instance_share(card: Card, instance: str) -> SliceShare | None:
    """Return which share of its card a MIG instance is; None where its profile is not said."""
    model = gpu_model(card.model) if card.model else None
    return slice_share(model, card.instances.get(instance, ""))


def _uuid(labels: Mapping[str, str], exporter: ExporterMapping, node: str) -> tuple[str, bool]:
    """Return the card's identity and whether it is assumed from an index for want of a UUID."""
    uuid = pick(labels, exporter.uuid)
    if exporter.uuid_prefix and _BARE_UUID.match(uuid):
        return exporter.uuid_prefix + uuid, False
    if uuid and not _NO_UUID.match(uuid):
        return uuid, False
    index = pick(labels, exporter.index)
    return (f"{node}/{index}", True) if index else ("", True)


def _foreign_partition(labels: Mapping[str, str]) -> bool:
    """Say whether it is an AMD partition other than the first: those repeat or zero the card's sensors."""
    partition = labels.get("gpu_partition_id", "0")
    return partition not in _NO_PARTITION and partition != "0"


def _describe(card: Card, labels: Mapping[str, str], exporter: ExporterMapping) -> None:
    model = pick(labels, exporter.model)
    if model and not card.model:
        card.model = model
    index = pick(labels, exporter.index)
    if index and not card.ordinal:
        card.ordinal = index
    for fact, label in (
        ("driver_version", "DCGM_FI_DRIVER_VERSION"),
        ("driver_version", "driver_version"),
        ("pci_bus_id", "pci_bus_id"),
        ("serial", "DCGM_FI_DEV_SERIAL"),
    ):
        if labels.get(label):
            card.facts[fact] = labels[label]


def _holder_names(labels: Mapping[str, str], exporter: ExporterMapping) -> tuple[str, str, str]:
    """Return namespace, pod and container of the workload; empty where only the exporter itself is named."""
    for name in exporter.pod:
        if labels.get("exported_" + name):
            return tuple(  # type: ignore[return-value]  # three names, three texts
                next((labels["exported_" + n] for n in names if labels.get("exported_" + n)), "")
                for names in (exporter.namespace, exporter.pod, exporter.container)
            )
    pod = next((labels[n] for n in exporter.pod if labels.get(n)), "")
    container = next((labels[n] for n in exporter.container if labels.get(n)), "")
    if exporter.subject == "device" and (container == "exporter" or _EXPORTER_POD.match(pod)):
        return "", "", ""
    namespace = next((labels[n] for n in exporter.namespace if labels.get(n)), "")
    return namespace, pod, container


def _used_twice(slots: Sequence[Slot]) -> set[str]:
    """Return UUIDs that one scrape gives to cards of different index: none of their values can be believed."""
    seen: dict[str, str] = {}
    twice = set()
    for slot in slots:
        if slot.index is not None and slot.index[1] and seen.setdefault(slot.index[0], slot.index[1]) != slot.index[1]:
            twice.add(slot.index[0])
    return twice
