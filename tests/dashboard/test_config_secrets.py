"""No secret stands in a message, and hostile variables are named instead of crashing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from collector.errors import ConfigurationError
from dashboard.config import load_settings, read_settings
from tests.dashboard.conftest import Ran

pytestmark = pytest.mark.usefixtures("elsewhere")


def configure(text: str) -> None:
    path = Path("trimtab.toml")
    path.write_text(text)
    path.chmod(0o600)


@pytest.mark.parametrize(
    "text",
    [
        '[[source]]\nbearer_token = ["hunter2"]\n',
        '[influx]\ntoken = { a = "hunter2" }\n',
        'source = { bearer_token = "hunter2" }\n',
        'cluster = ["postgresql://u:hunter2@h/db"]\n',
        '[[source]]\ntargets = [["http://u:hunter2@h/metrics"]]\n',
        '[[source]]\noptions = { password = ["hunter2"] }\n',
    ],
)
def test_a_secret_of_a_wrong_type_is_not_told(text: str) -> None:
    configure(text)
    found = read_settings()
    assert isinstance(found, list)
    assert "expected" in str(found[0])
    assert "hunter2" not in "".join(map(str, found))


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("TRIMTAB_INFLUX__TOKEN__X", "hunter2", "environment TRIMTAB_INFLUX__TOKEN: `token`: expected a"),
        (
            "TRIMTAB_SOURCE__0__TARGETS",
            '["hunter2"',
            "environment TRIMTAB_SOURCE__0__TARGETS: expected JSON",
        ),
        ("TRIMTAB_SOURCE", '[{"bearer_token": "hunter2"', "expected JSON"),
        ("TRIMTAB_SOURCE__²__URL", "x", "environment TRIMTAB_SOURCE: `source`: expected"),
        ("TRIMTAB_SOURCE__1000__URL", "x", "environment TRIMTAB_SOURCE__1000: expected an index from 0 to 999"),
        ("TRIMTAB_SOURCE__" + "9" * 5000, "x", "expected an index from 0 to 999, got one of 5000 digits"),
    ],
)
def test_a_wrong_variable_is_named_and_its_secret_is_not_told(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert expected in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("token", ['["hunter2"', "{hunter2}", '["hunter2"]'])
def test_a_token_may_begin_as_json_does(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("TRIMTAB_SOURCE__0__BEARER_TOKEN", token)
    secret = load_settings().settings.source[0].bearer_token
    assert secret is not None
    assert secret.get_secret_value() == token


def test_show_masks_secrets_by_type_by_name_and_in_addresses(trimtab: Callable[..., Ran]) -> None:
    configure(
        '[state]\nurl = "postgresql://u:hun/ter2@h/db?sslpassword=hunter2"\n'
        '[[source]]\nbearer_token = "hunter2"\ntargets = ["http://h/metrics?token=hunter2"]\n'
    )
    shown = trimtab("config", "show", "--json").out
    assert "postgresql://u:********@h/db?sslpassword=********" in shown
    assert "ter2" not in shown


def test_a_password_in_an_address_of_another_kind_is_not_told(trimtab: Callable[..., Ran]) -> None:
    configure('[[source]]\ntargets = ["ftp://u:hunter2@h/metrics"]\n')
    for command in (("config", "check"), ("collect", "--once")):
        ran = trimtab(*command)
        assert "ftp://u:********@h/metrics" in ran.out + ran.err
        assert "hunter2" not in ran.out + ran.err


def test_the_doctor_does_not_tell_a_password_in_an_address(trimtab: Callable[..., Ran]) -> None:
    configure('[[source]]\ntargets = ["http://u:hunter2@127.0.0.1:9/metrics"]\n')
    told = trimtab("doctor").out
    assert "http://u:********@127.0.0.1:9/metrics: expected an answer" in told
    assert "hunter2" not in told
