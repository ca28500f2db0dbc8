"""What a mapping table may say, how it is loaded, and how a metric's rows are found by its name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from collector.schema import MEASUREMENTS
from collector.units import UNITS, factor, fits, nearest

Subject = Literal["device", "container", "allocation", "server", "node", "kube", "process"]
Nature = Literal[
    "gauge", "counter", "mean", "histogram", "summary", "bits", "xid", "xid_total", "xid_window", "xid_new", "info"
]

# What the assembler understands beside the schema's own fields.
LATENCY = "latency"
# Facts whose labels speak of other series of their target.
MIG_INSTANCE, VERSIONS, HOST = "mig_instance", "versions", "host"
NAMING = frozenset((MIG_INSTANCE, VERSIONS, HOST))
KUBE_FIELDS = frozenset(
    (
        "pod_phase",
        "pod_request",
        "pod_labels",
        "pod_annotations",
        "pod_owner",
        "pod_created",
        "pod_started",
        "pod_scheduled",
        "pod_scheduled_time",
        "pod_completed",
        "pod_terminated_reason",
        "replicaset_owner",
        "node_allocatable",
        "node_capacity",
        "node_labels",
        "kueue_pending",
        "kueue_quota",
        "kueue_reserved",
        "quota",
    )
)


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MetricRow(_Table):
    """One metric: its names, where its value goes, and how it is read.

    Of several names that are there at once only the first counts.
    """

    metric: tuple[str, ...] = Field(min_length=1, description="names, newest first; of a histogram or mean the base")
    measurement: Literal["gpu", "slice", "node", "kube", "event", "fact"]
    field: str
    unit: str = Field("", description="unit that the exporter writes, of `collector.units.UNITS`; it gives the scale")
    scale: float = Field(1.0, description="factor to the base unit, where no unit says it")
    nature: Nature = "gauge"
    mig: Literal["parent", "instance", "absent"] = Field(
        "parent", description="under MIG: the card's value repeated, the instance's own, or not to be believed"
    )
    per_process: bool = Field(False, description="pods' series are their processes' beside the device's own series")
    adds_up: tuple[str, ...] = Field((), description="labels whose parts add up to the subject's value")
    adds_to_field: bool = Field(False, description="rows of one exporter with this flag add up to the field")
    where: dict[str, str] = Field(default_factory=dict, description="labels that must have this value (*: any)")
    unless: dict[str, re.Pattern[str]] = Field(
        default_factory=dict, description="labels whose value must not match the expression as a whole"
    )
    mask: int = Field(0, description="bits: which bits count; -1: power brake, 0x80 or 0x8 without 0x1")
    quantity: Literal["", "e2e", "ttft", "inter_token", "queue"] = ""
    part: Literal["", "sum", "count", "total", "rest", "share"] = Field(
        "",
        description="mean: this name alone is the sum, or the count; node: total less rest, or a share of the total",
    )
    cap: bool = Field(False, description="above 1 is capped at 1 and counted")
    window: float | Literal["cycle"] | None = Field(
        None, description="seconds that a value is the mean of, where the exporter's differs; cycle: the whole cycle"
    )
    either: bool = Field(
        False, description="percent in some versions, a ratio in others: a fraction below 1 is a ratio, 1 is not clear"
    )
    absent: float | None = Field(None, description="a value that says: nothing known, or no limit")
    notes: str = ""

    @model_validator(mode="before")
    @classmethod
    def _scale_of_unit(cls, row: Any) -> Any:
        unit = row.get("unit") if isinstance(row, dict) else None
        if not unit:
            return row
        if "scale" in row:
            raise ValueError(f"`unit` and `scale` of {row.get('metric')}: expected one of them, got both")
        return row | {"scale": factor(str(unit))}

    @model_validator(mode="after")
    def _known_field(self) -> Self:
        name = self.metric[0]
        if self.field == LATENCY and self.measurement == "slice":
            if not self.quantity:
                raise ValueError(f"{name}: a latency needs its quantity")
            return self
        if self.measurement == "kube" and self.field not in KUBE_FIELDS:
            raise ValueError(
                f"{name}: expected a field of kube ({', '.join(sorted(KUBE_FIELDS))}), "
                f"got {self.field!r}{nearest(self.field, KUBE_FIELDS)}"
            )
        if self.measurement in MEASUREMENTS:
            counter = self.nature == "counter" or bool(self.part)
            unit = "" if self.part == "count" else self.unit
            check_target(name, self.measurement, self.field, unit, counter=counter)
        return self

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Say whether the labels are those that `where` asks for, and none that `unless` shuts out."""
        return all(name in labels and value in ("*", labels[name]) for name, value in self.where.items()) and not any(
            pattern.fullmatch(labels.get(name, "")) for name, pattern in self.unless.items()
        )


