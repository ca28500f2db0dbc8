"""Configuration of this floor: `[analyze]`, `[forecast]`."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from collector.settings import Section

HERE = "here"
PROCESSES = re.compile(r"processes(?::([1-9]\d{0,3}))?")
SCHEDULER = re.compile(r"(?:tcp|tls|ws|wss)://\S+")


class AnalyzeSettings(Section):
    """Table `[analyze]`: thresholds of the detectors; each code's page says what they do."""

    window: str = Field("2d", description="window that is analysed, such as 6h or 2d")
    select: tuple[str, ...] = Field((), description="codes or prefixes to run (TT1, TT301); empty: all")
    ignore: tuple[str, ...] = Field((), description="codes or prefixes to leave out")
    coverage_floor: float = Field(0.5, ge=0, le=1, description="coverage below which no verdict is given")
    fdr: float = Field(0.005, gt=0, lt=1, description="false-discovery rate over all tested pairs of the fleet")
    contention_effect_floor: float = Field(0.02, ge=0, description="smallest slow-down that is reported, as a ratio")
    sharing_slowdown_limit: float = Field(
        0.25, gt=0, description="slow-down by which two workloads must not share a card (TT111), as a ratio"
    )
    sharing_compute_cost_limit: float = Field(
        0.15, gt=0, lt=1, description="part of its work per granted SM-second that sharing may cost a workload (TT112)"
    )
    sharing_bandwidth_cost_limit: float = Field(
        0.20, gt=0, lt=1, description="the same of a workload that memory bandwidth limits (TT112)"
    )
    idle_activity: float = Field(0.01, ge=0, le=1, description="activity below which a slice is idle")
    idle_minutes: float = Field(60.0, gt=0, description="idle for so long while held: TT301, in minutes")
    abandoned_hours: float = Field(24.0, gt=0, description="idle for so long while held: abandoned (TT302), in hours")
    over_provisioned_share: float = Field(0.5, gt=0, lt=1, description="peak use of a quota below which TT311 speaks")
    executor: str = Field(
        HERE,
        description="where nodes are measured: here, processes, processes:N, or a Dask scheduler (tcp://host:8786)",
    )
    move_minutes: float = Field(
        5.0, ge=0, description="how long a workload that is moved is away: drained, moved, started again"
    )

    @field_validator("executor")
    @classmethod
    def _names_one(cls, executor: str) -> str:
        if executor != HERE and not PROCESSES.fullmatch(executor) and not SCHEDULER.fullmatch(executor):
            raise ValueError(
                "`executor`: expected here, processes, processes:N or the address of a Dask scheduler by tcp, tls, ws "
                f"or wss, got {executor!r}"
            )
        return executor


class ForecastSettings(Section):
    """Table `[forecast]`: what the models learn from, and how far they look."""

    step_minutes: float = Field(5.0, gt=0, description="grid of the history, in minutes")
    history_days: float = Field(28.0, gt=0, description="how far back the models learn, in days")
    quantiles: tuple[float, ...] = Field((0.1, 0.5, 0.9, 0.975), description="quantiles that are forecast")
    horizons: tuple[str, ...] = Field(("1h", "6h", "24h"), description="horizons that are forecast")
