"""Kubernetes objects as JSON: quantities, instants, conditions, names as kube-state-metrics writes them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from collector.kube import is_gpu_resource

Json = Mapping[str, Any]

_MOST = 2.0**63  # Kubernetes allows no more
_NO_NAME = re.compile(r"[^a-zA-Z0-9_]")
_DECIMAL = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SUFFIXES = _DECIMAL | {f"{letter}i": 2.0 ** (10 * power) for power, letter in enumerate("KMGTPE", start=1)}
_QUANTITY = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d+)|([numkMGTPE]|[KMGTPE]i))?$")


def quantity(value: object) -> float:
    """Return a Kubernetes quantity (`4`, `500m`, `2Gi`, `1e3`) as a number; NaN where it is none."""
    if isinstance(value, bool):
        return math.nan
    if isinstance(value, int | float):
        return float(value) if abs(value) < _MOST else math.nan
    match = _QUANTITY.match(value.strip()) if isinstance(value, str) else None
    if match is None:
        return math.nan
    number, exponent, suffix = match.groups()
    found = float(f"{number}e{exponent}") if exponent else float(number) * _SUFFIXES[suffix or ""]
    return found if abs(found) < _MOST else math.nan


def instant(value: object) -> float | None:
    """Return an RFC 3339 time as seconds since the epoch; None where it is none."""
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return None
    return at.timestamp() if at.tzinfo is not None else None


def sanitized(name: str) -> str:
    """Return a resource's or label's name as kube-state-metrics writes it: `nvidia.com/gpu` is `nvidia_com_gpu`."""
    return _NO_NAME.sub("_", name)


def table(value: object) -> Json:
    """Return a JSON object, empty where something else stands in its place."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> list[Json]:
    """Return the objects of a JSON list; anything else in it is left out."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def text(value: object) -> str:
    """Return a JSON text, empty where something else stands in its place."""
    return value if isinstance(value, str) else ""


def condition(status: Json, kind: str) -> tuple[bool, float | None]:
    """Return whether a condition holds, and since when it does or does not."""
    for one in items(status.get("conditions")):
        if one.get("type") == kind:
            return one.get("status") == "True", instant(one.get("lastTransitionTime"))
    return False, None


def requests_of(spec: Json) -> dict[str, float]:
    """Return what the containers of a pod's spec ask for together, by sanitised name, in base units.

    Of extended resources limits and requests are the same; init containers add nothing to a pod's need of cards.
    """
    asked: dict[str, float] = {}
    for container in items(spec.get("containers")):
        resources = table(container.get("resources"))
        for name, value in {**table(resources.get("limits")), **table(resources.get("requests"))}.items():
            number = quantity(value)
            if not math.isnan(number):
                key = sanitized(name)
                asked[key] = asked.get(key, 0.0) + number
    return asked


def gpu_total(resources: Json) -> float:
    """Return how many cards, or parts of one, a table of resources names; NaN where it names none."""
    found = [quantity(value) for name, value in resources.items() if is_gpu_resource(sanitized(name))]
    found = [value for value in found if not math.isnan(value)]
    return sum(found) if found else math.nan
