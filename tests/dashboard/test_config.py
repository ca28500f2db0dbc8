"""Settings: what counts, where it came from, and how mistakes are named."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.errors import ConfigurationError
from collector.masking import mask_address
from collector.settings import TargetSettings
from dashboard.config import (
    Loaded,
    Settings,
    find_file,
    leaves,
    load_settings,
    merge,
    read_settings,
    shown,
)
from dashboard.config_check import check_settings
from dashboard.config_docs import example, markdown
from dashboard.config_errors import model_within

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.usefixtures("elsewhere")


def write(folder: Path, text: str, name: str = "trimtab.toml") -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(0o600)
    return path


def problems(folder: Path, text: str) -> list[str]:
    found = read_settings(write(folder, text))
    assert isinstance(found, list)
    return [str(problem) for problem in found]


def test_without_a_file_the_defaults_hold() -> None:
    loaded = load_settings()
    assert loaded.settings == Settings()
    assert loaded.path is None
    assert loaded.origin(("store", "path")) == "default"


def test_the_file_is_overridden_by_the_environment(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(elsewhere, '[store]\npath = "/data"\nraw_days = 3\n[cluster]\nname = "a"\n')
    monkeypatch.setenv("TRIMTAB_STORE__RAW_DAYS", "5")
    monkeypatch.setenv("TRIMTAB_TUNER__MODE", "approve")
    loaded = load_settings()
    assert loaded.settings.store.path == Path("/data")
    assert loaded.settings.store.raw_days == 5
    assert loaded.settings.tuner.mode == "approve"
    origins = [loaded.origin(("store", key)) for key in ("path", "raw_days", "minute_days")]
    assert origins == ["file", "environment", "default"]


def test_a_secret_of_the_second_source_comes_by_environment(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(elsewhere, '[[source]]\ntargets = ["http://a/metrics"]\n[[source]]\nkind = "prometheus"\nurl = "http://p"\n')
    monkeypatch.setenv("TRIMTAB_SOURCE__1__BEARER_TOKEN", "hush")
    loaded = load_settings()
    first, second = loaded.settings.source
    assert first.targets == (TargetSettings(url="http://a/metrics"),)
    assert first.bearer_token is None
    assert second.url == "http://p"
    assert second.bearer_token is not None
    assert second.bearer_token.get_secret_value() == "hush"
    assert loaded.origin(("source", 1, "bearer_token")) == "environment"
    assert loaded.origin(("source", 1, "url")) == "file"
    assert "hush" not in repr(loaded.settings)
    assert [shown(v) for k, v in leaves(loaded.settings) if k == ("source", 1, "bearer_token")] == ["********"]


def test_a_source_can_come_from_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_SOURCE__0__TARGETS", '["http://a:9400/metrics"]')
    monkeypatch.setenv("TRIMTAB_TENANT", '[{"name": "search", "namespaces": ["s-*"]}]')
    settings = load_settings().settings
    assert settings.source[0].targets == (TargetSettings(url="http://a:9400/metrics"),)
    assert settings.tenant[0].namespaces == ("s-*",)


def test_a_target_is_an_address_or_a_table(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = '[[source]]\n[[source.targets]]\nurl = "http://b"\nnode = "n"\nlabels = { namespace = "s", pod = "p" }\n'
    inline = '[[source]]\ntargets = ["http://a", { url = "http://b", labels = { pod = "p" } }]\n'
    monkeypatch.setenv("TRIMTAB_SOURCE__1__TARGETS__1__LABELS__CONTAINER", "main")
    loaded = load_settings(write(elsewhere, table + inline))
    first, second = loaded.settings.source
    assert first.targets == (TargetSettings(url="http://b", node="n", labels={"namespace": "s", "pod": "p"}),)
    assert second.targets == (
        TargetSettings(url="http://a"),
        TargetSettings(url="http://b", labels={"pod": "p", "container": "main"}),
    )
    assert loaded.origin(("source", 0, "targets", 0, "labels", "pod")) == "file"
    assert loaded.origin(("source", 1, "targets", 0, "url")) == "file"
    assert loaded.origin(("source", 1, "targets", 1, "labels", "container")) == "environment"


def test_the_search_order_of_files(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = write(elsewhere, "")
    by_variable = write(elsewhere, "", "variable.toml")
    by_option = write(elsewhere, "", "option.toml")
    assert find_file(None) == Path("trimtab.toml")
    assert here.is_file()
    monkeypatch.setenv("TRIMTAB_CONFIG", str(by_variable))
    assert find_file(None) == by_variable
    assert find_file(by_option) == by_option
    monkeypatch.setenv("TRIMTAB_CONFIG", "absent.toml")
    with pytest.raises(ConfigurationError, match=r"expected a TOML file at absent\.toml \(TRIMTAB_CONFIG\)"):
        find_file(None)
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml \(--config\)"):
        find_file(Path("nowhere.toml"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n[store]\npth = 1\n", ":3 [store]: unknown key `pth`; the nearest known one is `path`"),
        ("[stroe]\npath = 1\n", ":1 [stroe]: unknown table `stroe`; the nearest known one is `store`"),
        (
            '[[workload]]\nmatch = "a"\n[[workload]]\nmatch = "b"\n[workload.objective]\nbound_second = 1\n',
            ":6 [[workload.objective]] 2: unknown key `bound_second`; the nearest known one is `bound_seconds`",
        ),
        (
            '[[source]]\nkind = "scrape"\n[[source]]\nurls = "x"\n',
            ":4 [[source]] 2: unknown key `urls`; the nearest known one is `url`",
        ),
        (
            "[[source]]\n[[source.targets]]\n[[source]]\n[[source.targets]]\n[[source.targets]]\nlabel = {}\n",
            ":6 [[source.targets]] 2.2: unknown key `label`; the nearest known one is `labels`",
        ),
        (
            "[[source]]\ntargets = [9400]\n",
            ":2 [[source.targets]] 1: expected an address or a table with `url`, got 9400",
        ),
        ("[alerts]\nmail = 1\n", ":2 [alerts]: unknown key `mail`; this table has no keys in this version"),
        ("[store]\nraw_days = -1\n", ":2 [store]: `raw_days`: expected greater than 0, got -1"),
        ("[store]\nraw_days = 'soon'\n", ":2 [store]: `raw_days`: expected a valid number"),
        ('[[price]]\nmodel = "A100"\n', ":1 [[price]] 1: expected a key `per_gpu_hour`, found none; add it"),
        (
            '[[workload]]\nservice_class = "offline"\nobjective = { bound_seconds = 1 }\n',
            ":1 [workload]: an offline workload has no latency objective",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(elsewhere: Path, text: str, expected: str) -> None:
    found = problems(elsewhere, text)
    assert any(f"{elsewhere}/trimtab.toml{expected}" in line for line in found), found
    assert all("\n" not in line for line in found)


def test_the_error_counts_what_follows(elsewhere: Path) -> None:
    path = write(elsewhere, "[store]\npth = 1\nraw_days = -1\n")
    with pytest.raises(ConfigurationError, match=r"\(and 1 more: trimtab config check\)$"):
        load_settings(path)


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_STORE__PTH", "x")
    with pytest.raises(ConfigurationError, match=r"environment TRIMTAB_STORE__PTH: unknown key `pth`.*`path`"):
        load_settings()
    monkeypatch.delenv("TRIMTAB_STORE__PTH")
    monkeypatch.setenv("TRIMTAB_STROE__PATH", "x")
    with pytest.raises(ConfigurationError, match=r"environment TRIMTAB_STROE__PATH: unknown table `stroe`.*`store`"):
        load_settings()
    monkeypatch.delenv("TRIMTAB_STROE__PATH")
    monkeypatch.setenv("TRIMTAB_STORE__RAW_DAYS", "many")
    with pytest.raises(ConfigurationError, match=r"TRIMTAB_STORE__RAW_DAYS: `raw_days`: expected a valid number"):
        load_settings()
    monkeypatch.setenv("TRIMTAB_SOURCE", "[{")
    with pytest.raises(ConfigurationError, match="expected JSON"):
        load_settings()


@pytest.mark.parametrize(
    ("content", "expected"), [(b"[store\n", "expected TOML"), (b"name = '\xff'\n", "expected UTF-8")]
)
def test_a_file_that_is_no_toml(elsewhere: Path, content: bytes, expected: str) -> None:
    path = elsewhere / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=expected):
        load_settings(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[[source]]\nkind = "scrap"\n', "[[source]] 1: no source plug-in `scrap`; the nearest known one is `scrape`"),
        ('[[source]]\nkind = "prometheus"\n', "[[source]] 1: expected `url`"),
        ("[[source]]\n", "[[source]] 1: expected `targets`"),
        ('[[source]]\nkind = "nvml"\nlibrary = "/no/such.so"\n', "`library`: expected a file at /no/such.so"),
        ('[[source]]\nkind = "nvml"\nhost_root = "/no/such"\n', "`host_root`: expected the host's files"),
        ('[[source]]\nkind = "nvml"\ntargets = ["http://a"]\n', "an nvml source reads this host"),
        ('[[source]]\nkind = "nvml"\n[[source.holders]]\npod = "a"\n', "`holders` 1: fits every process"),
        ('[[source]]\nkind = "nvml"\n[[source.holders]]\nuser = "a"\n', "`holders` 1: expected `namespace` or"),
        ('[[source]]\ntargets = ["node1:9400"]\n', "expected an address that starts with http://"),
        ('[[source]]\n[[source.targets]]\nurl = "node1:9400"\n', "[[source]] 1: expected an address that starts"),
        ('[[backend]]\nkind = "dryrun"\n', "[[backend]] 1: no backend plug-in `dryrun`"),
        (
            '[[mapping]]\nmetric = "m"\nmeasurement = "slice"\nfield = "step_second"\n',
            "got 'step_second'; the nearest is 'step_seconds'",
        ),
        ('[[calendar]]\nname = "x"\nstart = "25:00"\n', "`start`: expected a time such as 08:30, got '25:00'"),
        ('[[calendar]]\nname = "x"\ndays = [7]\n', "`days`: expected weekdays"),
        ('[[calendar]]\nname = "x"\ntimezone = "Mars/Base"\n', "`timezone`: expected an IANA name"),
        ('[analyze]\nwindow = "2 fortnights"\n', "[analyze]: `window`: expected a length of time"),
        ('[forecast]\nhorizons = ["1y"]\n', "[forecast]: `horizons`: expected a length of time"),
        ("[forecast]\nquantiles = [0.5, 1.5]\n", "expected numbers between 0 and 1, got 1.5"),
        ('[analyze]\nselect = ["T1"]\n', "expected a code or a beginning"),
    ],
)
def test_check_finds_what_validates_and_is_wrong(elsewhere: Path, text: str, expected: str) -> None:
    found = [str(problem) for problem in check_settings(load_settings(write(elsewhere, text)))]
    assert len(found) == 1
    assert expected in found[0]


def test_a_secret_in_a_file_that_others_may_read(elsewhere: Path) -> None:
    path = write(elsewhere, '[influx]\ntoken = "hush"\n')
    assert check_settings(load_settings(path)) == []
    path.chmod(0o644)
    (problem,) = check_settings(load_settings(path))
    assert "`influx.token` is a secret" in problem.text
    assert "hush" not in str(problem)


def test_the_example_is_an_empty_configuration_and_every_key_in_it_is_valid(elsewhere: Path) -> None:
    text = example(Settings)
    assert load_settings(write(elsewhere, text)).settings == Settings()
    # `#key` is a commented key and `# words` is prose.
    keys = "\n".join(line[1:] for line in text.splitlines() if line.startswith("#") and not line.startswith("# "))
    found = read_settings(write(elsewhere, keys, "full.toml"))
    assert isinstance(found, Loaded), found
    assert check_settings(found) == []
    assert set(tomllib.loads(keys)) == set(Settings.model_fields)
    shown_keys = {tuple(part for part in key if isinstance(part, str)) for key, _ in leaves(tomllib.loads(keys))}
    every = {tuple(part for part in key if isinstance(part, str)) for key, _ in leaves(found.settings)}
    bare = {("source", "targets", key) for key in ("auth", "labels", "timeout_seconds")}  # of an address alone
    assert {key for key in every if len(key) > 1} - shown_keys == bare


def test_the_page_is_in_step() -> None:
    assert (ROOT / "docs/configuration.md").read_text() == markdown(Settings), (
        "renew it: python -m dashboard.config_docs > docs/configuration.md"
    )


def test_every_setting_is_described() -> None:
    def undescribed(model: type, at: str) -> list[str]:
        found = []
        for name, field in model.model_fields.items():  # type: ignore[attr-defined]  # a pydantic model
            inner = model_within(field.annotation)
            if inner is not None:
                found += undescribed(inner, f"{at}{name}.")
            elif not field.description:
                found.append(at + name)
        return found

    assert undescribed(Settings, "") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://trim:s3cret@db/state", "postgresql://trim:********@db/state"),
        ("http://token@host/x", "http://********@host/x"),
        ("http://host/x@y", "http://host/x@y"),
        ("postgresql://user@host/x", "postgresql://user@host/x"),
        ("http://host/a:b@c", "http://host/a:b@c"),
        ("http://u:p@ss@host", "http://u:********@host"),
        ("postgresql://u:p/ss@host/db", "postgresql://u:********@host/db"),
        ("postgresql://h/db?user=u&password=x&sslmode=on", "postgresql://h/db?user=u&password=********&sslmode=on"),
        ("http://h/write?api_token=x#top", "http://h/write?api_token=********#top"),
        ("plain", "plain"),
    ],
)
def test_passwords_in_addresses_are_masked(text: str, expected: str) -> None:
    assert mask_address(text) == expected


trees = st.recursive(
    st.integers(),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(trees, trees)
def test_merge_keeps_what_is_above_and_only_adds_from_below(below: object, above: object) -> None:
    merged = merge(below, above)
    assert merge(merged, above) == merged
    if isinstance(below, dict) and isinstance(above, dict):
        assert set(merged) == set(below) | set(above)
