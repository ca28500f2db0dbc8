"""The report as one HTML file: no script, nothing from the network, light and dark, fit for print and mail."""

from __future__ import annotations

import re
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dashboard.cli.output import clean as printable
from dashboard.report.view import Badge, Cards, Drawing, Figure, Note, Page, Table
from dashboard.report.words import shorter

_UNIT = re.compile(r"(\d) %")


def render_html(page: Page) -> str:
    """Return the file's text; the same page gives the same text."""
    return _environment().get_template("weekly.html.j2").render(page=page)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("dashboard.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_literal,
    )
    environment.filters |= {"shorter": _shorter, "drawn": _drawn}
    environment.tests |= {
        "note": lambda block: isinstance(block, Note),
        "table": lambda block: isinstance(block, Table),
        "cards": lambda block: isinstance(block, Cards),
        "figure": lambda block: isinstance(block, Figure),
        "badge": lambda cell: isinstance(cell, Badge),
        "drawing": lambda cell: isinstance(cell, Drawing),
    }
    return environment


def _literal(value: object) -> object:
    """Take the force out of characters that turn, hide or break text; markup of our own stays."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else printable(value)


def _shorter(text: str) -> str:
    return _UNIT.sub("\\1\N{NO-BREAK SPACE}%", shorter(text))


def _drawn(drawing: Drawing) -> Markup:
    return Markup(drawing.svg)  # noqa: S704  dashboard.svg escapes every text itself
