"""Processes on a card: what each uses, added up for its owner."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml

from collector.nvml.binding import Answer, ask
from collector.nvml.holders import Owner

# Above this the driver's number is garbage (a process that has just begun or ended).
_MOST_PERCENT = 100


@dataclass(slots=True)
class Process:
    """One process on a card. `memory`: bytes; shares: percent of the time since the last look, absent without one."""

    pid: int
    memory: int | None = None
    mps: bool = False
    busy: float | None = None
    encoder: float | None = None
    decoder: float | None = None


@dataclass(slots=True)
class Use:
    """What one owner's processes do on a card: sums; a sum lacks a value that one of its parts lacks."""

    memory: float | None = 0.0
    busy: float | None = 0.0
    encoder: float | None = 0.0
    decoder: float | None = 0.0
    mps: bool = False

    def add(self, process: Process) -> None:
        """Add one process."""
        for name in ("memory", "busy", "encoder", "decoder"):
            before, own = getattr(self, name), getattr(process, name)
            setattr(self, name, None if before is None or own is None else before + own)
        self.mps |= process.mps


@dataclass(slots=True)
class ProcessReader:
    """Lists processes; remembers the driver's stamp of the last use sample of each card."""

    tells_use: dict[str, bool] = field(default_factory=dict)  # UUID -> whether the last look had use samples
    _seen: dict[str, int] = field(default_factory=dict)

    def read(self, uuid: str, handle: Any) -> Answer[list[Process]]:
        """Return the processes of a card that is not cut. Where their use is an error they come with its reason.

        Raises:
            LostCardError: the card is lost.
            DriverGoneError: the driver is.
        """
        listed = list_processes(handle)
        if listed.value is None:
            return listed
        since = self._seen.get(uuid, 0)
        samples: Answer[list[Any]] = ask(_utilization, handle, since)
        self.tells_use[uuid] = samples.value is not None
        if samples.value is None:
            return Answer(listed.value, samples.reason)
        valid = [one for one in samples.value if one.pid and one.timeStamp > since and _plausible(one)]
        self._seen[uuid] = max((one.timeStamp for one in valid), default=since)
        _spread(listed.value, valid)
        return listed


def list_processes(handle: Any) -> Answer[list[Process]]:
    """Return who computes on a card or an instance, clients of MPS included, each once.

    Raises:
        LostCardError: the card is lost.
        DriverGoneError: the driver is.
    """
    found: dict[int, Process] = {}
    listed: Answer[list[Any]] = ask(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    if listed.value is None and not listed.reason:
        listed = ask(_older_list, handle)
    if listed.value is None:
        return Answer(None, listed.reason)
    clients: Answer[list[Any]] = ask(pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, handle)
    if clients.reason:
        return Answer(None, clients.reason)
    for one, mps in [(one, False) for one in listed.value] + [(one, True) for one in clients.value or ()]:
        process = found.setdefault(one.pid, Process(one.pid))
        process.memory = one.usedGpuMemory if process.memory is None else process.memory
        process.mps |= mps
    return Answer([found[pid] for pid in sorted(found)])


def add_up(
    processes: Sequence[Process], owners: Mapping[int, Owner | None], idle: Iterable[Owner] = (), *, told: bool = True
) -> dict[Owner, Use]:
    """Return what each owner's processes use together; processes without an owner are left out.

    Args:
        processes: those of a card.
        owners: whom each belongs to, by pid.
        idle: who holds the card whether or not he runs anything on it.
        told: the driver tells the use of processes, so that who has none uses nothing.
    """
    share = 0.0 if told else None
    uses = {owner: Use(busy=share, encoder=share, decoder=share) for owner in idle}
    for process in processes:
        owner = owners.get(process.pid)
        if owner is not None:
            uses.setdefault(owner, Use()).add(process)
    return uses


def _utilization(handle: Any, since: int) -> list[Any]:
    """Return the driver's samples of use since a stamp (its clock, microseconds); an idle card has none."""
    try:
        return list(pynvml.nvmlDeviceGetProcessUtilization(handle, since))
    except pynvml.NVMLError as error:
        # Success without samples comes back from the binding as an error of code 0.
        if int(error.value) in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND):
            return []
        raise


def _older_list(handle: Any) -> list[Any]:
    """Return processes by the call of drivers before 510, which tells pid and memory by the same layout."""
    count = ctypes.c_uint(0)
    call = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetComputeRunningProcesses_v2")  # noqa: SLF001
    code = call(handle, ctypes.byref(count), None)
    if code == pynvml.NVML_SUCCESS:
        return []
    if code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
        raise pynvml.NVMLError(code)
    count.value = 2 * count.value + 5
    found = (pynvml.c_nvmlProcessInfo_v2_t * count.value)()
    code = call(handle, ctypes.byref(count), found)
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    processes = [pynvml.nvmlStructToFriendlyObject(one) for one in found[: count.value]]
    for one in processes:
        if one.usedGpuMemory == pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value:
            one.usedGpuMemory = None
    return processes


def _plausible(sample: Any) -> bool:
    return bool(max(sample.smUtil, sample.encUtil, sample.decUtil) <= _MOST_PERCENT)


def _spread(processes: Iterable[Process], samples: Sequence[Any]) -> None:
    """Give each process its mean use over the windows since the last look; one without samples did nothing.

    The driver writes a sample for a process only for windows in which it did something, so the windows are as many as
    the busiest listed process has: a mean over a process's own samples would not see its idle ones.
    """
    by_pid: dict[int, list[Any]] = {}
    for sample in samples:
        by_pid.setdefault(sample.pid, []).append(sample)
    listed = list(processes)
    windows = max((len(by_pid.get(process.pid, ())) for process in listed), default=0)
    for process in listed:
        own = by_pid.get(process.pid, [])
        process.busy = _mean((one.smUtil for one in own), windows)
        process.encoder = _mean((one.encUtil for one in own), windows)
        process.decoder = _mean((one.decUtil for one in own), windows)


def _mean(values: Iterable[int], windows: int) -> float:
    return sum(values) / windows if windows else 0.0
