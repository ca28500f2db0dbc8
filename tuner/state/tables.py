"""Tables of the state database. Rows never leave this package: callers get frozen records."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import Float, ForeignKey, Index, Integer, String, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"


class Instant(TypeDecorator[datetime]):
    """An aware UTC instant as text of one length: it sorts, reads well, and is the same in every database."""

    impl = String(27)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Write UTC; a naive instant is an error."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"expected an aware datetime, got {value!r}; add tzinfo=UTC")
        return value.astimezone(UTC).strftime(_FORMAT)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Read UTC."""
        return None if value is None else datetime.strptime(value, _FORMAT).replace(tzinfo=UTC)


class Base(DeclarativeBase):
    """Registry of the tables."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: Instant(),
        str: Text(),
        float: Float(53),
        int: Integer(),
    }


class FindingRow(Base):
    """A claim, by its stable id; the document is the one that was seen last."""

    __tablename__ = "findings"

    id: Mapped[str] = mapped_column(primary_key=True)
    code: Mapped[str] = mapped_column(index=True)
    verdict: Mapped[str]
    first_seen: Mapped[datetime]
    last_seen: Mapped[datetime] = mapped_column(index=True)
    confidence: Mapped[float | None]
    simulated: Mapped[bool]
    document: Mapped[str]


class PlanRow(Base):
    """One cycle's plan."""

    __tablename__ = "plans"

    id: Mapped[str] = mapped_column(primary_key=True)
    made_at: Mapped[datetime] = mapped_column(index=True)
    as_of: Mapped[datetime]
    simulated: Mapped[bool]
    notes: Mapped[str]
    digest: Mapped[str]


class GroupRow(Base):
    """A group: its document never changes; its state is what the journal says."""

    __tablename__ = "groups"

    id: Mapped[str] = mapped_column(primary_key=True)
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id"), index=True)
    position: Mapped[int]
    kind: Mapped[str]
    state: Mapped[str] = mapped_column(index=True)
    decision: Mapped[str]
    reason: Mapped[str]
    simulated: Mapped[bool]
    made_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    intent_at: Mapped[datetime | None] = mapped_column(index=True)
    applied_at: Mapped[datetime | None]
    settled_at: Mapped[datetime | None]
    until: Mapped[datetime | None]
    restarts: Mapped[int]
    evictions: Mapped[int]
    signature: Mapped[str]
    evidence: Mapped[str]
    document: Mapped[str]


class DropRow(Base):
    """What a guard decided against."""

    __tablename__ = "drops"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id"), index=True)
    group_id: Mapped[str] = mapped_column(index=True)
    guard: Mapped[str]
    action: Mapped[str]
    reason: Mapped[str]


class ApprovalRow(Base):
    """Who said yes or no to a group, why, and until when it holds."""

    __tablename__ = "approvals"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    group_id: Mapped[str] = mapped_column(ForeignKey("groups.id"), index=True)
    decision: Mapped[str]
    who: Mapped[str]
    why: Mapped[str]
    at: Mapped[datetime]
    until: Mapped[datetime | None]


class JournalRow(Base):
    """One link of the chain: `hash` covers the previous hash and everything in this row."""

    __tablename__ = "journal"

    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[datetime]
    event: Mapped[str]
    group_id: Mapped[str]
    plan_id: Mapped[str]
    actor: Mapped[str]
    fence: Mapped[int | None]
    body: Mapped[str]
    previous: Mapped[str]
    hash: Mapped[str]

    __table_args__ = (Index("ix_journal_group_id", "group_id"),)


class LeaseRow(Base):
    """Who may act. `fence` grows by one whenever the holder changes."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    fence: Mapped[int]
    until: Mapped[datetime]


class SuppressionRow(Base):
    """A finding that somebody does not want to see, for a reason and a time."""

    __tablename__ = "suppressions"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    code: Mapped[str]
    subject: Mapped[str]
    who: Mapped[str]
    why: Mapped[str]
    at: Mapped[datetime]
    until: Mapped[datetime | None]
    last_used: Mapped[datetime | None]


class OutcomeRow(Base):
    """What a group promised and what came of it."""

    __tablename__ = "outcomes"

    group_id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(index=True)
    verdict: Mapped[str]
    predicted: Mapped[float | None]
    realised: Mapped[float | None]
    at: Mapped[datetime] = mapped_column(index=True)
