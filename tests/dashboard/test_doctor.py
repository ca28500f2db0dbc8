"""`trimtab doctor`: what is configured, what answers, what is missing, in words for three in the morning."""

from __future__ import annotations

import json
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from collector.batch import Batch, Fact, Subject, make_rows
from collector.conformance import slice_rows
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from dashboard.config import load_settings
from dashboard.doctor import Check, Status, examine
from dashboard.doctor.sources import examine_sources
from tests.dashboard.conftest import Ran
from tests.dashboard.exporters import Exporters, serving, simulated_texts

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return simulated_texts()


@pytest.fixture
def exporters(texts: dict[str, str], elsewhere: Path) -> Iterator[Exporters]:
    with serving(texts) as running:
        yield running


def configure(text: str) -> None:
    path = Path("trimtab.toml")
    path.write_text(text)
    path.chmod(0o600)


def sources(*targets: str) -> list[Check]:
    configure(f"[[source]]\ntargets = {json.dumps(list(targets))}\n")
    return list(examine_sources(load_settings().settings, NOW))


def texts_of(checks: list[Check], status: Status) -> list[str]:
    return [check.text for check in checks if check.status is status]


def test_a_fresh_machine_is_told_what_to_do(trimtab: Callable[..., Ran]) -> None:
    ran = trimtab("doctor")
    assert ran.code == 1
    assert "note configuration: no file found" in ran.out
    assert "BAD  store: expected a store in" in ran.out
    assert ran.out.endswith("1 problem\n")
    assert not Path("var").exists()  # looking changes nothing


def test_a_wrong_configuration_is_code_2(trimtab: Callable[..., Ran]) -> None:
    configure("[store]\npth = 1\n")
    assert trimtab("doctor").code == 2
    configure('[analyze]\nwindow = "soon"\n')
    ran = trimtab("doctor", "--json")
    assert ran.code == 1
    document = json.loads(ran.out)
    assert document["ok"] is False
    assert any("`window`: expected a length of time" in check["text"] for check in document["checks"])


def test_all_is_well_after_a_collected_cycle(trimtab: Callable[..., Ran], exporters: Exporters) -> None:
    targets = [exporters.url(name) for name in ("dcgm", "kube", "triton")]
    configure(f"[[source]]\ntargets = {json.dumps(targets)}\n")
    assert trimtab("collect", "--once", "--now", "2026-01-05T12:00:00Z").code == 0
    ran = trimtab("doctor", "--now", "2026-01-05T12:00:30Z")
    assert ran.code == 0, ran.out
    assert "answers: 4 gpu rows" in ran.out
    assert "the newest row is 30 s old" in ran.out
    assert "alive: " in ran.out
    assert ran.out.endswith("all is well\n")
    # Two hours later nothing has come: the picture is empty because the collector is blind.
    late = trimtab("doctor", "--now", "2026-01-05T14:00:00Z")
    assert late.code == 1
    assert "the newest row is 2 h old: the collector is blind" in late.out


def test_families_are_told_by_target(exporters: Exporters) -> None:
    found = sources(exporters.url("dcgm"), exporters.url("triton"))
    told = texts_of(found, Status.OK)
    assert any(text.startswith(f"{exporters.url('dcgm')}: dcgm-exporter (") for text in told), told
    assert any(text.startswith(f"{exporters.url('triton')}: triton (") for text in told), told
    assert texts_of(found, Status.PROBLEM) == []
    missing = [text for text in texts_of(found, Status.NOTE) if text.startswith("not seen from here")]
    assert missing == [
        "not seen from here: kube-state-metrics; owners, requests and annotations are not told",
        "not seen from here: hosts; cards that wait for their host's CPU, disks or network are not told",
    ]


def test_a_target_that_is_down_is_named_beside_the_one_that_answers(exporters: Exporters) -> None:
    found = sources(exporters.url("dcgm"), "http://127.0.0.1:9/metrics", exporters.url("nowhere"))
    bad = texts_of(found, Status.PROBLEM)
    assert len(bad) == 2
    assert bad[0].startswith("http://127.0.0.1:9/metrics: expected an answer")
    assert bad[1].endswith("/nowhere: expected HTTP 200, got 404")


