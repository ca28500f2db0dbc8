"""Range answers as columns: the fast way and the plain one read the same numbers from whatever is valid JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.prometheus_answer import BadAnswerError, RangeAnswer, read_range

Series = tuple[dict[str, str], list[tuple[int, float]]]

labels = st.dictionaries(st.sampled_from(["__name__", "gpu", "pod"]), st.text(max_size=12), max_size=3)
hostile = st.sampled_from(['},"values":[[1,"2"]]', "]]", '],["', '"', "\\", '{"metric":{}', "\n", "a,b", "]}"])
stamps = st.integers(min_value=0, max_value=4_102_444_800_000)
numbers = st.floats(allow_nan=True, allow_infinity=True)
some_series = st.lists(
    st.tuples(
        st.one_of(labels, st.fixed_dictionaries({"pod": hostile, "__name__": hostile})),
        st.lists(st.tuples(stamps, numbers), max_size=5),
    ),
    max_size=5,
)


def written(value: float) -> str:
    """Return a number as Prometheus writes it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def document(series: list[Series]) -> dict[str, object]:
    result = [
        {"metric": metric, "values": [[at / 1000, written(value)] for at, value in samples]}
        for metric, samples in series
    ]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def same(answer: RangeAnswer, series: list[Series]) -> None:
    assert list(answer.metrics) == [metric for metric, _ in series]
    assert answer.counts.tolist() == [len(samples) for _, samples in series]
    assert answer.times_ms.tolist() == [at for _, samples in series for at, _ in samples]
    np.testing.assert_array_equal(answer.values, [value for _, samples in series for _, value in samples])


@given(some_series)
def test_what_prometheus_writes_is_read_to_the_last_bit(series: list[Series]) -> None:
    same(read_range(orjson.dumps(document(series))), series)


@given(some_series)
def test_what_others_write_is_read_as_well(series: list[Series]) -> None:
    same(read_range(json.dumps(document(series), indent=1).encode()), series)
    turned = document(series)
    for one in turned["data"]["result"]:  # type: ignore[index]
        one["values"] = one.pop("values")
        one["metric"] = one.pop("metric")
    same(read_range(orjson.dumps(turned)), series)


def test_a_series_of_histograms_has_no_samples() -> None:
    histogram = {"metric": {"__name__": "h"}, "histograms": [[1.0, {"count": "1", "sum": "2"}]]}
    plain = {"metric": {"__name__": "g"}, "values": [[1.5, "2"]]}
    body = {"status": "success", "data": {"resultType": "matrix", "result": [histogram, plain]}}
    answer = read_range(orjson.dumps(body))
    assert answer.counts.tolist() == [0, 1]
    assert (answer.times_ms.tolist(), answer.values.tolist()) == ([1500], [2.0])


def body_with(values: str, metric: str = '{"__name__":"g"}') -> bytes:
    one = f'{{"metric":{metric},"values":{values}}}'
    return f'{{"status":"success","data":{{"resultType":"matrix","result":[{one}]}}}}'.encode()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>", "no answer of Prometheus"),
        (b"", "no answer of Prometheus"),
        (b"[]", "no answer of Prometheus"),
        (b'{"status":"success","data":{"resultType":"vector","result":[]}}', "no matrix of series .'vector'"),
        (b'{"status":"success","data":{"resultType":"matrix","result":[7]}}', "no matrix"),
        (body_with('[[1,"2"]]', metric='{"gpu":7}'), "no matrix"),
        (body_with('[[1,"2"]')[:-3], "no answer of Prometheus"),
        (body_with('[[1,"2"],[3]]'), "no pair of numbers"),
        (body_with('[[1,"2","3"]]'), "no pair of numbers"),
        (body_with('[[1,"2"],["x","4"]]'), "no pair of numbers"),
        (body_with('[[1,"watts"]]'), "no pair of numbers"),
        (body_with("[[1,null]]"), "no pair of numbers"),
        (body_with('[["NaN","1"]]'), "a time that is no number"),
        (body_with("7"), "no matrix"),
    ],
)
def test_what_is_no_range_is_refused_in_words(body: bytes, words: str) -> None:
    with pytest.raises(BadAnswerError, match=words):
        read_range(body)
