"""What exporters of Kubernetes' state say, kept target by target and read again only where it changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from collector.exposition import Exposition, Series
from collector.intake import Live
from collector.kube import KubeState, read_kube_state


@dataclass(slots=True)
class KubeTexts:
    """The last body of each target that speaks of Kubernetes, with the samples that do."""

    _parts: dict[str, tuple[Exposition, list[tuple[str, Series, float]]]] = field(default_factory=dict)

    def read(self, live: Sequence[Live], raw: NDArray[np.float64], came: NDArray[np.bool_]) -> bool:
        """Keep what is said of Kubernetes; say whether any of it is new.

        Args:
            live: targets with samples in this cycle.
            raw: values of all targets in the order of their layouts.
            came: which of them are there.
        """
        changed = False
        for one in live:
            if one.scrape.resting:
                continue
            if not one.layout.kube:
                changed |= self._parts.pop(one.state.key, None) is not None
                continue
            known = self._parts.get(one.state.key)
            if known is None or (known[0] is not one.body and not _same_body(known[0], one.body)):
                samples = [
                    (name, one.state.series(n), float(raw[one.offset + n]))
                    for n, name in one.layout.kube
                    if came[one.offset + n]
                ]
                self._parts[one.state.key] = (one.body, samples)
                changed = True
        return changed

    def states(self) -> list[KubeState]:
        """Return the state that all targets tell together; none where no target tells of it."""
        return [read_kube_state(sample for _, part in self._parts.values() for sample in part)] if self._parts else []


def _same_body(one: Exposition, other: Exposition) -> bool:
    return one.series == other.series and np.array_equal(one.values, other.values, equal_nan=True)
