"""NVML's library: loaded, started, started anew after the driver was; each answer a value, absent, or invalid.

A function that a driver lacks or a card does not support has no answer (absent). Any other error is an invalid sample
with its reason. Two kinds are more than that: a lost card answers nothing more, and a driver that is gone ends all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import pynvml

from collector.errors import UnreachableError

T = TypeVar("T")

_ABSENT = frozenset(
    (
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
    )
)
_LOST = frozenset((pynvml.NVML_ERROR_GPU_IS_LOST,))
_GONE = frozenset(
    (
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    )
)
_REASONS = {
    getattr(pynvml, name): name.removeprefix("NVML_ERROR_").lower()
    for name in dir(pynvml)
    if name.startswith("NVML_ERROR_")
}
_ADVICE = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 was not found: is the NVIDIA driver installed here? "
    "Else name the library with `library`",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the library is there but no driver is loaded: modprobe nvidia",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was replaced under this process: restart it "
    "(and the host, if nvidia-smi fails as well)",
    pynvml.NVML_ERROR_GPU_NOT_FOUND: "the driver sees no card that it supports: lspci -d 10de: shows what is there",
    pynvml.NVML_ERROR_NO_PERMISSION: "this user may not open /dev/nvidiactl",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "this driver is too old: nvmlInitWithFlags came with 384",
}
# A list may grow between the call that asks for its size and the one that reads it.
_GROWING_TRIES = 3


class LostCardError(Exception):
    """The card does not answer any more: it fell off the bus, or was taken away."""


class DriverGoneError(Exception):
    """The driver was unloaded, or replaced by another version; the library must be started anew."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """A value; without one: absent, or invalid where there is a reason."""

    value: T | None = None
    reason: str = ""

    def map(self, convert: Callable[[T], float]) -> Answer[float]:
        """Return the converted value, or why there is none."""
        return Answer(None, self.reason) if self.value is None else Answer(convert(self.value))


def ask(function: Callable[..., T], *arguments: object) -> Answer[T]:
    """Call a function of the binding.

    Raises:
        LostCardError: the card is lost.
        DriverGoneError: the driver is.
    """
    for left in reversed(range(_GROWING_TRIES)):
        try:
            return Answer(function(*arguments))
        except pynvml.NVMLError as error:
            code = int(error.value)
            if code == pynvml.NVML_ERROR_INSUFFICIENT_SIZE and left:
                continue
            return answer_of(code)
        except UnicodeDecodeError:  # the binding decodes names and serial numbers as it finds them
            return Answer(None, "not_text")
    raise AssertionError("the last try returns")


def ask_host(function: Callable[..., T], *arguments: object) -> Answer[T]:
    """Call a function that is of no card: one that is lost makes it invalid, no more.

    Raises:
        DriverGoneError: the driver is gone.
    """
    try:
        return ask(function, *arguments)
    except LostCardError as error:
        return Answer(None, str(error))


def answer_of(code: int) -> Answer[T]:
    """Return what an error code is: absent, or invalid.

    Raises:
        LostCardError: the card is lost.
        DriverGoneError: the driver is.
    """
    if code in _LOST:
        raise LostCardError(reason_of(code))
    if code in _GONE:
        raise DriverGoneError(reason_of(code))
    return Answer() if code in _ABSENT else Answer(None, reason_of(code))


def reason_of(code: int) -> str:
    """Return the short name of an error code, such as `gpu_is_lost`."""
    return _REASONS.get(code, f"nvml_error_{code}")


def first(answers: Iterable[Answer[T]]) -> Answer[T]:
    """Return the first answer that is not absent."""
    return next((answer for answer in answers if answer.value is not None or answer.reason), Answer())


class Library:
    """NVML, started and stopped. The binding keeps one library for the whole process.

    Args:
        path: the library's file; None: found by the loader as libnvidia-ml.so.1.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._started = False

    def start(self) -> None:
        """Load and start the library, unless it is.

        Raises:
            UnreachableError: there is no library, no driver, or no permission; one line says what to do.
        """
        if self._started:
            return
        try:
            if self._path is not None and pynvml.nvmlLib is None:
                pynvml.nvmlLib = ctypes.CDLL(str(self._path))
            pynvml.nvmlInit()
        except OSError as error:
            raise UnreachableError(f"nvml: expected the library {self._path}, got {error}") from error
        except pynvml.NVMLError as error:
            code = int(error.value)
            said = _ADVICE.get(code, "nvidia-smi may say more")
            raise UnreachableError(f"nvml: expected a driver that answers, got {reason_of(code)}; {said}") from error
        self._started = True

    def stop(self) -> None:
        """Shut the library down, unless it is; errors of a driver that is gone do not matter."""
        if not self._started:
            return
        self._started = False
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            if int(error.value) not in _GONE | _ABSENT | {pynvml.NVML_ERROR_UNKNOWN}:
                raise
