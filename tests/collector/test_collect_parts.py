"""Counters, latencies, names of pods, GPU models, mappings, plug-ins: the small pure parts."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.counters import CounterBook
from collector.errors import ConfigurationError
from collector.gpu_models import gpu_model, gpu_models, slice_share
from collector.health import xid_severity
from collector.kube import Pod, mig_profile, replica_ordinal, without_hashes
from collector.latency import histogram_quantiles, requests_for
from collector.latency import requests_within as requests_within_each
from collector.mappings import MetricRow, builtin_exporters, mapping_table
from collector.plugins import load_plugin, plugin_names
from collector.schema import MEASUREMENTS
from collector.scrape import ScrapeSource
from collector.settings import MappingSettings

BOUNDS = [0.1, 0.5, 1.0, math.inf]


def histogram_quantile(bounds: list[float], cumulative: list[float], quantile: float) -> float:
    return float(histogram_quantiles(np.array([bounds]), np.array([cumulative]), [quantile])[0, 0])


def requests_within(bounds: list[float], cumulative: list[float], limit: float) -> float:
    return float(requests_within_each(np.array([bounds]), np.array([cumulative]), np.array([limit]))[0])


def histograms() -> st.SearchStrategy[list[float]]:
    counts = st.lists(st.integers(0, 10_000), min_size=len(BOUNDS), max_size=len(BOUNDS))
    return counts.map(lambda parts: [float(total) for total in np.cumsum(parts)])


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=30))
def test_increments_of_a_counter_add_up_to_what_it_grew(raws: list[int]) -> None:
    book = CounterBook()
    number = np.array([book.number("c")])
    total = fallen = 0.0
    for minute, raw in enumerate(raws):
        growth = book.advance(number, np.array([float(raw)]), minute * 60_000)
        total += float(np.nan_to_num(growth.increment[0]))
        fallen += float(growth.fell[0])
    rises = [b - a for a, b in pairwise(raws) if b >= a]
    assert total == sum(rises)
    assert fallen == len(raws) - 1 - len(rises)


def test_counters_without_a_value_keep_their_last_one_over_export() -> None:
    book = CounterBook()
    numbers = np.array([book.number(f"c{n}") for n in range(200)])
    book.advance(numbers, np.arange(200.0), 0)
    book.advance(numbers[:1], np.array([np.nan]), 60_000)
    later = CounterBook()
    first = later.number("c0")
    later.load_json(book.to_json())
    number = later.number("c199")
    growth = later.advance(np.array([first, number]), np.array([5.0, 200.0]), 120_000)
    assert (list(growth.increment), list(growth.seconds)) == ([5.0, 1.0], [120.0, 120.0])
    assert "c7" in later.to_json()


def test_the_same_instant_twice_is_no_growth() -> None:
    book = CounterBook()
    number = np.array([book.number("c")])
    book.advance(number, np.array([1.0]), 0)
    assert math.isnan(book.advance(number, np.array([2.0]), 0).increment[0])


@given(histograms(), st.floats(0.01, 0.99))
def test_a_quantile_has_that_share_of_requests_within_it(cumulative: list[float], quantile: float) -> None:
    value = histogram_quantile(BOUNDS, cumulative, quantile)
    if cumulative[-1] < requests_for(quantile):
        assert math.isnan(value)
    elif cumulative[-2] >= quantile * cumulative[-1]:
        assert requests_within(BOUNDS, cumulative, value) == pytest.approx(
            quantile * cumulative[-1], rel=1e-9, abs=1e-6
        )
    else:
        assert value == 1.0


@given(histograms(), st.floats(0, 5), st.floats(0, 5))
def test_a_looser_bound_never_has_fewer_requests(cumulative: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 <= requests_within(BOUNDS, cumulative, low) <= requests_within(BOUNDS, cumulative, high) <= cumulative[-1]


def test_edges_of_histograms() -> None:
    assert math.isnan(histogram_quantile(BOUNDS, [0, 0, 0, 0], 0.5))
    assert histogram_quantile(BOUNDS, [0, 0, 20, 20], 0.5) == pytest.approx(0.75)
    assert histogram_quantile([0.5], [100.0], 0.5) == pytest.approx(0.25)
    assert requests_within([0.5, 1.0], [10.0, 20.0], 3.0) == 20.0
    assert requests_within(BOUNDS, [10, 20, 30, 40], 2.0) == 30.0


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        ("web-6d4b75cb6d-x8k2p", "web"),
        ("web-6d4b75cb6d", "web"),
        ("db-0", "db"),
        ("daemon-x8k2p", "daemon"),
        ("resnet101-deployment-7b487d974d-jjc8p", "resnet101-deployment"),
        ("train-28391839", "train"),
        ("vgpu-share", "vgpu-share"),
        ("llm", "llm"),
    ],
)
def test_pod_names_without_hashes(name: str, workload: str) -> None:
    assert without_hashes(name) == workload


def test_only_stateful_replicas_have_an_ordinal() -> None:
    assert replica_ordinal(Pod("ns", "db-3", owner_kind="StatefulSet"), "db-3") == "3"
    assert replica_ordinal(Pod("ns", "j-3", owner_kind="Job"), "j-3") == ""
    assert replica_ordinal(None, "web") == ""


def test_mig_resources_name_their_profile() -> None:
    assert mig_profile("nvidia_com_mig_1g_5gb") == "1g.5gb"
    assert mig_profile("nvidia_com_mig_1g_10gb_me") == "1g.10gb"
    assert mig_profile("nvidia_com_gpu") == ""


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40-sxm"),
        ("NVIDIA A100 80GB PCIe", "a100-80-pcie"),
        ("NVIDIA-NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100-80-sxm"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100-16"),
        ("nvidia l40s", "l40s"),
        ("a30", "a30"),
    ],
)
def test_models_are_known_by_what_exporters_call_them(name: str, key: str) -> None:
    model = gpu_model(name)
    assert model is not None
    assert model.key == key


def test_facts_of_models_hold_together() -> None:
    assert gpu_model("NVIDIA Imaginary 9000") is None
    for model in gpu_models().values():
        assert gpu_model(model.key) is model
        for profile in model.mig.values():
            assert profile.sm_count <= model.sm_count
            assert profile.memory_slices <= model.memory_slices
            assert profile.compute_slices <= model.compute_slices
    a100, h100 = gpu_models()["a100-40-sxm"], gpu_models()["h100-80-sxm"]
    assert (a100.sm_count, a100.memory_bytes, a100.tdp_watts) == (108, 40 * 2**30, 400.0)
    assert (h100.sm_count, h100.peaks["fp16_tensor"]) == (132, 989.4e12)


@pytest.mark.parametrize(
    ("model", "profile", "compute", "memory", "estimated"),
    [
        ("a100-40-sxm", "1g.5gb", 14 / 108, 1 / 8, False),
        ("a100-40-sxm", "1g.10gb", 14 / 108, 2 / 8, False),
        ("h100-80-sxm", "3g.40gb", 60 / 132, 4 / 8, False),
        ("h200", "1c.3g.71gb", 60 / 132, 4 / 8, False),
        ("a30", "2g.12gb+me", 28 / 56, 2 / 4, False),
        ("b200", "4g.90gb", 4 / 7, 4 / 8, True),
        (None, "2g.10gb", 2 / 7, 2 / 7, True),
    ],
)
def test_shares_of_mig_profiles(
    model: str | None, profile: str, compute: float, memory: float, estimated: bool
) -> None:
    share = slice_share(gpu_models()[model] if model else None, profile)
    assert share is not None
    assert (share.compute, share.memory, share.estimated) == (pytest.approx(compute), pytest.approx(memory), estimated)


def test_a_text_that_is_no_profile_has_no_share() -> None:
    assert slice_share(None, "mig-disabled") is None


def test_every_mapped_field_is_in_the_schema_and_every_name_is_mapped_once_an_exporter() -> None:
    for exporter in builtin_exporters():
        seen: set[tuple[str, str, int]] = set()
        for row in exporter.metric:
            if row.measurement in MEASUREMENTS and row.field != "latency":
                assert row.field in MEASUREMENTS[row.measurement].field_names
            for name in row.metric:
                key = (name, row.field + str(sorted(row.where.items())), row.mask)
                assert key not in seen
                seen.add(key)


def test_names_under_prefixes_of_wrappers_are_found() -> None:
    table = mapping_table()
    assert [m.row.field for m in table.find("amd_gpu_gfx_activity", {})] == ["busy_ratio"]
    assert [m.row.field for m in table.find("ray_vllm:num_requests_waiting", {})] == ["queue_depth_count"]
    assert [m.row.field for m in table.find("ray_vllm_num_requests_waiting", {})] == ["queue_depth_count"]
    assert table.find("vllm:lora_requests_info", {}) == []
    assert table.find("gpu_clock", {"clock_type": "video"}) == []
    assert "kube_pod_status_phase" in table.names


def test_a_mapping_to_an_unknown_field_names_the_known_ones() -> None:
    wrong = MappingSettings(metric="m", measurement="slice", field="speed")
    with pytest.raises(ConfigurationError, match=r"expected a field of slice .*steps_count.*, got 'speed'"):
        mapping_table((wrong,))


@pytest.mark.parametrize(
    "row",
    [
        {"metric": ["m"], "measurement": "kube", "field": "nonsense"},
        {"metric": ["m"], "measurement": "slice", "field": "latency"},
        {"metric": ["m"], "measurement": "gpu", "field": "nonsense"},
        {"metric": [], "measurement": "gpu", "field": "busy_ratio"},
    ],
)
def test_rows_of_a_table_that_make_no_sense_are_refused(row: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError)):
        MetricRow.model_validate(row)


def test_plugins_are_found_by_name_and_a_wrong_name_shows_the_right_ones() -> None:
    assert {"prometheus", "scrape"} <= set(plugin_names("trimtab.sources"))
    assert load_plugin("trimtab.sources", "scrape") is ScrapeSource
    with pytest.raises(ConfigurationError, match=r"installed: .*prometheus, scrape.*got 'scarpe'"):
        load_plugin("trimtab.sources", "scarpe")
    with pytest.raises(ConfigurationError, match="installed: none"):
        load_plugin("trimtab.nothing", "x")


def test_a_plugin_that_cannot_be_imported_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        value = "gone.module:Thing"

        def load(self) -> object:
            raise ImportError("No module named 'gone'")

    monkeypatch.setattr("collector.plugins.entry_points", lambda **_: [Broken()])
    with pytest.raises(ConfigurationError, match="cannot be loaded: No module named 'gone'"):
        load_plugin("trimtab.sources", "broken")


@pytest.mark.parametrize(
    ("code", "severity"), [(79, "critical"), (31, "warning"), (63, "info"), (46, "error"), (94, "warning")]
)
def test_how_bad_an_xid_is(code: int, severity: str) -> None:
    assert xid_severity(code).value == severity
