"""Words for what one series means: the channels it feeds, the card it speaks of, who it says holds that card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter

from collector.gpu_models import SliceShare, gpu_model, slice_share
from collector.layout import NOWHERE, Registry
from collector.mappings import MappedMetric, MappingTable
from collector.naming import PARTITIONS, MigDevice, Names
from collector.settings import TargetSettings


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


@dataclass(frozen=True, slots=True, eq=False)
class Holder:
    """Somebody who holds a card, an instance or a share, as one exporter says. `World.holder` gives one object each."""

    uuid: str
    instance: str
    namespace: str
    pod: str
    container: str
    origin: str  # device, container (a vGPU layer's monitor), allocation (its scheduler) or process (the driver's list)
    shared: bool = True  # one of several by the exporter's own word
    place: str = ""
    row: int = NOWHERE
    node: str = ""
    process: str = ""  # `<host>/<pid>.<start>` of one that no container holds
    job: str = ""  # the batch job that the process is of
    sharing: str = ""  # mps or timeslice, where the driver or the kubelet says so
    profile: str = ""  # of the instance, where the holder's own exporter says it


@dataclass(frozen=True, slots=True)
class Sighting:
    """How one target shows a card through one kind of exporter: its number, its bus address, the hosts it is on."""

    index: str = ""
    bus: str = ""
    hosts: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Kind:
    """How a part of a series counts: for which metric, under which of its names, and whose value it is.

    rank: of the metric's names, the newest is 0.
    labelled: the exporter writes it with a pod's labels: it may be a copy of the device's own.
    of_device: the device may have one of its own beside it.
    """

    metric: int
    rank: int
    labelled: bool = False
    of_device: bool = False

    @property
    def plain(self) -> bool:
        """Say whether what such a part feeds depends on no other series of the target."""
        return self.rank == 0 and not self.labelled


@dataclass(slots=True, eq=False)
class Part:
    """One use of a series: the channel that it feeds, or `own` if its device has another series of its own.

    A channel may be `NOWHERE`, and so may the kind be missing: nothing is fed then.
    """

    kind: Kind | None
    channel: int = NOWHERE
    own: int = NOWHERE


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


@dataclass(slots=True, eq=False)
class About:
    """What a series says beside its number: mostly the same for all series of a card, which share one object."""

    card: int = -1
    holder: Holder | None = None
    xid: XidReading | None = None
    fact: Reading | None = None
    kube: str = ""
    reject: str = ""
    hostname: str = ""
    server: int = NOWHERE
    node: int = NOWHERE
    uuid: str = ""
    index: str = ""
    instance: str = ""
    profile: str = ""
    described: tuple[tuple[str, str], ...] = ()  # facts of the card that the labels tell
    version: str = ""  # of the exporter, by its own `..._build_info`
    exporter: str = ""  # the kind of exporter that shows the card
    host: str = ""  # where it says to be itself
    holders: str = ""  # `known`: its target knows all holders of the card, so that without one it is held by nobody


@dataclass(slots=True, eq=False)
class Slot(Part):
    """Everything that one series means: it is the first of its parts. A fleet has a hundred thousand of them."""

    about: About = field(default_factory=About)
    more: tuple[Part, ...] = ()

    def parts(self) -> Sequence[Part]:
        """Return all uses of the series."""
        if self.kind is None:
            return ()
        return (self, *self.more) if self.more else (self,)

    @property
    def plain(self) -> bool:
        """Say whether its channels depend on no other series of the target."""
        return all(part.kind is None or part.kind.plain for part in self.parts())


@dataclass(slots=True)
class ServerChannels:
    """Channels of one server that are read by hand: of buckets by bound, of summaries by quantile, of steps."""

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
class NodeChannels:
    """One host: its row of numbers, and the channels that are put together by hand.

    parts: (field, role) -> channels; roles are `total`, `rest` and `share` of the mapping table.
    """

    name: str
    row: int
    parts: dict[tuple[str, str], list[int]] = field(default_factory=dict)


_ALL_OF_HOLDER = attrgetter(*(one.name for one in fields(Holder)))


@dataclass(slots=True)
class World:
    """What all targets of an assembler share: the mapping, the numbers of rows, the cards, the servers."""

    table: MappingTable
    registry: Registry
    cards: dict[str, Card] = field(default_factory=dict)
    card_list: list[Card] = field(default_factory=list)
    servers: dict[int, ServerChannels] = field(default_factory=dict)
    nodes: dict[int, NodeChannels] = field(default_factory=dict)
    mig: dict[str, MigDevice] = field(default_factory=dict)  # by MIG UUID
    mig_version: int = 0  # grows with every change of `mig`
    metric_numbers: dict[int, int] = field(default_factory=dict)
    _holders: dict[tuple[object, ...], Holder] = field(default_factory=dict)

    def holder(self, holder: Holder) -> Holder:
        """Return the one object for this holder."""
        return self._holders.setdefault(_ALL_OF_HOLDER(holder), holder)

    def metric_number(self, mapped: MappedMetric) -> int:
        """Return a number for a row of the mapping table, in the order of first use of its exporter."""
        number = self.metric_numbers.get(id(mapped.row))
        if number is None:
            for row in mapped.exporter.metric:
                self.metric_numbers.setdefault(id(row), len(self.metric_numbers))
            number = self.metric_numbers[id(mapped.row)]
        return number

    def learn_mig(self, names: Names) -> None:
        """Remember which MIG UUID is which instance."""
        if any(self.mig.get(uuid) != device for uuid, device in names.devices.items()):
            self.mig.update(names.devices)
            self.mig_version += 1

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


def target_key(target: TargetSettings) -> str:
    """Return the text by which a target is known from cycle to cycle."""
    return target.url


def instance_share(card: Card, instance: str) -> SliceShare | None:
    """Return which share of its card a MIG instance or a partition is; None where its profile is not said."""
    return share_of(card, card.instances.get(instance, ""))


def share_of(card: Card, profile: str) -> SliceShare | None:
    """Return which share of the card an instance of this profile, or a partition of this mode (`cpx/nps1`), is."""
    model = gpu_model(card.model) if card.model else None
    mode, _, memory = profile.partition("/")
    if mode in PARTITIONS or mode == "cpx":
        units = model.compute_slices if model is not None else 8
        count = PARTITIONS.get(mode, units)
        divided = memory == f"nps{count}"
        return SliceShare(1 / count, 1 / count if divided else 1.0, estimated=model is None and mode == "cpx")
    return slice_share(model, profile)
