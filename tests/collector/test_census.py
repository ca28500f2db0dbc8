"""Cards counted by every source that can see them: replaced, renumbered, doubled, lost, and those nobody shows."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from collector.assemble import Scrape
from collector.batch import Batch
from collector.census import matched
from collector.demand import SchedulerState
from collector.exposition import ExpositionParser
from collector.kube import KubeState
from collector.pci import PciSource, pci_cards
from collector.plugins import SourceContext
from collector.settings import SourceSettings, TargetSettings

if TYPE_CHECKING:
    from tests.collector.conftest import Cycles

URL = "http://a:9400/metrics"


def card(uuid: str, index: int = 0, bus: str = "", host: str = "h1", power: float = 100.0) -> str:
    pci = f',pci_bus_id="{bus}"' if bus else ""
    labels = f'{{gpu="{index}",UUID="{uuid}"{pci},Hostname="{host}"}}'
    return f"DCGM_FI_DEV_POWER_USAGE{labels} {power}\nDCGM_FI_DEV_GPU_UTIL{labels} 90\n"


def told(cycles: Cycles) -> list[tuple[str, str]]:
    return [(event.code, event.subject.gpu or event.subject.node) for event in cycles.batch.events]


def test_a_card_in_the_same_slot_replaces_the_one_that_was_there(cycles: Cycles) -> None:
    cycles.poll(card("GPU-0", 0, "00000000:1B:00.0") + card("GPU-1", 1, "00000000:1C:00.0"))
    cycles.poll(card("GPU-0", 0, "00000000:1B:00.0"))
    cycles.poll(card("GPU-0", 0, "00000000:1B:00.0"))
    assert told(cycles) == [("card_lost", "GPU-1")]
    # A number alone, at another address, replaces nobody.
    cycles.poll(card("GPU-0", 0, "00000000:1B:00.0") + card("GPU-2", 1, "00000000:8A:00.0"))
    assert told(cycles) == []
    cycles.poll(card("GPU-0", 0, "00000000:1B:00.0") + card("GPU-3", 2, "00000000:1c:00.0"))
    assert told(cycles) == [("card_replaced", "GPU-1")]
    assert "GPU-3 is in its place (PCI address 00000000:1c:00.0)" in cycles.batch.events[0].message


def test_a_card_whose_number_changes_is_told(cycles: Cycles) -> None:
    cycles.poll(card("GPU-0", 0, "00000000:1B:00.0") + card("GPU-1", 1, "00000000:1C:00.0"))
    cycles.poll(card("GPU-0", 1, "00000000:1B:00.0") + card("GPU-1", 0, "00000000:2D:00.0"))
    assert sorted((e.subject.gpu, e.code, e.message) for e in cycles.batch.events) == [
        ("GPU-0", "card_renumbered", "GPU-0 was number 0 and is 1 now"),
        (
            "GPU-1",
            "card_renumbered",
            "GPU-1 was number 1 and is 0 now (PCI address 00000000:1c:00.0, now 00000000:2d:00.0)",
        ),
    ]
    cycles.poll(card("GPU-0", 1, "00000000:1B:00.0") + card("GPU-1", 0, "00000000:2D:00.0"))
    assert told(cycles) == []


def test_a_number_that_changed_while_nobody_looked_is_told_after_the_restart(cycles: Cycles) -> None:
    cycles.poll(card("GPU-0", 0))
    later = type(cycles)(cycles.context)
    later.assembler.import_state(cycles.assembler.export_state())
    later.now = cycles.now
    later.poll(card("GPU-0", 3))
    assert told(later) == [("card_renumbered", "GPU-0")]


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (
            {URL: card("GPU-0"), "http://b:9400/metrics": card("GPU-0")},
            "dcgm-exporter shows it at 2 targets, http://a:9400/metrics and http://b:9400/metrics",
        ),
        ({URL: card("GPU-0", host="h1") + card("GPU-0", host="h2")}, "dcgm-exporter shows it on 2 hosts, h1 and h2"),
        ({URL: card("GPU-0", 0) + card("GPU-0", 1)}, "one UUID for several cards"),
    ],
)
def test_a_card_that_is_there_twice_for_longer_than_a_restart_is_told_once(
    cycles: Cycles, texts: dict[str, str], why: str
) -> None:
    seen: list[tuple[int, str]] = []
    for poll in range(1, 7):
        cycles.poll(texts, node="n")
        seen += [(poll, event.message) for event in cycles.batch.events if event.code == "card_doubled"]
    assert seen == [(3, f"GPU-0 is there twice: {why}")]


def test_two_kinds_of_exporter_may_show_one_card(cycles: Cycles) -> None:
    uuid = "11111111-2222-3333-4444-555555555555"
    other = f'nvidia_smi_utilization_gpu_ratio{{uuid="{uuid}"}} 0.5\n'
    for _ in range(4):
        cycles.poll({URL: card(f"GPU-{uuid}"), "http://a:9835/metrics": other}, node="n")
        assert cycles.events() == []
        assert len(cycles.frame("gpu")) == 1


def test_a_lost_card_leaves_the_capacity_after_a_week_and_says_so(cycles: Cycles) -> None:
    cycles.poll(card("GPU-0", 0) + card("GPU-1", 1))
    for _ in range(2):
        cycles.poll(card("GPU-0", 0))
    assert told(cycles) == [("card_lost", "GPU-1")]
    assert not [f for f in cycles.batch.facts if f.subject.gpu == "GPU-1" and f.value is None]
    cycles.poll(card("GPU-0", 0), skip=7 * 24 * 60 - 2)
    assert told(cycles) == []
    cycles.poll(card("GPU-0", 0), skip=2)
    assert told(cycles) == [("card_forgotten", "GPU-1")]
    assert {f.name for f in cycles.batch.facts if f.subject.gpu == "GPU-1" and f.value is None} >= {"ordinal", "mig"}


def test_a_card_that_is_found_on_another_node_stands_in_one_place(cycles: Cycles) -> None:
    cycles.poll({URL: card("GPU-0", host="h1")}, node="")
    later = type(cycles)(cycles.context)
    later.assembler.import_state(cycles.assembler.export_state())
    later.now = cycles.now
    later.poll({URL: card("GPU-0", host="h2")}, node="")
    told = {(f.subject.node, f.value is None) for f in later.batch.facts if f.subject.kind == "gpu"}
    assert told == {("h1", True), ("h2", False)}


class Counted:
    """Cycles of an exporter beside others who count."""

    def __init__(self, cycles: Cycles) -> None:
        self.cycles = cycles
        self.parser = ExpositionParser()

    def poll(self, text: str | None, *, kube: KubeState | None = None, **counts: float) -> Batch:
        self.cycles.now += timedelta(minutes=1)
        scrapes = []
        if text is not None:
            scrapes.append(Scrape(TargetSettings(url=URL), self.parser.parse(text)))
        if kube is not None:
            scrapes.append(Scrape(TargetSettings(url="https://api"), None, kube=kube))
        for who, count in counts.items():
            demand = SchedulerState(cards={who: {"h1": count}})
            scrapes.append(Scrape(TargetSettings(url=f"{who}:x"), None, demand=demand))
        self.cycles.batch = self.cycles.assembler.assemble(self.cycles.now, scrapes)
        return self.cycles.batch


@pytest.fixture
def counted(cycles: Cycles) -> Counted:
    return Counted(cycles)


def node_state(capacity: float, **labels: str) -> KubeState:
    named = {f"label_{key}": value for key, value in labels.items()}
    return KubeState(capacity={"h1": {"nvidia_com_gpu": capacity}}, allocatable={"h1": {}}, node_labels={"h1": named})


def test_what_the_scheduler_counts_and_no_exporter_shows_stays_in_capacity(counted: Counted) -> None:
    kube = node_state(4)
    counted.poll(card("GPU-0", 0) + card("GPU-1", 1), kube=kube)
    assert told(counted.cycles) == []  # it may come in a moment
    batch = counted.poll(card("GPU-0", 0) + card("GPU-1", 1), kube=kube)
    (event,) = batch.events
    assert (event.code, event.subject.node) == ("card_unobserved", "h1")
    assert event.message == "the scheduler counts 4 cards, exporters show 2: 2 not observed, which stays in capacity"
    assert counted.cycles.facts("unobserved_cards") == {"h1": "2"}
    assert counted.poll(card("GPU-0", 0) + card("GPU-1", 1), kube=kube).events == []
    everything = "".join(card(f"GPU-{n}", n) for n in range(4))
    batch = counted.poll(everything, kube=kube)
    assert told(counted.cycles) == [("card_observed", "h1")]
    assert counted.cycles.facts("unobserved_cards") == {"h1": None}


def test_a_count_that_changes_is_told_again_and_its_end_once(counted: Counted) -> None:
    seen = []
    for capacity in (2, 2, 3, 3, 4, 1, 1):
        counted.poll(card("GPU-0", 0), kube=node_state(capacity))
        seen.append((told(counted.cycles), counted.cycles.facts("unobserved_cards").get("h1", "same")))
    unobserved, observed = [("card_unobserved", "h1")], [("card_observed", "h1")]
    assert seen == [
        ([], "same"),
        (unobserved, "1"),
        ([], "same"),  # it may be a moment's count
        (unobserved, "2"),
        ([], "same"),
        (observed, None),
        ([], "same"),
    ]


def test_a_lost_card_is_no_second_one(counted: Counted) -> None:
    kube = node_state(2)
    counted.poll(card("GPU-0", 0) + card("GPU-1", 1), kube=kube)
    for _ in range(4):
        counted.poll(card("GPU-0", 0), kube=kube)
        assert ("card_unobserved", "h1") not in told(counted.cycles)  # GPU-1 stays in capacity by itself
    assert counted.cycles.facts("unobserved_cards") == {}


def test_the_bus_counts_what_no_driver_sees(counted: Counted) -> None:
    for _ in range(2):
        counted.poll(card("GPU-0", 0), **{"the PCI bus": 2.0})
    assert "the PCI bus counts 2 cards, exporters show 1" in counted.cycles.batch.events[0].message


@pytest.mark.parametrize(
    ("kube", "cards"),
    [
        (node_state(8), 8),
        (node_state(40, nvidia_com_gpu_replicas="5"), 8),
        (node_state(40, nvidia_com_gpu_count="8", nvidia_com_gpu_replicas="5"), 8),
        (node_state(40, nvidia_com_gpu_sharing_strategy="time-slicing"), math.nan),  # of how many units a card is made
        (KubeState(capacity={"h1": {"nvidia_com_mig_1g_5gb": 7.0}}), math.nan),
        (KubeState(allocatable={"h1": {"nvidia_com_gpu": 3.0}}), 3),
        (KubeState(capacity={"h1": {"cpu": 8.0}}), math.nan),
    ],
)
def test_how_a_scheduler_counts_cards(kube: KubeState, cards: float) -> None:
    assert kube.cards_of("h1") == pytest.approx(cards, nan_ok=True)
    assert math.isnan(node_state(80).cards_of("h1", shared=True))


@pytest.mark.parametrize(
    ("counted", "known", "expected"),
    [
        ({"a": 8.0, "b": 8.0}, {"a": 8}, {"a": 8, "b": 8}),  # b has no exporter
        ({"a": 8.0}, {"a.lab.example": 7}, {"a.lab.example": 8}),
        ({"ip-10-0-0-1": 8.0}, {"gpu-1": 8}, {}),  # perhaps one node under two names
        ({"a": math.nan, "b": 0.0}, {}, {}),
        ({"a": 4.0}, {}, {"a": 4}),
    ],
)
def test_nodes_are_matched_by_name(
    counted: dict[str, float], known: dict[str, int], expected: dict[str, float]
) -> None:
    assert matched(counted, known) == expected


def bus(root: Path, address: str, vendor: str = "0x10de", kind: str = "0x030200", driver: str = "nvidia") -> Path:
    path = root / "devices" / address
    path.mkdir(parents=True)
    (path / "vendor").write_text(f"{vendor}\n")
    (path / "class").write_text(f"{kind}\n")
    drivers = root / "drivers" / driver
    drivers.mkdir(parents=True, exist_ok=True)
    (path / "driver").symlink_to(drivers)
    return path


def test_the_bus_is_read_as_the_system_lists_it(tmp_path: Path) -> None:
    bus(tmp_path, "0000:1b:00.0")
    bus(tmp_path, "0000:1c:00.0", driver="vfio-pci")
    bus(tmp_path, "0000:00:1f.0", vendor="0x8086", kind="0x060100")  # a bridge
    bus(tmp_path, "0000:1b:00.1", kind="0x040300")  # a card's own sound function
    (bus(tmp_path, "0000:1b:00.4") / "physfn").symlink_to(tmp_path)  # a virtual function
    devices = tmp_path / "devices"
    assert [(one.address, one.in_guest) for one in pci_cards(devices)] == [
        ("0000:1b:00.0", False),
        ("0000:1c:00.0", True),
    ]
    settings = SourceSettings(kind="pci", options={"node": "h1"})
    source = PciSource(settings, SourceContext(cluster="test"), devices=devices)
    (scrape,) = source.gather(datetime(2026, 1, 5, tzinfo=UTC))
    assert scrape.demand is not None
    assert scrape.demand.cards == {"the PCI bus": {"h1": 1.0}}
    assert source.describe().targets == ("pci:h1",)
    nowhere = PciSource(settings, SourceContext(cluster="test"), devices=tmp_path / "none")
    batch = nowhere.poll(datetime(2026, 1, 5, tzinfo=UTC))
    assert [event.code for event in batch.events] == ["target_down"]
