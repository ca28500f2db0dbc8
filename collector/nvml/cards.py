"""One card's own figures: use, memory, power, clocks, throttling, errors, links, and the facts about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

from collector.nvml.binding import Answer, answer_of, ask, first
from collector.nvml.body import Body, Labels

Handle = Any
_ALL_LINKS = 0xFFFFFFFF
_MIG_NAME = re.compile(r"\bMIG (?:\d+c\.)?(\S+)$")

ARCHITECTURES = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "ada",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "hopper",
    10: "blackwell",
    13: "rubin",
}

_Read = Callable[[Handle], Any]
# Name of the sample -> how it is read. Facts that are numbers stand here too.
_READINGS: dict[str, _Read] = {
    "nvml_power_milliwatts": pynvml.nvmlDeviceGetPowerUsage,
    "nvml_temperature_celsius": lambda h: pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU),
    "nvml_clock_sm_megahertz": lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM),
    "nvml_clock_memory_megahertz": lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_MEM),
    "nvml_encoder_percent": lambda h: pynvml.nvmlDeviceGetEncoderUtilization(h)[0],
    "nvml_decoder_percent": lambda h: pynvml.nvmlDeviceGetDecoderUtilization(h)[0],
    "nvml_ecc_corrected_total": lambda h: pynvml.nvmlDeviceGetTotalEccErrors(
        h, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC
    ),
    "nvml_ecc_uncorrected_total": lambda h: pynvml.nvmlDeviceGetTotalEccErrors(
        h, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    ),
    "nvml_pcie_replay_total": pynvml.nvmlDeviceGetPcieReplayCounter,
    "nvml_power_limit_milliwatts": pynvml.nvmlDeviceGetEnforcedPowerLimit,
    "nvml_max_clock_sm_megahertz": lambda h: pynvml.nvmlDeviceGetMaxClockInfo(h, pynvml.NVML_CLOCK_SM),
    "nvml_max_clock_memory_megahertz": lambda h: pynvml.nvmlDeviceGetMaxClockInfo(h, pynvml.NVML_CLOCK_MEM),
    "nvml_pcie_generation": pynvml.nvmlDeviceGetCurrPcieLinkGeneration,
    "nvml_pcie_generation_max": pynvml.nvmlDeviceGetMaxPcieLinkGeneration,
    "nvml_pcie_lanes": pynvml.nvmlDeviceGetCurrPcieLinkWidth,
    "nvml_pcie_lanes_max": pynvml.nvmlDeviceGetMaxPcieLinkWidth,
}


@dataclass(frozen=True, slots=True)
class _FieldId:
    """A field id with where its value goes.

    labels: what tells parts of one name apart.
    scope: which link; `_ALL_LINKS` is their sum.
    since: the first driver that has the number; before it, it may have meant something else.
    """

    name: str
    number: int
    labels: tuple[tuple[str, str], ...] = ()
    scope: int = 0
    since: int = 0


_LINK_ERRORS = "nvml_nvlink_errors_total"
# Read in one call. Of two of one name the first that answers counts.
_FIELDS = (
    _FieldId("nvml_energy_millijoules_total", pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION),
    _FieldId("nvml_memory_temperature_celsius", pynvml.NVML_FI_DEV_MEMORY_TEMP),
    _FieldId("nvml_pcie_tx_bytes_total", 197, since=555),
    _FieldId("nvml_pcie_rx_bytes_total", 198, since=555),
    _FieldId("nvml_nvlink_tx_kibibytes_total", pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, scope=_ALL_LINKS),
    _FieldId("nvml_nvlink_rx_kibibytes_total", pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, scope=_ALL_LINKS),
    _FieldId(_LINK_ERRORS, 38, (("kind", "crc_flit"),)),
    _FieldId(_LINK_ERRORS, 45, (("kind", "crc_data"),)),
    _FieldId(_LINK_ERRORS, 52, (("kind", "replay"),)),
    _FieldId(_LINK_ERRORS, 59, (("kind", "recovery"),)),
    _FieldId("nvml_throttle_power_nanoseconds_total", pynvml.NVML_FI_DEV_PERF_POLICY_POWER),
    _FieldId("nvml_throttle_sync_boost_nanoseconds_total", pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST),
    _FieldId("nvml_throttle_sw_thermal_nanoseconds_total", 269, since=580),
    _FieldId("nvml_throttle_hw_thermal_nanoseconds_total", 270, since=580),
    _FieldId("nvml_throttle_hw_thermal_nanoseconds_total", pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL),
    _FieldId("nvml_throttle_brake_nanoseconds_total", 271, since=580),
)
# Since Hopper (driver 525) the sums over all links are gone; each link is asked for.
_MOST_LINKS = 18
_OF_EACH_LINK = tuple(
    _FieldId(_LINK_ERRORS, number, (("kind", kind), ("link", str(link))), scope=link)
    for number, kind in ((161, "replay"), (162, "recovery"), (163, "crc"))
    for link in range(_MOST_LINKS)
)
# The reasons for low clocks that hold now, one name a field, and the counter of time that goes before it.
_REASONS = {
    "nvml_reasons_power": "nvml_throttle_power_nanoseconds_total",
    "nvml_reasons_thermal": "nvml_throttle_hw_thermal_nanoseconds_total",
    "nvml_reasons_brake": "nvml_throttle_brake_nanoseconds_total",
    "nvml_reasons_other": "nvml_throttle_sync_boost_nanoseconds_total",
}
_READ_REASONS = (
    pynvml.nvmlDeviceGetCurrentClocksEventReasons,
    pynvml.nvmlDeviceGetCurrentClocksThrottleReasons,  # its name before 535
)
_VALUE_OF_TYPE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


@dataclass(frozen=True, slots=True)
class Identity:
    """What names a card."""

    uuid: str
    labels: Labels  # of each of its samples
    handle: Handle


def identify(index: int) -> Answer[Identity]:
    """Return the card at an index of the driver's own order.

    Raises:
        LostCardError: the card is lost.
        DriverGoneError: the driver is.
    """
    handle = ask(pynvml.nvmlDeviceGetHandleByIndex, index)
    if handle.value is None:
        return Answer(None, handle.reason or "no_handle")
    uuid = ask(pynvml.nvmlDeviceGetUUID, handle.value)
    if uuid.value is None:
        return Answer(None, uuid.reason or "no_uuid")
    name = ask(pynvml.nvmlDeviceGetName, handle.value).value or ""
    return Answer(Identity(uuid.value, {"UUID": uuid.value, "gpu": str(index), "modelName": name}, handle.value))


def mig_is_on(handle: Handle) -> bool:
    """Say whether the card is cut into instances now (a change that waits for a reset does not count)."""
    mode = ask(pynvml.nvmlDeviceGetMigMode, handle).value
    return mode is not None and mode[0] == 1


def read_card(card: Identity, body: Body, facts: Labels, driver: int) -> None:
    """Add all figures of a card.

    Args:
        card: the card.
        body: takes the samples.
        facts: labels that tell what holds for the whole host, such as the driver's version.
        driver: the driver's branch, such as 570; 0 where it is not known.

    Raises:
        LostCardError: the card is lost.
        DriverGoneError: the driver is.
    """
    handle, labels = card.handle, card.labels
    body.add("nvml_device_info", {**labels, **_described(handle), **facts}, 1.0)
    mode: Answer[list[int]] = ask(pynvml.nvmlDeviceGetMigMode, handle)
    body.add("nvml_mig_mode", labels, mode.map(lambda modes: float(modes[0] == 1)))
    use: Answer[Any] = ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    body.add("nvml_utilization_gpu_percent", labels, use.map(lambda rates: rates.gpu))
    body.add("nvml_utilization_memory_percent", labels, use.map(lambda rates: rates.memory))
    read_memory(handle, labels, body, whole=True)
    for name, read in _READINGS.items():
        body.add(name, labels, ask(read, handle))
    _read_remapped_rows(handle, labels, body)
    found = _read_fields(handle, labels, body, [one for one in _FIELDS if driver >= one.since])
    if _LINK_ERRORS not in found and _has_links(handle):
        _read_fields(handle, labels, body, _OF_EACH_LINK)
    uncounted = [name for name, counter in _REASONS.items() if counter not in found]
    if uncounted:
        reasons = first(ask(read, handle) for read in _READ_REASONS)
        for name in uncounted:
            body.add(name, labels, reasons)


def read_pcie_samples(card: Identity, body: Body) -> None:
    """Add PCIe throughput as the driver samples it, for 20 ms a direction: what older cards have."""
    for direction, counter in (("tx", pynvml.NVML_PCIE_UTIL_TX_BYTES), ("rx", pynvml.NVML_PCIE_UTIL_RX_BYTES)):
        answer = ask(pynvml.nvmlDeviceGetPcieThroughput, card.handle, counter)
        body.add(f"nvml_pcie_{direction}_kilobytes_per_second", card.labels, answer)


def read_memory(handle: Handle, labels: Labels, body: Body, *, whole: bool) -> None:
    """Add memory of a card or an instance: in use without the driver's reserve where the driver tells them apart."""
    second: Answer[Any] = ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    older = second.value is None and not second.reason  # before 510 the reserve is not told apart
    memory: Answer[Any] = ask(pynvml.nvmlDeviceGetMemoryInfo, handle) if older else second
    body.add("nvml_memory_used_bytes", labels, memory.map(lambda m: m.used))
    body.add("nvml_memory_free_bytes", labels, memory.map(lambda m: m.free))
    body.add("nvml_memory_reserved_bytes", labels, second.map(lambda m: m.reserved))
    if whole and memory.value is not None:
        body.add("nvml_memory_total_bytes", labels, float(memory.value.total))


