"""One tuner acts at a time: a row in the state database, with a number that grows at every change of hands."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import insert, select, update

from collector.clock import Clock
from tuner.journal import Fence, LeaseLostError, append, check_fence
from tuner.state.database import State
from tuner.state.tables import LeaseRow

DEFAULT_NAME = "tuner"
DEFAULT_SECONDS = 15.0  # as leader election in Kubernetes


class Lease:
    """The right of one process to write to backends.

    The row decides, not the clock of the holder: a holder that slept past the end keeps the lease while nobody took
    it, and loses it for good once somebody did. Each journal step of a change checks the number under the lock, so
    that a late writer is refused however long it slept.
    """

    def __init__(
        self,
        state: State,
        holder: str,
        clock: Clock,
        *,
        seconds: float = DEFAULT_SECONDS,
        name: str = DEFAULT_NAME,
    ) -> None:
        self._state = state
        self._holder = holder
        self._clock = clock
        self._length = timedelta(seconds=seconds)
        self._name = name
        self._fence: Fence | None = None

    @property
    def fence(self) -> Fence:
        """What a writer shows.

        Raises:
            LeaseLostError: the lease is not held.
        """
        if self._fence is None:
            raise LeaseLostError(
                f"expected the lease {self._name!r} with {self._holder}, it was never acquired or lost"
            )
        return self._fence

    def acquire(self) -> bool:
        """Take the lease where it is free or over, or renew it where it is ours; return whether it is held now."""
        now = self._clock.now()
        with self._state.writing() as connection:
            row = connection.execute(select(LeaseRow.__table__).where(LeaseRow.name == self._name)).one_or_none()
            ours = row is not None and self._fence is not None and row.fence == self._fence.number
            if row is not None and not ours and row.until > now:
                self._fence = None
                return False
            number = 1 if row is None else row.fence + (0 if ours else 1)
            values = {"holder": self._holder, "fence": number, "until": now + self._length}
            if row is None:
                connection.execute(insert(LeaseRow).values(name=self._name, **values))
            else:
                connection.execute(update(LeaseRow).where(LeaseRow.name == self._name).values(values))
            if not ours:
                append(connection, at=now, event="lease_taken", actor=self._holder, fence=number)
        self._fence = Fence(self._name, self._holder, number)
        return True

    def check(self) -> Fence:
        """Make sure that the lease is still ours, renewing it past its half; called before each write to a backend.

        Raises:
            LeaseLostError: another tuner took it.
        """
        fence = self.fence
        try:
            with self._state.reading() as connection:
                check_fence(connection, fence)
                until = connection.scalar(select(LeaseRow.until).where(LeaseRow.name == self._name))
            if until is not None and until - self._clock.now() > self._length / 2:
                return fence
            with self._state.writing() as connection:
                check_fence(connection, fence)
                connection.execute(
                    update(LeaseRow).where(LeaseRow.name == self._name).values(until=self._clock.now() + self._length)
                )
        except LeaseLostError:
            self._fence = None
            raise
        return fence

    def release(self) -> None:
        """Give the lease up, so that a stand-by need not wait; does nothing when it is not held."""
        if self._fence is None:
            return
        fence, self._fence = self._fence, None
        with self._state.writing() as connection:
            connection.execute(
                update(LeaseRow)
                .where(LeaseRow.name == fence.name, LeaseRow.fence == fence.number)
                .values(until=self._clock.now())
            )
