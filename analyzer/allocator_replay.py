"""A model of PyTorch's caching allocator: replay of what a process asked for, under this or that setting.

Rules (c10/cuda/CUDACachingAllocator): sizes are rounded to 512 B; up to 1 MiB comes from 2 MiB segments of a pool of
its own, below 10 MiB from 20 MiB segments, the rest from segments rounded to 2 MiB; best fit (smallest, then lowest
address); a rest is split off from 512 B on (small) or above 1 MiB (large); neighbours that are free merge. When the
driver has no more, wholly free segments go back and it tries again. `max_split_size` leaves larger blocks whole and
serves small requests from none of them; expandable segments are one growing segment a pool, mapped in pages.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analyzer.allocator import MIB, AllocatorMeasure, measure_allocator
from collector.importing.segments import Block, BlockState, Segment, whole

_ROUND = 512
_SMALL = MIB
_SMALL_SEGMENT = 2 * MIB
_LARGE_FROM = 10 * MIB
_LARGE_SEGMENT = 20 * MIB
_LARGE_ROUND = 2 * MIB
_GAIN = 0.1  # part of the reserved peak that a setting must save to be named


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """What `PYTORCH_CUDA_ALLOC_CONF` can set, as far as it is modelled."""

    max_split_bytes: float = math.inf
    expandable: bool = False

    @property
    def text(self) -> str:
        """The environment variable's value; empty: the defaults."""
        if self.expandable:
            return "expandable_segments:True"
        return "" if math.isinf(self.max_split_bytes) else f"max_split_size_mb:{self.max_split_bytes / MIB:.0f}"


@dataclass(slots=True, eq=False)
class _Cell:
    """A block with its neighbours in the same segment."""

    address: int
    size: int
    small: bool
    requested: int = 0
    used: bool = False
    before: _Cell | None = None
    after: _Cell | None = None


