"""dcgm-exporter in three generations: 3.3 on the MIG node, 4.5.3 with per-pod series, 4.6 with its new names."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from sample_data.cluster.exporters.text import head, samples
from sample_data.cluster.observation import Holder
from sample_data.cluster.quirks import LAST_WORDS_MINUTES, STALE_MINUTES, flapping
from sample_data.cluster.readings import Readings
from sample_data.cluster.simulation import World
from sample_data.cluster.spec import CardSpec, SliceSpec

_PER_POD = {"DCGM_FI_DEV_GPU_UTIL": "pod_util", "DCGM_FI_DEV_FB_USED": "pod_fb_used"}
_DRIVERS = {"3.3": "535.129.03", "4.5": "570.86.15", "4.6": "580.65.06"}


@dataclass(frozen=True, slots=True)
class _Metric:
    """A line of dcgm_metrics.csv: names, TYPE, HELP, the reading of the card, what an instance shows, its rounding.

    `instance`: a reading of the instance's own, `parent` (the card's, repeated on every instance), or `absent`.
    """

    name: str
    name_since_4_6: str
    type: str
    help: str
    card: str
    instance: str
    integer: bool


@cache
def _metrics() -> tuple[_Metric, ...]:
    text = (files("sample_data.cluster.exporters") / "dcgm_metrics.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return tuple(_Metric(**{**row, "integer": row["integer"] == "true"}) for row in rows)  # type: ignore[arg-type]  # header


@dataclass(slots=True)
class _Series:
    """One metric's prepared series: texts, and where their values stand."""

    head: str
    integer: bool
    texts: list[str]
    fields: dict[str, tuple[list[int], list[int]]]  # reading -> (places in texts, indices in the reading)


@dataclass(frozen=True, slots=True)
class _Source:
    """One series: its labels, and the reading and index that its value comes from."""

    labels: str
    reading: str
    index: int


