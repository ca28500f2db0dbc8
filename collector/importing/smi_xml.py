"""`nvidia-smi -q -x`: one document, or many one after another in a log (`-l`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from xml.etree.ElementTree import Element, ParseError  # what defusedxml returns and raises

import defusedxml.ElementTree
from defusedxml import DefusedXmlException

from collector.batch import Batch
from collector.gpu_models import gpu_model
from collector.importing.cards import CardRows, is_cut
from collector.importing.columns import MIG_MODE, Cell, card_name, read_cell
from collector.importing.log import LogPlace, Stamps, Tally
from collector.importing.slices import SliceRows, SliceSample, both, command
from collector.importing.text import TextFile
from collector.whole import whole

_MOST_CHARACTERS = 1 << 26  # of one document: 64 cards with thousands of processes stay far below
_END = "</nvidia_smi_log>"
_DATE = "%a %b %d %H:%M:%S %Y"
_MIB = 2.0**20

# Property of nvidia-smi -> where XML of some driver version has it; the first that is there counts.
_PATHS: dict[str, tuple[str, ...]] = {
    "name": ("product_name",),
    "pci.bus_id": ("pci/pci_bus_id",),
    MIG_MODE: ("mig_mode/current_mig",),
    "utilization.gpu": ("utilization/gpu_util",),
    "utilization.memory": ("utilization/memory_util",),
    "utilization.encoder": ("utilization/encoder_util",),
    "utilization.decoder": ("utilization/decoder_util",),
    "memory.total": ("fb_memory_usage/total",),
    "memory.used": ("fb_memory_usage/used",),
    "memory.free": ("fb_memory_usage/free",),
    "memory.reserved": ("fb_memory_usage/reserved",),
    "temperature.gpu": ("temperature/gpu_temp",),
    "temperature.memory": ("temperature/memory_temp",),
    "power.draw": (
        "gpu_power_readings/power_draw",
        "gpu_power_readings/average_power_draw",
        "power_readings/power_draw",
    ),
    "power.draw.instant": ("gpu_power_readings/instant_power_draw",),
    "power.limit": (
        "gpu_power_readings/current_power_limit",
        "gpu_power_readings/enforced_power_limit",
        "power_readings/enforced_power_limit",
        "power_readings/power_limit",
    ),
    "clocks.sm": ("clocks/sm_clock",),
    "clocks.mem": ("clocks/mem_clock",),
    "clocks.max.sm": ("max_clocks/sm_clock",),
    "clocks.max.mem": ("max_clocks/mem_clock",),
    "pcie.link.gen.max": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",),
    "pcie.link.gen.current": ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",),
    "pcie.link.width.max": ("pci/pci_gpu_link_info/link_widths/max_link_width",),
    "pcie.link.width.current": ("pci/pci_gpu_link_info/link_widths/current_link_width",),
    "pcie.replay_counter": ("pci/replay_counter",),
    "pcie.rx_util": ("pci/rx_util",),
    "pcie.tx_util": ("pci/tx_util",),
    "remapped_rows.correctable": ("remapped_rows/remapped_row_corr",),
    "remapped_rows.uncorrectable": ("remapped_rows/remapped_row_unc",),
} | {
    f"clocks_event_reasons.{name}": (
        f"clocks_event_reasons/clocks_event_reason_{name}",
        f"clocks_throttle_reasons/clocks_throttle_reason_{name}",
    )
    for name in (
        "gpu_idle",
        "sw_power_cap",
        "hw_slowdown",
        "sync_boost",
        "sw_thermal_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake_slowdown",
    )
}


@dataclass(frozen=True, slots=True)
class _Sink:
    """Where what is read goes."""

    place: LogPlace
    tally: Tally
    cards: CardRows
    slices: SliceRows


@dataclass(frozen=True, slots=True)
class _Instant:
    """A document's first line and its time."""

    line: int
    at: datetime


def read_xml(file: TextFile, place: LogPlace, tally: Tally) -> Iterator[Batch]:
    """Read all documents of a log: cards, MIG instances and processes. A torn document loses no other."""
    sink = _Sink(place, tally, CardRows(place, tally), SliceRows(place, tally))
    stamps = Stamps(place, tally)
    for line, text in _documents(file, tally):
        try:
            root = defusedxml.ElementTree.fromstring(text)
        except (ParseError, DefusedXmlException, ValueError) as error:
            tally.reject(f"expected a whole XML document: {_reason(error)}", line)
            continue
        at = _instant(root, stamps)
        if root.tag != "nvidia_smi_log" or at is None:
            tally.reject("expected <nvidia_smi_log> with a <timestamp> such as Tue Jul 14 09:00:44 2026", line)
            continue
        shared = {
            "driver_version": _text(root, "driver_version"),
            "cuda_version": _text(root, "cuda_version"),
        }
        for number, gpu in enumerate(root.iterfind("gpu")):
            _read_card(gpu, number, shared, _Instant(line, at), sink)
        if sink.cards.full or sink.slices.full:
            yield both(sink.cards.take(), sink.slices.take())
    yield both(sink.cards.take(), sink.slices.take())


