"""Who holds what: from exporters' words about holders to slices with kind, tenant and workload.

Pure: given the cards, what each exporter says of holders, and what Kubernetes says of pods, it returns the slices. Rows
of slices are put together from up to three rows of numbers: the base (an instance, a container on a card, or the whole
card), an allocation, and a server.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from collector.kube import KubeState, replica_ordinal
from collector.layout import NOWHERE
from collector.plugins import SourceContext
from collector.schema import NOBODY, UNKNOWN
from collector.slots import Card, Holder, ServerChannels
from collector.whole import whole

# Schedulers of fractions hold the card with a pod of their own; who uses it stays unknown.
_RESERVATIONS = ("runai-reservation",)


@dataclass(slots=True)
class SliceRow:
    """One slice of the cycle. Row numbers of `layout.Registry`; NOWHERE where there is none."""

    card: Card
    slice: str
    kind: str
    tenant: str
    workload: str
    base: int = NOWHERE
    allocations: list[int] = field(default_factory=list)
    servers: list[ServerChannels] = field(default_factory=list)
    namespace: str = ""
    pod: str = ""
    container: str = ""
    place: int = 0
    instance: str = ""
    profile: str = ""
    waiting: bool = False  # the pod is not known to Kubernetes yet: the row waits one interval for its holder
    estimated_kind: bool = False
    ordinal: str = ""
    replica: str = ""  # the slice, on another card, that has this pod's application fields

    @property
    def pod_key(self) -> str:
        """Return `namespace/pod`, empty where no pod is known."""
        return f"{self.namespace}/{self.pod}" if self.pod else ""


@dataclass(frozen=True, slots=True)
class Claims:
    """What the join goes by.

    cards: the cards that are there.
    holders: what exporters say.
    instance_rows: (uuid, GPU instance) -> row, for the MIG instances that are there.
    servers: application servers that were read.
    kube: what Kubernetes says; None where nothing of it is collected.
    context: the configuration that resolves tenants.
    holders_known: cards whose exporter names holders at all: without a name they are held by nobody.
    jobs: batch jobs by number, with the account that pays and the job's name.
    flapping: cards whose only holder's name changes to and fro: the name is one of several, hence unknown.
    """

    cards: Sequence[Card]
    holders: Sequence[Holder]
    instance_rows: Mapping[tuple[str, str], int]
    servers: Sequence[ServerChannels]
    kube: KubeState | None
    context: SourceContext
    holders_known: frozenset[str] = frozenset()
    flapping: frozenset[str] = frozenset()
    jobs: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class Join:
    """All slices, servers whose pod holds none that is known, and pods (`namespace/name`) that run without one."""

    slices: list[SliceRow]
    homeless: list[ServerChannels]
    uncovered: list[str] = field(default_factory=list)


def tenant_of(namespace: str, context: SourceContext) -> str:
    """Return the tenant that pays for a namespace: the first `[[tenant]]` table that matches, else the namespace."""
    for tenant in context.tenants:
        if any(fnmatch.fnmatchcase(namespace, pattern) for pattern in tenant.namespaces):
            return tenant.name
    return namespace


def tenant_of_card(card: Card, context: SourceContext) -> str:
    """Return who pays for a card whose holder nobody names: the first `[[tenant]]` table that names it or its node."""
    for tenant in context.tenants:
        if any(fnmatch.fnmatchcase(card.node, pattern) for pattern in tenant.nodes) or any(
            fnmatch.fnmatchcase(card.uuid, pattern) for pattern in tenant.gpus
        ):
            return tenant.name
    return UNKNOWN


def owner_of(namespace: str, pod: str, kube: KubeState | None, context: SourceContext) -> tuple[str, str, bool]:
    """Return tenant, workload, and whether they still wait for Kubernetes to know the pod."""
    if namespace in _RESERVATIONS:
        return UNKNOWN, UNKNOWN, False
    state = kube or KubeState()
    waiting = kube is not None and f"{namespace}/{pod}" not in kube.pods
    return tenant_of(namespace, context) or UNKNOWN, state.workload(namespace, pod) or UNKNOWN, waiting


def join_slices(claims: Claims) -> Join:
    """Return all slices of the cards that are there."""
    kube = claims.kube
    by_card: dict[str, list[Holder]] = {}
    for said_holder in claims.holders:
        named = bool(said_holder.namespace or said_holder.process)
        holder = said_holder if named or kube is None else _with_namespace(said_holder, kube)
        pod = kube.pods.get(f"{holder.namespace}/{holder.pod}") if kube else None
        if pod is None or not pod.ended:
            by_card.setdefault(holder.uuid, []).append(holder)
    instances = _instances(claims, by_card)
    places = _places(claims.cards, by_card)
    slices: list[SliceRow] = []
    for card in claims.cards:
        said = by_card.get(card.uuid, [])
        if card.uuid in instances:
            for instance in instances[card.uuid]:
                slices += _instance(card, instance, said, places, claims)
            continue
        if card.facts.get("mig") == "1":
            continue  # cut into instances that no exporter shows: no row pretends to be the whole card
        layered = [holder for holder in said if holder.origin in ("container", "allocation")]
        if layered:
            slices += _shares(card, layered, "vgpu", places, claims)
            continue
        pods = {_who(holder) for holder in said}
        strategy = kube.sharing_strategy(card.node) if kube else ""
        shared = len(pods) > 1 or any(holder.shared for holder in said)
        if shared:
            sharing = {holder.sharing for holder in said} - {""}
            kind = "mps" if strategy == "mps" or "mps" in sharing else "timeslice"
            shares = _shares(card, said, kind, places, claims)
            for share in shares:
                share.estimated_kind = not (strategy or sharing)
            slices += shares
        elif strategy in ("mps", "time-slicing"):
            continue  # the one name is one of several that the exporter does not tell apart
        else:
            slices += _whole(card, said, claims)
    homeless = _seat_servers(slices, claims.servers)
    return Join(slices, homeless, _uncovered(slices, claims))


def _uncovered(slices: Sequence[SliceRow], claims: Claims) -> list[str]:
    """Return running pods that were granted a card of a node whose cards are seen, and that no exporter names.

    An exporter that did not notice a new instance is silent about it; so is one that names one of several pods.
    """
    if claims.kube is None:
        return []
    covered = {share.pod_key for share in slices}
    nodes = {card.node for card in claims.cards}
    return sorted(
        pod.key
        for pod in claims.kube.pods.values()
        if pod.phase == "Running" and pod.wants_gpu and pod.node in nodes and pod.key not in covered
    )


def _instances(claims: Claims, by_card: Mapping[str, Sequence[Holder]]) -> dict[str, list[str]]:
    """Return the MIG instances and partitions of each card that has any: those with samples, and those held."""
    found: dict[str, set[str]] = {}
    for uuid, instance in claims.instance_rows:
        found.setdefault(uuid, set()).add(instance)
    for uuid, said in by_card.items():
        for holder in said:
            if holder.instance:
                found.setdefault(uuid, set()).add(holder.instance)
    return {uuid: sorted(some, key=lambda text: (len(text), text)) for uuid, some in found.items()}


def _with_namespace(holder: Holder, kube: KubeState) -> Holder:
    """Return the holder with his namespace, where his scheduler does not say it and only one pod has his name."""
    namespaces = [pod.namespace for pod in kube.pods.values() if pod.name == holder.pod]
    return replace(holder, namespace=namespaces[0]) if len(namespaces) == 1 else holder


def _instance(
    card: Card, instance: str, said: Sequence[Holder], places: Mapping[tuple[str, str, str, str], int], claims: Claims
) -> list[SliceRow]:
    """Return a MIG instance (or a partition) as one slice; as several, where a vGPU layer divides it further."""
    mine = [holder for holder in said if holder.instance == instance]
    layered = [holder for holder in mine if holder.origin == "container"]
    profile = card.instances.get(instance) or next((holder.profile for holder in mine if holder.profile), "")
    if len({(holder.namespace, holder.pod, holder.container) for holder in layered}) > 1:
        shares = _shares(card, layered, "vgpu", places, claims)
        for share in shares:
            share.instance, share.profile = instance, profile
        return shares
    row = claims.instance_rows.get((card.uuid, instance), NOWHERE)
    result = SliceRow(card, instance_name(instance), "mig", NOBODY, NOBODY, base=row, instance=instance)
    result.profile = profile
    result.allocations = list(dict.fromkeys(holder.row for holder in layered))
    pods = {_who(holder) for holder in mine}
    if len(pods) == 1:
        _give(result, mine[0], claims)
    elif pods or card.uuid not in claims.holders_known:
        result.tenant, result.workload = tenant_of_card(card, claims.context), UNKNOWN
    return [result]


def instance_name(instance: str) -> str:
    """Return the slice's name of a MIG instance by its number, or of a partition, `p<id>`."""
    return instance if instance.startswith("p") else f"gi{instance}"


