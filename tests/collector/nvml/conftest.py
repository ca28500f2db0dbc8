"""A driver's library of our own (nvml.c), loaded by the real binding, and a host's files beside it."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pynvml
import pytest

from collector.batch import Batch, Fact
from collector.nvml import NvmlSource, xids
from collector.plugins import SourceContext
from collector.settings import SourceSettings

HERE = Path(__file__).parent
START = datetime(2026, 1, 5, tzinfo=UTC)
GIB = 2**30
MIB = 2**20

# Cards as the tests know them; values in the driver's units.
HOPPER = {
    "uuid": "GPU-h100",
    "name": "NVIDIA H100 80GB HBM3",
    "pci": "00000000:1B:00.0",
    "architecture": 9,
    "mig": 0,
    "busy": 80,
    "memory_busy": 30,
    "encoder": 5,
    "decoder": 7,
    "memory_total": 80 * GIB,
    "memory_used": 20 * GIB,
    "memory_reserved": 1 * GIB,
    "power": 412_500,
    "power_limit": 700_000,
    "temperature:0": 61,
    "clock:1": 1_755,
    "clock:2": 2_619,
    "max_clock:1": 1_980,
    "max_clock:2": 2_619,
    "ecc:0": 3,
    "ecc:1": 0,
    "pcie_replay": 2,
    "pcie_generation": 5,
    "pcie_generation_max": 5,
    "pcie_lanes": 16,
    "pcie_lanes_max": 16,
    "remapped_corrected": 1,
    "remapped_uncorrected": 0,
    "remap_pending": 1,
    "remap_failed": 0,
    "reasons": 0x4,
    "field:82": 70,
    "field:83": 1_000_000,
    "field:197": 5_000_000,
    "field:198": 7_000_000,
    "field:138:4294967295": 1_000,
    "field:139:4294967295": 2_000,
    "field:38": 1,
    "field:52": 4,
    "field:74": 0,
    "field:269": 0,
    "field:270": 0,
    "field:271": 0,
    "process_use": 1,
    "gpm": 1,
    "gpm:1": 91.0,
    "gpm:2": 64.0,
    "gpm:3": 40.0,
    "gpm:5": 22.0,
    "gpm:10": 35.0,
    "gpm:11": 0.0,
    "gpm:12": 12.5,
    "gpm:13": 1.0,
    "gpm:20": 100.0,
    "gpm:21": 50.0,
}
TURING = {
    "uuid": "GPU-t4",
    "name": "Tesla T4",
    "pci": "00000000:3B:00.0",
    "architecture": 6,
    "busy": 12,
    "memory_busy": 1,
    "memory_total": 15 * GIB,
    "memory_used": 2 * GIB,
    "memory_reserved": 256 * MIB,
    "power": 27_000,
    "temperature:0": 41,
    "clock:1": 585,
    "clock:2": 5_001,
    "reasons": 0x1,
    "pcie_throughput:0": 300,
    "pcie_throughput:1": 200,
    "process_use": 1,
}


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Build the library as a driver of some version would have it; once a version."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc: it builds the driver's library that these tests load")
    built: dict[int, Path] = {}

    def make(driver: int) -> Path:
        if driver not in built:
            path = tmp_path_factory.mktemp(f"driver{driver}") / "libnvidia-ml.so.1"
            options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-DDRIVER={driver}"]
            command = ["gcc", *options, "-Wl,-soname,libnvidia-ml.so.1", "-o", str(path), str(HERE / "nvml.c")]
            subprocess.run([*command, "-lpthread"], check=True, capture_output=True)  # noqa: S603  our own file
            built[driver] = path
        return built[driver]

    return make


class Driver:
    """What the library is told to answer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.fake_reset()
        self.version("580.65.06", 13_000)
        self.count = 0
        self._library.fake_number(-1, b"count", ctypes.c_double(0))

    def version(self, driver: str, cuda: int) -> None:
        self._library.fake_text(-1, b"driver", driver.encode())
        self._library.fake_number(-1, b"cuda", ctypes.c_double(cuda))

    def add(self, values: dict[str, object], **more: object) -> int:
        """Add a card; return its device number."""
        device = self.count
        self.count += 1
        self._library.fake_number(-1, b"count", ctypes.c_double(self.count))
        self.put(device, values | more)
        return device

    def instance(self, card: int, place: int, gi: int, values: dict[str, object], *, gpm: dict[int, float]) -> int:
        """Add a MIG device at a place of a card; return its device number."""
        device = 100 * (card + 1) + place
        self.put(card, {f"mig_device:{place}": device, f"gpm_of_gi:{gi}": device})
        self.put(device, values | {"gi": gi, "ci": 0} | {f"gpm:{number}": value for number, value in gpm.items()})
        return device

    def put(self, device: int, values: dict[str, object]) -> None:
        for key, value in values.items():
            if isinstance(value, str):
                self._library.fake_text(device, key.encode(), value.encode())
            else:
                self._library.fake_number(device, key.encode(), ctypes.c_double(float(value)))  # type: ignore[arg-type]

    def remove(self, device: int, *keys: str) -> None:
        for key in keys:
            self._library.fake_remove(device, key.encode())

    def fail(self, function: str, code: int, *, device: int = -1, times: int = -1) -> None:
        self._library.fake_fail(function.encode(), device, code, times)

    def mend(self) -> None:
        self._library.fake_mend()

    def process(self, device: int, pid: int, memory: int | None, *, mps: bool = False) -> None:
        unknown = ctypes.c_ulonglong(2**64 - 1 if memory is None else memory)
        none = ctypes.c_uint(0xFFFFFFFF)
        self._library.fake_process(device, int(mps), ctypes.c_uint(pid), unknown, none, none)

    def used(self, device: int, pid: int, stamp: int, sm: int, *, encoder: int = 0, decoder: int = 0) -> None:
        numbers = [ctypes.c_uint(number) for number in (sm, 0, encoder, decoder)]
        self._library.fake_used(device, ctypes.c_uint(pid), ctypes.c_ulonglong(stamp), *numbers)

    def no_processes(self) -> None:
        self._library.fake_no_processes()

    def xid(self, device: int, code: int, *, gi: int = 0xFFFFFFFF) -> None:
        self._library.fake_xid(device, ctypes.c_ulonglong(code), ctypes.c_uint(gi), ctypes.c_uint(0xFFFFFFFF))

    def reload(self) -> None:
        self._library.fake_reload()

    @property
    def pending_events(self) -> int:
        return int(self._library.fake_pending_events())

    @property
    def live(self) -> tuple[int, int, int]:
        """Starts less stops, samples and event sets that were not freed."""
        library = self._library
        return int(library.fake_starts()), int(library.fake_live_samples()), int(library.fake_live_sets())

    def registered(self, device: int) -> bool:
        return bool(self._library.fake_registered(device))


