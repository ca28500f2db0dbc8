"""The doctor's look at InfluxDB: does it answer, may we use it, does it keep rows as asked, how far is it behind?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta

from collector.errors import ConfigurationError, TrimtabError
from dashboard.config import Settings
from dashboard.doctor.check import Check, note, ok, problem, span_text

TOPIC = "influxdb"
LATE = timedelta(minutes=15)


def examine_influx(settings: Settings, now: datetime) -> Iterator[Check]:
    """Look at the server and at the shipper's cursor; nothing is written."""
    from collector.influx.client import InfluxClient  # noqa: PLC0415  DuckDB loads slowly
    from collector.influx.places import check  # noqa: PLC0415

    if not settings.influx.url:
        yield from _forgotten(settings)
        return
    try:
        with closing(InfluxClient(settings.influx)) as client:
            wrong = check(client, settings.influx)
            version = client.flavour().value
            address = client.address
    except ConfigurationError as error:
        yield problem(TOPIC, str(error), "docs/influxdb.md: which rights the token needs")
    except TrimtabError as error:
        yield problem(TOPIC, str(error), "is it running, and its port open from this host? rows wait meanwhile")
    else:
        yield ok(TOPIC, f"{address} answers as version {version}.x")
        for text in wrong:
            yield problem(TOPIC, text, "trimtab store prepare")
    yield from _lag(settings, now)


def _lag(settings: Settings, now: datetime) -> Iterator[Check]:
    from collector.influx.progress import CURSOR, progress_of  # noqa: PLC0415

    try:
        progress = progress_of(settings.store, CURSOR)
    except TrimtabError:
        return  # the store itself is told of elsewhere
    if progress.cursor is None:
        yield note(TOPIC, "nothing was shipped yet", "trimtab collect does it, or trimtab store ship")
        return
    behind = progress.behind(now)
    text = f"{span_text(behind)} behind; {progress.pending} rows, facts and events wait"
    if behind > LATE:
        yield problem(
            TOPIC, text, "is `trimtab collect` running? trimtab store status; nothing is lost while they wait"
        )
    else:
        yield ok(TOPIC, text)


def _forgotten(settings: Settings) -> Iterator[Check]:
    """Say so where a cursor holds rows for an InfluxDB that is no longer configured."""
    from collector.influx.progress import CURSOR, cursors  # noqa: PLC0415

    try:
        held = CURSOR in cursors(settings.store)
    except TrimtabError:
        return
    if held:
        text = "the store keeps rows for an InfluxDB that is no longer configured"
        yield note(TOPIC, text, "set [influx] url, or trimtab store forget influx")
