"""Health: cards with faults, what to do with each, broken isolation, metrics that cannot be trusted."""

from __future__ import annotations

import streamlit as st

from analyzer.health_board import CardState
from collector.words import plural
from dashboard.app_parts import loaders, page
from dashboard.views import health
from dashboard.views.names import card_names
from dashboard.views.text import NO_DATA, stamp

span, seen = page.start("Health", "Cards with faults and what to do with each; slices that were not kept apart.")
if seen is not None:
    claims = loaders.claims(span)
    names = card_names(loaders.facts(seen.window))
    board = health.of_findings(claims.findings)
    found = claims.of("TT6")
    isolation = [f for f in found if f.code == "TT606"]
    counts = health.counts(board)
    with st.container(horizontal=True):
        for state, words in (
            (CardState.TAKE_OUT, "Take out of sharing"),
            (CardState.SEE_TO, "See to it soon"),
            (CardState.WATCH, "Watch"),
        ):
            st.metric(words, counts[state], border=True, width=168)
        st.metric("Isolation broken", len(isolation), border=True, width=168)
        st.metric("Without a finding", seen.cards - min(len(board), seen.cards), border=True, width=168)
    st.caption(f"Analysed up to {stamp(claims.as_of)} UTC, {plural(seen.cards, 'card')}")
    st.subheader("Cards", anchor=False)
    if not board:
        page.empty("No card reported a fault.")
    else:
        st.dataframe(
            health.board_table(board, names),
            hide_index=True,
            placeholder=NO_DATA,
            column_config={"why": st.column_config.TextColumn(width="medium"), "what to do": {"width": "large"}},
            key="health_board",
            alt="Cards with faults, worst first, and what to do with each",
        )
        page.list_findings([f for card in board for f in card.findings], names, "trimtab analyze health")
    st.subheader("Isolation", anchor=False)
    if not isolation:
        page.empty("No slice went beyond its limits, and no fault reached a neighbour.")
    page.list_findings(isolation, names, "trimtab analyze health")
