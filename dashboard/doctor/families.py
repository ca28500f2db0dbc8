"""The doctor's word on each kind of exporter: detected, partial, or not seen from here, and why."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from pydantic import BaseModel, ConfigDict, Field

from collector.mappings import MappingTable
from collector.words import plural
from dashboard.doctor.check import Check, State, Status, some

_ANY = "*"


class Aspect(BaseModel):
    """One thing that a kind of exporter can tell."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    exporter: str
    what: str
    fields: tuple[str, ...]
    labels: tuple[str, ...] = ()
    without: str
    advice: str


class Absent(BaseModel):
    """One kind of exporter that should be among the sources."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    family: str
    exporters: frozenset[str]
    beside: frozenset[str] = frozenset()
    without: str
    advice: str
    problem: bool = False


class _Families(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    aspect: tuple[Aspect, ...] = Field(default=())
    absent: tuple[Absent, ...] = Field(default=())


@cache
def families() -> _Families:
    """Return the table of what each kind of exporter can tell."""
    return _Families.model_validate(
        tomllib.loads(files("dashboard.doctor").joinpath("families.toml").read_text("utf-8"))
    )


@dataclass(slots=True)
class _Sight:
    """What one target shows of one exporter: fields, and the labels of their series."""

    fields: set[str] = field(default_factory=set)
    labels: dict[str, set[str]] = field(default_factory=dict)

    def tells(self, aspect: Aspect) -> bool:
        """Say whether it tells something."""
        present = self.fields if _ANY in aspect.fields else self.fields & set(aspect.fields)
        if not present or not aspect.labels:
            return bool(present)
        return any(
            name.startswith(wanted) if wanted.endswith("_") else name == wanted
            for one in present
            for name in self.labels.get(one, ())
            for wanted in aspect.labels
        )


@dataclass(slots=True)
class FamilyBook:
    """What was seen of each exporter at each target; `checks` says what it comes to."""

    _sights: dict[str, dict[str, _Sight]] = field(default_factory=dict)  # exporter -> target -> what it shows
    _others: set[str] = field(default_factory=set)

    def add(self, place: str, series: Iterable[tuple[str, Mapping[str, str]]], table: MappingTable) -> None:
        """Note the series of a target."""
        for name, said in series:
            for mapped in table.find(name, said):
                sight = self._sights.setdefault(mapped.exporter.exporter, {}).setdefault(place, _Sight())
                about = "event" if mapped.row.measurement == "event" else mapped.row.field
                sight.fields.add(about)
                sight.labels.setdefault(about, set()).update(key for key, value in said.items() if value)

    def add_kind(self, kind: str) -> None:
        """Note a source that is no exporter, such as a scheduler."""
        self._others.add(kind)

    def checks(self) -> Iterator[Check]:
        """Say of each kind of exporter how it stands, then which kinds are not seen from here."""
        for exporter in sorted(self._sights):
            yield from _standing(exporter, self._sights[exporter])
        there = self._sights.keys() | self._others
        for absent in families().absent:
            if there & absent.exporters or (absent.beside and not there & absent.beside):
                continue
            status = Status.PROBLEM if absent.problem else Status.NOTE
            text = f"not seen from here: {absent.family}; {absent.without}"
            yield Check("sources", status, text, absent.advice, absent.family, State.UNSEEN)


def _standing(exporter: str, sights: Mapping[str, _Sight]) -> Iterator[Check]:
    topic = f"exporter {exporter}"
    count = len(sights)
    targets = plural(count, "target")
    lacking = [
        (aspect, [place for place, sight in sights.items() if not sight.tells(aspect)])
        for aspect in families().aspect
        if aspect.exporter == exporter
    ]
    missing = [(aspect, places) for aspect, places in lacking if places]
    if not missing:
        yield Check(topic, Status.OK, f"detected at {targets}", "", exporter, State.DETECTED)
    for aspect, places in missing:
        where = f"at {some(sorted(places), 2)}" if len(places) < count else f"at {targets}"
        text = f"partial {where}: no {aspect.what}; {aspect.without}"
        yield Check(topic, Status.NOTE, text, aspect.advice, exporter, State.PARTIAL)
