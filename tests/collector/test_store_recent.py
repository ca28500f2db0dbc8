"""Recent raw rows without a query: the same answer as the query's, to the last bit."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.batch import make_rows
from collector.clock import to_ms
from collector.conformance import START, window
from collector.schema import MEASUREMENTS
from collector.store import query
from collector.store.engine import Engine
from collector.store.hot import gather
from collector.store.recent import fits, recent_rows
from collector.store.request import Pieces, Request, make_request

FIELDS = ["busy_ratio", "memory_used_bytes"]
SPEC = MEASUREMENTS["slice"]
NAMES = ["a", "b", "ä/ö", ""]
values = st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32)
rows = st.tuples(
    st.integers(0, 6), st.sampled_from(NAMES), st.sampled_from(NAMES), st.sampled_from(["t", "u"]), values, values
)
blobs = st.lists(st.lists(rows, min_size=1, max_size=6), max_size=5)
filters = st.sampled_from(
    [{}, {"gpu": ["a", "ä/ö"]}, {"slice": "b"}, {"tenant": "u"}, {"gpu": "a", "tenant": ["t"]}, {"gpu": []}]
)


def table(blob: list[tuple[int, str, str, str, float | None, float | None]]) -> pa.Table:
    minute, gpu, part, tenant, busy, memory = zip(*blob, strict=True)
    many = len(blob)
    return make_rows(
        "slice",
        [to_ms(START) + 60_000 * m for m in minute],
        {
            "cluster": ["c"] * many,
            "node": ["n"] * many,
            "gpu": gpu,
            "slice": part,
            "tenant": tenant,
            "workload": [f"w{m}" for m in minute],
        },
        {
            name: np.array([math.nan if v is None else v for v in column])
            for name, column in zip(FIELDS, (busy, memory), strict=True)
        },
    )


def ask(where: Mapping[str, object]) -> Request:
    return make_request(
        "slice",
        window(1, 5),
        fields=FIELDS,
        where=where,
        by=None,
        every=None,
        aggregate="mean",  # type: ignore[arg-type]  # drawn
    )


@settings(max_examples=150, deadline=None)
@given(blobs, filters)
def test_the_answer_is_that_of_the_query(
    drawn: list[list[tuple[int, str, str, str, float | None, float | None]]], where: dict[str, object]
) -> None:
    tables = [table(blob) for blob in drawn]
    seqs = np.cumsum([1, *(t.num_rows for t in tables)])[:-1].tolist()
    hot = gather(SPEC, FIELDS, tables, seqs)
    whole = (to_ms(START), to_ms(START) + 3_600_000)
    pieces = Pieces((), [whole, whole], {})  # anything may stand twice
    request = ask(where)
    statement, tier = query.statement(request, pieces)
    expected = query.to_frame(Engine().run(statement, hot=hot), request, tier)
    assert fits(request, pieces, hot)
    pd.testing.assert_frame_equal(query.to_frame(recent_rows(request, hot), request, tier), expected, check_exact=True)


def test_a_field_that_came_later_stands_beside_the_first_rows_tags() -> None:
    first, late = table([(2, "a", "s", "t", 0.5, None)]), table([(2, "a", "s", "u", None, 7.0)])
    found = recent_rows(ask({}), gather(SPEC, FIELDS, [first, late], [1, 2])).to_pylist()
    assert [(r["tenant"], r["busy_ratio"], r["memory_used_bytes"]) for r in found] == [("t", 0.5, 7.0)]


@pytest.mark.parametrize("aggregated", [True, False])
def test_only_few_raw_rows_go_without_a_query(aggregated: bool) -> None:
    few, many = (gather(SPEC, FIELDS, [table([(1, "a", "s", "t", 0.5, None)] * n)], [1]) for n in (1, 20_001))
    by = ("gpu",) if aggregated else None
    request = make_request("slice", window(1, 5), fields=FIELDS, where=None, by=by, every=None, aggregate="mean")
    assert [fits(request, Pieces((), (), {}), hot) for hot in (few, many)] == [not aggregated, False]
