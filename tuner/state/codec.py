"""Groups, plans and journal bodies as canonical JSON: sorted keys, shortest floats, NaN as null."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict
from typing import Any, cast

import orjson

from tuner.model import Change, Group, Target, Trial

JsonObject = dict[str, Any]


def canonical(document: object) -> str:
    """Return the one JSON text of `document`: the same value gives the same bytes everywhere."""
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY).decode()


def parse(text: str) -> JsonObject:
    """Return the object that `canonical` wrote."""
    return cast("JsonObject", orjson.loads(text))


def digest(document: object) -> str:
    """Return the SHA-256 of the canonical text, in hexadecimal."""
    return hashlib.sha256(canonical(document).encode()).hexdigest()


def target_to_json(target: Target) -> JsonObject:
    """Return a target without its empty parts."""
    parts = {"node": target.node, "gpu": target.gpu, "slice": target.slice, "name": target.name}
    return {"kind": target.kind, "cluster": target.cluster, **{k: v for k, v in parts.items() if v}}


def target_from_json(document: JsonObject) -> Target:
    """Invert `target_to_json`."""
    return Target(**document)


def group_to_json(group: Group) -> JsonObject:
    """Return the document of a group."""
    return {
        "id": group.id,
        "changes": [
            {
                "target": target_to_json(c.target),
                "knob": c.knob,
                "before": c.before,
                "after": c.after,
                "reason": c.reason,
                "tenant": c.tenant,
                "workload": c.workload,
            }
            for c in group.changes
        ],
        "why": group.why,
        "kind": group.kind,
        "predicted_gain": group.predicted_gain,
        "confidence": group.confidence,
        "coverage": group.coverage,
        "risk": group.risk,
        "findings": list(group.findings),
        "fast": group.fast,
        **({} if group.trial is None else {"trial": _trial_to_json(group.trial)}),
    }


def group_from_json(document: JsonObject) -> Group:
    """Invert `group_to_json`; null numbers come back as NaN."""
    return Group(
        id=document["id"],
        changes=tuple(
            Change(
                target=target_from_json(c["target"]),
                knob=c["knob"],
                before=_number(c["before"]),
                after=_number(c["after"]),
                reason=c["reason"],
                tenant=c["tenant"],
                workload=c["workload"],
            )
            for c in document["changes"]
        ),
        why=document["why"],
        kind=document["kind"],
        predicted_gain=_number(document["predicted_gain"]),
        confidence=_number(document["confidence"]),
        coverage=_number(document["coverage"]),
        risk=document["risk"],
        findings=tuple(document["findings"]),
        fast=document["fast"],
        trial=_trial_from_json(document["trial"]) if "trial" in document else None,
    )


def _trial_to_json(trial: Trial) -> JsonObject:
    return {**asdict(trial), "victim": target_to_json(trial.victim)}


def _trial_from_json(document: JsonObject) -> Trial:
    return Trial(**{**document, "victim": target_from_json(document["victim"])})


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
