"""Entry of the web application: it only routes."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from collector.errors import TrimtabError
from dashboard.views.text import escaped

HERE = Path(__file__).parent

st.set_page_config(page_title="Trimtab", page_icon=str(HERE / "icon.svg"), layout="wide")
st.logo(str(HERE / "logo.svg"), icon_image=str(HERE / "icon.svg"), size="large")
page = st.navigation(
    {
        "What is": [
            st.Page(
                "app_pages/fleet.py",
                title="Fleet",
                icon=":material/dashboard:",
                help="What is wrong now, where the capacity went, and who lies on which card.",
                default=True,
            ),
            st.Page(
                "app_pages/slices.py",
                title="Slices",
                icon=":material/view_list:",
                help="Every share of every card: who holds it, how much, what is used, whether its promise is kept.",
            ),
            st.Page(
                "app_pages/health.py",
                title="Health",
                icon=":material/health_and_safety:",
                help="Cards with faults and what to do with each; slices that were not kept apart.",
            ),
        ],
        "Why": [
            st.Page(
                "app_pages/waste.py",
                title="Waste",
                icon=":material/recycling:",
                help="Who holds and does not use, what is free now, and quotas of the wrong size.",
            ),
            st.Page(
                "app_pages/contention.py",
                title="Contention",
                icon=":material/compare_arrows:",
                help="Slices that slow each other, with the evidence, and how the claim could be wrong.",
            ),
            st.Page(
                "app_pages/limits.py",
                title="Limits",
                icon=":material/speed:",
                help="What keeps work from running faster, and how much busy time is hollow.",
            ),
            st.Page(
                "app_pages/fragmentation.py",
                title="Fragmentation",
                icon=":material/grid_view:",
                help="Capacity that is free and serves nobody, how cards are cut, and what still fits.",
            ),
            st.Page(
                "app_pages/forecast.py",
                title="Forecast",
                icon=":material/trending_up:",
                help="What each workload and the fleet will need, and how wrong such forecasts were.",
            ),
        ],
        "What to do": [
            st.Page(
                "app_pages/recommendations.py",
                title="Recommendations",
                icon=":material/lightbulb:",
                help="What the tuner would change and why; what its guards dropped; approve and reject.",
            ),
            st.Page(
                "app_pages/changes.py",
                title="Changes",
                icon=":material/history:",
                help="What was changed, when and why, what came of it; undo, pause and resume.",
            ),
        ],
    }
)
try:
    page.run()
except TrimtabError as error:  # a configuration, store or state that cannot be read: one line, as in the terminal
    st.error(escaped(str(error)), icon=":material/error:")
