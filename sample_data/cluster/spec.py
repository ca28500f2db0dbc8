"""What a simulated cluster consists of: cards, slices, services, queues, and the confounders planted in it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Literal

from collector.declarations import Objective
from sample_data.cluster.streams import hex_name

STEP_SECONDS = 60
MINUTES_PER_DAY = 1440
GIB = 2**30
MIB = 2**20

SliceKind = Literal["mig", "mps", "vgpu", "timeslice", "whole"]
Role = Literal["online", "trainer", "held", "seat"]
App = Literal["vllm", "triton", "trainer", "none"]
SchedulerRule = Literal["kueue", "kai", "volcano"]

# What a trainer's waves may follow beside another trainer: the hours of a bad inlet, or nothing, as it never rests.
INLET, ALWAYS = "inlet", "always"

# Channels through which a neighbour is felt; DRAM, L2 and SM only where the sharing kind lets them through.
CHANNELS = ("sm", "dram", "l2", "pcie")


@dataclass(frozen=True, slots=True)
class GpuHardware:
    """A card model as its exporter names it."""

    name: str
    sm_count: int
    memory_bytes: int
    tdp_watts: float
    idle_watts: float
    sm_clock_megahertz: int
    memory_clock_megahertz: int
    memory_temperature: bool  # GDDR cards report none


A100_80 = GpuHardware("NVIDIA A100-SXM4-80GB", 108, 80 * GIB, 400.0, 62.0, 1410, 1593, memory_temperature=True)
A100_40 = GpuHardware("NVIDIA A100-SXM4-40GB", 108, 40 * GIB, 400.0, 58.0, 1410, 1215, memory_temperature=True)
H100_80 = GpuHardware("NVIDIA H100 80GB HBM3", 132, 80 * GIB, 700.0, 92.0, 1980, 2619, memory_temperature=True)
L40S_48 = GpuHardware("NVIDIA L40S", 142, 48 * GIB, 350.0, 38.0, 2520, 9001, memory_temperature=False)


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A MIG profile of the A100-80: SMs, memory slices, memory."""

    name: str
    sm_count: int
    memory_slices: int
    memory_bytes: int


MIG_PROFILES = {
    p.name: p
    for p in (
        MigProfile("1g.10gb", 14, 1, int(9.5 * GIB)),
        MigProfile("2g.20gb", 28, 2, int(19.5 * GIB)),
        MigProfile("3g.40gb", 42, 4, int(39.25 * GIB)),
        MigProfile("4g.40gb", 56, 4, int(39.25 * GIB)),
    )
}


@cache
def _uuid(node: str, index: int) -> str:
    h = hex_name(32, "card", node, index)
    return f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:32]}"


@dataclass(frozen=True, slots=True)
class CardSpec:
    """One card: where it is, and how it is shared."""

    node: str
    index: int
    hardware: GpuHardware
    sharing: SliceKind
    hot_inlet: bool = False  # its cooling fails now and then: the firmware halves nothing but lowers the clock for all
    fails_at_minute: int | None = None  # falls off the bus then; memory errors are seen for hours before

    @property
    def uuid(self) -> str:
        """UUID in NVIDIA's form, made from the place."""
        return _uuid(self.node, self.index)

    @property
    def pci_bus_id(self) -> str:
        """PCI address as dcgm-exporter prints it."""
        return f"00000000:{(0x1B, 0x43, 0x9D, 0xC5)[self.index % 4]:02X}:00.0"


@dataclass(frozen=True, slots=True)
class SliceSpec:
    """One share of a card: a server's replica, a trainer, something held, or a seat that queue jobs come and go in.

    Shares are of the whole card. `width` is the share that one request (online) or the whole process (others) fills
    when nothing limits it; `unit_sm_seconds` is the solo cost of one request or one step.
    """

    card: int  # index in ClusterSpec.cards
    kind: SliceKind
    role: Role
    name: str  # workload; a seat's is its place's name
    tenant: str
    app: App
    sm_quota: float
    memory_quota_bytes: float
    memory_used_bytes: float
    ordinal: int = 0
    profile: str = ""
    instance: int = -1  # MIG: GPU instance id
    start: int = -1  # MIG: first memory slice
    unit_sm_seconds: float = 1.0
    unit_seconds: float = 0.0  # online: solo service time of one request
    tokens_per_request: float = 1.0
    width: float = 1.0
    cv: float = 0.35  # coefficient of variation of the service time
    load_slowing: float = 0.0  # service time grows by this share from an empty to a full server (batching)
    sensitivity: tuple[float, ...] = (0.02, 0.02, 0.02, 0.02)
    pressure: tuple[float, ...] = (0.006, 0.006, 0.006, 0.006)
    power_intensity: float = 0.9
    dram_per_sm: float = 0.5  # DRAM activity for each unit of SM activity
    tensor_per_sm: float = 0.4
    pcie_bytes_per_second: float = 2e8  # at full activity
    memory_growth_bytes_per_hour: float = 0.0
    waves_of: str = ""  # follow this other trainer's on/off waves (a third party drives both), INLET or ALWAYS
    restarts_at_minutes: tuple[int, ...] = ()
    seat_class: str = ""

    @property
    def online(self) -> bool:
        """Whether it serves requests under an objective."""
        return self.role == "online"


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """An online service: its promise, and the rate at which requests come for all replicas together."""

    name: str
    tenant: str
    objective: Objective
    peak_per_second: float
    night_share: float = 0.3  # rate at 4 in the morning against the daily peak
    peak_hour: float = 14.0
    bursts_per_day: float = 3.0
    burst_gain: float = 0.25
    noise: float = 0.05
    downstream_of: str = ""  # its rate follows this other service's (own-load decoy)
    reacts_to: str = ""  # its rate rises when that service is slow
    reaction_minutes: int = 0
    slow_episodes_per_day: float = 0.0  # its requests are heavier for some minutes, on every replica
    slow_episode_gain: float = 0.0


@dataclass(frozen=True, slots=True)
class JobClass:
    """A kind of queue job: how much of a card its seat is, how often it comes, how long it runs there alone."""

    name: str  # mig, mps, whole
    cards: float
    per_hour: float
    minutes: tuple[float, float]
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A tenant's queue in the pool."""

    tenant: str
    quota_gpu_count: float
    arrival_share: float
    weight: float = 1.0
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Decoy:
    """A pair that looks like contention and is none: the name says why."""

    name: str
    victim: str  # workload#ordinal
    suspect: str


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A whole cluster; two runs of one spec see the same arrivals and the same noise."""

    seed: int
    cards: tuple[CardSpec, ...]
    slices: tuple[SliceSpec, ...]
    services: tuple[ServiceSpec, ...]
    job_classes: tuple[JobClass, ...]
    queues: tuple[QueueSpec, ...]
    planted: tuple[tuple[str, str], ...]  # (victim, suspect) as workload#ordinal
    decoys: tuple[Decoy, ...]
    name: str = "demo"
    pool: str = "default"
    start: datetime = datetime(2026, 1, 5, tzinfo=UTC)
    scheduler: SchedulerRule = "kueue"
    days: int = 2
    quirks: bool = True
    live_limits: bool = False  # the vGPU layer reads the limit of a process at each launch: a change acts at once
    node_cpu_cores: int = 64
    node_memory_bytes: int = 512 * GIB

    def replace(self, **changes: object) -> ClusterSpec:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]  # names are checked by dataclasses
