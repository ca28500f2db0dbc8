"""Changes: what was changed, when and why, what came of it; undo, pause and resume."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import streamlit as st

from collector.words import plural
from dashboard.app_parts import acting, loaders, page
from dashboard.views import changes, switch
from dashboard.views.names import CardNames, card_names, named
from dashboard.views.reading import Look
from dashboard.views.text import NO_DATA, escaped
from tuner import consent, journal
from tuner.model import Freeze
from tuner.record import ChangeState, GroupRecord
from tuner.state import State

Colour = Literal["red", "orange", "blue", "green", "violet", "gray"]

_WHEN = st.column_config.DatetimeColumn("when (UTC)", format="DD MMM HH:mm", timezone="UTC")
_COLOURS: dict[ChangeState, Colour] = {
    ChangeState.CONFIRMED: "green",
    ChangeState.VERIFYING: "blue",
    ChangeState.APPROVED: "blue",
    ChangeState.ROLLING_BACK: "orange",
    ChangeState.ROLLED_BACK: "orange",
    ChangeState.ROLLBACK_BLOCKED: "red",
    ChangeState.FOREIGN_CHANGE: "violet",
}
_NUMBERS: dict[str, Any] = {
    "kept_before": st.column_config.NumberColumn("kept before", format="%.2f %%"),
    "kept_after": st.column_config.NumberColumn("kept after", format="%.2f %%"),
    "latency_before": "latency before",
    "latency_after": "latency after",
    "throughput_before": st.column_config.NumberColumn("work before", format="%.3g /s"),
    "throughput_after": st.column_config.NumberColumn("work after", format="%.3g /s"),
}


def _switch(seen: Look | None) -> None:
    found, file = loaders.pause(), loaders.settings().state.kill_switch
    with st.container(border=True, key="kill_switch"):
        if found.allows_new:
            st.markdown(":green[:material/play_circle:] **The tuner may act**, as far as its mode and guards allow.")
        else:
            st.markdown(f":red[:material/pause_circle:] **{escaped(str(found).capitalize())}**")
        st.caption(f"The kill switch is a file that works without the database: {escaped(str(file))}")
        if acting.role() == "viewer":
            return
        if not found.allows_new:
            with st.popover("Resume", icon=":material/play_arrow:"):
                if signed := acting.why_form("resume", "Resume", primary=True):
                    action = partial(switch.resume, file, loaders.state(), who=signed.who, why=signed.why)
                    acting.give(partial(action, role=acting.role(), now=acting.now(seen)), "The tuner goes on")
            return
        stop, new, _ = st.columns([1, 1, 2])
        with stop.popover("Stop everything", icon=":material/pause:", width="stretch"):
            _freeze(Freeze.ALL, "No write at all, no rollback either.", seen)
        with new.popover("Stop new changes", icon=":material/pause:", width="stretch"):
            _freeze(Freeze.NEW, "Rollbacks still go on.", seen)


def _freeze(level: Freeze, words: str, seen: Look | None) -> None:
    st.caption(words)
    if signed := acting.why_form(f"pause_{level.value}", "Stop", primary=True):
        file = loaders.settings().state.kill_switch
        action = partial(switch.pause, file, loaders.state(), level, who=signed.who, why=signed.why)
        acting.give(partial(action, role=acting.role(), now=acting.now(seen)), "The tuner is stopped")


def _detail(state: State, record: GroupRecord, names: CardNames, seen: Look | None) -> None:
    st.subheader(escaped(named(record.group.why, names)), anchor=False)
    with st.container(horizontal=True, gap="small"):
        st.badge(changes.state_words(record), color=_COLOURS.get(record.state, "gray"))
        st.badge(changes.KIND_WORDS.get(record.group.kind, record.group.kind), color="blue")
    st.markdown(escaped(named(record.reason, names)))
    st.dataframe(changes.change_table(record, names), hide_index=True, key="change_detail")
    st.caption(" · ".join(escaped(words) for words in changes.costs(record)) + f" · {record.id}")
    numbers = changes.verification(record, names)
    st.markdown("**Before and after, everybody on the same cards**")
    if numbers.empty:
        page.empty("Not judged yet, or never written.", icon=":material/hourglass_empty:")
    else:
        st.dataframe(numbers, hide_index=True, column_config=_NUMBERS, placeholder=NO_DATA, key="verification")
    with st.expander("Journal of this change"):
        table = changes.journal_table(journal.entries(state, group_id=record.id))
        st.dataframe(table, hide_index=True, column_config={"when": _WHEN})
    if record.state in changes.IN_FORCE and acting.role() != "viewer":
        with st.popover("Roll back", icon=":material/undo:"):
            st.caption("The tuner sets the old values again in its next cycle.")
            if signed := acting.why_form(f"undo_{record.id}", "Roll back", primary=True):
                action = partial(consent.request_roll_back, state, record.id, who=signed.who, why=signed.why)
                acting.give(partial(action, role=acting.role(), now=acting.now(seen)), f"{record.id} will be undone")


_, seen = page.start("Changes", "What was changed, when and why, and what came of it.", needs_rows=False)
acting.told()
_switch(seen)
state = loaders.state()
records = [r for r in loaders.changes(500) if r.state is not ChangeState.PLANNED]
if state is None or not records:
    page.empty("Nothing was ever changed.")
    st.stop()
if seen is None and records[0].simulated:
    page.simulated()
names: CardNames = {} if seen is None else card_names(loaders.facts(seen.window))
counts = changes.counted(records)
chosen = st.pills(
    "States",
    list(counts),
    selection_mode="multi",
    format_func=lambda words: f"{words} · {counts[words]}",
    key="changes_states",
)
shown = [r for r in records if not chosen or changes.state_words(r) in chosen]
st.caption(f"{plural(len(shown), 'change')}, newest first. Choose a row for its numbers.")
event = st.dataframe(
    changes.change_list(shown, names),
    hide_index=True,
    height=340,
    column_config={"when": _WHEN},
    on_select="rerun",
    selection_mode="single-row",
    key="changes_table",
    alt="All changes with state, reason and outcome",
)
if shown:
    picked = event["selection"]["rows"][:1]
    _detail(state, shown[picked[0]] if picked and picked[0] < len(shown) else shown[0], names, seen)
