"""What one cycle has to tell beside rows: events and rejects, with their subjects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from collector.batch import Event, Reject, Severity, Subject
from collector.join import SliceRow
from collector.masking import mask_address
from collector.settings import TargetSettings
from collector.slots import Card


@dataclass(slots=True)
class Report:
    """Events and rejects of one cycle of one cluster at one instant."""

    cluster: str
    now: datetime
    events: list[Event] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)

    def event(self, subject: Subject, code: str, severity: Severity, message: str) -> None:
        """Tell that something happened."""
        self.events.append(Event(subject, code, severity, message, self.now))

    def reject(self, subject: Subject, field_name: str, reason: str, count: int = 1) -> None:
        """Count invalid samples."""
        self.rejects.append(Reject(subject, field_name, reason, self.now, count))

    def reject_all(self, subject: Subject, reasons: Mapping[str, int]) -> None:
        """Count invalid samples by reason."""
        for reason, count in reasons.items():
            self.reject(subject, "", reason, count)

    def target(self, target: TargetSettings) -> Subject:
        """Return the subject of a target: its node, with its address (without a password)."""
        return Subject("node", self.cluster, target.node, object=mask_address(target.url))

    def card(self, card: Card) -> Subject:
        """Return the subject of a card."""
        return Subject("gpu", self.cluster, card.node, card.uuid)

    def share(self, share: SliceRow) -> Subject:
        """Return the subject of a slice."""
        return Subject("slice", self.cluster, share.card.node, share.card.uuid, share.slice)