def _documents(file: TextFile, tally: Tally) -> Iterator[tuple[int, str]]:
    """Yield (line where it begins, text) of each document."""
    lines: list[str] = []
    start, size = 0, 0
    for number, line in file.lines():
        if line.lstrip().startswith("<?xml") and lines:
            tally.reject("expected a whole XML document: its end is missing", start)
            lines, size = [], 0
        if not lines:
            if not line.strip():
                continue
            start = number
        lines.append(line)
        size += len(line)
        if size > _MOST_CHARACTERS:
            tally.reject(f"expected a document of at most {_MOST_CHARACTERS >> 20} Mi characters", start)
            lines, size = [], 0
        elif _END in line:
            yield start, "\n".join(lines)
            lines, size = [], 0
    if lines:
        tally.reject("expected a whole XML document: its end is missing", start)


def _read_card(gpu: Element, number: int, shared: dict[str, str], when: _Instant, sink: _Sink) -> None:
    place, tally, line, at = sink.place, sink.tally, when.line, when.at
    name = card_name(_text(gpu, "uuid"), str(number), place.node)
    cells = {column: _first(gpu, paths) for column, paths in _PATHS.items()} | shared | _ecc(gpu)
    if "/" in name:
        tally.note("cards are named by node and index: a document has no UUID")
    processes = gpu.findall("processes/process_info")
    cut = is_cut(cells)
    sink.cards.add(line, at, name, cells, held=not processes and not cut)
    if cut:
        _read_instances(gpu, cells["name"], name, when, sink.slices)
        return
    for process in processes:
        pid = _text(process, "pid")
        if not pid.isdecimal():
            tally.reject("expected the number of a process", line)
            continue
        memory = {"memory_used_bytes": read_cell(_text(process, "used_memory"), "memory_used_bytes", _MIB)}
        facts = {"kind": "mps"} if "M" in _text(process, "type").upper().split("+") else {}
        who = _text(process, "process_name")
        sink.slices.add(SliceSample(line, at, name, memory, pid=pid, workload=who, facts=facts))


def _read_instances(gpu: Element, model_name: str, card: str, when: _Instant, slices: SliceRows) -> None:
    """Add one slice a GPU instance: its compute instances show the same memory, and have SMs of their own."""
    model = gpu_model(model_name) if model_name else None
    instances: dict[str, list[Element]] = {}
    for device in gpu.iterfind("mig_devices/mig_device"):
        instances.setdefault(_text(device, "gpu_instance_id"), []).append(device)
    for instance, devices in instances.items():
        if not instance.isdecimal():
            continue
        names = {
            command(_text(process, "process_name"))
            for process in gpu.iterfind("processes/process_info")
            if _text(process, "gpu_instance_id") == instance
        }
        cells = {
            "memory_used_bytes": read_cell(_text(devices[0], "fb_memory_usage/used"), "memory_used_bytes", _MIB),
            "memory_quota_bytes": read_cell(_text(devices[0], "fb_memory_usage/total"), "memory_used_bytes", _MIB),
        }
        counts = [_text(device, "device_attributes/shared/multiprocessor_count") for device in devices]
        if model is not None and all(count.isdecimal() for count in counts):
            cells["sm_quota_ratio"] = Cell(min(sum(map(int, counts)) / model.sm_count, 1.0))
        workload = next(iter(names)) if len(names) == 1 else ""
        facts = {"kind": "mig"}
        slices.add(SliceSample(when.line, when.at, card, cells, slice=f"gi{instance}", workload=workload, facts=facts))


def _ecc(gpu: Element) -> dict[str, str]:
    """Return totals of volatile memory errors: those of the parts that are told, together."""
    found = {}
    for kind, column in (
        ("corr", "ecc.errors.corrected.volatile.total"),
        ("uncorr", "ecc.errors.uncorrected.volatile.total"),
    ):
        parts = [
            whole(part.text.strip())
            for part in gpu.iterfind("ecc_errors/volatile/*")
            if f"_{kind}" in part.tag and part.text and part.text.strip().isdecimal()
        ]
        if parts:
            found[column] = str(sum(parts))
    return found


def _instant(root: Element, stamps: Stamps) -> datetime | None:
    try:
        return stamps.aware(datetime.strptime(_text(root, "timestamp"), _DATE))  # noqa: DTZ007  the zone is the user's
    except ValueError:
        return None


def _first(element: Element, paths: tuple[str, ...]) -> str:
    return next((text for text in (_text(element, path) for path in paths) if text), "")


def _text(element: Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}" if isinstance(error, DefusedXmlException) else str(error)[:80]
