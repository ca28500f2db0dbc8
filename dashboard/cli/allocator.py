"""`trimtab analyze fragmentation --allocator FILE`: what a PyTorch memory snapshot says, what would help."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from analyzer.allocator import AllocatorMeasure, fragments, measure_allocator, much_releasable
from analyzer.allocator_replay import Advice, best_setting, compare_settings, steps_of
from analyzer.findings import SCHEMA_VERSION, plain
from collector.errors import InputRejectedError
from collector.importing.log import NotImportableError
from collector.importing.snapshot import MemorySnapshot, memory_snapshot
from collector.importing.text import TextFile
from dashboard.cli.output import note, print_table, say

_DEFAULTS = "the defaults"


@dataclass(frozen=True, slots=True)
class DeviceAllocator:
    """One card of a snapshot: the measure, what settings would do (none: its events were not recorded)."""

    device: int
    measure: AllocatorMeasure
    settings: tuple[Advice, ...]

    @property
    def best(self) -> Advice | None:
        """The setting that saves most; None: none saves a tenth, or nothing could be replayed."""
        return best_setting(self.settings) if self.settings else None


def read_memory_snapshot(path: Path) -> MemorySnapshot:
    """Read a snapshot's file, packed or not.

    Raises:
        InputRejectedError: it cannot be read, or is no snapshot.
    """
    try:
        return memory_snapshot(TextFile(path).content())
    except (OSError, ValueError, NotImportableError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputRejectedError(f"{path}: {said}") from None


def devices_of(snapshot: MemorySnapshot) -> list[DeviceAllocator]:
    """Measure each card of a snapshot, and replay its events under the settings that could help."""
    found = []
    for device in sorted({segment.device for segment in snapshot.segments}):
        own = [segment for segment in snapshot.segments if segment.device == device]
        trace = snapshot.traces[device] if device < len(snapshot.traces) else None
        steps = steps_of(own, trace if isinstance(trace, list) else ())
        replayed = compare_settings(steps) if isinstance(trace, list) and trace else ()
        found.append(DeviceAllocator(device, measure_allocator(own), replayed))
    return found


def document(snapshot: MemorySnapshot, devices: list[DeviceAllocator]) -> dict[str, Any]:
    """Return the document that `--json` prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "rejected_segments": [{"segment": number, "reason": why} for number, why in snapshot.rejected],
        "devices": [
            {
                "device": d.device,
                **{f"{name}_bytes": getattr(d.measure, name) for name in _BYTES},
                "segments": d.measure.segments,
                "free_blocks": d.measure.free_blocks,
                "external_fragmentation_ratio": d.measure.external_fragmentation,
                "internal_fragmentation_ratio": d.measure.internal_fragmentation,
                "stuck_ratio": d.measure.inactive_split_ratio,
                "unused_ratio": d.measure.unused_ratio,
                "settings": [plain(asdict(advice)) for advice in d.settings],
                "best_setting": None if d.best is None else d.best.setting,
            }
            for d in devices
        ],
    }


_BYTES = (
    "reserved",
    "allocated",
    "requested",
    "active",
    "releasable",
    "inactive_split",
    "largest_free_block",
    "internal_waste",
)


def print_devices(snapshot: MemorySnapshot, devices: list[DeviceAllocator]) -> None:
    """Print for people what each card's allocator holds."""
    for number, why in snapshot.rejected[:5]:
        note(f"segment {number} was left out: {why}")
    if not devices:
        say("no segment in it: the allocator holds nothing")
    for d in devices:
        m = d.measure
        rows = [
            ("reserved", _gib(m.reserved), f"{m.segments} segments"),
            ("of it in tensors", _gib(m.allocated), f"{_gib(m.internal_waste)} of that by rounding"),
            ("waits for a stream", _gib(m.active - m.allocated), ""),
            ("releasable", _gib(m.releasable), "in wholly free segments: torch.cuda.empty_cache() gives it back"),
            ("stuck", _gib(m.inactive_split), "free, between tensors that live"),
            ("largest free block", _gib(m.largest_free_block), f"of {m.free_blocks}"),
            ("external fragmentation", f"{m.external_fragmentation:.1%}", "1 - largest free block / free bytes"),
            ("internal fragmentation", f"{m.internal_fragmentation:.2%}", "1 - requested / allocated"),
        ]
        print_table(["memory", ">size", "what it is"], rows, title=f"card {d.device}")
        say(_verdict(d))
        if d.settings:
            print_table(
                ["PYTORCH_CUDA_ALLOC_CONF", ">reserved peak", ">reserved at the end", ">of that stuck"],
                [(a.setting or _DEFAULTS, _gib(a.peak_reserved), _gib(a.reserved), _gib(a.stuck)) for a in d.settings],
                title="its recorded events, replayed in a model of the allocator",
            )


def _verdict(d: DeviceAllocator) -> str:
    m = d.measure
    parts = []
    if fragments(m.inactive_split, m.reserved, m.allocated):
        parts.append("it fragments: much of what it holds is stuck")
    if much_releasable(m.releasable, m.reserved):
        parts.append("it could give memory back")
    text = "; ".join(parts) or "little of what it holds is stuck or releasable"
    if d.best is not None:
        saved = d.settings[0].peak_reserved - d.best.peak_reserved
        return f"{text}; {d.best.setting} would have saved {_gib(saved)} of the reserved peak"
    if d.settings:
        return f"{text}; no setting saves a tenth of the reserved peak"
    return f"{text}; no events were recorded, so no setting can be tried on them"


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
