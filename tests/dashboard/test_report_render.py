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

from dashboard.report.capacity import EnergyPart
from dashboard.report.html import render_html
from dashboard.report.markdown import render_markdown
from dashboard.report.model import ChangesPart, Claims, ForecastPart, QualityPart, Report
from dashboard.report.page import make_page
from dashboard.report.summary import summarise
from dashboard.report.view import Page, Table
from dashboard.report.words import amount, energy, share
from dashboard.report.write import to_json
from tests.dashboard.report_model import MARKUP, SCRIPT, TURNED, claim, report

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


def empty() -> Report:
    """A report about a time in which nothing was seen."""
    full = report(simulated=False)
    terms = {name: tuple(dataclasses.replace(t, sm_seconds=0.0, ratio=math.nan, cards=math.nan) for t in level)
             for name, level in (("level_1", full.ledger.level_1), ("level_2", full.ledger.level_2))}  # fmt: skip
    ledger = dataclasses.replace(
        full.ledger,
        cards=0,
        capacity_sm_seconds=0.0,
        used_sm_seconds=0.0,
        by_hour=(),
        tenants=(),
        price=math.nan,
        **terms,
    )
    return dataclasses.replace(
        full,
        clusters=(),
        ledger=ledger,
        services=(),
        claims=Claims((), (), (), (), (), (), {}, 0),
        forecast=ForecastPart(None, (), (), "no slice told how much of its card it uses"),
        changes=ChangesPart("recommend", {}, (), (), (), (), (), "the tuner has not run yet"),
        queues=(),
        energy=EnergyPart(math.nan, math.nan, math.nan, 0),
        quality=QualityPart(0, 0, 0, math.nan, (), (), {}, (), ()),
        summary=summarise(ledger, (), Claims((), (), (), (), (), (), {}, 0), ()),
    )


def test_a_report_about_nothing_says_so_part_by_part() -> None:
    text = render_markdown(make_page(empty()))
    read(render_html(make_page(empty())))
    for said in (
        "No card was observed in this time, so nothing can be said.",
        "No workload has a declared promise",
        "There is no forecast: no slice told how much of its card it uses.",
        "Nothing: the tuner has not run yet.",
        "No queue and no request was observed.",
        "no data: no card reports power or energy.",
        "No card gave a sample.",
    ):
        assert said in text
    assert "| useful work | no data |" in text
    assert "nan" not in text


def test_a_prediction_is_no_pair_that_fought() -> None:
    """TT111 speaks also of workloads that never met: neither counted nor drawn among the pairs."""
    whole = report()
    fought = [claim("TT101", who="team/noisy", victim="team/hurt")]
    predicted = claim("TT111", claim="a and b must not share a card", who="team/a", victim="team/b", effect_value=45.0)
    told = dataclasses.replace(whole.claims, fights=(*fought, predicted))
    sentence = summarise(whole.ledger, whole.services, told, whole.queues)
    assert "1 workload suffered from a neighbour" in sentence
    page = make_page(dataclasses.replace(whole, claims=told))
    (section,) = [s for s in page.sections if s.id == "fights"]
    pairs, apart = [block for block in section.blocks if isinstance(block, Table)]
    assert [row[:2] for row in pairs.rows] == [("team/noisy", "team/hurt")]
    assert [row[2] for row in apart.rows] == ["a and b must not share a card"]
    alone = dataclasses.replace(whole.claims, fights=(predicted,))
    assert "suffered" not in summarise(whole.ledger, whole.services, alone, whole.queues)


def test_work_without_a_unit_is_not_called_useless() -> None:
    full = report().ledger
    unrated = tuple(
        dataclasses.replace(t, sm_seconds={"unrated": 400.0}.get(t.name, 0.0), ratio=float(t.name == "unrated"))
        for t in full.level_2
    )
    ledger = dataclasses.replace(full, level_2=unrated)
    assert math.isnan(ledger.useful_ratio)
    assert "40 % was used and how much of it was useful is not known" in summarise(ledger, (), report().claims, ())
    assert report().ledger.useful_ratio == pytest.approx(0.32)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("1. first", "1\\. first"),
        ("# heading", "\\# heading"),
        ("- item", "\\- item"),
        ("    code", "code"),
        ("http://evil.example", "http\\://evil.example"),
        ("www.evil.example", "www\\.evil.example"),
        ("@team $x$ <b>", "\\@team \\$x\\$ \\<b\\>"),
        ("1.79 cards", "1.79 cards"),
        ("two\nlines", "two\ufffdlines"),
    ],
)
def test_a_paragraph_that_begins_with_a_name_stays_a_paragraph(name: str, shown: str) -> None:
    page = Page("t", "s", name, simulated=False, tiles=(), sections=(), foot="f")
    assert render_markdown(page).split("\n\n")[2] == shown


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.256, "ratio", "26 %"),
        (0.0256, "ratio", "2.6 %"),
        (2.0**31, "bytes", "2.0 GiB"),
        (90.0, "seconds", "90 s"),
        (1.814, "gpu_hours", "1.81 card-hours"),
        (1.0, "count", "once"),
        (3.0, "count", "3 times"),
        (math.nan, "ratio", "no data"),
    ],
)
def test_effects_are_read_with_their_units(value: float, unit: str, expected: str) -> None:
    assert amount(value, unit) == expected


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(1e-9, "0.0 %"), (-1e-9, "0.0 %"), (0.99999999, "100.0 %"), (0.0002, "<0.1 %"), (-0.012, "-1.2 %")],
)
def test_rounding_of_sums_is_no_amount(ratio: float, expected: str) -> None:
    assert share(ratio) == expected


@pytest.mark.parametrize(("joules", "expected"), [(1800.0, "0.5 Wh"), (3.6e6, "1 kWh"), (math.nan, "no data")])
def test_energy_is_read_in_watt_hours(joules: float, expected: str) -> None:
    assert energy(joules) == expected
