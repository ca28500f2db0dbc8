"""Who a process belongs to: its container by the cgroup, the container's pod by the kubelet's own files, or a table.

The kubelet leaves on the host, as files, which container each log is of (`/var/log/containers`), which pod has which
UID (`/var/log/pods`), and which devices it gave to whom (its device manager's checkpoint). A process outside of
containers is named `<host>/<pid>.<start>`, where start is the kernel's clock ticks since boot, so that a number that
comes again is another process.
"""

from __future__ import annotations

import fnmatch
import pwd
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from collector.errors import UnreachableError
from collector.settings import HolderSettings

_CONTAINER = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
_LOG_NAME = re.compile(r"^(?P<pod>.+?)_(?P<namespace>[^_]+)_(?P<container>.+)-(?P<id>[0-9a-f]{64})\.log$")
_POD_FOLDER = re.compile(r"^(?P<namespace>[^_]+)_(?P<pod>.+)_(?P<uid>[^_]+)$")
_JOB = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)  # as Slurm names its cgroups, in both versions of them
_CHECKPOINT = "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
_MPS_SERVER = "nvidia-cuda-mps"  # the kernel keeps 15 characters of nvidia-cuda-mps-server


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """A container of a pod, or a process outside of one. Names that are not known are empty."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    process: str = ""
    job: str = ""  # number of the Slurm job that the process is of


@dataclass(frozen=True, slots=True)
class Grant:
    """The kubelet's record that a container was given a device: a UUID of a card or of a MIG instance.

    shared: it is one of several replicas of the device, as time-slicing and MPS make them.
    """

    device: str
    owner: Owner
    shared: bool


class HolderFinder:
    """Finds owners of processes and devices on one host.

    Args:
        root: where the host's files are mounted; `/` on the host itself.
        node: name of the host.
        table: the user's `[[source.holders]]`.
    """

    def __init__(self, root: Path, node: str, table: Sequence[HolderSettings] = ()) -> None:
        self._root = root
        self._node = node
        self._table = table
        self._owners: dict[tuple[int, str], Owner | None] = {}
        self._containers: dict[str, Owner] = {}

    def owner(self, pid: int) -> Owner | None:
        """Return whom a process belongs to, None for a server of MPS, which works for its clients.

        Raises:
            ProcessLookupError: there is no such process here: it ended, or its numbers are of another PID namespace.
        """
        folder = self._root / "proc" / str(pid)
        try:
            start = _start_ticks((folder / "stat").read_text(encoding="utf-8", errors="replace"))
            key = (pid, start)
            if key not in self._owners:
                self._owners[key] = self._find(folder, f"{self._node}/{pid}.{start}")
        except (OSError, IndexError) as error:
            raise ProcessLookupError(pid) from error
        return self._owners[key]

    def forget_all_but(self, pids: Iterable[int]) -> None:
        """Drop what is known of processes that are gone."""
        there = set(pids)
        self._owners = {key: owner for key, owner in self._owners.items() if key[0] in there}

    def grants(self) -> list[Grant] | None:
        """Return which devices the kubelet gave to whom; None where there is no kubelet.

        Raises:
            UnreachableError: its record is there, and cannot be read.
        """
        try:
            content = orjson.loads((self._root / _CHECKPOINT).read_bytes())
            said = content["Data"]["PodDeviceEntries"] or []
            entries = [entry for entry in said if isinstance(entry, dict)]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise UnreachableError(
                f"the kubelet's record of devices cannot be read ({error.strerror}): run the collector as root"
            ) from None
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise UnreachableError("the kubelet's record of devices has another shape than is known") from None
        pods = self._pods()
        found: list[Grant] = []
        for entry in entries:
            namespace, pod = pods.get(str(entry.get("PodUID", "")), ("", ""))
            owner = Owner(namespace, pod, str(entry.get("ContainerName", "")))
            for device in _device_ids(entry.get("DeviceIDs")) if pod else ():
                name, _, replica = device.partition("::")
                if name.startswith(("GPU-", "MIG-")):
                    found.append(Grant(name, owner, bool(replica)))
        return sorted(set(found), key=lambda grant: (grant.device, grant.owner))

    def _find(self, folder: Path, process: str) -> Owner | None:
        with suppress(OSError):
            if (folder / "comm").read_text(encoding="utf-8", errors="replace").startswith(_MPS_SERVER):
                return None
        cgroup = (folder / "cgroup").read_text(encoding="utf-8", errors="replace")
        container = next(reversed(_CONTAINER.findall(cgroup)), "")
        if container:
            if container not in self._containers:
                self._containers = self._logged()
            if container in self._containers:
                return self._containers[container]
        return self._by_table(folder, cgroup, container, process)

    def _by_table(self, folder: Path, cgroup: str, container: str, process: str) -> Owner:
        """Return what the user's table says of a process; a row that names a container makes it the holder."""
        paths = [line.rpartition(":")[2] for line in cgroup.splitlines()]
        job = next(iter(_JOB.findall(cgroup)), "")
        for row in self._table:
            if not (
                container.startswith(row.container_id)
                and any(fnmatch.fnmatchcase(path, row.cgroup) for path in paths or [""])
                and (row.user == "*" or fnmatch.fnmatchcase(_user(folder), row.user))
                and (row.command == "*" or fnmatch.fnmatchcase(_command(folder), row.command))
            ):
                continue
            if row.container:
                return Owner(row.namespace, row.pod, row.container)
            return Owner(row.namespace, row.pod, "", process, job)
        return Owner(process=process, job=job)

    def _logged(self) -> dict[str, Owner]:
        """Return all containers that the kubelet keeps a log of, by container id."""
        found = {}
        with suppress(OSError):
            for path in (self._root / "var/log/containers").iterdir():
                match = _LOG_NAME.match(path.name)
                if match:
                    found[match["id"]] = Owner(match["namespace"], match["pod"], match["container"])
        return found

    def _pods(self) -> dict[str, tuple[str, str]]:
        """Return namespace and name of all pods that the kubelet keeps logs of, by UID."""
        found = {}
        with suppress(OSError):
            for path in (self._root / "var/log/pods").iterdir():
                match = _POD_FOLDER.match(path.name)
                if match:
                    found[match["uid"]] = (match["namespace"], match["pod"])
        return found


def _start_ticks(stat: str) -> str:
    """Return field 22 of /proc/PID/stat; the command in field 2 may hold blanks and brackets."""
    return stat[stat.rindex(")") + 2 :].split()[19] if ")" in stat else stat.split()[21]


def _device_ids(said: object) -> list[str]:
    """Return device ids of a checkpoint's entry: by NUMA node since Kubernetes 1.20, a plain list before."""
    if isinstance(said, dict):
        return [str(device) for devices in said.values() for device in devices or ()]
    return [str(device) for device in said] if isinstance(said, list) else []


def _user(folder: Path) -> str:
    uid = folder.stat().st_uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _command(folder: Path) -> str:
    return (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", errors="replace").strip()
