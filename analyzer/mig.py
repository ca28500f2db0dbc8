"""MIG placement: what still fits on a card that is cut, what is stranded, what moving instances would buy.

Everything is exact: a board has at most 12 memory slices and 7 compute slices, so all placements are enumerated.
Measures (F free memory slices, C free compute slices, U_p instances of profile p that exist):
placeable n_p is the most copies of p that can still be created; by capacity min(F // size, C // compute, most - U_p);
placement fragmentation 1 - n_p / by capacity; unusable(p) the free memory slices that no feasible start of p covers.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to cut: `compute` compute slices, `size` memory slices from one of `starts`, at most `most` at once."""

    name: str
    compute: int
    size: int
    starts: tuple[int, ...]
    most: int
    sms: int | None  # None: nobody has printed it

    @property
    def plain(self) -> bool:
        """True without extra engines (`+me`, `+gfx`, `-me`): these shadow a plain profile and are not counted twice."""
        return not re.search(r"gb[+-]", self.name)


@dataclass(frozen=True, slots=True, eq=False)  # one object a board: compared and hashed by identity
class Board:
    """A board and its profiles; `placements` is `published`, `assumed` or `unknown` (then there are no profiles)."""

    name: str
    match: str
    placements: str
    memory_slices: int
    compute_slices: int
    sms: int | None
    profiles: Mapping[str, Profile]
    by_name_only: bool = False  # its profiles are named as a sister's: they alone never tell it

    def sm_share(self, profile: str) -> tuple[float, bool]:
        """Return the share of the card's SMs that an instance of `profile` has, and whether it is exact.

        Raises:
            KeyError: the board has no such profile.
        """
        found = self.profiles[profile]
        if found.sms is not None and self.sms is not None:
            return found.sms / self.sms, True
        return found.compute / self.compute_slices, False


@dataclass(frozen=True, slots=True, order=True)
class Instance:
    """A GPU instance: its profile and the memory slice that it begins at."""

    profile: str
    start: int


@dataclass(frozen=True, slots=True)
class ProfileMeasure:
    """What one profile can still get on a card."""

    feasible_starts: tuple[int, ...]
    placeable: int
    by_capacity: int
    fragmentation: float
    unusable_memory_slices: int


@dataclass(frozen=True, slots=True)
class MigMeasure:
    """What a cut card can still give. `mix_*` weigh profiles by demand; a ratio without free slices is None."""

    free_memory_slices: int
    free_compute_slices: int
    per_profile: Mapping[str, ProfileMeasure]
    capability: int
    largest_placeable: str | None
    stranded_memory_slices: int
    stranded_compute_slices: int
    mix_unusable_memory_slices: float
    mix_unusable_ratio: float | None
    mix_placement_fragmentation: float


@cache
def boards() -> Mapping[str, Board]:
    """Return all boards of the data table, by name."""
    data = tomllib.loads(resources.files("analyzer").joinpath("data/mig_boards.toml").read_text("utf-8"))
    found = {}
    for name, entry in data["board"].items():
        layout = data["layout"].get(entry.get("layout"), {"memory_slices": 0, "compute_slices": 0, "shapes": {}})
        profiles = {}
        for shape, text in entry.get("names", {}).items():
            cut = layout["shapes"][shape]
            sms = entry["profile_sms"].get(shape)
            profiles[text] = Profile(text, cut["compute"], cut["size"], tuple(cut["starts"]), cut["most"], sms)
        found[name] = Board(
            name=name,
            match=entry["match"],
            placements=entry["placements"],
            memory_slices=layout["memory_slices"],
            compute_slices=layout["compute_slices"],
            sms=entry.get("sms"),
            profiles=profiles,
            by_name_only=entry.get("by_name_only", False),
        )
    return found


def board_of(model: str | None, profiles: Iterable[str] = ()) -> Board | None:
    """Return the board of a card by its model name, else the only one that knows all `profiles`; None: cannot tell."""
    wanted = set(profiles)
    if model:
        named = [b for b in boards().values() if re.search(b.match, model, re.IGNORECASE)]
        fitting = [b for b in named if wanted <= b.profiles.keys()]
        if len(named) == 1 or len(fitting) == 1:
            return (fitting or named)[0]
    fitting = [b for b in boards().values() if wanted and wanted <= b.profiles.keys() and not b.by_name_only]
    return fitting[0] if len(fitting) == 1 else None


