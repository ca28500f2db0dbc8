"""What is told of cards, slices, nodes and workloads as dated facts, each with its origin."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np

from collector.batch import Provenance, Subject
from collector.cycle import Numbers
from collector.facts import FactBook, Words
from collector.gpu_models import gpu_model
from collector.join import SliceRow, instance_name, owner_of
from collector.kube import KubeState
from collector.layout import FIELD_INDEX, NOWHERE, Origin, Registry
from collector.rows import QUOTA_STEP, QUOTAS, Floats
from collector.schema import NOBODY, UNKNOWN
from collector.slots import Card, instance_share
from collector.support import architecture_of

_MEMORY = [FIELD_INDEX[f"memory_{name}_bytes"] for name in ("used", "free", "reserved")]
_CONVERTED = ("engine_active_ratio", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio")


def describe_cards(book: FactBook, cards: Sequence[Card], registry: Registry, now: datetime) -> None:
    """Tell the facts of cards and of the cluster."""
    context = book.context
    cluster = Subject("cluster", context.cluster)
    if cards:
        book.tell(cluster, "interval_seconds", f"{context.interval_seconds:g}", now)
        # Activity times the peak of a data sheet, wherever it stands: told once, and not of each slice.
        book.tell(cluster, "provenance:flops_per_second", "estimated", now, "estimated")
    for card in cards:
        book.settle_card(card, now)
        subject = book.card_subject(card)
        words: Words = {name: (value, "estimated") for name, value in _model_facts(card).items()}
        words |= {name: (value, "measured") for name, value in _card_facts(card).items()}
        total = book.memory_of(card)
        if not math.isnan(total):
            words["memory_total_bytes"] = (f"{total:.0f}", "measured" if book.knows_memory(card) else "estimated")
        book.tell_all(subject, words | origins_of(registry, card.row), now)


def _card_facts(card: Card) -> dict[str, str]:
    model = gpu_model(card.model) if card.model else None
    cut = bool(card.instances) or card.facts.get("mig") == "1"
    facts = {name: value for name, value in card.facts.items() if name != "memory_total_bytes"}
    facts["mig"] = "enabled" if cut else "disabled"
    if card.assumed:
        facts["identity"] = "assumed"
    if model is not None:
        facts["sm_count"] = str(model.sm_count)
    architecture = architecture_of(card.model)
    if architecture:
        facts.setdefault("architecture", architecture)
    described = {"model": card.model, "ordinal": card.ordinal}
    return facts | {name: value for name, value in described.items() if value}


def _model_facts(card: Card) -> dict[str, str]:
    """Return what the model's data sheet says where no exporter says it of the card itself."""
    model = gpu_model(card.model) if card.model else None
    if model is None:
        return {}
    sheet = {
        "max_sm_clock_hertz": model.max_sm_clock_hertz,
        "pcie_generation_max": model.pcie_generation,
        "nvlink_peak_bytes_per_second": model.nvlink_bytes_per_second,
    }
    return {name: f"{value:.15g}" for name, value in sheet.items() if value and name not in card.facts}


def origins_of(registry: Registry, row: int) -> Words:
    """Return which exporters give the values of a row, and over how long each value is a mean.

    `sample_window` is seconds, `0` for a point, `cycle` or `unknown`, and after it the fields that differ, such as
    `0; 1: power_watts; 30: dram_active_ratio, sm_active_ratio`: one fact for all fields, as each card has it. What is
    the growth of a counter is a mean over the cycle, and not listed.
    """
    known = registry.origin_words.get(row)
    if known is None:
        known = registry.origin_words[row] = _origin_words(registry.origins.get(row, {}))
    return known


def _origin_words(said: Mapping[str, Origin]) -> Words:
    if not said:
        return {}
    fields: dict[str, list[str]] = {}
    for name, origin in said.items():
        fields.setdefault(origin.window, []).append(name)
    plain = "0" if "0" in fields else "unknown"
    others = [f"{window}: {', '.join(sorted(names))}" for window, names in sorted(fields.items()) if window != plain]
    return {
        "source": (",".join(sorted({origin.exporter for origin in said.values()})), "measured"),
        "sample_window": (sys.intern("; ".join([plain, *others])), "estimated"),
    }


def learn_memory(book: FactBook, cards: Sequence[Card], numbers: Numbers) -> None:
    """Take the memory of cards as they say it, else what is used, free and reserved; of a cut card that is unknown."""
    for card in cards:
        _learn_memory(book, card, numbers)


def _learn_memory(book: FactBook, card: Card, numbers: Numbers) -> None:
    if "memory_total_bytes" in card.facts:
        book.learn_memory(card, float(card.facts["memory_total_bytes"]))
    elif not book.knows_memory(card) and not card.instances:
        total = float(numbers.take(np.array([card.row]))[0, _MEMORY].sum())
        if not math.isnan(total):
            book.learn_memory(card, total)


