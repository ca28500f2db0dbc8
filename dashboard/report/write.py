"""`write_weekly`: read, build, render, write."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Literal

import orjson

from collector.errors import InputRejectedError, UnreachableError
from collector.store import EmbeddedStore
from dashboard.cli.context import interval_of
from dashboard.config import Settings
from dashboard.report.build import build_report
from dashboard.report.gather import gather, report_window
from dashboard.report.html import render_html
from dashboard.report.model import Report
from dashboard.report.prices import read_prices
from dashboard.report.sections import page
from tuner.state import State, open_state

Format = Literal["html", "json"]


def write_weekly(settings: Settings, *, now: datetime | None = None, fmt: Format = "html") -> Path:
    """Write the report of the last week (up to `now`, else to the newest row) into the folder of `[report]`.

    Returns:
        Where it lies. The same rows give the same bytes.

    Raises:
        ConfigurationError: prices are in several currencies.
        InputRejectedError: there is no row in that week.
        UnreachableError: the store cannot be read, or the folder cannot be written.
    """
    report = weekly_report(settings, now=now)
    folder = settings.report.folder
    path = folder / f"weekly-{report.end:%Y-%m-%d}.{fmt}"
    partial = path.with_name(f".{path.name}.partial")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(RENDERERS[fmt](report))
        os.replace(partial, path)
    except OSError as error:
        raise UnreachableError(f"[report] folder: expected a writable folder at {folder}, got {error}") from error
    return path


def weekly_report(settings: Settings, *, now: datetime | None = None) -> Report:
    """Read everything and build the report.

    Raises:
        ConfigurationError: prices are in several currencies.
        InputRejectedError: there is no row in that week.
        UnreachableError: the store cannot be read.
    """
    prices = read_prices(settings.price)
    store = EmbeddedStore(settings.store, read_only=True)
    try:
        interval = interval_of(store, settings.cluster.interval_seconds)
        window = report_window(store, now, interval)
        if window is None:
            raise InputRejectedError(
                "expected rows in the store, found none; run `trimtab collect` or `trimtab import`"
            )
        return build_report(gather(store, _opener(settings), settings, window, interval), prices)
    finally:
        store.close()


def _opener(settings: Settings) -> Callable[[], State | None]:
    there = bool(settings.state.url) or settings.state.path.exists()
    return lambda: open_state(settings.state) if there else None


def to_json(report: Report) -> bytes:
    """Return the report as one JSON document."""
    return orjson.dumps(report.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


RENDERERS: dict[str, Callable[[Report], bytes]] = {
    "html": lambda report: render_html(page(report)).encode(),
    "json": to_json,
}
