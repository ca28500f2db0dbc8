"""Analyzer: what it means.

Pure functions and detectors: frames in, findings, ledgers and forecasts out. Nothing here opens a file, a socket or a
store; the runner of the tuner floor hands the frames in.
"""

from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict
from analyzer.protocols import Detector, Forecaster, Partition

__all__ = ["Detector", "Effect", "Finding", "Forecaster", "Partition", "Role", "SubjectRef", "Verdict"]
