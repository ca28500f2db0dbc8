"""The page of fields is in step with the schema."""

from __future__ import annotations

from pathlib import Path

from collector.schema import MEASUREMENTS
from collector.schema_docs import metrics_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def test_the_page_is_in_step() -> None:
    assert PAGE.read_text(encoding="utf-8") == metrics_page(), "run: python -m collector.schema_docs"


def test_every_field_has_a_row() -> None:
    page = metrics_page()
    for spec in MEASUREMENTS.values():
        assert f"## {spec.name}: " in page
        for field in spec.fields:
            assert f"| `{field.name}` | {field.unit} |" in page
