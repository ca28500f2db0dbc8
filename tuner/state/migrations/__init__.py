"""Alembic revisions of the state database."""
