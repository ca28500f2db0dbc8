"""Mappings and clusters of the configuration, from a page on loopback to rows in the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from tests.dashboard.conftest import Ran
from tests.dashboard.exporters import serving

ACME = """
subject = "device"
uuid = ["card"]

[[metric]]
metric = ["acme_watts"]
measurement = "gpu"
field = "power_watts"
unit = "mW"
"""


def stored(measurement: str) -> pd.DataFrame:
    store = EmbeddedStore(StoreSettings(), read_only=True)
    try:
        span = store.span(measurement)
        return pd.DataFrame() if span is None else store.read(measurement, span)
    finally:
        store.close()


def test_a_users_metric_and_a_users_exporter_become_rows(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    (elsewhere / "acme.toml").write_text(ACME, encoding="utf-8")
    pages = {"acme": 'acme_watts{card="GPU-9"} 250000\nacme_load{uuid="GPU-9"} 40\n'}
    with serving(pages) as exporters:
        (elsewhere / "trimtab.toml").write_text(
            f"""
[[source]]
targets = ["{exporters.url("acme")}"]

[[mapping]]
file = "acme.toml"

[[mapping]]
metric = "acme_load"
measurement = "gpu"
field = "busy_ratio"
unit = "percent"
""",
            encoding="utf-8",
        )
        ran = trimtab("collect", "--once", "--now", "2026-01-05T00:00:00Z")
    assert ran.code == 0, ran.err
    row = stored("gpu").iloc[0]
    assert (row["gpu"], row["power_watts"], row["busy_ratio"]) == ("GPU-9", 250.0, 0.4)


def test_a_wrong_unit_is_found_before_anything_runs(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    (elsewhere / "acme.toml").write_text(ACME.replace('"mW"', '"mWatt"'), encoding="utf-8")
    (elsewhere / "trimtab.toml").write_text('[[mapping]]\nfile = "acme.toml"\n', encoding="utf-8")
    ran = trimtab("config", "check")
    assert ran.code == 1
    said = " ".join((ran.out + ran.err).split())
    assert "acme.toml: [[metric]] 1 (acme_watts): expected a unit" in said
    assert "got 'mWatt'; the nearest is" in said
    assert "Traceback" not in said


def test_the_same_card_in_two_clusters_is_two_and_hosts_have_rows(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    pages = {
        "east": 'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-0",Hostname="n1"} 100\n',
        "west": 'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-0",Hostname="n1"} 300\n',
        "host": 'node_uname_info{nodename="n1"} 1\nnode_memory_MemTotal_bytes 64\nnode_memory_MemAvailable_bytes 24\n',
    }
    with serving(pages) as exporters:
        (elsewhere / "trimtab.toml").write_text(
            f"""
[cluster]
name = "east"

[[source]]
targets = ["{exporters.url("east")}", "{exporters.url("host")}"]

[[source]]
targets = ["{exporters.url("west")}"]
cluster = "west"
""",
            encoding="utf-8",
        )
        ran = trimtab("collect", "--once", "--now", "2026-01-05T00:00:00Z")
    assert ran.code == 0, ran.err
    cards = stored("gpu")
    assert dict(zip(cards["cluster"], cards["power_watts"], strict=True)) == {"east": 100.0, "west": 300.0}
    host = stored("node").iloc[0]
    assert (host["cluster"], host["node"], host["memory_used_bytes"]) == ("east", "n1", 40.0)
