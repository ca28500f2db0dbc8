"""What hosts do: rows of `node` from node_exporter's counters and levels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from collector.cycle import Numbers
from collector.layout import FIELD_INDEX, HELD
from collector.schema import NODE
from collector.slots import NodeChannels

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_COLUMNS = np.array([FIELD_INDEX[name] for name in NODE.field_names])
_PLACE = {name: place for place, name in enumerate(NODE.field_names)}
_TOTAL, _PART = 0, 1


class NodeBoard:
    """Reads the channels of all hosts at once.

    A level is the total less the rest (memory: total less available). A ratio is the growth of a share, or of the
    total less the rest, over the growth of the total: of CPU seconds, whatever the number of CPUs.

    Args:
        nodes: the hosts, with all channels that they have by now.
        kinds: returns the kinds of channels.
    """

    def __init__(self, nodes: Sequence[NodeChannels], kinds: Callable[[Sequence[int]], Ints]) -> None:
        self.nodes = list(nodes)
        self.names = [node.name for node in nodes]
        self._rows = np.array([node.row for node in nodes], dtype=np.int64)
        width = len(NODE.field_names)
        found: list[tuple[int, int]] = []  # cell x (total, part), channel
        rests = set()
        for n, node in enumerate(nodes):
            for (name, role), channels in node.parts.items():
                cell = n * width + _PLACE[name]
                if role == "rest":
                    rests.add(cell)
                found += [(2 * cell + (_TOTAL if role == "total" else _PART), channel) for channel in channels]
        self._cells = np.array(sorted({place // 2 for place, _ in found}), dtype=np.int64)
        self._is_rest = np.array([cell in rests for cell in self._cells.tolist()], dtype=bool)
        self._places = np.array([place for place, _ in found], dtype=np.int64)
        self._channels = np.array([channel for _, channel in found], dtype=np.int64)
        self._held = kinds([channel for _, channel in found]) == HELD
        fields = [NODE.fields[cell % width] for cell in self._cells.tolist()]
        self._is_ratio = np.array([spec.unit == "ratio" for spec in fields], dtype=bool)

    def read(self, numbers: Numbers, interval_seconds: float) -> Floats:
        """Return hosts x fields of `node`; NaN where absent, and for ratios over a gap of more than two intervals."""
        matrix = numbers.take(self._rows)[:, _COLUMNS]
        if not len(self._cells):
            return matrix
        seconds = numbers.seconds[self._channels]
        growth = np.where(seconds <= 2 * interval_seconds + 1e-6, numbers.growth[self._channels], np.nan)
        values = np.where(self._held, growth, numbers.levels[self._channels])
        there = ~np.isnan(values)
        size = 2 * matrix.size
        sums = np.bincount(self._places, weights=np.where(there, values, 0.0), minlength=size).astype(np.float64)
        sums[np.bincount(self._places, weights=there, minlength=size) == 0] = np.nan
        total, part = sums[2 * self._cells + _TOTAL], sums[2 * self._cells + _PART]
        value = np.where(self._is_rest, total - part, part)
        with np.errstate(invalid="ignore", divide="ignore"):
            value = np.where(self._is_ratio, np.where(total > 0, value / total, np.nan), value)
        hosts, fields = np.divmod(self._cells, len(NODE.field_names))
        matrix[hosts, fields] = np.where(value < 0, np.nan, value)
        return matrix


def present_nodes(rows: Iterable[int], known: dict[int, NodeChannels]) -> list[NodeChannels]:
    """Return the hosts of some rows, by name."""
    return sorted((known[row] for row in set(rows)), key=lambda node: node.name)
