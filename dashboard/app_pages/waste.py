"""Waste: who holds and does not use, what is free now, wrong sizes, quota that could move, and by whom."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from analyzer.quota_moves import quota_moves
from collector.words import plural
from dashboard.app_parts import loaders, page
from dashboard.views import waste
from dashboard.views.names import card_names
from dashboard.views.text import NO_DATA, escaped, number, percent, stamp

_MOST_CARDS = 8
_COLOURS = {"abandoned": "red", "zombie": "violet", "idle-held": "orange"}
_PERCENT = st.column_config.NumberColumn(format="%.1f %%")
_HOURS = st.column_config.NumberColumn(format="%.2f h", help="Card-hours.")
_KWH = st.column_config.NumberColumn("energy", format="%.2f kWh", help="Attributed; sums to the cards' own meters.")
_FREE: dict[str, Any] = {
    "share": st.column_config.NumberColumn(format="%.0f %%", help="Of the card."),
    "memory": st.column_config.NumberColumn(format="%.1f GiB"),
    "since": st.column_config.DatetimeColumn("since (UTC)", format="DD MMM HH:mm", timezone="UTC"),
}
_TENANTS: dict[str, Any] = {
    **dict.fromkeys(("used", "useful", "reserved", "wasted", "unobserved"), _PERCENT),
    "borrowed": _HOURS,
    "starved": _HOURS,
    "energy": _KWH,
}
_SLICES: dict[str, Any] = {
    "tenant": st.column_config.TextColumn(pinned=True),
    "workload": st.column_config.TextColumn(pinned=True),
    **dict.fromkeys(("held", "used", "of its share", "busy"), _PERCENT),
    "overstated": st.column_config.NumberColumn(format="%.1f x", help="Busy time over true use of the SMs."),
    "borrowed": _HOURS,
    "starved": _HOURS,
    "energy": _KWH,
}


def _card(card: waste.ActionCard) -> None:
    with st.container(border=True):
        st.markdown(
            f":{_COLOURS.get(card.state, 'gray')}-badge[{escaped(card.state)}] "
            f":gray-badge[{escaped(card.verdict)}] **{escaped(card.who)}**"
        )
        st.markdown(escaped(card.claim))
        st.caption(" · ".join(f"{name}: {escaped(value)}" for name, value in card.facts))
        if card.check:
            st.code(card.check, language="bash", wrap_lines=True)
        st.caption(f"Could be wrong: {escaped(card.risk)} · trimtab explain {escaped(card.id)}")


def _table(title: str, table: pd.DataFrame, none: str, config: dict[str, Any] | None = None) -> None:
    st.subheader(title, anchor=False)
    if table.empty:
        page.empty(none)
        return
    st.dataframe(table, hide_index=True, column_config=config or {}, placeholder=NO_DATA, alt=title)


span, seen = page.start("Waste", "Who holds and does not use, what is free now, and what is of the wrong size.")
if seen is not None:
    survey = loaders.survey(span)
    claims = loaders.claims(span)
    names = card_names(loaders.facts(seen.window))
    fleet = survey.ledger.fleet
    states = waste.idle_shares(survey.accounts)
    idle = waste.action_cards(claims.findings, names)
    unmet = pd.Series([w.unmet_card_hours for w in survey.waiting], dtype="float64").sum(min_count=1)
    with st.container(horizontal=True):
        for label, value, text in (
            (
                "Wasted",
                percent(fleet["wasted"] / fleet["capacity"], 1),
                "Held and idle, beyond any reserve.",
            ),
            ("Reserved", percent(fleet["reserved"] / fleet["capacity"], 1), "Held and idle on purpose: never waste."),
            ("Idle holders", str(len(idle)), "Idle and held, abandoned, or zombie: each has a card below."),
            ("Free cards", number(states.get("free", 0.0)), "Held by nobody at the newest row."),
            ("Unmet card-hours", number(unmet), "Cards asked for and not granted, times how long, over the range."),
        ):
            st.metric(label, value, help=text, border=True, width=168)
    hidden = f" · {plural(claims.suppressed, 'finding')} suppressed, still counted" if claims.suppressed else ""
    st.caption(f"Findings up to {stamp(claims.as_of)} UTC{hidden}")
    st.subheader("Who holds and does not use", anchor=False)
    if not idle:
        page.empty("Nobody was found who held a slice for long without using it.")
    for first in range(0, min(len(idle), _MOST_CARDS), 2):
        for column, card in zip(st.columns(2), idle[first : min(first + 2, _MOST_CARDS)], strict=False):
            with column:
                _card(card)
    if len(idle) > _MOST_CARDS:
        st.caption(f"and {len(idle) - _MOST_CARDS} more: trimtab analyze idle")
    _table("Free now", waste.free_table(survey.free, names), "Every share of every card is held.", _FREE)
    _table("Of the wrong size", waste.sized_table(claims.findings, names), "No quota is of the wrong size.")
    on_cards = quota_moves(claims.findings, pd.DataFrame(), seen.interval_seconds)
    moves = waste.moves_table([*on_cards, *survey.moves], names)
    _table("Quota that could move", moves, "No tenant lacks what another one has to spare.")
    if len(moves):
        st.caption("Each figure is a target between a lower and an upper bound; little history widens them.")
    waits = waste.waiting_table(survey.waiting)
    _table("Demand that waits", waits, "Nobody waited for a card in this range.", {"unmet": _HOURS})
    tenants = waste.tenant_table(survey.ledger, survey.accounts)
    _table("By tenant, of all capacity", tenants, "Nobody held anything in this range.", _TENANTS)
    with st.expander("The ledger of each card"):
        cards = waste.card_table(survey.ledger, names)
        st.dataframe(cards, hide_index=True, column_config=dict.fromkeys(cards.columns[1:], _PERCENT))
    with st.expander("True use and energy of each slice"):
        slices = waste.slice_table(survey.accounts, names)
        st.dataframe(slices, hide_index=True, column_config=_SLICES, placeholder=NO_DATA)
        st.caption("Estimated: divided out of what the card measures. Energy is attributed, never measured, per slice.")
