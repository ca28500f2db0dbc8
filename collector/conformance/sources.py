# ruff: noqa: D102, S101 - the names of the tests say what they check, with assert
"""Laws of a source."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pytest

from collector.batch import Batch
from collector.clock import grid_floor
from collector.protocols import Source
from collector.schema import MEASUREMENTS
from collector.window import Window


class SourceConformance:
    """Laws of a source. Needs the fixtures `source`, `now` (an instant at which it has something) and `past`."""

    @pytest.fixture
    def source(self) -> Source:
        """Return the source under test."""
        raise NotImplementedError("expected a fixture `source` in the class that inherits")

    @pytest.fixture
    def now(self) -> datetime:
        """Return an instant at which the source has something to read."""
        raise NotImplementedError("expected a fixture `now` in the class that inherits")

    @pytest.fixture
    def past(self) -> Window:
        """Return a window to backfill; a source without a past gives no batch for it."""
        raise NotImplementedError("expected a fixture `past` in the class that inherits")

    @pytest.fixture
    def secrets(self) -> tuple[str, ...]:
        """Return texts that must never be shown, such as the token in the source's settings."""
        return ()

    @staticmethod
    def check_rows(batch: Batch) -> None:
        """Check every table against the schema: known columns, declared types, no null tag, valid ranges."""
        for name, table in batch.rows.items():
            spec = MEASUREMENTS[name]
            declared = spec.arrow_schema()
            assert list(table.column_names[: 1 + len(spec.tags)]) == ["time", *spec.tags]
            for column in table.column_names:
                assert table.schema.field(column).type == declared.field(column).type, f"{name}.{column}"
            for tag in ("time", *spec.tags):
                assert table.column(tag).null_count == 0, f"{name}.{tag}"
            for field in spec.fields:
                if field.name in table.column_names:
                    values = table.column(field.name).to_numpy()
                    values = values[~np.isnan(values)]
                    assert ((values >= field.low) & (values <= field.high)).all(), f"{name}.{field.name}"

    def test_poll_gives_rows_of_the_schema_on_the_grid(self, source: Source, now: datetime) -> None:
        batch = source.poll(now)
        assert batch.row_count > 0
        self.check_rows(batch)
        instant = grid_floor(now, source.describe().interval_seconds)
        for table in batch.rows.values():
            assert set(table.column("time").to_pylist()) == {instant}

    def test_each_key_stands_once_in_a_poll(self, source: Source, now: datetime) -> None:
        for name, table in source.poll(now).rows.items():
            frame = table.to_pandas()
            assert not frame.duplicated(["time", *MEASUREMENTS[name].key]).any(), name

    def test_backfill_is_ordered_and_half_open(self, source: Source, past: Window) -> None:
        newest: datetime | None = None
        for batch in source.backfill(past.start, past.end):
            self.check_rows(batch)
            times = [t for table in batch.rows.values() for t in table.column("time").to_pylist()]
            if times:
                assert past.start <= min(times)
                assert max(times) < past.end
                assert newest is None or min(times) > newest
                newest = max(times)

    def test_description_holds_no_secret(self, source: Source, secrets: tuple[str, ...]) -> None:
        described = source.describe()
        assert described.kind
        assert described.name
        assert described.interval_seconds > 0
        assert not [secret for secret in secrets if secret in repr(described)]
