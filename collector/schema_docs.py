"""The page of all measurements and fields: `python -m collector.schema_docs` writes docs/metrics.md."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from collector.schema import MEASUREMENTS, Field, Kind, Measurement

_TITLES = {
    "gpu": "one row a card",
    "slice": "one row a slice: the share of a card that one tenant's container or process holds",
    "node": "one row a host",
    "queue": "one row a queue of a pool and tenant",
}
_AGGREGATES = {
    Kind.GAUGE: "level: mean, min, max, percentiles",
    Kind.INCREMENT: "growth since the row before: sum",
    Kind.RATE: "per second: mean",
    Kind.QUANTILE: "percentile of its interval: max; never averaged",
}


def metrics_page() -> str:
    """Return the page, in Markdown."""
    lines = [
        "# Measurements and fields",
        "",
        "Generated from `collector/schema.py`. Every field is a float in base units; absent is absent, never zero.",
        "Every ratio is 0..1 and, of a slice, of the whole card; `kv_cache_used_ratio` is of the server's own pool.",
        "A value outside its range is dropped and counted.",
    ]
    for spec in MEASUREMENTS.values():
        lines += ["", *_section(spec)]
    return "\n".join(lines) + "\n"


def _section(spec: Measurement) -> list[str]:
    keys = ", ".join(f"`{tag}`" for tag in ("time", *spec.key))
    extra = f" Carried beside it: {', '.join(f'`{tag}`' for tag in spec.extra_tags)}." if spec.extra_tags else ""
    head = [
        f"## {spec.name}: {_TITLES[spec.name]}",
        "",
        f"Key: {keys}.{extra}",
        "",
        "| field | unit | range | adds up as | what it says |",
        "|---|---|---|---|---|",
    ]
    rows = [f"| `{f.name}` | {f.unit} | {_range(f)} | {_AGGREGATES[f.kind]} | {f.text} |" for f in spec.fields]
    return head + rows


def _range(field: Field) -> str:
    high = "" if math.isinf(field.high) else f"{field.high:.6g}"
    return f"{field.low:.6g}..{high}"


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/metrics.md").write_text(metrics_page(), encoding="utf-8")