def describe_slices(
    book: FactBook,
    slices: Sequence[SliceRow],
    quotas: Floats,
    registry: Registry,
    *,
    kube: KubeState | None,
    now: datetime,
) -> None:
    """Tell the facts of slices and of the workloads that hold them.

    Args:
        book: what was told.
        slices: the slices.
        quotas: slices x `rows.QUOTAS`, NaN where nothing is granted, or it is not known.
        registry: which exporter gives which field of a row.
        kube: what Kubernetes says.
        now: the instant.
    """
    told: dict[Subject, Words] = {}
    for share, granted in zip(slices, quotas.tolist(), strict=True):
        subject = book.slice_subject(share)
        values = _identity(share)
        values |= _quotas(book, subject, granted)
        values |= _owner(book, share, kube)
        if kube is not None and share.workload not in (NOBODY, UNKNOWN) and not share.waiting:
            book.promise(share.tenant, share.workload, kube, now)
        if share.base != share.card.row:  # else its values are the card's, and so is what is told of them
            values |= origins_of(registry, share.base)
        values |= _provenance(share)
        quantity = book.quantity_of(subject)
        if quantity is not None and share.servers:
            values["latency_quantity"] = (quantity.name, "estimated" if quantity.stands_in else "measured")
            if quantity.stands_in:
                values["provenance:latency_p99_seconds"] = ("estimated", "estimated")
        told[subject] = values
    book.replace_slices(told, now)


def _identity(share: SliceRow) -> Words:
    values: Words = {"kind": (share.kind, "estimated" if share.estimated_kind else "measured")}
    for name, text in (
        ("profile", share.profile),
        ("instance", instance_name(share.instance) if share.instance and share.kind != "mig" else ""),
        ("pod", share.pod_key),
        ("container", share.container),
        ("ordinal", share.ordinal),
        ("replica", share.replica),
    ):
        if text:
            values[name] = (text, "measured")
    return values


def _owner(book: FactBook, share: SliceRow, kube: KubeState | None) -> Words:
    """Return who holds a slice and of what class it is, each with its origin.

    A workload that is only a pod's name without its generated ending is an estimate; a tenant from a user's table is
    declared.
    """
    if share.waiting:
        return {}
    values: Words = {}
    tenant: Provenance = "measured" if share.tenant in (share.namespace, NOBODY) else "declared"
    values["tenant"] = (share.tenant, "unknown" if share.tenant == UNKNOWN else tenant)
    pod = kube.pods.get(share.pod_key) if kube is not None else None
    said = share.workload == NOBODY or (pod is not None and bool(pod.owner_kind or pod.labels))
    workload: Provenance = "measured" if said else "estimated"
    values["workload"] = (share.workload, "unknown" if share.workload == UNKNOWN else workload)
    if share.workload not in (NOBODY, UNKNOWN):
        resolved = book.declaration(share.tenant, share.workload, kube)
        origin: Provenance = "declared" if resolved.declared else "unknown"
        values["service_class"] = (resolved.declaration.service_class, origin)
    return values


def _provenance(share: SliceRow) -> Words:
    """Return which numbers of a slice are no measurement of it; where nothing is told they are measured."""
    values: Words = {} if share.base != NOWHERE else {"provenance": ("unknown", "unknown")}
    part = instance_share(share.card, share.instance) if share.kind == "mig" else None
    if part is not None and part.estimated:
        for name in _CONVERTED:
            values[f"provenance:{name}"] = ("estimated", "estimated")
    return values


def _quotas(book: FactBook, subject: Subject, granted: Sequence[float]) -> Words:
    """Return what is granted to a slice; a value that is missing this once, or the same but for rounding, stays."""
    values: Words = {}
    for name, quota in zip(QUOTAS, granted, strict=True):
        before = book.told_of_slice(subject, name)
        if before and (math.isnan(quota) or abs(float(before) - quota) <= QUOTA_STEP * abs(quota)):
            values[name] = (before, "measured")
        elif not math.isnan(quota):
            values[name] = (f"{quota:.9g}" if abs(quota) <= 1 else f"{quota:.0f}", "measured")
    return values


def _known(name: str) -> Provenance:
    return "unknown" if name == UNKNOWN else "measured"


def describe_pods(book: FactBook, kube: KubeState, now: datetime) -> None:
    """Tell the facts of nodes, and of workloads that wait or run without a slice that is seen."""
    cluster = book.context.cluster
    for node in sorted(kube.allocatable.keys() | kube.node_labels.keys()):
        resources = kube.allocatable.get(node, {})
        subject = Subject("node", cluster, node)
        for resource, name in (("cpu", "allocatable_cpu"), ("memory", "allocatable_memory_bytes")):
            if resource in resources:
                book.tell(subject, name, f"{resources[resource]:.15g}", now)
        cards = sum(resources.get(name, 0.0) for name in ("nvidia_com_gpu", "nvidia_com_gpu_shared", "amd_com_gpu"))
        replicas = kube.replicas_of(node)
        if cards:
            book.tell(subject, "allocatable_cards", f"{cards / max(replicas, 1):.15g}", now)
        if replicas > 1:
            book.tell(subject, "card_replicas", str(replicas), now)
        for name, said in (("sharing_strategy", kube.sharing_strategy(node)), ("pool", kube.pool_of(node))):
            if said:
                book.tell(subject, name, said, now)
    for pod in kube.pods.values():
        if pod.wants_gpu and not pod.ended:
            tenant, workload, _ = owner_of(pod.namespace, pod.name, kube, book.context)
            book.promise(tenant, workload, kube, now)
