"""Cards by names that people use: `node-a GPU 2` in place of a UUID, also inside sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pandas as pd

from analyzer.facts import hardware_facts
from dashboard.cli.output import clean as printable

CardNames = Mapping[str, str]  # UUID -> name

_TWICE = re.compile(r"(?<![\w.-])([\w.-]+) (GPU \w+) (?:(?:on|of) \1(?![\w-]|\.\w)|\(\1\))")


def card_names(facts: pd.DataFrame) -> dict[str, str]:
    """Return UUID -> `node GPU index` of every card whose exporter told its index."""
    return {
        gpu: printable(f"{node} GPU {index}")
        for (_, node, gpu, _), index in hardware_facts(facts, "gpu", "ordinal").items()
    }


def named(text: str, names: CardNames) -> str:
    """Return a sentence with the UUIDs of known cards replaced by their names.

    The names tell the node: `X on node-a`, `X of node-a` and `X (node-a)` say it once.
    """
    if not names:
        return text
    pattern = re.compile("|".join(re.escape(gpu) for gpu in sorted(names, key=len, reverse=True)))
    told = pattern.sub(lambda match: names[match[0]], text)
    return _TWICE.sub(r"\1 \2", told)