def mig_profile(name: str) -> str:
    """Return the profile of the GPU instance in a device's name: of `NVIDIA H200 MIG 1c.3g.71gb` it is `3g.71gb`."""
    match = _MIG_NAME.search(name)
    return match.group(1) if match else ""


def field_number(value: Any) -> Answer[float]:
    """Return one entry of a field query: each has its own error code and type.

    Raises:
        LostCardError: the card is lost.
        DriverGoneError: the driver is.
    """
    code = int(value.nvmlReturn)
    if code in (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_INSUFFICIENT_SIZE):
        return Answer()  # a driver that does not know the number
    if code != pynvml.NVML_SUCCESS:
        return answer_of(code)
    if not 0 <= value.valueType < len(_VALUE_OF_TYPE):
        return Answer(None, "unknown_value_type")
    return Answer(float(getattr(value.value, _VALUE_OF_TYPE[value.valueType])))


def _described(handle: Handle) -> dict[str, str]:
    """Return what does not change while a card is what it is."""
    said: dict[str, str] = {}
    architecture = ask(pynvml.nvmlDeviceGetArchitecture, handle).value
    if architecture in ARCHITECTURES:
        said["architecture"] = ARCHITECTURES[architecture]
    bus = ask(_bus_id, handle).value
    if bus:
        said["pci_bus_id"] = bus
    return said


