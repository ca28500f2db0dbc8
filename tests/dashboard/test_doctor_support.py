"""The doctor tells a fault from what an architecture or a driver does not have."""

from __future__ import annotations

from datetime import UTC, datetime

from collector.assemble import Assembler, Scrape
from collector.batch import Batch
from collector.exposition import ExpositionParser
from collector.plugins import SourceContext
from collector.settings import TargetSettings
from dashboard.doctor.check import Check
from dashboard.doctor.sources import read_quality
from dashboard.doctor.support import not_there

NOW = datetime(2026, 1, 5, tzinfo=UTC)


def batch(*cards: tuple[str, str]) -> Batch:
    """Cards of some (model, driver) whose exporter tells GPU_UTIL and power alone."""
    lines = []
    for number, (model, driver) in enumerate(cards):
        labels = f'gpu="{number}",UUID="GPU-{number}",modelName="{model}",DCGM_FI_DRIVER_VERSION="{driver}"'
        lines += [f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} 30", f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} 60"]
    scrape = Scrape(TargetSettings(url="http://a:9400/metrics", node="n"), ExpositionParser().parse("\n".join(lines)))
    return Assembler(SourceContext()).assemble(NOW, [scrape])


def texts(checks: list[Check]) -> list[str]:
    return [check.text for check in checks]


def advice(said: Batch) -> list[str]:
    return [check.advice for check in read_quality("source", said) if "GPU_UTIL only" in check.text]


def test_what_an_old_card_cannot_have_is_no_fault() -> None:
    said = batch(("Tesla P100-PCIE-16GB", "535.183.01"))
    [text] = texts(list(not_there("source", said)))
    assert text.startswith("1 card (pascal, driver 535): not on this architecture/driver: ")
    assert "sm_active_ratio (since volta, or since hopper)" in text
    assert "power" not in text
    assert advice(said) == ["these cards have no profiling metrics"]


def test_what_a_card_could_have_is_not_excused() -> None:
    said = batch(("NVIDIA A100-SXM4-40GB", "535.183.01"))
    assert not [text for text in texts(list(not_there("source", said))) if "sm_active" in text]
    assert advice(said) == ["let dcgm-exporter collect the DCGM_FI_PROF_ fields"]


def test_hopper_has_two_ways() -> None:
    said = batch(("NVIDIA H100 80GB HBM3", "570.86.10"))
    assert advice(said) == [
        "let dcgm-exporter collect the DCGM_FI_PROF_ fields; by NVML they come with the second cycle"
    ]


def test_each_architecture_and_driver_has_its_line() -> None:
    said = batch(
        ("Tesla P100-PCIE-16GB", "535.183.01"),
        ("Tesla P100-PCIE-16GB", "535.104.05"),
        ("Tesla P100-PCIE-16GB", "470.82.01"),
        ("Tesla T4", "535.183.01"),
        ("Some Unknown Card", "535.183.01"),
    )
    heads = [text.partition(":")[0] for text in texts(list(not_there("source", said)))]
    assert heads[:2] == ["1 card (pascal, driver 470)", "2 cards (pascal, driver 535)"]
    assert "1 card (turing, driver 535)" in heads


def test_no_rows_no_word() -> None:
    assert not list(not_there("source", Batch()))
