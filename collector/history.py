"""Rows that were imported after the fact: they are the past of a card, and no source that could fall silent."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

IMPORTED = "imported"  # fact of a card: the instant until which a file's rows of its node go

CardKey = tuple[str, str, str]  # cluster, node, gpu


def imported_until(facts: pd.DataFrame) -> Mapping[CardKey, pd.Timestamp]:
    """Return the instant of each imported card until which its newest file goes.

    Args:
        facts: as `Store.facts` returns them.
    """
    told = facts[(facts["name"] == IMPORTED) & (facts["kind"] == "gpu")]
    found: dict[CardKey, pd.Timestamp] = {}
    for cluster, node, gpu, value in told[["cluster", "node", "gpu", "value"]].itertuples(index=False, name=None):
        until = pd.Timestamp(value)
        key = (str(cluster), str(node), str(gpu))
        found[key] = max(found.get(key, until), until)
    return found
