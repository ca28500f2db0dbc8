"""Where victim and suspect met, how far the suspect moved there, and whether that is a trial of anything."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzer.contention.design import Design
from analyzer.contention.record import THROTTLE
from analyzer.contention.series import MIN_SAMPLES, Bools, Floats, Lane, swing_of
from analyzer.contention.vetoes import episodes
from collector.words import plural

MIN_SWING = 0.02
_MIN_RELATIVE_SWING = 0.1
THIN = 0.5  # of the coverage floor: below it nothing is tested, between the two nothing holds


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where victim and suspect met, and how far the suspect moved there."""

    activity: Floats  # the suspect's, on the victim's stretch
    known: Bools
    coverage: float
    overlap: int  # samples of the victim while the suspect was on the card
    suspect_coverage: float
    low: float
    high: float
    episodes: int

    @classmethod
    def of(cls, design: Design, suspect: Lane, values: Floats, victim_coverage: float) -> Meeting:
        """Lay the suspect's activity on the victim's stretch."""
        activity = values[design.cut]
        known = np.isfinite(activity)
        alive = np.zeros(activity.size, dtype=bool)
        for first, last in suspect.lives:
            alive[max(first - design.cut.start, 0) : max(last + 1 - design.cut.start, 0)] = True
        there = float(known[alive].mean()) if alive.any() else 0.0
        seen = activity[known & design.rows]
        low, high = swing_of(seen)
        return cls(
            activity=activity,
            known=known,
            coverage=min(victim_coverage, there),
            overlap=int(np.count_nonzero(alive & design.rows)),
            suspect_coverage=there,
            low=low,
            high=high,
            episodes=episodes(seen, low, high),
        )

    @property
    def swing(self) -> float:
        """The suspect's full swing, 2 to 98 %."""
        return self.high - self.low

    @property
    def needed_swing(self) -> float:
        """Swing below which nothing can be seen."""
        return max(MIN_SWING, _MIN_RELATIVE_SWING * self.high)

    def objection(self, coverage_floor: float) -> tuple[str, str] | None:
        """Say why this cannot be tested and what would help, or None."""
        if self.overlap < MIN_SAMPLES:
            return f"the two were there together for {plural(self.overlap, 'sample')} alone", "a longer time together"
        if self.suspect_coverage < THIN * coverage_floor:
            return f"only {self.suspect_coverage:.0%} of the samples of the suspect are there", "a source without gaps"
        if self.high < MIN_SWING:
            return f"the suspect is idle (at most {self.high:.1%} of the card)", "a time in which the suspect works"
        if self.swing < self.needed_swing:
            reason = f"the suspect hardly varies (between {self.low:.0%} and {self.high:.0%} of the card)"
            return reason, f"a time in which the suspect stops, or {THROTTLE}"
        return None
