"""The source `pci`: how many cards stand on this host's PCI bus, with or without a driver that sees them."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import Field

from collector.assemble import Assembler, Scrape
from collector.demand import SchedulerState
from collector.gathering import GatheringSource
from collector.plugins import SourceContext
from collector.protocols import SourceDescription
from collector.schedulers.options import read_options
from collector.settings import Section, SourceSettings, TargetSettings

WHO = "the PCI bus"
DEVICES = Path("/sys/bus/pci/devices")
# Vendors of compute cards, and the classes that such a card has: VGA, 3D or display controller, accelerator.
_VENDORS = frozenset(("0x10de", "0x1002"))
_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
_GUEST_DRIVER = "vfio-pci"


@dataclass(frozen=True, slots=True)
class PciCard:
    """One card on the bus. `in_guest`: handed to a virtual machine, so that this host's driver cannot see it."""

    address: str
    in_guest: bool


class PciOptions(Section):
    """`options` of a source of kind `pci`."""

    node: str = Field("", description="name of this host, as exporters name it; empty: its host name")


def pci_cards(devices: Path = DEVICES) -> list[PciCard]:
    """Return the cards on the bus, by address; virtual functions are parts of their card and no cards."""
    found = []
    for path in sorted(devices.iterdir()) if devices.is_dir() else []:
        if _text(path / "vendor") not in _VENDORS or (path / "physfn").exists():
            continue
        if _text(path / "class")[:6] not in _CLASSES:
            continue
        driver = path / "driver"
        found.append(PciCard(path.name, driver.exists() and driver.resolve().name == _GUEST_DRIVER))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip().lower()
    except OSError:
        return ""


class PciSource(GatheringSource):
    """Counts this host's cards on the bus; a card that a virtual machine has is not counted here.

    Args:
        settings: the `[[source]]` table.
        context: cluster and interval.
        devices: where the system lists what is on the bus.

    Raises:
        ConfigurationError: an option is not known.
    """

    def __init__(self, settings: SourceSettings, context: SourceContext, *, devices: Path = DEVICES) -> None:
        self._node = read_options(PciOptions, settings).node or socket.gethostname()
        self._devices = devices
        self._name = settings.name or settings.kind
        self._context = context
        self._target = TargetSettings(url=f"pci:{self._node}", node=self._node)
        self.assembler = Assembler(context)

    def gather(self, now: datetime) -> list[Scrape]:
        """Count once."""
        del now
        if not self._devices.is_dir():
            return [Scrape(self._target, None, f"expected a PCI bus at {self._devices}, found none")]
        count = sum(not card.in_guest for card in pci_cards(self._devices))
        return [Scrape(self._target, None, demand=SchedulerState(cards={WHO: {self._node: float(count)}}))]

    def describe(self) -> SourceDescription:
        """Say what this source is."""
        return SourceDescription("pci", self._name, (self._target.url,), self._context.interval_seconds)
