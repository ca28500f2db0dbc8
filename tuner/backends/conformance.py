# ruff: noqa: S101 - these are tests, to be inherited from; they say what they check with assert
"""Laws that every backend keeps, as a pytest class to inherit from.

    class TestMyBackend(BackendConformance):
        @pytest.fixture
        def backend(self):
            return MyBackend(...)

        def settle(self, backend):   # where changes take time: let it pass
            ...

The backend must hold at least one target with a knob that can move by one quantum. Each test gets a fresh one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from tuner.model import ApplyResult, ApplyStatus, Backend, BackendState, Change, Group, Knob, TargetState

_DONE = {ApplyStatus.APPLIED, ApplyStatus.ACCEPTED}
_UNDONE = {ApplyStatus.REFUSED, ApplyStatus.CONFLICT}


class BackendConformance:
    """Inherit, and give a fixture `backend`."""

    def settle(self, backend: Backend) -> None:
        """Let enough time pass for an accepted change to be readable."""

    def settable(self, backend: Backend) -> Iterator[Change]:
        """Give one change for each target and knob that can move by one quantum, downward where possible."""
        state = backend.read()
        for target, held in state.targets.items():
            for name, value in held.values.items():
                knob = knob_of(backend, held, name)
                if knob is None or value in knob.special or math.isnan(value):
                    continue
                for after in (value - knob.quantum, value + knob.quantum):
                    if knob.low <= after <= knob.high:
                        yield Change(target, name, value, after, "conformance")
                        break

    def one(self, backend: Backend) -> Change:
        """Give the first change that can be made."""
        change = next(self.settable(backend), None)
        assert change is not None, "the backend holds no target with a knob that can move by one quantum"
        return change

    def test_describes_itself(self, backend: Backend) -> None:
        """It has a name, says whether it is real (`simulated`) and whether it acts (`changes_nothing`)."""
        assert backend.name
        assert isinstance(backend.simulated, bool)
        assert isinstance(backend.changes_nothing, bool)

    def test_knobs_are_sane(self, backend: Backend) -> None:
        """Quanta are positive, ranges are not empty, and no knob is declared twice."""
        knobs = list(backend.knobs())
        assert knobs
        names = [(k.name, k.target_kind, k.sharing) for k in knobs]
        assert len(set(names)) == len(names)
        for knob in knobs:
            assert knob.quantum > 0, knob
            assert knob.low < knob.high, knob
            assert knob.unit, knob
            assert knob.read_back_seconds >= 0, knob

    def test_read_gives_each_target_its_generation(self, backend: Backend) -> None:
        """Every target has a generation, and reading twice without a change gives the same."""
        first, second = backend.read(), backend.read()
        assert first.targets
        for target, held in first.targets.items():
            assert held.target == target
            assert held.generation
            assert second.targets[target].generation == held.generation
        assert first.read_at.tzinfo is not None

    def test_read_of_some_targets(self, backend: Backend) -> None:
        """Asked for some targets it gives those; one that is not there is left out."""
        target = self.one(backend).target
        ghost = replace(target, cluster="no-such-cluster")
        assert set(backend.read([target, ghost]).targets) == {target}

    def test_values_can_be_held(self, backend: Backend) -> None:
        """What is read lies in the knob's range, or is one of its special values."""
        for held in backend.read().targets.values():
            for name, value in held.values.items():
                knob = knob_of(backend, held, name)
                if knob is not None and value not in knob.special:
                    assert knob.low <= value <= knob.high, (held.target, name, value)

    def test_apply_is_read_back(self, backend: Backend) -> None:
        """A change by one quantum arrives, nothing else moves, and the generation changes."""
        change = self.one(backend)
        before = backend.read()
        result = self._apply(backend, before, change)
        assert result.status in _DONE, result
        self.settle(backend)
        after = backend.read()
        knob = knob_of(backend, after.targets[change.target], change.knob)
        assert knob is not None
        assert value_of(after, change) == pytest.approx(change.after, abs=knob.quantum / 2)
        assert after.targets[change.target].generation != before.targets[change.target].generation
        self._assert_others_unchanged(before, after, change)

    def test_way_back(self, backend: Backend) -> None:
        """What was changed can be set back."""
        change = self.one(backend)
        self._apply(backend, backend.read(), change)
        self.settle(backend)
        back = replace(change, before=change.after, after=change.before)
        assert self._apply(backend, backend.read(), back, name="back").status in _DONE
        self.settle(backend)
        assert value_of(backend.read(), change) == pytest.approx(change.before)

    def test_stale_generation_is_a_conflict(self, backend: Backend) -> None:
        """A decision on an old reading changes nothing."""
        change = self.one(backend)
        knob = knob_of(backend, backend.read().targets[change.target], change.knob)
        if knob is None or not knob.compare_and_set:
            pytest.skip(f"{change.knob} has no compare-and-set")
        before = backend.read()
        result = backend.apply(_group(change), {change.target: "a generation that never was"})
        assert result.status is ApplyStatus.CONFLICT
        self.settle(backend)
        assert value_of(backend.read(), change) == value_of(before, change)

    def test_same_group_twice_is_harmless(self, backend: Backend) -> None:
        """The same intent again, with the old or the new generation, leaves the value where it is."""
        change = self.one(backend)
        before = backend.read()
        self._apply(backend, before, change)
        self.settle(backend)
        landed = value_of(backend.read(), change)
        self._apply(backend, before, change)
        self._apply(backend, backend.read(), change)
        self.settle(backend)
        assert value_of(backend.read(), change) == landed

    def test_all_or_nothing(self, backend: Backend) -> None:
        """A group with one impossible change is refused and leaves nothing half done, whatever its order."""
        changes = list(self.settable(backend))
        good = changes[0]
        bad = next((c for c in changes if c.target != good.target), None)
        before = backend.read()
        if bad is None:
            bad = replace(good, target=replace(good.target, cluster="no-such-cluster"))
        impossible = replace(bad, after=_out_of_range(backend, before, bad))
        for order in ((good, impossible), (impossible, good)):
            expected = {c.target: _generation(before, c) for c in order}
            result = backend.apply(replace(_group(good), changes=order), expected)
            assert result.status in _UNDONE, result
            self.settle(backend)
            after = backend.read()
            assert value_of(after, good) == value_of(before, good)
            if bad.target in before.targets:
                assert value_of(after, bad) == value_of(before, bad)

    def test_unknown_target_and_knob(self, backend: Backend) -> None:
        """What is not there is refused, not invented."""
        change = self.one(backend)
        state = backend.read()
        ghost = replace(change, target=replace(change.target, cluster="no-such-cluster"))
        strange = replace(change, knob="no_such_knob")
        for wrong in (ghost, strange):
            result = backend.apply(_group(wrong), {wrong.target: _generation(state, wrong)})
            assert result.status in _UNDONE, result
        assert backend.read().targets.keys() == state.targets.keys()

    def test_not_a_number_is_refused(self, backend: Backend) -> None:
        """NaN and infinities never reach a target."""
        change = self.one(backend)
        for value in (math.nan, math.inf):
            before = backend.read()
            assert self._apply(backend, before, replace(change, after=value)).status in _UNDONE
            assert value_of(backend.read(), change) == value_of(before, change)

    def test_predict_changes_nothing(self, backend: Backend) -> None:
        """Predictions name workloads with a count, and leave everything as it is."""
        before = backend.read()
        for change in self.settable(backend):
            for eviction in backend.predict(_group(change)) or ():
                assert eviction.workload
                assert eviction.count >= 1
        after = backend.read()
        assert {t: s.values for t, s in after.targets.items()} == {t: s.values for t, s in before.targets.items()}

    def _apply(self, backend: Backend, state: BackendState, change: Change, name: str = "conformance") -> ApplyResult:
        return backend.apply(_group(change, name), {change.target: _generation(state, change)})

    def _assert_others_unchanged(self, before: BackendState, after: BackendState, change: Change) -> None:
        for target, held in before.targets.items():
            expected: Mapping[str, float] = {
                k: v for k, v in held.values.items() if (target, k) != (change.target, change.knob)
            }
            found = {k: after.targets[target].values[k] for k in expected}
            assert found == pytest.approx(expected, nan_ok=True), target


def knob_of(backend: Backend, held: TargetState, name: str) -> Knob | None:
    """Return the knob `name` of a target, by its sharing kind; None where it cannot be set."""
    for knob in backend.knobs():
        fits = knob.sharing is None or knob.sharing == held.facts.get("kind")
        if fits and knob.name == name and knob.target_kind == held.target.kind:
            return knob
    return None


def value_of(state: BackendState, change: Change) -> float:
    """Return the value that a change speaks of."""
    return state.targets[change.target].values[change.knob]


def _group(change: Change, name: str = "conformance") -> Group:
    return Group(name, (change,), "conformance", "give", 0.0, 1.0, 1.0)


def _generation(state: BackendState, change: Change) -> str:
    held: TargetState | None = state.targets.get(change.target)
    return "" if held is None else held.generation


def _out_of_range(backend: Backend, state: BackendState, change: Change) -> float:
    held = state.targets.get(change.target)
    knob = None if held is None else knob_of(backend, held, change.knob)
    return math.inf if knob is None else knob.high + 1000 * knob.quantum


__all__ = ["BackendConformance", "knob_of", "value_of"]
