"""Limits: what keeps work from running faster, how much busy time is hollow, which cut of a card would fit."""

from __future__ import annotations

import streamlit as st

from analyzer.hollow import fleet_hollow
from dashboard.app_parts import charts, loaders, page
from dashboard.views import limits
from dashboard.views.names import card_names
from dashboard.views.text import NO_DATA, escaped, number, percent, stamp

_COLUMNS = {
    "of its working time": st.column_config.NumberColumn(format="%.0f %%", help="Share of its working time."),
    "next": st.column_config.TextColumn(help="The runner-up, and how near it is to its own threshold."),
    "busy overstates": st.column_config.NumberColumn(
        format="%.1f times", help="Busy (some kernel runs) over the activity of the SMs."
    ),
    "sure": st.column_config.NumberColumn(format="%.0f %%"),
    "id": None,
}
_HOLLOW = {
    "busy card-hours": st.column_config.NumberColumn(format="%.1f"),
    **{
        name: st.column_config.NumberColumn(words, format="%.0f %%", help="Of the busy time.")
        for name, words in limits.MEASURE_WORDS.items()
    },
    "busy overstates": st.column_config.NumberColumn(format="%.1f times"),
}


span, seen = page.start("Limits", "What keeps the work from running faster, and how much busy time is hollow.")
if seen is not None:
    claims = loaders.claims(span)
    names = card_names(loaders.facts(seen.window))
    found = claims.of("TT4")
    hollow = loaders.survey(span).hollow
    fleet = fleet_hollow(hollow)
    with st.container(horizontal=True):
        for name, words in limits.MEASURE_WORDS.items():
            st.metric(
                f"Busy, {words}",
                percent(None if fleet is None else fleet.hollow[name]),
                border=True,
                width=168,
                help=f"Share of the time in which cards report busy. Low is: {limits.LOW}.",
            )
        st.metric(
            "Busy overstates the SMs",
            number(None if fleet is None else fleet.overstated, "times", 2),
            border=True,
            width=190,
            help="Busy says only that some kernel ran.",
        )
        st.metric("Limits found", len(found), border=True, width=140)
    st.subheader("Where busy time is hollow", anchor=False)
    table = limits.hollow_table(hollow)
    if table.empty:
        page.empty("No card reported busy time in this range, or none tells its SM activity.", icon=":material/info:")
    else:
        left, right = st.columns([3, 4], gap="large")
        with left:
            st.echarts_chart(
                charts.hollow_map(limits.hollow_cells(table.head(16)), dark=page.dark()),
                height=60 + 26 * min(len(table), 16),
                alt="Hollow part of the busy time, by tenant, class and sharing kind",
                key="hollow",
            )
        with right:
            st.dataframe(table, hide_index=True, column_config=_HOLLOW, placeholder=NO_DATA, key="hollow_table")
        st.caption(
            f"Percent of the busy time with {limits.LOW}. Busy time of a shared card is divided among its holders by "
            "their use of it."
        )
    st.subheader("What limits the work", anchor=False)
    if not found:
        page.empty(f"No limit was found up to {stamp(claims.as_of)} UTC in the slices whose counters tell.")
    else:
        st.caption(", ".join(f"{escaped(kind)}: {count}" for kind, count in limits.kinds(found).items()))
        st.dataframe(
            limits.limits(found, names),
            hide_index=True,
            column_config=_COLUMNS,
            placeholder=NO_DATA,
            key="limits_table",
            alt="What limits each slice or card, and what would be next",
        )
    cuts = [f for f in claims.of("TT321", "TT112") if f.verdict.value in {"holds", "suspected"}]
    st.subheader("Cuts that would fit better, and what sharing costs", anchor=False)
    if not cuts:
        page.empty("No workload was found that another cut of a card would fit better, or that sharing costs too much.")
    page.list_findings(cuts, names, "trimtab analyze")
