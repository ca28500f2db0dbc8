"""What the loops write to stderr: one line, or one JSON object, an entry."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import orjson

from dashboard.cli.output import clean
from dashboard.settings import LogSettings


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return clean(f"{_stamp(record)} {record.levelname.lower():7} {record.name}: {record.getMessage()}")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {"time": _stamp(record), "level": record.levelname.lower(), "logger": record.name}
        return orjson.dumps({**entry, "message": record.getMessage()}).decode()


def _stamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def start_logging(settings: LogSettings) -> None:
    """Send log entries of all floors to stderr, as `[log]` says."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if settings.format == "json" else _Lines())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
    for chatty in ("urllib3", "alembic", "sqlalchemy.engine"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
