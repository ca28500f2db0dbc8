"""Forecast: what each workload and the fleet will need, and how wrong such forecasts were."""

from __future__ import annotations

from datetime import timedelta

import streamlit as st

from analyzer.findings import CLAIMS
from dashboard.app_parts import charts, loaders, page
from dashboard.outlook import USED
from dashboard.views import forecast
from dashboard.views.names import card_names, named
from dashboard.views.text import NO_DATA, escaped, number, percent, stamp

_COLUMNS = {
    "ahead": st.column_config.NumberColumn("ahead", format="%.1f h"),
    "compared": st.column_config.NumberColumn("compared", help="How many forecasts were compared with what came."),
    "error": st.column_config.NumberColumn("mean error", format="%.3g"),
    "against_last": st.column_config.NumberColumn(
        "against last value", format="%.2f", help="Below 1: better than saying that all stays as it is."
    ),
    "against_daily": st.column_config.NumberColumn(
        "against yesterday", format="%.2f", help="Below 1: better than repeating the same time of the day before."
    ),
    "inside_80": st.column_config.NumberColumn("inside the 80 % band", format="%.0f %%"),
    "inside_95": st.column_config.NumberColumn("inside the 95 % band", format="%.0f %%"),
}

span, seen = page.start("Forecast", "What each workload and the fleet will need, and how wrong such forecasts were.")
if seen is not None:
    left, right = st.columns([2, 3], vertical_alignment="bottom")
    field = left.segmented_control(
        "Of what",
        list(forecast.FIELDS),
        default=USED,
        required=True,
        format_func=lambda name: forecast.FIELDS[name],
        key="forecast_field",
    )
    ahead = loaders.ahead(field or USED)
    if not ahead.series or ahead.outlook is None:
        page.empty("Nothing that lives now has a value to forecast from.", icon=":material/block:")
        st.stop()
    series = right.selectbox("Series", ahead.series, key="forecast_series", help="#0 is the first replica.")
    unit = "cards" if field == USED else "GiB"
    table = forecast.bands(ahead, series, max(span, timedelta(hours=12)))
    last, farthest = table["measured"].dropna().tail(1), table.iloc[-1]
    with st.container(horizontal=True):
        st.metric("Now", number(last.iloc[0] if len(last) else None, unit), border=True, width=168)
        st.metric("Median, at the end", number(farthest.get("q0.5"), unit), border=True, width=168)
        st.metric(
            "97.5 % below",
            number(farthest.get("q0.975"), unit),
            border=True,
            width=168,
            help="What the tuner would keep for it at the farthest horizon.",
        )
    if words := forecast.note(ahead, series):
        st.info(escaped(words), icon=":material/info:")
    st.echarts_chart(
        charts.quantile_bands(table, unit, ahead.outlook.made_at),
        height=340,
        alt=f"{series}: measured, then forecast median with 80 % band and 97.5 % line",
        key="bands",
    )
    st.caption(f"Made at {stamp(ahead.outlook.made_at)} UTC from all earlier rows; renewed every few minutes.")
    st.subheader("Its own error, tried on the past", anchor=False)
    tried = forecast.errors(ahead, series)
    if tried.empty:
        page.empty("The history is too short to try the forecaster on it.", icon=":material/hourglass_empty:")
    else:
        st.caption(f"Mean error of the median in {unit}, against what really came.")
        st.dataframe(tried, hide_index=True, column_config=_COLUMNS, placeholder=NO_DATA)
    risks = [f for f in loaders.stored(max(span, timedelta(days=1))).of("TT5") if f.verdict in CLAIMS]
    if risks:
        st.subheader("What will not fit", anchor=False)
        names = card_names(loaders.facts(seen.window))
        for finding in risks:
            with st.container(border=True):
                st.markdown(f":orange-badge[{escaped(finding.code)}] {escaped(named(finding.claim, names))}")
                st.caption(f"Could be wrong: {escaped(finding.risk)} · confidence {percent(finding.confidence)}")
