"""A collector's cycles over texts in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

from collector.assemble import Assembler, Scrape
from collector.batch import Batch
from collector.exposition import ExpositionParser
from collector.plugins import SourceContext
from collector.settings import TargetSettings

START = datetime(2026, 1, 5, tzinfo=UTC)


class Cycles:
    """Feeds texts, one a target, minute after minute, and keeps the last batch."""

    def __init__(self, context: SourceContext) -> None:
        self.context = context
        self.start = START
        self.assembler = Assembler(context)
        self.now = START - timedelta(seconds=context.interval_seconds)
        self.batch = Batch()
        self._parsers: dict[str, ExpositionParser] = {}

    def poll(
        self,
        texts: str | Mapping[str, str | None],
        *,
        labels: Mapping[str, dict[str, str]] | None = None,
        node: str = "node-a",
        skip: int = 0,
    ) -> Batch:
        """Run one cycle; a text of None is a target that does not answer; `skip` cycles are left out before."""
        self.now += timedelta(seconds=self.context.interval_seconds * (skip + 1))
        scrapes = []
        for url, text in ({"http://a:9400/metrics": texts} if isinstance(texts, str) else texts).items():
            target = TargetSettings(url=url, node=node, labels=(labels or {}).get(url, {}))
            parser = self._parsers.setdefault(url, ExpositionParser())
            body = None if text is None else parser.parse(text)
            scrapes.append(Scrape(target, body, "no answer in time" if text is None else ""))
        self.batch = self.assembler.assemble(self.now, scrapes)
        return self.batch

    def frame(self, measurement: str) -> pd.DataFrame:
        """Return the last batch's rows, indexed by their subject."""
        table = self.batch.rows.get(measurement)
        key = {"gpu": "gpu", "slice": "slice", "queue": "tenant", "node": "node"}[measurement]
        return pd.DataFrame({key: []}).set_index(key) if table is None else table.to_pandas().set_index(key)

    def facts(self, name: str) -> dict[str, str | None]:
        """Return the last batch's facts of a name, by their subject's last part."""
        return {str(f.subject).rpartition("/")[2]: f.value for f in self.batch.facts if f.name == name}

    def rejects(self) -> dict[tuple[str, str], int]:
        """Return the last batch's rejects: (field, reason) -> count."""
        counts: dict[tuple[str, str], int] = {}
        for reject in self.batch.rejects:
            counts[reject.field, reject.reason] = counts.get((reject.field, reject.reason), 0) + reject.count
        return counts

    def events(self) -> list[str]:
        """Return the codes of the last batch's events."""
        return [event.code for event in self.batch.events]


@pytest.fixture
def cycles() -> Cycles:
    """Cycles of a minute with no configuration."""
    return Cycles(SourceContext(cluster="test"))


@pytest.fixture
def cycles_with() -> Callable[..., Cycles]:
    """Cycles with a configuration of one's own."""
    return lambda **settings: Cycles(SourceContext(cluster="test", **settings))
