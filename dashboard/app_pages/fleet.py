"""Fleet: what is wrong now, where the capacity went, how busy the cards are, who lies on which."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pandas as pd
import streamlit as st

from collector.history import imported_until
from collector.schema import NOBODY, UNKNOWN
from dashboard.app_parts import charts, loaders, page
from dashboard.views import fleet, palette
from dashboard.views.findings import Claims
from dashboard.views.holders import read_kept
from dashboard.views.names import card_names
from dashboard.views.palette import LEDGER, LEVELS, tenant_colours
from dashboard.views.reading import Look
from dashboard.views.text import escaped, number, percent

_ICONS = {"critical": ":material/error:", "warning": ":material/warning:", "info": ":material/info:"}
_SHOWN = 6


def _status(problems: list[fleet.Problem], claims: Claims) -> None:
    worst = problems[0].level if problems else "good"
    with st.container(border=True, key="status"):
        if not problems:
            st.markdown(":green[:material/check_circle:] **Nothing is wrong now.**")
        else:
            serious = sum(p.level != "info" for p in problems)
            words = f"{serious} things need attention" if serious != 1 else "1 thing needs attention"
            if not serious:
                words = "Nothing is wrong now"
            st.markdown(f"**:{LEVELS[worst]}[{words}]**")
        for problem in problems[:_SHOWN]:
            line, link = st.columns([5, 1], vertical_alignment="center")
            line.markdown(f":{LEVELS[problem.level]}[{_ICONS[problem.level]}] {escaped(problem.text)}")
            if problem.page != "fleet":
                with link:
                    page.go_to(problem.page, problem.page.capitalize())
        if len(problems) > _SHOWN:
            st.caption(f"and {len(problems) - _SHOWN} more")
        if claims.as_of is None:
            st.caption("No analysis was written down yet: `trimtab tune` makes one in every cycle.")


def _tiles(terms: pd.DataFrame, over_time: pd.DataFrame, kept: pd.DataFrame) -> None:
    share = terms.set_index(["level", "term"])["share"]
    useful = share[1, "used"] * share[2, "useful"]
    judged = kept["judged"].sum()
    hourly = kept["kept"] / kept["judged"].where(kept["judged"] > 0)
    tiles = [
        ("Useful", percent(useful), over_time["useful"], "Share of all capacity that became finished work, in time."),
        ("SMs active", percent(over_time["active"].mean()), over_time["active"], "Share of SM time with work on it."),
        (
            "Busy, drivers say",
            percent(over_time["busy"].mean()),
            over_time["busy"],
            "Time with any kernel on the card.",
        ),
        ("Held, not used", percent(share[1, "wasted"]), over_time["wasted"], "Share of all capacity held for nothing."),
        (
            "Objectives kept",
            percent(kept["kept"].sum() / judged if judged else None, 1),
            hourly,
            "Share of the intervals with requests in which a service kept its promise, over all slices.",
        ),
    ]
    with st.container(horizontal=True, gap="small"):
        for label, value, course, text in tiles:
            known = course.dropna().tolist()
            chart = known if len(known) > 1 else None
            st.metric(label, value, help=text, border=True, chart_data=chart, chart_type="area", width=168)


def _ledger(terms: pd.DataFrame) -> None:
    st.subheader("Where the capacity went", anchor=False)
    option = charts.stack(terms, {1: "all capacity", 2: "of what was used"})
    share = terms.set_index(["level", "term"])["share"]
    told = ", ".join(f"{name} {percent(share[1, name])}" for name in ("used", "wasted", "free", "stranded"))
    st.echarts_chart(option, height=150, alt=f"The ledger: of all capacity {told}", key="ledger")
    page.legend({t: LEDGER[t] for t in terms["term"].drop_duplicates() if terms[terms["term"] == t]["share"].max() > 0})
    with st.expander("The ledger in numbers"):
        table = terms.assign(
            level=terms["level"].map({1: "all capacity", 2: "of what was used"}),
            share=terms["share"].map(lambda v: percent(v, 1)),
            card_hours=[number(v) for v in terms["card_hours"]],
        )
        st.dataframe(table, hide_index=True, column_config={"card_hours": "card hours", "text": "what it is"})


def _over_time(over_time: pd.DataFrame) -> None:
    st.subheader("Busy is not useful", anchor=False)
    names = {"busy": "busy (any kernel)", "active": "SMs active", "useful": "useful"}
    table = over_time[["time"]].assign(**{names[c]: 100 * over_time[c] for c in names})
    series: dict[str, dict[str, Any]] = {
        names["busy"]: {"lineStyle": {"width": 1.5, "type": "dashed"}, "itemStyle": {"color": "#8a97a5"}},
        names["active"]: {"itemStyle": {"color": "#4a8fe0"}},
        names["useful"]: {"itemStyle": {"color": "#2f9e5b"}, "step": "start", "areaStyle": {"opacity": 0.18}},
    }
    told = ", ".join(f"{names[c]} {percent(over_time[c].mean())}" for c in names)
    st.echarts_chart(charts.lines(table, series, most=100), height=260, alt=f"Mean over the range: {told}", key="use")


def _heat(look: Look) -> None:
    st.subheader("Activity of each card", anchor=False)
    page.legend(palette.heat_legend(dark=page.dark()))
    heat = loaders.read(fleet.heat, look)
    st.plotly_chart(
        charts.heat_map(heat, dark=page.dark()),
        config={"displayModeBar": False},
        alt=f"SM activity of {len(heat.labels)} cards over time, light is idle, dark is full",
        key="heat",
    )


def _map(look: Look, cards: pd.DataFrame, holdings: pd.DataFrame) -> None:
    st.subheader("Who lies where, now", anchor=False)
    st.caption("A box is as wide as the share that is held, and filled as far as it is used. Dashed: nobody's.")
    page.legend(tenant_colours(t for t in holdings["tenant"] if t not in (NOBODY, UNKNOWN)))
    maps = fleet.node_maps(look, cards, holdings, page.ink())
    for first in range(0, len(maps), 2):
        for column, node in zip(st.columns(2), maps[first : first + 2], strict=False):
            with column.container(border=True):
                st.markdown(f"**{escaped(node.node)}**")
                page.drawing(node.drawing, node.alt)


span, seen = page.start("Fleet", "What is wrong now, where the capacity went, and who lies where.")
if seen is not None:
    held, cards = loaders.holders(fleet.recent(seen), seen.interval_seconds)
    claims = loaders.stored(max(span, timedelta(days=1)))
    queues = loaders.queues(seen)
    problems = fleet.problems(
        seen,
        cards,
        held,
        queues=queues,
        findings=claims.findings,
        changes=loaders.changes(),
        pause=loaders.pause(),
        now=loaders.present(),
        names=card_names(loaders.facts(seen.window)),
        imported=imported_until(loaders.facts(seen.window)),
    )
    _status(problems, claims)
    ledger = loaders.ledger(span)
    terms = fleet.ledger_terms(ledger)
    over_time = loaders.read(fleet.utilisation, seen, ledger)
    _tiles(terms, over_time, loaders.read(read_kept, seen.window, loaders.settings().workload))
    left, right = st.columns(2, gap="large")
    with left:
        _ledger(terms)
    with right:
        _over_time(over_time)
    _heat(seen)
    _map(seen, cards, held)
