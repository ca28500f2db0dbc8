"""Configuration of this floor: `[state]`, `[tuner]`, `[[backend]]`, `[[calendar]]`, `[[price]]`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from collector.settings import Section
from tuner.model import Mode


class StateSettings(Section):
    """Table `[state]`: findings, plans, approvals, journal, suppressions."""

    url: str = Field("", description="SQLAlchemy address; empty: a SQLite file beside the store")
    path: Path = Field(Path("var/state.db"), description="the SQLite file, where url is empty")
    kill_switch: Path = Field(Path("var/PAUSED"), description="the kill switch: a file that works without the database")
    plan_days: float = Field(
        30.0, gt=0, description="plans of which nothing was carried out or answered are kept so long; the journal stays"
    )


class ModeSettings(Section):
    """One `[[tuner.modes]]` table: another mode for some cluster, tenant or kind of change; the first match wins."""

    cluster: str = Field("*", description="glob on the cluster")
    tenant: str = Field("*", description="glob on the tenant that is changed")
    kind: str = Field("*", description="glob on the kind of change: give, reserve, queue, right_size, fast, probe")
    mode: Mode = Field(description="recommend, approve or auto")


class TunerSettings(Section):
    """Table `[tuner]`: how far the tuner may go, and what holds it back."""

    mode: Mode = Field(Mode.RECOMMEND, description="recommend, approve or auto")
    modes: tuple[ModeSettings, ...] = Field((), description="other modes for a cluster, tenant or kind of change")
    cycle_seconds: float = Field(300.0, gt=0, description="one full cycle, in seconds")
    analyze_seconds: float = Field(21600.0, gt=0, description="findings that plans rest on are renewed so often")
    fast_seconds: float = Field(60.0, gt=0, description="one pass of the fast path, in seconds")
    reserve_quantile: float = Field(0.9, gt=0.5, lt=1, description="quantile of forecast demand kept for online work")
    reserve_margin: float = Field(0.15, ge=0, description="added to that quantile, as a share of it")
    step_limit: float = Field(0.5, gt=0, le=1, description="largest change of a compute share at once, of the card")
    dead_band: float = Field(0.1, ge=0, description="relative change below which nothing is done")
    cooldown_seconds: float = Field(900.0, ge=0, description="rest after a change of the same target, in seconds")
    changes_per_hour: int = Field(60, ge=0, description="budget of changes for the whole fleet; 0 freezes")
    changes_per_gpu_hour: int = Field(6, ge=0, description="budget of changes for one card")
    changes_per_tenant_hour: int = Field(30, ge=0, description="budget of changes for one tenant")
    restarts_per_hour: int = Field(8, ge=0, description="budget of changes that restart work")
    evictions_per_hour: int = Field(4, ge=0, description="budget of predicted evictions for the whole fleet")
    stabilisation_seconds: float = Field(
        300.0, ge=0, description="after a start nothing is lowered before the tuner has watched for so long"
    )
    blacklist_seconds: float = Field(
        3600.0, ge=0, description="after a rollback the same change is not tried again for so long, doubling a time"
    )
    approval_seconds: float = Field(86400.0, gt=0, description="how long a change waits for an answer, and is approved")
    max_age_seconds: float = Field(180.0, gt=0, description="inputs older than this hold the cycle")
    coverage_floor: float = Field(0.8, ge=0, le=1, description="coverage below which a subject is left alone")
    confidence_floor: float = Field(0.5, ge=0, le=1, description="confidence below which advice is only written down")
    oversubscription: float = Field(1.0, ge=1, description="most that reserves and offline shares of a card may sum to")
    memory_margin: float = Field(0.1, ge=0, description="headroom above the peak seen, when memory is right-sized")
    auto_restart_offline: bool = Field(False, description="auto may make changes that restart offline work")
    auto_evict: bool = Field(False, description="auto may make changes that let the scheduler evict")
    protected: tuple[str, ...] = Field((), description="globs on tenant/workload that are never changed")
    verify_seconds: float = Field(900.0, gt=0, description="how long a change is watched before it is kept")
    probe_pairs: int = Field(
        40, ge=0, description="most pairs of blocks of a probe (a throttling trial that a person consents to); 0: none"
    )
    probe_depth: float = Field(0.75, gt=0, lt=1, description="share of a suspect's compute that a probe takes away")
    probe_hours: float = Field(12.0, gt=0, description="longest time of a probe, in hours")
    regression_limit: float = Field(0.05, gt=0, description="loss of kept requests that rolls a change back")


class BackendSettings(Section):
    """One `[[backend]]` table: what carries changes out."""

    kind: str = Field("dry-run", description="plug-in name of the enforcement backend")
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="what a plug-in of another package asks for; its own page says what"
    )


class CalendarSettings(Section):
    """One `[[calendar]]` table: spans in which nothing is changed."""

    name: str = Field(description="a name for the journal")
    days: tuple[int, ...] = Field((0, 1, 2, 3, 4, 5, 6), description="weekdays, Monday is 0")
    start: str = Field("00:00", description="start, HH:MM, in `timezone`")
    end: str = Field("00:00", description="end, HH:MM; equal to start: the whole day")
    timezone: str = Field("UTC", description="IANA name")
    freeze: bool = Field(True, description="no changes within the span")


class PriceSettings(Section):
    """One `[[price]]` table: what a card costs."""

    model: str = Field("*", description="glob on the card's model")
    per_gpu_hour: float = Field(gt=0, description="price of one card for one hour")
    currency: str = Field("USD", description="ISO 4217 code")
