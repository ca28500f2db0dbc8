"""Several sources of one configuration: what one tells of cards and another one of pods comes together."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from collector.assemble import Scrape
from collector.batch import Batch
from collector.clock import VirtualClock
from collector.collect import Collector
from collector.errors import UnreachableError
from collector.plugins import SourceContext
from collector.scrape import ScrapeSource
from collector.settings import SourceSettings, TargetSettings
from tests.collector.test_assemble_slices import dcgm, held, kube

START = datetime(2026, 1, 5, tzinfo=UTC)
CARDS, KUBE = "http://a:9400/metrics", "http://k:8080/metrics"


class MemoryStore:
    """Keeps batches."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def write(self, batch: Batch) -> None:
        self.batches.append(batch)


class LostSource(ScrapeSource):
    """Cannot be read at all while `lost`, as a Prometheus that does not answer."""

    lost = False

    def gather(self, now: datetime) -> list[Scrape]:
        if self.lost:
            raise UnreachableError("the server does not answer")
        return super().gather(now)


class Sources:
    """One source of cards and one of kube-state-metrics, in a collector that polls them in a given order."""

    def __init__(self, order: str, state: Path | None = None) -> None:
        self.texts: dict[str, str] = {}
        self.store = MemoryStore()
        self.now = START - timedelta(minutes=1)
        self.made = {
            name: LostSource(SourceSettings(name=name, targets=urls), SourceContext(cluster="test"), fetch=self._fetch)
            for name, urls in (("cards", (CARDS,)), ("kube", (KUBE,)), ("again", (CARDS,)))
        }
        self.collector = Collector(
            [self.made[name] for name in order.split()],
            self.store,  # type: ignore[arg-type]  # writes are all it needs
            VirtualClock(START),
            60.0,
            state_path=state,
        )

    def _fetch(self, target: TargetSettings) -> str:
        if target.url not in self.texts:
            raise UnreachableError(f"{target.url}: expected an answer, got none")
        return self.texts[target.url]

    def poll(self) -> Batch:
        """Run a cycle; it must write one batch."""
        self.now += timedelta(minutes=1)
        before = len(self.store.batches)
        self.collector.run_once(self.now)
        assert len(self.store.batches) == before + 1
        return self.store.batches[-1]


def holders(batch: Batch) -> list[tuple[datetime, str, str]]:
    rows = batch.rows["slice"].to_pylist() if "slice" in batch.rows else []
    return sorted((row["time"], row["gpu"], row["workload"]) for row in rows)


ORDERS = ["cards kube", "kube cards", "cards kube again"]


def cards(*pods: str) -> str:
    return "".join(
        dcgm("DCGM_FI_DEV_GPU_UTIL", 50, uuid=f"GPU-{n}", gpu=str(n), **held(pod)) for n, pod in enumerate(pods)
    )


@pytest.mark.parametrize("order", ORDERS)
def test_pods_of_one_source_name_the_holders_of_anothers_cards(order: str) -> None:
    sources = Sources(order)
    sources.texts = {CARDS: cards("a-7d9f-x1"), KUBE: kube({"ns/a-7d9f-x1": {"label": "search"}})}
    for minute in range(4):
        batch = sources.poll()
        assert holders(batch) == [(START + timedelta(minutes=minute), "GPU-0", "search")]
        assert batch.rows["gpu"].num_rows == batch.rows["queue"].num_rows == 1
        assert [*batch.events, *batch.rejects] == []


@pytest.mark.parametrize("order", ORDERS)
def test_a_row_that_waits_for_its_holder_is_released_once(order: str) -> None:
    sources = Sources(order)
    one: dict[str, dict[str, object]] = {"ns/a-0": {"label": "search"}}
    sources.texts = {CARDS: cards("a-0", "late-0"), KUBE: kube(one)}
    assert [holder for _, _, holder in holders(sources.poll())] == ["search"]
    sources.texts[KUBE] = kube({**one, "ns/late-0": {"label": "batch"}})
    minute = START + timedelta(minutes=1)
    assert holders(sources.poll()) == [
        (START, "GPU-1", "batch"),
        (minute, "GPU-0", "search"),
        (minute, "GPU-1", "batch"),
    ]
    assert len(holders(sources.poll())) == 2


