"""Enforcement backends that come with the tuner, and the suite that every backend passes."""

from tuner.backends.dry_run import DryRunBackend
from tuner.backends.store_view import common_knobs, read_store

__all__ = ["DryRunBackend", "common_knobs", "read_store"]
