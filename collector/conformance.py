# ruff: noqa: D102, S101 - the names of the tests say what they check, with assert
"""Laws that every source and every store keeps, as pytest classes to inherit from.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda: MyStore(tmp_path)

Each `make_store()` of one test opens an empty store or, where it was called before, one that sees the same rows only if
the implementation keeps them; the suite calls it once a test. Override `settle` to let the store reorganise its rows
between writing and reading: no law may notice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from collector.batch import Batch, Event, Fact, Reject, Severity, Subject, make_rows
from collector.clock import grid_floor, to_ms
from collector.errors import ConfigurationError
from collector.protocols import Source, Store, StoreReader
from collector.schema import MEASUREMENTS
from collector.window import Window

START = datetime(2026, 1, 5, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
_KEY = ["cluster", "node", "gpu", "slice"]


def at(minutes: float) -> datetime:
    """Return the instant so many minutes after the suite's start."""
    return START + minutes * MINUTE


def window(first_minute: float, last_minute: float) -> Window:
    """Return [start + first, start + last)."""
    return Window(at(first_minute), at(last_minute))


def slice_rows(
    minutes: Sequence[float],
    names: Sequence[str],
    *,
    tenant: str | Sequence[str] = "team",
    cluster: str = "lab",
    node: str | Sequence[str] = "node-a",
    **fields: Sequence[float],
) -> Batch:
    """Build a batch of `slice` rows, one a minute and name."""
    count = len(minutes)

    def column(value: str | Sequence[str]) -> list[str]:
        return [value] * count if isinstance(value, str) else list(value)

    times = [to_ms(at(m)) for m in minutes]
    tags = {
        "cluster": [cluster] * count,
        "node": column(node),
        "gpu": ["GPU-1"] * count,
        "slice": list(names),
        "tenant": column(tenant),
        "workload": ["job"] * count,
    }
    values = {name: np.asarray(v, dtype=np.float64) for name, v in fields.items()}
    return Batch(rows={"slice": make_rows("slice", times, tags, values)})


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


class StoreConformance(StoreReaderConformance):
    """Laws of a whole store. Needs the fixture `make_store`: () -> an empty store."""

    @pytest.fixture
    def make_store(self) -> Callable[[], Store]:
        """Return a function that gives an empty store."""
        raise NotImplementedError("expected a fixture make_store() -> Store in the class that inherits")

    def settle(self, store: Store) -> None:
        """Let the store reorganise what it holds; called after each write of a test."""

    @pytest.fixture
    def make_reader(self, make_store: Callable[[], Store]) -> Callable[[Sequence[Batch]], StoreReader]:
        """Return a function that writes the batches into a store."""

        def make(batches: Sequence[Batch]) -> Store:
            store = make_store()
            for batch in batches:
                store.write(batch)
                self.settle(store)
            return store

        return make

    def test_a_bad_batch_leaves_nothing_behind(self, make_store: Callable[[], Store]) -> None:
        store = make_store()
        good = slice_rows([0], ["a"], busy_ratio=[0.1])
        good.facts.append(Fact(Subject("cluster", "lab"), "interval_seconds", "60", at(0)))
        good.rows["gpu"] = good.rows["slice"]  # not what gpu rows look like
        with pytest.raises(ValueError, match="gpu"):
            store.write(good)
        assert store.read("slice", window(0, 1)).empty
        assert store.facts().empty

    def test_simulated_and_real_rows_do_not_mix(self, make_store: Callable[[], Store]) -> None:
        store = make_store()
        simulated = slice_rows([0], ["a"], cluster="demo", busy_ratio=[0.1])
        simulated.facts.append(Fact(Subject("cluster", "demo"), "simulated", "true", at(0)))
        store.write(simulated)
        store.write(slice_rows([1], ["a"], cluster="demo", busy_ratio=[0.1]))
        with pytest.raises(ConfigurationError, match="simulated"):
            store.write(slice_rows([1], ["a"], cluster="prod", busy_ratio=[0.1]))
        assert store.read("slice", window(0, 9))["cluster"].tolist() == ["demo", "demo"]

    def test_real_store_refuses_simulated_rows(self, make_store: Callable[[], Store]) -> None:
        store = make_store()
        store.write(slice_rows([0], ["a"], busy_ratio=[0.1]))
        simulated = slice_rows([0], ["a"], cluster="demo", busy_ratio=[0.1])
        simulated.facts.append(Fact(Subject("cluster", "demo"), "simulated", "true", at(0)))
        with pytest.raises(ConfigurationError, match="refuses simulated"):
            store.write(simulated)

    def test_delete_takes_what_matches_and_no_more(self, make_store: Callable[[], Store]) -> None:
        store = make_store()
        store.write(slice_rows([0, 1, 2, 3], ["a"] * 4, steps_count=[1, 2, 4, 8]))
        self.settle(store)
        store.write(slice_rows([0, 1, 2, 3], ["b"] * 4, tenant="x", steps_count=[1, 2, 4, 8]))
        assert store.delete("slice", window(1, 3), {"slice": "a"}) == 2
        assert store.delete("slice", window(2, 9), {"tenant": "x"}) == 2
        assert store.delete("slice", window(50, 60)) == 0
        frame = store.read("slice", window(0, 9), fields=["steps_count"])
        assert frame[["slice", "steps_count"]].to_numpy().tolist() == [["a", 1], ["a", 8], ["b", 1], ["b", 2]]
        total = store.read("slice", window(0, 60), fields=["steps_count"], by=[], every=HOUR, aggregate="sum")
        assert total["steps_count"].tolist() == [12]
        store.write(slice_rows([1], ["a"], steps_count=[5]))
        assert store.read("slice", window(1, 2), where={"slice": "a"})["steps_count"].tolist() == [5]
        assert store.delete("slice", window(0, 60)) == 5
        assert store.read("slice", window(0, 60)).empty
        with pytest.raises(KeyError, match="nonsense"):
            store.delete("slice", window(0, 1), {"nonsense": "x"})

    def test_retention_keeps_what_is_young(self, make_store: Callable[[], Store]) -> None:
        store = make_store()
        store.write(slice_rows([0, 1], ["a", "a"], busy_ratio=[0.1, 0.2]))
        self.settle(store)
        assert store.retain(at(5)) == 0
        assert len(store.read("slice", window(0, 9))) == 2
        far = START + 3650 * DAY
        assert store.retain(far) >= 2
        assert store.read("slice", window(0, 9)).empty
        assert store.span("slice") is None


