"""Nodes of four cards for the contention benchmark: who slows whom across cards, and what only looks like it.

Each card is a little world of its own (`contention_worlds`); what its tasks move over PCIe and NVLink, and how busy the
node's CPUs are, follows from their work. The designed pair is victim `v` of the first card, suspect `a` of the second.
Scenarios that begin with `true` plant an effect of it, `null` ones something that only looks like one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from analyzer.facts import FACT_COLUMNS
from analyzer.protocols import Partition
from benchmarks.contention_worlds import START, TASKS, Floats, Harm, World, ar1, base, bursts, daily, rows
from collector.window import Window

CARDS = 4
PCIE_PEAK = 16 * 1.969e9  # bytes a second: PCIe 4, 16 lanes
NVLINK_PEAK = 300e9
_KIND = 100  # the first number of a scenario here: cards of no other benchmark are drawn alike
Pair = tuple[int, str, int, str]  # victim's card and task, suspect's card and task


@dataclass
class Node:
    """Four cards. `links` are shares of each link's peak and `host` of the node's CPUs; `true` maps pairs to sizes."""

    scenario: str
    number: int
    cards: list[World]
    pcie: list[Floats] = field(default_factory=list)
    nvlink: list[Floats] = field(default_factory=list)
    host: Floats = field(default_factory=lambda: np.zeros(0))
    true: dict[Pair, float] = field(default_factory=dict)
    undecidable: set[Pair] = field(default_factory=set)

    @property
    def rng(self) -> np.random.Generator:
        return self.cards[0].rng

    @property
    def n(self) -> int:
        return self.cards[0].n

    def hurt(self, size: float, by: Floats, suspect: Pair = (0, "v", 1, "a")) -> None:
        """Slow the victim of a pair by `size` at the full swing of `by`."""
        low, high = np.quantile(by, [0.02, 0.98])
        harm = np.log1p(size) * (by - low) / max(float(high - low), 1e-9)
        self.cards[suspect[0]].harms.append(Harm(suspect[1], lambda _all: harm))
        self.true[suspect] = size

    def size(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def fill(self, card: int, level: tuple[float, float] = (0.7, 0.95), link: str = "pcie") -> Floats:
        """Let the suspect of a card fill its link with its work; return the traffic, as a share of the peak."""
        activity = self.cards[card].activity["a"]
        traffic = self.size(*level) * np.minimum(activity / np.quantile(activity, 0.97), 1.0)
        traffic *= np.exp(self.rng.normal(0, 0.03, self.n))
        links = self.pcie if link == "pcie" else self.nvlink
        links[card] = np.minimum(links[card] + traffic, 1.0)
        return traffic


def _burst(node: Node, card: int = 1) -> None:
    """Give a card's suspect runs long and frequent enough to be seen in two days."""
    rng = node.rng
    node.cards[card].activity["a"] = bursts(rng, node.n, rng.uniform(8, 40), rng.uniform(20, 90), rng.uniform(0.2, 0.4))


def _true_pcie(node: Node) -> None:
    _burst(node)
    node.hurt(node.size(0.1, 0.5), node.fill(1))


def _true_nvlink(node: Node) -> None:
    _burst(node)
    node.hurt(node.size(0.1, 0.5), node.fill(1, link="nvlink"))


def _true_host(node: Node) -> None:
    _burst(node)
    busy = node.cards[1].activity["a"]
    node.host = np.clip(0.45 + 0.6 * busy / np.quantile(busy, 0.97) + ar1(node.rng, node.n, 0.6, 0.03), 0, 1)
    node.hurt(node.size(0.1, 0.5), node.host)


def _true_lag(node: Node) -> None:
    _burst(node)
    node.hurt(node.size(0.15, 0.5), np.roll(node.fill(1), int(node.rng.integers(1, 6))))


def _daily(node: Node) -> None:
    victim, other = node.cards[0], node.cards[1]
    victim.load["v"] = daily(node.rng, node.n, 0.3)
    other.load["a"] = daily(node.rng, node.n, 0.3)
    other.activity["a"] = np.clip(0.25 * other.load["a"] * np.exp(node.rng.normal(0, 0.05, node.n)), 0, 1)


