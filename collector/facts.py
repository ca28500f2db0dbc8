"""Dated facts: what is told of clusters, nodes, cards, slices and workloads, each time it changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from operator import attrgetter
from typing import Any

from pydantic import ValidationError

from collector.batch import Event, Fact, Provenance, Reject, Severity, Subject
from collector.declarations import ResolvedWorkload, promises_in, resolve_workload, valid_annotations
from collector.gpu_models import gpu_model
from collector.join import SliceRow, owner_of
from collector.kube import KubeState
from collector.plugins import SourceContext
from collector.rows import QUOTAS
from collector.schema import UNKNOWN
from collector.servers import Quantity
from collector.slots import Card

# Facts whose change is an event of its own; a step of a version explains a step of the figures.
VERSIONS = frozenset(("driver_version", "cuda_version", "exporter_version", "vbios_version"))
_EVENTS = {
    **dict.fromkeys(VERSIONS, "version_changed"),
    **dict.fromkeys(("tenant", "workload"), "owner_changed"),
    **dict.fromkeys(QUOTAS, "quota_changed"),
    **dict.fromkeys(("profile", "instance"), "profile_changed"),
}
Words = dict[str, tuple[str, Provenance]]  # name -> value and origin of a fact

_PARTS = attrgetter(*(one.name for one in fields(Subject)))
_PROMISES = ("weight", "floor", "protected", "objective")


def declared(tenant: str, workload: str, context: SourceContext, notes: Mapping[str, str]) -> ResolvedWorkload:
    """Return what is promised of a workload; annotations that make no valid promise count as none."""
    try:
        return resolve_workload(tenant, workload, context.declarations, valid_annotations(notes))
    except ValidationError:
        return resolve_workload(tenant, workload, context.declarations)


class FactBook:
    """Remembers what was told, so that only changes are told again."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._told: dict[Subject, dict[str, str]] = {}
        self._facts: list[Fact] = []
        self._events: list[Event] = []
        self._rejects: list[Reject] = []
        self._memory: dict[str, float] = {}
        self._notes: tuple[KubeState | None, dict[tuple[str, str], dict[str, str]]] = (None, {})
        self._declared: dict[tuple[str, str], tuple[Mapping[str, str], ResolvedWorkload]] = {}
        self._promised: dict[tuple[str, str], Mapping[str, str]] = {}
        self._workloads: set[Subject] = set()  # of which something was told and did not end
        self._present: set[tuple[str, str]] = set()  # workloads that were spoken of since the last `end_absent`
        self._unobserved: set[str] = set()
        self._nodes: dict[str, str] = {}  # card -> node that its facts name
        self._waiting_since: dict[str, datetime] = {}
        self._quantities: dict[Subject, Quantity] = {}
        self._slices: dict[Subject, Words] = {}
        self._last: dict[Subject, Words] = {}
        self._changes: dict[tuple[Subject, str, datetime], list[str]] = {}

    def tell(self, subject: Subject, name: str, value: str, at: datetime, provenance: Provenance = "measured") -> None:
        """Note a fact; a value that was already told says nothing new. A change of what matters is an event too."""
        told = self._told.setdefault(subject, {})
        before = told.get(name)
        if before == value:
            return
        if before is not None and name in _EVENTS:
            self._changes.setdefault((subject, _EVENTS[name], at), []).append(f"{name} {before} is now {value}")
        told[name] = value
        self._facts.append(Fact(subject, name, value, at, provenance))

    def tell_all(self, subject: Subject, words: Words, at: datetime) -> None:
        """Note all facts of a subject: names that it had the time before, and has no longer, end."""
        before = self._last.get(subject, {})
        if before == words:
            return
        for name in before.keys() - words.keys():
            self.end(subject, name, at)
        self._last[subject] = words
        for name, (value, provenance) in words.items():
            self.tell(subject, name, value, at, provenance)

    def steps(self, subject: Subject, values: Mapping[str, str]) -> bool:
        """Say whether any of these is a version other than the one that was told before."""
        told = self._told.get(subject, {})
        return any(name in VERSIONS and told.get(name, value) != value for name, value in values.items())

    def end(self, subject: Subject, name: str, at: datetime) -> None:
        """End a fact that was told."""
        self._last.pop(subject, None)
        told = self._told.get(subject, {})
        if told.pop(name, None) is not None:
            self._facts.append(Fact(subject, name, None, at))
        if not told:
            self._told.pop(subject, None)

    def end_card(self, uuid: str, at: datetime) -> None:
        """End all that was told of a card that left."""
        for subject in [one for one in self._told if one.kind == "gpu" and one.gpu == uuid]:
            for name in list(self._told[subject]):
                self.end(subject, name, at)
        self._nodes.pop(uuid, None)

    def settle_card(self, card: Card, at: datetime) -> None:
        """End what was told of a card on another node: it is one card, and stands in one place."""
        before = self._nodes.get(card.uuid, card.node)
        if before != card.node:
            self.end_card(card.uuid, at)
        self._nodes[card.uuid] = card.node

    def unobserved_cards(self, counts: Mapping[str, int], at: datetime) -> None:
        """Tell, by node, of cards that others count and no exporter ever showed: they stay in capacity."""
        for node in self._unobserved - counts.keys():
            self.end(Subject("node", self._context.cluster, node), "unobserved_cards", at)
        for node, count in counts.items():
            self.tell(Subject("node", self._context.cluster, node), "unobserved_cards", str(count), at)
        self._unobserved = set(counts)

    def drain(self) -> tuple[list[Fact], list[Event], list[Reject]]:
        """Return what came up since the last call."""
        events = self._events + [
            Event(subject, code, Severity.INFO, f"{subject}: {'; '.join(changes)}", at)
            for (subject, code, at), changes in self._changes.items()
        ]
        result = self._facts, events, self._rejects
        self._facts, self._events, self._rejects, self._changes = [], [], [], {}
        return result

    def memory_of(self, card: Card) -> float:
        """Return the card's memory in bytes: as measured, else the model's; NaN where neither is known."""
        if card.uuid in self._memory:
            return self._memory[card.uuid]
        model = gpu_model(card.model) if card.model else None
        return model.memory_bytes if model else math.nan

    def learn_memory(self, card: Card, total_bytes: float) -> None:
        """Remember a card's measured memory."""
        self._memory[card.uuid] = total_bytes

    def knows_memory(self, card: Card) -> bool:
        """Say whether the card's memory was measured."""
        return card.uuid in self._memory

    def declaration(self, tenant: str, workload: str, kube: KubeState | None) -> ResolvedWorkload:
        """Return what is promised of a workload: configuration before annotations, field by field."""
        notes = self._notes_of(tenant, workload, kube)
        known = self._declared.get((tenant, workload))
        if known is not None and known[0] == notes:
            return known[1]
        resolved = declared(tenant, workload, self._context, notes)
        self._declared[tenant, workload] = (notes, resolved)
        return resolved

    def promise(self, tenant: str, workload: str, kube: KubeState, at: datetime) -> None:
        """Tell what annotations promise of a workload; what they no longer say ends.

        Configuration is no fact: it is joined when facts are read, so that a change of it holds at once. The class
        is always told, as unknown where no annotation says it: so it shows how long the workload was there.
        """
        self._present.add((tenant, workload))
        notes = self._notes_of(tenant, workload, kube)
        if self._promised.get((tenant, workload)) == notes:
            return
        self._promised[tenant, workload] = notes
        said = promises_in(notes)
        subject = Subject("workload", self._context.cluster, object=f"{tenant}/{workload}")
        by_whom: Provenance = "declared" if "service_class" in said else "unknown"
        self._workloads.add(subject)
        self.tell(subject, "service_class", said.get("service_class", UNKNOWN), at, by_whom)
        for name in _PROMISES:
            if name in said:
                self.tell(subject, name, said[name], at, "declared")
            else:
                self.end(subject, name, at)

    def end_absent(self, at: datetime) -> None:
        """End what was told of workloads that have no slice and no pod any more; remember nothing of who left.

        To be called when slices and pods were described: with pods that come and go, nothing here grows for ever.
        """
        present = {f"{tenant}/{workload}" for tenant, workload in self._present}
        for subject in [one for one in self._workloads if one.object not in present]:
            for name in ("service_class", *_PROMISES):
                self.end(subject, name, at)
            self._workloads.remove(subject)
        self._promised = {who: notes for who, notes in self._promised.items() if who in self._present}
        self._declared = {who: pair for who, pair in self._declared.items() if who in self._present}
        self._quantities = {who: quantity for who, quantity in self._quantities.items() if who in self._slices}
        pods = {values["pod"][0] for values in self._slices.values() if "pod" in values}
        self._waiting_since = {pod: since for pod, since in self._waiting_since.items() if pod in pods}
        self._present = set()

    def _notes_of(self, tenant: str, workload: str, kube: KubeState | None) -> Mapping[str, str]:
        """Return a workload's annotations: those of its newest pod that has any, a living one before one that ended."""
        if kube is None:
            return {}
        if self._notes[0] is not kube:
            noted = sorted(
                (pod for pod in kube.pods.values() if pod.annotations),
                key=lambda pod: (not pod.ended, pod.created or 0.0, pod.name),
            )
            owners = (owner_of(pod.namespace, pod.name, kube, self._context)[:2] for pod in noted)
            self._notes = kube, {owner: pod.annotations for owner, pod in zip(owners, noted, strict=True)}
        return self._notes[1].get((tenant, workload), {})

    def waits(self, share: SliceRow, now: datetime) -> bool:
        """Say whether a slice's row still waits for its holder: one interval at most from the pod's first sight."""
        since = self._waiting_since.setdefault(share.pod_key, now)
        return (now - since).total_seconds() < self._context.interval_seconds

    def latency_quantity(self, share: SliceRow, quantity: Quantity) -> None:
        """Note which latency a slice's figures are of, and whether it stands for another one."""
        if quantity.name:
            self._quantities[self.slice_subject(share)] = quantity

    def quantity_of(self, subject: Subject) -> Quantity | None:
        """Return which latency the figures of a slice's server are of, None where it has none."""
        return self._quantities.get(subject)

    def slice_subject(self, share: SliceRow) -> Subject:
        """Return the subject of a slice."""
        return Subject("slice", self._context.cluster, share.card.node, share.card.uuid, share.slice)

    def card_subject(self, card: Card) -> Subject:
        """Return the subject of a card."""
        return Subject("gpu", self._context.cluster, card.node, card.uuid)

    def told_of_slice(self, subject: Subject, name: str) -> str:
        """Return what was last told of a slice that is still there, empty for nothing."""
        return self._slices.get(subject, {}).get(name, ("", ""))[0]

    def replace_slices(self, slices: Mapping[Subject, Words], at: datetime) -> None:
        """Tell the facts of all slices; those of slices that are gone, and names that no longer hold, end."""
        for subject, before in self._slices.items():
            for name in before.keys() - slices.get(subject, {}).keys():
                self.end(subject, name, at)
        for subject, values in slices.items():
            if self._slices.get(subject) == values:
                continue
            for name, (value, provenance) in values.items():
                self.tell(subject, name, value, at, provenance)
        self._slices = dict(slices)

    def to_json(self) -> dict[str, Any]:
        """Return what was told, so that a later start can end it and notice what changed meanwhile."""
        told = [[*_PARTS(subject), values] for subject, values in self._told.items()]
        slices = [[*_PARTS(subject), list(values)] for subject, values in self._slices.items()]
        return {"told": told, "slices": slices}

    def load_json(self, state: Mapping[str, Any]) -> None:
        """Go on from `to_json`."""
        for *parts, values in state.get("told", ()):
            self._told[Subject(*parts)] = dict(values)
        self._nodes = {subject.gpu: subject.node for subject in self._told if subject.kind == "gpu"}
        self._unobserved = {subject.node for subject, values in self._told.items() if "unobserved_cards" in values}
        self._workloads = {subject for subject in self._told if subject.kind == "workload"}
        for *parts, names in state.get("slices", ()):
            self._slices[Subject(*parts)] = dict.fromkeys(names, ("", "measured"))

    @property
    def context(self) -> SourceContext:
        """The configuration that facts are told under."""
        return self._context