def _bits(start: int, size: int) -> int:
    return ((1 << size) - 1) << start


def _used(board: Board, instances: Iterable[Instance]) -> tuple[int, int, Counter[str]]:
    mask = compute = 0
    for instance in instances:
        profile = board.profiles[instance.profile]
        mask |= _bits(instance.start, profile.size)
        compute += profile.compute
    return mask, compute, Counter(instance.profile for instance in instances)


def layout_faults(board: Board, instances: Sequence[Instance]) -> list[str]:
    """Return why a layout cannot exist, one reason a fault; empty when it can."""
    faults = []
    mask = compute = 0
    for instance in instances:
        profile = board.profiles.get(instance.profile)
        if profile is None:
            faults.append(f"{instance.profile} is not a profile of {board.name}")
            continue
        if instance.start not in profile.starts:
            faults.append(f"{instance.profile}@{instance.start} not an allowed start")
        bits = _bits(instance.start, profile.size)
        if mask & bits:
            faults.append(f"{instance.profile}@{instance.start} overlaps another instance")
        mask |= bits
        compute += profile.compute
    for name, count in sorted(Counter(i.profile for i in instances if i.profile in board.profiles).items()):
        if count > board.profiles[name].most:
            faults.append(f"{count} x {name}, at most {board.profiles[name].most} may exist")
    if compute > board.compute_slices:
        faults.append(f"{compute} compute slices asked, the board has {board.compute_slices}")
    return faults


def measure(board: Board, instances: Sequence[Instance], mix: Mapping[str, float] | None = None) -> MigMeasure:
    """Measure what a cut card can still give.

    Args:
        board: a board whose placements are known.
        instances: the GPU instances that exist.
        mix: demand by profile, weights that sum to 1; profiles the board lacks are an error.

    Raises:
        ValueError: the layout cannot exist, or the board's placements are unknown.
        KeyError: `mix` names a profile that the board does not have.
    """
    _check(board, instances)
    mix = mix or {}
    mask, compute, counts = _used(board, instances)
    free_memory = board.memory_slices - mask.bit_count()
    free_compute = board.compute_slices - compute
    measured = {
        name: _measure_profile(board, board.profiles[name], mask, free_compute, counts[name])
        for name in board.profiles
        if board.profiles[name].plain or name in mix
    }
    for name in mix:
        if name not in board.profiles:
            raise KeyError(f"expected a profile of {board.name}, got {name!r}; it has {', '.join(board.profiles)}")
    plain = {name: m for name, m in measured.items() if board.profiles[name].plain}
    covered = 0
    for name, m in plain.items():
        for start in m.feasible_starts:
            covered |= _bits(start, board.profiles[name].size)
    placeable = [board.profiles[name] for name, m in plain.items() if m.placeable]
    largest = max(placeable, key=lambda p: (p.compute, p.size), default=None)
    unusable = sum(weight * measured[name].unusable_memory_slices for name, weight in mix.items())
    return MigMeasure(
        free_memory_slices=free_memory,
        free_compute_slices=free_compute,
        per_profile=measured,
        capability=sum(len(m.feasible_starts) for m in plain.values()),
        largest_placeable=None if largest is None else largest.name,
        stranded_memory_slices=free_memory - covered.bit_count(),
        stranded_compute_slices=free_compute - _most_compute(board, mask, free_compute, counts),
        mix_unusable_memory_slices=float(unusable),
        mix_unusable_ratio=unusable / free_memory if free_memory else None,
        mix_placement_fragmentation=float(sum(w * measured[name].fragmentation for name, w in mix.items())),
    )


def _check(board: Board, instances: Sequence[Instance]) -> None:
    if board.placements == "unknown":
        raise ValueError(f"expected a board whose placements are known, got {board.name}")
    faults = layout_faults(board, instances)
    if faults:
        raise ValueError(f"expected a layout that {board.name} can have: {'; '.join(faults)}")


