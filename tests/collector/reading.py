"""Reads a text with one of the readers of logs."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from collector.batch import Batch
from collector.importing.log import LogPlace, Tally
from collector.importing.run import Reader
from collector.importing.text import TextFile

PLACE = LogPlace("default", "n1", UTC, file_time=datetime(2026, 4, 1, tzinfo=UTC))


@dataclass
class Read:
    """What a log became: one batch of all, and the tally."""

    batch: Batch
    tally: Tally

    @property
    def accepted(self) -> int:
        return self.tally.accepted

    @property
    def rejected(self) -> dict[str, tuple[int, int]]:
        return self.tally.rejected

    @property
    def warnings(self) -> list[str]:
        return self.tally.warnings


def read(reader: Reader, content: str | bytes, place: LogPlace = PLACE, **changes: object) -> Read:
    """Read a content as a file of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        tally, whole = Tally(), Batch()
        for batch in reader(TextFile(path), replace(place, **changes), tally):  # type: ignore[arg-type]
            for name, table in batch.rows.items():
                before = whole.rows.get(name)
                both = table if before is None else pa.concat_tables([before, table], promote_options="default")
                whole.rows[name] = both
            whole.facts += batch.facts
            whole.events += batch.events
            whole.rejects += batch.rejects
    return Read(whole, tally)
