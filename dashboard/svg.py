"""Small charts as SVG text: no script, no clock, no randomness; the same data gives the same bytes.

Widths are per cent and heights pixels, so that text keeps its size on any screen; colours are classes (`c-used`), so
that the page's light and dark styles decide. Curves live in a nested SVG that is stretched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

_STRETCH = 1000.0  # units across a stretched plot


@dataclass(frozen=True, slots=True)
class Tick:
    """A label at a place of an axis, 0..1."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a stacked bar or column: name of its colour class, and amount."""

    name: str
    amount: float


def element(name: str, *content: Markup | str, **attributes: str | float) -> Markup:
    """Return an element; attribute names may end with `_` and use `_` for `-`; text and values are escaped."""
    parts = [Markup('{}="{}"').format(_attribute(key), _text(value)) for key, value in attributes.items()]
    inside = Markup("").join(escape(part) for part in content)
    return Markup("<{0}{1}>{2}</{0}>").format(
        Markup(name), Markup("").join(Markup(" ") + part for part in parts), inside
    )


def _attribute(key: str) -> Markup:
    if key in {"viewBox", "preserveAspectRatio"}:
        return Markup(key)
    return Markup(key.rstrip("_").replace("_", "-"))


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


def _across(share: float) -> str:
    return f"{_text(100 * share)}%"


def _image(height: float, label: str, *content: Markup) -> Markup:
    title = element("title", label)
    return element("svg", title, *content, width="100%", height=height, role="img", aria_label=label, class_="chart")


def stacked_bar(parts: Sequence[Part], label: str, height: float = 34) -> Markup:
    """Return one horizontal bar; parts share its width by amount, those of 7 % and more carry their figure."""
    total = sum(p.amount for p in parts if p.amount > 0)
    shapes: list[Markup] = []
    left = 0.0
    for part in parts:
        if not part.amount > 0:
            continue
        width = part.amount / total
        shapes.append(_rect(left, width, 0, height, part.name, f"{part.name} {width:.1%}"))
        if width >= 0.07:
            middle = _across(left + width / 2)
            text = f"{100 * width:.0f} %"
            shapes.append(element("text", text, x=middle, y=height / 2 + 4, class_="in", text_anchor="middle"))
        left += width
    return _image(height, label, *shapes)


def _rect(left: float, width: float, top: float, height: float, name: str, title: str = "") -> Markup:
    hint = (element("title", title),) if title else ()
    return element(
        "rect", *hint, x=_across(left), width=_across(width), y=top, height=max(height, 0.0), class_=f"c-{name}"
    )


def stacked_columns(
    columns: Sequence[Sequence[Part]], ticks: Sequence[Tick], label: str, height: float = 180
) -> Markup:
    """Return columns of equal width, each stacked upwards; amounts are shares of the height (a column may be empty)."""
    plot = height - 20
    shapes: list[Markup] = []
    width = 1 / max(len(columns), 1)
    for index, column in enumerate(columns):
        top = plot
        for part in column:
            if part.amount > 0:
                size = part.amount * plot
                top -= size
                shapes.append(
                    _rect(index * width, width * 1.02 if len(columns) > 60 else width * 0.94, top, size, part.name)
                )
    shapes += _grid(plot, [Tick(0.5, "50 %"), Tick(1.0, "100 %")])
    return _image(height, label, *shapes, *_below(ticks, height))


def strip(values: Sequence[float], label: str, height: float = 16) -> Markup:
    """Return a row of cells, one a value of 0..1: full, nearly, poor; NaN is drawn as absent."""
    width = 1 / max(len(values), 1)
    cells = [_rect(i * width, width * 0.92, 0, height, _level(value)) for i, value in enumerate(values)]
    return _image(height, label, *cells)


def _level(value: float) -> str:
    if math.isnan(value):
        return "absent"
    return "good" if value >= 1 else "fair" if value >= 0.95 else "poor"


def interval(value: float, low: float, high: float, most: float, label: str) -> Markup:
    """Return a bar from 0 to `value` of at most `most`, with its interval as a line."""

    def at(amount: float) -> float:
        return min(max(amount / most, 0.0), 1.0)

    return _image(
        14,
        label,
        element("line", x1="0", x2="100%", y1=7, y2=7, class_="grid"),
        _rect(0, at(value), 3, 8, "bar"),
        element("line", x1=_across(at(low)), x2=_across(at(high)), y1=7, y2=7, class_="whisker"),
    )


def fan(
    past: Sequence[tuple[float, float]],
    ahead: Sequence[tuple[float, float, float, float]],
    ticks: Sequence[Tick],
    labels: Sequence[Tick],
    label: str,
    height: float = 200,
) -> Markup:
    """Return a line of what was, and a widening band of what may come; all coordinates are shares of the plot, 0..1.

    Args:
        past: (x, y); NaN breaks the line.
        ahead: (x, low, median, high).
        ticks: along the bottom.
        labels: along the side.
        label: what it shows, in words.
        height: in pixels.
    """
    plot = height - 20
    curves = []
    if ahead:
        band = [(x, high) for x, _, _, high in ahead] + [(x, low) for x, low, _, _ in reversed(ahead)]
        curves.append(element("polygon", points=_points(band, plot), class_="band"))
        curves.append(element("polyline", points=_points([(x, m) for x, _, m, _ in ahead], plot), class_="median"))
    curves += [element("polyline", points=_points(run, plot), class_="past") for run in _runs(past)]
    frame = element(
        "svg",
        *curves,
        width="100%",
        height=plot,
        viewBox=f"0 0 {_STRETCH:.0f} {_text(plot)}",
        preserveAspectRatio="none",
    )
    return _image(height, label, *_grid(plot, labels), frame, *_below(ticks, height))


def _runs(points: Iterable[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if math.isnan(y):
            runs.append([])
        else:
            runs[-1].append((x, y))
    return [run for run in runs if len(run) > 1]


def _points(points: Iterable[tuple[float, float]], plot: float) -> str:
    return " ".join(f"{x * _STRETCH:.1f},{(1 - y) * plot:.1f}" for x, y in points)


def _grid(plot: float, labels: Sequence[Tick]) -> list[Markup]:
    shapes = [element("line", x1="0", x2="100%", y1=plot, y2=plot, class_="axis")]
    for tick in labels:
        y = (1 - tick.at) * plot
        shapes.append(element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
        shapes.append(element("text", tick.text, x="0", y=y + 12, class_="tick"))
    return shapes


def _below(ticks: Sequence[Tick], height: float) -> list[Markup]:
    shapes = []
    for tick in ticks:
        anchor = "start" if tick.at < 0.04 else "end" if tick.at > 0.96 else "middle"
        shapes.append(element("text", tick.text, x=_across(tick.at), y=height - 5, class_="tick", text_anchor=anchor))
    return shapes
