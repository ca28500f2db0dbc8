"""Promises of all workloads: configuration joined with the annotations that the collector saw (facts)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import orjson
import pandas as pd
from pydantic import ValidationError

from collector.declarations import ResolvedWorkload, WorkloadDeclaration, resolve_workload
from collector.schema import NOBODY, UNKNOWN

_FOREVER_MS = 2**62
_NOBODY = frozenset({"", NOBODY, UNKNOWN})
PROMISE_FACTS = ("service_class", "weight", "floor", "protected", "checkpoint_seconds", "objective")
_PLAIN_FACTS = ("service_class", "weight", "floor", "protected", "checkpoint_seconds")


def resolve_promises(
    facts: pd.DataFrame, slices: pd.DataFrame, configured: Sequence[WorkloadDeclaration]
) -> dict[tuple[str, str], ResolvedWorkload]:
    """As `promises_of`, for the holders of slice rows (columns `tenant` and `workload`)."""
    holders = {(str(t), str(w)) for t, w in slices[["tenant", "workload"]].drop_duplicates().to_numpy()}
    return promises_of(facts, holders, configured)


def promises_of(
    facts: pd.DataFrame, holders: Iterable[tuple[str, str]], configured: Sequence[WorkloadDeclaration]
) -> dict[tuple[str, str], ResolvedWorkload]:
    """Return (tenant, workload) -> promises for every workload that holds a slice or has an annotation.

    Args:
        facts: as `Store.facts` returns them; later spans win.
        holders: (tenant, workload) of the slices; nobody and unknown holders are left out.
        configured: the `[[workload]]` tables, in order.
    """
    annotations: dict[tuple[str, str], dict[str, str]] = {}
    told = _as_last_seen(facts[facts["kind"] == "workload"])
    noted = told[told["provenance"] == "declared"]
    for subject, name, value in zip(noted["object"], noted["name"], noted["value"], strict=True):
        tenant, _, workload = str(subject).partition("/")
        notes = annotations.setdefault((tenant, workload), {})
        if name in _PLAIN_FACTS:
            notes[str(name)] = str(value)
        elif name == "objective":
            notes |= {f"objective_{key}": str(part) for key, part in orjson.loads(str(value)).items()}
    keys = {(tenant, workload) for tenant, workload in holders if workload not in _NOBODY}
    return {
        (tenant, workload): _resolve(tenant, workload, tuple(configured), annotations.get((tenant, workload)))
        for tenant, workload in sorted(keys | annotations.keys())
    }


def _as_last_seen(spans: pd.DataFrame) -> pd.DataFrame:
    """Keep what was still so when a workload was seen last: a promise that was taken back before is none any more."""
    ended = spans["to"].dt.as_unit("ms").astype("int64").where(spans["to"].notna(), _FOREVER_MS)
    last: pd.DataFrame = spans[ended == ended.groupby(spans["object"]).transform("max")]
    return last.sort_values("from", kind="stable")


def _resolve(
    tenant: str, workload: str, configured: tuple[WorkloadDeclaration, ...], notes: dict[str, str] | None
) -> ResolvedWorkload:
    """Join both; annotations that make no valid promise beside the configuration count as none, as when collected."""
    try:
        return resolve_workload(tenant, workload, configured, notes)
    except ValidationError:
        return resolve_workload(tenant, workload, configured)


def objective_share(promise: ResolvedWorkload | None) -> float:
    """Return the promised share of requests within the bound; NaN where nothing is promised."""
    if promise is None or promise.declaration.objective is None:
        return float("nan")
    return promise.declaration.objective.share


def is_protected(promises: Mapping[tuple[str, str], ResolvedWorkload], tenant: str, workload: str) -> bool:
    """Say whether nobody promised anything about a workload, or somebody protected it: then it is never lowered."""
    promise = promises.get((tenant, workload))
    return promise is None or not promise.declared or promise.declaration.protected
