"""What a source hands over: wide rows, dated facts, events and rejects of one cycle (or one chunk of a file)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Literal

import numpy as np
import pyarrow as pa

from collector.columns import number_column, text_column
from collector.schema import MEASUREMENTS

SubjectKind = Literal["cluster", "node", "gpu", "slice", "workload", "pod", "queue"]
Provenance = Literal["measured", "estimated", "unknown", "declared"]


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """What a fact, an event or a reject is about.

    Hardware is named by cluster, node, gpu, slice; a workload (`tenant/name`), a pod (`namespace/name`) or a queue
    (`pool/tenant`) by `object`. Parts that do not apply are empty strings.
    """

    kind: SubjectKind
    cluster: str
    node: str = ""
    gpu: str = ""
    slice: str = ""
    object: str = ""

    def __str__(self) -> str:
        """Return a readable path, such as `demo/node-a/GPU-1/gi3`."""
        return "/".join(p for p in (self.cluster, self.node, self.gpu, self.slice, self.object) if p)


@dataclass(frozen=True, slots=True)
class Fact:
    """`name` of `subject` is `value` from `at` on (value None: the fact ends at `at`). The store keeps the spans."""

    subject: Subject
    name: str
    value: str | None
    at: datetime
    provenance: Provenance = "measured"


class Severity(StrEnum):
    """How bad an event is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened once to `subject`: `code` such as `xid`, `oom`, `card_lost`, `version_changed`."""

    subject: Subject
    code: str
    severity: Severity
    message: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Reject:
    """`count` samples of `field` of `subject` were invalid at `at` and became NaN, because of `reason`."""

    subject: Subject
    field: str
    reason: str
    at: datetime
    count: int = 1


@dataclass(slots=True)
class Batch:
    """Rows by measurement (Arrow tables in the schema), facts, events and rejects."""

    rows: dict[str, pa.Table] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)

    @property
    def row_count(self) -> int:
        """Rows of all measurements together."""
        return sum(table.num_rows for table in self.rows.values())


def make_rows(
    measurement: str,
    times_ms: np.ndarray | Iterable[int],
    tags: Mapping[str, Iterable[str] | pa.Array],
    fields: Mapping[str, np.ndarray],
) -> pa.Table:
    """Build an Arrow table of wide rows; fields that are not given are left out (absent).

    Args:
        measurement: name in the schema.
        times_ms: int64 milliseconds since the epoch, one a row.
        tags: one text column for every tag of the measurement.
        fields: float64 columns; NaN is absent.

    Raises:
        ValueError: a tag is missing, a column is not in the schema, or lengths differ.
    """
    spec = MEASUREMENTS[measurement]
    missing = [tag for tag in spec.tags if tag not in tags]
    known = spec.field_names
    unknown = [name for name in fields if name not in known]
    if missing or unknown:
        raise ValueError(f"{measurement} rows: expected tags {spec.tags}; missing {missing}, unknown fields {unknown}")
    times = np.asarray(times_ms, dtype="datetime64[ms]").astype(np.int64)
    arrays = [number_column(times, kind=pa.timestamp("ms", tz="UTC"))]
    arrays += [one if isinstance(one := tags[tag], pa.Array) else text_column(list(one)) for tag in spec.tags]
    arrays += [number_column(np.asarray(values, dtype=np.float64)) for values in fields.values()]
    return pa.Table.from_arrays(arrays, schema=_row_schema(measurement, tuple(fields)))


@lru_cache(maxsize=256)
def _row_schema(measurement: str, fields: tuple[str, ...]) -> pa.Schema:
    tags = [(tag, pa.string()) for tag in MEASUREMENTS[measurement].tags]
    return pa.schema([("time", pa.timestamp("ms", tz="UTC")), *tags, *((name, pa.float64()) for name in fields)])
