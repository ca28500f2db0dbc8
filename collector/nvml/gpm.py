"""GPM, the driver's own performance metrics since Hopper: means between two samples of one object.

A sample is kept from cycle to cycle, so that a value is the mean of the whole cycle and nothing is waited for; the
first cycle has none. Values are percent of the object itself (card or instance), or MiB/s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import pynvml

from collector.nvml.binding import Answer, DriverGoneError, answer_of, ask, ask_host

METRICS: Mapping[str, int] = {
    "nvml_gpm_graphics_percent": pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
    "nvml_gpm_sm_percent": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "nvml_gpm_occupancy_percent": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "nvml_gpm_tensor_percent": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "nvml_gpm_dram_percent": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    "nvml_gpm_fp64_percent": pynvml.NVML_GPM_METRIC_FP64_UTIL,
    "nvml_gpm_fp32_percent": pynvml.NVML_GPM_METRIC_FP32_UTIL,
    "nvml_gpm_fp16_percent": pynvml.NVML_GPM_METRIC_FP16_UTIL,
    "nvml_gpm_pcie_tx_mebibytes_per_second": pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
    "nvml_gpm_pcie_rx_mebibytes_per_second": pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
    "nvml_gpm_nvlink_rx_mebibytes_per_second": pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC,
    "nvml_gpm_nvlink_tx_mebibytes_per_second": pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC,
}
OF_INSTANCES = tuple(name for name in METRICS if name.endswith("_percent"))

Key = tuple[str, int]  # UUID of the card, and GPU instance (-1: the card as a whole)
Take = Callable[[Any], object]


class GpmPairs:
    """The last sample of each card and instance."""

    def __init__(self) -> None:
        self._last: dict[Key, Any] = {}
        self._supported: dict[str, bool] = {}

    def supports(self, uuid: str, handle: object) -> bool:
        """Say whether a card has GPM; asked for once, as it costs a call.

        Raises:
            LostCardError: the card is lost.
            DriverGoneError: the driver is.
        """
        if uuid not in self._supported:
            answer: Answer[Any] = ask(pynvml.nvmlGpmQueryDeviceSupport, handle)
            if answer.reason:
                return False  # asked again next time
            self._supported[uuid] = answer.value is not None and bool(answer.value.isSupportedDevice)
        return self._supported[uuid]

    def read(self, key: Key, take: Take, names: Iterable[str]) -> dict[str, Answer[float]]:
        """Take a sample and return the means since the one before; nothing at the first sight.

        Raises:
            LostCardError: the card is lost.
            DriverGoneError: the driver is.
        """
        fresh: Answer[Any] = ask(pynvml.nvmlGpmSampleAlloc)
        if fresh.value is None:
            return dict.fromkeys(names, Answer(None, fresh.reason))
        taken: Answer[Any] = Answer()
        try:
            taken = ask(take, fresh.value)
        finally:
            if taken.value is None:
                _free(fresh.value)
        if taken.value is None:
            self._drop(key)
            return dict.fromkeys(names, Answer(None, taken.reason))
        before = self._last.pop(key, None)
        self._last[key] = fresh.value
        if before is None:
            return {}
        try:
            return _means(before, fresh.value, list(names))
        finally:
            _free(before)

    def keep_only(self, keys: Iterable[Key]) -> None:
        """Free samples of objects that are gone, such as instances after the card was cut anew."""
        for key in self._last.keys() - set(keys):
            self._drop(key)

    def close(self) -> None:
        """Free all samples."""
        self.keep_only(())
        self._supported.clear()

    def _drop(self, key: Key) -> None:
        sample = self._last.pop(key, None)
        if sample is not None:
            _free(sample)


def _means(before: object, after: object, names: list[str]) -> dict[str, Answer[float]]:
    query = pynvml.c_nvmlGpmMetricsGet_t()
    query.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    query.numMetrics = len(names)
    query.sample1, query.sample2 = before, after
    for place, name in enumerate(names):
        query.metrics[place].metricId = METRICS[name]
    answer: Answer[Any] = ask(pynvml.nvmlGpmMetricsGet, query)
    if answer.value is None:
        return dict.fromkeys(names, Answer(None, answer.reason))
    found: dict[str, Answer[float]] = {}
    for place, name in enumerate(names):
        metric = query.metrics[place]
        code = int(metric.nvmlReturn)
        found[name] = Answer(float(metric.value)) if code == pynvml.NVML_SUCCESS else answer_of(code)
    return found


def _free(sample: object) -> None:
    with suppress(DriverGoneError):  # and the sample with it
        ask_host(pynvml.nvmlGpmSampleFree, sample)
