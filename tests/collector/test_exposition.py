from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from collector import shapes
from collector.exposition import ExpositionParser, parse_exposition

NAMES = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,20}", fullmatch=True)
# The client refuses names that Prometheus keeps for itself.
LABELS = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,10}", fullmatch=True).filter(lambda name: not name.startswith("__"))
TEXTS = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), max_size=12) | st.sampled_from(
    ["", 'a"b', "back\\slash", "new\nline", "comma,", "brace}", 'x",y="z', "C:\\", "#", " spaced "]
)
VALUES = st.floats(allow_nan=False) | st.integers(-(10**12), 10**12).map(float)


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def line_of(name: str, labels: dict[str, str], value: float, stamp: int | None) -> str:
    inside = ",".join(f'{key}="{escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value!r}" + ("" if stamp is None else f" {stamp}")


@given(
    st.lists(
        st.tuples(
            NAMES,
            st.dictionaries(LABELS, TEXTS, max_size=4),
            VALUES,
            st.none() | st.integers(10**12, 2 * 10**12),
        ),
        max_size=6,
    )
)
def test_well_formed_text_reads_as_prometheus_client_reads_it(
    rows: list[tuple[str, dict[str, str], float, int | None]],
) -> None:
    text = "".join(line_of(*row) + "\n" for row in rows)
    expected = [
        (sample.name, sample.labels, sample.value, sample.timestamp)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    parser = ExpositionParser()
    for _ in range(2):  # the second time every series is known already
        got = parser.parse(text)
        assert got.rejects == []
        read = [
            (s.name, dict(s.labels), v, None if (t := got.stamps_ms.get(n)) is None else t / 1000)
            for n, (s, v) in enumerate(zip(got.series, got.values, strict=True))
        ]
        assert sorted(read, key=repr) == sorted(expected, key=repr)


def test_a_known_series_is_the_same_object_and_its_value_the_new_one() -> None:
    parser = ExpositionParser()
    first = parser.parse('up{job="a"} 1\n')
    second = parser.parse('up{job="a"} 0\n')
    assert first.series[0] is second.series[0]
    assert (list(first.values), list(second.values)) == ([1.0], [0.0])


@pytest.mark.parametrize(
    ("line", "labels"),
    [
        ('m{msg="page fault ("MMU")",gpu="0"} 31', {"msg": 'page fault ("MMU")', "gpu": "0"}),
        (r'm{path="C:\dir"} 31', {"path": r"C:\dir"}),
        (r'm{path="C:\",gpu="0"} 31', {"path": "C:\\", "gpu": "0"}),
        ('m{a="x, "y"", b="2"} 31', {"a": 'x, "y"', "b": "2"}),
        ('m{gpu="0", UUID="u",} 31', {"gpu": "0", "UUID": "u"}),
        ('m {gpu="0"}  31', {"gpu": "0"}),
        ('m{err="a} b"} 31', {"err": "a} b"}),
    ],
)
def test_quotes_and_backslashes_that_nobody_escaped_are_read_by_rule(line: str, labels: dict[str, str]) -> None:
    got = parse_exposition(line)
    assert got.rejects == []
    assert [dict(series.labels) for series in got.series] == [labels]
    assert got.values == [31.0]


def test_one_bad_line_is_one_reject_with_its_number_and_loses_nothing_else() -> None:
    text = "# TYPE a gauge\na 1\n4 Active Workloads\na{x=...} 1\nb ERROR - FAILED\nb 2 3 4\nb 2 soon\nb\nb  2\r\n"
    got = parse_exposition(text)
    assert [(series.name, value) for series, value in zip(got.series, got.values, strict=True)] == [("a", 1), ("b", 2)]
    assert [(reject.line, reject.reason) for reject in got.rejects] == [
        (3, "no metric name"),
        (4, "bad labels"),
        (5, "value is not a number"),
        (6, "text after the value"),
        (7, "timestamp is not a number"),
        (8, "no metric name"),
    ]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"error": "not found",\n "code": 404}', "body is JSON, not an exposition"),
        ("<html><body>502</body></html>", "body is HTML, not an exposition"),
        ("HTTP/1.1 500 Internal Server Error\n\ninternal server error", "body is an HTTP error, not an exposition"),
        ("internal server error", "body is not an exposition"),
    ],
)
def test_a_body_that_is_no_exposition_is_one_reject(body: str, reason: str) -> None:
    got = parse_exposition(body)
    assert (got.series, got.metadata) == ([], False)
    assert [(reject.line, reject.reason) for reject in got.rejects] == [(0, reason)]