@pytest.fixture
def use_driver(build: Callable[[int], Path]) -> Iterator[Callable[[int], Driver]]:
    """Give the binding the library of a driver, and take it away afterwards."""

    def clear() -> None:
        pynvml.nvmlLib = None
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml._nvmlLib_refcount = 0

    clear()
    yield lambda version: Driver(build(version))
    clear()


@pytest.fixture
def driver(use_driver: Callable[[int], Driver]) -> Driver:
    """The library of a present driver."""
    return use_driver(570)


class Host:
    """Files of a host as they are under `/`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc").mkdir()

    def process(
        self,
        pid: int,
        *,
        start: int = 1000,
        cgroup: str = "0::/user.slice/session-1.scope",
        command: str = "python train.py",
        name: str = "python",
    ) -> None:
        folder = self.root / "proc" / str(pid)
        folder.mkdir(exist_ok=True)
        fields = ["S", "1", *["0"] * 17, str(start), *["0"] * 30]
        (folder / "stat").write_text(f"{pid} ({name} (x) y) {' '.join(fields)}\n")
        (folder / "cgroup").write_text(cgroup + "\n")
        (folder / "comm").write_text(name[:15] + "\n")
        (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")

    def container(self, identity: str, namespace: str, pod: str, container: str, *, uid: str = "") -> str:
        """Add what the kubelet leaves of a container; return the cgroup of its processes."""
        logs = self.root / "var/log/containers"
        logs.mkdir(parents=True, exist_ok=True)
        (logs / f"{pod}_{namespace}_{container}-{identity}.log").write_text("")
        uid = uid or f"uid-{pod}"
        (self.root / "var/log/pods" / f"{namespace}_{pod}_{uid}").mkdir(parents=True, exist_ok=True)
        return f"0::/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/cri-containerd-{identity}.scope"

    def checkpoint(self, *entries: tuple[str, str, object]) -> None:
        """Write the kubelet's record: (pod UID, container, device ids)."""
        folder = self.root / "var/lib/kubelet/device-plugins"
        folder.mkdir(parents=True, exist_ok=True)
        rows = [
            {"PodUID": uid, "ContainerName": name, "ResourceName": "nvidia.com/gpu", "DeviceIDs": ids}
            for uid, name, ids in entries
        ]
        content = {"Data": {"PodDeviceEntries": rows, "RegisteredDevices": {}}, "Checksum": 1}
        (folder / "kubelet_internal_checkpoint").write_text(json.dumps(content))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host without processes."""
    return Host(tmp_path)


class Cycles:
    """Polls a source minute after minute and keeps the last batch."""

    def __init__(self, source: NvmlSource) -> None:
        self.source = source
        self.now = START - timedelta(minutes=1)
        self.batch = Batch()
        self.seen: list[Fact] = []

    def poll(self) -> Batch:
        self.now += timedelta(minutes=1)
        self.batch = self.source.poll(self.now)
        return self.batch

    def rows(self, measurement: str) -> pd.DataFrame:
        table = self.batch.rows.get(measurement)
        key = "gpu" if measurement == "gpu" else "slice"
        return pd.DataFrame({key: []}).set_index(key) if table is None else table.to_pandas().set_index(key)

    def value(self, measurement: str, subject: str, field: str) -> float:
        """Return a value; NaN where the row has none."""
        frame = self.rows(measurement)
        return float(frame.at[subject, field]) if field in frame else float("nan")

    def facts(self, name: str) -> dict[str, str | None]:
        return {str(f.subject).rpartition("/")[2]: f.value for f in self.batch.facts if f.name == name}

    def rejects(self) -> dict[tuple[str, str, str], int]:
        """Return (subject's last part, field, reason) -> count."""
        return {(str(r.subject).rpartition("/")[2], r.field, r.reason): r.count for r in self.batch.rejects}

    def events(self) -> list[tuple[str, str]]:
        return [(event.code, str(event.subject).rpartition("/")[2]) for event in self.batch.events]


@pytest.fixture
def start(host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cycles]]:
    """Start a source on a driver; it is closed afterwards."""
    monkeypatch.setattr(xids, "_WAIT_MILLISECONDS", 5)  # so long a source takes to close
    started: list[NvmlSource] = []

    def make(driver: Driver, **settings: object) -> Cycles:
        table = {"kind": "nvml", "library": driver.path, "node": "node-a", "host_root": host.root} | settings
        source = NvmlSource(SourceSettings(**table), SourceContext(cluster="test"))  # type: ignore[arg-type]
        started.append(source)
        return Cycles(source)

    yield make
    for source in started:
        source.close()
