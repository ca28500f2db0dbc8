# ruff: noqa: D102, S101 - the names of the tests say what they check, with assert
"""Laws of a whole store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from collector.batch import Batch, Fact, Subject
from collector.conformance.readers import StoreReaderConformance
from collector.conformance.rows import DAY, HOUR, START, at, slice_rows, window
from collector.errors import ConfigurationError
from collector.protocols import Store, StoreReader

# Each has its use against line protocol, InfluxQL, SQL, CSV, or a URL.
HOSTILE_NAMES = (
    "it's", 'say "hi"', "a b", " ", "a,b", "a=b", "a, b", ",", "=", "ends in \\", "\\", "a\\,b", "a\\nb",
    "new\nline", "return\rfeed", "tab\there", "nul\x00", "\u00e9", "e\u0301", "日本", "🚀", "%", "%41", "%%", "${x}",
    "$tag",    "--", ";", "/* */", "<b>", "", "#", "null", "NaN", "0", "1e5",
)  # fmt: skip


class StoreConformance(StoreReaderConformance):
    """Laws of a whole store. Needs the fixture `make_store`: () -> an empty store.

    series: how many there are in the test of many; a whole number of thousands.
    """

    series = 100_000

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

    def test_values_that_a_protocol_could_stumble_over_come_back(self, make_store: Callable[[], Store]) -> None:
        store = make_store()
        count = len(HOSTILE_NAMES)
        numbers = [float(n) for n in range(count)]
        store.write(slice_rows([0.0] * count, HOSTILE_NAMES, tenant=HOSTILE_NAMES[::-1], steps_count=numbers))
        self.settle(store)
        frame = store.read("slice", window(0, 60), fields=["steps_count"])
        assert dict(zip(frame["slice"], frame["steps_count"], strict=True)) == dict(
            zip(HOSTILE_NAMES, numbers, strict=True)
        )
        assert dict(zip(frame["slice"], frame["tenant"], strict=True)) == dict(
            zip(HOSTILE_NAMES, HOSTILE_NAMES[::-1], strict=True)
        )
        assert frame["slice"].tolist() == sorted(HOSTILE_NAMES, key=str.encode)
        grouped = store.read("slice", window(0, 60), fields=["steps_count"], every=HOUR, by=["slice"], aggregate="sum")
        assert dict(zip(grouped["slice"], grouped["steps_count"], strict=True)) == dict(
            zip(HOSTILE_NAMES, numbers, strict=True)
        )
        newest = store.latest("slice", at=at(1), lookback=HOUR, fields=["steps_count"])
        assert newest["slice"].tolist() == frame["slice"].tolist()
        for name, number in zip(HOSTILE_NAMES, numbers, strict=True):
            chosen = store.read("slice", window(0, 60), fields=["steps_count"], where={"slice": name})
            assert chosen["steps_count"].tolist() == [number], name

    def test_a_hundred_thousand_series(self, make_store: Callable[[], Store]) -> None:
        store, count = make_store(), self.series
        names = [f"slice-{n:06d}" for n in range(count)]
        nodes = [f"node-{n // 1000:03d}" for n in range(count)]
        values = [float(n) for n in range(count)]
        store.write(slice_rows([0] * count, names, node=nodes, steps_count=values))
        store.write(slice_rows([1], names[-1:], node=nodes[-1:], steps_count=[float(count)]))
        self.settle(store)
        total = store.read("slice", window(0, 60), fields=["steps_count"], by=[], aggregate="sum")
        assert total["steps_count"].tolist() == [count * (count - 1) / 2 + count]
        by_node = store.read("slice", window(0, 60), fields=["steps_count"], by=["node"], every=HOUR, aggregate="count")
        assert by_node["steps_count"].tolist() == [1000.0] * (count // 1000 - 1) + [1001.0]
        newest = store.latest("slice", at=at(2), lookback=HOUR, fields=["steps_count"])
        assert newest["slice"].tolist() == names
        assert newest["steps_count"].tolist() == [*values[:-1], float(count)]
        one = store.read("slice", window(0, 60), where={"slice": names[-1]}, fields=["steps_count"])
        assert one["steps_count"].tolist() == [count - 1.0, float(count)]
        assert len(store.partitions(window(0, 60))) == count // 1000

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
