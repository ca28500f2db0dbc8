"""Which metric and which knob exists on which architecture and driver. Data in support.toml.

`python -m collector.support docs/support.md` renews the page; a test keeps it in step.
"""

from __future__ import annotations

import fnmatch
import re
import sys
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from collector.schema import MEASUREMENTS
from collector.whole import whole

_VENDOR = re.compile(r"^(?:nvidia[ -]+)*(?:tesla |quadro |geforce )?", re.IGNORECASE)
# Told of cards as events, not as a field.
_EVENTS = frozenset(("gpu.xid",))


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Architecture(_Table):
    """A generation of cards, and globs on the names of its models."""

    name: str
    cards: tuple[str, ...]


class Row(_Table):
    """One metric or knob by one way. Empty or 0: no limit is told."""

    kind: Literal["metric", "knob"]
    name: str
    way: str
    architecture: str = ""
    not_on: tuple[str, ...] = ()
    driver: int = 0
    mig: Literal["instance", "card", "no"]
    root: bool = False
    note: str = ""
    evidence: str


class Support(_Table):
    """The whole table."""

    architecture: tuple[Architecture, ...]
    row: tuple[Row, ...]

    @model_validator(mode="after")
    def _known_names(self) -> Self:
        known = {one.name for one in self.architecture}
        for row in self.row:
            unknown = ({row.architecture, *row.not_on} - {""}) - known
            if unknown:
                raise ValueError(f"{row.name}: expected an architecture of {sorted(known)}, got {sorted(unknown)}")
            if row.kind == "metric" and row.name not in _EVENTS:
                measurement, _, field = row.name.partition(".")
                MEASUREMENTS[measurement].field(field)
        return self


@cache
def support() -> Support:
    """Return the table that comes with the product."""
    return Support.model_validate(tomllib.loads((files("collector") / "support.toml").read_text(encoding="utf-8")))


@cache
def architecture_of(model: str) -> str:
    """Return the architecture of a model as drivers and exporters name it; an empty text where it is not known."""
    name = re.sub(r"[\s_]+", " ", _VENDOR.sub("", model.strip())).casefold()
    found = (
        one.name
        for one in support().architecture
        if any(fnmatch.fnmatchcase(name, glob.casefold()) for glob in one.cards)
    )
    return next(found, "")


def branch_of(driver: str) -> int:
    """Return the branch of a driver's version: 570 of `570.86.10`; 0 where it is no version."""
    branch = driver.partition(".")[0]
    return whole(branch)


def lacking(row: Row, architecture: str, driver: str) -> str:
    """Return why a card does not have a row: `since hopper`, `since driver 520`; empty where it has it, or may."""
    names = [one.name for one in support().architecture]
    if architecture in names:
        if row.architecture and names.index(architecture) < names.index(row.architecture):
            return f"since {row.architecture}"
        if architecture in row.not_on:
            return f"not on {architecture}"
    branch = branch_of(driver)
    if branch and row.driver > branch:
        return f"since driver {row.driver}"
    return ""


def rows_of(name: str) -> tuple[Row, ...]:
    """Return the ways of one metric or knob, such as `gpu.sm_active_ratio` or `power limit`."""
    return tuple(row for row in support().row if row.name == name)


def why_absent(name: str, architecture: str, driver: str) -> str:
    """Return why a card cannot have a metric by any way that is known; empty where it may or nothing is known."""
    reasons = [lacking(row, architecture, driver) for row in rows_of(name)]
    return ", or ".join(dict.fromkeys(reasons)) if reasons and all(reasons) else ""


def ways_to(name: str, architecture: str, driver: str) -> tuple[str, ...]:
    """Return by which ways a card may have a metric."""
    return tuple(dict.fromkeys(row.way for row in rows_of(name) if not lacking(row, architecture, driver)))


def support_page() -> str:
    """Return the page, in Markdown."""
    table = support()
    lines = [
        "# What exists where",
        "",
        "<!-- Generated: python -m collector.support docs/support.md -->",
        "",
        "Which metric and which knob a card has depends on its architecture and on the driver. Where a metric is",
        "absent that its card cannot have, `trimtab doctor` says so. An empty cell: no limit is told.",
        "Under MIG a value is each instance's own (`instance`), the card's alone (`card`), or not there (`no`).",
        "",
        "## Architectures",
        "",
        "| architecture | cards |",
        "|---|---|",
    ]
    lines += [f"| {one.name} | {', '.join(_code(one.cards))} |" for one in table.architecture]
    for kind, title in (("metric", "Metrics"), ("knob", "Knobs")):
        lines += ["", f"## {title}", "", f"| {kind} | way | since | not on | driver | MIG | notes | told by |"]
        lines += ["|---|---|---|---|---|---|---|---|"]
        lines += [_line(row) for row in table.row if row.kind == kind]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    name = f"`{row.name}`" if row.kind == "metric" else row.name
    note = "; ".join(part for part in (row.note, "root" if row.root else "") if part)
    cells: Sequence[str] = (
        *(name, row.way, row.architecture, ", ".join(row.not_on)),
        *(str(row.driver or ""), row.mig, note, row.evidence),
    )
    return f"| {' | '.join(cells)} |"


def _code(names: Iterable[str]) -> Iterable[str]:
    return (f"`{name}`" for name in names)


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/support.md").write_text(support_page(), encoding="utf-8")
