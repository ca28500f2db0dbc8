"""Small charts as SVG text: no script, no clock, no randomness; the same data gives the same bytes.

Widths are per cent and heights pixels, so that text keeps its size on any screen; colours are classes (`c-used`), so
that the page's light and dark styles decide. Curves live in a nested SVG that is stretched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, tostring

from dashboard.cli.output import clean as printable

Point = tuple[float, float]

_STRETCH = 1000.0  # units across a stretched plot
_ABOVE, _BELOW = 14.0, 20.0  # px kept for the labels of a plot
_ROOM = 0.12  # share of a bar from which a figure fits into a part
_EDGE = 0.04  # a tick so near to the side is written inwards


@dataclass(frozen=True, slots=True)
class Tick:
    """A label at a place of an axis, 0..1."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a stacked bar or column: name of its colour class, share of the whole, and its figure."""

    name: str
    share: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """What may come at a place of the axis; all are shares of the plot, 0..1."""

    x: float
    low: float
    median: float
    high: float


def stacked_bar(parts: Sequence[Part], label: str, height: float = 34.0) -> str:
    """Return one horizontal bar; wide parts carry their figure. What is below 0 is left out."""
    shown = [part for part in parts if part.share > 0]
    scale = 1 / max(sum(part.share for part in shown), 1.0)
    shapes = []
    left = 0.0
    for part in shown:
        width = part.share * scale
        shapes.append(_rect(part.name, (left, width), (0.0, height), f"{part.name} {part.text}"))
        if width >= _ROOM:
            shapes.append(
                _node(
                    "text", part.text, x=_across(left + width / 2), y=height / 2 + 4, class_=f"in on-{part.name}",
                    text_anchor="middle",
                )
            )  # fmt: skip
        left += width
    return _image(label, height, shapes)


def stacked_columns(columns: Sequence[Sequence[Part]], ticks: Sequence[Tick], label: str, height: float = 190.0) -> str:
    """Return columns of equal width, each stacked upwards by share; a column may be empty."""
    plot = height - _ABOVE - _BELOW
    width = 1 / max(len(columns), 1)
    drawn = width * (0.9 if len(columns) <= 60 else 1.02)  # many columns touch, without a seam
    shapes = []
    for index, column in enumerate(columns):
        top = _ABOVE + plot
        for part in column:
            if part.share > 0:
                size = part.share * plot
                top -= size
                shapes.append(_rect(part.name, (index * width, drawn), (top, size)))
    shapes += _grid(plot, [Tick(0.5, ""), Tick(1.0, "100 %")])
    return _image(label, height, [*shapes, *_below(ticks, height)])


def strip(values: Sequence[float], label: str, height: float = 16.0) -> str:
    """Return a row of cells, one a value of 0..1: full, nearly full (95 %), less; NaN is drawn as absent."""
    width = 1 / max(len(values), 1)
    drawn = width * (0.92 if len(values) <= 60 else 1.02)
    cells = [_rect(_level(value), (i * width, drawn), (0.0, height)) for i, value in enumerate(values)]
    return _image(label, height, cells)


def _level(value: float) -> str:
    if math.isnan(value):
        return "absent"
    return "good" if value >= 1 else "fair" if value >= 0.95 else "poor"


def interval(value: float, low: float, high: float, label: str) -> str:
    """Return a bar from 0 to `value`, and a line from `low` to `high`; all are shares of the width, cut to it."""
    value, low, high = (min(max(part, 0.0), 1.0) for part in (value, low, high))
    return _image(
        label,
        14.0,
        [
            _node("line", x1="0", x2="100%", y1=7.0, y2=7.0, class_="grid"),
            _rect("bar", (0.0, value), (3.0, 8.0)),
            _node("line", x1=_across(low), x2=_across(high), y1=7.0, y2=7.0, class_="whisker"),
        ],
    )


def fan(
    past: Sequence[Point],
    ahead: Sequence[Step],
    *,
    ticks: Sequence[Tick],
    sides: Sequence[Tick],
    label: str,
    height: float = 230.0,
) -> str:
    """Return a line of what was, and a widening band of what may come.

    Args:
        past: (x, y) as shares of the plot, 0..1; a NaN breaks the line.
        ahead: what may come, from left to right.
        ticks: along the bottom.
        sides: along the side.
        label: what it shows, in words.
        height: in pixels.
    """
    plot = height - _ABOVE - _BELOW
    curves = []
    if ahead:
        band = [(s.x, s.high) for s in ahead] + [(s.x, s.low) for s in reversed(ahead)]
        curves.append(_node("polygon", points=_points(band, plot), class_="band"))
        curves.append(_node("polyline", points=_points([(s.x, s.median) for s in ahead], plot), class_="median"))
    curves += [_node("polyline", points=_points(run, plot), class_="past") for run in _runs(past)]
    box = f"0 0 {_number(_STRETCH)} {_number(plot)}"
    frame = _node("svg", x="0", y=_ABOVE, width="100%", height=plot, viewBox=box, preserveAspectRatio="none")
    frame.extend(curves)
    return _image(label, height, [frame, *_grid(plot, sides), *_below(ticks, height)])


def _runs(points: Iterable[Point]) -> list[list[Point]]:
    runs: list[list[Point]] = [[]]
    for x, y in points:
        if math.isnan(y):
            runs.append([])
        else:
            runs[-1].append((x, y))
    return [run for run in runs if len(run) > 1]


def _points(points: Iterable[Point], plot: float) -> str:
    return " ".join(f"{x * _STRETCH:.1f},{(1 - y) * plot:.1f}" for x, y in points)


def _grid(plot: float, labels: Sequence[Tick]) -> list[Element]:
    bottom = _ABOVE + plot
    shapes = [_node("line", x1="0", x2="100%", y1=bottom, y2=bottom, class_="axis")]
    for tick in labels:
        y = _ABOVE + (1 - tick.at) * plot
        shapes.append(_node("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
        shapes.append(_node("text", tick.text, x="0", y=y - 4, class_="tick"))
    return shapes


def _below(ticks: Sequence[Tick], height: float) -> list[Element]:
    shapes = []
    for tick in ticks:
        anchor = "start" if tick.at < _EDGE else "end" if tick.at > 1 - _EDGE else "middle"
        shapes.append(_node("text", tick.text, x=_across(tick.at), y=height - 5, class_="tick", text_anchor=anchor))
    return shapes


def _rect(name: str, across: tuple[float, float], down: tuple[float, float], hint: str = "") -> Element:
    """Return a rectangle: (left, width) as shares, (top, height) in pixels."""
    left, width = across
    top, height = down
    rect = _node("rect", x=_across(left), width=_across(width), y=top, height=height, class_=f"c-{name}")
    if hint:
        rect.append(_node("title", hint))
    return rect


def _image(label: str, height: float, shapes: Iterable[Element]) -> str:
    image = _node("svg", width="100%", height=height, role="img", aria_label=label, class_="chart")
    image.append(_node("title", label))
    image.extend(shapes)
    return tostring(image, encoding="unicode")


def _node(name: str, text: str = "", /, **attributes: str | float) -> Element:
    """Return an element; in names of attributes `_` stands for `-`, and one at the end for nothing."""
    node = Element(name)
    node.text = printable(text) or None
    for key, value in attributes.items():
        node.set(key.rstrip("_").replace("_", "-"), printable(value) if isinstance(value, str) else _number(value))
    return node


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _across(part: float) -> str:
    return f"{_number(100 * part)}%"
