"""Collector: what happened.

Sources (exporters, a Prometheus, logs, the simulator) are read into batches of wide rows in one schema, joined with
their holders, and written to the store. Nothing here judges: absent stays absent, and what was rejected is counted.
"""

from collector.batch import Batch, Event, Fact, Reject, Subject
from collector.clock import Clock, SystemClock, VirtualClock
from collector.errors import ConfigurationError, InputRejectedError, TrimtabError, UnreachableError
from collector.protocols import Source, Store, StoreReader
from collector.window import Window

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
