"""Whether rows come from a simulation, and the words that say so."""

from __future__ import annotations

from analyzer.facts import says_simulated
from collector.protocols import StoreReader

SIMULATED = "simulated: these rows come from a simulation"


def is_simulated(store: StoreReader) -> bool:
    """Return whether a cluster of the store was ever said to be simulated."""
    return says_simulated(store.facts(names=["simulated"]))
