"""The dry run: reads what is really there, applies to itself only, and says what it would do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.guards.world import in_order
from tuner.model import ApplyResult, ApplyStatus, BackendState, Change, Eviction, Group, Knob, Target, TargetState


@dataclass(frozen=True, slots=True)
class _Pretence:
    base_generation: str  # of the real target when it was pretended
    values: Mapping[str, float]
    count: int


class DryRunBackend:
    """Pretends on top of a real reading.

    A pretended value lasts until the real target changes by itself: then what is real counts again.

    Args:
        read: gives the real state, such as `read_store` or another backend's `read`.
        knobs: what could be set there.
        predict: who would really be evicted; None: it is not known.
    """

    def __init__(
        self,
        read: Callable[[], BackendState],
        knobs: Sequence[Knob],
        predict: Callable[[Group], Sequence[Eviction]] | None = None,
    ) -> None:
        self._read_real = read
        self._knobs = tuple(knobs)
        self._predict = predict
        self._pretended: dict[Target, _Pretence] = {}
        self.said: list[str] = []

    @property
    def name(self) -> str:
        """Plug-in name."""
        return "dry-run"

    @property
    def simulated(self) -> bool:
        """What it reads is real."""
        return False

    @property
    def changes_nothing(self) -> bool:
        """It pretends."""
        return True

    def knobs(self) -> Sequence[Knob]:
        """Say what could be set."""
        return self._knobs

    def read(self, targets: Sequence[Target] | None = None) -> BackendState:
        """Read what is real, with what was pretended on top; targets that are not there are left out."""
        real = self._read_real()
        states = {t: self._with_pretence(s) for t, s in real.targets.items()}
        wanted = states if targets is None else {t: states[t] for t in targets if t in states}
        return BackendState(real.read_at, wanted)

    def apply(self, group: Group, expected: Mapping[Target, str]) -> ApplyResult:
        """Pretend, by the rules of a real backend: compare generations, check ranges, all or nothing."""
        present = self.read()
        for change in group.changes:
            problem = self._problem(change, present, expected)
            if problem is not None:
                return problem
        real = self._read_real().targets
        for change in in_order(group.changes):
            known = self._pretended.get(change.target)
            values = dict(known.values) if known is not None else {}
            values[change.knob] = self._knob(change, present.targets[change.target]).quantise(change.after)
            count = 1 if known is None else known.count + 1
            self._pretended[change.target] = _Pretence(real[change.target].generation, values, count)
            step = f"from {change.before:g} to {change.after:g}"
            self.said.append(f"would set {change.knob} of {change.target} {step}: {change.reason}")
        return ApplyResult(ApplyStatus.APPLIED, "pretended")

    def predict(self, group: Group) -> Sequence[Eviction] | None:
        """Say who would be evicted, by the real backend's rule; None where none is given."""
        return None if self._predict is None else self._predict(group)

    def _with_pretence(self, real: TargetState) -> TargetState:
        pretence = self._pretended.get(real.target)
        if pretence is None:
            return real
        if pretence.base_generation != real.generation:
            del self._pretended[real.target]
            return real
        return replace(
            real,
            values={**real.values, **pretence.values},
            effective={**real.effective, **pretence.values},
            generation=f"{real.generation}+{pretence.count}",
        )

    def _problem(self, change: Change, present: BackendState, expected: Mapping[Target, str]) -> ApplyResult | None:
        held = present.targets.get(change.target)
        if held is None or expected.get(change.target) != held.generation:
            return ApplyResult(ApplyStatus.CONFLICT, f"{change.target} is not what it was: read it again")
        if change.knob not in held.values:
            return ApplyResult(ApplyStatus.REFUSED, f"{change.target} has no {change.knob}")
        knob = self._knob(change, held)
        if not math.isfinite(change.after) or not knob.low <= change.after <= knob.high:
            reason = f"{change.knob}: expected {knob.low:g}..{knob.high:g}, got {change.after:g}"
            return ApplyResult(ApplyStatus.REFUSED, reason)
        return None

    def _knob(self, change: Change, held: TargetState) -> Knob:
        """Return the knob of a change; one that cannot be set has an empty range, so that it is refused."""
        kind = held.facts.get("kind")
        for knob in self._knobs:
            fits = knob.sharing is None or knob.sharing == kind
            if fits and knob.name == change.knob and knob.target_kind == change.target.kind:
                return knob
        return replace(self._knobs[0], name=change.knob, low=math.inf, high=-math.inf)
