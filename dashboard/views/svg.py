"""Small drawings as SVG text: how tenants lie on a card, how a card is cut. Every name is escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from dashboard.cli.output import clean as printable
from dashboard.views.text import shortened

_CHARACTER = 6.9  # px, mean width at 11 px
WIDTH = 360
_STRIPES = (
    '<defs><pattern id="s" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="3" height="6" fill="#8b5cf6" fill-opacity="0.55"/></pattern></defs>'
)


@dataclass(frozen=True, slots=True)
class Ink:
    """Colours of lines and letters, for a light or a dark page."""

    text: str
    faint: str
    line: str
    ground: str


LIGHT = Ink("#16202c", "#5b6775", "#c3ccd6", "#f3f5f8")
DARK = Ink("#e6ebf1", "#97a3b1", "#3a4857", "#19222d")


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of a bar: `width` and `fill` are shares (0..1; fill NaN: not known), `colour` empty: nobody holds it."""

    label: str
    width: float
    fill: float
    colour: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One card: a title, words at the right, its parts from left to right; `silent`: it sends nothing any more."""

    title: str
    note: str
    pieces: tuple[Piece, ...]
    silent: bool = False


def bars(rows: Sequence[Bar], ink: Ink) -> str:
    """Draw cards below each other: a part's width is its quota, its filled height what is used of it."""
    row, height = 66, 40
    body = []
    for place, bar in enumerate(rows):
        top = place * row
        body.append(_text(0, top + 11, bar.title, ink.text, weight=600))
        body.append(_text(WIDTH, top + 11, bar.note, "#d64545" if bar.silent else ink.faint, anchor="end"))
        body += _bar(bar, top + 17, height, ink)
    return _svg(WIDTH, len(rows) * row - 6, body)


def _bar(bar: Bar, top: float, height: float, ink: Ink) -> list[str]:
    body = [_rect(0.5, top, WIDTH - 1, height, ink.ground, stroke=ink.line)]
    if bar.silent:
        body.append(_rect(0.5, top, WIDTH - 1, height, "none", stroke="#d64545", dashed=True))
    total = max(sum(piece.width for piece in bar.pieces), 1.0)
    left = 0.0
    for piece in bar.pieces:
        width = piece.width / total * WIDTH
        inner = max(width - 2, 1.0)
        colour = piece.colour or ink.line
        if piece.colour:
            body.append(_rect(left + 1, top + 1, inner, height - 2, colour, opacity=0.22))
            filled = 0.0 if math.isnan(piece.fill) else min(max(piece.fill, 0.0), 1.0) * (height - 2)
            body.append(_rect(left + 1, top + height - 1 - filled, inner, filled, colour, opacity=0.75))
        body.append(_rect(left + 1, top + 1, inner, height - 2, "none", stroke=colour, dashed=not piece.colour))
        most = int((inner - 6) / _CHARACTER)
        if most >= 3:
            ink_of_label = ink.text if piece.colour else ink.faint
            body.append(_text(left + 5, top + 15, shortened(piece.label, most), ink_of_label))
            if piece.colour and most >= 4:
                used = "?" if math.isnan(piece.fill) else f"{100 * piece.fill:.0f} %"
                body.append(_text(left + 5, top + 30, used, ink.text, size=10))
        left += width
    return body


@dataclass(frozen=True, slots=True)
class Cell:
    """An instance on a cut card: first memory slice and how many, compute slices, words, colour (empty: nobody's)."""

    start: int
    size: int
    compute: int
    label: str
    colour: str


@dataclass(frozen=True, slots=True)
class Layout:
    """A cut card: memory slices from left to right; `blocked` are free ones that no further instance can use."""

    title: str
    note: str
    slices: int
    cells: tuple[Cell, ...]
    blocked: frozenset[int]


