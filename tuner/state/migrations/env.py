"""Alembic environment: runs inside the transaction that `open_state` holds."""

from __future__ import annotations

from alembic import context

from tuner.state.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
)
context.run_migrations()
