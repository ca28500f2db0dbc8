"""Pickles of containers and scalars, and of nothing else.

A pickle is a program. Here it is read by a machine that lacks every instruction that names, calls or builds anything:
what is left makes lists, tuples, dictionaries, sets, texts, bytes and numbers.
"""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any, ClassVar

_FORBIDDEN = (
    pickle.GLOBAL,
    pickle.STACK_GLOBAL,
    pickle.INST,
    pickle.OBJ,
    pickle.NEWOBJ,
    pickle.NEWOBJ_EX,
    pickle.REDUCE,
    pickle.BUILD,
    pickle.EXT1,
    pickle.EXT2,
    pickle.EXT4,
    pickle.PERSID,
    pickle.BINPERSID,
    pickle.NEXT_BUFFER,
    pickle.READONLY_BUFFER,
)
# What damaged bytes make the machine fail with.
_DAMAGED = (
    pickle.UnpicklingError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    AttributeError,
    MemoryError,
    OverflowError,
    AssertionError,
    RecursionError,
    struct.error,
)


class NotPlainError(Exception):
    """The pickle asks for more than containers and scalars."""


def load_plain(content: bytes) -> Any:
    """Return what a pickle of containers and scalars holds.

    Raises:
        NotPlainError: it asks for more; nothing of it was run.
        ValueError: it is damaged.
    """
    try:
        return _Machine(io.BytesIO(content)).load()
    except _DAMAGED as error:
        raise ValueError(str(error) or type(error).__name__) from None


def _refuse(_machine: Any) -> None:
    raise NotPlainError


# Keys must be scalars: the hash of a tuple of tuples of tuples, each twice, takes for ever.
def _set_item(machine: Any) -> None:
    _require_scalars(machine.stack[-2:-1])
    machine.load_setitem()


def _set_items(machine: Any) -> None:
    _require_scalars(machine.stack[::2])
    machine.load_setitems()


def _make_dict(machine: Any) -> None:
    _require_scalars(machine.stack[::2])
    machine.load_dict()


def _add_items(machine: Any) -> None:
    _require_scalars(machine.stack)
    machine.load_additems()


def _make_frozenset(machine: Any) -> None:
    _require_scalars(machine.stack)
    machine.load_frozenset()


def _require_scalars(keys: list[Any]) -> None:
    if not all(key is None or isinstance(key, str | bytes | int | float) for key in keys):
        raise pickle.UnpicklingError("expected texts or numbers as keys")


class _Machine(pickle._Unpickler):  # noqa: SLF001  the one in C has no table of instructions to take some from
    """Reads containers and scalars. Its memo is a dictionary: a giant index costs nothing."""

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,  # noqa: SLF001
        **{code[0]: _refuse for code in _FORBIDDEN},
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
        pickle.DICT[0]: _make_dict,
        pickle.ADDITEMS[0]: _add_items,
        pickle.FROZENSET[0]: _make_frozenset,
    }
