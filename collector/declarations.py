"""What people promise about workloads, in configuration or pod annotations: class, objective, weight, floor."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from collector.settings import Section

ServiceClass = Literal["online", "offline"]
OWNER = ["cluster", "tenant", "workload"]
Owner = tuple[str, str, str]  # cluster, tenant, workload: equal names in two clusters are two workloads


class Objective(Section):
    """A latency promise: `share` of requests have `quantity` within `bound_seconds`, counted over `window`."""

    quantity: Literal["e2e", "ttft", "inter_token", "queue"] = Field("e2e", description="which latency is promised")
    share: float = Field(0.999, gt=0, le=1, description="share of requests within the bound (0.999 = 99.9 %)")
    bound_seconds: float = Field(gt=0, description="the bound, in seconds")
    window_seconds: float = Field(60.0, gt=0, description="length of one judged window, in seconds")


class WorkloadDeclaration(Section):
    """One `[[workload]]` table. Patterns are shell-style globs; the first table that matches wins."""

    match: str = Field("*", description="glob on the workload's name")
    tenant: str = Field("*", description="glob on the tenant's name")
    service_class: ServiceClass = Field(
        "online", description="online has a latency objective; offline wants throughput"
    )
    objective: Objective | None = Field(None, description="the promise; needed for an online workload to be tuned")
    weight: float = Field(1.0, gt=0, description="share of what is left over, against other offline workloads")
    floor: float = Field(0.0, ge=0, le=1, description="compute share of the card below which it is never lowered")
    protected: bool = Field(False, description="never changed by the tuner")
    checkpoint_seconds: float = Field(
        0.0, ge=0, description="how often it saves its work, in seconds (a move loses half of that); 0: nobody knows"
    )

    @model_validator(mode="after")
    def _offline_has_no_objective(self) -> Self:
        if self.service_class == "offline" and self.objective is not None:
            raise ValueError("an offline workload has no latency objective: drop `objective`, or set it online")
        return self

    def matches(self, tenant: str, workload: str) -> bool:
        """Say whether this table speaks of that workload."""
        return fnmatch.fnmatchcase(workload, self.match) and fnmatch.fnmatchcase(tenant, self.tenant)


class ResolvedWorkload(BaseModel):
    """A workload's promises and where each came from: `config`, `annotation` or `default`."""

    model_config = ConfigDict(frozen=True)

    tenant: str
    workload: str
    declaration: WorkloadDeclaration
    declared: bool  # False: nobody promised anything, so it counts as online and protected
    origin: dict[str, Literal["config", "annotation", "default"]]


_UNDECLARED = WorkloadDeclaration(protected=True)
_ANNOTATION_FIELDS = ("service_class", "weight", "floor", "protected", "checkpoint_seconds")
_ANNOTATION_OBJECTIVE = {
    "objective_quantity": "quantity",
    "objective_share": "share",
    "objective_bound_seconds": "bound_seconds",
    "objective_window_seconds": "window_seconds",
}


def resolve_workload(
    tenant: str,
    workload: str,
    declarations: tuple[WorkloadDeclaration, ...],
    annotations: dict[str, str] | None = None,
) -> ResolvedWorkload:
    """Join configuration and `trimtab/...` annotations (configuration wins, field by field).

    Args:
        tenant: namespace, project or account.
        workload: deployment or job.
        declarations: the configured tables, in order.
        annotations: the part after `trimtab/` -> value, such as `objective_bound_seconds` -> `0.1`.

    Raises:
        pydantic.ValidationError: an annotation's value is invalid.
    """
    configured = next((d for d in declarations if d.matches(tenant, workload)), None)
    notes = annotations or {}
    values: dict[str, object] = {name: notes[name] for name in _ANNOTATION_FIELDS if name in notes}
    objective = {field: notes[key] for key, field in _ANNOTATION_OBJECTIVE.items() if key in notes}
    if objective:
        values["objective"] = objective
    origin: dict[str, Literal["config", "annotation", "default"]] = dict.fromkeys(values, "annotation")
    if configured is not None:
        for name in configured.model_fields_set - {"match", "tenant"}:
            values[name] = getattr(configured, name)
            origin[name] = "config"
    if not values:
        every = (*_ANNOTATION_FIELDS, "objective")
        return ResolvedWorkload(
            tenant=tenant,
            workload=workload,
            declaration=_UNDECLARED,
            declared=False,
            origin=dict.fromkeys(every, "default"),
        )
    declaration = WorkloadDeclaration.model_validate(values)
    for name in (*_ANNOTATION_FIELDS, "objective"):
        origin.setdefault(name, "default")
    return ResolvedWorkload(tenant=tenant, workload=workload, declaration=declaration, declared=True, origin=origin)


def valid_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that promise something by themselves: an invalid value promises nothing of its field."""
    said = _said(annotations)
    return {name: text for name, text in annotations.items() if _field_of(name) in said}


def promises_in(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return what annotations say, field by field, as texts of facts; defaults of what they leave out are not said.

    An objective is JSON of the parts that are said.
    """
    texts = {}
    for name, value in _said(annotations).items():
        if isinstance(value, Objective):
            texts[name] = value.model_dump_json(exclude_unset=True)
        else:
            texts[name] = f"{value:.15g}" if isinstance(value, float) else str(value).lower()
    return texts


def _field_of(annotation: str) -> str:
    return "objective" if annotation in _ANNOTATION_OBJECTIVE else annotation


def _said(annotations: Mapping[str, str]) -> dict[str, object]:
    """Return field -> value of what annotations validly say, each field by itself."""
    written: dict[str, object] = {name: annotations[name] for name in _ANNOTATION_FIELDS if name in annotations}
    objective = {part: annotations[key] for key, part in _ANNOTATION_OBJECTIVE.items() if key in annotations}
    if objective:
        written["objective"] = objective
    said = {}
    for name, value in written.items():
        try:
            said[name] = getattr(WorkloadDeclaration.model_validate({name: value}), name)
        except ValidationError:
            continue
    return said
