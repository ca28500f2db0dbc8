"""XIDs as the driver reports them, caught by a thread that waits on the driver's event set.

The driver keeps few events, so they are taken as they come; a cycle only picks up the counts and waits for nothing.
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pynvml

from collector.nvml.binding import Answer, DriverGoneError, ask_host

# How long one wait lasts: as long as stopping may take. After an error that comes at once, the pause.
_WAIT_MILLISECONDS = 250
_PAUSE_SECONDS = 1.0
_PATIENCE_SECONDS = 2.0
_NO_INSTANCE = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, order=True)
class Xid:
    """An XID of a card, or of one instance of it (empty: the card)."""

    uuid: str
    instance: str
    code: int


class XidListener:
    """Counts XIDs until they are picked up."""

    def __init__(self) -> None:
        self._set: Any = None
        self._uuids: dict[int, str] = {}  # address of a card's handle -> UUID
        self._counts: Counter[Xid] = Counter()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def listen(self, handles: Mapping[str, Any]) -> dict[str, str]:
        """Listen to cards that are not listened to yet; return why one cannot be, by UUID.

        Raises:
            DriverGoneError: the driver is gone.
        """
        problems: dict[str, str] = {}
        fresh = {uuid: handle for uuid, handle in handles.items() if _address(handle) not in self._uuids}
        if not fresh:
            return problems
        if self._set is None:
            created: Answer[Any] = ask_host(pynvml.nvmlEventSetCreate)
            if created.value is None:
                return dict.fromkeys(fresh, created.reason) if created.reason else problems
            self._set = created.value
        for uuid, handle in fresh.items():
            kind = pynvml.nvmlEventTypeXidCriticalError
            registered: Answer[Any] = ask_host(pynvml.nvmlDeviceRegisterEvents, handle, kind, self._set)
            if registered.reason:
                problems[uuid] = registered.reason  # tried again in the next cycle
            else:
                self._uuids[_address(handle)] = uuid
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._work, name="nvml-xids", daemon=True)
            self._thread.start()
        return problems

    def pick_up(self) -> dict[Xid, int]:
        """Return how often each XID came since the last call."""
        with self._lock:
            counts, self._counts = dict(self._counts), Counter()
        return counts

    def close(self) -> bool:
        """Stop listening; say whether the thread has ended: it has not where its wait hangs in the driver."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE_SECONDS)
            if self._thread.is_alive():
                return False
            self._thread = None
        if self._set is not None:
            with suppress(DriverGoneError):  # and the set with it
                ask_host(pynvml.nvmlEventSetFree, self._set)
            self._set = None
        self._uuids.clear()
        return True

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, _WAIT_MILLISECONDS)
            except pynvml.NVMLError as error:
                if int(error.value) != pynvml.NVML_ERROR_TIMEOUT:
                    self._stop.wait(_PAUSE_SECONDS)  # a lost card makes each wait end at once
                continue
            uuid = self._uuids.get(_address(event.device))
            if uuid is None or event.eventType != pynvml.nvmlEventTypeXidCriticalError:
                continue
            instance = "" if event.gpuInstanceId == _NO_INSTANCE else str(event.gpuInstanceId)
            with self._lock:
                self._counts[Xid(uuid, instance, int(event.eventData))] += 1


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