def _bus_id(handle: Handle) -> str:
    said = pynvml.nvmlDeviceGetPciInfo_v3(handle).busId
    return said.decode() if isinstance(said, bytes) else str(said)  # versions of the binding differ


def _read_remapped_rows(handle: Handle, labels: Labels, body: Body) -> None:
    rows: Answer[Sequence[int]] = ask(pynvml.nvmlDeviceGetRemappedRows, handle)
    names = (
        "rows_remapped_corrected_total",
        "rows_remapped_uncorrected_total",
        "row_remap_pending",
        "row_remap_failure",
    )
    for place, name in enumerate(names):
        body.add(f"nvml_{name}", labels, rows.map(lambda numbers, place=place: numbers[place]))  # type: ignore[misc]


def _has_links(handle: Handle) -> bool:
    links: Answer[Any] = ask(pynvml.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT])
    return links.value is not None and (field_number(links.value[0]).value or 0) > 0


def _read_fields(handle: Handle, labels: Labels, body: Body, fields: Sequence[_FieldId]) -> set[str]:
    """Add what field ids tell; return the names that have a value, or an error in its place."""
    asked = [(one.number, one.scope) for one in fields]
    values: Answer[Any] = ask(pynvml.nvmlDeviceGetFieldValues, handle, asked)
    done: set[tuple[object, ...]] = set()
    for place, one in enumerate(fields):
        answer = Answer(None, values.reason) if values.value is None else field_number(values.value[place])
        key = (one.name, one.labels)
        if key in done or (answer.value is None and not answer.reason):
            continue
        if one.number == pynvml.NVML_FI_DEV_MEMORY_TEMP and answer.value == 0:
            continue  # a card without the sensor
        done.add(key)
        body.add(one.name, {**labels, **dict(one.labels)}, answer)
    return {str(name) for name, _ in done}
