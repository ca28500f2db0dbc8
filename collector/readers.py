"""What a series means, worked out once: by the mapping tables and the rules that exporters' quirks ask for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from operator import attrgetter
from urllib.parse import urlsplit

from collector.exposition import Series
from collector.layout import NOWHERE
from collector.mappings import ExporterMapping, MappedMetric, MetricRow
from collector.mappings.tables import MIG_INSTANCE, VERSIONS
from collector.naming import Names, mig_device, pick
from collector.places import UNPLACED, place_of
from collector.settings import TargetSettings
from collector.slots import (
    About,
    Card,
    Holder,
    Kind,
    NodeChannels,
    Part,
    Reading,
    ServerChannels,
    Slot,
    World,
    XidReading,
    share_of,
    target_key,
)

_EXPORTER_POD = re.compile(r"^(?:nvidia-)?dcgm-exporter|^hami-|^kube-prometheus|^prometheus-")
_COMPUTE_RATIOS = frozenset(f"{name}_active_ratio" for name in ("engine", "sm", "tensor", "fp64", "fp32", "fp16")) | {
    "sm_occupancy_ratio"
}
# A card's own figure under MIG is not what it seems; the sum over its instances goes before it. For memory the other
# way round: what is used outside of instances is known only by the card's own figure.
_SUM_BEFORE, _SUM_BEHIND = -5, 5
_PER_PROCESS_FIELDS = frozenset(("busy_ratio", "memory_used_bytes"))
SUMMED_OVER_INSTANCES = _COMPUTE_RATIOS | {"dram_active_ratio", "memory_used_bytes"}


_DESCRIBED = (
    ("driver_version", "DCGM_FI_DRIVER_VERSION"),
    ("driver_version", "DCGM_FI_SYSTEM_DRIVER_VERSION"),
    ("driver_version", "driver_version"),
    ("cuda_version", "DCGM_FI_CUDA_DRIVER_VERSION"),
    ("cuda_version", "cuda_version"),
    ("vbios_version", "DCGM_FI_DEV_VBIOS_VERSION"),
    ("vbios_version", "vbios_version"),
    ("architecture", "architecture"),
    ("pci_bus_id", "pci_bus_id"),
    ("serial", "DCGM_FI_DEV_SERIAL"),
)
_BUILD = "_build_info"
_PART_NUMBER = {"": 0, "bucket": 1, "sum": 2, "count": 3}
_MEMORY = frozenset(f"memory_{name}_bytes" for name in ("used", "free", "reserved", "total"))
_NOBODY_SAYS = frozenset(("", "[N/A]", "N/A"))


@dataclass(slots=True)
class _DraftPart:
    """A part as it is worked out: `channels` where it goes if the device has no series of its own, `own` if it has."""

    metric: int
    rank: int
    channels: tuple[int, ...]
    own: tuple[int, ...] = ()
    of_device: bool = False
    labelled: bool = False


@dataclass(slots=True)
class _Draft(About):
    """A slot as it is worked out."""

    parts: tuple[_DraftPart, ...] = ()

    def about(self) -> About:
        """Return what it says, for itself."""
        return About(*_ALL_OF_ABOUT(self))


_ALL_OF_ABOUT = attrgetter(*(one.name for one in fields(About)))


class SeriesReader:
    """Reads the series of one target into slots.

    Args:
        target: where the series come from; its labels are those that service discovery added.
        world: cards, servers and numbers that all targets share.
    """

    def __init__(self, target: TargetSettings, world: World) -> None:
        self._target = target
        self._key = target_key(target)
        self._world = world
        self.names = Names()  # what the target's own series say of one another
        self._same: dict[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]] = {}  # one object for all of a card
        self._abouts: dict[tuple[object, ...], About] = {}
        self._kinds: dict[Kind, Kind] = {}
        self.mentions_mig = False  # a series names a MIG instance by its UUID alone
        self._readers = {
            "device": self._device,
            "container": self._container,
            "allocation": self._allocation,
            "server": self._server,
            "node": self._host,
            "kube": self._kube,
            "process": self._process,
        }

    def slot(self, series: Series) -> Slot:
        """Return what a series means."""
        slot = _Draft()
        for mapped in self._world.table.find(series.name, series.labels):
            self._readers[mapped.exporter.subject](series, mapped, slot)
        if series.name.endswith(_BUILD) and series.labels.get("version"):
            slot.version = f"{series.name.removesuffix(_BUILD)} {series.labels['version']}"
        return self._packed(slot)

    def forget(self) -> None:
        """Share nothing with what was read before."""
        self._abouts.clear()

    def _packed(self, draft: _Draft) -> Slot:
        """Return a slot that shares all it can with others."""
        about: About | None = None
        if draft.xid is None and draft.fact is None:
            about = self._abouts.setdefault(_ALL_OF_ABOUT(draft), draft.about())
        parts = [part for one in draft.parts for part in self._parts_of(one)]
        slot = Slot(None, about=about or draft.about())
        if parts:
            slot.kind, slot.channel, slot.own = parts[0].kind, parts[0].channel, parts[0].own
            slot.more = tuple(parts[1:])
        return slot

    def _parts_of(self, draft: _DraftPart) -> Iterator[Part]:
        kind = Kind(draft.metric, draft.rank, draft.labelled, draft.of_device)
        kind = self._kinds.setdefault(kind, kind)
        for channel, own in zip_longest(draft.channels or (NOWHERE,), draft.own, fillvalue=NOWHERE):
            yield Part(kind, channel, own)

    def _order(self, mapped: MappedMetric, shift: int = 0) -> tuple[int, int]:
        adds = mapped.row.adds_to_field
        return mapped.exporter.preference + shift, 0 if adds else self._world.metric_number(mapped)

    def _device(self, series: Series, mapped: MappedMetric, slot: _Draft) -> None:
        world, labels, exporter, metric = self._world, series.labels, mapped.exporter, mapped.row
        if metric.field == VERSIONS:
            return
        node = self._node(labels, exporter)
        self.mentions_mig = self.mentions_mig or pick(labels, exporter.uuid).startswith("MIG-")
        place = place_of(labels, exporter, node, self.names, world.mig)
        if isinstance(place, str):
            slot.reject = place
            return
        uuid, instance = place.uuid, place.instance
        card = world.card(uuid, node, exporter.preference, assumed=place.assumed)
        if not instance or not exporter.instance_index:
            card.model = card.model or pick(labels, exporter.model)
        card.ordinal = card.ordinal or place.index
        slot.described = self._described(labels, exporter, uuid)
        slot.card, slot.uuid, slot.index = card.number, uuid, place.index
        slot.exporter, slot.host = exporter.exporter, pick(labels, exporter.node)
        slot.hostname = "" if self._target.node else slot.host
        slot.instance, slot.profile = instance, place.profile
        namespace, pod, container = _holder_names(labels, exporter)
        labelled = bool(pod) and not instance
        if pod or labels.get("process"):
            said = Holder(uuid, instance, namespace, pod, container, "device", "vgpu" in labels, node=node)
            slot.holder = world.holder(_of_driver(said, labels))
        slot.holders = labels.get("holders", "")
        if metric.measurement == "event":
            text = labels.get("err_msg", "")
            slot.xid = XidReading(uuid, instance, metric.nature, labels.get("xid", ""), text)
            return
        own_memory = bool(instance) and place.divided and metric.field in _MEMORY
        if place.foreign and not own_memory and (metric.mig != "instance" or metric.field in _MEMORY):
            return
        if metric.measurement == "fact":
            if metric.nature == "info" and metric.field not in ("labels", MIG_INSTANCE) and not own_memory:
                slot.fact = Reading(card, metric.field, metric.scale)
            return
        part = _DraftPart(
            world.metric_number(mapped),
            mapped.rank,
            (),
            of_device=True,
            labelled=labelled,
        )
        if instance and metric.mig == "absent":
            return
        if instance and metric.mig == "instance" and (own_memory or metric.field not in _MEMORY):
            part.channels = self._instance_channels(mapped, card, instance, slot.profile)
            part.of_device = False
        else:
            entry = world.registry.entry(self._key, card.row, metric.field, self._order(mapped))
            own_part = _part_name(labels, metric)
            channel = world.registry.channel(
                self._key, card.row, mapped, own_part, entry=entry, field_name=metric.field
            )
            part.channels = (channel,)
        if labelled and metric.per_process and "vgpu" in labels and metric.field in _PER_PROCESS_FIELDS:
            row = world.registry.row(("container", uuid, namespace, pod, container))
            entry = world.registry.entry(self._key, row, metric.field, self._order(mapped))
            part.own = (world.registry.channel(self._key, row, mapped, entry=entry, field_name=metric.field),)
            slot.holder = world.holder(Holder(uuid, "", namespace, pod, container, "device", row=row, node=node))
        slot.parts += (part,)

    def _instance_channels(self, mapped: MappedMetric, card: Card, instance: str, profile: str) -> tuple[int, ...]:
        """Return the instance's own channel and, for what adds up, its part of the whole card."""
        registry, name = self._world.registry, mapped.row.field
        row = registry.row(("instance", card.uuid, instance, profile))
        share = share_of(card, profile)
        factor = 1.0
        if name in _COMPUTE_RATIOS:
            factor = share.compute if share else math.nan
        elif name == "dram_active_ratio":
            factor = share.memory if share else math.nan
        entry = registry.entry(self._key, row, name, self._order(mapped))
        own = registry.channel(self._key, row, mapped, entry=entry, field_name=name, share=factor)
        if name not in SUMMED_OVER_INSTANCES:
            return (own,)
        shift = _SUM_BEHIND if name == "memory_used_bytes" else _SUM_BEFORE
        total = registry.entry(self._key, card.row, name, self._order(mapped, shift), strict=True)
        part = registry.channel(
            self._key, card.row, mapped, (instance, profile), entry=total, field_name=name, share=factor
        )
        return own, part

    def _container(self, series: Series, mapped: MappedMetric, slot: _Draft) -> None:
        labels, exporter, registry = series.labels, mapped.exporter, self._world.registry
        uuid = pick(labels, exporter.uuid)
        namespace, pod, container = _holder_names(labels, exporter)
        if not uuid or not pod:
            slot.reject = "no container named"
            return
        instance = profile = ""
        if uuid.startswith("MIG-"):
            self.mentions_mig = True
            device = self._world.mig.get(uuid)
            if device is None:
                slot.reject = UNPLACED
                return
            uuid, instance, profile = device
        elif mapped.row.field == MIG_INSTANCE:
            told = mig_device(labels, exporter)
            instance, profile = (told.instance, told.profile) if told is not None else ("", "")
        row = registry.row(("container", uuid, namespace, pod, container))
        place = pick(labels, exporter.index)
        node = self._node(labels, exporter)
        self._world.card(uuid, node, exporter.preference, assumed=False)
        names = (uuid, instance, namespace, pod, container)
        said = Holder(*names, "container", place=place, row=row, node=node, profile=profile)
        slot.holder = self._world.holder(said)
        # There is no use by process under MIG: the monitor writes 0 for want of it.
        if mapped.row.measurement != "fact" and not (instance and mapped.row.field == "busy_ratio"):
            self._simple_part(mapped, slot, row)

    def _allocation(self, series: Series, mapped: MappedMetric, slot: _Draft) -> None:
        labels, exporter, registry = series.labels, mapped.exporter, self._world.registry
        uuid = pick(labels, exporter.uuid)
        namespace, pod, container = _holder_names(labels, exporter)
        if mapped.row.measurement == "fact":
            if uuid and mapped.row.field != MIG_INSTANCE:
                card = self._world.card(uuid, pick(labels, exporter.node), exporter.preference, assumed=False)
                slot.fact = Reading(card, mapped.row.field, mapped.row.scale)
            return
        if not uuid or not pod:
            slot.reject = "no container named"
            return
        row = registry.row(("allocation", uuid, namespace, pod, container))
        node = pick(labels, exporter.node)
        self._world.card(uuid, node, exporter.preference, assumed=False)
        said = Holder(uuid, "", namespace, pod, container, "allocation", row=row, node=node)
        slot.holder = self._world.holder(said)
        self._simple_part(mapped, slot, row)

    def _process(self, series: Series, mapped: MappedMetric, slot: _Draft) -> None:
        """Read what the processes of a container, or one process outside of containers, do on a card."""
        labels, exporter = series.labels, mapped.exporter
        uuid = pick(labels, exporter.uuid)
        namespace, pod, container = _holder_names(labels, exporter)
        process = labels.get("process", "")
        key = ("process", uuid, process) if process else ("container", uuid, namespace, pod, container)
        row = self._world.registry.row(key)
        node = self._node(labels, exporter)
        self._world.card(uuid, node, exporter.preference, assumed=False)
        shared = bool(labels.get("sharing"))
        said = Holder(uuid, "", namespace, pod, container, "process", shared, row=row, node=node)
        slot.holder = self._world.holder(_of_driver(said, labels))
        self._simple_part(mapped, slot, row)

    def _simple_part(self, mapped: MappedMetric, slot: _Draft, row: int) -> None:
        world, name = self._world, mapped.row.field
        entry = world.registry.entry(self._key, row, name, self._order(mapped))
        channel = world.registry.channel(self._key, row, mapped, entry=entry, field_name=name)
        slot.parts += (_DraftPart(world.metric_number(mapped), mapped.rank, (channel,)),)

    def _server(self, series: Series, mapped: MappedMetric, slot: _Draft) -> None:
        world, labels, metric = self._world, series.labels, mapped.row
        target_labels = self._target.labels
        namespace, pod, container = _holder_names({**target_labels, **labels}, mapped.exporter)
        row = world.registry.row(("server", namespace, pod, container, "" if pod else self._key))
        server = world.servers.get(row)
        if server is None:
            gpu = target_labels.get("gpu", "")
            server = world.servers[row] = ServerChannels(row, namespace, pod, container, self._key, gpu)
            if gpu:
                world.card(gpu, self._node({}, mapped.exporter), mapped.exporter.preference, assumed=False)
        slot.server = row
        part_name = _part_name(labels, metric)
        part = _DraftPart(world.metric_number(mapped) * 4 + _PART_NUMBER[mapped.part], mapped.rank, ())
        if metric.nature == "histogram":
            part.channels = self._bucket_channels(labels, mapped, server, part_name)
        elif metric.nature == "mean":
            channel = world.registry.channel(self._key, row, mapped, part_name, held=True)
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
            channel = world.registry.channel(self._key, row, mapped, (quantile, *part_name))
            server.summaries.setdefault(metric.quantity, {})[float(quantile)] = channel
            part.channels = (channel,)
        else:
            strict = metric.nature == "gauge" and bool(metric.adds_up)
            entry = world.registry.entry(self._key, row, metric.field, self._order(mapped), strict=strict)
            channel = world.registry.channel(self._key, row, mapped, part_name, entry=entry, field_name=metric.field)
            part.channels = (channel,)
        slot.parts += (part,)

    def _bucket_channels(
        self, labels: Mapping[str, str], mapped: MappedMetric, server: ServerChannels, part_name: tuple[str, ...]
    ) -> tuple[int, ...]:
        if mapped.part != "bucket" or "le" not in labels:
            return ()
        try:
            bound = float(labels["le"]) * mapped.row.scale
        except ValueError:
            return ()
        channel = self._world.registry.channel(self._key, server.row, mapped, (labels["le"], *part_name), held=True)
        channels = server.buckets.setdefault(mapped.row.quantity, {}).setdefault(bound, [])
        if channel not in channels:
            channels.append(channel)
        return (channel,)

    def _host(self, series: Series, mapped: MappedMetric, slot: _Draft) -> None:
        world, labels, metric = self._world, series.labels, mapped.row
        if metric.measurement != "node":
            return
        name = self._node(labels, mapped.exporter)
        row = slot.node = world.registry.row(("node", name))
        host = world.nodes.get(row)
        if host is None:
            host = world.nodes[row] = NodeChannels(name, row)
        part_name = _part_name(labels, metric)
        part = _DraftPart(world.metric_number(mapped), mapped.rank, ())
        if metric.part:
            held = metric.nature == "counter"
            channel = world.registry.channel(self._key, row, mapped, (metric.part, *part_name), held=held)
            channels = host.parts.setdefault((metric.field, metric.part), [])
            if channel not in channels:
                channels.append(channel)
        else:
            entry = world.registry.entry(self._key, row, metric.field, self._order(mapped))
            channel = world.registry.channel(self._key, row, mapped, part_name, entry=entry, field_name=metric.field)
        part.channels = (channel,)
        slot.parts += (part,)

    def _described(
        self, labels: Mapping[str, str], exporter: ExporterMapping, uuid: str
    ) -> tuple[tuple[str, str], ...]:
        """Return facts of the card that labels tell: the series' own, and those that speak of the whole target."""
        told = [(fact, labels[label]) for fact, label in _DESCRIBED if labels.get(label, "") not in _NOBODY_SAYS]
        if exporter.instance_index:
            told.append(("mig", "1" if uuid in self.names.cut else "0"))
        described = (*told, *self.names.versions)
        return self._same.setdefault(described, described)

    def _kube(self, _series: Series, mapped: MappedMetric, slot: _Draft) -> None:
        slot.kube = mapped.row.field

    def _node(self, labels: Mapping[str, str], exporter: ExporterMapping) -> str:
        """Return the node: the target's own word, else a label that is no pod's name, else the address's host."""
        if self._target.node:
            return self._target.node
        for name in ("node", "kubernetes_node", "nodename"):
            said = self._target.labels.get(name) or labels.get(name)
            if said:
                return said
        if self.names.host:
            return self.names.host
        said = pick(labels, exporter.node)
        if said and said != "localhost" and not _EXPORTER_POD.match(said):
            return said
        instance = labels.get("instance", "").rpartition(":")[0]
        return urlsplit(self._target.url).hostname or said or instance or "unknown"


def _of_driver(holder: Holder, labels: Mapping[str, str]) -> Holder:
    """Return the holder with what the driver's own list of processes says of him."""
    process, job, sharing = (labels.get(name, "") for name in ("process", "job", "sharing"))
    return replace(holder, process=process, job=job, sharing=sharing) if process or sharing else holder


def _part_name(labels: Mapping[str, str], metric: MetricRow) -> tuple[str, ...]:
    """Return what tells a series from others that add up to one value with it."""
    parts = tuple(labels.get(name, "") for name in metric.adds_up)
    return (metric.metric[0], *parts) if metric.adds_to_field else parts


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
