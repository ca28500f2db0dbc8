"""The three renderers: hostile names stay names, absent stays absent, and a simulation says so."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dashboard.report.html import render_html
from dashboard.report.markdown import render_markdown
from dashboard.report.page import make_page
from dashboard.report.write import to_json
from tests.dashboard.report_model import MARKUP, SCRIPT, TURNED, report

GOLDEN = Path(__file__).parent / "golden" / "report_shape.json"
VOID = {"meta", "br", "link", "img", "hr"}


class Reader(HTMLParser):
    """Collects elements and attributes, and checks that elements close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style"} & set(self.open):
            self.words.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def test_html_is_well_formed_and_has_no_script_and_loads_nothing() -> None:
    html = render_html(make_page(report()))
    reader = read(html)
    assert "script" not in reader.names
    assert not {"link", "img", "iframe", "object"} & set(reader.names)
    assert not [name for name, _ in reader.attributes if name.startswith("on") or name == "src"]
    assert all((value or "").startswith("#") for name, value in reader.attributes if name == "href")
    assert "url(" not in html
    assert "@import" not in html


def test_hostile_names_are_shown_and_do_nothing() -> None:
    reader = read(render_html(make_page(report())))
    words = "".join(reader.words)
    assert f"team/{SCRIPT}" in words
    assert MARKUP in words
    assert "\u202e" not in words
    assert TURNED.replace("\u202e", "\ufffd") in words
    assert "\u202e" not in "".join(value or "" for _, value in reader.attributes)


def test_cards_are_named_by_the_beginning_of_their_uuid_but_whole_in_commands() -> None:
    html = render_html(make_page(report()))
    assert "node-a/GPU-89523c78<" in html
    assert html.count("GPU-89523c78-1c4a") == html.count("<code>")


@pytest.mark.parametrize("simulated", [True, False])
def test_a_simulation_says_so_everywhere(simulated: bool) -> None:
    page = make_page(report(simulated=simulated))
    for text in (render_html(page), render_markdown(page)):
        assert len(re.findall(r"\bsimulated\b", text)) >= 2 * simulated
        assert ("simulated" in text) is simulated
    assert json.loads(to_json(report(simulated=simulated)))["simulated"] is simulated


def test_the_same_report_gives_the_same_bytes() -> None:
    assert render_html(make_page(report())) == render_html(make_page(report()))
    assert render_markdown(make_page(report())) == render_markdown(make_page(report()))
    assert to_json(report()) == to_json(report())


def test_absent_is_said_and_never_zero() -> None:
    text = render_markdown(make_page(report()))
    quiet = next(line for line in text.splitlines() if line.startswith("| search/quiet"))
    assert quiet.split(" | ")[1] == "no data"
    assert " 0 " not in quiet
    energy_of_tenant = next(line for line in text.splitlines() if line.startswith("| \\[red"))
    assert "no data" in energy_of_tenant
    assert "nan" not in text.lower().replace("tenant", "")


def test_the_ledger_adds_up_by_hand() -> None:
    lines = render_markdown(make_page(report())).splitlines()
    for total, column in (("| capacity |", 1), ("| used | 100.0 %", 1)):
        end = next(i for i, line in enumerate(lines) if line.startswith(total))
        begin = max(i for i in range(end) if lines[i].startswith("|---"))
        shares = [
            float(line.split(" | ")[column].removesuffix(" %").replace("\\<", "")) for line in lines[begin + 1 : end]
        ]
        assert sum(shares) == pytest.approx(100.0, abs=0.05 * len(shares))
        assert lines[end].split(" | ")[column] == "100.0 %"


def test_unaccounted_is_shown_at_both_levels_even_below_zero() -> None:
    lines = [x for x in render_markdown(make_page(report())).splitlines() if x.startswith("| unaccounted")]
    assert [line.split(" | ")[1] for line in lines] == ["2.0 %", "-1.0 %"]


def test_markdown_tables_keep_their_columns_whatever_the_names() -> None:
    text = render_markdown(make_page(report()))
    blocks = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(blocks) > 10
    for block in blocks:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block
    assert "<script" not in text.replace("\\<", "")


def test_reasons_that_differ_in_names_and_figures_are_one_reason() -> None:
    text = render_markdown(make_page(report()))
    assert "only … are there (5); not shared (2)" in text


def test_money_is_shown_only_where_prices_are_known() -> None:
    priced = report()
    without = dataclasses.replace(
        priced,
        ledger=dataclasses.replace(
            priced.ledger,
            price=math.nan,
            currency="",
            tenants=tuple(dataclasses.replace(t, cost=math.nan) for t in priced.ledger.tenants),
        ),
    )
    text = render_markdown(make_page(priced))
    assert "these cards cost 480 EUR; what was held and idle is 96 EUR of it" in text
    assert "| cost |" in text
    assert "cost" not in render_markdown(make_page(without)).replace("extra cost", "").replace("it costs", "")


def shape(value: Any) -> Any:
    """Return names and types; of a list the first entry."""
    if isinstance(value, dict):
        return {key: shape(part) for key, part in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return {bool: "boolean", int: "number", float: "number", str: "text", type(None): "absent"}[type(value)]


def test_the_shape_of_the_json_report_is_a_contract() -> None:
    found = shape(json.loads(to_json(report())))
    if os.environ.get("TRIMTAB_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    assert found == json.loads(GOLDEN.read_text(encoding="utf-8"))
