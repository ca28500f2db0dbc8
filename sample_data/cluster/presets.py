"""Presets: whole clusters with a scene in them. `mixed`: inference by day, training by night, on 16 cards."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from collector.declarations import Objective
from collector.settings import MappingSettings
from sample_data.cluster.latency import sojourn
from sample_data.cluster.spec import (
    A100_40,
    A100_80,
    GIB,
    H100_80,
    L40S_48,
    MIG_PROFILES,
    App,
    CardSpec,
    ClusterSpec,
    Decoy,
    JobClass,
    QueueSpec,
    ServiceSpec,
    SliceKind,
    SliceSpec,
)
from sample_data.cluster.streams import stream

_QUIET = 0.004  # pressure of work that hurts nobody
_ROBUST = 0.02  # sensitivity of work that feels little
_TENSE = 1.0  # sensitivity of a planted victim
_BOUND_MARGIN = 1.3  # bound against the promised percentile at the peak with a fair share and quiet neighbours


def mixed(seed: int) -> ClusterSpec:
    """Return the preset `mixed`: inference by day, training by night, all five sharing kinds, planted pairs, decoys."""
    build = _Builder(seed)
    _node_mig(build)
    _node_mps(build)
    _node_vgpu(build)
    _node_timeslice(build)
    return ClusterSpec(
        seed=seed,
        cards=tuple(build.cards),
        slices=tuple(build.slices),
        services=tuple(build.services.values()),
        job_classes=(
            JobClass("mig", 1 / 7, 6.5, (20.0, 60.0), 8 * GIB),
            JobClass("mps", 1.0, 4.2, (25.0, 70.0), 12 * GIB),
            JobClass("whole", 1.0, 0.75, (40.0, 90.0), 30 * GIB),
            JobClass("vgpu", 0.16, 0.0, (60.0, 120.0), 10 * GIB),
        ),
        queues=(
            QueueSpec("vision", 0.25, 0.35),
            QueueSpec("language", 0.5, 0.4),
            QueueSpec("research", 0.5, 0.25),
        ),
        planted=tuple(build.planted),
        decoys=tuple(build.decoys),
    )


@dataclass
class _Builder:
    """Collects slices and services; draws the small differences between them from named streams."""

    seed: int
    cards: list[CardSpec] = field(default_factory=list)
    slices: list[SliceSpec] = field(default_factory=list)
    services: dict[str, ServiceSpec] = field(default_factory=dict)
    planted: list[tuple[str, str]] = field(default_factory=list)
    decoys: list[Decoy] = field(default_factory=list)

    def __post_init__(self) -> None:
        fail = int(stream(self.seed, "failure").integers(14 * 60, 17 * 60)) + 1440
        for node, hardware, kind in (
            ("node-a", A100_80, "mig"),
            ("node-b", H100_80, "mps"),
            ("node-c", L40S_48, "vgpu"),
        ):
            for i in range(4):
                hot = kind == "mig" and i == 3
                fails = fail if kind == "vgpu" and i == 3 else None
                self.cards.append(CardSpec(node, i, hardware, kind, hot, fails))  # type: ignore[arg-type]  # literals
        for i, kind in enumerate(("timeslice", "timeslice", "whole", "whole")):
            self.cards.append(CardSpec("node-d", i, A100_40, kind))  # type: ignore[arg-type]  # literals

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


def _g(profile: str) -> float:
    return MIG_PROFILES[profile].sm_count / A100_80.sm_count


def _node_mig(b: _Builder) -> None:
    """Four A100-80 in instances. Card 1 is cut so that 3g fits nowhere although four memory slices are free."""
    one, two, three, four = (_g(p) for p in ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb"))
    b.service(0, "ocr", "vision", "triton", 0.10, two, tense=("pcie",), instance=(3, 0, "2g.20gb"), margin=1.19)
    b.service(0, "embed", "language", "triton", 0.09, two, instance=(5, 2, "2g.20gb"))
    b.trainer(0, "segment-train", "vision", three, pressure={"pcie": 0.30}, instance=(2, 4, "3g.40gb"), memory_gib=30)
    b.service(
        1,
        "rerank",
        "language",
        "triton",
        0.09,
        two,
        instance=(4, 2, "2g.20gb"),
        replicas=2,
        slow_episodes_per_day=9.0,
        slow_episode_gain=0.35,
    )
    b.slices.append(
        SliceSpec(
            1,
            "mig",
            "held",
            "notebook-li",
            "research",
            "none",
            one,
            float(MIG_PROFILES["1g.10gb"].memory_bytes),
            2.5 * GIB,
            0,
            "1g.10gb",
            11,
            5,
            width=one,
        )
    )
    b.seat(1, "mig", 0, one, instance=(13, 6, "1g.10gb"), memory_gib=7)
    b.trainer(
        2, "detect-train", "vision", four, pressure={"pcie": 0.26}, instance=(1, 0, "4g.40gb"), memory_gib=31, dram=0.95
    )
    b.service(2, "caption", "vision", "triton", 0.09, two, tense=("pcie",), instance=(5, 4, "2g.20gb"), margin=1.19)
    b.service(2, "toxicity", "language", "triton", 0.045, one, instance=(13, 6, "1g.10gb"), memory_gib=5)
    b.service(3, "langid", "language", "triton", 0.045, one, instance=(7, 0, "1g.10gb"), memory_gib=5)
    b.service(3, "thumbs", "vision", "triton", 0.045, one, instance=(8, 1, "1g.10gb"), memory_gib=5)
    b.trainer(3, "probe-train", "research", one, instance=(9, 2, "1g.10gb"), memory_gib=7, waves_of="inlet")
    for k, gi in enumerate((10, 11, 12, 13)):
        b.seat(3, "mig", k, one, instance=(gi, 3 + k, "1g.10gb"), memory_gib=7)
    b.plant("ocr#0", "segment-train#0")
    b.plant("caption#0", "detect-train#0")
    b.decoys.append(Decoy("throttling", "langid#0", "probe-train#0"))
    b.decoys.append(Decoy("throttling", "thumbs#0", "probe-train#0"))


def _node_mps(b: _Builder) -> None:
    """Four H100 under MPS: shares as owners asked for them, two to three times the peak need."""
    b.service(4, "chat", "language", "vllm", 0.14, 0.36, memory_gib=30, tense=("dram",), replicas=2, margin=1.19)
    b.service(4, "search", "vision", "triton", 0.09, 0.24)
    b.trainer(4, "lm-train", "language", 0.16, pressure={"dram": 0.30}, memory_gib=18)
    b.seat(4, "mps", 0, 0.15)
    b.service(5, "translate", "language", "vllm", 0.13, 0.34, memory_gib=26, tense=("l2",), margin=1.19)
    b.service(5, "tagger", "vision", "triton", 0.09, 0.26)
    b.trainer(5, "asr-train", "language", 0.16, pressure={"l2": 0.28}, memory_gib=18)
    b.seat(5, "mps", 0, 0.15)
    b.service(6, "assist", "language", "vllm", 0.13, 0.34, memory_gib=26, peak_hour=14.0)
    b.service(6, "summar", "research", "vllm", 0.11, 0.28, memory_gib=20, peak_hour=14.0)
    b.trainer(6, "diff-train", "vision", 0.16, memory_gib=18)
    b.seat(6, "mps", 0, 0.15)
    b.service(7, "rerank", "language", "triton", 0.09, 0.28, replicas=2)
    b.service(7, "fallback", "language", "triton", 0.07, 0.24, reacts_to="rerank", reaction_minutes=2)
    b.trainer(7, "gnn-train", "research", 0.16, memory_gib=18)
    b.seat(7, "mps", 0, 0.15)
    b.plant("chat#0", "lm-train#0")
    b.plant("translate#0", "asr-train#0")
    b.decoys.append(Decoy("shared daily cycle", "assist#0", "summar#0"))
    b.decoys.append(Decoy("lagged reverse causality", "rerank#1", "fallback#0"))


def _node_vgpu(b: _Builder) -> None:
    """Four L40S under HAMi. Card 3 is failing."""
    b.service(8, "vqa", "vision", "vllm", 0.13, 0.34, memory_gib=14, tense=("dram",), margin=1.19)
    b.service(8, "ads", "vision", "triton", 0.09, 0.26, memory_gib=6)
    b.trainer(8, "clip-train", "vision", 0.16, pressure={"dram": 0.28}, memory_gib=9)
    b.trainer(8, "echo-train", "research", 0.10, memory_gib=7, waves_of="clip-train", width=0.3)
    b.service(9, "speech", "language", "triton", 0.11, 0.30, memory_gib=8, tense=("l2",), margin=1.19)
    b.service(
        9,
        "intent",
        "language",
        "triton",
        0.08,
        0.26,
        memory_gib=6,
        replicas=2,
        slow_episodes_per_day=9.0,
        slow_episode_gain=0.35,
    )
    b.service(9, "retry", "language", "triton", 0.06, 0.20, memory_gib=5, reacts_to="intent", reaction_minutes=0)
    b.trainer(9, "tts-train", "language", 0.16, pressure={"l2": 0.30}, memory_gib=9)
    b.service(10, "vision-gate", "vision", "triton", 0.12, 0.34, memory_gib=8)
    b.service(10, "vision-log", "vision", "triton", 0.08, 0.24, memory_gib=6, downstream_of="vision-gate")
    b.trainer(10, "rl-train", "research", 0.16, memory_gib=10)
    b.service(
        10, "kvstore", "research", "triton", 0.04, 0.12, memory_gib=5, memory_quota_gib=8, growth_gib_per_hour=0.062
    )
    b.service(11, "chat", "language", "vllm", 0.13, 0.36, memory_gib=16, replicas=2)
    b.service(11, "intent", "language", "triton", 0.08, 0.26, memory_gib=6, replicas=2)
    b.trainer(11, "video-train", "vision", 0.16, memory_gib=10)
    b.plant("vqa#0", "clip-train#0")
    b.plant("speech#0", "tts-train#0")
    b.decoys.append(Decoy("third party", "vqa#0", "echo-train#0"))
    b.decoys.append(Decoy("synchronous reverse causality", "intent#0", "retry#0"))
    b.decoys.append(Decoy("own load", "vision-gate#0", "vision-log#0"))


def _node_timeslice(b: _Builder) -> None:
    """Two A100-40 in rotation, two whole ones."""
    b.service(12, "faces", "vision", "triton", 0.05, 0.25, memory_gib=4, width=0.45, margin=0.86)
    b.service(12, "plates", "vision", "triton", 0.05, 0.25, memory_gib=4, width=0.45, margin=0.86)
    b.trainer(12, "pose-train", "vision", 0.25, memory_gib=11, width=0.6)
    b.service(13, "spell", "language", "triton", 0.05, 0.25, memory_gib=4, width=0.45, margin=0.86)
    b.service(13, "dedupe", "research", "triton", 0.05, 0.25, memory_gib=4, width=0.45, margin=0.86)
    b.trainer(13, "tab-train", "research", 0.25, memory_gib=11, width=0.6)
    b.trainer(14, "big-train", "research", 1.0, memory_gib=34, width=0.9, tensor=0.85)
    b.seat(15, "whole", 0, 1.0, memory_gib=34)
    b.plant("faces#0", "pose-train#0")
    b.plant("spell#0", "tab-train#0")


def trainer_mapping() -> tuple[MappingSettings, ...]:
    """Return the `[[mapping]]` rows under which a collector reads the trainers' own metrics."""
    return (
        MappingSettings(metric="trainer_steps_total", measurement="slice", field="steps_count", counter=True),
        MappingSettings(metric="trainer_step_seconds", measurement="slice", field="step_seconds", counter=True),
    )
