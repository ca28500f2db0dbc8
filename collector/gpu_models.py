"""What is known of a GPU model by its name: units, memory, power, clocks, peaks. Data in gpu_models.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_MIB = 2**20
_VENDOR = re.compile(r"^(?:nvidia[ -]+)*(?:tesla |quadro |geforce |graphics device )?", re.IGNORECASE)
_PROFILE = re.compile(r"^(?:\d+c\.)?((\d{1,3})g\.(\d{1,6})gb)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A MIG profile of one model: compute slices, memory slices, streaming multiprocessors."""

    compute_slices: int
    memory_slices: int
    sm_count: int


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU model; cards that cannot be divided have one slice of each.

    peaks: dense FLOP/s by type; 0: no such unit; a type that is not there is not known.
    compute_slices: MIG compute slices; of AMD the compute dies, into which `cpx` divides the card.
    """

    key: str
    names: tuple[str, ...]
    sm_count: int
    memory_bytes: float
    memory_slices: int
    compute_slices: int
    tdp_watts: float
    max_sm_clock_hertz: float
    dram_bytes_per_second: float
    peaks: Mapping[str, float]
    pcie_generation: int
    nvlink_bytes_per_second: float
    mig: Mapping[str, MigProfile]


@dataclass(frozen=True, slots=True)
class SliceShare:
    """Share of the whole card that a MIG instance is, for compute and for memory; estimated from g/G if unknown."""

    compute: float
    memory: float
    estimated: bool


@cache
def gpu_models() -> Mapping[str, GpuModel]:
    """Return all known models by key."""
    text = (files("collector") / "gpu_models.toml").read_text(encoding="utf-8")
    models = {}
    for row in tomllib.loads(text)["model"]:
        models[row["key"]] = GpuModel(
            key=row["key"],
            names=tuple(row["names"]),
            sm_count=row["sm_count"],
            memory_bytes=float(row["memory_mib"] * _MIB),
            memory_slices=row["memory_slices"],
            compute_slices=row["compute_slices"],
            tdp_watts=row["tdp_watts"],
            max_sm_clock_hertz=row["max_sm_clock_hertz"],
            dram_bytes_per_second=row["dram_bytes_per_second"],
            peaks={name: tera * 1e12 for name, tera in row["peaks"].items()},
            pcie_generation=row["pcie_generation"],
            nvlink_bytes_per_second=row["nvlink_bytes_per_second"],
            mig={name: MigProfile(*numbers) for name, numbers in row.get("mig", {}).items()},
        )
    return models


@cache
def gpu_model(name: str) -> GpuModel | None:
    """Return the model that an exporter, a log or a user calls `name`; None when it is not known.

    Vendor's words, case and the kind of blank between words do not count: `NVIDIA A100-SXM4-40GB`,
    `NVIDIA-NVIDIA H200` and `Tesla T4` are known; so is a key such as `a100-40-sxm`.
    """
    wanted = _plain(name)
    for model in gpu_models().values():
        if wanted == model.key or any(wanted == _plain(known) for known in model.names):
            return model
    return None


def slice_share(model: GpuModel | None, profile: str) -> SliceShare | None:
    """Return which share of the card a MIG instance of `profile` (`1g.5gb`, `1c.3g.71gb`, `1g.10gb+me`) is.

    Where the model or its profile is not known the compute slices of a 7-slice card are taken, and said `estimated`;
    a text that is no profile gives None.
    """
    match = _PROFILE.match(profile)
    if match is None:
        return None
    known = model.mig.get(match.group(1).lower()) if model is not None else None
    if model is not None and known is not None:
        return SliceShare(known.sm_count / model.sm_count, known.memory_slices / model.memory_slices, estimated=False)
    compute_slices = model.compute_slices if model is not None and model.compute_slices > 1 else 7
    compute = min(int(match.group(2)) / compute_slices, 1.0)
    memory = compute
    if model is not None:
        slices = max(model.memory_slices, 1)
        memory = min(max(round(int(match.group(3)) * 2**30 / model.memory_bytes * slices), 1) / slices, 1.0)
    return SliceShare(compute, memory, estimated=True)


def profile_bytes(profile: str) -> float:
    """Return the memory that a MIG profile's name says, in bytes; 0 for a text that is no profile."""
    match = _PROFILE.match(profile)
    return float(int(match.group(3)) * 2**30) if match else 0.0


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", _VENDOR.sub("", name.strip())).lower()
