"""The edge to a backend: a plug-in may raise or answer anything; what comes in is an answer, or typed as none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from collector.errors import UnreachableError
from tuner.model import ApplyResult, ApplyStatus, Backend, BackendState, Group, Target, TargetState

MOST_SETTLING_SECONDS = 86400.0
_LONGEST_TEXT = 500


def read_backend(backend: Backend, targets: Sequence[Target] | None = None) -> BackendState:
    """Read a backend (None: all targets).

    Raises:
        UnreachableError: it does not answer, or not with a state.
    """
    try:
        state: object = backend.read(targets)
    except UnreachableError:
        raise
    except Exception as error:  # a plug-in may raise anything, and the tuner outlives it
        raise UnreachableError(f"the backend {backend.name} cannot be read: {_said(error)}") from error
    problem = _problem(state)
    if isinstance(state, BackendState) and not problem:
        return state
    raise UnreachableError(f"the backend {backend.name} cannot be read: {problem}; see its plug-in")


def apply_to(backend: Backend, group: Group, expected: Mapping[Target, str]) -> ApplyResult:
    """Let a backend apply a group; whatever is no proper answer is `UNKNOWN`, with the reason as its detail."""
    try:
        result: object = backend.apply(group, expected)
    except Exception as error:  # noqa: BLE001 - it may have written before it raised: only a read can tell
        return ApplyResult(ApplyStatus.UNKNOWN, _said(error))
    if not isinstance(result, ApplyResult) or not isinstance(result.status, ApplyStatus):
        return ApplyResult(ApplyStatus.UNKNOWN, _line(f"expected an ApplyResult, got {result!r}"))
    seconds: object = result.settles_in_seconds
    if not _is_number(seconds) or not 0.0 <= result.settles_in_seconds <= MOST_SETTLING_SECONDS:
        text = f"expected settles_in_seconds from 0 to {MOST_SETTLING_SECONDS:.0f}, got {seconds!r}"
        return ApplyResult(ApplyStatus.UNKNOWN, _line(text))
    return ApplyResult(result.status, _line(str(result.detail)), float(result.settles_in_seconds))


def _problem(state: object) -> str:
    if not isinstance(state, BackendState) or not isinstance(state.targets, Mapping):
        return _line(f"expected a BackendState, got {state!r}")
    for target, held in state.targets.items():
        what: object = held
        if not isinstance(what, TargetState) or not isinstance(target, Target):
            return _line(f"expected a TargetState for {target}, got {what!r}")
        for name, value in [*held.values.items(), *held.effective.items()]:
            if not _is_number(value) or math.isinf(value):
                return _line(f"expected a number for {name} of {target}, got {value!r}")
    return ""


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _said(error: Exception) -> str:
    return _line(str(error) if isinstance(error, UnreachableError) else f"{type(error).__name__}: {error}")


def _line(text: str) -> str:
    """Return one line that the journal can hold: no lone surrogates, no end of text."""
    return " ".join(text.split())[:_LONGEST_TEXT].encode("utf-8", "replace").decode()
