"""Promises of all workloads: configuration joined with the annotations that the collector saw (facts)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import orjson
import pandas as pd
from pydantic import ValidationError

from collector.declarations import OWNER, Owner, ResolvedWorkload, WorkloadDeclaration, resolve_workload
from collector.schema import NOBODY, UNKNOWN

_FOREVER_MS = 2**62
_NOBODY = frozenset({"", NOBODY, UNKNOWN})
PROMISE_FACTS = ("service_class", "weight", "floor", "protected", "checkpoint_seconds", "objective")
_PLAIN_FACTS = ("service_class", "weight", "floor", "protected", "checkpoint_seconds")


def resolve_promises(
    facts: pd.DataFrame, slices: pd.DataFrame, configured: Sequence[WorkloadDeclaration]
) -> dict[Owner, ResolvedWorkload]:
    """As `promises_of`, for the holders of slice rows (columns `cluster`, `tenant` and `workload`)."""
    named = slices[OWNER].drop_duplicates().to_numpy()
    holders = {(str(c), str(t), str(w)) for c, t, w in named}
    return promises_of(facts, holders, configured)


def promises_of(
    facts: pd.DataFrame, holders: Iterable[Owner], configured: Sequence[WorkloadDeclaration]
) -> dict[Owner, ResolvedWorkload]:
    """Return (cluster, tenant, workload) -> promises for every workload that holds a slice or has an annotation.

    Equal names in two clusters are two workloads: annotations of one promise nothing about the other.

    Args:
        facts: as `Store.facts` returns them; later spans win.
        holders: (cluster, tenant, workload) of the slices; nobody and unknown holders are left out.
        configured: the `[[workload]]` tables, in order.
    """
    annotations: dict[Owner, dict[str, str]] = {}
    told = _as_last_seen(facts[facts["kind"] == "workload"])
    noted = told[told["provenance"] == "declared"]
    for cluster, subject, name, value in noted[["cluster", "object", "name", "value"]].itertuples(
        index=False, name=None
    ):
        tenant, _, workload = str(subject).partition("/")
        notes = annotations.setdefault((str(cluster), tenant, workload), {})
        if name in _PLAIN_FACTS:
            notes[str(name)] = str(value)
        elif name == "objective":
            notes |= {f"objective_{key}": str(part) for key, part in orjson.loads(str(value)).items()}
    keys = {owner for owner in holders if owner[2] not in _NOBODY}
    return {
        owner: _resolve(*owner[1:], tuple(configured), annotations.get(owner))
        for owner in sorted(keys | annotations.keys())
    }


def _as_last_seen(spans: pd.DataFrame) -> pd.DataFrame:
    """Keep what was still so when a workload was seen last: a promise that was taken back before is none any more."""
    ended = spans["to"].dt.as_unit("ms").astype("int64").where(spans["to"].notna(), _FOREVER_MS)
    last: pd.DataFrame = spans[ended == ended.groupby([spans["cluster"], spans["object"]]).transform("max")]
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


def is_protected(promises: Mapping[Owner, ResolvedWorkload], owner: Owner) -> bool:
    """Say whether nobody promised anything about a workload, or somebody protected it: then it is never lowered."""
    promise = promises.get(owner)
    return promise is None or not promise.declared or promise.declaration.protected
