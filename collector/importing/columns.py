"""Columns of nvidia-smi logs, and what cells mean."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass

from collector.schema import GPU

_MIB = 2.0**20
_PERCENT = 0.01
_MEGAHERTZ = 1e6

# nvidia-smi property (or dcgm field) -> (field of `gpu` rows, factor to the base unit).
GPU_COLUMNS: dict[str, tuple[str, float]] = {
    "utilization.gpu": ("busy_ratio", _PERCENT),
    "dcgm_fi_dev_gpu_util": ("busy_ratio", _PERCENT),
    "sm": ("busy_ratio", _PERCENT),
    "utilization.memory": ("memory_busy_ratio", _PERCENT),
    "mem": ("memory_busy_ratio", _PERCENT),
    "utilization.encoder": ("encoder_ratio", _PERCENT),
    "enc": ("encoder_ratio", _PERCENT),
    "utilization.decoder": ("decoder_ratio", _PERCENT),
    "dec": ("decoder_ratio", _PERCENT),
    "memory.used": ("memory_used_bytes", _MIB),
    "memory.free": ("memory_free_bytes", _MIB),
    "memory.reserved": ("memory_reserved_bytes", _MIB),
    "power.draw": ("power_watts", 1.0),
    "power.draw.average": ("power_watts", 1.0),
    "pwr": ("power_watts", 1.0),
    "temperature.gpu": ("temperature_celsius", 1.0),
    "gtemp": ("temperature_celsius", 1.0),
    "temperature.memory": ("memory_temperature_celsius", 1.0),
    "mtemp": ("memory_temperature_celsius", 1.0),
    "clocks.sm": ("sm_clock_hertz", _MEGAHERTZ),
    "clocks.current.sm": ("sm_clock_hertz", _MEGAHERTZ),
    "pclk": ("sm_clock_hertz", _MEGAHERTZ),
    "clocks.mem": ("memory_clock_hertz", _MEGAHERTZ),
    "clocks.current.memory": ("memory_clock_hertz", _MEGAHERTZ),
    "mclk": ("memory_clock_hertz", _MEGAHERTZ),
}

# nvidia-smi property -> (fact of a card, factor).
FACT_COLUMNS: dict[str, tuple[str, float | None]] = {
    "name": ("model", None),
    "gpu_name": ("model", None),
    "driver_version": ("driver_version", None),
    "pci.bus_id": ("pci_bus_id", None),
    "memory.total": ("memory_total_bytes", _MIB),
    "power.limit": ("power_limit_watts", 1.0),
    "pcie.link.gen.max": ("pcie_generation", 1.0),
    "pcie.link.width.max": ("pcie_lanes", 1.0),
}

# What a cell says instead of a number: absent (the tool does not tell), or an error of the device.
_NOT_TOLD = (
    "n/a|not found|not supported|not active|insufficient permissions|requested functionality has been deprecated"
)
_ABSENT = re.compile(rf"^(|-|\[?({_NOT_TOLD})\]?)$", re.IGNORECASE)
_DEVICE_ERROR = re.compile(r"err!|\[?(unknown error|gpu requires reset|gpu is lost)\]?", re.IGNORECASE)
_NUMBER = re.compile(r"^([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*(%|MiB|W|MHz|C|ms)?$")


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell read: a value, NaN with no reason (absent), or NaN with the reason why it is invalid."""

    value: float
    reason: str = ""
    device_error: bool = False


def read_cell(text: str, field: str, scale: float) -> Cell:
    """Read a number with or without its unit, in the range of a field of `gpu` rows."""
    stripped = text.strip()
    if _ABSENT.match(stripped):
        return Cell(math.nan)
    if is_device_error(stripped):
        return Cell(math.nan, f"the device answered {stripped!r}", device_error=True)
    match = _NUMBER.match(stripped)
    if match is None:
        return Cell(math.nan, f"expected a number, got {stripped[:40]!r}")
    value = float(match[1]) * scale
    spec = GPU.field(field)
    if not spec.low <= value <= spec.high:
        return Cell(math.nan, f"out of range: {stripped[:40]}")
    return Cell(value)


def fact_text(text: str, scale: float | None) -> str:
    """Return a fact's value in its base unit; empty where the cell tells none."""
    stripped = text.strip()
    if not told(stripped):
        return ""
    if scale is None:
        return stripped
    match = _NUMBER.match(stripped)
    value = math.nan if match is None else float(match[1]) * scale
    return f"{value:.0f}" if math.isfinite(value) else ""


def told(text: str) -> bool:
    """Whether a cell says something, neither absent nor an error of the device."""
    stripped = text.strip()
    return not _ABSENT.match(stripped) and not is_device_error(stripped)


def is_device_error(text: str) -> bool:
    """Whether a cell holds an error of the device instead of a value."""
    return _DEVICE_ERROR.match(text.strip()) is not None


def split_row(line: str) -> list[str] | None:
    """Return the cells of a CSV line; None where it is no text, or longer than a line can be."""
    if "\0" in line:
        return None
    try:
        return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]
    except csv.Error:
        return None


def column_name(heading: str) -> str:
    """Return the property of a heading such as ` power.draw [W]`."""
    return heading.strip().split(" [", maxsplit=1)[0].strip().lower()
