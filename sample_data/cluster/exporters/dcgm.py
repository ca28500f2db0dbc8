"""dcgm-exporter in three generations: 3.3 on the MIG node, 4.5.3 with per-pod series, 4.6 with its new names."""

from __future__ import annotations

from dataclasses import dataclass


from sample_data.cluster.exporters.text import head, samples
from sample_data.cluster.quirks import LAST_WORDS_MINUTES, STALE_MINUTES, flapping
from sample_data.cluster.readings import Readings
from sample_data.cluster.simulation import Holder, World
from sample_data.cluster.spec import CardSpec, SliceSpec

# Name, name since DCGM 4.6, TYPE, HELP, reading of the card, reading of the MIG instance (None: the card's, repeated;
# "": not exported under MIG), written as an integer.
_METRICS: tuple[tuple[str, str, str, str, str, str | None, bool], ...] = (
    ("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", "sm_clock", None, True),
    ("DCGM_FI_DEV_MEM_CLOCK", "DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", "memory_clock", None, True),
    ("DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", "gauge", "Memory temperature (in C).", "memory_temperature", None, True),
    ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", "gauge", "GPU temperature (in C).", "temperature", None, True),
    ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS", "gauge", "Power draw (in W).", "power", None, False),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ).", "energy", None, True),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_PCIE_REPLAY_TOTAL", "counter", "Total number of PCIe retries.", "pcie_replay", None, True),
    ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO", "gauge", "GPU utilization (in %).", "gpu_util", "", True),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).", "memory_util", "", True),
    ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR", "gauge", "Value of the last XID error encountered.", "xid", None, True),
    ("DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).", "fb_free", "mig_fb_free", True),
    ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).", "fb_used", "mig_fb_used", True),
    ("DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_FB_RESERVED", "gauge", "Framebuffer memory reserved (in MiB).", "fb_reserved", "", True),
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Total number of single-bit volatile ECC errors.", "ecc_corrected", None, True),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Total number of double-bit volatile ECC errors.", "ecc_uncorrected", None, True),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for correctable errors.", "rows_corrected", None, True),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for uncorrectable errors.", "rows_uncorrected", None, True),
    ("DCGM_FI_DEV_ROW_REMAP_PENDING", "DCGM_FI_DEV_ROW_REMAP_PENDING", "gauge", "Whether remapping of rows is pending.", "remap_pending", None, True),
    ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "gauge", "Current clock event reasons (bit mask).", "clock_reasons", None, True),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", "gauge", "Ratio of time the graphics engine is active (in %).", "engine", "mig_engine", False),
    ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO", "gauge", "The ratio of cycles an SM has at least 1 warp assigned.", "sm_active", "mig_sm", False),
    ("DCGM_FI_PROF_SM_OCCUPANCY", "DCGM_FI_PROF_SM_OCCUPANCY_RATIO", "gauge", "The ratio of number of warps resident on an SM.", "occupancy", "mig_occupancy", False),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO", "gauge", "Ratio of cycles the tensor (HMMA) pipe is active.", "tensor", "mig_tensor", False),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO", "gauge", "Ratio of cycles the device memory interface is active.", "dram", "mig_dram", False),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", "The rate of data transmitted over the PCIe bus (in bytes/s).", "pcie_tx", "", True),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", "The rate of data received over the PCIe bus (in bytes/s).", "pcie_rx", "", True),
)  # fmt: skip
_PER_POD = {"DCGM_FI_DEV_GPU_UTIL": "pod_util", "DCGM_FI_DEV_FB_USED": "pod_fb_used"}
_DRIVERS = {"3.3": "535.129.03", "4.5": "570.86.15", "4.6": "580.65.06"}


@dataclass(slots=True)
class _Series:
    """One metric's prepared series: texts, and where their values stand."""

    head: str
    integer: bool
    texts: list[str]
    fields: dict[str, tuple[list[int], list[int]]]  # reading -> (places in texts, indices in the reading)


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
        for old, new, kind, text, card_field, mig_field, integer in _METRICS:
            name = new if self._generation == "4.6" else old
            if self._generation == "3.3" and name == "DCGM_FI_DEV_FB_RESERVED":
                continue
            source: list[tuple[str, str, int]] = []
            for c in self._cards:
                state = self._alive(c, minute)
                if state == 2 or (state == 1 and card_field == "xid"):
                    source += self._card_series(c, holders, card_field, mig_field, old, minute)
            texts = [name + labels for labels, _, _ in source]
            fields: dict[str, tuple[list[int], list[int]]] = {}
            for place, (_, field, index) in enumerate(source):
                places, indices = fields.setdefault(field, ([], []))
                places.append(place)
                indices.append(index)
            prepared.append(_Series(head(name, kind, text), integer, texts, fields))
        return prepared

    def _card_series(
        self, c: int, holders: dict[int, Holder], card_field: str, mig_field: str | None, name: str, minute: int
    ) -> list[tuple[str, str, int]]:
        world = self._world
        card = world.spec.cards[c]
        mine = [i for i in self._slices if world.spec.slices[i].card == c]
        if card.sharing == "mig":
            if mig_field == "":
                return []
            return [
                (self._labels(card, world.spec.slices[i], holders.get(i)), mig_field or card_field, i if mig_field else c)
                for i in mine
            ]
        if card.sharing in ("mps", "timeslice"):
            held = [i for i in mine if i in holders]
            own = holders[held[minute % len(held)]] if held and flapping(world.spec, c, minute) else None
            series = [(self._labels(card, None, own), card_field, c)]
            for number, i in enumerate(held):
                field = _PER_POD.get(name)
                labels = self._labels(card, None, holders[i], str(number))
                series.append((labels, field, i) if field else (labels, card_field, c))
            return series
        holder = holders.get(mine[0]) if card.sharing == "whole" and mine else None
        return [(self._labels(card, None, holder), card_field, c)]

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
