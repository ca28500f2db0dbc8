"""Collector: what happened.

Sources (exporters, a Prometheus, logs, the simulator) are read into batches of wide rows in one schema, joined with
their holders, and written to the store. Nothing here judges: absent stays absent, and what was rejected is counted.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collector.batch import Batch, Event, Fact, Reject, Subject
    from collector.clock import Clock, SystemClock, VirtualClock
    from collector.errors import ConfigurationError, InputRejectedError, TrimtabError, UnreachableError
    from collector.protocols import Source, Store, StoreReader
    from collector.window import Window

_WHERE = {
    "Batch": "collector.batch",
    "Event": "collector.batch",
    "Fact": "collector.batch",
    "Reject": "collector.batch",
    "Subject": "collector.batch",
    "Clock": "collector.clock",
    "SystemClock": "collector.clock",
    "VirtualClock": "collector.clock",
    "ConfigurationError": "collector.errors",
    "InputRejectedError": "collector.errors",
    "TrimtabError": "collector.errors",
    "UnreachableError": "collector.errors",
    "Source": "collector.protocols",
    "Store": "collector.protocols",
    "StoreReader": "collector.protocols",
    "Window": "collector.window",
}

__all__ = [
    "Batch",
    "Clock",
    "ConfigurationError",
    "Event",
    "Fact",
    "InputRejectedError",
    "Reject",
    "Source",
    "Store",
    "StoreReader",
    "Subject",
    "SystemClock",
    "TrimtabError",
    "UnreachableError",
    "VirtualClock",
    "Window",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for: the command line must not wait for pandas and pyarrow."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
