"""Presets: whole clusters with a scene in them.

`mixed`: inference by day, training by night, on 16 cards. `undecided`: two cards on which watching cannot tell who
hurts whom, under a layer whose shares act at once.
"""

from __future__ import annotations

from collector.settings import MappingSettings
from sample_data.cluster.builder import Builder
from sample_data.cluster.spec import (
    A100_40,
    A100_80,
    ALWAYS,
    GIB,
    H100_80,
    INLET,
    L40S_48,
    MIG_PROFILES,
    CardSpec,
    ClusterSpec,
    Decoy,
    JobClass,
    QueueSpec,
    SliceSpec,
)
from sample_data.cluster.streams import stream


def mixed(seed: int) -> ClusterSpec:
    """Return the preset `mixed`: inference by day, training by night, all five sharing kinds, planted pairs, decoys."""
    build = Builder(seed, _mixed_cards(seed))
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


def undecided(seed: int) -> ClusterSpec:
    """Return the preset `undecided`: two trainers that never rest, of which one hurts its neighbour and one does not.

    Its vGPU layer reads the limits of running work at each launch, so that a probe can decide both.
    """
    build = Builder(seed, [CardSpec("node-p", i, L40S_48, "vgpu") for i in range(2)])
    for card, service, trainer, pressure in (
        (0, "answer", "index-train", {"dram": 1.5}),
        (1, "match", "sweep-train", {}),
    ):
        build.service(card, service, "language", "vllm", 0.13, 0.34, memory_gib=14, tense=("dram",), margin=2.0)
        build.trainer(card, trainer, "research", 0.2, pressure=pressure, memory_gib=9, width=1.0, waves_of=ALWAYS)
    build.plant("answer#0", "index-train#0")
    build.decoys.append(Decoy("always on", "match#0", "sweep-train#0"))
    return ClusterSpec(
        seed=seed,
        cards=tuple(build.cards),
        slices=tuple(build.slices),
        services=tuple(build.services.values()),
        job_classes=(JobClass("vgpu", 0.16, 0.0, (60.0, 120.0), 10 * GIB),),
        queues=(QueueSpec("research", 0.5, 1.0),),
        planted=tuple(build.planted),
        decoys=tuple(build.decoys),
        live_limits=True,
    )


def _mixed_cards(seed: int) -> list[CardSpec]:
    fail = int(stream(seed, "failure").integers(14 * 60, 17 * 60)) + 1440
    cards = []
    for node, hardware, kind in (
        ("node-a", A100_80, "mig"),
        ("node-b", H100_80, "mps"),
        ("node-c", L40S_48, "vgpu"),
    ):
        for i in range(4):
            hot = kind == "mig" and i == 3
            fails = fail if kind == "vgpu" and i == 3 else None
            cards.append(CardSpec(node, i, hardware, kind, hot, fails))  # type: ignore[arg-type]  # literals
    for i, kind in enumerate(("timeslice", "timeslice", "whole", "whole")):
        cards.append(CardSpec("node-d", i, A100_40, kind))  # type: ignore[arg-type]  # literals
    return cards


def _g(profile: str) -> float:
    return MIG_PROFILES[profile].sm_count / A100_80.sm_count


def _node_mig(b: Builder) -> None:
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
    b.trainer(3, "probe-train", "research", one, instance=(9, 2, "1g.10gb"), memory_gib=7, waves_of=INLET)
    for k, gi in enumerate((10, 11, 12, 13)):
        b.seat(3, "mig", k, one, instance=(gi, 3 + k, "1g.10gb"), memory_gib=7)
    b.plant("ocr#0", "segment-train#0")
    b.plant("caption#0", "detect-train#0")
    b.decoys.append(Decoy("throttling", "langid#0", "probe-train#0"))
    b.decoys.append(Decoy("throttling", "thumbs#0", "probe-train#0"))


def _node_mps(b: Builder) -> None:
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


def _node_vgpu(b: Builder) -> None:
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


def _node_timeslice(b: Builder) -> None:
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
