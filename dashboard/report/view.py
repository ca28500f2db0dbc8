"""The report in words: sections of notes, tables, cards and charts, which HTML and Markdown both show as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

Tone = Literal["plain", "good", "fair", "poor"]


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
    """A cell or figure that is drawn; `text` says the same in words."""

    svg: Markup
    text: str


Cell = str | Badge | Drawing


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; a heading that starts with `>` is of numbers, one with `~` of a drawing."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    more: str = ""  # what the table leaves out


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
class Key:
    """One entry of a figure's key: colour class and words."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its caption and key."""

    drawing: Drawing
    caption: str
    keys: tuple[Key, ...] = ()


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
