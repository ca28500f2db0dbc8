"""InfluxDB keeps the laws of every store: 2.8.0 and 1.13.2 for real, 3.x by its documented shapes on a double."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from pydantic import SecretStr

from collector.clock import VirtualClock
from collector.conformance import DAY, START, StoreConformance, at, slice_rows, window
from collector.errors import ConfigurationError
from collector.influx.client import InfluxClient
from collector.influx.store import InfluxStore
from collector.protocols import Store
from collector.settings import InfluxSettings, StoreSettings
from tests.collector import influx_double
from tests.servers import InfluxServer

# All that is written is then older than the live window, and younger than any retention.
NOW = START + timedelta(days=6)


class InfluxConformance(StoreConformance):
    """After each write all is shipped, so that every answer comes from InfluxDB."""

    @pytest.fixture
    def settings(self) -> InfluxSettings:
        raise NotImplementedError

    @pytest.fixture
    def make_store(self, tmp_path: Path, settings: InfluxSettings) -> Iterator[Callable[[], Store]]:
        opened: list[InfluxStore] = []

        def make() -> Store:
            store = InfluxStore(
                settings, StoreSettings(path=tmp_path / f"store-{len(opened)}"), clock=VirtualClock(NOW)
            )
            opened.append(store)
            store.ship()
            return store

        yield make
        for store in opened:
            store.close()

    def settle(self, store: Store) -> None:
        assert isinstance(store, InfluxStore)
        store.ship()


class TestInflux3Shapes(InfluxConformance):
    series = 2_000  # the double is no database

    @pytest.fixture
    def settings(self) -> Iterator[InfluxSettings]:
        with influx_double.running("3.4.1", token="t0k3n") as double:  # noqa: S106 - of a double
            yield InfluxSettings(url=double.url, token=SecretStr("t0k3n"), batch_rows=5000)

    def test_delete_takes_what_matches_and_no_more(self, make_store: Callable[[], Store]) -> None:
        store = make_store()
        store.write(slice_rows([0], ["a"], steps_count=[1]))
        self.settle(store)
        with pytest.raises(ConfigurationError, match="InfluxDB 3 cannot delete"):
            store.delete("slice", window(0, 9))
        assert len(store.read("slice", window(0, 9))) == 1

    def test_retention_keeps_what_is_young(self, make_store: Callable[[], Store]) -> None:
        store = make_store()
        store.write(slice_rows([0], ["a"], steps_count=[1]))
        self.settle(store)
        assert store.retain(at(5)) == 0
        assert store.retain(START + 3650 * DAY) == 3  # here, tiers too; there the database does it
        assert len(store.read("slice", window(0, 9))) == 1


_NUMBERS = count()


class TestInflux1(InfluxConformance):
    @pytest.fixture
    def settings(self, influxdb1: InfluxServer) -> InfluxSettings:
        name = f"lab{next(_NUMBERS)}"
        settings = InfluxSettings(url=influxdb1.url, token=SecretStr(influxdb1.token), bucket=name, batch_rows=5000)
        client = InfluxClient(settings)
        client.execute(f"CREATE DATABASE {name}")
        for policy in ("minute", "hour"):  # without a limit of age, since the rows of the suite are old
            client.execute(f"CREATE RETENTION POLICY {policy} ON {name} DURATION INF REPLICATION 1")
        client.close()
        return settings


class TestInflux2(InfluxConformance):
    @pytest.fixture
    def settings(self, influxdb2: InfluxServer) -> InfluxSettings:
        name = f"lab{next(_NUMBERS)}"
        settings = InfluxSettings(
            url=influxdb2.url, token=SecretStr(influxdb2.token), org=influxdb2.org, bucket=name, batch_rows=5000
        )
        client = InfluxClient(settings)
        org = client.call_json("GET", "/api/v2/orgs", query={"org": influxdb2.org})["orgs"][0]["id"]
        for bucket in (name, f"{name}_minute", f"{name}_hour"):
            body = {"orgID": org, "name": bucket, "retentionRules": []}
            client.call_json("POST", "/api/v2/buckets", body=body)
        client.close()
        return settings
