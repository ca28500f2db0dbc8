"""Who logs in how at an HTTP server: with a bearer token, or as a user with a password."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from collector.errors import ConfigurationError
from collector.settings import Credentials

MAX_REDIRECTS = 5
REDIRECTS = (301, 302, 303, 307, 308)
_TOKEN = re.compile(r"[\x21-\x7e]+")


def leads_away(before: str, after: str) -> bool:
    """Say whether a redirect leads to another server, or to another way of speaking: it takes no credentials along."""
    one, other = urlsplit(before), urlsplit(after)
    return (one.scheme, one.hostname, one.port) != (other.scheme, other.hostname, other.port)


def login_of(credentials: Credentials) -> Callable[[], str]:
    """Return what gives the header; files are read anew each time, since what they hold changes.

    Raises:
        ConfigurationError: when what is returned is called: a file cannot be read, or a token is none.
    """
    token, token_file = credentials.bearer_token, credentials.bearer_token_file
    password, password_file = credentials.password, credentials.password_file
    if token_file is not None:
        return lambda: _bearer(read_text(token_file).strip(), str(token_file))
    if token is not None:
        return lambda: _bearer(token.get_secret_value(), "bearer_token")
    if credentials.username:
        if password_file is not None:
            return lambda: _basic(credentials.username, read_text(password_file).rstrip("\r\n"))
        return lambda: _basic(credentials.username, password.get_secret_value() if password else "")
    return lambda: ""


def _bearer(token: str, place: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise ConfigurationError(f"{place}: expected a token of visible ASCII characters, got something else")
    return f"Bearer {token}"


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def read_text(path: Path) -> str:
    """Return what a file of the settings holds.

    Raises:
        ConfigurationError: it cannot be read, or is no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no text"
        raise ConfigurationError(f"{path}: expected a file that can be read, got: {reason}") from error


def without_login(url: str) -> tuple[str, str]:
    """Return an address without `user:password@`, and the header that stands for those (empty: there were none)."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, ""
    user, _, password = login.partition(":")
    return parts._replace(netloc=host).geturl(), _basic(unquote(user), unquote(password))
