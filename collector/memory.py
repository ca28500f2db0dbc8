"""How this process takes memory from the system, and gives it back."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_ARENA_MAX = -8  # of glibc's malloc.h
_NOT_THERE = (OSError, AttributeError)  # another C library, or none that can be asked


def one_heap_for_all_threads() -> None:
    """Let all threads take large blocks from one heap, where the C library is glibc.

    Else each thread that reads a body has a heap of its own, and keeps what it took: with 8 bodies of 20,000 lines
    that is 130 MB, for locks that threads under one interpreter lock hardly ever wait for. Arrow's own allocator keeps
    what each thread took likewise.
    """
    import pyarrow as pa  # noqa: PLC0415  the command line knows this module without it

    pa.set_memory_pool(pa.system_memory_pool())
    with suppress(*_NOT_THERE):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def give_back_free_memory() -> None:
    """Give back what lies free between blocks in use, where the C library is glibc, which keeps it by itself.

    Worth its milliseconds after work that took far more than it leaves, such as learning what a target says.
    """
    with suppress(*_NOT_THERE):
        ctypes.CDLL(None).malloc_trim(0)
