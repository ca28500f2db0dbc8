"""Which metric and which knob there is on which architecture and driver. Data in architectures.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel, ConfigDict

from collector.gpu_models import gpu_model

_MAJOR = re.compile(r"^(\d+)")


class Availability(BaseModel):
    """One metric or knob: where it is, from which driver on (0: any, or not known), and what a divided card has of it.

    fields: the fields of the schema that it gives; none of a knob.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    architectures: tuple[str, ...]
    driver: int
    how: str
    fields: tuple[str, ...] = ()
    divided: Literal["instance", "card", "none"] = "card"

    def lack(self, architecture: str, driver: str = "", *, divided: bool = False) -> str:
        """Return why a card has not got it; empty where it has, or where architecture or driver are not known.

        Args:
            architecture: such as `hopper`; empty: not known.
            driver: the driver's version, such as `550.54.15`; empty: not known.
            divided: ask for a MIG instance or a partition, not for the card.
        """
        if architecture and architecture not in self.architectures:
            return f"{self.name}: not on {architecture} ({', '.join(self.architectures)})"
        major = _MAJOR.match(driver)
        if major and int(major.group(1)) < self.driver and not architecture.startswith("cdna"):
            return f"{self.name}: from driver {self.driver} on, this is {driver}"
        if divided and self.divided == "none":
            return f"{self.name}: not of an instance"
        return ""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    architectures: tuple[str, ...]
    metric: tuple[Availability, ...]
    knob: tuple[Availability, ...]


@cache
def _table() -> _Table:
    text = (files("collector") / "architectures.toml").read_text(encoding="utf-8")
    return _Table.model_validate(tomllib.loads(text))


def known_architectures() -> tuple[str, ...]:
    """Return the architectures that the table speaks of, oldest first."""
    return _table().architectures


def metrics() -> tuple[Availability, ...]:
    """Return what is said of metrics."""
    return _table().metric


def knobs() -> tuple[Availability, ...]:
    """Return what is said of knobs."""
    return _table().knob


def architecture_of(model: str, facts: Mapping[str, str]) -> str:
    """Return a card's architecture: as its driver says it, else that of its model; empty where neither is known."""
    known = gpu_model(model) if model else None
    return facts.get("architecture", "") or (known.architecture if known is not None else "")


def why_absent(field: str, architecture: str, driver: str = "", *, divided: bool = False) -> str:
    """Return why no source can give a field of such a card; empty where one could, or where that is not known.

    Args:
        field: a field of `gpu` or `slice`.
        architecture: such as `hopper`; empty: not known.
        driver: the driver's version; empty: not known.
        divided: ask for a MIG instance or a partition.
    """
    ways = [one for one in metrics() if field in one.fields]
    lacks = [one.lack(architecture, driver, divided=divided) for one in ways]
    return "; ".join(lacks) if ways and all(lacks) else ""


def table_page() -> str:
    """Return the table as a page of documentation."""
    names = known_architectures()
    parts = [
        "# What cards can tell, and what can be set on them",
        "",
        "<!-- Generated: python -m collector.architectures > docs/architectures.md -->",
        "",
        "By architecture and driver. A card of another architecture gives none of it, and Trimtab says so instead of",
        "a zero. A new driver, CUDA or exporter version is a `version_changed` event: a step of a figure then is no",
        "workload.",
    ]
    for title, rows in (("Metrics", metrics()), ("Knobs", knobs())):
        parts += ["", f"## {title}", "", *_lines(rows, names, knob=title == "Knobs")]
    return "\n".join([*parts, ""])


def _lines(rows: Sequence[Availability], names: Sequence[str], *, knob: bool) -> list[str]:
    columns = ["what", *names, "driver", *([] if knob else ["a divided card"]), "remarks"]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        marks = ["yes" if name in row.architectures else "" for name in names]
        divided = {"instance": "each instance", "card": "the card only", "none": "nothing"}[row.divided]
        cells = [row.name, *marks, str(row.driver or ""), *([] if knob else [divided]), row.how]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    print(table_page(), end="")  # noqa: T201