class DcgmExporter:
    """The device exporter of one node."""

    def __init__(self, world: World, node: str, generation: str) -> None:
        self._world = world
        self._generation = generation
        self._node = node
        self._cards = [c for c, card in enumerate(world.spec.cards) if card.node == node]
        self._slices = [i for i, s in enumerate(world.spec.slices) if s.card in self._cards]
        self._last: dict[int, tuple[Holder, int]] = {}  # slice -> its last holder and the minute it was last seen
        self._key: tuple[object, ...] = ()
        self._series: list[_Series] = []

    def text(self, readings: Readings) -> str:
        """Return the body of one scrape."""
        holders = self._holders(readings.minute)
        alive = tuple(self._alive(c, readings.minute) for c in self._cards)
        key = (tuple((i, h.pod) for i, h in holders.items()), alive, self._flap(readings.minute))
        if key != self._key:
            self._key = key
            self._series = self._prepare(holders, readings.minute)
        lines: list[str] = []
        for series in self._series:
            values = [0.0] * len(series.texts)
            for name, (places, indices) in series.fields.items():
                for place, value in zip(places, getattr(readings, name)[indices].tolist(), strict=True):
                    values[place] = value
            body = samples(series.texts, values, series.integer)
            if body:
                lines.append(series.head)
                lines += body
        lines.append("")
        return "\n".join(lines)

    def _alive(self, card: int, minute: int) -> int:
        """2: all series; 1: the last words of a card off the bus; 0: not listed."""
        if self._world.card_alive[card]:
            return 2
        failed = self._world.spec.cards[card].fails_at_minute
        return int(failed is not None and minute < failed + LAST_WORDS_MINUTES)

    def _flap(self, minute: int) -> int:
        return minute if any(flapping(self._world.spec, c, minute) for c in self._cards) else -1

    def _holders(self, minute: int) -> dict[int, Holder]:
        """Who the kubelet says holds each slice; for some minutes also who held it last."""
        found: dict[int, Holder] = {}
        for i in self._slices:
            holder = self._world.holders[i]
            if holder is not None:
                self._last[i] = (holder, minute)
                found[i] = holder
            elif i in self._last and self._world.spec.quirks and minute - self._last[i][1] < STALE_MINUTES:
                found[i] = self._last[i][0]
        return found

    def _prepare(self, holders: dict[int, Holder], minute: int) -> list[_Series]:
        prepared = []
        for metric in _metrics():
            name = metric.name_since_4_6 if self._generation == "4.6" else metric.name
            if self._generation == "3.3" and name == "DCGM_FI_DEV_FB_RESERVED":
                continue
            source: list[_Source] = []
            for c in self._cards:
                state = self._alive(c, minute)
                if state == 2 or (state == 1 and metric.card == "xid"):
                    source += self._card_series(c, holders, metric, minute)
            texts = [name + one.labels for one in source]
            fields: dict[str, tuple[list[int], list[int]]] = {}
            for place, one in enumerate(source):
                places, indices = fields.setdefault(one.reading, ([], []))
                places.append(place)
                indices.append(one.index)
            prepared.append(_Series(head(name, metric.type, metric.help), metric.integer, texts, fields))
        return prepared

    def _card_series(self, c: int, holders: dict[int, Holder], metric: _Metric, minute: int) -> list[_Source]:
        spec = self._world.spec
        card = spec.cards[c]
        mine = [i for i in self._slices if spec.slices[i].card == c]
        if card.sharing == "mig":
            if metric.instance == "absent":
                return []
            own = metric.instance != "parent"
            return [
                _Source(
                    self._labels(card, spec.slices[i], holders.get(i)),
                    metric.instance if own else metric.card,
                    i if own else c,
                )
                for i in mine
            ]
        if card.sharing in ("mps", "timeslice"):
            return self._pods_series(c, [i for i in mine if i in holders], holders, metric, minute)
        holder = holders.get(mine[0]) if card.sharing == "whole" and mine else None
        return [_Source(self._labels(card, None, holder), metric.card, c)]

    def _pods_series(
        self, c: int, held: list[int], holders: dict[int, Holder], metric: _Metric, minute: int
    ) -> list[_Source]:
        """The card's own series, then one for each pod: its processes' figure where there is one, else a copy."""
        card = self._world.spec.cards[c]
        own = holders[held[minute % len(held)]] if held and flapping(self._world.spec, c, minute) else None
        series = [_Source(self._labels(card, None, own), metric.card, c)]
        reading = _PER_POD.get(metric.name)
        for number, i in enumerate(held):
            labels = self._labels(card, None, holders[i], str(number))
            series.append(_Source(labels, reading, i) if reading else _Source(labels, metric.card, c))
        return series

    def _labels(self, card: CardSpec, s: SliceSpec | None, holder: Holder | None, number: str = "") -> str:
        driver = _DRIVERS[self._generation]
        if self._generation == "4.6":
            labels = {
                "DCGM_FI_DRIVER_VERSION": driver, "UUID": card.uuid, "device": f"nvidia{card.index}",
                "gpu": str(card.index), "hostname": self._node, "modelName": card.hardware.name,
                "pci_bus_id": card.pci_bus_id,
            }  # fmt: skip
            return _join(dict(sorted(labels.items())))
        labels = {"gpu": str(card.index), "UUID": card.uuid}
        if self._generation == "4.5":
            labels["pci_bus_id"] = card.pci_bus_id
        labels |= {"device": f"nvidia{card.index}", "modelName": card.hardware.name}
        if s is not None:
            labels |= {"GPU_I_PROFILE": s.profile, "GPU_I_ID": str(s.instance)}
        labels |= {"Hostname": self._node, "DCGM_FI_DRIVER_VERSION": driver}
        if holder is not None:
            labels |= {"container": holder.container, "namespace": holder.namespace, "pod": holder.pod}
        if number:
            labels["vgpu"] = number
        return _join(labels)


def _join(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def generation_of(sharing: str) -> str:
    """Return which exporter runs on a node whose cards are shared in this way."""
    return {"mig": "3.3", "vgpu": "4.6"}.get(sharing, "4.5")


def driver_version(generation: str) -> str:
    """Return the driver under an exporter of a generation."""
    return _DRIVERS[generation]
