"""Errors that a user may see.

    TrimtabError                exit code 1 unless a subclass says otherwise
    ├── ConfigurationError      2  usage or configuration
    ├── InputRejectedError      3  input rejected
    ├── UnreachableError        4  source, store or backend unreachable
    └── RefusedError            5  the action asked for was refused by guard, consent or kill switch

Each message is one line: what was expected, what came, what to do.
"""

from __future__ import annotations

import socket


class TrimtabError(Exception):
    """Root of all errors that are shown to a user as one line, without a traceback."""

    exit_code = 1


class ConfigurationError(TrimtabError):
    """The command line or the configuration is wrong."""

    exit_code = 2


class InputRejectedError(TrimtabError):
    """Input was read and rejected as a whole."""

    exit_code = 3


class UnreachableError(TrimtabError):
    """A source, the store or a backend cannot be reached or answered with an error."""

    exit_code = 4


class RefusedError(TrimtabError):
    """A guard, missing consent or the kill switch refused the action that was asked for."""

    exit_code = 5


def no_connection(error: BaseException) -> str:
    """Say what the system means that could not connect; empty for an error of another kind."""
    if isinstance(error, socket.gaierror):
        return "none: the name of the host is not known here"
    if isinstance(error, ConnectionRefusedError):
        return "none: nothing listens there (connection refused)"
    return ""
