"""Which collector reads a target, and when a target is asked."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.errors import ConfigurationError
from collector.plugins import SourceContext
from collector.schedule import LONGEST_REST_SECONDS, Turn, is_due, offset_share, plan_next, spread_seconds
from collector.scrape import ScrapeSource
from collector.settings import SourceSettings, TargetSettings
from collector.sharding import Shard, shard_of

KEYS = st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=60, unique=True)
NOW = datetime(2026, 1, 5, tzinfo=UTC)


@given(KEYS, st.integers(1, 12))
def test_one_collector_more_takes_only_its_own_share(keys: list[str], count: int) -> None:
    for key in keys:
        before, after = shard_of(key, count), shard_of(key, count + 1)
        assert 1 <= before <= count
        assert after in (before, count + 1)


def test_targets_are_spread_evenly_and_stay_where_they_are() -> None:
    spread = Counter(shard_of(f"node-{n}", 5) for n in range(5000))
    assert set(spread) == {1, 2, 3, 4, 5}
    assert min(spread.values()) > 900
    moved = sum(shard_of(f"node-{n}", 5) != shard_of(f"node-{n}", 6) for n in range(6000))
    assert 850 < moved < 1150  # a sixth of them
    assert [shard_of(key, 5) for key in ("node-a", "node-b", "node-c")] == [1, 2, 2]  # the same in every release


@given(st.integers(1, 9), st.data())
def test_a_shard_reads_as_it_is_written(count: int, data: st.DataObject) -> None:
    shard = Shard(data.draw(st.integers(1, count)), count)
    assert Shard.parse(str(shard)) == shard


@pytest.mark.parametrize("text", ["", "0/5", "6/5", "2", "a/b", "-1/5", "2/5/7", "1/0"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected a shard such as 2/5"):
        Shard.parse(text)


def source(shard: Shard | None, **settings: object) -> ScrapeSource:
    targets = [f"http://node-{n}:{port}/metrics" for n in range(40) for port in (9400, 9394)]
    targets_settings = SourceSettings.model_validate({"targets": targets, **settings})
    return ScrapeSource(targets_settings, SourceContext(shard=shard), fetch=lambda _: "up 1\n")


def test_collectors_divide_the_targets_and_all_exporters_of_a_node_go_together() -> None:
    parts = [{s.target.url for s in source(Shard(n, 3)).gather(NOW)} for n in (1, 2, 3)]
    assert set.union(*parts) == {s.target.url for s in source(None).gather(NOW)}
    assert sum(map(len, parts)) == 80
    for part in parts:
        nodes = {url.rpartition(":")[0] for url in part}
        assert part == {f"{node}:{port}/metrics" for node in nodes for port in (9400, 9394)}


def test_a_source_that_all_need_is_read_by_all() -> None:
    parts = [len(source(Shard(n, 3), sharded=False).gather(NOW)) for n in (1, 2, 3)]
    assert parts == [80, 80, 80]


def test_a_target_belongs_to_its_node_whatever_its_address() -> None:
    shard = Shard(shard_of("node-7", 4), 4)
    assert shard.has(TargetSettings(url="http://10.0.0.7:9400/metrics", node="node-7"))
    assert shard.has(TargetSettings(url="http://10.0.0.8:9400/metrics", labels={"node": "node-7"}))


@given(st.integers(1, 600).map(lambda n: n * 1000), st.lists(st.booleans(), max_size=12), st.integers(0, 900))
def test_turns_stand_on_the_grid_and_never_drift(interval_ms: int, failures: list[bool], late_ms: int) -> None:
    turn, now_ms = Turn(), 1_700_000_000_000 // interval_ms * interval_ms
    for failed in failures:
        plan_next(turn, now_ms + min(late_ms, interval_ms - 1), interval_ms, failed=failed)
        assert turn.next_ms % interval_ms == 0
        assert now_ms < turn.next_ms <= now_ms + max(interval_ms, LONGEST_REST_SECONDS * 1000)
        assert not is_due(turn, turn.next_ms - interval_ms, interval_ms)
        assert is_due(turn, turn.next_ms, interval_ms)
        now_ms = turn.next_ms


def test_a_target_that_does_not_answer_is_asked_less_often_until_it_does() -> None:
    turn, asked = Turn(), []
    for minute in range(30):
        if is_due(turn, minute * 60_000, 60_000):
            asked.append(minute)
            plan_next(turn, minute * 60_000, 60_000, failed=minute < 20)
    assert asked == [0, 1, 2, 4, 8, 13, 18, 23, 24, 25, 26, 27, 28, 29]


def test_requests_are_spread_over_a_tenth_of_the_cycle() -> None:
    assert [spread_seconds(interval) for interval in (1.0, 15.0, 60.0)] == [0.1, 1.5, 3.0]
    places = sorted(offset_share(f"http://node-{n}/") for n in range(1000))
    assert places[0] >= 0
    assert places[-1] < 1
    assert max(b - a for a, b in pairwise(places)) < 0.02
