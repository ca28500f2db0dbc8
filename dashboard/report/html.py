"""The report as one HTML file: no script, nothing from the network, light and dark, fit for print and mail."""

from __future__ import annotations

import unicodedata
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dashboard.report.view import Badge, Cards, Drawing, Figure, Note, Page, Table


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
    kinds = (Note, Table, Cards, Figure, Badge, Drawing)
    environment.tests |= {kind.__name__.lower(): _is(kind) for kind in kinds}
    return environment


def _is(kind: type) -> object:
    return lambda value: isinstance(value, kind)


def _literal(value: object) -> object:
    """Take the force out of characters that turn, hide or break text; markup of our own stays."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return without_controls(value)


def without_controls(text: str) -> str:
    """Return text in which control, direction and surrogate characters are replaced."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c for c in text
    )
