"""The demand mix: what pods asked for in a window, and what of it still fits on a card."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from analyzer.facts import Request
from analyzer.mig import Board, fitting_profiles
from analyzer.shares import Card
from collector.window import Window

_EPSILON = 1e-9


@dataclass(frozen=True, slots=True, order=True)
class Wish:
    """One kind of request: what identical pods ask for. `memory_bytes` 0: nothing said; `types` empty: any card."""

    cards: int
    share: float
    memory_bytes: float
    cpu_cores: float
    profile: str
    gpu_type: str


@dataclass(frozen=True, slots=True)
class Demand:
    """How often each kind of request was made, and how many of each wait now."""

    counts: Mapping[Wish, int]
    waiting: Mapping[Wish, int]

    @property
    def total(self) -> int:
        """Number of requests."""
        return sum(self.counts.values())


def demand(asked: Iterable[Request], window: Window) -> Demand:
    """Count the requests that were alive at some time in the window.

    A request without a share, or of no card, is left out; one with a MIG profile is counted by its profile. One that
    was granted to pods is left out: they ask in its place.
    """
    counts: Counter[Wish] = Counter()
    waiting: Counter[Wish] = Counter()
    for request in asked:
        over = request.ended is not None and request.ended <= window.start
        if over or request.created >= window.end or request.cards < 1:
            continue
        if not request.profile and not request.share > 0:
            continue
        if request.to_pods and request.started is not None:
            continue
        wish = Wish(
            cards=request.cards,
            share=1.0 if request.profile else min(request.share, 1.0),
            memory_bytes=0.0 if math.isnan(request.memory_bytes) else request.memory_bytes,
            cpu_cores=0.0 if math.isnan(request.cpu_cores) else request.cpu_cores,
            profile=request.profile,
            gpu_type=request.gpu_type,
        )
        counts[wish] += request.pods
        if request.started is None and (request.ended is None or request.ended > window.end):
            waiting[wish] += request.pods
    return Demand(dict(sorted(counts.items())), dict(sorted(waiting.items())))


def type_allows(wish: Wish, model: str) -> bool:
    """Say whether a card of `model` is among the types that the request names (`A100|H100`; empty: any)."""
    if not wish.gpu_type:
        return True
    return any(part and part.lower() in model.lower() for part in wish.gpu_type.split("|"))


def fits_free(card: Card, board: Board | None, wanted: Demand, free_share: np.ndarray) -> np.ndarray:
    """Return where some request of the mix fits into what nobody holds on the card, (T,).

    Without any request in the mix there is no measure of what fits: all free share counts as usable.
    """
    if not wanted.total:
        return np.ones(card.intervals, dtype=bool)
    if card.mig:
        return _fits_mig(card, board, wanted)
    fits = np.zeros(card.intervals, dtype=bool)
    room = free_memory(card)
    for wish in wanted.counts:
        if wish.profile or not type_allows(wish, card.model):
            continue
        enough = free_share >= wish.share - _EPSILON
        fits |= enough & (np.isnan(room) | (room >= wish.memory_bytes - 1))
    return fits


def free_memory(card: Card) -> np.ndarray:
    """Return the bytes of a card that no holding has been granted (or, without a grant, uses), (T,); NaN: not known."""
    total = np.nanmax(
        np.stack([card.of_card("memory_used_bytes") + card.of_card("memory_free_bytes"), np.zeros(card.intervals)]),
        axis=0,
    )
    total = np.where(total > 0, total, np.nan)
    if np.isnan(total).all():
        return total
    total = np.full(card.intervals, np.nanmedian(total))
    quota, used = card.of_slices("memory_quota_bytes"), card.of_slices("memory_used_bytes")
    granted = np.where(np.isnan(quota), used, quota)
    return np.asarray(np.clip(total - np.nansum(np.where(card.held, granted, 0.0), axis=1), 0.0, None))


def _fits_mig(card: Card, board: Board | None, wanted: Demand) -> np.ndarray:
    asked = {w.profile for w in wanted.counts if w.profile and type_allows(w, card.model)}
    fits = np.zeros(card.intervals, dtype=bool)
    unheld = card.alive & ~card.held
    for j, holding in enumerate(card.holdings):
        if holding.profile in asked:
            fits |= unheld[:, j]
    if board is None or board.placements == "unknown":
        return fits
    layouts, which = np.unique(card.alive, axis=0, return_inverse=True)
    for i, alive in enumerate(layouts):
        profiles = [h.profile for h, there in zip(card.holdings, alive, strict=True) if there]
        if any(p not in board.profiles for p in profiles):
            continue
        if asked & fitting_profiles(board, tuple(sorted(profiles))):
            fits[which.ravel() == i] = True
    return fits