def _true_daily(node: Node) -> None:
    _daily(node)
    node.hurt(node.size(0.15, 0.5), node.fill(1))


def _true_beside(node: Node) -> None:
    """A neighbour on the victim's own card hurts it as well."""
    node.cards[0].hurt("v", "c", node.size(0.15, 0.5))
    _true_pcie(node)


def _true_two(node: Node) -> None:
    """Two cards fill their links, at times of their own."""
    _true_pcie(node)
    _burst(node, 2)
    node.hurt(node.size(0.15, 0.5), node.fill(2), (0, "v", 2, "a"))


def _true_missing(node: Node) -> None:
    _true_pcie(node)
    node.cards[0].absent["v"] = node.rng.random(node.n) < 0.4


def _true_weak(node: Node) -> None:
    _burst(node)
    node.hurt(node.size(0.04, 0.08), node.fill(1))


def _null_full(node: Node) -> None:
    """Links are full, and nobody minds: they hang on other switches."""
    for card in (1, 2):
        _burst(node, card)
        node.fill(card)


def _null_daily(node: Node) -> None:
    _daily(node)
    node.fill(1)


def _null_ownload(node: Node) -> None:
    """What fills the other link is the victim's own load, passed on."""
    own = bursts(node.rng, node.n, 10, 60, 0.15)
    node.cards[1].activity["a"] = np.clip(0.05 + 0.15 * node.cards[0].load["v"] + own, 0, 1)
    node.fill(1)


def _null_reverse(node: Node) -> None:
    """The suspect reacts to the victim's slowness, one to three samples later."""
    slow = node.cards[0].cost("v") if node.number % 2 else node.cards[0].noise["v"]
    felt = np.roll(slow - slow.mean(), 1 + node.number % 3) / slow.std()
    own = bursts(node.rng, node.n, 15, 90, 0.1) if node.number % 2 else 0.0
    node.cards[1].activity["a"] = np.clip(0.2 + 0.08 * felt + own + node.rng.normal(0, 0.02, node.n), 0, 1)
    node.fill(1)


def _null_neighbour(node: Node) -> None:
    """A neighbour on the victim's own card does it; the suspect runs when that one runs."""
    here = node.cards[0]
    here.hurt("v", "c", node.size(0.15, 0.5))
    follows = 0.8 * here.activity["c"] + ar1(node.rng, node.n, 0.6, 0.04) + 0.1
    node.cards[1].activity["a"] = np.clip(follows, 0, 1)
    node.fill(1)


def _third_card(node: Node) -> None:
    """One card does it; another fills its link when that one does. The designed pair is innocent."""
    _burst(node, 2)
    node.hurt(node.size(0.15, 0.5), node.fill(2), (0, "v", 2, "a"))
    follows = 0.8 * node.cards[2].activity["a"] + ar1(node.rng, node.n, 0.6, 0.04) + 0.1
    node.cards[1].activity["a"] = np.clip(follows, 0, 1)
    node.fill(1)


def _null_hourly(node: Node) -> None:
    minute = np.arange(node.n) % 60
    copies = np.where(minute < 8, 0.4, 0.05) + node.rng.normal(0, 0.02, node.n)
    node.cards[1].activity["a"] = np.clip(copies, 0, 1)
    node.fill(1)
    node.cards[0].noise["v"] = node.cards[0].noise["v"] + np.where(minute < 6, 0.2, 0.0)


def _null_throttle(node: Node) -> None:
    """The node is hot: all clocks fall, and all work takes more of its card."""
    hot = np.clip(1 - bursts(node.rng, node.n, 15, 80, 0.3), 0.5, 1.0)
    for card in node.cards:
        card.clock = hot
    node.cards[1].activity["a"] = np.clip((0.25 + ar1(node.rng, node.n, 0.7, 0.04)) / hot, 0, 1)
    node.fill(1)


def _null_own_host(node: Node) -> None:
    """The host is full of the victim's own requests: no neighbour slows it."""
    load = node.cards[0].load["v"]
    node.host = np.clip(0.55 * load / np.quantile(load, 0.9) + 0.4 + node.rng.normal(0, 0.02, node.n), 0, 1)