def test_many_targets_that_are_down_are_told_in_few_lines() -> None:
    bad = texts_of(sources(*(f"http://127.0.0.1:9/{n}" for n in range(40))), Status.PROBLEM)
    assert sum("expected an answer" in text for text in bad) == 5
    (rest,) = (text for text in bad if "more targets down" in text)
    assert rest.startswith("35 more targets down: http://127.0.0.1:9/")
    assert rest.endswith(" and 32 more")


def test_a_target_that_hangs_is_down_and_does_not_answer_nonsense() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/metrics"
        # So long a time-out that it is never what ends the question, however slow this machine is.
        source = f'[[source]]\ntargets = ["{url}"]\ntimeout_seconds = 600\n'
        configure(f"[cluster]\ninterval_seconds = 1\n{source}")
        bad = texts_of(list(examine_sources(load_settings().settings, NOW)), Status.PROBLEM)
    assert f"{url}: nothing came in the time that a cycle waits" in bad
    assert not any("no row can be made" in text for text in bad)


def test_exporters_of_several_tables_are_judged_together(exporters: Exporters) -> None:
    names = ("dcgm", "kube", "triton")
    configure("".join(f'[[source]]\ntargets = ["{exporters.url(name)}"]\n' for name in names))
    apart = list(examine_sources(load_settings().settings, NOW))
    together = sources(*(exporters.url(name) for name in names))
    assert [(check.status, check.text) for check in apart] == [(check.status, check.text) for check in together]
    assert any(text.startswith("answers: 4 gpu rows") for text in texts_of(apart, Status.OK))


def test_nothing_answers(exporters: Exporters) -> None:
    found = sources("http://127.0.0.1:9/metrics")
    bad = texts_of(found, Status.PROBLEM)
    assert "http://127.0.0.1:9/metrics: expected an answer" in bad[0]
    assert bad[1] == "not seen from here: cards; no card is measured"
    first = next(check for check in found if check.status is Status.PROBLEM)
    assert first.advice.endswith("curl -sS http://127.0.0.1:9/metrics")


def test_a_scrape_without_samples_or_of_strangers_is_a_fault(exporters: Exporters) -> None:
    exporters.texts["dcgm"] = "# HELP DCGM_FI_DEV_GPU_UTIL util\n# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n"
    bad = texts_of(sources(exporters.url("dcgm")), Status.PROBLEM)
    assert "answers, and no row can be made of what it says" in bad
    assert f"{exporters.url('dcgm')}: an answer without any sample" in bad
    exporters.texts["dcgm"] = "my_own_metric 1\nmy_other_metric 2\n"
    bad = texts_of(sources(exporters.url("dcgm")), Status.PROBLEM)
    assert f"{exporters.url('dcgm')}: 2 series, none of an exporter that is known" in bad


def test_partial_exporters_are_told_apart(exporters: Exporters, texts: dict[str, str]) -> None:
    lines = texts["dcgm_mps"].splitlines(keepends=True)
    exporters.texts["dcgm"] = "".join(line for line in lines if "DCGM_FI_PROF_" not in line)
    notes = texts_of(sources(exporters.url("dcgm")), Status.NOTE)
    assert any("cards with GPU_UTIL only" in text for text in notes)
    activity = ("DCGM_FI_PROF_", "DCGM_FI_DEV_GPU_UTIL")
    exporters.texts["dcgm"] = "".join(line for line in lines if not any(name in line for name in activity))
    assert "4 of 4 cards without any activity" in texts_of(sources(exporters.url("dcgm")), Status.PROBLEM)


def test_prometheus_that_does_not_answer(elsewhere: Path) -> None:
    configure('[[source]]\nkind = "prometheus"\nurl = "http://127.0.0.1:9"\n')
    bad = texts_of(list(examine_sources(load_settings().settings, NOW)), Status.PROBLEM)
    assert bad[0].startswith("http://127.0.0.1:9: expected metric names")


def test_a_plug_in_that_is_not_there(elsewhere: Path) -> None:
    configure('[[source]]\nkind = "sacct"\n[[backend]]\nkind = "slurm"\n')
    checks = list(examine(load_settings(), NOW))
    bad = texts_of(checks, Status.PROBLEM)
    assert any("no source plug-in `sacct`" in text for text in bad)
    assert any("no backend plug-in `slurm`" in text for text in bad)


