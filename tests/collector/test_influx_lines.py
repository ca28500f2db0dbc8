"""Line protocol: what is written reads back as the same rows, whatever the tags hold."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.influx.answers import parse_tags
from collector.influx.lines import LineEncoder, escape_tag, text_line, unescape_tag
from tests.collector.influx_double import parse_line, split_lines

TAGS = ("node", "gpu")
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "",
        " ",
        "a\\",
        "\\",
        ",",
        "=",
        "a b",
        "\n",
        "x\r\ny",
        "é",
        "日本",
        "%",
        "%5C",
        "%%",
        '"',
        "\\,",
        "a,\\ ",
        "\x00",
        ", ",
    ]
)
values = st.floats(width=64)


def table(times: list[int], nodes: list[str], gpus: list[str]) -> pa.Table:
    return pa.table(
        {
            "time": pa.array(times, pa.timestamp("ms", tz="UTC")),
            "node": pa.array(nodes, pa.string()),
            "gpu": pa.array(gpus, pa.string()),
        }
    )


def decode(body: bytes) -> list[tuple[dict[str, str], dict[str, float | str], int]]:
    parsed = [parse_line(line) for line in split_lines(body.decode())]
    assert {measurement for measurement, *_ in parsed} <= {"gpu"}
    return [
        ({k: unescape_tag(v) for k, v in tags}, {unescape_tag(k): v for k, v in fields.items()}, stamp)
        for _, tags, fields, stamp in parsed
    ]


def test_lines_to_the_letter() -> None:
    rows = table([1_767_571_200_000, 1_767_571_260_000, 5], ["a b", "", "n=1"], ["GPU-1", "GPU,2", "x\\"])
    fields = {
        "busy_ratio": np.array([0.5, np.nan, 1.0]),
        "power_watts": np.array([300.0, np.nan, -0.25]),
        "empty": np.full(3, np.nan),
    }
    assert LineEncoder("gpu", TAGS).encode(rows, fields) == (
        b"gpu,gpu=GPU-1,node=a\\ b busy_ratio=0.5,power_watts=300.0 1767571200000\n"
        b"gpu,gpu=x%5C,node=n%3D1 busy_ratio=1.0,power_watts=-0.25 5\n"
    )


def test_every_tag_is_there_where_tables_have_fixed_tags() -> None:
    rows = table([1], [""], ["g"])
    body = LineEncoder("gpu", TAGS, fixed_tags=True).encode(rows, {"x": np.ones(1)})
    assert body == b"gpu,gpu=g,node=% x=1.0 1\n"
    assert decode(body)[0][0] == {"gpu": "g", "node": ""}
    assert text_line("event", {"code": ""}, {"message": "m"}, 7, fixed_tags=True) == 'event,code=% message="m" 7'


@pytest.mark.parametrize("fields", [{}, {"x": np.array([np.nan])}, {"x": np.array([math.inf])}])
def test_a_row_without_a_value_is_no_line(fields: dict[str, np.ndarray]) -> None:
    assert LineEncoder("gpu", TAGS).encode(table([1], ["n"], ["g"]), fields) == b""
    assert LineEncoder("gpu", TAGS).encode(table([], [], []), {"x": np.empty(0)}) == b""


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(946_684_800_000, 4_102_444_799_999), text, text, values, values, values),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
)
def test_rows_read_back(rows: list[tuple[int, str, str, float, float, float]], marked: bool) -> None:
    times, nodes, gpus, *columns = (list(c) for c in zip(*rows, strict=True))
    fields = {name: np.array(column) for name, column in zip(("a", "b b", "c=c"), columns, strict=True)}
    if marked:
        fields["rows_count"] = np.ones(len(rows))
    expected = []
    for index, (time, node, gpu, *_) in enumerate(rows):
        kept = {name: column[index] for name, column in fields.items() if math.isfinite(column[index])}
        if kept:
            expected.append(({t: v for t, v in (("node", node), ("gpu", gpu)) if v}, kept, time))
    for encoder in (LineEncoder("gpu", TAGS), LineEncoder("gpu", TAGS)):
        assert decode(encoder.encode(table(times, nodes, gpus), fields)) == expected


@given(text)
def test_tags_come_back_from_answers(value: str) -> None:
    assert unescape_tag(escape_tag(value).replace("\\", "")) == value
    assert not set(escape_tag(value)) & set("\n\r\x00")
    assert not escape_tag(value).endswith("\\")
    assert parse_tags(f"a={escape_tag(value)},b=x") == {"a": value, "b": "x"}


@given(text, text)
def test_text_fields_read_back(message: str, code: str) -> None:
    line = text_line("event", {"code": code, "slice": ""}, {"message": message, "n": 2}, 5)
    (only,) = split_lines(line + "\n")
    measurement, tags, fields, stamp = parse_line(only)
    assert (measurement, stamp) == ("event", 5)
    assert {k: unescape_tag(v) for k, v in tags} == ({"code": code} if code else {})
    assert fields == {"message": message, "n": 2.0}


def test_many_tag_sets_are_forgotten_and_learned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collector.influx.lines._CACHED_TAG_SETS", 3)
    encoder = LineEncoder("gpu", TAGS)
    for round_ in range(3):
        nodes = [f"n{round_}-{i}" for i in range(5)]
        body = encoder.encode(table([1] * 5, nodes, ["g"] * 5), {"x": np.ones(5)})
        assert [tags["node"] for tags, *_ in decode(body)] == nodes
    assert len(encoder._known) <= 10
