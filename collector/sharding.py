"""Which of several collectors reads a target: by rendezvous hashing, so that one more takes only its own share."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from collector.errors import ConfigurationError
from collector.settings import TargetSettings

_SHARD = re.compile(r"(\d{1,4})/(\d{1,4})")


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` collectors, numbered from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read a text such as `2/5`.

        Raises:
            ConfigurationError: it is none.
        """
        match = _SHARD.fullmatch(text.strip())
        number, count = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1 <= number <= count:
            raise ConfigurationError(f"expected a shard such as 2/5 (the second of five collectors), got {text!r}")
        return cls(number, count)

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return f"{self.number}/{self.count}"

    def has(self, target: TargetSettings) -> bool:
        """Say whether this collector reads a target."""
        return shard_of(shard_key(target), self.count) == self.number


def shard_of(key: str, count: int) -> int:
    """Return which of `count` collectors, from 1, a key belongs to.

    The one with the highest hash of key and number wins (rendezvous hashing: Thaler and Ravishankar, 1998). With one
    collector more, a key stays or moves to the new one: nothing moves between the others.
    """
    return max(range(1, count + 1), key=lambda number: stable_hash(f"{key}#{number}"))


def shard_key(target: TargetSettings) -> str:
    """Return what decides: the node, so that all exporters of one node are read, and joined, by one collector."""
    return target.node or target.labels.get("node", "") or urlsplit(target.url).hostname or target.url


def stable_hash(text: str) -> int:
    """Return 64 bits that are the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
