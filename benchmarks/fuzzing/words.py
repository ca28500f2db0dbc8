"""What the generators share: hostile texts, spoilt numbers, torn bytes, and how results are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

NASTY = (
    "",
    " ",
    "a",
    "GPU-0",
    'quote " inside',
    "back\\slash",
    "new\nline",
    "comma, brace } and = sign",
    '"} 1',
    '{a="b"}',
    "<script>alert(1)</script>",
    "[link](javascript:1)",
    "%s%n{}",
    "NaN",
    "日本語",
    "\u202eRTL",
    "e\u0301",
    "🦥" * 3,
    "x" * 300,
    "\t",
    "'; DROP TABLE gpu; --",
    "../../etc/passwd",
)
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"


class WrongValueError(AssertionError):
    """A parser took something for what it is not, or lost what was good."""


def name(random: Random, more: str = "") -> str:
    """Return a name of letters, digits and `more`."""
    rest = _LETTERS + "0123456789" + more
    return random.choice(_LETTERS) + "".join(random.choices(rest, k=random.randint(0, 12)))


def text(random: Random) -> str:
    """Return a text that somebody may have put into a label."""
    return random.choice(NASTY) if random.random() < 0.4 else name(random, "-./ ")


def blunt(random: Random) -> str:
    """Return a text without characters that end a cell or a line."""
    return name(random, "-._:")


def spoilt(random: Random, content: bytes) -> bytes:
    """Return content with a few bytes changed, removed, doubled, or with its end cut off."""
    data = bytearray(content)
    for _ in range(random.randint(1, 4)):
        if not data:
            break
        place = random.randrange(len(data))
        kind = random.randrange(5)
        if kind == 0:
            data[place] = random.randrange(256)
        elif kind == 1:
            del data[place : place + random.randint(1, 20)]
        elif kind == 2:
            data[place:place] = data[place : place + random.randint(1, 20)]
        elif kind == 3:
            data[place:place] = bytes(random.randrange(256) for _ in range(random.randint(1, 8)))
        else:
            del data[place:]
    return bytes(data)


def same(got: Any, wanted: Any) -> bool:
    """Say whether two values are one: NaN is NaN, floats to the last digits."""
    if isinstance(got, float) and isinstance(wanted, float):
        return (math.isnan(got) and math.isnan(wanted)) or math.isclose(got, wanted, rel_tol=1e-12, abs_tol=0.0)
    return bool(got == wanted)


def require(condition: object, what: str, *details: object) -> None:
    """Raise `WrongValueError` where something is not as it must be."""
    if not condition:
        raise WrongValueError(f"{what}: {' | '.join(repr(one)[:400] for one in details)}")


def require_same(what: str, got: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Raise `WrongValueError` where two lists differ."""
    require(len(got) == len(wanted), f"{what}: expected {len(wanted)}, got {len(got)}", got, wanted)
    for place, (one, other) in enumerate(zip(got, wanted, strict=True)):
        require(same(one, other), f"{what} at {place}", one, other)
