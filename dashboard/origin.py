"""Whether rows come from a simulation, and the words that say so."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collector.protocols import StoreReader

SIMULATED = "simulated: these rows come from a simulation"


def is_simulated(store: StoreReader) -> bool:
    """Return whether a cluster of the store was ever said to be simulated."""
    from analyzer.facts import says_simulated  # noqa: PLC0415  pandas loads slowly

    return says_simulated(store.facts(names=["simulated"]))
