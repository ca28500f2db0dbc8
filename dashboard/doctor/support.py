"""The doctor's word on what a card cannot have: an empty field may be a fault, or a limit of architecture or driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from collector.batch import Batch
from collector.support import architecture_of, branch_of, support, why_absent
from collector.words import plural
from dashboard.doctor.check import Check, note, some

Card = tuple[str, str]  # architecture, driver


def cards_of(batch: Batch) -> Mapping[str, Card]:
    """Return architecture and driver of each card that tells its model or architecture; unknown ones are empty."""
    told: dict[str, dict[str, str]] = {}
    for fact in batch.facts:
        if fact.subject.kind == "gpu" and fact.value and fact.name in ("model", "architecture", "driver_version"):
            told.setdefault(fact.subject.gpu, {})[fact.name] = fact.value
    return {
        uuid: (said.get("architecture") or architecture_of(said.get("model", "")), said.get("driver_version", ""))
        for uuid, said in told.items()
    }


def not_there(topic: str, batch: Batch) -> Iterator[Check]:
    """Name the metrics that no card of an architecture and driver tells because none can."""
    rows = batch.rows.get("gpu")
    if rows is None or not rows.num_rows:
        return
    cards = cards_of(batch)
    groups: dict[Card, list[int]] = {}
    for place, uuid in enumerate(rows.column("gpu").to_pylist()):
        architecture, driver = cards.get(uuid, ("", ""))
        branch = branch_of(driver)
        groups.setdefault((architecture, str(branch) if branch else ""), []).append(place)
    names = dict.fromkeys(row.name for row in support().row if row.kind == "metric" and row.name.startswith("gpu."))
    for (architecture, driver), places in sorted(groups.items()):
        absent = []
        for name in names:
            reason = why_absent(name, architecture, driver)
            if reason and not _any_value(rows, name.removeprefix("gpu."), places):
                absent.append(f"{name.removeprefix('gpu.')} ({reason})")
        if absent:
            which = ", ".join(part for part in (architecture, f"driver {driver}" if driver else "") if part)
            text = f"{plural(len(places), 'card')} ({which}): not on this architecture/driver: {some(absent, 6)}"
            yield note(topic, text, "docs/support.md says what exists where")


def _any_value(rows: pa.Table, field: str, places: list[int]) -> bool:
    if field not in rows.column_names:
        return False
    values = rows.column(field).to_numpy(zero_copy_only=False).astype(np.float64)
    return bool((~np.isnan(values[places])).any())
