"""Moves that would make room or free cards, planned when somebody asks for it."""

from __future__ import annotations

from datetime import timedelta

import streamlit as st

from dashboard.app_parts import loaders, page
from dashboard.views import moves, svg
from dashboard.views.names import CardNames
from dashboard.views.text import escaped
from tuner.service.moves_plan import MovesPlan, Objective

PLANS = {Objective.DEMAND: "room for what is asked for", Objective.FREE_CARDS: "the fewest cards"}


def show(span: timedelta, names: CardNames) -> None:
    """Offer the plans; the chosen one is made and shown."""
    st.subheader("Moves that would bring more", anchor=False)
    objective = st.segmented_control(
        "Plan", list(PLANS), format_func=PLANS.__getitem__, default=None, help="Advice: nothing is moved."
    )
    if objective is None:
        return
    plan = loaders.moves(span, objective)
    if plan.none:
        page.empty(f"No plan: {plan.none}.", icon=":material/info:")
    else:
        st.markdown(escaped(moves.result(plan)))
    if plan.steps:
        _steps(plan, names)
    st.caption(escaped(moves.left_alone(plan)))


def _steps(plan: MovesPlan, names: CardNames) -> None:
    st.caption(escaped(moves.costs(plan)))
    st.dataframe(moves.steps_table(plan, names), hide_index=True)
    page.legend({words: moves.COLOURS[role] or page.ink().line for role, words in moves.ROLES.items()})
    strips = moves.strips(plan, names)
    half = (len(strips) + 1) // 2
    for column, part in zip(st.columns(2, gap="large"), (strips[:half], strips[half:]), strict=True):
        if part:
            with column:
                titles = ", ".join(strip.title for strip in part)
                page.drawing(svg.strips(part, page.ink()), f"Before and after: {titles}")