class SourceConformance:
    """Laws of a source. Needs the fixtures `source`, `now` (an instant at which it has something) and `past`."""

    @pytest.fixture
    def source(self) -> Source:
        """Return the source under test."""
        raise NotImplementedError("expected a fixture `source` in the class that inherits")

    @pytest.fixture
    def now(self) -> datetime:
        """Return an instant at which the source has something to read."""
        raise NotImplementedError("expected a fixture `now` in the class that inherits")

    @pytest.fixture
    def past(self) -> Window:
        """Return a window to backfill; a source without a past gives no batch for it."""
        raise NotImplementedError("expected a fixture `past` in the class that inherits")

    @pytest.fixture
    def secrets(self) -> tuple[str, ...]:
        """Return texts that must never be shown, such as the token in the source's settings."""
        return ()

    @staticmethod
    def check_rows(batch: Batch) -> None:
        """Check every table against the schema: known columns, declared types, no null tag, valid ranges."""
        for name, table in batch.rows.items():
            spec = MEASUREMENTS[name]
            declared = spec.arrow_schema()
            assert list(table.column_names[: 1 + len(spec.tags)]) == ["time", *spec.tags]
            for column in table.column_names:
                assert table.schema.field(column).type == declared.field(column).type, f"{name}.{column}"
            for tag in ("time", *spec.tags):
                assert table.column(tag).null_count == 0, f"{name}.{tag}"
            for field in spec.fields:
                if field.name in table.column_names:
                    values = table.column(field.name).to_numpy()
                    values = values[~np.isnan(values)]
                    assert ((values >= field.low) & (values <= field.high)).all(), f"{name}.{field.name}"

    def test_poll_gives_rows_of_the_schema_on_the_grid(self, source: Source, now: datetime) -> None:
        batch = source.poll(now)
        assert batch.row_count > 0
        self.check_rows(batch)
        instant = grid_floor(now, source.describe().interval_seconds)
        for table in batch.rows.values():
            assert set(table.column("time").to_pylist()) == {instant}

    def test_each_key_stands_once_in_a_poll(self, source: Source, now: datetime) -> None:
        for name, table in source.poll(now).rows.items():
            frame = table.to_pandas()
            assert not frame.duplicated(["time", *MEASUREMENTS[name].key]).any(), name

    def test_backfill_is_ordered_and_half_open(self, source: Source, past: Window) -> None:
        newest: datetime | None = None
        for batch in source.backfill(past.start, past.end):
            self.check_rows(batch)
            times = [t for table in batch.rows.values() for t in table.column("time").to_pylist()]
            if times:
                assert past.start <= min(times)
                assert max(times) < past.end
                assert newest is None or min(times) > newest
                newest = max(times)

    def test_description_holds_no_secret(self, source: Source, secrets: tuple[str, ...]) -> None:
        described = source.describe()
        assert described.kind
        assert described.name
        assert described.interval_seconds > 0
        assert not [secret for secret in secrets if secret in repr(described)]