def test_an_empty_body_and_one_of_comments_are_told_apart() -> None:
    assert parse_exposition("").metadata is False
    headed = parse_exposition("# HELP x y\n# TYPE x gauge\n")
    assert (headed.metadata, headed.series, headed.rejects) == (True, [], [])


def test_openmetrics_exemplars_seconds_and_end_mark() -> None:
    text = (
        "# TYPE l histogram\n# UNIT l seconds\n"
        'l_bucket{le="0.5"} 8 # {trace_id="4b}"} 0.43 1718000000.1\nl_count 9 1718000000.5\n# EOF\n'
    )
    parser = ExpositionParser()
    for _ in range(2):
        got = parser.parse(text)
        assert list(got.values) == [8.0, 9.0]
        assert got.stamps_ms == {1: 1718000000500.0}
        assert got.rejects == []


def test_values_that_are_not_finite_are_kept_as_written() -> None:
    got = parse_exposition("a NaN\nb +Inf\nc -Inf\n")
    assert math.isnan(got.values[0])
    assert list(got.values[1:]) == [math.inf, -math.inf]


def test_a_known_series_without_a_number_is_a_reject() -> None:
    parser = ExpositionParser()
    parser.parse("a 1\nb 1\n")
    got = parser.parse("a ERROR\nb 2\n")
    assert list(got.values) == [2.0]
    assert [(reject.line, reject.reason) for reject in got.rejects] == [(1, "value is not a number")]


def test_series_that_change_with_every_text_do_not_pile_up() -> None:
    parser = ExpositionParser()
    for n in range(5000):
        parser.parse(f'memory{{context="{n}"}} 1\nup 1\n')
    assert len(parser._known) < 3000
    assert list(parser.parse("up 1\n").values) == [1.0]


def test_a_series_is_the_same_whether_or_not_a_stamp_follows() -> None:
    parser = ExpositionParser()
    first = parser.parse('up{a="b"} 1 1700000000000\n')
    second = parser.parse('up{a="b"} 1\n')
    assert first.series[0] is second.series[0]


WORDS = st.sampled_from(
    [
        "0",
        "-0",
        "1",
        "007",
        "1.5",
        ".5",
        "1.",
        "+2",
        "1e3",
        "1E400",
        "NaN",
        "+Inf",
        "9223372036854775807",
        "111111111111111111111",
        "true",
        "null",
        "[1",
        "2]",
        "1,2",
        '"1"',
        "1_0",
        "\u0663",
        "\uff15",
        "0x1",
        "1\t",
        "",
        "ERROR - FAILED",
        "3 1700000000000",
        "{}",
    ]
)
STARTS = st.sampled_from(
    ['a{x="1"} ', 'a{x="2"} ', 'b{x="1"} ', "b ", 'c{m="p ("M")"} ', 'c{m="}"} ', "# HELP a b ", "# TYPE a", "", "{ "]
)
TEXT_LINES = st.lists(st.tuples(STARTS, WORDS).map("".join), max_size=8)


@pytest.mark.usefixtures("large_bytes")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(bodies=[['c{m="p ("M")"} 0'], ['c{m="p ("M")"} ']])
@given(bodies=st.lists(st.one_of(TEXT_LINES, TEXT_LINES.map(lambda lines: [*lines, *lines[:2]])), max_size=4))
def test_what_was_read_before_never_changes_what_is_read(bodies: list[list[str]]) -> None:
    parser = ExpositionParser()
    for lines in [body for body in bodies for _ in range(2)]:
        text = "\n".join([*lines, ""])
        got, alone = parser.parse(text), parse_exposition(text)
        assert [(s.name, dict(s.labels)) for s in got.series] == [(s.name, dict(s.labels)) for s in alone.series]
        np.testing.assert_array_equal(got.values, alone.values)
        assert (got.stamps_ms, got.rejects, got.metadata) == (alone.stamps_ms, alone.rejects, alone.metadata)


