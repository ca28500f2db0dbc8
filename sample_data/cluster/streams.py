"""Named random streams: each cause of randomness has its own, so that one run's decisions cannot shift another's."""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """Return the generator of one named cause.

    The same seed and names give the same numbers on every machine, whatever else was drawn before.
    """
    text = "/".join(str(part) for part in (seed, *names))
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "big")))


@cache
def hex_name(length: int, *names: str | int) -> str:
    """Return a stable hexadecimal name, as orchestrators append to pods."""
    return hashlib.sha256("/".join(str(part) for part in names).encode()).hexdigest()[:length]
