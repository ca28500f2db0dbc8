"""A probe end to end on the simulated cluster: planned, shown, consented to, run on virtual time, analysed, decided.

Two cards, each with a trainer that never rests beside an online service: watching cannot tell whether it hurts. One
does, one does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from analyzer.contention import ContentionDetector
from analyzer.findings import Finding, Role, Verdict
from collector.clock import VirtualClock
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from dashboard.cli.changes import trial_words
from sample_data.cluster import SimulatedCluster
from sample_data.cluster.backend import SimulatorBackend
from sample_data.cluster.presets import undecided
from tuner import consent
from tuner.audit import verify_chain
from tuner.journal import entries
from tuner.model import Mode
from tuner.outcome import record_outcome
from tuner.record import ChangeState, GroupRecord
from tuner.service.cycle import Tuner, TunerParts
from tuner.settings import StateSettings, TunerSettings
from tuner.state import open_state
from tuner.state.plans import get_group, list_groups

WATCHED = 240  # minutes before anybody asks
SETTINGS = TunerSettings(stabilisation_seconds=0.0, changes_per_gpu_hour=9, changes_per_tenant_hour=60)
HURTS, HARMLESS = ("answer", "index-train"), ("match", "sweep-train")
SLOWER = 0.3  # of answer, by index-train at its whole share: its pressure on DRAM 1.5, times a fifth of the time


@dataclass
class Site:
    """The cluster with its store, state and clock."""

    folder: Path
    cluster: SimulatedCluster = field(default_factory=lambda: SimulatedCluster(undecided(1)))

    def __post_init__(self) -> None:
        self.clock = VirtualClock(self.cluster.spec.start)
        self.store = EmbeddedStore(StoreSettings(path=self.folder / "store"))
        self.places = StateSettings(path=self.folder / "state.db", kill_switch=self.folder / "PAUSED")
        self.state = open_state(self.places, durable=False)
        self.backend = SimulatorBackend(self.cluster)

    def tuner(self, mode: Mode) -> Tuner:
        tuner = Tuner(
            TunerParts(
                store=self.store,
                backend=self.backend,
                state=self.state,
                clock=self.clock,
                settings=SETTINGS.model_copy(update={"mode": mode}),
                state_settings=self.places,
                interval_seconds=60.0,
                detectors={"contention": ContentionDetector()},
            )
        )
        tuner.watch.warm(self.clock.now(), timedelta(minutes=WATCHED))
        return tuner

    def minutes(self, count: int) -> None:
        for _ in range(count):
            self.cluster.step()
            self.clock.advance(60.0)
            self.store.write(self.cluster.frames())

    def shares(self) -> dict[str, float]:
        """Return workload -> the share that it has, of the trainers."""
        held = self.backend.read().targets.values()
        return {
            s.facts["workload"]: s.effective["sm_quota_ratio"]
            for s in held
            if s.target.kind == "slice" and s.facts["tenant"] == "research"
        }

    def probes(self) -> dict[tuple[str, str], GroupRecord]:
        """Return (victim, suspect) -> the probe, newest last."""
        found = [r for r in list_groups(self.state, limit=1000) if r.group.trial is not None]
        found.sort(key=lambda r: r.made_at)
        return {(r.group.trial.victim_workload, r.group.changes[0].workload): r for r in found if r.group.trial}

    def verdicts(self, tuner: Tuner) -> dict[tuple[str, str], Finding]:
        found = [f for f in tuner.analyse(self.clock.now()) if f.code == "TT101"]
        return {(f.subject(Role.VICTIM).workload, f.subject(Role.SUSPECT).workload): f for f in found}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("undecided"))
    site.minutes(WATCHED)
    yield site
    site.state.close()
    site.store.close()


@dataclass
class Recommended:
    """What watching said, and what mode recommend wrote down."""

    verdicts: dict[tuple[str, str], Finding]
    written: list[GroupRecord]
    before: dict[str, float]
    after: dict[str, float]


@pytest.fixture(scope="module")
def recommended(site: Site) -> Recommended:
    tuner, before = site.tuner(Mode.RECOMMEND), site.shares()
    result = tuner.run_once(site.clock.now())
    written = [r for r in result.kept if r.group.trial is not None]
    seen = Recommended(site.verdicts(tuner), written, before, site.shares())
    tuner.close()
    return seen


@dataclass
class Decided:
    """What the trials left."""

    verdicts: dict[tuple[str, str], Finding]
    probes: dict[tuple[str, str], GroupRecord]
    lowest: dict[str, float]
    unasked: dict[str, float]  # shares while nobody had answered yet


@pytest.fixture(scope="module")
def decided(site: Site, recommended: Recommended) -> Decided:
    record_outcome(site.state, recommended.written[0].group, "pass", 0.0, site.clock.now())  # so that two go at once
    site.minutes(1)
    tuner = site.tuner(Mode.APPROVE)
    tuner.run_once(site.clock.now())
    asked = site.probes()
    site.minutes(2)
    tuner.fast_once(site.clock.now())
    unasked, lowest = site.shares(), site.shares()
    for record in asked.values():
        consent.approve(site.state, record.id, who="ann", why="to know", role="operator", now=site.clock.now())
    for step in range(150):
        site.minutes(2)
        (tuner.fast_once if step % 5 else tuner.run_once)(site.clock.now())
        lowest = {name: min(share, lowest[name]) for name, share in site.shares().items()}
        if all(known.is_over_trial for r in asked.values() if (known := get_group(site.state, r.id))):
            break
    probes = {pair: known for pair, r in asked.items() if (known := get_group(site.state, r.id))}
    site.minutes(1)
    seen = Decided(site.verdicts(tuner), probes, lowest, unasked)
    tuner.close()
    return seen


def test_watching_cannot_tell_and_a_probe_is_written_down(recommended: Recommended) -> None:
    for pair in (HURTS, HARMLESS):
        assert recommended.verdicts[pair].verdict is Verdict.CANNOT_TELL
        assert any("a short throttle" in need for need in recommended.verdicts[pair].needs)
    (first, *_) = recommended.written  # the others wait until one has gone well
    assert (first.decision, first.state) == ("write_down", ChangeState.PLANNED)
    assert first.simulated
    assert recommended.before == recommended.after == {"index-train": 0.2, "sweep-train": 0.2}


def test_what_it_would_do_and_cost_is_shown(recommended: Recommended) -> None:
    record = recommended.written[0]
    said = " ".join(trial_words(record))
    assert "at 5.0% of the card and one at 20.0%" in said
    assert "in coin-flip order" in said
    trial = record.group.trial
    assert trial is not None
    assert trial.lost_sm_seconds == pytest.approx(trial.pairs * trial.block_seconds * 0.15, rel=0.02)
    assert f"({trial.finding})" in said


def test_without_an_answer_nothing_is_held_back(decided: Decided) -> None:
    assert decided.unasked == {"index-train": 0.2, "sweep-train": 0.2}


def test_both_trials_run_to_their_end_and_leave_the_share_as_it_was(site: Site, decided: Decided) -> None:
    assert set(decided.probes) == {HURTS, HARMLESS}
    for record in decided.probes.values():
        assert record.is_over_trial
        assert record.reason.startswith("the probe is over")
        events = [e.event for e in entries(site.state, group_id=record.id)]
        assert events[0] == "approved"
        assert record.group.trial is not None
        assert events.count("throttled") == record.group.trial.pairs
    assert decided.lowest == {"index-train": pytest.approx(0.05), "sweep-train": pytest.approx(0.05)}
    assert site.shares() == {"index-train": 0.2, "sweep-train": 0.2}
    assert verify_chain(site.state).ok


def test_the_one_that_hurts_is_told_from_the_one_that_does_not(decided: Decided) -> None:
    hurts, harmless = decided.verdicts[HURTS], decided.verdicts[HARMLESS]
    assert hurts.verdict is Verdict.HOLDS
    assert "by experiment" in hurts.claim
    assert hurts.evidence["probe"]["change"] == decided.probes[HURTS].id
    assert hurts.effect is not None
    assert hurts.effect.lower < SLOWER < hurts.effect.upper
    assert harmless.verdict is Verdict.NO_EFFECT
    assert "by experiment" in harmless.claim
    assert not np.isnan(harmless.evidence["probe"]["p"])