@pytest.mark.parametrize("order", ORDERS)
def test_a_source_that_cannot_be_read_takes_nothing_from_the_others(order: str) -> None:
    sources = Sources(order)
    sources.texts = {CARDS: cards("a-7d9f-x1"), KUBE: kube({"ns/a-7d9f-x1": {"label": "search"}})}
    sources.poll()
    sources.made["kube"].lost = True
    for _ in range(3):
        batch = sources.poll()
        assert [holder for _, _, holder in holders(batch)] == ["search"]
        assert [fact for fact in batch.facts if fact.value is None] == []
    sources.made["kube"].lost = False
    sources.made["cards"].lost = sources.made["again"].lost = True
    for _ in range(3):
        batch = sources.poll()
        assert batch.events == []
        assert "gpu" not in batch.rows
        assert batch.rows["queue"].num_rows == 1
    sources.made["cards"].lost = False
    assert [holder for _, _, holder in holders(sources.poll())] == ["search"]


def test_when_no_source_can_be_read_the_cycle_fails_and_the_collector_says_once_that_it_is_blind() -> None:
    sources = Sources("cards kube")
    for source in sources.made.values():
        source.lost = True
    with pytest.raises(UnreachableError, match="does not answer; the server does not answer"):
        sources.collector.run_once(START)
    (batch,) = sources.store.batches
    assert (batch.row_count, batch.facts) == (0, [])
    assert [(event.code, event.message) for event in batch.events] == [
        ("blind", "the collector sees nothing of test: no source could be read, or none has targets")
    ]
    with pytest.raises(UnreachableError):
        sources.collector.run_once(START + timedelta(minutes=1))
    assert len(sources.store.batches) == 1


def test_queues_told_from_memory_are_no_sight() -> None:
    sources = Sources("cards kube")
    sources.texts = {CARDS: cards("a-0"), KUBE: kube({"ns/a-0": {}})}
    assert sources.poll().rows["queue"].num_rows == 1
    sources.texts = {}
    assert [event.code for event in sources.poll().events] == ["target_down", "target_down", "blind"]
    sources.texts = {KUBE: kube({"ns/a-0": {}})}
    assert [event.code for event in sources.poll().events if "see" in event.code] == ["sees_again"]


def test_a_collector_that_starts_anew_says_that_it_sees_again_and_not_twice_that_it_is_blind(tmp_path: Path) -> None:
    told = []
    for lost in (True, True, False, False):
        sources = Sources("cards kube", tmp_path / "collector.json")
        sources.texts = {CARDS: cards("a-0"), KUBE: kube({"ns/a-0": {}})}
        for source in sources.made.values():
            source.lost = lost
        with pytest.raises(UnreachableError) if lost else nullcontext():
            sources.collector.run_once(START)
        told.append([event.code for batch in sources.store.batches for event in batch.events])
    assert told == [["blind"], [], ["sees_again"], []]


def test_a_restart_with_the_sources_in_another_order_goes_on(tmp_path: Path) -> None:
    joules = []
    for minute, order in enumerate(("cards kube", "kube cards")):
        sources = Sources(order, tmp_path / "collector.json")
        sources.now += timedelta(minutes=minute)
        energy = dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1_000_000 + 600_000 * minute, **held("a-0"))
        sources.texts = {CARDS: cards("a-0") + energy, KUBE: kube({"ns/a-0": {}})}
        joules.append(sources.poll().rows["gpu"].to_pylist()[0].get("energy_joules"))
    assert joules == [None, 600.0]
