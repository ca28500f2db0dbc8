"""The frame of every page: title, range, the banner of a simulation, coverage, and what is said where nothing is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import streamlit as st

from analyzer.findings import Finding
from collector.words import plural
from dashboard.app_parts import loaders
from dashboard.views import svg
from dashboard.views.names import CardNames, named
from dashboard.views.reading import RANGES, Look
from dashboard.views.text import escaped, percent, stamp

PAGES = {
    "fleet": "app_pages/fleet.py",
    "slices": "app_pages/slices.py",
    "waste": "app_pages/waste.py",
    "health": "app_pages/health.py",
    "contention": "app_pages/contention.py",
    "limits": "app_pages/limits.py",
    "fragmentation": "app_pages/fragmentation.py",
    "forecast": "app_pages/forecast.py",
    "recommendations": "app_pages/recommendations.py",
    "changes": "app_pages/changes.py",
}
_DEFAULT_RANGE = "24 h"
_MOST_FINDINGS = 12


def start(title: str, text: str, *, needs_rows: bool = True) -> tuple[timedelta, Look | None]:
    """Draw the head of a page; return the range and what lies in it.

    Where the page needs rows and there are none, say what to do and end the page.
    """
    head, choice = st.columns([3, 2], vertical_alignment="bottom")
    head.title(title, anchor=False)
    head.caption(text)
    with choice:
        chosen = st.segmented_control(
            "Range, up to the newest row",
            list(RANGES),
            default=_DEFAULT_RANGE,
            required=True,
            key="range",
            persist_state="session",
        )
    span = RANGES[chosen or _DEFAULT_RANGE]
    seen = loaders.look_at(span)
    if seen is not None:
        _banner(seen)
    elif needs_rows:
        nothing()
    return span, seen


def _banner(seen: Look) -> None:
    window = f"{stamp(seen.window.start)} to {stamp(seen.window.end)} UTC"
    words = [window, plural(seen.cards, "card"), f"{percent(seen.coverage, 1)} of the expected samples"]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if seen.simulated:
            simulated()
        st.caption(" · ".join(words))


def simulated() -> None:
    """Say that what is shown comes from a simulation."""
    st.badge("simulated", icon=":material/science:", color="violet", help="This comes from a simulation, not a fleet.")


def nothing() -> None:
    """Say that there are no rows, and end the page."""
    st.info(
        "**No rows yet.** `trimtab doctor` says whether that is idleness or a fault; "
        "`trimtab collect` and `trimtab import` bring rows in, `trimtab demo` shows an example.",
        icon=":material/inbox:",
    )
    st.stop()


def empty(text: str, *, icon: str = ":material/check_circle:") -> None:
    """Say in a quiet way that there is nothing to show, and that this is no fault."""
    st.caption(f"{icon} {text}")


def list_findings(findings: Sequence[Finding], names: CardNames, command: str) -> None:
    """Draw the first findings, each with how it could be wrong; `command` lists all of them."""
    for finding in findings[:_MOST_FINDINGS]:
        with st.container(border=True):
            st.markdown(
                f":orange-badge[{escaped(finding.code)}] :gray-badge[{escaped(finding.verdict.value)}] "
                f"{escaped(named(finding.claim, names))}"
            )
            st.caption(f"Could be wrong: {escaped(finding.risk)} · confidence {percent(finding.confidence)}")
    if len(findings) > _MOST_FINDINGS:
        st.caption(f"{plural(len(findings) - _MOST_FINDINGS, 'more finding')}; `{command}` lists all.")


def dark() -> bool:
    """Return whether the reader looks at a dark page."""
    return st.context.theme.type == "dark"


def ink() -> svg.Ink:
    """Return the colours of drawings on this page."""
    return svg.DARK if dark() else svg.LIGHT


def drawing(text: str, alt: str) -> None:
    """Show an SVG, as wide as there is room, as an image: nothing in it can act."""
    st.image(text, width="stretch", alt=alt)


def legend(colours: dict[str, str]) -> None:
    """Show which colour means what; names are never markup."""
    with st.container(horizontal=True, gap="small"):
        for name, colour in colours.items():
            st.image(svg.swatch(name, colour, ink()), alt=name)


def go_to(page: str, label: str) -> None:
    """Show a link to another page."""
    st.page_link(PAGES[page], label=escaped(label))
