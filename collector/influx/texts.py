"""Facts, events and rejects in InfluxDB: text fields, and times that keep apart what happens in one instant.

- `fact`: a point at the span's start with `value`, `provenance`, `open` (1: still so) and `to` (ms). Sent again it
  replaces itself; a span that ends where it starts was withdrawn.
- `event`, `reject`: the nanoseconds below the millisecond come from a hash of the message or the reason, since two of
  them may concern one subject in one millisecond. Reading takes the millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from collector.influx.lines import text_line
from collector.store.spans import EVENT_COLUMNS, FACT_COLUMNS, REJECT_COLUMNS, SUBJECT_COLUMNS
from collector.window import Window

MS = 1_000_000  # nanoseconds
TAGS = {
    "fact": (*SUBJECT_COLUMNS, "name"),
    "event": (*SUBJECT_COLUMNS, "code"),
    "reject": (*SUBJECT_COLUMNS, "field"),
}
NUMBERS = {"fact": ("open", "to"), "event": (), "reject": ("count",)}
TEXTS = {"fact": ("value", "provenance"), "event": ("severity", "message"), "reject": ("reason",)}


def encode_facts(facts: pd.DataFrame, *, fixed_tags: bool = False) -> Iterator[str]:
    """Yield a line (ns precision) a fact."""
    for row in _rows(facts):
        start = _ms(row["from"])
        open_ended = pd.isna(row["to"])
        ends: dict[str, str | float] = {"open": 1.0} if open_ended else {"open": 0.0, "to": float(_ms(row["to"]))}
        fields = {"value": row["value"], "provenance": row["provenance"], **ends}
        yield text_line("fact", {tag: row[tag] for tag in TAGS["fact"]}, fields, start * MS, fixed_tags=fixed_tags)


def encode_events(events: pd.DataFrame, *, fixed_tags: bool = False) -> Iterator[str]:
    """Yield a line (ns precision) an event."""
    for row in _rows(events):
        fields = {"severity": row["severity"], "message": row["message"]}
        instant = _ms(row["time"]) * MS + _within_millisecond(row["message"])
        yield text_line("event", {tag: row[tag] for tag in TAGS["event"]}, fields, instant, fixed_tags=fixed_tags)


def encode_rejects(rejects: pd.DataFrame, *, fixed_tags: bool = False) -> Iterator[str]:
    """Yield a line (ns precision) a reject."""
    for row in _rows(rejects):
        fields = {"reason": row["reason"], "count": float(row["count"])}
        instant = _ms(row["time"]) * MS + _within_millisecond(row["reason"])
        yield text_line("reject", {tag: row[tag] for tag in TAGS["reject"]}, fields, instant, fixed_tags=fixed_tags)


def _rows(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    columns = [frame[name] for name in frame.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(frame.columns, values, strict=True))


def _ms(instant: pd.Timestamp) -> int:
    return round(instant.timestamp() * 1000)


def _within_millisecond(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) % MS


def decode_facts(rows: pa.Table, window: Window | None) -> pd.DataFrame:
    """Return facts valid in `window` from points (`t`, tags, fields).

    A span that was never closed (its collector's store was lost) ends where the next of its name begins.
    """
    frame: pd.DataFrame = rows.to_pandas()
    frame["from"] = _instants(frame["t"])
    ends = frame["to"].where(frame["open"] != 1.0)
    frame["to"] = _instants(ends)
    key = list(TAGS["fact"])
    frame = frame[frame["from"] != frame["to"]].sort_values([*key, "from"], ignore_index=True)
    following = frame.groupby(key, sort=False)["from"].shift(-1)
    cut = following.notna() & (frame["to"].isna() | (frame["to"] > following))
    frame["to"] = frame["to"].mask(cut, following)
    if window is not None:
        frame = frame[(frame["from"] < window.end) & (frame["to"].isna() | (frame["to"] > window.start))]
    return frame[list(FACT_COLUMNS)].reset_index(drop=True)


def decode_events(rows: pa.Table) -> pd.DataFrame:
    """Return events from points, as `StoreReader.events` does."""
    return _decoded(rows, EVENT_COLUMNS, [*SUBJECT_COLUMNS, "code", "message"])


def decode_rejects(rows: pa.Table) -> pd.DataFrame:
    """Return rejects from points, as `StoreReader.rejects` does."""
    frame = _decoded(rows, REJECT_COLUMNS, [*SUBJECT_COLUMNS, "field", "reason"])
    return frame.assign(count=frame["count"].astype("int64"))


def _decoded(rows: pa.Table, columns: tuple[str, ...], order: list[str]) -> pd.DataFrame:
    frame: pd.DataFrame = rows.to_pandas()
    frame["time"] = _instants(frame["t"])
    return frame.sort_values(["time", *order], ignore_index=True)[list(columns)]


def _instants(milliseconds: pd.Series) -> pd.Series:
    whole = pd.Series(np.asarray(milliseconds, dtype=np.float64)).astype("Int64")
    return pd.to_datetime(whole, unit="ms", utc=True).astype("datetime64[ms, UTC]")
