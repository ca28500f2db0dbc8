"""Analyzer: what it means.

Pure functions and detectors: frames in, findings, ledgers and forecasts out. Nothing here opens a file, a socket or a
store; the runner of the tuner floor hands the frames in.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict
    from analyzer.protocols import Detector, Forecaster, Partition

_WHERE = {
    "Effect": "analyzer.findings",
    "Finding": "analyzer.findings",
    "Role": "analyzer.findings",
    "SubjectRef": "analyzer.findings",
    "Verdict": "analyzer.findings",
    "Detector": "analyzer.protocols",
    "Forecaster": "analyzer.protocols",
    "Partition": "analyzer.protocols",
}

__all__ = ["Detector", "Effect", "Finding", "Forecaster", "Partition", "Role", "SubjectRef", "Verdict"]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for: the command line must not wait for pandas and pyarrow."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