@dataclass(slots=True)
class CachingAllocator:
    """An allocator on a card of `capacity` bytes that nobody else uses."""

    capacity: float = math.inf
    settings: AllocatorSettings = field(default_factory=AllocatorSettings)
    reserved: int = 0
    allocated: int = 0
    peak_reserved: int = 0
    peak_allocated: int = 0
    segments_returned: int = 0
    out_of_memory: bool = False
    _free: dict[bool, list[tuple[int, int]]] = field(default_factory=lambda: {True: [], False: []})
    _at: dict[int, _Cell] = field(default_factory=dict)
    _heads: dict[int, _Cell] = field(default_factory=dict)  # address -> first block of a segment
    _named: dict[object, _Cell] = field(default_factory=dict)
    _next_address: int = 0
    _tails: dict[bool, _Cell] = field(default_factory=dict)  # of the growing segments

    def malloc(self, name: object, size: int) -> bool:
        """Allocate under a name; False: out of memory."""
        rounded = max(-(-size // _ROUND) * _ROUND, _ROUND)
        small = rounded <= _SMALL
        cell = self._best_fit(rounded, small)
        if cell is None:
            cell = self._more(rounded, small)
        if cell is None:
            self.out_of_memory = True
            return False
        self._split(cell, rounded)
        cell.used, cell.requested = True, size
        self.allocated += cell.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self._named[name] = cell
        return True

    def free(self, name: object) -> None:
        """Free what was allocated under a name; an unknown name was never granted, and nothing happens."""
        cell = self._named.pop(name, None)
        if cell is None:
            return
        self.allocated -= cell.size
        cell.used, cell.requested = False, 0
        for other in (cell.before, cell.after):
            if other is not None and not other.used:
                self._take(other)
                cell = self._merge(*((other, cell) if other is cell.before else (cell, other)))
        self._put(cell)

    def empty_cache(self) -> int:
        """Return the wholly free segments to the driver; the bytes that went back."""
        before = self.reserved
        for head in list(self._heads.values()):
            if head.used or head.after is not None:
                continue
            self._take(head)
            del self._heads[head.address], self._at[head.address]
            if self._tails.get(head.small) is head:
                del self._tails[head.small]
            self.reserved -= head.size
            self.segments_returned += 1
        return before - self.reserved

    def segments(self) -> list[Segment]:
        """Return what it holds, as a snapshot would."""
        found = []
        for address in sorted(self._heads):
            blocks: list[Block] = []
            cell: _Cell | None = self._heads[address]
            small = self._heads[address].small
            while cell is not None:
                state = BlockState.USED if cell.used else BlockState.FREE
                blocks.append(Block(cell.size, cell.requested, state, cell.address))
                cell = cell.after
            found.append(Segment(0, sum(b.size for b in blocks), tuple(blocks), small, self.settings.expandable))
        return found

    def measure(self) -> AllocatorMeasure:
        """Measure what it holds now."""
        return measure_allocator(self.segments())

    def _best_fit(self, size: int, small: bool) -> _Cell | None:
        pool = self._free[small]
        place = bisect.bisect_left(pool, (size, -1))
        if place == len(pool):
            return None
        found, address = pool[place]
        limit = self.settings.max_split_bytes
        if not self.settings.expandable and not small:
            if size < limit <= found:
                return None
            if size >= limit and found >= size + _LARGE_SEGMENT:
                return None
        cell = self._at[address]
        self._take(cell)
        return cell

    def _more(self, size: int, small: bool) -> _Cell | None:
        if self.settings.expandable:
            return self._grown(size, small)
        wanted = _SMALL_SEGMENT if small else _LARGE_SEGMENT
        if size >= _LARGE_FROM:
            wanted = -(-size // _LARGE_ROUND) * _LARGE_ROUND
        if not self._reserve(wanted):
            return None
        cell = _Cell(self._next_address, wanted, small)
        self._next_address += wanted
        self._heads[cell.address] = self._at[cell.address] = cell
        return cell

    def _grown(self, size: int, small: bool) -> _Cell | None:
        page = _SMALL_SEGMENT if small else _LARGE_SEGMENT
        wanted = self._wanted(size, small, page)
        if self.reserved + wanted > self.capacity:
            self.empty_cache()
            wanted = self._wanted(size, small, page)  # the free end of the segment may have gone back as well
        if not self._reserve(wanted):
            return None
        tail = self._tails.get(small)
        if tail is not None and not tail.used:
            self._take(tail)
            tail.size += wanted
            return tail
        address = (1 << 60) * (1 + small) if tail is None else tail.address + tail.size
        cell = _Cell(address, wanted, small, before=tail)
        if tail is None:
            self._heads[address] = cell
        else:
            tail.after = cell
        self._at[address] = self._tails[small] = cell
        return cell

    def _wanted(self, size: int, small: bool, page: int) -> int:
        """Return what a growing segment must be longer by, in whole pages, to end with `size` free bytes."""
        tail = self._tails.get(small)
        room = tail.size if tail is not None and not tail.used else 0
        return -(-(size - room) // page) * page

    def _reserve(self, size: int) -> bool:
        if self.reserved + size > self.capacity:
            self.empty_cache()
        if self.reserved + size > self.capacity:
            return False
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return True

    def _split(self, cell: _Cell, size: int) -> None:
        rest = cell.size - size
        large = rest > _SMALL and size < self.settings.max_split_bytes
        if not (rest >= _ROUND if cell.small or self.settings.expandable else large):
            return
        other = _Cell(cell.address + size, rest, cell.small, before=cell, after=cell.after)
        if cell.after is not None:
            cell.after.before = other
        cell.after, cell.size = other, size
        if self._tails.get(cell.small) is cell:
            self._tails[cell.small] = other
        self._at[other.address] = other
        self._put(other)

    def _merge(self, first: _Cell, second: _Cell) -> _Cell:
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        del self._at[second.address]
        if self._tails.get(second.small) is second:
            self._tails[second.small] = first
        return first

    def _put(self, cell: _Cell) -> None:
        bisect.insort(self._free[cell.small], (cell.size, cell.address))

    def _take(self, cell: _Cell) -> None:
        pool = self._free[cell.small]
        place = bisect.bisect_left(pool, (cell.size, cell.address))
        if place < len(pool) and pool[place] == (cell.size, cell.address):
            del pool[place]


@dataclass(frozen=True, slots=True)
class Ask:
    """One step of a process: it asks for `size` bytes under a name, or (size 0) frees them."""

    name: object
    size: int


def steps_of(segments: Sequence[Segment], trace: Iterable[Any]) -> list[Ask]:
    """Return what a process did, of the events of one device; what lived before they begin comes first.

    Events whose kind, address or size cannot be read are left out.
    """
    events = []
    for event in trace:
        known = isinstance(event, Mapping) and whole(event.get("size")) and isinstance(event.get("addr"), int)
        if known and event.get("action") in ("alloc", "free_completed"):
            events.append((event["action"] == "alloc", event["addr"], event["size"]))
    begun: set[int] = set()
    before: dict[int, int] = {}
    for is_alloc, address, size in events:
        if not is_alloc and address not in begun:
            before.setdefault(address, size)
        begun.add(address)
    for segment in segments:
        for block in segment.blocks:
            if block.state is not BlockState.FREE and block.address not in begun:
                before[block.address] = block.requested or block.size
    steps = [Ask((address, 0), size) for address, size in sorted(before.items())]
    names = {address: (address, 0) for address in before}
    for number, (is_alloc, address, size) in enumerate(events, 1):
        if is_alloc:
            names[address] = (address, number)
            steps.append(Ask(names[address], max(size, 1)))
        elif address in names:
            steps.append(Ask(names.pop(address), 0))
    return steps


def replay(steps: Iterable[Ask], settings: AllocatorSettings | None = None) -> CachingAllocator:
    """Run the steps on a card without limit and return the allocator as it ends."""
    allocator = CachingAllocator(settings=settings or AllocatorSettings())
    for step in steps:
        if step.size:
            allocator.malloc(step.name, step.size)
        else:
            allocator.free(step.name)
    return allocator


@dataclass(frozen=True, slots=True)
class Advice:
    """What a setting would do, replayed: bytes reserved and of those stuck at the end, and the reserved peak."""

    setting: str  # of PYTORCH_CUDA_ALLOC_CONF; empty: the defaults
    peak_reserved: int
    reserved: int
    stuck: int


def compare_settings(steps: Sequence[Ask]) -> tuple[Advice, ...]:
    """Replay the steps under the defaults and under settings that help against fragments, the defaults first."""
    candidates = [
        AllocatorSettings(),
        AllocatorSettings(expandable=True),
        *(AllocatorSettings(max_split_bytes=size * MIB) for size in (64, 128, 256)),
    ]
    found = []
    for settings in candidates:
        end = replay(steps, settings)
        measured = end.measure()
        found.append(Advice(settings.text, end.peak_reserved, end.reserved, measured.inactive_split))
    return tuple(found)


def best_setting(advice: Sequence[Advice]) -> Advice | None:
    """Return the setting with the lowest reserved peak; None: none saves a tenth of that of the defaults."""
    usual = advice[0]
    best = min(advice[1:], key=lambda a: (a.peak_reserved, a.stuck), default=usual)
    return best if best.peak_reserved <= (1 - _GAIN) * usual.peak_reserved else None