def _whole(card: Card, said: Sequence[Holder], claims: Claims) -> list[SliceRow]:
    result = SliceRow(card, "whole", "whole", tenant_of_card(card, claims.context), UNKNOWN, base=card.row)
    if card.uuid in claims.flapping:
        return [result]
    if said:
        _give(result, said[0], claims)
        return [result]
    return [] if card.uuid in claims.holders_known else [result]


def _shares(
    card: Card,
    said: Sequence[Holder],
    kind: str,
    places: Mapping[tuple[str, str, str, str], int],
    claims: Claims,
) -> list[SliceRow]:
    found: dict[tuple[str, ...], SliceRow] = {}
    for holder in sorted(said, key=lambda holder: holder.origin == "allocation"):
        container = _container_name(holder, found, claims.kube)
        names = (holder.namespace, holder.pod, container)
        key = (holder.process,) if holder.process else names
        share = found.get(key)
        if share is None:
            place = whole(holder.place, places.get((*names, card.uuid), 0))
            name = holder.process or f"{holder.namespace or UNKNOWN}/{holder.pod}/{container}/{place}"
            share = found[key] = SliceRow(card, name, kind, UNKNOWN, UNKNOWN, place=place)
            _give(share, holder, claims)
            share.container = container
        if holder.origin == "allocation":
            share.allocations.append(holder.row)
        elif holder.row != NOWHERE:
            share.base = holder.row
    return list(found.values())


