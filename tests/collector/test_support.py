"""The table of what exists on which architecture and driver."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from collector.gpu_models import gpu_models
from collector.support import (
    Support,
    architecture_of,
    lacking,
    rows_of,
    support,
    support_page,
    ways_to,
    why_absent,
)
from tests.conftest import ROOT


def test_the_page_is_in_step() -> None:
    page = (ROOT / "docs/support.md").read_text(encoding="utf-8")
    assert page == support_page(), "run: python -m collector.support docs/support.md"


@pytest.mark.parametrize(
    ("model", "architecture"),
    [
        ("NVIDIA H100 80GB HBM3", "hopper"),
        ("NVIDIA-NVIDIA H200", "hopper"),
        ("Tesla T4", "turing"),
        ("Quadro RTX 6000", "turing"),
        ("NVIDIA RTX 6000 Ada Generation", "ada"),
        ("NVIDIA RTX A6000", "ampere"),
        ("NVIDIA A2", "ampere"),
        ("NVIDIA GeForce RTX 4090", "ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "blackwell"),
        ("Tesla P100-PCIE-16GB", "pascal"),
        ("AMD Instinct MI300X", ""),
        ("", ""),
    ],
)
def test_architecture_of_a_model(model: str, architecture: str) -> None:
    assert architecture_of(model) == architecture


def test_each_model_of_the_products_own_table_has_an_architecture() -> None:
    lost = [name for model in gpu_models().values() for name in model.names if not architecture_of(name)]
    assert not [name for name in lost if not name.startswith(("MI", "Instinct", "AMD"))]


@pytest.mark.parametrize(
    ("name", "architecture", "driver", "reason"),
    [
        ("gpu.sm_active_ratio", "pascal", "535.183.01", "since volta, or since hopper"),
        ("gpu.sm_active_ratio", "ampere", "535.183.01", ""),
        ("gpu.sm_active_ratio", "turing", "410.104", "since driver 418, or since hopper"),
        ("gpu.sm_active_ratio", "", "", ""),
        ("gpu.memory_reserved_bytes", "ampere", "470.82.01", "since driver 510"),
        ("gpu.memory_reserved_bytes", "ampere", "510.47.03", ""),
        ("gpu.energy_joules", "pascal", "570.86.10", "since volta"),
        ("gpu.nvlink_error_count", "hopper", "570.86.10", ""),
        ("gpu.nvlink_error_count", "blackwell", "570.86.10", "not on blackwell"),
        ("gpu.rows_remapped_uncorrected_count", "turing", "570.86.10", "since ampere"),
        ("gpu.power_watts", "kepler", "390.1", ""),
        ("gpu.no_such_field", "kepler", "390.1", ""),
        ("memory limit of a cgroup", "hopper", "610.1", "since driver 615"),
        ("MIG geometry", "ada", "570.86.10", "not on ada"),
        ("MIG geometry", "hopper", "570.86.10", ""),
    ],
)
def test_why_a_card_lacks_something(name: str, architecture: str, driver: str, reason: str) -> None:
    assert why_absent(name, architecture, driver) == reason


def test_ways() -> None:
    assert ways_to("gpu.sm_active_ratio", "hopper", "570.86.10") == ("dcgm profiling", "nvml gpm")
    assert ways_to("gpu.sm_active_ratio", "ampere", "570.86.10") == ("dcgm profiling",)
    assert ways_to("gpu.sm_active_ratio", "pascal", "570.86.10") == ()


def test_a_version_that_is_none_limits_nothing() -> None:
    [row] = rows_of("gpu.memory_reserved_bytes")
    assert lacking(row, "ampere", "unknown") == ""


def test_rows_are_told_apart_and_say_who_told_them() -> None:
    rows = support().row
    assert len({(row.name, row.way) for row in rows}) == len(rows)
    assert all(row.evidence for row in rows)


@pytest.mark.parametrize(
    "change",
    [
        {"architecture": "hoper"},
        {"not_on": ["amper"]},
        {"mig": "sometimes"},
        {"kind": "metric", "name": "gpu.sm_activ_ratio"},
        {"unknown": 1},
    ],
)
def test_a_wrong_row_is_refused(change: dict[str, object]) -> None:
    row = {"kind": "knob", "name": "a knob", "way": "nvml", "mig": "card", "evidence": "a test"}
    table = {"architecture": [{"name": "ampere", "cards": []}], "row": [row | change]}
    with pytest.raises((ValidationError, KeyError)):
        Support.model_validate(table)
