"""Columns of logs of nvidia-smi and dcgmi, and what cells mean."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from collector.schema import GPU

_MIB = 2.0**20
_PERCENT = 0.01
_MEGAHERTZ = 1e6
_MOST_TOTAL = 1e14  # joules or errors; above lie marks of "blank" only

# Column (a property of nvidia-smi, a column of its monitors, a short or full name of dcgm) -> (field of `gpu` rows,
# factor to the base unit). Of several columns of a field that are there at once the first that has a value counts.
GPU_COLUMNS: dict[str, tuple[str, float]] = {
    "utilization.gpu": ("busy_ratio", _PERCENT),
    "dcgm_fi_dev_gpu_util": ("busy_ratio", _PERCENT),
    "gputl": ("busy_ratio", _PERCENT),
    "sm": ("busy_ratio", _PERCENT),
    "utilization.memory": ("memory_busy_ratio", _PERCENT),
    "mcutl": ("memory_busy_ratio", _PERCENT),
    "mem": ("memory_busy_ratio", _PERCENT),
    "gract": ("engine_active_ratio", 1.0),
    "smact": ("sm_active_ratio", 1.0),
    "smocc": ("sm_occupancy_ratio", 1.0),
    "tenso": ("tensor_active_ratio", 1.0),
    "drama": ("dram_active_ratio", 1.0),
    "fp64a": ("fp64_active_ratio", 1.0),
    "fp32a": ("fp32_active_ratio", 1.0),
    "fp16a": ("fp16_active_ratio", 1.0),
    "utilization.encoder": ("encoder_ratio", _PERCENT),
    "ecutl": ("encoder_ratio", _PERCENT),
    "enc": ("encoder_ratio", _PERCENT),
    "utilization.decoder": ("decoder_ratio", _PERCENT),
    "dcutl": ("decoder_ratio", _PERCENT),
    "dec": ("decoder_ratio", _PERCENT),
    "memory.used": ("memory_used_bytes", _MIB),
    "fbusd": ("memory_used_bytes", _MIB),
    "fb": ("memory_used_bytes", _MIB),
    "memory.free": ("memory_free_bytes", _MIB),
    "fbfre": ("memory_free_bytes", _MIB),
    "memory.reserved": ("memory_reserved_bytes", _MIB),
    "power.draw": ("power_watts", 1.0),
    "power.draw.average": ("power_watts", 1.0),
    "power.draw.instant": ("power_watts", 1.0),
    "power": ("power_watts", 1.0),
    "pwr": ("power_watts", 1.0),
    "temperature.gpu": ("temperature_celsius", 1.0),
    "tmptr": ("temperature_celsius", 1.0),
    "gtemp": ("temperature_celsius", 1.0),
    "temperature.memory": ("memory_temperature_celsius", 1.0),
    "mmtmp": ("memory_temperature_celsius", 1.0),
    "mtemp": ("memory_temperature_celsius", 1.0),
    "clocks.sm": ("sm_clock_hertz", _MEGAHERTZ),
    "clocks.current.sm": ("sm_clock_hertz", _MEGAHERTZ),
    "smclk": ("sm_clock_hertz", _MEGAHERTZ),
    "pclk": ("sm_clock_hertz", _MEGAHERTZ),
    "clocks.mem": ("memory_clock_hertz", _MEGAHERTZ),
    "clocks.current.memory": ("memory_clock_hertz", _MEGAHERTZ),
    "mmclk": ("memory_clock_hertz", _MEGAHERTZ),
    "mclk": ("memory_clock_hertz", _MEGAHERTZ),
    "pcirx": ("pcie_rx_bytes_per_second", 1.0),
    "pcitx": ("pcie_tx_bytes_per_second", 1.0),
    "pcie.rx_util": ("pcie_rx_bytes_per_second", 1e3),
    "pcie.tx_util": ("pcie_tx_bytes_per_second", 1e3),
    "rxpci": ("pcie_rx_bytes_per_second", 1e6),
    "txpci": ("pcie_tx_bytes_per_second", 1e6),
    "nvlrx": ("nvlink_rx_bytes_per_second", 1.0),
    "nvltx": ("nvlink_tx_bytes_per_second", 1.0),
}

# Column of a total that only grows -> (field, factor): rows carry its growth.
TOTAL_COLUMNS: dict[str, tuple[str, float]] = {
    "totec": ("energy_joules", 1e-3),
    "ecc.errors.corrected.volatile.total": ("ecc_corrected_count", 1.0),
    "sbecc": ("ecc_corrected_count", 1.0),
    "esvtl": ("ecc_corrected_count", 1.0),
    "ecc.errors.uncorrected.volatile.total": ("ecc_uncorrected_count", 1.0),
    "dbecc": ("ecc_uncorrected_count", 1.0),
    "edvtl": ("ecc_uncorrected_count", 1.0),
    "remapped_rows.correctable": ("rows_remapped_corrected_count", 1.0),
    "remapped_rows.uncorrectable": ("rows_remapped_uncorrected_count", 1.0),
    "pcie.replay_counter": ("pcie_replay_count", 1.0),
}

# Column with the mask of the reasons why clocks are low; and columns that tell one reason each -> its bit.
REASON_MASKS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_REASON_BITS = {
    "gpu_idle": 0x1,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
REASON_FLAGS: dict[str, int] = {
    f"clocks_{word}_reasons.{name}": bit for word in ("event", "throttle") for name, bit in _REASON_BITS.items()
}

# Column -> (fact of a card, factor; None: a text).
FACT_COLUMNS: dict[str, tuple[str, float | None]] = {
    "name": ("model", None),
    "gpu_name": ("model", None),
    "driver_version": ("driver_version", None),
    "cuda_version": ("cuda_version", None),
    "pci.bus_id": ("pci_bus_id", None),
    "gpu_bus_id": ("pci_bus_id", None),
    "memory.total": ("memory_total_bytes", _MIB),
    "fbttl": ("memory_total_bytes", _MIB),
    "enforced.power.limit": ("power_limit_watts", 1.0),
    "power.limit": ("power_limit_watts", 1.0),
    "pmlmt": ("power_limit_watts", 1.0),
    "clocks.max.sm": ("max_sm_clock_hertz", _MEGAHERTZ),
    "clocks.max.memory": ("max_memory_clock_hertz", _MEGAHERTZ),
    "clocks.max.mem": ("max_memory_clock_hertz", _MEGAHERTZ),
    "pcie.link.gen.max": ("pcie_generation_max", 1.0),
    "pcie.link.gen.current": ("pcie_generation", 1.0),
    "pcie.link.gen.gpucurrent": ("pcie_generation", 1.0),
    "pcie.link.width.max": ("pcie_lanes_max", 1.0),
    "pcie.link.width.current": ("pcie_lanes", 1.0),
}

MIG_MODE = "mig.mode.current"
IDENTITY_COLUMNS = ("uuid", "gpu_uuid")
INDEX_COLUMNS = ("index", "gpu")
STAMP = "timestamp"
PROCESS_COLUMNS = ("pid", "process_name", "used_gpu_memory", "used_memory", "gpu_utilization", "max_memory_usage")
KNOWN_COLUMNS = frozenset(
    (
        *GPU_COLUMNS,
        *TOTAL_COLUMNS,
        *REASON_MASKS,
        *REASON_FLAGS,
        *FACT_COLUMNS,
        MIG_MODE,
        *IDENTITY_COLUMNS,
        *INDEX_COLUMNS,
        STAMP,
        *PROCESS_COLUMNS,
    )
)

# What a cell says instead of a number: absent (the tool does not tell), or an error of the device.
_NOT_TOLD = (
    "n/a|not found|not supported|not active|insufficient permissions|requested functionality has been deprecated"
)
_ABSENT = re.compile(rf"^(|-|\[?({_NOT_TOLD})\]?)$", re.IGNORECASE)
_DEVICE_ERROR = re.compile(r"err!|\[?(unknown error|gpu requires reset|gpu is lost)\]?", re.IGNORECASE)
_NUMBER = re.compile(r"^([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*(%|MiB|MB|W|MHz|C|ms|us|KB/s|MB/s|x)?$")
_MASK = re.compile(r"^0x[0-9a-fA-F]{1,16}$")
_FLAGS = {"active": True, "not active": False}
_HEADING = re.compile(r"^[A-Za-z_][\w.\-/ ]*( \[[^\]]+\])?$")


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell read: a value, NaN with no reason (absent), or NaN with the reason why it is invalid."""

    value: float
    reason: str = ""
    device_error: bool = False


