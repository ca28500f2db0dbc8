"""`trimtab explain`."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from analyzer.codes import codes
from tests.dashboard.conftest import Ran


@pytest.mark.parametrize("code", codes())
def test_every_code_is_explained(trimtab: Callable[..., Ran], code: str) -> None:
    ran = trimtab("explain", code.lower())
    assert ran.code == 0
    assert ran.out.startswith(f"# {code}: {codes()[code].title}")
    assert ("Not there yet" in ran.out) is (not codes()[code].implemented)


def test_the_list_says_what_is_there(trimtab: Callable[..., Ran]) -> None:
    lines = trimtab("explain").out.splitlines()
    assert len(lines) == len(codes()) + 1
    assert any(line.startswith("TT101") and line.endswith("yes") for line in lines)
    assert all(line.endswith("yes") for line in lines if line.startswith("TT102"))
    document = json.loads(trimtab("explain", "--json").out)
    assert [code["code"] for code in document["codes"]] == list(codes())
    assert json.loads(trimtab("explain", "TT101", "--json").out)["title"] == codes()["TT101"].title


def test_an_unknown_code_names_the_nearest(trimtab: Callable[..., Ran]) -> None:
    ran = trimtab("explain", "TT110")
    assert ran.code == 2
    assert "got 'TT110'; the nearest known one is `TT1" in ran.err
