"""The text of the exporters, read by the collector, gives the rows that are handed over without text."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from collector.batch import Batch
from collector.plugins import SourceContext
from collector.scrape import ScrapeSource
from collector.settings import SourceSettings
from sample_data.cluster import ClusterSpec, SimulatedCluster
from sample_data.cluster.presets import trainer_mapping
from sample_data.cluster.quirks import flapping
from tests.sample_data.helpers import run

KEYS = {"gpu": ["gpu"], "slice": ["gpu", "slice", "tenant", "workload"], "queue": ["pool", "tenant"]}
FIRST = 330  # an hour in which a rotating card's own series flaps for three minutes


@pytest.fixture(scope="module")
def hour(spec: ClusterSpec) -> tuple[SimulatedCluster, list[tuple[Batch, Batch]]]:
    cluster = SimulatedCluster(spec)
    context = SourceContext(cluster=spec.name, simulated=True, mappings=trainer_mapping())
    source = ScrapeSource(SourceSettings(kind="scrape"), context, fetch=cluster.fetch, discover=cluster.targets)
    run(cluster, FIRST - 1)
    batches = []
    for _ in range(61):
        run(cluster, 1)
        batches.append((source.poll(cluster.now), cluster.frames()))
    return cluster, batches[1:]  # the first minute has no counters yet


def rows(batch: Batch, measurement: str) -> pd.DataFrame:
    table = batch.rows[measurement].to_pandas().set_index(KEYS[measurement]).sort_index()
    return table.drop(columns=[c for c in ("cluster", "node") if c in table])


@pytest.mark.parametrize("measurement", ["gpu", "slice", "queue"])
def test_rows_are_equal(hour: tuple[SimulatedCluster, list[tuple[Batch, Batch]]], measurement: str) -> None:
    cluster, batches = hour
    compared = 0
    for text, frames in batches:
        left, right = rows(text, measurement), rows(frames, measurement)
        assert list(left.index) == list(right.index)
        minute = int((left["time"].iloc[0] - pd.Timestamp(cluster.spec.start)).total_seconds() // 60) - 1
        flaps = {c.uuid for n, c in enumerate(cluster.spec.cards) if flapping(cluster.spec, n, minute)}
        for column in sorted(set(left) | set(right)):
            if column == "time":
                assert (left[column] == right[column]).all()
                continue
            keep = np.ones(len(left), dtype=bool)
            if measurement == "gpu" and column in ("busy_ratio", "memory_used_bytes"):
                keep = ~left.index.isin(flaps)  # what the pods' copies make of it is no value of the card
            absent = pd.Series(np.nan, index=left.index)
            a, b = left.get(column, absent)[keep], right.get(column, absent)[keep]
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12, err_msg=f"{measurement}.{column} at {minute}")
            compared += int(a.notna().sum())
    assert compared > {"gpu": 15_000, "slice": 15_000, "queue": 1_500}[measurement]


def test_facts_are_equal(hour: tuple[SimulatedCluster, list[tuple[Batch, Batch]]], spec: ClusterSpec) -> None:
    cluster = SimulatedCluster(spec)
    context = SourceContext(cluster=spec.name, simulated=True, mappings=trainer_mapping())
    source = ScrapeSource(SourceSettings(kind="scrape"), context, fetch=cluster.fetch, discover=cluster.targets)
    told: tuple[dict[object, str | None], dict[object, str | None]] = ({}, {})
    for _ in range(3):
        run(cluster, 1)
        for book, batch in zip(told, (source.poll(cluster.now), cluster.frames()), strict=True):
            book.update({(f.subject, f.name): f.value for f in batch.facts if not _of_text(f.name)})
    assert told[0] == told[1]
    assert len(told[0]) > 500


def _of_text(name: str) -> bool:
    """Say whether a fact speaks of the exporters, which frames are made without."""
    return name in ("source", "provenance", "exporter_version") or name.startswith("sample_window")


def test_events_are_equal(spec: ClusterSpec) -> None:
    card = dataclasses.replace(spec.cards[11], fails_at_minute=8)
    cluster = SimulatedCluster(spec.replace(cards=(*spec.cards[:11], card, *spec.cards[12:]), quirks=False))
    context = SourceContext(cluster=spec.name, simulated=True, mappings=trainer_mapping())
    source = ScrapeSource(SourceSettings(kind="scrape"), context, fetch=cluster.fetch, discover=cluster.targets)
    told: tuple[list[tuple[str, str]], list[tuple[str, str]]] = ([], [])
    for _ in range(20):
        run(cluster, 1)
        for book, batch in zip(told, (source.poll(cluster.now), cluster.frames()), strict=True):
            book.extend((e.code, e.subject.gpu) for e in batch.events if e.code in ("xid", "card_lost"))
    assert sorted(told[0]) == sorted(told[1])
    assert ("xid", card.uuid) in told[1]
    assert ("card_lost", card.uuid) in told[1]
