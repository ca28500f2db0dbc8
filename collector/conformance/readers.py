# ruff: noqa: D102, S101 - the names of the tests say what they check, with assert
"""Laws of the reading half of a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import numpy as np
import pandas as pd
import pytest

from collector.batch import Batch, Event, Fact, Reject, Severity, Subject
from collector.conformance.rows import HOUR, MINUTE, at, slice_rows, window
from collector.protocols import StoreReader
from collector.schema import MEASUREMENTS
from collector.window import Window

_KEY = ["cluster", "node", "gpu", "slice"]


class StoreReaderConformance:
    """Laws of the reading half. Needs the fixture `make_reader`: batches, in order of writing -> a store with them."""

    @pytest.fixture
    def make_reader(self) -> Callable[[Sequence[Batch]], StoreReader]:
        """Return a function that gives a store holding the batches."""
        raise NotImplementedError("expected a fixture make_reader(batches) -> StoreReader in the class that inherits")

    def test_raw_rows_come_whole_sorted_and_half_open(
        self, make_reader: Callable[[Sequence[Batch]], StoreReader]
    ) -> None:
        store = make_reader(
            [
                slice_rows([1, 0], ["b", "b"], busy_ratio=[0.4, 0.3]),
                slice_rows([0, 1, 2], ["a", "a", "a"], busy_ratio=[0.1, np.nan, 0.9], queue_depth_count=[3, 4, 5]),
            ]
        )
        frame = store.read("slice", window(0, 2))
        spec = MEASUREMENTS["slice"]
        assert list(frame.columns) == ["time", *spec.tags, *spec.field_names]
        assert str(frame["time"].dtype) == "datetime64[ms, UTC]"
        assert frame["slice"].tolist() == ["a", "a", "b", "b"]
        assert frame["time"].tolist() == [at(0), at(1), at(0), at(1)]
        np.testing.assert_array_equal(frame["busy_ratio"], [0.1, np.nan, 0.3, 0.4])
        np.testing.assert_array_equal(frame["queue_depth_count"], [3, 4, np.nan, np.nan])
        assert all(frame[name].dtype == np.float64 for name in spec.field_names)
        assert frame["flops_per_second"].isna().all()
        assert frame["workload"].tolist() == ["job"] * 4

    def test_window_without_rows_is_an_empty_frame_with_columns(
        self, make_reader: Callable[[Sequence[Batch]], StoreReader]
    ) -> None:
        store = make_reader([slice_rows([0], ["a"], busy_ratio=[0.1])])
        frame = store.read("slice", window(5, 6), fields=["busy_ratio"])
        assert frame.empty
        assert list(frame.columns) == ["time", *MEASUREMENTS["slice"].tags, "busy_ratio"]
        assert store.read("slice", window(5, 6), by=(), every=MINUTE, fields=["busy_ratio"]).empty
        assert store.read("gpu", window(0, 6)).empty

    def test_fields_and_where_choose(self, make_reader: Callable[[Sequence[Batch]], StoreReader]) -> None:
        store = make_reader(
            [
                slice_rows([0, 0, 0], ["a", "b", "it's"], tenant=["x", "y", "x"], busy_ratio=[0.1, 0.2, 0.3]),
            ]
        )

        def busy(**where: str | Sequence[str]) -> list[float]:
            return store.read("slice", window(0, 1), fields=["busy_ratio"], where=where)["busy_ratio"].tolist()

        assert busy(slice="it's") == [0.3]
        assert busy(slice=["a", "b"]) == [0.1, 0.2]
        assert busy(tenant="x") == [0.1, 0.3]
        assert busy(tenant="x", slice="a") == [0.1]
        assert busy(slice="absent") == []
        assert busy(slice=[]) == []

    def test_unknown_names_are_errors(self, make_reader: Callable[[Sequence[Batch]], StoreReader]) -> None:
        store = make_reader([slice_rows([0], ["a"], busy_ratio=[0.1])])
        with pytest.raises(KeyError, match="nonsense"):
            store.read("nonsense", window(0, 1))
        with pytest.raises(KeyError, match="nonsense"):
            store.read("slice", window(0, 1), fields=["nonsense"])
        with pytest.raises(KeyError, match="nonsense"):
            store.read("slice", window(0, 1), where={"nonsense": "x"})
        with pytest.raises(KeyError, match="nonsense"):
            store.read("slice", window(0, 1), by=["nonsense"])
        with pytest.raises(ValueError, match="nonsense"):
            store.read("slice", window(0, 1), every=MINUTE, aggregate="nonsense")
        with pytest.raises(KeyError, match="nonsense"):
            store.span("nonsense")

    def test_percentiles_are_never_averaged(self, make_reader: Callable[[Sequence[Batch]], StoreReader]) -> None:
        store = make_reader([slice_rows([0, 1], ["a", "a"], latency_p99_seconds=[0.1, 0.5], busy_ratio=[0.1, 0.3])])
        with pytest.raises(ValueError, match="never averaged"):
            store.read("slice", window(0, 2), every=HOUR, aggregate={"latency_p99_seconds": "mean"})
        frame = store.read("slice", window(0, 2), every=HOUR, fields=["latency_p99_seconds", "busy_ratio"])
        assert frame["latency_p99_seconds"].tolist() == [0.5]
        assert frame["busy_ratio"].tolist() == pytest.approx([0.2])

    @pytest.mark.parametrize(
        ("aggregate", "expected"),
        [
            ("mean", [0.3, 0.8, np.nan]),
            ("min", [0.1, 0.7, np.nan]),
            ("max", [0.5, 0.9, np.nan]),
            ("sum", [0.9, 1.6, np.nan]),
            ("count", [3, 2, 0]),
            ("first", [0.5, 0.7, np.nan]),
            ("last", [0.3, 0.9, np.nan]),
            ("p50", [0.3, 0.7, np.nan]),
            ("p99.9", [0.5, 0.9, np.nan]),
            ("p100", [0.5, 0.9, np.nan]),
        ],
    )
    def test_aggregates(
        self, make_reader: Callable[[Sequence[Batch]], StoreReader], aggregate: str, expected: list[float]
    ) -> None:
        store = make_reader(
            [
                slice_rows([0, 1, 2, 3], ["a"] * 4, busy_ratio=[0.5, np.nan, 0.1, 0.3]),
                slice_rows([10, 11, 20], ["a"] * 3, busy_ratio=[0.7, 0.9, np.nan]),
            ]
        )
        frame = store.read("slice", window(0, 30), fields=["busy_ratio"], every=10 * MINUTE, aggregate=aggregate)
        assert list(frame.columns) == ["time", *_KEY, "busy_ratio"]
        assert frame["time"].tolist() == [at(0), at(10), at(20)]
        np.testing.assert_allclose(frame["busy_ratio"], expected, rtol=1e-12)

    @pytest.mark.parametrize("percentile", [1, 5, 7, 25, 50, 90, 95, 99])
    def test_percentiles_are_nearest_rank(
        self, make_reader: Callable[[Sequence[Batch]], StoreReader], percentile: int
    ) -> None:
        values = [float(v) for v in np.random.default_rng(percentile).permutation(np.arange(1.0, 41.0))]
        store = make_reader([slice_rows(list(range(40)), ["a"] * 40, queue_depth_count=values)])
        frame = store.read("slice", window(0, 60), fields=["queue_depth_count"], by=(), aggregate=f"p{percentile}")
        rank = -(-percentile * 40 // 100)  # ceil(q n); the values are their own ranks
        assert frame["queue_depth_count"].tolist() == [float(rank)]

    def test_one_aggregate_a_field(self, make_reader: Callable[[Sequence[Batch]], StoreReader]) -> None:
        store = make_reader([slice_rows([0, 1], ["a", "a"], busy_ratio=[0.2, 0.4], steps_count=[5, 7])])
        frame = store.read(
            "slice",
            window(0, 60),
            fields=["busy_ratio", "steps_count"],
            every=HOUR,
            aggregate={"busy_ratio": "max", "steps_count": "sum"},
        )
        assert frame[["busy_ratio", "steps_count"]].to_numpy().tolist() == [[0.4, 12.0]]

    def test_buckets_stand_on_the_epoch(self, make_reader: Callable[[Sequence[Batch]], StoreReader]) -> None:
        store = make_reader([slice_rows([3, 7, 12, 19], ["a"] * 4, steps_count=[1, 2, 4, 8])])
        frame = store.read("slice", window(5, 15), fields=["steps_count"], every=10 * MINUTE, aggregate="sum")
        assert frame["time"].tolist() == [at(0), at(10)]
        assert frame["steps_count"].tolist() == [2, 4]

    def test_groups(self, make_reader: Callable[[Sequence[Batch]], StoreReader]) -> None:
        store = make_reader(
            [
                slice_rows([0, 0, 1], ["a", "b", "c"], tenant=["x", "y", "x"], steps_count=[1, 2, 4]),
            ]
        )

        def total(by: Sequence[str], every: timedelta | None = None) -> pd.DataFrame:
            return store.read("slice", window(0, 2), fields=["steps_count"], by=by, every=every, aggregate="sum")

        by_tenant = total(["tenant"])
        assert by_tenant.to_dict("list") == {"time": [at(0)] * 2, "tenant": ["x", "y"], "steps_count": [5, 2]}
        assert total([]).to_dict("list") == {"time": [at(0)], "steps_count": [7]}
        assert total([], MINUTE)["steps_count"].tolist() == [3, 4]

    def test_duplicates_merge_field_by_field(self, make_reader: Callable[[Sequence[Batch]], StoreReader]) -> None:
        store = make_reader(
            [
                slice_rows([0, 1], ["a", "a"], tenant="first", busy_ratio=[0.1, 0.2], steps_count=[1, 2]),
                slice_rows([0], ["a"], tenant="later", busy_ratio=[np.nan], steps_count=[9], priority=[3]),
                slice_rows([0, 0], ["a", "a"], tenant="later", busy_ratio=[0.7, 0.8]),
            ]
        )
        frame = store.read("slice", window(0, 60), fields=["busy_ratio", "steps_count", "priority"])
        np.testing.assert_array_equal(frame[["busy_ratio", "steps_count", "priority"]], [[0.8, 9, 3], [0.2, 2, np.nan]])
        assert frame["tenant"].tolist() == ["first", "first"]
        assert store.read("slice", window(0, 60), where={"tenant": "later"}).empty
        sums = store.read("slice", window(0, 60), fields=["steps_count"], every=HOUR, aggregate="sum")
        assert sums["steps_count"].tolist() == [11]
        counts = store.read("slice", window(0, 60), fields=["busy_ratio"], by=[], aggregate="count")
        assert counts["busy_ratio"].tolist() == [2]

    def test_the_order_of_late_rows_does_not_matter(
        self, make_reader: Callable[[Sequence[Batch]], StoreReader]
    ) -> None:
        parts = [slice_rows([m, m], ["a", "b"], steps_count=[m, 10 * m]) for m in (0, 30, 61, 95, 1500)]
        first, second = (
            make_reader(order).read("slice", window(0, 1560), fields=["steps_count"], every=HOUR, aggregate="sum")
            for order in (parts, parts[::-1])
        )
        pd.testing.assert_frame_equal(first, second)
        assert first["steps_count"].tolist() == [30, 156, 1500, 300, 1560, 15000]

    def test_long_windows_answer_as_short_ones(self, make_reader: Callable[[Sequence[Batch]], StoreReader]) -> None:
        rng = np.random.default_rng(7)
        minutes = [float(m) for m in range(0, 3 * 1440, 7)]
        values = np.where(rng.random(len(minutes)) < 0.1, np.nan, np.round(rng.random(len(minutes)), 3))
        half = len(minutes) // 2
        store = make_reader(
            [
                slice_rows(minutes[:half], ["a"] * half, busy_ratio=values[:half].tolist()),
                slice_rows(minutes[half:], ["a"] * (len(minutes) - half), busy_ratio=values[half:].tolist()),
                slice_rows([minutes[10]], ["a"], busy_ratio=[0.999]),
            ]
        )
        values[10] = 0.999
        for aggregate in ("mean", "min", "max", "sum", "count"):
            frame = store.read("slice", window(0, 3 * 1440), fields=["busy_ratio"], every=HOUR, aggregate=aggregate)
            grouped = pd.Series(values).groupby([int(m // 60) for m in minutes])
            expected = grouped.sum(min_count=1) if aggregate == "sum" else grouped.agg(aggregate)
            np.testing.assert_allclose(frame["busy_ratio"], expected, rtol=1e-12)

    def test_latest_is_the_newest_row_of_each_key(self, make_reader: Callable[[Sequence[Batch]], StoreReader]) -> None:
        store = make_reader(
            [
                slice_rows([0, 1, 5], ["a", "a", "a"], busy_ratio=[0.1, np.nan, 0.5]),
                slice_rows([2], ["b"], busy_ratio=[0.2]),
            ]
        )
        frame = store.latest("slice", at=at(2), lookback=2 * MINUTE, fields=["busy_ratio"])
        assert frame["slice"].tolist() == ["a", "b"]
        assert frame["time"].tolist() == [at(1), at(2)]
        np.testing.assert_array_equal(frame["busy_ratio"], [np.nan, 0.2])
        assert store.latest("slice", at=at(2), lookback=MINUTE)["slice"].tolist() == ["b"]
        assert store.latest("slice", at=at(2), lookback=MINUTE, where={"slice": "a"}).empty

    @pytest.mark.parametrize("span", [60, 2 * 2880])
    def test_groups_by_holder_look_the_unknown_up_in_facts(
        self, make_reader: Callable[[Sequence[Batch]], StoreReader], span: int
    ) -> None:
        rows = slice_rows([0, 1, 2, 3], ["a"] * 4, tenant=["unknown"] * 3 + ["x"], steps_count=[1, 2, 4, 8])
        rows.facts = [
            Fact(Subject("slice", "lab", "node-a", "GPU-1", "a"), "tenant", "late", at(1)),
            Fact(Subject("slice", "lab", "node-a", "GPU-1", "a"), "tenant", "later", at(2)),
            Fact(Subject("slice", "lab", "node-a", "GPU-1", "b"), "tenant", "other", at(0)),
        ]
        store = make_reader([rows])
        frame = store.read("slice", window(0, span), fields=["steps_count"], by=["tenant"], aggregate="sum")
        assert dict(zip(frame["tenant"], frame["steps_count"], strict=True)) == {
            "unknown": 1, "late": 2, "later": 4, "x": 8,
        }  # fmt: skip
        where = {"tenant": "later"}
        chosen = store.read("slice", window(0, span), fields=["steps_count"], where=where, every=HOUR, aggregate="sum")
        assert chosen["steps_count"].tolist() == [4]
        assert store.read("slice", window(0, span))["tenant"].tolist() == ["unknown"] * 3 + ["x"]

    def test_facts_are_spans(self, make_reader: Callable[[Sequence[Batch]], StoreReader]) -> None:
        who = Subject("slice", "lab", "node-a", "GPU-1", "a")
        store = make_reader(
            [
                Batch(facts=[Fact(who, "kind", "mps", at(0)), Fact(who, "pod", "ns/p", at(0))]),
                Batch(facts=[Fact(who, "kind", "mps", at(1)), Fact(who, "pod", None, at(5))]),
                Batch(facts=[Fact(who, "kind", "mig", at(3), "declared")]),
                Batch(facts=[Fact(who, "kind", "mps", at(2)), Fact(who, "pod", "ns/p", at(9))]),
            ]
        )
        facts = store.facts()
        assert list(facts.columns) == [
            "kind", "cluster", "node", "gpu", "slice", "object", "name", "value", "from", "to", "provenance",
        ]  # fmt: skip
        assert facts[["name", "value", "provenance"]].to_numpy().tolist() == [
            ["kind", "mps", "measured"],
            ["kind", "mig", "declared"],
            ["pod", "ns/p", "measured"],
            ["pod", "ns/p", "measured"],
        ]
        assert facts["from"].tolist() == [at(0), at(3), at(0), at(9)]
        assert facts["to"].dropna().tolist() == [at(3), at(5)]
        assert facts["to"].isna().tolist() == [False, True, False, True]
        assert facts[["cluster", "node", "gpu", "slice", "object"]].drop_duplicates().to_numpy().tolist() == [
            ["lab", "node-a", "GPU-1", "a", ""]
        ]
        assert store.facts(window(3, 4), names=["kind"])["value"].tolist() == ["mig"]
        assert store.facts(window(5, 9), names=["pod"]).empty
        assert store.facts(window(5, 9), names=[]).empty

    def test_late_facts_find_their_place(self, make_reader: Callable[[Sequence[Batch]], StoreReader]) -> None:
        who = Subject("gpu", "lab", "node-a", "GPU-1")
        store = make_reader(
            [
                Batch(facts=[Fact(who, "model", "B", at(10)), Fact(who, "mig", "on", at(10))]),
                Batch(
                    facts=[
                        Fact(who, "model", "B", at(8)),
                        Fact(who, "model", "A", at(2)),
                        Fact(who, "mig", None, at(1)),
                    ]
                ),
                Batch(
                    facts=[
                        Fact(who, "model", "C", at(12)),
                        Fact(who, "model", "D", at(12)),
                        Fact(who, "x", None, at(0)),
                    ]
                ),
                Batch(facts=[Fact(who, "model", "A", at(3)), Fact(who, "model", "E", at(11))]),
            ]
        )
        facts = store.facts(names=["model"])
        assert facts["value"].tolist() == ["A", "B", "E", "D"]
        assert facts["from"].tolist() == [at(2), at(8), at(11), at(12)]
        assert facts["to"].tolist()[:3] == [at(8), at(11), at(12)]
        assert store.facts(names=["mig", "x"])["from"].tolist() == [at(10)]

    def test_events_and_rejects_are_kept_once(self, make_reader: Callable[[Sequence[Batch]], StoreReader]) -> None:
        card = Subject("gpu", "lab", "node-a", "GPU-1")
        events = [
            Event(card, "xid", Severity.CRITICAL, "XID 79: fell off the bus", at(1)),
            Event(card, "xid", Severity.WARNING, "XID 48: double bit error", at(1)),
            Event(card, "card_lost", Severity.ERROR, "gone", at(2)),
        ]
        rejects = [Reject(card, "power_watts", "above 3000", at(1), 2)]
        store = make_reader([Batch(events=events, rejects=rejects), Batch(events=events, rejects=rejects)])
        frame = store.events(window(0, 2))
        assert list(frame.columns) == [
            "time", "kind", "cluster", "node", "gpu", "slice", "object", "code", "severity", "message",
        ]  # fmt: skip
        assert frame[["time", "code", "severity", "message"]].to_numpy().tolist() == [
            [at(1), "xid", "warning", "XID 48: double bit error"],
            [at(1), "xid", "critical", "XID 79: fell off the bus"],
        ]
        assert store.events(window(2, 3))["gpu"].tolist() == ["GPU-1"]
        kept = store.rejects(window(0, 2))
        assert kept[["gpu", "field", "reason", "count"]].to_numpy().tolist() == [
            ["GPU-1", "power_watts", "above 3000", 2]
        ]
        assert store.rejects(window(2, 3)).empty

    def test_partitions_and_span(self, make_reader: Callable[[Sequence[Batch]], StoreReader]) -> None:
        store = make_reader(
            [
                slice_rows([1, 2, 9], ["a", "a", "b"], node=["n2", "n1", "n3"], busy_ratio=[0.1, 0.2, 0.3]),
            ]
        )
        assert store.partitions(window(0, 5)) == [("lab", "n1"), ("lab", "n2")]
        assert store.span("slice") == Window(at(1), at(9) + timedelta(milliseconds=1))
        assert store.span("gpu") is None
