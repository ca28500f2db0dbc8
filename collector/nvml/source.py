"""The source `nvml`: this host's cards read through the driver's library, cycle by cycle."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pynvml

from collector.assemble import Assembler, Scrape
from collector.errors import UnreachableError
from collector.gathering import GatheringSource
from collector.nvml.binding import Answer, DriverGoneError, Library, LostCardError, ask, ask_host
from collector.nvml.body import Body, Labels, SeriesBook
from collector.nvml.cards import Identity, identify, mig_is_on, mig_profile, read_card, read_memory, read_pcie_samples
from collector.nvml.gpm import METRICS, OF_INSTANCES, GpmPairs, Key
from collector.nvml.holders import Grant, HolderFinder, Owner
from collector.nvml.processes import ProcessReader, add_up, list_processes
from collector.nvml.xids import XidListener
from collector.plugins import SourceContext
from collector.protocols import SourceDescription
from collector.settings import SourceSettings, TargetSettings
from collector.whole import whole

# How long closing waits for a call that is under way.
_PATIENCE_SECONDS = 2.0


class NvmlSource(GatheringSource):
    """Reads cards, MIG instances and processes of this host.

    Args:
        settings: the `[[source]]` table: library, node, host_root, holders.
        context: cluster, interval, declarations.
    """

    def __init__(self, settings: SourceSettings, context: SourceContext) -> None:
        self._settings = settings
        self._context = context
        self._node = settings.node or socket.gethostname()
        self._target = TargetSettings(url=f"nvml://{self._node}", node=self._node)
        self._library = Library(settings.library)
        self._finder = HolderFinder(settings.host_root, self._node, settings.holders)
        self._book = SeriesBook()
        self._gpm = GpmPairs()
        self._xids = XidListener()
        self._processes = ProcessReader()
        self._uuids: dict[int, str] = {}
        self._refused = False  # the kubelet's record of devices is there and cannot be read
        self._profiles: dict[tuple[str, str], str] = {}  # UUID, GPU instance -> profile, of the present cycle
        self._answered = False
        self._turn = threading.Lock()
        self.assembler = Assembler(context)

    def gather(self, now: datetime) -> list[Scrape]:  # noqa: ARG002  the driver knows only the present
        """Read all cards. A driver that was there before and is gone is a target that is down.

        Raises:
            UnreachableError: there is no driver, and there never was one since the start.
        """
        try:
            body = self._read_in_turn()
        except UnreachableError as error:
            if not self._answered:
                raise
            return [Scrape(self._target, None, str(error))]
        self._answered = True
        return [Scrape(self._target, body.exposition())]

    def describe(self) -> SourceDescription:
        """Say what this source is."""
        return SourceDescription(
            kind="nvml",
            name=self._settings.name or self._settings.kind,
            targets=(self._target.url,),
            interval_seconds=self._context.interval_seconds,
        )

    def close(self) -> None:
        """Stop listening and shut the library down; while a call hangs in the driver, that would hang as well."""
        if self._turn.acquire(timeout=_PATIENCE_SECONDS):
            try:
                self._stop()
            finally:
                self._turn.release()

    def _stop(self) -> None:
        if self._xids.close():
            self._gpm.close()
            self._library.stop()

    def _read_in_turn(self) -> Body:
        if not self._turn.acquire(blocking=False):
            raise UnreachableError("nvml: expected an answer, but a call of an earlier cycle still hangs in the driver")
        try:
            return self._read()
        finally:
            self._turn.release()

    def _read(self) -> Body:
        """Read once; where the driver was unloaded or reloaded meanwhile, start the library anew and read again."""
        self._library.start()
        try:
            return self._read_host()
        except DriverGoneError:
            self._stop()
            self._library.start()
        try:
            return self._read_host()
        except DriverGoneError as error:
            self._stop()
            raise UnreachableError(
                f"nvml: expected a driver that answers, got {error}; is it being reloaded?"
            ) from error

    def _read_host(self) -> Body:
        body = Body(self._book)
        count = ask_host(pynvml.nvmlDeviceGetCount)
        if count.value is None:
            raise UnreachableError(f"nvml: expected the number of cards, got {count.reason or 'no answer'}")
        facts, grants = _versions(), self._grants(body)
        branch = facts.get("driver_version", "").partition(".")[0]
        driver = whole(branch)
        self._profiles.clear()
        cards: dict[str, Any] = {}
        gpm_keys: list[Key] = []
        pids: set[int] = set()
        for index in range(count.value):
            place = body.place()
            try:
                found = identify(index)
                if found.value is None:
                    body.reject(f"card {index}: {found.reason}", "")
                    continue
                card = found.value
                read_card(card, body, facts, driver)
                if mig_is_on(card.handle):
                    keys, own = self._read_instances(card, body, grants)
                else:
                    keys, own = self._read_whole(card, body, grants)
            except LostCardError as error:
                body.cut(place)
                body.reject(f"{self._uuids.get(index, f'card {index}')}: {error}", "")
                continue
            self._uuids[index] = card.uuid
            cards[card.uuid] = card.handle
            gpm_keys += keys
            pids |= own
        self._gpm.keep_only(gpm_keys)
        self._finder.forget_all_but(pids)
        self._read_xids(cards, body)
        self._book.forget_all_but(body.series)
        return body

    def _grants(self, body: Body) -> list[Grant] | None:
        """Return the kubelet's record of devices; one that is there and cannot be read is counted."""
        self._refused = False
        try:
            return self._finder.grants()
        except UnreachableError as error:
            self._refused = True
            body.reject(str(error), "")
            return None

    def _read_whole(self, card: Identity, body: Body, grants: list[Grant] | None) -> tuple[list[Key], set[int]]:
        """Add profiling, holders and processes of a card that is not cut."""
        keys: list[Key] = []
        profiled: dict[str, Answer[float]] = {}
        if self._gpm.supports(card.uuid, card.handle):
            keys.append((card.uuid, -1))
            profiled = self._gpm.read(keys[0], lambda sample: pynvml.nvmlGpmSampleGet(card.handle, sample), METRICS)
            for name, answer in profiled.items():
                body.add(name, card.labels, answer)
        if not _tells_pcie(body, card) and not keys:
            read_pcie_samples(card, body)
        granted = [grant for grant in grants or () if grant.device == card.uuid]
        shared = any(grant.shared for grant in granted)
        for grant in granted:
            vgpu = {"vgpu": ""} if grant.shared else {}
            body.add("nvml_holder", {**card.labels, **_names(grant.owner), **vgpu}, 1.0)
        processes = self._processes.read(card.uuid, card.handle)
        if processes.reason:
            body.reject(f"{card.uuid}: processes: {processes.reason}", "")
        if processes.value is None:
            self._say_who_knows(card, body, known=grants is not None)
            return keys, set()
        pids = [process.pid for process in processes.value]
        owners = self._owners(pids, body)
        all_seen = len(owners) == len(pids)
        self._say_who_knows(card, body, known=grants is not None or all_seen)
        # Who was granted a share and runs nothing uses nothing, unless his could be a process that is not seen here.
        idle = {grant.owner for grant in granted} if all_seen else set()
        told = self._processes.tells_use[card.uuid]
        for owner, use in add_up(processes.value, owners, idle, told=told).items():
            labels = {"UUID": card.uuid, **_names(owner)}
            if use.mps or shared:
                labels["sharing"] = "mps" if use.mps else "timeslice"
            for name in ("busy", "encoder", "decoder"):
                body.add(f"nvml_process_{name}_percent", labels, Answer(getattr(use, name)))
            body.add("nvml_process_memory_bytes", labels, Answer(use.memory))
        return keys, set(pids)

    def _read_instances(self, card: Identity, body: Body, grants: list[Grant] | None) -> tuple[list[Key], set[int]]:
        """Add memory, profiling and holders of each GPU instance. Several compute instances share its memory."""
        keys: list[Key] = []
        pids: set[int] = set()
        supported = self._gpm.supports(card.uuid, card.handle)
        all_seen = True
        for handle in _instances(card.handle):
            number = ask(pynvml.nvmlDeviceGetGpuInstanceId, handle).value
            if number is None:
                continue
            profile = mig_profile(ask(pynvml.nvmlDeviceGetName, handle).value or "")
            self._profiles[card.uuid, str(number)] = profile
            labels = {**card.labels, "GPU_I_ID": str(number), "GPU_I_PROFILE": profile}
            processes = list_processes(handle)
            own = [process.pid for process in processes.value or ()]
            pids.update(own)
            found = self._owners(own, body)
            all_seen &= processes.value is not None and len(found) == len(own)
            owners = {owner for owner in found.values() if owner is not None}
            uuid = ask(pynvml.nvmlDeviceGetUUID, handle).value
            owners |= {grant.owner for grant in grants or () if grant.device == uuid}
            for owner in sorted(owners):
                body.add("nvml_holder", {**labels, **_names(owner)}, 1.0)
            if (card.uuid, number) in keys:
                continue
            read_memory(handle, labels, body, whole=False)
            keys.append((card.uuid, number))
            if supported:
                self._read_instance_gpm(card, number, labels, body)
        self._say_who_knows(card, body, known=grants is not None or all_seen)
        return keys, pids

    def _read_instance_gpm(self, card: Identity, number: int, labels: Labels, body: Body) -> None:
        def take(sample: Any) -> Any:
            return pynvml.nvmlGpmMigSampleGet(card.handle, number, sample)

        for name, answer in self._gpm.read((card.uuid, number), take, OF_INSTANCES).items():
            body.add(name, labels, answer)

    def _owners(self, pids: list[int], body: Body) -> dict[int, Owner | None]:
        """Return the owners of processes, None of a server of MPS; one that is not to be seen here is counted."""
        owners: dict[int, Owner | None] = {}
        for pid in pids:
            try:
                owners[pid] = self._finder.owner(pid)
            except ProcessLookupError:
                body.reject("process not seen here: the collector needs the host's PID namespace (hostPID)", str(pid))
        return owners

    def _say_who_knows(self, card: Identity, body: Body, *, known: bool) -> None:
        told = "known" if known and not self._refused else "unknown"  # a card may be held by who runs nothing on it
        body.add("nvml_holder", {**card.labels, "holders": told}, 1.0)

    def _read_xids(self, cards: dict[str, Any], body: Body) -> None:
        for uuid, reason in self._xids.listen(cards).items():
            body.reject(f"{uuid}: XID events: {reason}", "")
        for xid, count in sorted(self._xids.pick_up().items()):
            labels = {"UUID": xid.uuid, "xid": str(xid.code)}
            profile = self._profiles.get((xid.uuid, xid.instance))
            if profile is not None:  # else the instance is gone already, and its card has the XID
                labels |= {"GPU_I_ID": xid.instance, "GPU_I_PROFILE": profile}
            body.add("nvml_xid_new", labels, float(count))


def _versions() -> dict[str, str]:
    """Return what holds for the whole host: the driver's version, and the newest CUDA that it carries."""
    driver = ask_host(pynvml.nvmlSystemGetDriverVersion).value
    cuda = ask_host(pynvml.nvmlSystemGetCudaDriverVersion_v2).value
    said = {"driver_version": driver or ""}
    if cuda is not None:
        said["cuda_version"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    return {name: text for name, text in said.items() if text}


def _instances(handle: Any) -> Iterator[Any]:
    """Yield handles of all MIG devices; places in between may be empty, so none ends the search."""
    for place in range(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle).value or 0):
        device: Answer[Any] = ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
        if device.value is not None:
            yield device.value


def _names(owner: Owner) -> dict[str, str]:
    said = {
        "namespace": owner.namespace,
        "pod": owner.pod,
        "container": owner.container,
        "process": owner.process,
        "job": owner.job,
    }
    return {name: text for name, text in said.items() if text}


def _tells_pcie(body: Body, card: Identity) -> bool:
    return any(
        series.name == "nvml_pcie_rx_bytes_total" and series.labels["UUID"] == card.uuid
        for series in reversed(body.series)
    )
