"""The evidence gate: which fields a rule lacks, and which series may be compared moment by moment."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd

from analyzer.facts import Key

_CYCLE, _UNLIKE = "cycle", 2.0


def absent_fields(needs: Mapping[str, tuple[str, ...]], known: Callable[[str, str], bool]) -> str:
    """Return `no X, Y or Z` for what a rule needs and nobody tells; empty where all of it is there.

    Args:
        needs: of one code, measurement -> fields; alternatives are joined by `|`.
        known: says of a measurement and a field whether it has any value.
    """
    missing = [
        name.replace("|", " or ")
        for measurement, names in needs.items()
        for name in names
        if not any(known(measurement, one) for one in name.split("|"))
    ]
    return f"no {', '.join(missing)}" if missing else ""


@dataclass(frozen=True, slots=True)
class SampleWindows:
    """Over how long the values of a subject's fields are means: fact `sample_window` (see `collector.describe`)."""

    plain: str
    others: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> SampleWindows:
        """Read a fact such as `0; 1: power_watts; 30: dram_active_ratio, sm_active_ratio`."""
        plain, *rest = text.split(";")
        others = {}
        for part in rest:
            window, _, names = part.partition(":")
            others.update({name.strip(): window.strip() for name in names.split(",")})
        return cls(plain.strip(), others)

    def seconds(self, field: str, interval_seconds: float) -> float:
        """Return the length of a field's window; a point stands for its interval; NaN: not known."""
        text = self.others.get(field, self.plain)
        if text == _CYCLE:
            return interval_seconds
        try:
            return max(float(text), interval_seconds)
        except ValueError:
            return math.nan


def sample_windows(facts: pd.DataFrame) -> dict[Key, SampleWindows]:
    """Return the newest that is told of each card and slice."""
    if facts.empty:
        return {}
    told = facts[facts["name"] == "sample_window"].sort_values("from", kind="stable")
    keys = zip(told["cluster"], told["node"], told["gpu"], told["slice"], strict=True)
    return {key: SampleWindows.parse(str(text)) for key, text in zip(keys, told["value"], strict=True)}


def alike(one_seconds: float, other_seconds: float) -> bool:
    """Say whether two series may be correlated: neither is a mean over more than twice as long as the other.

    A series that is smeared over five minutes follows one of single minutes late and flat; what is not known passes.
    """
    if math.isnan(one_seconds) or math.isnan(other_seconds):
        return True
    low, high = sorted((one_seconds, other_seconds))
    return high <= _UNLIKE * low