def layouts(rows: Sequence[Layout], ink: Ink) -> str:
    """Draw cut cards below each other: one column a memory slice, instances where they lie."""
    row, height = 62, 34
    body = [_STRIPES]
    for place, card in enumerate(rows):
        top = place * row
        unit = WIDTH / card.slices
        body.append(_text(0, top + 11, card.title, ink.text, weight=600))
        body.append(_text(WIDTH, top + 11, card.note, ink.faint, anchor="end"))
        for column in range(card.slices):
            fill = "url(#s)" if column in card.blocked else ink.ground
            body.append(_rect(column * unit + 1, top + 18, unit - 2, height, fill, stroke=ink.line, dashed=True))
        for cell in card.cells:
            left, width = cell.start * unit + 1, cell.size * unit - 2
            colour = cell.colour or ink.faint
            body.append(_rect(left, top + 18, width, height, ink.ground))
            body.append(
                _rect(left, top + 18, width, height, colour, opacity=0.55 if cell.colour else 0.12, stroke=colour)
            )
            most = int((width - 6) / _CHARACTER)
            if most >= 2:
                body.append(_text(left + 4, top + 32, shortened(cell.label, most), ink.text))
                body.append(_text(left + 4, top + 46, f"{cell.compute}g", ink.faint, size=10))
    return _svg(WIDTH, len(rows) * row - 6, body)


@dataclass(frozen=True, slots=True)
class Strip:
    """A card before and after a plan: its name, and its parts from left to right (colour empty: free)."""

    title: str
    before: tuple[Piece, ...]
    after: tuple[Piece, ...]


def strips(rows: Sequence[Strip], ink: Ink) -> str:
    """Draw cards below each other, each as it is and, beneath, as it would be."""
    row, height = 78, 24
    body = []
    for place, card in enumerate(rows):
        top = place * row
        body.append(_text(0, top + 11, card.title, ink.text, weight=600))
        for offset, words, pieces in ((17, "now", card.before), (44, "then", card.after)):
            body.append(_text(0, top + offset + 16, words, ink.faint))
            body += _pieces(pieces, (36, top + offset, WIDTH - 36, height), ink)
    return _svg(WIDTH, len(rows) * row - 6, body)


def _pieces(pieces: Sequence[Piece], box: tuple[float, float, float, float], ink: Ink) -> list[str]:
    """Draw parts beside each other in a box: left, top, width, height."""
    left, top, room, height = box
    body = [_rect(left, top, room - 1, height, ink.ground, stroke=ink.line)]
    total = max(sum(piece.width for piece in pieces), 1.0)
    for piece in pieces:
        width = piece.width / total * room
        inner = max(width - 2, 1.0)
        colour = piece.colour or ink.line
        opacity = 0.5 if piece.colour else 0.0
        body.append(
            _rect(left + 1, top + 1, inner, height - 2, colour, opacity=opacity, stroke=colour, dashed=not piece.colour)
        )
        most = int((inner - 6) / _CHARACTER)
        if most >= 3 and piece.label:
            body.append(_text(left + 5, top + 16, shortened(piece.label, most), ink.text))
        left += width
    return body


def _svg(width: float, height: float, body: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {max(height, 1):g}" width="{width:g}" '
        f'height="{max(height, 1):g}" font-family="system-ui, sans-serif" font-size="11">{"".join(body)}</svg>'
    )


def _text(
    x: float, y: float, words: str, colour: str, *, anchor: str = "start", weight: int = 400, size: int = 11
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}" '
        f'font-size="{size}">{escape(printable(words))}</text>'
    )


def _rect(
    x: float,
    y: float,
    width: float,
    height: float,
    fill: str,
    *,
    stroke: str = "none",
    opacity: float = 1.0,
    dashed: bool = False,
) -> str:
    dash = ' stroke-dasharray="3 3"' if dashed else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}" rx="2" '
        f'fill="{fill}" fill-opacity="{opacity:g}" stroke="{stroke}"{dash}/>'
    )


def swatch(name: str, colour: str, ink: Ink) -> str:
    """Draw one entry of a legend: a coloured square and its name."""
    label = shortened(name, 40)
    body = [_rect(1, 3, 11, 11, colour), _text(17, 12.5, label, ink.text, size=12)]
    return _svg(22 + len(label) * 6.9, 17, body)
