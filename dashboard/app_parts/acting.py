"""Who acts from the application, as of when, and how an answer is given: the rules are the tuner's, not the pages'."""

from __future__ import annotations

import getpass
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import streamlit as st

from collector.clock import SystemClock
from collector.errors import TrimtabError
from dashboard.views.reading import Look
from dashboard.views.text import escaped
from tuner.consent import Role


def role() -> Role:
    """Return what the reader may do.

    Nobody logs in yet. On an address that only this machine reaches the reader could as well type the commands, so is
    an operator; on any other the application is for looking.
    """
    return "operator" if is_loopback(st.get_option("server.address")) else "viewer"


def is_loopback(address: str | None) -> bool:
    """Say whether only this machine reaches an address; none at all means every address."""
    if not address:
        return False
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def now(seen: Look | None) -> datetime:
    """Return the instant of an answer: the present, or the end of the rows where they are simulated."""
    return seen.window.end if seen is not None and seen.simulated else SystemClock().now()


def login() -> str:
    """Return the name that an answer is given under unless the reader writes another."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def give(action: Callable[[], object], done: str) -> None:
    """Give an answer to the tuner and draw the page anew; a refusal is shown in its own words."""
    try:
        action()
    except TrimtabError as error:
        st.error(escaped(str(error)), icon=":material/block:")
        return
    st.session_state["told"] = done
    st.rerun()


def told() -> None:
    """Show once what the last answer did."""
    if done := st.session_state.pop("told", ""):
        st.toast(escaped(done), icon=":material/check:")


@dataclass(frozen=True, slots=True)
class Signed:
    """Who acts, and why."""

    who: str
    why: str


def why_form(key: str, label: str, *, primary: bool = False) -> Signed | None:
    """Draw a form that asks who and why; return both once it is sent."""
    with st.form(key, border=False):
        why = st.text_input("Why", max_chars=500, placeholder="the reason, for the journal", key=f"{key}_why")
        who = st.text_input("Your name", value=login(), max_chars=80, key=f"{key}_who")
        sent = st.form_submit_button(label, type="primary" if primary else "secondary", key=f"{key}_send")
    return Signed(who, why) if sent else None