def test_simulated_rows_are_judged_by_their_own_clock(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    times = np.array([int(NOW.timestamp() * 1000)])
    tags = {"cluster": ["default"], "node": ["n"], "gpu": ["GPU-1"]}
    gpu = make_rows("gpu", times, tags, {"sm_active_ratio": np.array([0.0])})
    store = EmbeddedStore(StoreSettings())
    store.write(Batch({"gpu": gpu}, [Fact(Subject("cluster", "default"), "simulated", "true", NOW)]))
    store.close()
    ran = trimtab("doctor", "--now", "2026-03-01T00:00:00Z")
    assert ran.code == 0, ran.out
    assert "these rows are simulated; ages are counted from the newest one" in ran.out
    assert "empty because idle: 1 card reports" in ran.out


def switch(now: datetime) -> list[Status]:
    return [check.status for check in examine(load_settings(), now) if check.topic == "kill switch"]


@pytest.mark.parametrize("damage", ["sealed", "catalogue", "garbage"])
def test_a_damaged_store_is_a_problem_and_the_rest_is_still_examined(
    trimtab: Callable[..., Ran], elsewhere: Path, damage: str
) -> None:
    settings = load_settings().settings.store
    with closing(EmbeddedStore(settings)) as store:
        store.write(slice_rows([0], ["a"], busy_ratio=[0.1]))
        store.seal()
    if damage == "sealed":
        for file in (settings.path / "sealed").iterdir():
            file.write_bytes(b"PAR1 and nothing that was sealed PAR1")
    elif damage == "catalogue":
        with closing(sqlite3.connect(settings.path / "store.db")) as db:
            db.execute("DROP TABLE hot")
    else:
        for file in settings.path.glob("store.db*"):
            file.write_bytes(b"no database " * 500)
    checks = list(examine(load_settings(), NOW))
    stored = [check for check in checks if check.topic == "store" and check.status is Status.PROBLEM]
    assert len(stored) == 1
    assert str(settings.path) in stored[0].text
    assert "\n" not in stored[0].text
    assert checks[-1].topic == "kill switch"
    # `store info` reads the catalogue alone.
    for words in (["analyze"], *([["store", "info"]] if damage != "sealed" else [])):
        ran = trimtab(*words)
        assert (ran.code, "unexpected" in ran.err, "cannot" in ran.err) == (4, False, True)


def test_rows_that_went_unshipped_are_a_problem(elsewhere: Path) -> None:
    settings = load_settings().settings.store
    EmbeddedStore(settings).close()
    assert not [c for c in examine(load_settings(), NOW) if c.topic == "store" and c.status is Status.PROBLEM]
    with closing(sqlite3.connect(settings.path / "store.db")) as db:
        db.execute("INSERT INTO meta VALUES ('lost_rows', 7)")
        db.commit()
    (check,) = [c for c in examine(load_settings(), NOW) if c.topic == "store" and c.status is Status.PROBLEM]
    assert check.text == "7 rows had to go before being shipped, for want of disk"


def test_a_forgotten_pause_is_a_problem_when_the_tuner_acts(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    configure('[tuner]\nmode = "auto"\n')
    Path("var").mkdir()
    since = NOW - timedelta(hours=5)
    Path("var/PAUSED").write_text(f"freeze_all\nwho: ann\nwhy: outage\nsince: {since.isoformat()}\n")
    checks = [c for c in examine(load_settings(), NOW) if c.topic == "kill switch"]
    assert [c.status for c in checks] == [Status.PROBLEM]
    assert "by ann" in checks[0].text
    assert checks[0].text.endswith("that is 5 h")
    assert [
        c.status for c in examine(load_settings(), NOW - timedelta(hours=4, minutes=30)) if c.topic == "kill switch"
    ] == [Status.NOTE]
    Path("var/PAUSED").write_text("")
    assert switch(NOW) == [Status.PROBLEM]
    configure("")
    assert switch(NOW) == [Status.NOTE]


def test_a_state_that_cannot_be_opened_is_a_problem(elsewhere: Path) -> None:
    Path("var").mkdir()
    Path("var/state.db").write_text("no database")
    checks = [c for c in examine(load_settings(), NOW) if c.topic == "state"]
    assert [c.status for c in checks] == [Status.PROBLEM]
