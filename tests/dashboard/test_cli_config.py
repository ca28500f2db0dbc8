"""`trimtab config`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dashboard.config import load_settings
from tests.dashboard.conftest import Ran


def test_show_says_where_each_value_came_from(
    trimtab: Callable[..., Ran], elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / "my.toml").write_text('[store]\npath = "/data"\n[state]\nurl = "postgresql://u:hush@db/s"\n')
    monkeypatch.setenv("TRIMTAB_INFLUX__TOKEN", "hush")
    ran = trimtab("config", "show", "--json", "--config", "my.toml")
    assert ran.code == 0
    document = json.loads(ran.out)
    assert document["file"] == "my.toml"
    values = document["values"]
    assert values["store.path"] == {"value": "/data", "origin": "file"}
    assert values["influx.token"] == {"value": "********", "origin": "environment"}
    assert values["state.url"]["value"] == "postgresql://u:********@db/s"
    assert values["cluster.interval_seconds"] == {"value": 60.0, "origin": "default"}
    text = trimtab("--config", "my.toml", "config", "show")
    assert "hush" not in ran.out + text.out
    assert ["store.path", "/data", "file"] in [line.split() for line in text.out.splitlines()]


def test_show_without_a_file_says_so(trimtab: Callable[..., Ran]) -> None:
    assert trimtab("config", "show").out.startswith("file: none found")


def test_check_lists_all_problems(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    (elsewhere / "trimtab.toml").write_text("[store]\npth = 1\nraw_days = -1\n")
    ran = trimtab("config", "check")
    assert ran.code == 1
    assert [line.split(" ", 1)[0] for line in ran.out.splitlines()] == ["trimtab.toml:2", "trimtab.toml:3"]
    document = json.loads(trimtab("config", "check", "--json").out)
    assert document["ok"] is False
    assert len(document["problems"]) == 2


def test_check_of_a_good_file(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    (elsewhere / "trimtab.toml").write_text('[cluster]\nname = "a"\n')
    ran = trimtab("config", "check")
    assert (ran.code, ran.out) == (0, "the configuration is in order\n")
    assert json.loads(trimtab("config", "check", "--json").out) == {"schema_version": 1, "ok": True, "problems": []}


def test_check_of_a_file_that_is_no_toml(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    (elsewhere / "trimtab.toml").write_text("[store\n")
    ran = trimtab("config", "check")
    assert ran.code == 2
    assert ran.err.count("\n") == 1


def test_the_example_is_accepted(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    (elsewhere / "trimtab.toml").write_text(trimtab("config", "example").out)
    assert trimtab("config", "check").code == 0


def test_the_command_runs_as_a_process(trimtab_process: Callable[..., Ran]) -> None:
    ran = trimtab_process("config", "show", env={"TRIMTAB_STORE__PTH": "1"})
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("trimtab: environment TRIMTAB_STORE__PTH: unknown key `pth`")


def test_options_of_a_plugin_keep_their_types(elsewhere: Path) -> None:
    text = '[[backend]]\nkind = "mine"\noptions = { address = "http://q", retries = 3, share = 0.5, dry = true }\n'
    (elsewhere / "trimtab.toml").write_text(text)
    (backend,) = load_settings().settings.backend
    assert backend.options == {"address": "http://q", "retries": 3, "share": 0.5, "dry": True}
    assert [type(value) for value in backend.options.values()] == [str, int, float, bool]


@pytest.mark.parametrize(
    "found_by", ['targets_file = "t.json"', '[[source.dns]]\nname = "x.invalid"', "[source.kubernetes]"]
)
def test_a_source_whose_targets_are_discovered_needs_no_list(
    trimtab: Callable[..., Ran], elsewhere: Path, found_by: str
) -> None:
    (elsewhere / "t.json").write_text("[]")
    (elsewhere / "trimtab.toml").write_text(f"[[source]]\n{found_by}\n")
    ran = trimtab("config", "check")
    assert "add at least one" not in ran.out + ran.err
    (elsewhere / "trimtab.toml").write_text("[[source]]\n")
    assert "add at least one" in trimtab("config", "check").out


@pytest.mark.parametrize("executor", ["proceses", "processes:0", "http://127.0.0.1:8786", "tcp:// host"])
def test_an_executor_that_is_none_is_told_before_anything_runs(
    trimtab: Callable[..., Ran], elsewhere: Path, executor: str
) -> None:
    (elsewhere / "trimtab.toml").write_text(f'[analyze]\nexecutor = "{executor}"\n')
    ran = trimtab("config", "check")
    assert ran.code == 1
    assert "trimtab.toml:2 [analyze]: `executor`: expected here, processes, processes:N or" in ran.out + ran.err
    assert repr(executor) in ran.out + ran.err


@pytest.mark.parametrize("executor", ["here", "processes", "processes:4", "tcp://127.0.0.1:8786"])
def test_each_executor_is_right(trimtab: Callable[..., Ran], elsewhere: Path, executor: str) -> None:
    (elsewhere / "trimtab.toml").write_text(f'[analyze]\nexecutor = "{executor}"\n')
    assert trimtab("config", "check").code == 0
