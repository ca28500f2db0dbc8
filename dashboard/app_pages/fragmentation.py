"""Fragmentation: what is free and serves nobody, how cards are cut, what still fits."""

from __future__ import annotations

import streamlit as st

from analyzer.findings import CLAIMS
from collector.words import plural
from dashboard.app_parts import charts, loaders, page, planning
from dashboard.views import fleet, fragmentation, svg
from dashboard.views.names import card_names, named
from dashboard.views.text import NO_DATA, escaped, number, percent, stamp

span, seen = page.start("Fragmentation", "Capacity that nobody holds: what of it serves nobody, and what still fits.")
if seen is not None:
    now = fleet.recent(seen)
    holdings, cards = loaders.holders(now, seen.interval_seconds)
    facts = loaders.facts(now)
    names = card_names(loaders.facts(seen.window))
    claims = loaders.claims(span)
    ledger = loaders.ledger(span)
    queues = loaders.queues(seen)
    pieces = fragmentation.free_pieces(seen, cards, holdings)
    cut = fragmentation.cut_cards(seen, cards, holdings, facts)
    share = fragmentation.fleet_shares(ledger)
    with st.container(horizontal=True):
        st.metric(
            "Held by nobody", percent(share["idle"], 1), border=True, width=168, help="Of all capacity, over the range."
        )
        st.metric(
            "of that stranded",
            percent(share["stranded_of_idle"]),
            border=True,
            width=168,
            help="No request of the mix fits there.",
        )
        st.metric(
            "Largest free piece",
            percent(pieces["free"].max() if len(pieces) else None),
            border=True,
            width=168,
            help="The largest free share of one card that is not cut.",
        )
        st.metric(
            "Largest instance",
            fragmentation.largest_instance(cut) or NO_DATA,
            border=True,
            width=168,
            help="The largest MIG instance that still fits on a card that is cut.",
        )
        waiting = queues["pending_count"].sum(min_count=1)
        st.metric("Requests waiting", number(waiting), border=True, width=168, help="In all queues, now.")
    found = claims.of("TT2")
    told_of = [finding for finding in found if finding.verdict in CLAIMS]
    st.subheader("What the analysis says", anchor=False)
    if not told_of:
        page.empty(f"No stranded capacity was found up to {stamp(claims.as_of)} UTC.")
    for finding in told_of:
        with st.container(border=True):
            st.markdown(
                f":orange-badge[{escaped(finding.code)}] :gray-badge[{escaped(finding.verdict.value)}] "
                f"{escaped(named(finding.claim, names))}"
            )
            st.caption(f"Could be wrong: {escaped(finding.risk)} · confidence {percent(finding.confidence)}")
    for finding in claims.of("TT504"):
        st.caption(f":material/schedule: {escaped(named(finding.claim, names))}")
    pictures = fragmentation.fleet_picture(found)
    for finding in pictures:
        told = finding.evidence
        of = f" of {escaped(finding.subjects[0].cluster)}" if len(pictures) > 1 else ""
        st.subheader(f"What still fits on the shared and whole cards{of}", anchor=False)
        st.dataframe(fragmentation.rooms_table(told), hide_index=True)
        left, right = st.columns(2, gap="large")
        with left:
            st.markdown(
                f"**Why free share serves nobody** · {told['fragmented_cards']:.1f} of {told['free_cards']:.1f} cards"
            )
            causes = fragmentation.lost_causes(told)
            if causes.empty:
                page.empty("All of it serves what is asked for.", icon=":material/info:")
            else:
                option = charts.bars(causes, "why", {"of free share": "#8b5cf6"})
                st.echarts_chart(option, height=90 + 30 * len(causes), alt="Why free share serves nobody")
            words = fragmentation.dimensions_text(told)
            if words:
                st.caption(f"{words[:1].upper()}{words[1:]}.")
        with right:
            st.markdown("**What is asked for**")
            st.dataframe(fragmentation.demand_table(told), hide_index=True)
    planning.show(span, names)
    drawn = [c for c in cut if c.layout is not None]
    st.subheader("Cards that are cut (MIG)", anchor=False)
    if not cut:
        page.empty("No card is cut into MIG instances.", icon=":material/info:")
    if drawn:
        st.caption(
            "One column a memory slice, one box an instance. Dashed: free. Violet stripes: free, and no further "
            "instance can use it."
            + (
                ""
                if all(card.placed for card in drawn)
                else " Where instances begin is not told: drawn as they lie best."
            )
        )
        for first in range(0, len(drawn), 2):
            for column, card in zip(st.columns(2, gap="large"), drawn[first : first + 2], strict=False):
                with column:
                    assert card.layout is not None  # noqa: S101
                    page.drawing(svg.layouts([card.layout], page.ink()), f"{card.name}: {card.words}")
                    st.caption(escaped(card.words))
    for card in cut:
        if card.layout is None:
            page.empty(f"{card.name}: {card.words}", icon=":material/block:")
    left, right = st.columns(2, gap="large")
    with left:
        st.subheader("Free share of cards that are not cut, now", anchor=False)
        open_ones = pieces[pieces["free"] > 0]
        if open_ones.empty:
            page.empty("No share is free on any of them.", icon=":material/info:")
        else:
            bars = open_ones.assign(**{"free, in one piece": 100 * open_ones["free"]})
            option = charts.bars(bars, "card", {"free, in one piece": "#4a8fe0"})
            st.echarts_chart(option, height=90 + 22 * len(bars), alt="Free share of each card")
        unknown = pieces[pieces["free"].isna()]
        if len(unknown):
            st.caption(f"{NO_DATA} for {plural(len(unknown), 'card')}: a holder's quota is not told.")
    with right:
        st.subheader("Held by nobody, over the range", anchor=False)
        idle = fragmentation.idle_capacity(ledger, names)
        idle = idle[(idle["free"] > 0) | (idle["stranded"] > 0)]
        if idle.empty:
            page.empty("Every share of every card was held all the time.", icon=":material/info:")
        else:
            option = charts.bars(idle, "card", {"free": "#a9b4c0", "stranded": "#8b5cf6"}, stacked=True)
            st.echarts_chart(option, height=90 + 22 * len(idle), alt="Free and stranded part of each card")
