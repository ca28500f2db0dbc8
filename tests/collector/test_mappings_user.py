"""Metrics that a user maps: single ones by configuration, whole exporters by a file; what is wrong is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from collector.errors import ConfigurationError
from collector.mappings import builtin_exporters, mapping_table
from collector.schema import MEASUREMENTS
from collector.settings import MappingSettings
from collector.units import UNITS, fits

if TYPE_CHECKING:
    from tests.collector.conftest import Cycles

FILE = """
# Acme's agent: one row a metric, in the format of the tables that come with the product.
exporter = "acme"
subject = "device"
uuid = ["card"]
index = ["slot"]
node = ["machine"]

[[metric]]
metric = ["acme_power_milliwatts", "acme_power"]
measurement = "gpu"
field = "power_watts"
unit = "mW"

[[metric]]
metric = ["acme_energy_wh_total"]
measurement = "gpu"
field = "energy_joules"
unit = "Wh"
nature = "counter"
"""


@pytest.mark.parametrize(
    ("settings", "line", "field", "value"),
    [
        ({"field": "memory_used_bytes", "unit": "GiB"}, 'm{UUID="GPU-0"} 2', "memory_used_bytes", 2 * 2**30),
        ({"field": "busy_ratio", "unit": "percent"}, 'm{UUID="GPU-0"} 42', "busy_ratio", 0.42),
        ({"field": "power_watts", "scale": 0.5}, 'm{gpu_uuid="GPU-0"} 300', "power_watts", 150.0),
        (
            {"field": "power_watts", "where": ("rail=total",)},
            'm{UUID="GPU-0",rail="core"} 70\nm{UUID="GPU-0",rail="total"} 90',
            "power_watts",
            90.0,
        ),
        (
            {"field": "pcie_rx_bytes_per_second", "unit": "kB/s", "adds_up": ("lane",)},
            'm{UUID="GPU-0",lane="0"} 3\nm{UUID="GPU-0",lane="1"} 4',
            "pcie_rx_bytes_per_second",
            7000.0,
        ),
    ],
)
def test_a_metric_of_ones_own_takes_effect(
    cycles_with: Callable[..., Cycles], settings: dict[str, Any], line: str, field: str, value: float
) -> None:
    cycles = cycles_with(mappings=(MappingSettings(metric="m", measurement="gpu", **settings),))
    cycles.poll(line + "\n")
    assert cycles.frame("gpu").loc["GPU-0", field] == pytest.approx(value)


@pytest.mark.parametrize("label", ["node", "Hostname", "hostname", "kubernetes_node"])
def test_a_metric_of_ones_own_leaves_its_card_on_the_node_that_is_named(
    cycles_with: Callable[..., Cycles], label: str
) -> None:
    cycles = cycles_with(mappings=(MappingSettings(metric="m", measurement="gpu", field="power_watts"),))
    cycles.poll(f'm{{UUID="GPU-0",{label}="gpu-node-1"}} 300\n', node="")
    assert cycles.frame("gpu").loc["GPU-0", "node"] == "gpu-node-1"


def test_a_containers_own_metric_sits_on_its_slice(cycles_with: Callable[..., Cycles]) -> None:
    mapping = MappingSettings(
        metric="share", measurement="slice", field="busy_ratio", unit="percent", subject="container"
    )
    cycles = cycles_with(mappings=(mapping,))
    cycles.poll('share{uuid="GPU-0",namespace="ns",pod="job-0",container="c"} 30\n')
    row = cycles.frame("slice").loc["ns/job-0/c/0"]
    assert (row["busy_ratio"], row["tenant"], row["workload"]) == (0.3, "ns", "job")


def test_the_fastest_cards_work_is_within_the_range(cycles_with: Callable[..., Cycles]) -> None:
    mapping = MappingSettings(
        metric="work", measurement="slice", field="flops_per_second", unit="TFLOP/s", subject="container"
    )
    cycles = cycles_with(mappings=(mapping,))
    cycles.poll('work{uuid="GPU-0",namespace="ns",pod="job-0",container="c"} 4500\n')  # a B200 at its peak of FP8
    assert cycles.frame("slice").loc["ns/job-0/c/0", "flops_per_second"] == 4.5e15


def test_a_file_maps_a_whole_exporter(cycles_with: Callable[..., Cycles], tmp_path: Path) -> None:
    path = tmp_path / "acme.toml"
    path.write_text(FILE, encoding="utf-8")
    cycles = cycles_with(mappings=(MappingSettings(file=str(path)),))
    for wh in (10.0, 10.5):
        cycles.poll(
            f'acme_power_milliwatts{{card="GPU-7",slot="3"}} 250000\nacme_energy_wh_total{{card="GPU-7"}} {wh}\n'
        )
    row = cycles.frame("gpu").loc["GPU-7"]
    assert (row["power_watts"], row["energy_joules"]) == (250.0, 1800.0)


def test_what_a_user_maps_goes_before_what_came_with_the_product(cycles_with: Callable[..., Cycles]) -> None:
    mapping = MappingSettings(metric="calibrated_watts", measurement="gpu", field="power_watts", unit="W")
    cycles = cycles_with(mappings=(mapping,))
    cycles.poll('DCGM_FI_DEV_POWER_USAGE{UUID="GPU-0",gpu="0"} 300\ncalibrated_watts{UUID="GPU-0"} 310\n')
    assert cycles.frame("gpu").loc["GPU-0", "power_watts"] == 310.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"field": "power_wats"},
            r"expected a field of gpu \(busy_ratio, .*\), got 'power_wats'; the nearest is 'power_watts'",
        ),
        ({"field": "power_watts", "unit": "mw"}, r"expected a unit \(ratio, .*\), got 'mw'; the nearest is 'mW'"),
        (
            {"field": "power_watts", "unit": "percent"},
            r"m: expected a unit that becomes watts \(W, mW\), got 'percent'",
        ),
        ({"field": "energy_joules", "unit": "W"}, r"expected a unit that becomes joules .*, got 'W'"),
    ],
)
def test_a_wrong_column_or_unit_names_the_nearest(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        mapping_table((MappingSettings(metric="m", measurement="gpu", **settings),))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('field = "energy_joules"', 'field = "energy_joule"', r"\] 2 \(acme_energy_wh_total\): .*'energy_joules'$"),
        ('unit = "mW"', 'unit = "mWatt"', r"\] 1 \(acme_power_milliwatts, acme_power\): expected a unit"),
        ('unit = "Wh"', 'unit = "Wh"\nscale = 3600', r"expected one of them, got both"),
        ('uuid = ["card"]', 'uid = ["card"]', r"unknown key `uid`; the nearest is 'uuid'"),
        ('nature = "counter"', 'natur = "counter"', r"\[\[metric\]\] 2 .*unknown key `natur`; the nearest is 'nature'"),
        ('subject = "device"', 'subject = "thing"', r"`subject`: Input should be 'device'"),
        ("[[metric]]", "[[metric", "expected a TOML file of a mapping"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_names_the_place(tmp_path: Path, before: str, after: str, message: str) -> None:
    path = tmp_path / "acme.toml"
    path.write_text(FILE.replace(before, after), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message) as caught:
        mapping_table((MappingSettings(file=str(path)),))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"expected a TOML file of a mapping, got .*No such file"):
        mapping_table((MappingSettings(file=str(tmp_path / "gone.toml")),))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "m", "field": "power_watts"}, "needs `metric`, `measurement` and `field`, or `file`"),
        ({"file": "a.toml", "metric": "m"}, "`file` or `metric`, got both"),
        ({"metric": "m", "measurement": "gpu", "field": "power_watts", "unit": "W", "scale": 2}, "`unit` or `scale`"),
        (
            {"metric": "m", "measurement": "gpu", "field": "power_watts", "where": ["total"]},
            "expected label=value, got",
        ),
    ],
)
def test_tables_that_say_too_little_or_too_much_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        MappingSettings.model_validate(settings)


def test_every_field_has_a_unit_that_an_exporter_can_write() -> None:
    for measurement in ("gpu", "slice", "node"):
        for field in MEASUREMENTS[measurement].fields:
            assert any(fits(unit, field, counter=False) for unit in UNITS), field.name


def test_every_row_of_every_built_in_table_says_what_unit_it_is_in_or_needs_none() -> None:
    unitless = {"bits", "info", "xid", "xid_total", "xid_window"}
    for exporter in builtin_exporters():
        for row in exporter.metric:
            assert row.unit or row.nature in unitless or row.measurement == "kube", (exporter.exporter, row.metric)
