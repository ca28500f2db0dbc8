"""What XID numbers of the driver mean, how grave they are and what to do; the table is data (xid.toml)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

_XID = re.compile(r"xid(?:\s*\(PCI[^)]*\))?\D{0,3}(\d{1,9})(?!\d)", re.IGNORECASE)
# Actions after which a card does no work, or wrong work, until somebody did something.
_TAKE_OUT = frozenset({"reset_gpu", "memory_error", "reboot_node", "check_power"})


@dataclass(frozen=True, slots=True)
class Xid:
    """What one XID number means: short name, severity, what to do first, what to do when it recurs."""

    number: int
    name: str
    action: str
    severity: str
    text: str
    recurring: str

    @property
    def take_out(self) -> bool:
        """True when the card should get no further work until it was seen to."""
        return self.action in _TAKE_OUT


@cache
def xids() -> Mapping[int, Xid]:
    """Return all classified XID numbers of the data table."""
    data = tomllib.loads(resources.files("analyzer").joinpath("data/xid.toml").read_text("utf-8"))
    found = {}
    for action, entry in data["action"].items():
        for number in entry["codes"]:
            name = data["name"].get(str(number), "")
            found[number] = Xid(number, name, action, entry["severity"], entry["text"], entry["recurring"])
    return found


def xid(number: int) -> Xid:
    """Return what is known of an XID number; one that nobody classified says so."""
    known = xids().get(number)
    if known is not None:
        return known
    other = next(x for x in xids().values() if x.action == "unclassified")
    return Xid(number, "", "unclassified", other.severity, other.text, other.recurring)


def xid_number(message: str) -> int | None:
    """Return the number in a message such as `XID 79: ...`; None where there is none."""
    match = _XID.search(message)
    return int(match[1]) if match else None
