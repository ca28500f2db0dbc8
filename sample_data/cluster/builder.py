"""Puts a cluster's cards, slices and services together; the small differences between them come from named streams."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from collector.declarations import Objective
from sample_data.cluster.latency import sojourn
from sample_data.cluster.spec import (
    GIB,
    MIG_PROFILES,
    App,
    CardSpec,
    Decoy,
    ServiceSpec,
    SliceKind,
    SliceSpec,
)
from sample_data.cluster.streams import stream

_QUIET = 0.004  # pressure of work that hurts nobody
_ROBUST = 0.02  # sensitivity of work that feels little
_TENSE = 1.0  # sensitivity of a planted victim
_BOUND_MARGIN = 1.3  # bound against the promised percentile at the peak with a fair share and quiet neighbours


@dataclass
class Builder:
    """Collects slices and services; draws the small differences between them from named streams."""

    seed: int
    cards: list[CardSpec]
    slices: list[SliceSpec] = field(default_factory=list)
    services: dict[str, ServiceSpec] = field(default_factory=dict)
    planted: list[tuple[str, str]] = field(default_factory=list)
    decoys: list[Decoy] = field(default_factory=list)

    def _vectors(self, name: str, pressure: dict[str, float], tense: tuple[str, ...]) -> tuple[tuple[float, ...], ...]:
        rng = stream(self.seed, "vectors", name)
        channels = ("sm", "dram", "l2", "pcie")
        press = tuple(pressure.get(c, _QUIET * rng.uniform(0.3, 1.0)) for c in channels)
        sense = tuple((_TENSE if c in tense else _ROBUST) * rng.uniform(0.8, 1.0) for c in channels)
        return press, sense

    def service(  # noqa: PLR0917 - a table's row
        self,
        card: int,
        name: str,
        tenant: str,
        app: App,
        peak: float,
        quota: float,
        *,
        tense: tuple[str, ...] = (),
        instance: tuple[int, int, str] | None = None,
        memory_gib: float = 8.0,
        memory_quota_gib: float = 0.0,
        growth_gib_per_hour: float = 0.0,
        restarts: tuple[int, ...] = (),
        width: float = 0.0,
        replicas: int = 1,
        margin: float = _BOUND_MARGIN,
        **load: object,
    ) -> None:
        """Add one replica; `peak` is the share of the card that it needs at the daily peak, without bursts."""
        spec = self.cards[card]
        sms = spec.hardware.sm_count
        ordinal = sum(s.name == name for s in self.slices)
        rng = stream(self.seed, "service", name)
        tokens = float(rng.integers(80, 160)) if app == "vllm" else 1.0
        seconds = (
            tokens * rng.uniform(0.009, 0.013)
            if app == "vllm"
            else (rng.uniform(0.005, 0.008) if spec.sharing == "timeslice" else rng.uniform(0.012, 0.03))
        )
        width = width or min(quota, peak) / (6.0 if app == "vllm" else 3.0)
        unit = width * sms * seconds  # SM-seconds of one request, alone
        press, sense = self._vectors(f"{name}#{ordinal}", {}, tense)
        if name not in self.services:
            # Rate for all replicas: what one of them can take at its peak, times how many there will be.
            rate = peak * sms / unit * replicas
            self.services[name] = ServiceSpec(
                name,
                tenant,
                Objective(
                    quantity="e2e",
                    share=_share(app, spec.sharing),
                    bound_seconds=self._bound(spec.sharing, seconds, peak, quota, width, app, margin),
                ),
                rate,
                **{"peak_hour": float(rng.uniform(13.0, 15.0)), **load},  # type: ignore[arg-type]  # fields of ServiceSpec
            )
        else:
            unit = self.services[name].peak_per_second and peak * sms / (self.services[name].peak_per_second / replicas)
            width = unit / sms / seconds
        used = memory_gib * GIB * rng.uniform(0.9, 1.0)
        self.slices.append(
            SliceSpec(
                card,
                spec.sharing,
                "online",
                name,
                tenant,
                app,
                quota,
                self._memory_quota(instance, memory_quota_gib, memory_gib),
                used,
                ordinal,
                *_instance(instance),
                unit_sm_seconds=unit,
                unit_seconds=seconds,
                tokens_per_request=tokens,
                width=width,
                cv=0.25 if app == "vllm" else 0.3,
                load_slowing=0.12,
                sensitivity=sense,
                pressure=press,
                power_intensity=0.8,
                dram_per_sm=0.75 if app == "vllm" else 0.35,
                tensor_per_sm=0.3,
                pcie_bytes_per_second=3e8,
                memory_growth_bytes_per_hour=growth_gib_per_hour * GIB,
                restarts_at_minutes=restarts,
            )
        )

    @staticmethod
    def _memory_quota(instance: tuple[int, int, str] | None, quota_gib: float, used_gib: float) -> float:
        if instance is not None:
            return float(MIG_PROFILES[instance[2]].memory_bytes)
        return (quota_gib or round(used_gib * 1.35)) * GIB

    @staticmethod
    def _bound(  # noqa: PLR0917 - a row of a table
        kind: SliceKind, seconds: float, peak: float, quota: float, width: float, app: App, margin: float
    ) -> float:
        """Return a bound that a fair share keeps at 1.6 times the daily peak, rounded to two digits."""
        available = width if kind == "timeslice" else quota
        load = min(peak * 1.6 / available, 0.9)
        stretch = 2.0 if kind == "timeslice" else 1.0
        cv = 0.25 if app == "vllm" else 0.3
        t = np.array([seconds * (1.0 + 0.12 * load) * 1.03 * stretch])
        times = sojourn(
            t, np.array([min(load * stretch, 0.9)]), np.array([available / width]), np.array([cv]), np.zeros(1)
        )
        exact = float(times.quantile(_share(app, kind))[0]) * margin
        return float(f"{exact:.2g}")

    def trainer(
        self,
        card: int,
        name: str,
        tenant: str,
        quota: float,
        *,
        pressure: dict[str, float] | None = None,
        tense: tuple[str, ...] = (),
        instance: tuple[int, int, str] | None = None,
        memory_gib: float = 12.0,
        width: float = 0.85,
        waves_of: str = "",
        memory_quota_gib: float = 0.0,
        intensity: float = 0.95,
        dram: float = 0.55,
        tensor: float = 0.55,
    ) -> None:
        """Add a trainer: one long-lived pod that runs job after job."""
        spec = self.cards[card]
        rng = stream(self.seed, "trainer", name)
        press, sense = self._vectors(name, pressure or {}, tense)
        share = quota if instance is not None else min(quota, width)
        step = rng.uniform(0.5, 1.5) * share * spec.hardware.sm_count  # 0.5..1.5 s a step at the quota it starts with
        self.slices.append(
            SliceSpec(
                card,
                spec.sharing,
                "trainer",
                name,
                tenant,
                "trainer",
                quota,
                self._memory_quota(instance, memory_quota_gib, memory_gib),
                memory_gib * GIB * rng.uniform(0.9, 1.0),
                0,
                *_instance(instance),
                unit_sm_seconds=step,
                width=quota if instance is not None else width,
                sensitivity=sense,
                pressure=press,
                power_intensity=intensity,
                dram_per_sm=dram,
                tensor_per_sm=tensor,
                pcie_bytes_per_second=4e9 if pressure and "pcie" in pressure else 5e8,
                waves_of=waves_of,
            )
        )

    def seat(
        self,
        card: int,
        job_class: str,
        number: int,
        quota: float,
        *,
        instance: tuple[int, int, str] | None = None,
        memory_gib: float = 12.0,
    ) -> None:
        """Add a place for queue jobs."""
        spec = self.cards[card]
        name = f"seat-{spec.node}-{spec.index}-{number}"
        press, sense = self._vectors(name, dict.fromkeys(("sm", "dram", "l2", "pcie"), 0.0), ())
        self.slices.append(
            SliceSpec(
                card,
                spec.sharing,
                "seat",
                name,
                "",
                "trainer",
                quota,
                self._memory_quota(instance, 0.0, memory_gib),
                memory_gib * GIB * 0.8,
                number,
                *_instance(instance),
                unit_sm_seconds=quota * spec.hardware.sm_count,
                width=quota * 0.92,
                sensitivity=sense,
                pressure=press,
                dram_per_sm=0.5,
                tensor_per_sm=0.5,
                seat_class=job_class,
            )
        )

    def plant(self, victim: str, suspect: str) -> None:
        """Name a pair that truly fights."""
        self.planted.append((victim, suspect))


def _share(app: App, kind: SliceKind) -> float:
    return 0.99 if app == "vllm" or kind == "timeslice" else 0.999


def _instance(instance: tuple[int, int, str] | None) -> tuple[str, int, int]:
    return ("", -1, -1) if instance is None else (instance[2], instance[0], instance[1])
