"""Fixtures of this floor: a working directory of its own, and the command run in this process or in another."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from analyzer.settings import AnalyzeSettings
from collector.clock import VirtualClock
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from dashboard.cli.root import run
from sample_data.cluster.backend import SimulatorBackend
from sample_data.cluster.cluster import SimulatedCluster
from sample_data.cluster.presets import mixed
from tuner.model import Mode
from tuner.service.analyse import load_detectors
from tuner.service.cycle import Tuner, TunerParts
from tuner.settings import StateSettings, TunerSettings
from tuner.state import open_state


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command left: its exit code, and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, without variables of ours."""
    for name in list(os.environ):
        if name.startswith("TRIMTAB_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trimtab(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command in this process."""

    def call(*arguments: str) -> Ran:
        capsys.readouterr()
        code = run(list(arguments))
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return call


@pytest.fixture
def trimtab_process(elsewhere: Path) -> Callable[..., Ran]:
    """Run a command in a process of its own, as a shell would."""

    def call(*arguments: str, env: dict[str, str] | None = None) -> Ran:
        ran = subprocess.run(  # noqa: S603  our own command
            [sys.executable, "-m", "dashboard.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=elsewhere,
            env={**os.environ, **(env or {})},
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    return call


@pytest.fixture(scope="session")
def app_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration over a store and a state: a simulated cluster, tuned for an hour and a half, then asking."""
    folder = tmp_path_factory.mktemp("app_world")
    state_settings = StateSettings(path=folder / "state.db", kill_switch=folder / "PAUSED")
    spec = mixed(1)
    cluster, clock = SimulatedCluster(spec), VirtualClock(spec.start)
    store, state = EmbeddedStore(StoreSettings(path=folder / "store")), open_state(state_settings)

    def tuner(mode: Mode) -> Tuner:
        return Tuner(
            TunerParts(
                store,
                SimulatorBackend(cluster),
                state,
                clock,
                TunerSettings(mode=mode, auto_restart_offline=True),
                state_settings,
                60.0,
                detectors=load_detectors(AnalyzeSettings()) if mode is Mode.APPROVE else {},
            )
        )

    acting = tuner(Mode.AUTO)
    for minute in range(1, 91):
        cluster.step()
        clock.advance(60)
        store.write(cluster.frames())
        if minute % 10 == 0 and minute < 90:
            acting.run_once(clock.now())
    acting.close()
    tuner(Mode.APPROVE).run_once(clock.now())
    store.close()
    state.close()
    config = folder / "trimtab.toml"
    config.write_text(
        f'[cluster]\nname = "{spec.name}"\n[store]\npath = "{folder / "store"}"\n'
        f'[state]\npath = "{state_settings.path}"\nkill_switch = "{state_settings.kill_switch}"\n',
        encoding="utf-8",
    )
    return config
