"""Secrets do not get into messages: passwords of addresses, and values whose name says that they are secret."""

from __future__ import annotations

import re
from typing import Any

MASK = "********"
_SECRETS = r"password|passwd|token|secret|api_?key|credential|signature"
_SECRET_NAME = re.compile(_SECRETS, re.IGNORECASE)
_SECRET_IN_QUERY = re.compile(rf"([?&;][^=&;#]*(?:{_SECRETS})[^=&;#]*=)[^&;#]*", re.IGNORECASE)


def is_secret_name(name: object) -> bool:
    """Say whether a key such as `bearer_token` or `password` names a secret."""
    return _SECRET_NAME.search(str(name)) is not None


def mask_address(text: str) -> str:
    """Hide the password of an address such as `postgresql://user:secret@host/db?password=secret`.

    A password may hold `/` and `@`, so the last `@` ends it. An address may lack its scheme.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    login, at, host = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    if at and colon and "/" not in user:
        rest = f"{user}:{MASK}@{host}"
    elif at and scheme in {"http", "https"} and "/" not in login:
        rest = f"{MASK}@{host}"  # a log-in of one word is a token more often than a name
    return scheme + separator + _SECRET_IN_QUERY.sub(rf"\1{MASK}", rest)


def masked(value: Any) -> Any:
    """Return a plain value as it may be shown: what a secret name holds, and passwords of addresses, are hidden."""
    if isinstance(value, dict):
        return {key: MASK if is_secret_name(key) else masked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    return mask_address(value) if isinstance(value, str) else value
