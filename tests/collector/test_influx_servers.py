"""What only real servers can tell: refused rows, buckets, Flux, a kill in the middle, VictoriaMetrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import requests
from pydantic import SecretStr

from benchmarks.influx import outage_of
from collector.batch import Batch, Event, Fact, Severity, Subject
from collector.clock import VirtualClock
from collector.conformance import DAY, HOUR, START, at, slice_rows, window
from collector.errors import ConfigurationError
from collector.influx.client import Flavour, InfluxClient, QueryRefusedError
from collector.influx.lines import LineEncoder
from collector.influx.places import _buckets, check, kept_v2, make_token, places, prepare
from collector.influx.progress import CURSOR
from collector.influx.reader import InfluxReader
from collector.influx.shipper import Shipper
from collector.influx.store import InfluxStore
from collector.schema import SLICE
from collector.settings import InfluxSettings, StoreSettings
from collector.store.files import export_rows, load_rows
from collector.store.outbox import Outbox
from collector.store.request import HOUR as HOUR_TIER
from collector.store.request import make_request
from sample_data.cluster import SimulatedCluster
from sample_data.cluster.presets import mixed
from tests.conftest import ROOT, wanted
from tests.servers import InfluxServer, VictoriaServer, influxdb1, influxdb2

_NUMBERS = count()
LONG = {"raw_days": 3000.0, "minute_days": 3100.0, "hour_days": 3200.0}  # the rows of the suite are old


@pytest.fixture(params=["influxdb1", "influxdb2"])
def settings(request: pytest.FixtureRequest) -> InfluxSettings:
    server: InfluxServer = request.getfixturevalue(request.param)
    return InfluxSettings.model_validate(
        {"url": server.url, "token": server.token, "org": server.org, "bucket": f"srv{next(_NUMBERS)}", **LONG}
    )


@pytest.fixture
def client(settings: InfluxSettings) -> Iterator[InfluxClient]:
    with closing(InfluxClient(settings)) as made:
        yield made


@pytest.fixture
def store(settings: InfluxSettings, client: InfluxClient, tmp_path: Path) -> Iterator[InfluxStore]:
    prepare(client, settings)
    with closing(
        InfluxStore(settings, StoreSettings(path=tmp_path / "store"), clock=VirtualClock(at(9 * 1440)))
    ) as made:
        yield made


def test_prepare_makes_what_is_missing_and_check_says_what_is_wrong(
    settings: InfluxSettings, client: InfluxClient
) -> None:
    missing = check(client, settings)
    assert missing
    assert all("is missing" in text for text in missing)
    done = prepare(client, settings)
    raw = ["database {} made", "{}/autogen is now kept 3000 days"]
    if client.flavour() is Flavour.V2:
        raw = ["bucket {} made, kept 3000 days"]
    assert done[:-2] == [text.format(settings.bucket) for text in raw]
    assert [text.rpartition(" made, ")[2] for text in done[-2:]] == ["kept 3100 days", "kept 3200 days"]
    longer = settings.model_copy(update={"minute_days": 50.0})
    assert check(client, settings) == []
    assert prepare(client, settings) == []
    (wrong,) = check(client, longer)
    assert "keeps rows 3100 days, [influx] minute_days is 50" in wrong
    (changed,) = prepare(client, longer)
    assert "is now kept 50 days" in changed
    assert check(client, longer) == []


def test_rows_kept_for_ever_are_told_and_set_unless_others_rows_would_go(
    settings: InfluxSettings, client: InfluxClient
) -> None:
    v1 = client.flavour() is Flavour.V1
    if v1:
        client.execute(f'CREATE DATABASE "{settings.bucket}"')  # as operators do: its default policy keeps for ever
    else:
        org = client.call_json("GET", "/api/v2/orgs", query={"org": settings.org})["orgs"][0]["id"]
        client.call_json("POST", "/api/v2/buckets", body={"orgID": org, "name": settings.bucket, "retentionRules": []})
    client.write(b"cpu,host=a usage=1 1", settings.bucket, precision="s")
    assert f"{settings.bucket} keeps rows for ever, [influx] raw_days is 3000" in check(client, settings)
    with pytest.raises(ConfigurationError, match=r"also holds rows of others \(cpu\), .* name another"):
        prepare(client, settings)
    if v1:
        client.execute('DROP MEASUREMENT "cpu"', settings.bucket)
    else:
        client.delete(settings.bucket, 0, 10_000, '_measurement="cpu"')
    raw = prepare(client, settings)[0]
    assert raw == f"{settings.bucket}/autogen is now kept 3000 days" if v1 else "is now kept 3000 days" in raw
    assert check(client, settings) == []


def test_buckets_are_found_among_hundreds(influxdb2: InfluxServer, tmp_path: Path) -> None:
    own = InfluxSettings.model_validate(
        {"url": influxdb2.url, "token": influxdb2.token, "org": influxdb2.org, "bucket": f"srv{next(_NUMBERS)}", **LONG}
    )
    file = tmp_path / "influx.token"
    with closing(InfluxClient(own)) as client:
        org = client.call_json("GET", "/api/v2/orgs", query={"org": own.org})["orgs"][0]["id"]
        for n in range(101):  # of which a list shows the first hundred by name
            body = {"orgID": org, "name": f"aa{own.bucket}-{n}", "retentionRules": []}
            client.call_json("POST", "/api/v2/buckets", body=body)
        prepare(client, own)
        assert prepare(client, own) == []
        make_token(client, own, file)
    with closing(InfluxClient(own.model_copy(update={"token": None, "token_file": file}))) as client:
        assert check(client, own) == []


def test_a_token_that_may_use_the_buckets_and_nothing_else(influxdb2: InfluxServer, tmp_path: Path) -> None:
    file = tmp_path / "influx.token"
    admin = InfluxSettings.model_validate(
        {"url": influxdb2.url, "token": influxdb2.token, "org": influxdb2.org, "bucket": f"srv{next(_NUMBERS)}", **LONG}
    )
    with closing(InfluxClient(admin)) as client:
        with pytest.raises(ConfigurationError, match="expected buckets, found none; trimtab store prepare"):
            make_token(client, admin, file)
        prepare(client, admin)
        assert "may read and write" in make_token(client, admin, file)
        token = file.read_text()
        assert file.stat().st_mode & 0o077 == 0
        assert token != influxdb2.token
        assert make_token(client, admin, file) == f"the token in {file} is kept"
        assert file.read_text() == token
        org = client.call_json("GET", "/api/v2/orgs", query={"org": admin.org})["orgs"][0]["id"]
        rights = [{"action": "read", "resource": {"type": "buckets", "orgID": org}}]
    own = admin.model_copy(update={"token": None, "token_file": file})
    with closing(InfluxStore(own, StoreSettings(path=tmp_path / "store"), clock=VirtualClock(at(9 * 1440)))) as store:
        store.write(slice_rows([0, 1], ["a", "b"], busy_ratio=[0.5, 0.6]))
        store.ship()
        assert len(store._remote.read("slice", window(0, 60))) == 2
    with closing(InfluxClient(own)) as client:
        assert check(client, own) == []
        kept = kept_v2(client, own, places(own, Flavour.V2))
        assert set(kept) == {f"{own.bucket}{tier}" for tier in ("", "_minute", "_hour")}
        with pytest.raises(ConfigurationError, match=r"answered 40[134]"):
            client.write(b"gpu,cluster=c busy_ratio=1 1", "trimtab")
        with pytest.raises(ConfigurationError, match="found none that the token may see"):
            prepare(client, own.model_copy(update={"bucket": "another"}))
        with pytest.raises(ConfigurationError, match=r"answered 40[134]"):
            client.call_json("POST", "/api/v2/authorizations", body={"orgID": org, "permissions": rights})
    file.unlink()
    with closing(InfluxClient(admin)) as client:
        make_token(client, admin, file)
    assert file.read_text() != token
    file.with_name("old").write_text(token)
    old = own.model_copy(update={"token_file": file.with_name("old")})
    with closing(InfluxClient(old)) as client, pytest.raises(ConfigurationError, match="answered 401"):
        check(client, old)  # taken back


def test_rows_are_exported_from_both_stores_at_once(store: InfluxStore, tmp_path: Path) -> None:
    store.write(slice_rows([0, 1], ["a", "b"], busy_ratio=[0.5, 0.6]))
    store.ship()
    export_rows(store, tmp_path / "rows", window(0, 60), measurements=["slice"])
    assert load_rows([tmp_path / "rows"]).read("slice", window(0, 60))["busy_ratio"].tolist() == [0.5, 0.6]


def test_every_query_of_the_grafana_dashboard_has_an_answer(
    store: InfluxStore, client: InfluxClient, settings: InfluxSettings
) -> None:
    cluster = SimulatedCluster(mixed(1))
    for _ in range(3):
        cluster.step()
        store.write(cluster.frames())
    store.ship()
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "fleet.json").read_text(encoding="utf-8"))
    (variable,) = (v["query"] for v in dashboard["templating"]["list"] if v["name"] == "cluster")
    assert '["cluster","demo"]' in client.execute(variable, settings.bucket)
    span = f"time > '{cluster.now - timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}' AND time < '2026-02-01T00:00:00Z'"
    seen = {}
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            query = (
                target["query"].replace("$timeFilter", span).replace("$__interval", "1m").replace("$cluster", "demo")
            )
            assert re.search(r"\$\w", query) is None
            (result,) = json.loads(client.execute(query, settings.bucket))["results"]
            values = [row[1] for series in result.get("series", []) for row in series["values"]]
            assert any(value is not None for value in values), panel["title"]
            tags = {tag for series in result["series"] for tag in series.get("tags", {})}
            assert set(re.findall(r"\$tag_(\w+)", target["alias"])) <= tags, panel["title"]
            seen[panel["title"]] = values
    assert seen["Cards seen"] == [16]
    assert max(seen["Power"]) > 16 * 50.0


def test_a_tier_without_its_place_waits_alone(settings: InfluxSettings, client: InfluxClient, tmp_path: Path) -> None:
    prepare(client, settings)
    hour = places(settings, client.flavour())[HOUR_TIER]
    if client.flavour() is Flavour.V2:
        client.call_json("DELETE", f"/api/v2/buckets/{_buckets(client, settings, {HOUR_TIER: hour})[hour.bucket][0]}")
    else:
        client.execute(f'DROP RETENTION POLICY "{hour.policy}" ON "{hour.database}"')
    folder = StoreSettings(path=tmp_path / "store")
    with closing(InfluxStore(settings, folder, clock=VirtualClock(at(9 * 1440)))) as store:
        batch = slice_rows([0, 1], ["a", "b"], busy_ratio=[0.5, 0.6])
        batch.events.append(Event(Subject("gpu", "lab", "n", "g"), "xid", Severity.ERROR, "XID 79", at(0)))
        store.write(batch)
        with pytest.raises(ConfigurationError, match="not found"):
            store.ship()
        with pytest.raises(ConfigurationError, match="not found"):
            store.ship()
        assert store.progress().pending == 0
        assert store._remote.read("slice", window(0, 60))["slice"].tolist() == ["a", "b"]
        prepare(client, settings)
        store.ship()
        assert store._remote.events(window(0, 60))["message"].tolist() == ["XID 79"]


def test_a_field_that_somebody_wrote_as_integer(
    settings: InfluxSettings, client: InfluxClient, store: InfluxStore, caplog: pytest.LogCaptureFixture
) -> None:
    stamp = round(START.timestamp() * 1000)
    client.write(f"slice,cluster=other steps_count=1i {stamp}".encode(), settings.bucket)
    store.write(slice_rows([0, 1], ["a", "b"], steps_count=[1, 2]))
    store.write(slice_rows([0, 1], ["a", "b"], busy_ratio=[0.5, 0.6]))
    far = 8 * 1440  # another shard, where nobody wrote integers
    store.write(slice_rows([far], ["c"], steps_count=[3]))
    with closing(Outbox(StoreSettings(path=store.local._folder), CURSOR)) as outbox:
        done = Shipper(client, settings, outbox, store.local, VirtualClock(at(9 * 1440))).ship()
    assert done.refused.total() == 2
    named = [r.message for r in caplog.records if r.message.startswith("refused")]
    assert len(named) == 2
    assert "slice=a" in named[0]
    assert "field type conflict" in named[0]
    rejects = store.local.rejects(window(0, 60))
    assert rejects["slice"].tolist() == ["a", "b"]
    with closing(InfluxReader(client, settings, VirtualClock(at(9 * 1440)))) as reader:
        kept = reader.read("slice", window(1, far + 9), fields=["steps_count", "busy_ratio"])
        assert kept["slice"].tolist() == ["b", "c"]
        np.testing.assert_array_equal(kept["busy_ratio"], [0.6, np.nan])


def test_flux_answers_as_influxql_does(settings: InfluxSettings, client: InfluxClient, store: InfluxStore) -> None:
    rng = np.random.default_rng(3)
    names = ["a b", "x,y", 'say "hi" ${x}', "日本"]
    for minute in range(0, 180, 10):
        values = np.where(rng.random(4) < 0.3, np.nan, np.round(rng.random(4), 3))
        store.write(slice_rows([minute] * 4, names, busy_ratio=values.tolist(), steps_count=[1, 2, 3, minute]))
    who = Subject("slice", "lab", "node-a", "GPU-1", "a b")
    store.write(
        Batch(
            facts=[Fact(who, "kind", "mps", at(0)), Fact(who, "pod", "ns/p", at(1))],
            events=[Event(who, "xid", Severity.ERROR, 'XID "79",\nlost', at(2))],
        )
    )
    store.ship()
    clock = VirtualClock(at(9 * 1440))
    with (
        closing(InfluxReader(client, settings, clock)) as first,
        closing(InfluxReader(client, settings, clock)) as second,
    ):
        second._by_flux = True
        for arguments in (
            {},
            {"where": {"slice": 'say "hi" ${x}'}},
            {"every": HOUR, "aggregate": "mean"},
            {"every": HOUR, "aggregate": "count", "by": ["node"]},
            {"by": [], "aggregate": "max"},
            {"every": HOUR, "aggregate": "last"},
        ):
            asked = {"fields": ["busy_ratio", "steps_count"], **arguments}
            frames = [reader.read("slice", window(0, 180), **asked) for reader in (first, second)]
            assert len(frames[0])
            pd.testing.assert_frame_equal(*frames, rtol=1e-12)
        newest = [
            reader.latest("slice", at=at(175), lookback=HOUR, fields=["busy_ratio"]) for reader in (first, second)
        ]
        pd.testing.assert_frame_equal(*newest)
        assert len(newest[0]) == 4
        pd.testing.assert_frame_equal(first.own_facts(), second.own_facts())
        assert first.own_facts()["value"].tolist() == ["mps", "ns/p"]
        pd.testing.assert_frame_equal(first.events(window(0, 9)), second.events(window(0, 9)))
        assert first.events(window(0, 9))["message"].tolist() == ['XID "79",\nlost']


def test_a_reader_turns_to_flux_where_influxql_is_refused(
    settings: InfluxSettings, client: InfluxClient, store: InfluxStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(slice_rows([0, 1], ["a", "a"], steps_count=[1, 2]))
    store.ship()

    def refuse(*_: object) -> None:
        raise QueryRefusedError("told to")

    monkeypatch.setattr(client, "select", refuse)
    with closing(InfluxReader(client, settings, VirtualClock(at(9 * 1440)))) as reader:
        frame = reader.read("slice", window(0, 60), fields=["steps_count"], by=["tenant"], aggregate="sum")
        assert frame["steps_count"].tolist() == [3]
        assert reader._by_flux
    with closing(InfluxReader(client, settings, VirtualClock(at(9 * 1440)))) as reader:
        assert reader.latest("slice", at=at(9), lookback=HOUR, fields=["steps_count"])["steps_count"].tolist() == [2]


def test_long_windows_are_answered_by_the_tiers(store: InfluxStore, settings: InfluxSettings) -> None:
    minutes = list(range(0, 5 * 1440, 15))
    values = [float(m % 97) for m in minutes]
    store.write(slice_rows(minutes, ["a"] * len(minutes), steps_count=values, busy_ratio=[0.25] * len(minutes)))
    store.ship()
    frames = {}
    for aggregate in ("mean", "sum", "count", "min", "max"):
        frame = store.read("slice", window(0, 5 * 1440), fields=["steps_count"], every=DAY, aggregate=aggregate)
        assert frame.attrs["tier"] == "hour"
        assert frame.attrs["stores"][0][0] == "influx"
        expected = pd.Series(values).groupby([m // 1440 for m in minutes]).agg(aggregate)
        np.testing.assert_allclose(frame["steps_count"], expected, rtol=1e-12)
        frames[aggregate] = frame
    # Raw rows past their retention: what is left are the tiers.
    young = settings.model_copy(update={"raw_days": 1.0, "minute_days": 2.0})
    with (
        closing(InfluxClient(young)) as client,
        closing(InfluxReader(client, young, VirtualClock(at(5 * 1440)))) as reader,
    ):
        old = reader.read("slice", window(0, 1440), fields=["steps_count"], every=HOUR, by=[], aggregate="count")
        assert old.attrs["tier"] == "hour"
        assert old["steps_count"].tolist() == [4] * 24


def test_deleting_a_part_of_an_hour_leaves_the_rest_of_it(settings: InfluxSettings, store: InfluxStore) -> None:
    start = 6 * 1440
    for minute in (0, 1, 30, 59, 60):
        store.write(slice_rows([start + minute] * 2, ["a", "b"], steps_count=[minute, minute]))
    store.write(slice_rows([start + 40], ["gone"], steps_count=[1]))
    store.ship()
    assert store.delete("slice", window(start + 30, start + 60)) == 5
    store.ship()
    hour = window(start, start + 61)
    with closing(InfluxClient(settings)) as client, closing(InfluxReader(client, settings)) as reader:
        reader._clock = VirtualClock(at(9 * 1440))
        raw = reader.read("slice", hour, fields=["steps_count"])
        assert raw["slice"].tolist() == ["a"] * 3 + ["b"] * 3
        assert raw["steps_count"].tolist() == [0, 1, 60] * 2
        for tier, expected in (("minute", [1, 1, 1] * 2), ("hour", [2, 1] * 2)):
            request = make_request(
                "slice", hour, fields=["steps_count"], where=None, by=None, every=HOUR, aggregate="count"
            )
            rows = reader._rows(request, ("rows_count",), tier).sort_by([("slice", "ascending"), ("t", "ascending")])
            assert rows.column("slice").to_pylist() == ["a"] * (len(expected) // 2) + ["b"] * (len(expected) // 2)
            assert rows.column("rows_count").to_pylist() == expected


def test_retention_by_hand_leaves_the_coarser_tiers(settings: InfluxSettings, store: InfluxStore) -> None:
    store.write(slice_rows([0, 1440], ["a", "a"], steps_count=[1, 2]))
    store.ship()
    shorter = settings.model_copy(update={"raw_days": 1.0})
    with closing(InfluxStore(shorter, StoreSettings(path=store.local._folder), clock=VirtualClock(at(2000)))) as other:
        other.retain(at(2000))
    with closing(InfluxClient(settings)) as client, closing(InfluxReader(client, settings)) as reader:
        request = make_request("slice", window(0, 2000), fields=[], where=None, by=None, every=HOUR, aggregate="count")
        kept = {tier: reader._rows(request, ("rows_count",), tier).num_rows for tier in ("raw", "minute", "hour")}
    raw = 2 if settings.org == "-" else 1  # a delete on 1.x would take all tiers: its policies alone do it
    assert kept == {"raw": raw, "minute": 2, "hour": 2}


def test_a_wrong_token_is_said(influxdb2: InfluxServer) -> None:
    settings = InfluxSettings(url=influxdb2.url, org=influxdb2.org, bucket="trimtab", token=SecretStr("nonsense"))
    with closing(InfluxClient(settings)) as client:
        with pytest.raises(ConfigurationError, match=r"answered 401.*check the token"):
            client.write(b"slice x=1 1", "trimtab")
        with pytest.raises(ConfigurationError, match="check the token"):
            check(client, settings)


@pytest.mark.slow
@pytest.mark.parametrize("server", [influxdb1, influxdb2], ids=["1.13.2", "2.8.0"])
def test_kills_in_the_middle_lose_and_repeat_nothing(tmp_path: Path, server: object) -> None:
    with wanted(server(tmp_path / "probe")):  # type: ignore[operator]  # a function of tests/servers.py
        pass
    assert outage_of(tmp_path, server, 6_000, 2) == (6_000, 6_000, 2)  # type: ignore[arg-type]


def test_victoriametrics_takes_the_lines(victoriametrics: VictoriaServer) -> None:
    names = ["a b", "x,y=z", "back\\", "new\nline", "日本", 'q"uote']
    rows = slice_rows([0] * 6, names, steps_count=range(6), busy_ratio=[np.nan] * 5 + [0.5]).rows["slice"]
    fields = {name: rows.column(name).to_numpy() for name in ("steps_count", "busy_ratio")}
    body = LineEncoder("slice", SLICE.tags).encode(rows, fields)
    with closing(InfluxClient(InfluxSettings(url=victoriametrics.url, gzip="on"))) as client:
        client.write(body, "trimtab")
    requests.get(f"{victoriametrics.url}/internal/force_flush", timeout=30)
    answer = requests.get(
        f"{victoriametrics.url}/api/v1/export",
        params={"match[]": '{__name__=~"slice_.+"}', "start": START.timestamp() - 60, "end": START.timestamp() + 60},
        timeout=30,
    )
    found = [json.loads(line) for line in answer.text.splitlines()]
    steps = {s["metric"]["slice"]: s["values"] for s in found if s["metric"]["__name__"] == "slice_steps_count"}
    assert steps == {
        name: [float(n)] for n, name in enumerate(["a b", "x%2Cy%3Dz", "back%5C", "new%0Aline", "日本", 'q"uote'])
    }
    assert [s["values"] for s in found if s["metric"]["__name__"] == "slice_busy_ratio"] == [[0.5]]
    assert {s["timestamps"][0] for s in found} == {round(START.timestamp() * 1000)}
