"""Recommendations: what the tuner would change and why, what its guards dropped; approve and reject."""

from __future__ import annotations

from functools import partial

import streamlit as st

from collector.words import plural
from dashboard.app_parts import acting, loaders, page
from dashboard.cli.changes import trial_words
from dashboard.views import changes
from dashboard.views.names import CardNames, card_names, named
from dashboard.views.reading import Look
from dashboard.views.text import escaped, stamp
from tuner import consent
from tuner.record import ChangeState, GroupRecord

_SHOWN = 12


def _group(record: GroupRecord, names: CardNames, seen: Look | None) -> None:
    because = [] if record.decision == "write_down" else [named(record.reason, names)]
    until = [] if record.until is None else [f"waits until {stamp(record.until)} UTC"]
    with st.container(border=True, key=f"group_{record.id}"):
        words, buttons = st.columns([4, 1], vertical_alignment="center")
        words.markdown(
            f":blue-badge[{escaped(changes.KIND_WORDS.get(record.group.kind, record.group.kind))}] "
            f"**{escaped(named(record.group.why, names))}**"
        )
        words.caption(" · ".join(escaped(part) for part in [*changes.costs(record), *because]))
        if record.decision == "ask" and record.state is ChangeState.PLANNED and acting.role() != "viewer":
            with buttons:
                _answer(record, seen)
        st.dataframe(changes.change_table(record, names), hide_index=True, key=f"changes_{record.id}")
        for line in trial_words(record):
            st.caption(escaped(line))
        risk = [f"could be wrong: {named(record.group.risk, names)}"] if record.group.risk else []
        st.caption(" · ".join(escaped(p) for p in [*risk, f"made {stamp(record.made_at)} UTC", *until, record.id]))


def _answer(record: GroupRecord, seen: Look | None) -> None:
    state = loaders.state()
    if state is None:
        return
    for label, icon, action in (
        ("Approve", ":material/check:", consent.approve),
        ("Reject", ":material/close:", consent.reject),
    ):
        with st.popover(label, icon=icon, width="stretch"):
            key = f"{label.lower()}_{record.id}"
            if signed := acting.why_form(key, label, primary=action is consent.approve):
                call = partial(action, state, record.id, who=signed.who, why=signed.why)
                done = f"{record.id}: {'approved' if action is consent.approve else 'rejected'}"
                acting.give(partial(call, role=acting.role(), now=acting.now(seen)), done)


span, seen = page.start(
    "Recommendations", "What the tuner would change and why, and what its guards decided against.", needs_rows=False
)
acting.told()
names: CardNames = {} if seen is None else card_names(loaders.facts(seen.window))
plan = loaders.newest_plan()
mode = loaders.settings().tuner.mode.value
if plan is None:
    st.info(
        "**No plan yet.** `trimtab tune --once` makes one; in mode recommend it changes nothing.",
        icon=":material/inbox:",
    )
    st.stop()
pause = loaders.pause()
if not pause.allows_new:
    st.warning(f"The tuner is {escaped(str(pause))}. Nothing that is approved is carried out meanwhile.")
waiting = changes.waiting(loaders.changes(), plan.id)
if seen is None and any(r.simulated for r in plan.groups.values()):
    page.simulated()
with st.container(horizontal=True):
    st.metric("Wait for an answer", len(waiting.asked), border=True, width=168)
    st.metric("Written down", len(waiting.written_down), border=True, width=168, help="In mode recommend.")
    st.metric("Decided against", len(plan.drops), border=True, width=168, help="By the guards, in the newest plan.")
    st.metric("Mode", mode, border=True, width=168)
st.caption(f"Newest plan {escaped(plan.id)}")
if waiting.asked:
    st.subheader("Waiting for an answer", anchor=False)
    if acting.role() == "viewer":
        st.caption(
            "This address is reached from other machines, and nobody logs in: answers are given with "
            "`trimtab changes approve` on the host."
        )
    for record in waiting.asked[:_SHOWN]:
        _group(record, names, seen)
    if len(waiting.asked) > _SHOWN:
        st.dataframe(changes.change_list(waiting.asked[_SHOWN:], names), hide_index=True)
if waiting.written_down:
    st.subheader("Written down, not asked for", anchor=False)
    for record in waiting.written_down[:_SHOWN]:
        _group(record, names, seen)
    if len(waiting.written_down) > _SHOWN:
        st.caption(f"and {len(waiting.written_down) - _SHOWN} more: trimtab changes")
if not waiting.asked and not waiting.written_down:
    page.empty("Nothing is recommended now: the fleet is as the tuner wants it.")
for line in plan.notes[:_SHOWN]:
    st.caption(escaped(named(line, names)))
st.subheader("What the guards decided against", anchor=False)
if not plan.drops:
    page.empty("Nothing in the newest plan.")
else:
    table = changes.drop_list(plan.drops, plan.groups, names)
    st.caption(f"{plural(len(table), 'decision')}, the newest plan alone. Each guard may drop or lessen, never add.")
    st.dataframe(table, hide_index=True, alt="What guards dropped or lessened, and why")
