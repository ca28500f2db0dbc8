"""The report in words: sections of notes, tables, cards and figures, which HTML and Markdown both show as they are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from collector.words import plural

Tone = Literal["plain", "good", "fair", "poor"]

MOST_ROWS = 15  # of a table; the rest is in the JSON report


class Kind(StrEnum):
    """How a column is set."""

    TEXT = "text"
    NUMBER = "number"
    PROSE = "prose"
    DRAWING = "drawing"


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and how its cells are set."""

    label: str
    kind: Kind = Kind.TEXT


def text(*labels: str) -> tuple[Column, ...]:
    """Return columns of names and words."""
    return tuple(Column(label) for label in labels)


def numbers(*labels: str) -> tuple[Column, ...]:
    """Return columns of figures."""
    return tuple(Column(label, Kind.NUMBER) for label in labels)


def prose(*labels: str) -> tuple[Column, ...]:
    """Return columns of sentences."""
    return tuple(Column(label, Kind.PROSE) for label in labels)


def drawn(label: str) -> tuple[Column, ...]:
    """Return a column of drawings, which text renderers leave out."""
    return (Column(label, Kind.DRAWING),)


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure that is seen first."""

    label: str
    value: str
    note: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Note:
    """A paragraph."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Badge:
    """A cell that is a word with a colour."""

    text: str
    tone: Tone


@dataclass(frozen=True, slots=True)
class Drawing:
    """SVG; everything that it shows stands in words beside it."""

    svg: str


Cell = str | Badge | Drawing


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a key to colours: colour class and words."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    more: str = ""  # what is left out
    legend: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class Card:
    """Something that somebody should act on."""

    title: str
    badge: Badge
    text: str
    facts: tuple[tuple[str, str], ...]
    command: str = ""


@dataclass(frozen=True, slots=True)
class Cards:
    """Cards side by side."""

    cards: tuple[Card, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its caption and key."""

    drawing: Drawing
    caption: str
    legend: tuple[Key, ...] = ()


Block = Note | Table | Cards | Figure


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report under one heading."""

    id: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """The whole report in words."""

    title: str
    subtitle: str
    summary: str
    simulated: bool
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]
    foot: str


def more(count: int, word: str, shown: int = MOST_ROWS) -> str:
    """Say how many rows a table leaves out; empty where it leaves none out."""
    return f"and {plural(count - shown, f'more {word}')}, in the JSON report" if count > shown else ""