@pytest.fixture(params=[(0, 16, 4096), (0, 64, 2), (10**9, 0, 0)], ids=["windows", "pieces", "lines"])
def large_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small texts are read as large ones are, over the borders of windows and of pieces, or as small ones are."""
    for name, value in zip(("_LARGE_BYTES", "_WINDOW_BYTES", "_PIECE_LINES"), request.param, strict=True):
        monkeypatch.setattr(shapes, name, value)


EDITS = st.lists(
    st.tuples(
        st.integers(0, 10**6),
        st.integers(0, 3),
        st.sampled_from([b"", b"\n", b"\n\n\n", b" ", b"0", b"9 ", b"#", b"}", b"e", b"\x00", b"\xc3\xa9", b"\xff"]),
    ),
    max_size=3,
)


@pytest.mark.usefixtures("large_bytes")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(starts=st.lists(STARTS, min_size=1, max_size=8), edits=EDITS, cut=st.integers(0, 40), swapped=st.booleans())
def test_a_body_that_was_tampered_with_is_read_as_if_for_the_first_time(
    starts: list[str], edits: list[tuple[int, int, bytes]], cut: int, *, swapped: bool
) -> None:
    lines = [f"{start}{n}\n" for n, start in enumerate(starts)]
    parser = ExpositionParser()
    parser.parse("".join(lines).encode())
    body = bytearray("".join(lines[::-1] if swapped else lines).encode())
    for place, length, text in edits:
        at = place % (len(body) + 1)
        body[at : at + length] = text
    body = body[: len(body) - cut] if cut < 20 else body
    for _ in range(2):
        got, alone = parser.parse(body), parse_exposition(body.decode(errors="replace"))
        assert [(s.name, dict(s.labels)) for s in got.series] == [(s.name, dict(s.labels)) for s in alone.series]
        np.testing.assert_array_equal(got.values, alone.values)
        assert (got.stamps_ms, got.rejects, got.metadata) == (alone.stamps_ms, alone.rejects, alone.metadata)


@pytest.mark.usefixtures("large_bytes")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_new_values_on_known_lines_are_read_as_if_for_the_first_time(data: st.DataObject) -> None:
    starts = data.draw(st.lists(STARTS.filter(lambda start: start.startswith(("a", "b", "c"))), min_size=1, max_size=8))
    parser = ExpositionParser()
    parser.parse("".join(f"{start}1\n" for start in starts))
    parser.parse("".join(f"{start}2\n" for start in starts))
    text = "".join(f"{start}{data.draw(WORDS | VALUES.map(repr))}\n" for start in starts)
    got, alone = parser.parse(text), parse_exposition(text)
    np.testing.assert_array_equal(got.values, alone.values)
    assert got.rejects == alone.rejects


@pytest.mark.usefixtures("large_bytes")
def test_series_stay_the_same_objects_whichever_lines_come_and_go() -> None:
    head = "# TYPE a gauge\n"
    parser = ExpositionParser()
    first, other = parser.parse(f'{head}a{{x="1"}} 1\n\nbc{{x="1"}} 2\n').series
    for value in (3, 4):  # of one shape
        same = parser.parse(f'{head}a{{x="1"}} {value}\n\nbc{{x="1"}} 2\n')
        assert same.series[0] is first
        assert same.series[1] is other
    assert parser.parse('bc{x="1"} 5\n').series[0] is other
    longer = parser.parse(f'{head}d 1\nbc{{x="1"}} 2\na{{x="1"}} 3\n').series
    assert longer[1] is other
    assert longer[2] is first


def test_the_metrics_of_one_device_share_its_labels() -> None:
    got = parse_exposition('a{gpu="0",UUID="u"} 1\nb{gpu="0",UUID="u"} 2\nb{gpu="1",UUID="u"} 3\n')
    assert got.series[0].labels is got.series[1].labels
    assert dict(got.series[2].labels) == {"gpu": "1", "UUID": "u"}
