"""Frames of two stores laid together, and what they say of where they came from."""

from __future__ import annotations

import pandas as pd

from collector.clock import from_ms
from collector.store.request import Request


def together(request: Request, older: pd.DataFrame, newer: pd.DataFrame) -> pd.DataFrame:
    """Lay the answers to the two parts of a request's window under one another, in the order of a single one."""
    tier = newer.attrs.get("tier") if older.empty else older.attrs.get("tier")
    frame = pd.concat([f for f in (older, newer) if len(f)] or [newer], ignore_index=True)
    by = request.spec.key if request.by is None else request.by
    frame = frame.sort_values([*by, "time"], ignore_index=True)
    frame.attrs["tier"] = tier
    return frame


def told(frame: pd.DataFrame, stores: list[tuple[str, int, int]], behind_seconds: float) -> pd.DataFrame:
    """Note in a frame which store answered from when to when (ms), and how far InfluxDB is behind."""
    frame.attrs["stores"] = [(name, from_ms(start), from_ms(end)) for name, start, end in stores]
    frame.attrs["behind_seconds"] = behind_seconds
    return frame


def facts_together(here: pd.DataFrame, there: pd.DataFrame) -> pd.DataFrame:
    """Lay InfluxDB's facts before those of the local store: of one subject and name they end where ours begin."""
    who = ["kind", "cluster", "node", "gpu", "slice", "object", "name"]
    first = here.groupby(who, sort=False)["from"].min().rename("ours").reset_index()
    there = there.merge(first, on=who, how="left")
    there = there[there["ours"].isna() | (there["from"] < there["ours"])]
    cut = there["ours"].notna() & (there["to"].isna() | (there["to"] > there["ours"]))
    there = there.assign(to=there["to"].mask(cut, there["ours"])).drop(columns="ours")
    both = pd.concat([f for f in (there, here) if len(f)] or [here], ignore_index=True)
    return both.sort_values([*who, "from"], ignore_index=True)