@lru_cache(maxsize=1 << 16)  # logs say the same again and again
def read_cell(text: str, field: str, scale: float, *, total: bool = False) -> Cell:
    """Read a number with or without its unit, in the range of a field of `gpu` rows; of a total that only grows, any.

    A ratio of a little more than 1 is 1: counters and clocks are read at slightly different instants. What is written
    in percent is 0 to 100.
    """
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
    low, high = (0.0, _MOST_TOTAL) if total else (spec.low, 1.0 if scale == _PERCENT else spec.high)
    if not low <= value <= high:
        return Cell(math.nan, f"out of range: {stripped[:40]}")
    return Cell(min(value, 1.0) if spec.unit == "ratio" else value)


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


def reason_mask(cells: Mapping[str, str]) -> tuple[int | None, str]:
    """Return the bits of why clocks are low (None where no column tells them), and why a cell of them is invalid."""
    for name in REASON_MASKS:
        text = cells.get(name, "").strip()
        if _MASK.match(text):
            return int(text, 16), ""
        if told(text):
            return None, f"expected a mask such as 0x0000000000000004, got {text[:40]!r}"
    mask: int | None = None
    for name, bit in REASON_FLAGS.items():
        flag = _FLAGS.get(cells.get(name, "").strip().lower())
        if flag is not None:
            mask = (mask or 0) | (bit if flag else 0)
    return mask, ""


def throttles(mask: int) -> dict[str, float]:
    """Return the throttle fields of a mask of reasons: 1 where clocks are lowered by it at this instant."""
    brake = bool(mask & 0x80) or (bool(mask & 0x8) and not mask & 0x1)
    return {
        "throttle_power_ratio": float(bool(mask & 0x4)),
        "throttle_thermal_ratio": float(bool(mask & 0x60)),
        "throttle_brake_ratio": float(brake),
        "throttle_other_ratio": float(bool(mask & 0x10)),
    }


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


def is_heading(cells: Sequence[str], before: Sequence[str] = ()) -> bool:
    """Whether the cells of a line are names of columns.

    Args:
        cells: of the line.
        before: columns so far. A torn line of texts must not pass for other ones: several names of it must be known.
    """
    if not all(_HEADING.match(cell) or not cell for cell in cells):
        return False
    names = [column_name(cell) for cell in cells]
    known = sum(name in KNOWN_COLUMNS for name in names)
    if before:
        return names == list(before) or (known >= 2 and 3 * known >= len(names))
    return known > 0


def card_name(uuid: str, index: str, node: str) -> str:
    """Name a card by its UUID, else by its number; empty where neither is told."""
    if told(uuid):
        return uuid.strip()
    return f"{node}/{index.strip()}" if index.strip().isdecimal() else ""
