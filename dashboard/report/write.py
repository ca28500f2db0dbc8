"""`write_weekly`: read, build, render, write."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Literal

import orjson

from collector.atomic import replacing
from collector.errors import InputRejectedError, UnreachableError
from collector.influx.store import open_store
from dashboard.cli.context import interval_of
from dashboard.config import Settings
from dashboard.report.build import build_report
from dashboard.report.gather import gather, report_window
from dashboard.report.html import render_html
from dashboard.report.markdown import render_markdown
from dashboard.report.model import Report
from dashboard.report.page import make_page
from dashboard.report.prices import read_prices
from tuner.service.analyse import Analysis
from tuner.state import State, open_state

Format = Literal["html", "md", "json"]


def write_weekly(
    settings: Settings, *, now: datetime | None = None, fmt: Format = "html", analysis: Analysis | None = None
) -> Path:
    """Write the report of the last week into the folder of `[report]`.

    Args:
        settings: all tables.
        now: end of the week; None: the newest row.
        fmt: html, md or json.
        analysis: one that was just made: its window is reported, and nothing is analysed again.

    Returns:
        Where it lies. The same rows give the same bytes.

    Raises:
        ConfigurationError: prices are in several currencies.
        InputRejectedError: there is no row in that week.
        UnreachableError: the store cannot be read, or the folder cannot be written.
    """
    report = weekly_report(settings, now=now, analysis=analysis)
    folder = settings.report.folder
    path = folder / f"weekly-{report.end:%Y-%m-%d}.{fmt}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as beside:
            beside.write_bytes(RENDERERS[fmt](report))
    except OSError as error:
        raise UnreachableError(f"[report] folder: expected a writable folder at {folder}, got {error}") from error
    return path


def weekly_report(settings: Settings, *, now: datetime | None = None, analysis: Analysis | None = None) -> Report:
    """Read everything and build the report; arguments as of `write_weekly`.

    Raises:
        ConfigurationError: prices are in several currencies.
        InputRejectedError: there is no row in that week.
        UnreachableError: the store cannot be read.
    """
    prices = read_prices(settings.price)
    store = open_store(settings.influx, settings.store, read_only=True)
    try:
        configured = settings.cluster.interval_seconds
        week = report_window(store, now, configured) if analysis is None else analysis.window
        interval = interval_of(store, configured, week)
        window = report_window(store, now, interval) if analysis is None else week
        if window is None:
            raise InputRejectedError(
                "expected rows in the store, found none; run `trimtab collect` or `trimtab import`"
            )
        return build_report(
            gather(store, _opener(settings), settings, window, interval_seconds=interval, analysis=analysis), prices
        )
    finally:
        store.close()


def _opener(settings: Settings) -> Callable[[], State | None]:
    there = bool(settings.state.url) or settings.state.path.exists()
    return lambda: open_state(settings.state) if there else None


def to_json(report: Report) -> bytes:
    """Return the report as one JSON document."""
    return orjson.dumps(report.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


RENDERERS: dict[str, Callable[[Report], bytes]] = {
    "html": lambda report: render_html(make_page(report)).encode(),
    "md": lambda report: render_markdown(make_page(report)).encode(),
    "json": to_json,
}
