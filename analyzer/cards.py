"""The cards of a node, put together from its rows and facts: who holds what of each, and where its rows lie."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.facts import hardware_facts, hardware_spans, requests, to_float, value_at
from analyzer.mig import board_of
from analyzer.protocols import Partition
from analyzer.shares import Card, Holding
from collector.clock import to_ms
from collector.gpu_models import gpu_model
from collector.schema import UNKNOWN


def _bins(frame: pd.DataFrame, start_ms: int, step_ms: float, count: int) -> np.ndarray:
    times = frame["time"].to_numpy("datetime64[ms]").astype(np.int64)
    return np.asarray(np.clip((times - start_ms) // step_ms, 0, count - 1), dtype=np.intp)


def cards(partition: Partition) -> list[Card]:
    """Return the cards of a node, sorted by name: those with rows, those that only facts know, and nameless ones.

    Nameless are cards that a scheduler or the PCI bus counts and no exporter ever showed: they belong to the capacity.
    The answer for the newest partition is remembered while that lives: every detector asks for it.
    """
    global _newest  # noqa: PLW0603  one that is lost, or not seen by another thread, is only made again
    remembered, found = _newest
    if remembered() is not partition:
        found = _cards(partition)
        _newest = (weakref.ref(partition, _forget), found)
    return list(found)


def _forget(gone: weakref.ref[Partition]) -> None:
    global _newest  # noqa: PLW0603
    if _newest[0] is gone:
        _newest = (_nobody, [])


def _nobody() -> None:
    return None


_newest: tuple[Callable[[], Partition | None], list[Card]] = (_nobody, [])


def _cards(partition: Partition) -> list[Card]:
    facts = partition.facts
    start_ms = to_ms(partition.window.start)
    step_ms = partition.interval_seconds * 1000
    count = max(math.ceil(partition.window.seconds / partition.interval_seconds), 1)
    named = facts[
        (facts["kind"] == "gpu") & (facts["cluster"] == partition.cluster) & (facts["node"] == partition.node)
    ]
    rows = partition.gpu.groupby("gpu", sort=True).indices
    parts = partition.slice.groupby("gpu", sort=True).indices
    gpu_bins = _bins(partition.gpu, start_ms, step_ms, count)
    slice_bins = _bins(partition.slice, start_ms, step_ms, count)
    models = hardware_facts(facts, "gpu", "model")
    counts = hardware_facts(facts, "gpu", "sm_count")
    modes = hardware_facts(facts, "gpu", "mig")
    columns, held = _holdings(partition)
    wished = _wished_shares(facts, {h.pod for holdings in held.values() for h in holdings})
    found = []
    nameless = [f"unobserved-{n + 1}" for n in range(_unobserved(facts, partition))]
    units = _units(facts, partition)
    usual = Counter(models[key] for key in models if key[:2] == (partition.cluster, partition.node)).most_common(1)
    for gpu in [*sorted({*rows, *parts, *named["gpu"]}), *nameless]:
        key = (partition.cluster, partition.node, gpu, "")
        gpu_where, slice_where = (np.asarray(of.get(gpu, ()), dtype=np.intp) for of in (rows, parts))
        holdings = held.get(gpu, ())
        present = np.zeros((count, len(holdings)), dtype=bool)
        present[slice_bins[slice_where], columns[slice_where]] = True
        profiles = sorted({h.profile for h in holdings if h.kind == "mig" and h.profile})
        model = models.get(key, usual[0][0] if gpu in nameless and usual else "")
        board = board_of(model, profiles)
        found.append(
            Card(
                cluster=partition.cluster,
                node=partition.node,
                gpu=gpu,
                model=model,
                sm_count=_sm_count(counts.get(key), model),
                mig=any(h.kind == "mig" for h in holdings) or modes.get(key, "") in {"1", "true", "enabled"},
                interval_seconds=partition.interval_seconds,
                start_ms=start_ms,
                holdings=holdings,
                present=present,
                _gpu_rows=partition.gpu,
                _gpu_where=gpu_where,
                _gpu_bins=gpu_bins[gpu_where],
                _slice_rows=partition.slice,
                _slice_where=slice_where,
                _slice_bins=slice_bins[slice_where],
                _slice_columns=columns[slice_where],
                _wished=wished,
                nameless=gpu in nameless,
                units=units,
                _profile_share={p: board.sm_share(p)[0] for p in profiles if board and p in board.profiles},
            )
        )
    return found


def _unobserved(facts: pd.DataFrame, partition: Partition) -> int:
    """Return how many cards of a node are counted and never shown, as of the window's end."""
    told = facts[
        (facts["kind"] == "node")
        & (facts["name"] == "unobserved_cards")
        & (facts["cluster"] == partition.cluster)
        & (facts["node"] == partition.node)
        & (facts["from"] < partition.window.end)
        & (facts["to"].isna() | (facts["to"] >= partition.window.end))
    ]
    value = to_float(told.sort_values("from", kind="stable")["value"].iloc[-1]) if len(told) else 0.0
    return int(value) if value > 0 else 0


def _units(facts: pd.DataFrame, partition: Partition) -> int:
    told = to_float(hardware_facts(facts, "node", "card_replicas").get((partition.cluster, partition.node, "", "")))
    return int(told) if told > 1 else 0


def _sm_count(fact: str | None, model: str) -> float:
    known = to_float(fact)
    if not math.isnan(known):
        return known
    known_model = gpu_model(model) if model else None
    return float(known_model.sm_count) if known_model is not None and known_model.sm_count else math.nan


def _wished_shares(facts: pd.DataFrame, pods: set[str]) -> dict[str, float]:
    """Return what those pods asked for; of all others, which a fleet has many of, nothing need be read."""
    about = facts[(facts["kind"] != "pod") | facts["object"].isin(pods)]
    return {r.pod: r.share for r in requests(about) if 0 < r.share <= 1}


def _holdings(partition: Partition) -> tuple[npt.NDArray[np.intp], dict[str, tuple[Holding, ...]]]:
    """Return the column of each row among its card's holdings, and those by card: what each was when seen last."""
    rows, facts = partition.slice, partition.facts
    described = {name: hardware_spans(facts, "slice", name) for name in ("kind", "profile", "pod")}
    grouped = rows.groupby(["gpu", "slice", "tenant", "workload"], sort=True)
    last = grouped["time"].max()
    at_ms = last.to_numpy("datetime64[ms]").astype(np.int64).tolist()
    held: dict[str, list[Holding]] = {}
    columns = []
    for (gpu, slice_id, tenant, workload), at in zip(last.index, at_ms, strict=True):
        key = (partition.cluster, partition.node, gpu, slice_id)
        kind = value_at(described["kind"].get(key), at, "whole" if slice_id == "whole" else UNKNOWN)
        profile = value_at(described["profile"].get(key), at).removeprefix("mig-")
        mine = held.setdefault(gpu, [])
        columns.append(len(mine))
        mine.append(Holding(slice_id, tenant, workload, kind, profile, value_at(described["pod"].get(key), at)))
    number = grouped.ngroup().to_numpy().astype(np.intp)
    return np.array(columns, dtype=np.intp)[number], {gpu: tuple(mine) for gpu, mine in held.items()}
