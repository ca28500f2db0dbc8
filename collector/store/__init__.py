"""The stores: the embedded one on disk, its read half over frames in memory, and rows as files."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collector.store.embedded import EmbeddedStore
    from collector.store.files import export_rows, load_rows
    from collector.store.frame import FrameStore

_WHERE = {
    "EmbeddedStore": "collector.store.embedded",
    "FrameStore": "collector.store.frame",
    "export_rows": "collector.store.files",
    "load_rows": "collector.store.files",
}

__all__ = ["EmbeddedStore", "FrameStore", "export_rows", "load_rows"]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for: who writes rows has no use for pandas."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