def _measure_profile(board: Board, profile: Profile, mask: int, free_compute: int, existing: int) -> ProfileMeasure:
    free_memory = board.memory_slices - mask.bit_count()
    left = profile.most - existing
    starts: tuple[int, ...] = ()
    if left > 0 and profile.compute <= free_compute:
        starts = tuple(s for s in profile.starts if not mask & _bits(s, profile.size))
    # Intervals of one length: taking the earliest that fits is optimal.
    disjoint, end = 0, -1
    for start in sorted(starts):
        if start >= end:
            disjoint, end = disjoint + 1, start + profile.size
    placeable = min(disjoint, max(left, 0), free_compute // profile.compute)
    by_capacity = max(min(free_memory // profile.size, free_compute // profile.compute, left), 0)
    covered = 0
    for start in starts:
        covered |= _bits(start, profile.size)
    return ProfileMeasure(
        feasible_starts=starts,
        placeable=placeable,
        by_capacity=by_capacity,
        fragmentation=1 - placeable / by_capacity if by_capacity else 0.0,
        unusable_memory_slices=free_memory - (covered.bit_count() if placeable else 0),
    )


def _most_compute(board: Board, mask: int, free_compute: int, counts: Mapping[str, int]) -> int:
    """Return the most compute slices that further placements of plain profiles can take."""
    shapes = [p for p in board.profiles.values() if p.plain]

    @cache
    def best(mask: int, compute: int, left: tuple[int, ...]) -> int:
        most = 0
        for i, profile in enumerate(shapes):
            if not left[i] or profile.compute > compute:
                continue
            rest = (*left[:i], left[i] - 1, *left[i + 1 :])
            for start in profile.starts:
                bits = _bits(start, profile.size)
                if not mask & bits:
                    most = max(most, profile.compute + best(mask | bits, compute - profile.compute, rest))
            if most == compute:
                break
        return most

    return best(mask, free_compute, tuple(max(p.most - counts.get(p.name, 0), 0) for p in shapes))


def layouts(board: Board, profiles: Iterable[str]) -> Iterator[tuple[Instance, ...]]:
    """Yield every layout that holds exactly these instances (a multiset of profiles), each once, sorted."""
    wanted = Counter(profiles)
    if any(name not in board.profiles or count > board.profiles[name].most for name, count in wanted.items()):
        return
    if sum(board.profiles[name].compute * count for name, count in wanted.items()) > board.compute_slices:
        return
    queue = sorted(wanted.elements(), key=lambda name: (-board.profiles[name].size, name))

    def place(i: int, mask: int, placed: tuple[Instance, ...]) -> Iterator[tuple[Instance, ...]]:
        if i == len(queue):
            yield tuple(sorted(placed))
            return
        profile = board.profiles[queue[i]]
        same = placed and placed[-1].profile == profile.name
        for start in profile.starts:
            if same and start <= placed[-1].start:
                continue  # equal instances are not told apart
            bits = _bits(start, profile.size)
            if not mask & bits:
                yield from place(i + 1, mask | bits, (*placed, Instance(profile.name, start)))

    yield from place(0, 0, ())


@cache
def fitting_profiles(board: Board, profiles: tuple[str, ...]) -> frozenset[str]:
    """Return the profiles of which one more fits beside these instances in some layout that they can have.

    Where the instances begin is often not known; this is what fits when they lie well.
    """
    found = set()
    for layout in layouts(board, profiles):
        mask, compute, counts = _used(board, layout)
        for profile in board.profiles.values():
            room = counts[profile.name] < profile.most and profile.compute <= board.compute_slices - compute
            if room and any(not mask & _bits(s, profile.size) for s in profile.starts):
                found.add(profile.name)
    return frozenset(found)


def fewest_moves(board: Board, instances: Sequence[Instance], request: str) -> int | None:
    """Return the fewest instances that must move so that one more of `request` fits; None: no move helps.

    Exhaustive over all layouts that hold the same instances and the request. A moved instance is destroyed and made
    anew elsewhere: its work stops meanwhile.

    Raises:
        ValueError: the layout cannot exist, or the board's placements are unknown.
    """
    _check(board, instances)
    present = Counter(instances)
    moves = [
        len(instances) - sum((present & Counter(layout)).values())
        for layout in layouts(board, [*(i.profile for i in instances), request])
    ]
    # `present & layout` may count the new instance on a spot of its own profile: it never needs to, because equal
    # instances are interchangeable, so the count of unmoved instances is right.
    return min(moves, default=None)
