"""Fixtures that all floors use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.register_assert_rewrite("collector.conformance", "tuner.backends.conformance")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Folder of reference captures and data; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("TRIMTAB_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"needs the reference data folder (set TRIMTAB_SHARED; looked in {folder})")
    return folder


@pytest.fixture(scope="session")
def cases_dir() -> Path:
    """Folder of worked cases (`TRIMTAB_CASES`)."""
    folder = os.environ.get("TRIMTAB_CASES")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs the worked cases (set TRIMTAB_CASES to their folder)")
    return Path(folder)
