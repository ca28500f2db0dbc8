"""Configuration of this floor: `[report]`, `[delivery]`, `[alerts]`, `[dashboard]`, `[auth]`, `[log]`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from collector.settings import Section


class ReportSettings(Section):
    """Table `[report]`: the weekly report."""

    folder: Path = Field(Path("var/reports"), description="folder that reports are written to")


class DeliverySettings(Section):
    """Table `[delivery]`: where reports are sent; it has no keys in this version."""


class AlertsSettings(Section):
    """Table `[alerts]`: who is told at once; it has no keys in this version."""


class DashboardSettings(Section):
    """Table `[dashboard]`: the web application."""

    host: str = Field("127.0.0.1", description="address that the application listens on")
    port: int = Field(8501, ge=0, le=65535, description="port that the application listens on; 0 picks a free one")


class AuthSettings(Section):
    """Table `[auth]`: who may see and approve; it has no keys in this version."""


class LogSettings(Section):
    """Table `[log]`: what the loops write to stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severity that is written")
    format: Literal["text", "json"] = Field("text", description="one line of text, or one JSON object, an entry")