def _no_pressure(node: Node) -> None:
    """It does slow it, over a link that is never full: nothing is tested, and nothing claimed."""
    _burst(node)
    node.hurt(node.size(0.1, 0.5), node.fill(1, (0.2, 0.3)))
    node.undecidable.add((0, "v", 1, "a"))


def _always_full(node: Node) -> None:
    """The link is always full: watching has nothing to compare."""
    node.cards[1].activity["a"] = np.clip(0.5 + node.rng.normal(0, 0.006, node.n), 0, 1)
    node.hurt(node.size(0.15, 0.5), node.fill(1))
    node.undecidable.add((0, "v", 1, "a"))


SCENARIOS: dict[str, Callable[[Node], None]] = {
    "true_pcie": _true_pcie,
    "true_nvlink": _true_nvlink,
    "true_host": _true_host,
    "true_lag": _true_lag,
    "true_daily": _true_daily,
    "true_beside": _true_beside,
    "true_two": _true_two,
    "true_missing": _true_missing,
    "true_weak": _true_weak,
    "null_full": _null_full,
    "null_daily": _null_daily,
    "null_ownload": _null_ownload,
    "null_reverse": _null_reverse,
    "null_neighbour": _null_neighbour,
    "third_card": _third_card,
    "null_hourly": _null_hourly,
    "null_throttle": _null_throttle,
    "null_own_host": _null_own_host,
    "no_pressure": _no_pressure,
    "always_full": _always_full,
}


def make_node(scenario: str, seed: int, number: int, n: int) -> Node:
    """Make one node of a scenario."""
    kind = _KIND + list(SCENARIOS).index(scenario)
    cards = [base(f"{scenario}-{number}", kind, seed, CARDS * number + card, n) for card in range(CARDS)]
    node = Node(scenario, number, cards)
    for card in cards:
        # Requests and batches of all tasks come over both links, in proportion to their work.
        work = np.sum([card.activity[task] for task in TASKS], axis=0)
        node.pcie.append(np.clip(0.25 * work * np.exp(card.rng.normal(0, 0.05, n)), 0, 1))
        node.nvlink.append(np.clip(0.2 * work * np.exp(card.rng.normal(0, 0.05, n)), 0, 1))
    node.host = np.clip(0.5 + ar1(node.rng, n, 0.8, 0.05), 0, 1)
    SCENARIOS[scenario](node)
    return node


def partition(node: Node) -> Partition:
    """Lay a node out as rows and facts, as its exporters tell them."""
    tables = [rows(card) for card in node.cards]
    time = tables[0][0]["time"]
    devices = [
        device.assign(
            pcie_rx_bytes_per_second=PCIE_PEAK * node.pcie[card],
            pcie_tx_bytes_per_second=0.4 * PCIE_PEAK * node.pcie[card],
            nvlink_rx_bytes_per_second=NVLINK_PEAK * node.nvlink[card],
            nvlink_tx_bytes_per_second=NVLINK_PEAK * node.nvlink[card],
        )
        for card, (device, _) in enumerate(tables)
    ]
    name = node.cards[0].scenario
    host = pd.DataFrame({"time": time, "cluster": "bench", "node": name, "cpu_busy_ratio": node.host})
    told = (("pcie_generation", "4"), ("pcie_lanes", "16"), ("nvlink_peak_bytes_per_second", str(NVLINK_PEAK)))
    facts = [
        ("gpu", "bench", name, device["gpu"].iloc[0], "", "", fact, value, START, pd.NaT, "measured")
        for device in devices
        for fact, value in told
    ]
    none = pd.DataFrame()
    return Partition(
        cluster="bench",
        node=name,
        window=Window(START.to_pydatetime(), (START + pd.Timedelta(minutes=node.n)).to_pydatetime()),
        interval_seconds=60.0,
        gpu=pd.concat(devices, ignore_index=True),
        slice=pd.concat([slices for _, slices in tables], ignore_index=True),
        node_rows=host,
        facts=pd.DataFrame(facts, columns=list(FACT_COLUMNS)),
        events=none,
        rejects=none,
    )


def card_of(gpu: str) -> int:
    """Return which card of its node a GPU is."""
    return int(gpu.rsplit("-", 1)[1]) % CARDS