def _container_name(holder: Holder, found: Mapping[tuple[str, ...], SliceRow], kube: KubeState | None) -> str:
    """Return the container's name; an allocation knows only its index among the pod's containers."""
    if holder.origin != "allocation":
        return holder.container
    known = [names[2] for names in found if names[:2] == (holder.namespace, holder.pod)]
    if len(known) == 1:
        return known[0]
    pod = kube.pods.get(f"{holder.namespace}/{holder.pod}") if kube else None
    if pod is not None and len(pod.gpu_containers) == 1:
        return pod.gpu_containers[0]
    return holder.container or UNKNOWN


def _who(holder: Holder) -> tuple[str, ...]:
    if holder.job:
        return ("job", holder.job)  # all its processes are one holder
    return (holder.process,) if holder.process else (holder.namespace, holder.pod)


def _give(share: SliceRow, holder: Holder, claims: Claims) -> None:
    kube, context = None if holder.process else claims.kube, claims.context
    share.tenant, share.workload, share.waiting = owner_of(holder.namespace, holder.pod, kube, context)
    if holder.process:  # the names are those of a user's table, no pod of Kubernetes; or a scheduler knows the job
        if holder.job in claims.jobs and not holder.pod:
            account, share.workload = claims.jobs[holder.job]
            share.tenant = tenant_of(account, context) or UNKNOWN
        return
    share.namespace, share.pod, share.container = holder.namespace, holder.pod, holder.container
    pod = kube.pods.get(share.pod_key) if kube else None
    share.ordinal = replica_ordinal(pod, holder.pod)


def _places(cards: Sequence[Card], by_card: Mapping[str, Sequence[Holder]]) -> dict[tuple[str, str, str, str], int]:
    """Return the place of a card among those of one container, by the cards' own order."""
    order = {card.uuid: (_number(card.ordinal), card.uuid) for card in cards}
    held: dict[tuple[str, str, str], set[str]] = {}
    for uuid, holders in by_card.items():
        for holder in holders:
            held.setdefault((holder.namespace, holder.pod, holder.container), set()).add(uuid)
    return {
        (*key, uuid): place
        for key, uuids in held.items()
        for place, uuid in enumerate(sorted(uuids, key=lambda u: order.get(u, (10**6, u))))
    }


def _number(text: str) -> int:
    return whole(text, 10**6)


def _seat_servers(slices: Sequence[SliceRow], servers: Sequence[ServerChannels]) -> list[ServerChannels]:
    """Put each server on its pod's slice of ordinal 0 (in its own container, where it says one)."""
    of_pod: dict[str, list[SliceRow]] = {}
    for share in slices:
        if share.pod:
            of_pod.setdefault(share.pod_key, []).append(share)
    homeless = []
    for server in servers:
        if server.gpu:
            whole = [share for share in slices if share.card.uuid == server.gpu and share.slice == "whole"]
            if whole:
                whole[0].servers.append(server)
                continue
        mine = of_pod.get(f"{server.namespace}/{server.pod}", []) if server.pod else []
        own = [share for share in mine if share.container == server.container] or mine
        if own:
            first = min(own, key=lambda share: (share.place, _number(share.card.ordinal), share.card.uuid, share.slice))
            first.servers.append(server)
            for share in own:
                if share is not first:
                    share.replica = f"{first.card.uuid}/{first.slice}"
        else:
            homeless.append(server)
    return homeless