def check_target(metric: str, measurement: str, field: str, unit: str, *, counter: bool) -> None:
    """See to it that a metric goes to a field that exists and can hold its unit.

    Raises:
        ValueError: no such field, no such unit, or a unit of another kind; the message names the nearest.
    """
    known = MEASUREMENTS[measurement].field_names
    if field not in known:
        raise ValueError(
            f"{metric}: expected a field of {measurement} ({', '.join(known)}), got {field!r}{nearest(field, known)}"
        )
    if not unit:
        return
    factor(unit)
    spec = MEASUREMENTS[measurement].field(field)
    if not fits(unit, spec, counter=counter):
        fitting = [name for name in UNITS if fits(name, spec, counter=counter)]
        raise ValueError(f"{metric}: expected a unit that becomes {spec.unit} ({', '.join(fitting)}), got {unit!r}")


class ExporterMapping(_Table):
    """One exporter: who its series speak of, which labels say so, and its metrics.

    preference: where two exporters give the same field of the same subject the lower number wins.
    instance, profile: labels of a MIG instance's number and profile.
    partition, board: labels of an AMD partition's number, and of what its partitions have in common.
    instance_index: an instance has no number, its index is `<card>:<n>`.
    window: over how many seconds its values are a mean (0: points); None: not known.
    nan_is_absent: NaN says that the card has no such figure; elsewhere it is an invalid sample.
    """

    exporter: str
    subject: Subject
    preference: int = 50
    uuid: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    node: tuple[str, ...] = ()
    namespace: tuple[str, ...] = ("namespace",)
    pod: tuple[str, ...] = ("pod",)
    container: tuple[str, ...] = ("container",)
    instance: tuple[str, ...] = ("GPU_I_ID",)
    profile: tuple[str, ...] = ("GPU_I_PROFILE",)
    partition: tuple[str, ...] = ()
    board: tuple[str, ...] = ()
    instance_index: bool = False
    window: float | None = None
    nan_is_absent: bool = False
    uuid_prefix: str = ""
    metric: tuple[MetricRow, ...]


class MappedMetric(_Table):
    """A row with the exporter it belongs to, and which part of a histogram, summary or mean a name is."""

    exporter: ExporterMapping
    row: MetricRow
    part: Literal["", "bucket", "sum", "count"] = ""
    rank: int = 0  # place among the row's names: the newest name is 0


class MappingTable:
    """Finds the rows of a metric by the name on the raw line."""

    def __init__(self, exporters: Sequence[ExporterMapping]) -> None:
        self._rows: dict[str, list[MappedMetric]] = {}
        self._naming: set[str] = set()
        for exporter in exporters:
            for row in exporter.metric:
                for rank, name in enumerate(row.metric):
                    for suffix, part in _parts(row):
                        mapped = MappedMetric.model_construct(exporter=exporter, row=row, part=part, rank=rank)
                        self._rows.setdefault(name + suffix, []).append(mapped)
                    if row.field in NAMING or exporter.partition or exporter.instance_index:
                        self._naming.add(name)

    def is_naming(self, name: str) -> bool:
        """Say whether a series of this name tells what other series are about."""
        return name in self._naming or _without_prefix(name) in self._naming

    @property
    def names(self) -> tuple[str, ...]:
        """All metric names that are understood, sorted."""
        return tuple(sorted(self._rows))

    def find(self, name: str, labels: Mapping[str, str]) -> list[MappedMetric]:
        """Return the rows of a sample; empty where the metric is not mapped. The first `where` that fits wins."""
        rows = self._rows.get(name) or self._rows.get(_without_prefix(name)) or []
        found: list[MappedMetric] = []
        for mapped in rows:
            same = any(
                other.exporter is mapped.exporter
                and (other.row.field, other.row.part) == (mapped.row.field, mapped.row.part)
                and other.row.nature != "bits"
                for other in found
            )
            if not same and mapped.row.matches(labels):
                found.append(mapped)
        return found


@cache
def builtin_exporters() -> tuple[ExporterMapping, ...]:
    """Return the tables that come with the product, by preference."""
    tables = sorted(
        (p for p in files("collector.mappings").iterdir() if p.name.endswith(".toml")), key=lambda p: p.name
    )
    exporters = (ExporterMapping.model_validate(tomllib.loads(p.read_text(encoding="utf-8"))) for p in tables)
    return tuple(sorted(exporters, key=lambda exporter: exporter.preference))


def _parts(row: MetricRow) -> tuple[tuple[str, Literal["", "bucket", "sum", "count"]], ...]:
    if row.nature == "histogram":
        # Triton's documentation shows buckets without the suffix: the bare name with an `le` label is one too.
        return (("_bucket", "bucket"), ("", "bucket"), ("_sum", "sum"), ("_count", "count"))
    if row.nature == "mean":
        if row.part in ("sum", "count"):
            return (("", row.part),)
        return (("_sum", "sum"), ("_count", "count"))
    return (("", ""),)


def _without_prefix(name: str) -> str:
    """Undo prefixes that wrappers put before an exporter's names: `amd_`, Ray's `ray_` and its `_` for `:`."""
    if name.startswith("amd_"):
        return name[4:]
    name = name.removeprefix("ray_")
    for server in ("vllm", "sglang"):
        if name.startswith(f"{server}_"):
            return f"{server}:{name[len(server) + 1 :]}"
    return name
