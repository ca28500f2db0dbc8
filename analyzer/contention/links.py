"""What the links of a card reach, from its facts or its model: without that nobody can say that one is full."""

from __future__ import annotations

import math

from analyzer.facts import hardware_facts, to_float
from analyzer.protocols import Partition
from collector.gpu_models import gpu_model

_LANE_BYTES = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}  # a second and direction, by PCIe generation
_LANES = 16.0  # of a card that does not tell


def link_peaks(partition: Partition) -> dict[str, dict[str, float]]:
    """Return the peak of PCIe and NVLink of each card, in bytes a second and direction; unknown ones are left out."""
    if partition.facts.empty:
        return {}
    names = ("model", "pcie_generation", "pcie_lanes", "nvlink_peak_bytes_per_second")
    told = {name: hardware_facts(partition.facts, "gpu", name) for name in names}
    peaks: dict[str, dict[str, float]] = {}
    for key in sorted({key for values in told.values() for key in values}):
        found = told["model"].get(key)
        model = gpu_model(found) if found else None
        generation = to_float(told["pcie_generation"].get(key))
        if math.isnan(generation) and model is not None:
            generation = model.pcie_generation
        lanes = to_float(told["pcie_lanes"].get(key))
        lane = _LANE_BYTES.get(int(generation), math.nan) if math.isfinite(generation) else math.nan
        nvlink = to_float(told["nvlink_peak_bytes_per_second"].get(key))
        if math.isnan(nvlink) and model is not None:
            nvlink = model.nvlink_bytes_per_second
        both = {"pcie": lane * (lanes if lanes > 0 else _LANES), "nvlink": nvlink}
        peaks[key[2]] = {name: value for name, value in both.items() if value > 0}
    return peaks
