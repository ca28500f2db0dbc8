"""One line of the doctor's answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from collector.words import plural


class Status(StrEnum):
    """How a thing stands. Only a problem makes the doctor exit with 1."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class State(StrEnum):
    """What is seen of a kind of exporter or of a scheduler."""

    DETECTED = "detected"
    PARTIAL = "partial"
    UNSEEN = "not seen from here"


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, how it stands, what was seen, and what to do about it.

    family, state: the kind of exporter that it is about and what is seen of it, where it is about one.
    """

    topic: str
    status: Status
    text: str
    advice: str = ""
    family: str = ""
    state: State | None = None


def ok(topic: str, text: str) -> Check:
    """Return a check that passed."""
    return Check(topic, Status.OK, text)


def note(topic: str, text: str, advice: str = "") -> Check:
    """Return something worth knowing that is no fault."""
    return Check(topic, Status.NOTE, text, advice)


def problem(topic: str, text: str, advice: str) -> Check:
    """Return a fault, with what to do."""
    return Check(topic, Status.PROBLEM, text, advice)


_DOWN_TOLD = 5  # one by one
DOWN_ADVICE = "is it running, and its port open from this host?"


def down_text(address: str, message: str) -> str:
    """Return why a target is down, with its address once."""
    return f"{address}: {message.replace(f'{address}: ', '')}" if address else message


def down_checks(topic: str, down: Sequence[tuple[str, str, str]]) -> list[Check]:
    """Return a problem of each of the first targets that are down, and one of all others: a network takes them all.

    Args:
        topic: of the checks.
        down: address, text and advice of each.
    """
    told = [problem(topic, text, advice) for _, text, advice in down[:_DOWN_TOLD]]
    if rest := [address for address, _, _ in down[_DOWN_TOLD:]]:
        told.append(problem(topic, f"{plural(len(rest), 'more target')} down: {some(rest)}", DOWN_ADVICE))
    return told


def span_text(length: timedelta) -> str:
    """Return a length of time in its largest two units: `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`."""
    seconds = max(int(length.total_seconds()), 0)
    for unit, size, smaller, small_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if seconds >= size:
            rest = seconds % size // small_size
            return f"{seconds // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds // 60} min" if seconds >= 120 else f"{seconds} s"


def reject_text(field: str, reason: str) -> str:
    """Return what was wrong with samples: of a field, or of a whole line or scrape."""
    return f"{field} ({reason})" if field else reason


def some(names: list[str], most: int = 3) -> str:
    """Return the first names and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
