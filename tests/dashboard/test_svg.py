"""The charts: places and sizes follow the data, text is escaped, absent is not drawn."""

from __future__ import annotations

import math
from xml.etree.ElementTree import Element
from xml.etree.ElementTree import fromstring as parsed

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard import svg


def tree(text: str) -> Element:
    return parsed(text)  # noqa: S314  our own text


def rects(text: str) -> list[Element]:
    return tree(text).findall("rect")


def per_cent(element: Element, name: str) -> float:
    return float(element.attrib[name].removesuffix("%"))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_the_parts_of_a_bar_lie_side_by_side_and_never_outside(shares: list[float]) -> None:
    found = rects(svg.stacked_bar([svg.Part("used", share, "x") for share in shares], "label"))
    assert len(found) == sum(share > 0 for share in shares)
    end = 0.0
    for rect in found:
        assert per_cent(rect, "x") == pytest.approx(end, abs=0.02)
        end = per_cent(rect, "x") + per_cent(rect, "width")
    assert end == pytest.approx(100 * min(sum(shares), 1.0), abs=0.05)


def test_a_wide_part_carries_its_figure_and_a_negative_one_is_left_out() -> None:
    parts = [svg.Part("used", 0.7, "70 %"), svg.Part("free", 0.05, "5 %"), svg.Part("unaccounted", -0.1, "-10 %")]
    image = tree(svg.stacked_bar(parts, "label"))
    assert [text.text for text in image.findall("text")] == ["70 %"]
    assert [rect.attrib["class"] for rect in image.findall("rect")] == ["c-used", "c-free"]
    assert per_cent(image.findall("rect")[0], "width") == pytest.approx(70 / 0.75 * 0.75)


def test_columns_stack_upwards_to_the_height_of_the_plot() -> None:
    text = svg.stacked_columns([[svg.Part("used", 0.25), svg.Part("free", 0.75)], []], [svg.Tick(0, "Mon")], "label")
    used, free = rects(text)
    assert float(used.attrib["height"]) * 3 == pytest.approx(float(free.attrib["height"]), abs=0.05)
    assert float(free.attrib["y"]) + float(free.attrib["height"]) == pytest.approx(float(used.attrib["y"]), abs=0.02)


def test_a_strip_tells_kept_nearly_kept_missed_and_absent_apart() -> None:
    found = rects(svg.strip([1.0, 0.95, 0.9499, math.nan], "label"))
    assert [rect.attrib["class"] for rect in found] == ["c-good", "c-fair", "c-poor", "c-absent"]


def test_an_interval_is_cut_to_its_width() -> None:
    image = tree(svg.interval(0.5, -0.2, 1.7, "label"))
    whisker = image.findall("line")[1]
    assert (whisker.attrib["x1"], whisker.attrib["x2"]) == ("0%", "100%")
    assert per_cent(image.findall("rect")[0], "width") == 50


def test_a_gap_breaks_the_line_and_nothing_ahead_draws_no_band() -> None:
    past = [(0.0, 0.1), (0.1, 0.2), (0.2, math.nan), (0.3, 0.3), (0.4, 0.4), (0.5, math.nan)]
    image = tree(svg.fan(past, [], ticks=[], sides=[], label="label"))
    curves = list(image.findall("svg")[0])
    assert [curve.attrib["class"] for curve in curves] == ["past", "past"]
    assert curves[0].attrib["points"].startswith("0.0,")


def test_a_fan_goes_out_along_the_top_and_back_along_the_bottom() -> None:
    steps = [svg.Step(0.5, 0.5, 0.5, 0.5), svg.Step(1.0, 0.0, 0.5, 1.0)]
    image = tree(svg.fan([], steps, ticks=[], sides=[], label="label", height=134))
    band = image.findall("svg")[0].findall("polygon")[0]
    assert band.attrib["points"] == "500.0,50.0 1000.0,0.0 1000.0,100.0 500.0,50.0"


def test_ticks_at_the_sides_are_written_inwards() -> None:
    ticks = [svg.Tick(0.0, "a"), svg.Tick(0.5, "b"), svg.Tick(1.0, "c")]
    image = tree(svg.stacked_columns([[svg.Part("used", 1.0)]], ticks, "label"))
    below = {text.text: text.attrib.get("text-anchor") for text in image.findall("text")}
    assert (below["a"], below["b"], below["c"]) == ("start", "middle", "end")


def test_text_is_escaped_and_cannot_turn() -> None:
    text = svg.strip([1.0], "<script>\u202e\"'&")
    image = tree(text)
    assert "<script>" not in text
    assert image.attrib["aria-label"] == "<script>\ufffd\"'&"
    assert image.findall("title")[0].text == "<script>\ufffd\"'&"
