"""Slices: every share of every card, and one of them over time."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from collector.words import plural
from dashboard.app_parts import charts, loaders, page
from dashboard.views import slices
from dashboard.views.reading import Look
from dashboard.views.text import NO_DATA, escaped, gib, number, percent, stamp

_PERCENT = st.column_config.NumberColumn(format="%.0f %%")
_COLUMNS: dict[str, Any] = {
    "tenant": st.column_config.TextColumn(pinned=True),
    "workload": st.column_config.TextColumn(pinned=True),
    "quota": st.column_config.NumberColumn("held", format="%.0f %%", help="Share of the whole card."),
    "used": st.column_config.ProgressColumn(
        "used", format="%.0f %%", min_value=0, max_value=100, help="Mean share of the whole card while it lived."
    ),
    "memory_used_gib": st.column_config.NumberColumn("memory used", format="%.1f GiB"),
    "memory_quota_gib": st.column_config.NumberColumn("memory held", format="%.1f GiB"),
    "kept": st.column_config.NumberColumn(
        "objective kept", format="%.1f %%", help="Share of the intervals with requests in which the promise was kept."
    ),
    "service_class": "class",
    "last_seen": st.column_config.DatetimeColumn("last seen (UTC)", format="DD MMM HH:mm", timezone="UTC"),
}


def _chosen(holdings: pd.DataFrame) -> pd.DataFrame:
    """Let the reader narrow the list down; nothing chosen means all."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        words = st.text_input("Find", placeholder="workload, tenant, card, slice", key="slices_find")
        tenants = st.multiselect("Tenants", sorted(holdings["tenant"].unique()), key="slices_tenants")
        kinds = st.pills("Kind", sorted(holdings["kind"].unique()), selection_mode="multi", key="slices_kinds")
        gone = st.toggle("Also those that ended", value=False, key="slices_gone")
    found = holdings
    if not gone:
        found = found[found["last_seen"] >= found["last_seen"].max() - pd.Timedelta(minutes=5)]
    if tenants:
        found = found[found["tenant"].isin(tenants)]
    if kinds:
        found = found[found["kind"].isin(kinds)]
    if words:
        text = found[["tenant", "workload", "node", "gpu", "slice", "pod"]].agg(" ".join, axis=1)
        found = found[text.str.contains(words, case=False, regex=False)]
    return found


def _detail(look: Look, row: pd.Series, account: dict[str, Any] | None) -> None:
    st.subheader(f"{escaped(row['tenant'])} / {escaped(row['workload'])}", anchor=False)
    st.caption(
        f"slice {escaped(row['slice'])} · {escaped(row['node'])} · {escaped(row['model'])} · "
        f"seen {stamp(row['first_seen'])} to {stamp(row['last_seen'])} UTC"
        + (" · quota estimated as an equal part of the card" if row["quota_estimated"] else "")
    )
    with st.container(horizontal=True):
        st.metric("Held", percent(row["quota"]), border=True, width=168)
        st.metric("Used", percent(row["used"]), border=True, width=168, help="Mean share of the card while it lived.")
        st.metric("Memory used", gib(row["memory_used_bytes"]), border=True, width=168)
        st.metric("Requests", number(row["requests_per_second"], "/s"), border=True, width=168)
        st.metric("Objective kept", percent(row["kept"], 1), border=True, width=168)
        if account is not None:
            joules = number(account["joules"] / 3.6e6, "kWh")
            st.metric("State", account["state"] or "ended", border=True, width=168, help="See the page Waste.")
            st.metric("Energy", joules, border=True, width=168, help="Attributed; sums to the card's own meter.")
    if account is not None:
        st.caption(slices.provenance_words(account))
    table = loaders.read(slices.over_time, look, slices.SliceKey.of(row.to_dict()))
    left, right = st.columns(2, gap="large")
    with left:
        _use(table)
    with right:
        _work(table)


def _use(table: pd.DataFrame) -> None:
    st.markdown("**Share of the card**")
    shares = table[["time"]].assign(used=100 * table["used"], held=100 * table["quota"])
    style: dict[str, dict[str, Any]] = {
        "used": {"itemStyle": {"color": "#2f9e5b"}, "areaStyle": {"opacity": 0.15}},
        "held": {"itemStyle": {"color": "#4a8fe0"}, "step": "end", "lineStyle": {"type": "dashed"}},
    }
    st.echarts_chart(charts.lines(shares, style), height=240, alt="Used and held share of the card over time")
    st.markdown("**Memory**")
    memory = table[["time"]].assign(used=table["memory_used_bytes"] / 2**30, held=table["memory_quota_bytes"] / 2**30)
    st.echarts_chart(charts.lines(memory, style, unit="GiB"), height=200, alt="Used and held memory over time")


def _work(table: pd.DataFrame) -> None:
    asked = table["requests_per_second"].notna().any()
    if asked:
        st.markdown("**Requests**")
        rates = table[["time"]].assign(
            finished=table["requests_per_second"], in_time=table["within_objective_per_second"]
        )
        rates = rates.rename(columns={"in_time": "within the objective"})
        style = {
            "finished": {"itemStyle": {"color": "#8a97a5"}},
            "within the objective": {"itemStyle": {"color": "#2f9e5b"}},
        }
        st.echarts_chart(charts.lines(rates, style, unit="/s"), height=240, alt="Requests a second, and those in time")
    latencies = {"latency_p50_seconds": "half", "latency_p99_seconds": "99 %", "latency_p999_seconds": "99.9 %"}
    known = {k: f"{v} are faster than" for k, v in latencies.items() if table[k].notna().any()}
    if known:
        st.markdown("**Latency**")
        times = table[["time"]].assign(**{words: 1000 * table[name] for name, words in known.items()})
        st.echarts_chart(
            charts.lines(times, {w: {} for w in known.values()}, unit="ms"), height=200, alt="Latency over time"
        )
    elif table["step_seconds"].notna().any():
        st.markdown("**Service time per unit of work**")
        steps = table[["time"]].assign(step=1000 * table["step_seconds"])
        st.echarts_chart(charts.lines(steps, {"step": {}}, unit="ms"), height=200, alt="Service time over time")
    if not asked and not known and not table["step_seconds"].notna().any():
        page.empty("Neither requests nor steps of this slice are known: its server's metrics are not collected.")


span, seen = page.start("Slices", "Every share of every card: who holds it, how much, and what is used of it.")
if seen is not None:
    holdings, _ = loaders.holders(seen.window, seen.interval_seconds)
    if holdings.empty:
        page.empty("Nobody held a slice in this range. The cards are there, and idle.")
        st.stop()
    found = _chosen(holdings)
    st.caption(f"{plural(len(found), 'holding')} of {len(holdings)}. Choose a row for its charts.")
    shown = slices.table(found)
    event = st.dataframe(
        shown,
        hide_index=True,
        height=380,
        column_config=_COLUMNS,
        on_select="rerun",
        selection_mode="single-row",
        placeholder=NO_DATA,
        key="slices_table",
        alt="All slices with holder, quota, use and kept objective",
    )
    if shown.empty:
        page.empty("Nothing fits these filters.", icon=":material/filter_alt_off:")
        st.stop()
    picked = event["selection"]["rows"][:1]
    place = shown.index[picked[0] if picked and picked[0] < len(shown) else 0]
    row = found.reset_index(drop=True).loc[place]
    _detail(seen, row, slices.account_of(loaders.survey(span).accounts, slices.SliceKey.of(row.to_dict())))
