"""Rows for the store's benchmark: a seeded fleet with the precision that real exporters give.

1,000 cards of 3 slices on 125 nodes in 2 clusters, 20 tenants, 400 workloads that change; 25 fields a `gpu` row and 15
a `slice` row: whole-number clocks, temperatures and megabytes, ratios of 6 decimals, power of 3; 30 % of slices idle.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from collector.batch import Batch, make_rows

CARDS, SLICES = 1000, 3
START_MS = 1_767_571_200_000  # 2026-01-05, a Monday
GPU_FIELDS = (
    "busy_ratio", "memory_busy_ratio", "engine_active_ratio", "sm_active_ratio", "sm_occupancy_ratio",
    "tensor_active_ratio", "fp64_active_ratio", "fp32_active_ratio", "fp16_active_ratio", "dram_active_ratio",
    "encoder_ratio", "memory_used_bytes", "memory_free_bytes", "power_watts", "energy_joules", "temperature_celsius",
    "memory_temperature_celsius", "sm_clock_hertz", "memory_clock_hertz", "pcie_rx_bytes_per_second",
    "pcie_tx_bytes_per_second", "throttle_power_ratio", "throttle_thermal_ratio", "ecc_corrected_count",
    "pcie_replay_count",
)  # fmt: skip
SLICE_FIELDS = (
    "sm_quota_ratio", "memory_quota_bytes", "fp16_active_ratio", "busy_ratio", "engine_active_ratio", "sm_active_ratio",
    "sm_occupancy_ratio", "tensor_active_ratio", "dram_active_ratio", "memory_used_bytes", "requests_per_second",
    "latency_p50_seconds", "latency_p99_seconds", "tokens_per_second", "idle_seconds",
)  # fmt: skip
MEGABYTE = 2.0**20


class Fleet:
    """Makes cycles one after another; the same seed makes the same rows.

    Args:
        seed: of all randomness.
        interval_seconds: between two cycles.
    """

    def __init__(self, seed: int, interval_seconds: int, cards: int = CARDS) -> None:
        self._rng = np.random.default_rng(seed)
        self.interval_ms = interval_seconds * 1000
        self.cards = cards
        n = cards * SLICES
        node = [f"node-{i // 8:03d}" for i in range(cards)]
        cluster = ["east" if i < cards // 2 else "west" for i in range(cards)]
        gpu = [f"GPU-{i * 2654435761 % 2**32:08x}-{i:04d}" for i in range(cards)]
        self._card_tags = {k: pa.array(v) for k, v in (("cluster", cluster), ("node", node), ("gpu", gpu))}
        self._slice_tags = {k: pa.array(np.repeat(v, SLICES)) for k, v in self._card_tags.items()}
        self._slice_tags["slice"] = pa.array([f"gi{i % SLICES + 1}" for i in range(n)])
        self._workload = self._rng.integers(0, 400, n)
        self._level = self._rng.beta(2, 2, n)  # where a slice's load returns to
        self._load = self._level * (self._rng.random(n) > 0.3)
        self._memory = self._rng.integers(500, 26_000, n).astype(float)
        self._idle_for = np.zeros(n)
        self._heat = 30 + 40 * self._load.reshape(cards, SLICES).mean(1)
        self.step = 0

    def cycle(self) -> dict[str, pa.Table]:
        """Return the next cycle's `gpu` and `slice` rows."""
        rng, n, cards = self._rng, len(self._load), self.cards
        changed = rng.random(n) < 0.0005  # another workload comes, or the slice falls idle
        self._workload[changed] = rng.integers(0, 400, int(changed.sum()))
        self._level[changed] = rng.beta(2, 2, int(changed.sum())) * (rng.random(int(changed.sum())) > 0.3)
        self._memory[changed] = rng.integers(500, 26_000, int(changed.sum()))
        running = (self._load > 0) | changed
        self._load = np.clip(0.9 * self._load + 0.1 * self._level + rng.normal(0, 0.02, n), 0, 1)
        self._load *= running & (self._level > 0)
        busy = self._load
        self._idle_for = np.where(busy > 0, 0.0, self._idle_for + self.interval_ms / 1000)
        times = START_MS + self.step * self.interval_ms
        self.step += 1

        def noisy(base: np.ndarray, spread: float, digits: int = 6) -> np.ndarray:
            value = np.clip(base * (1 + rng.normal(0, spread, len(base))), 0, 1)
            rounded: np.ndarray = np.round(value, digits)
            return rounded

        rate = busy * 40
        slices = {
            "sm_quota_ratio": np.full(n, 0.33),
            "memory_quota_bytes": np.full(n, 26_624 * MEGABYTE),
            "fp16_active_ratio": noisy(busy * 0.05, 0.05),
            "busy_ratio": noisy(busy, 0.05, 2),
            "engine_active_ratio": noisy(busy / 3, 0.02),
            "sm_active_ratio": noisy(busy * 0.27, 0.02),
            "sm_occupancy_ratio": noisy(busy * 0.13, 0.03),
            "tensor_active_ratio": noisy(busy * 0.1, 0.05),
            "dram_active_ratio": noisy(busy * 0.2, 0.05),
            "memory_used_bytes": np.where(busy > 0, self._memory, 0) * MEGABYTE,
            "requests_per_second": np.round(rng.poisson(rate * 15) / 15, 2),
            "latency_p50_seconds": np.where(busy > 0, np.round(0.04 * (1 + busy), 3), np.nan),
            "latency_p99_seconds": np.where(busy > 0, np.round(0.11 * (1 + busy) * rng.gamma(20, 0.05, n), 3), np.nan),
            "tokens_per_second": np.round(rate * 300 * rng.gamma(20, 0.05, n), 1),
            "idle_seconds": self._idle_for,
        }
        card = busy.reshape(cards, SLICES)
        mean = card.mean(1)
        self._heat += 0.1 * (30 + 45 * mean - self._heat)
        used = slices["memory_used_bytes"].reshape(cards, SLICES).sum(1) + 600 * MEGABYTE
        power = np.round(60 + 500 * mean * (1 + rng.normal(0, 0.03, cards)), 3)
        hot = mean > 0.85
        gpus = {
            "busy_ratio": noisy(card.max(1), 0.03, 2),
            "memory_busy_ratio": noisy(mean * 0.4, 0.05, 2),
            "engine_active_ratio": noisy(mean, 0.02),
            "sm_active_ratio": noisy(mean * 0.8, 0.02),
            "sm_occupancy_ratio": noisy(mean * 0.4, 0.03),
            "tensor_active_ratio": noisy(mean * 0.3, 0.05),
            "fp64_active_ratio": np.zeros(cards),
            "fp32_active_ratio": noisy(mean * 0.1, 0.05),
            "fp16_active_ratio": noisy(mean * 0.05, 0.05),
            "dram_active_ratio": noisy(mean * 0.6, 0.05),
            "encoder_ratio": np.zeros(cards),
            "memory_used_bytes": used,
            "memory_free_bytes": 81_559 * MEGABYTE - used,
            "power_watts": power,
            "energy_joules": np.round(power * self.interval_ms / 1000, 0),
            "temperature_celsius": np.round(self._heat),
            "memory_temperature_celsius": np.round(self._heat + 8),
            "sm_clock_hertz": np.where(mean > 0, np.where(hot, 1_755e6, 1_980e6), 345e6),
            "memory_clock_hertz": np.full(cards, 2_619e6),
            "pcie_rx_bytes_per_second": np.round(mean * 2e6 * rng.gamma(5, 0.2, cards)) * 1e3,
            "pcie_tx_bytes_per_second": np.round(mean * 1e6 * rng.gamma(5, 0.2, cards)) * 1e3,
            "throttle_power_ratio": np.where(hot, noisy(mean * 0.1, 0.3, 6), 0.0),
            "throttle_thermal_ratio": np.zeros(cards),
            "ecc_corrected_count": (rng.random(cards) < 1e-5).astype(float),
            "pcie_replay_count": np.zeros(cards),
        }
        tenants = pa.array([f"tenant-{w % 20:02d}" for w in self._workload])
        workloads = pa.array([f"job-{w:03d}" for w in self._workload])
        tags = {**self._slice_tags, "tenant": tenants, "workload": workloads}
        return {
            "gpu": make_rows("gpu", np.full(cards, times), self._card_tags, {f: gpus[f] for f in GPU_FIELDS}),
            "slice": make_rows("slice", np.full(n, times), tags, {f: slices[f] for f in SLICE_FIELDS}),
        }

    def batches(self, count: int) -> Iterator[Batch]:
        """Return the next `count` cycles, one a batch."""
        for _ in range(count):
            yield Batch(rows=self.cycle())
