"""The configuration: one TOML file, overridden by `TRIMTAB_...` variables, with the origin of each value.

`TRIMTAB_STORE__PATH=/data` sets `path` of `[store]`; `TRIMTAB_SOURCE__0__BEARER_TOKEN` speaks of the first `[[source]]`
(secrets belong there, not in the file); a list is written as JSON. The file is the one named by `--config`, else by
`TRIMTAB_CONFIG`, else `./trimtab.toml`, else `/etc/trimtab/trimtab.toml`; without one, defaults hold.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from analyzer.settings import AnalyzeSettings, ForecastSettings
from collector.declarations import WorkloadDeclaration
from collector.errors import ConfigurationError
from collector.masking import MASK, is_secret_name, mask_address
from collector.plugins import SourceContext
from collector.settings import (
    ClusterSettings,
    InfluxSettings,
    MappingSettings,
    SourceSettings,
    StoreSettings,
    TenantSettings,
)
from dashboard.config_errors import Problem, problems_of
from dashboard.settings import (
    AlertsSettings,
    AuthSettings,
    DashboardSettings,
    DeliverySettings,
    LogSettings,
    ReportSettings,
)
from tuner.settings import BackendSettings, CalendarSettings, PriceSettings, StateSettings, TunerSettings

ENV_PREFIX = "TRIMTAB_"
ENV_DELIMITER = "__"
_LAST_INDEX = 999  # of a list that variables speak of item by item
SEARCHED = (Path("trimtab.toml"), Path("/etc/trimtab/trimtab.toml"))

Origin = Literal["file", "environment", "default"]
KeyPath = tuple[str | int, ...]


class Settings(BaseSettings):
    """All tables. `load_settings` fills it from file and environment; `Settings()` itself holds the defaults."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix=ENV_PREFIX, env_nested_delimiter=ENV_DELIMITER
    )

    cluster: ClusterSettings = Field(default_factory=ClusterSettings)
    source: tuple[SourceSettings, ...] = ()
    mapping: tuple[MappingSettings, ...] = ()
    store: StoreSettings = Field(default_factory=StoreSettings)
    influx: InfluxSettings = Field(default_factory=InfluxSettings)
    state: StateSettings = Field(default_factory=StateSettings)
    tenant: tuple[TenantSettings, ...] = ()
    workload: tuple[WorkloadDeclaration, ...] = ()
    calendar: tuple[CalendarSettings, ...] = ()
    analyze: AnalyzeSettings = Field(default_factory=AnalyzeSettings)
    forecast: ForecastSettings = Field(default_factory=ForecastSettings)
    tuner: TunerSettings = Field(default_factory=TunerSettings)
    backend: tuple[BackendSettings, ...] = ()
    price: tuple[PriceSettings, ...] = ()
    report: ReportSettings = Field(default_factory=ReportSettings)
    delivery: DeliverySettings = Field(default_factory=DeliverySettings)
    alerts: AlertsSettings = Field(default_factory=AlertsSettings)
    dashboard: DashboardSettings = Field(default_factory=DashboardSettings)
    auth: AuthSettings = Field(default_factory=AuthSettings)
    log: LogSettings = Field(default_factory=LogSettings)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  the library's signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read nothing behind the caller's back: `load_settings` merges the sources and knows what came from where."""
        return (init_settings,)


def source_context(source: SourceSettings, settings: Settings, interval_seconds: float) -> SourceContext:
    """Return what a source knows beside its own table; its cluster goes before that of the installation."""
    return SourceContext(
        cluster=source.cluster or settings.cluster.name,
        interval_seconds=interval_seconds,
        declarations=settings.workload,
        tenants=settings.tenant,
        mappings=settings.mapping,
    )


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, the file they were read from (None: none), and where each value that is no default came from."""

    settings: Settings
    path: Path | None = None
    origins: Mapping[KeyPath, Origin] = field(default_factory=dict)

    def origin(self, key: KeyPath) -> Origin:
        """Return where the value at `key`, such as `("store", "path")`, came from."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.origins:
                return self.origins[key[:length]]
        return "default"


def find_file(given: Path | None) -> Path | None:
    """Return the configuration file that counts, or None where there is none.

    Raises:
        ConfigurationError: the file that was named by option or variable does not exist.
    """
    for named, by in ((given, "--config"), (_path_from_environment(), f"{ENV_PREFIX}CONFIG")):
        if named is not None:
            if not named.is_file():
                raise ConfigurationError(f"expected a TOML file at {named} ({by}), found none; correct the path")
            return named
    return next((path for path in SEARCHED if path.is_file()), None)


def load_settings(given: Path | None = None) -> Loaded:
    """Read the configuration.

    Args:
        given: the file that was asked for; None searches the usual places.

    Raises:
        ConfigurationError: the file or a variable is wrong; the first problem is named, and how many follow.
    """
    loaded = read_settings(given)
    if isinstance(loaded, Loaded):
        return loaded
    more = f" (and {len(loaded) - 1} more: trimtab config check)" if len(loaded) > 1 else ""
    raise ConfigurationError(f"{loaded[0]}{more}")


def read_settings(given: Path | None = None) -> Loaded | list[Problem]:
    """Read the configuration; where it is wrong, return every problem instead.

    Raises:
        ConfigurationError: the file cannot be read or is no TOML, so that nothing can be said about its keys.
    """
    path = find_file(given)
    from_file = _read_file(path)
    from_environment = _read_environment(from_file)
    strangers = _unknown_variables()
    values = merge(from_file, from_environment)
    try:
        settings = Settings(**values)
    except ValidationError as error:
        return strangers + problems_of(error, Settings, path, from_environment)
    if strangers:
        return strangers
    origins: dict[KeyPath, Origin] = dict.fromkeys((key for key, _ in leaves(from_file)), "file")
    origins |= dict.fromkeys((key for key, _ in leaves(from_environment)), "environment")
    return Loaded(settings, path, origins)


def merge(below: Any, above: Any) -> Any:
    """Lay one tree of values over another: tables key by key, an `{index: value}` table over the list it speaks of."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {key: merge(below.get(key), above[key]) if key in above else below[key] for key in {**below, **above}}
    if isinstance(above, dict) and above and all(isinstance(key, int) for key in above):
        items = list(below) if isinstance(below, list) else []
        items += [{} for _ in range(len(items), max(above) + 1)]
        return [merge(item, above[i]) if i in above else item for i, item in enumerate(items)]
    return above


def leaves(value: Any, at: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield (path, value) of every value in a tree of tables; lists of plain values are one value."""
    if isinstance(value, BaseModel):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, (*at, key))
    elif isinstance(value, list | tuple) and value and any(isinstance(item, dict | BaseModel) for item in value):
        for index, item in enumerate(value):
            yield from leaves(item, (*at, index))
    elif at:
        yield at, value


def shown(value: Any, key: str | int = "") -> Any:
    """Turn the setting named `key` into a JSON value; secrets, and passwords inside addresses, are masked."""
    if value and (isinstance(value, SecretStr) or is_secret_name(key)):
        return MASK
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    if isinstance(value, dict):
        return {str(name): shown(item, name) for name, item in value.items()}
    if isinstance(value, str):
        return mask_address(str(value))
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def _path_from_environment() -> Path | None:
    text = os.environ.get(f"{ENV_PREFIX}CONFIG", "")
    return Path(text) if text else None


def _read_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return TomlConfigSettingsSource(Settings, toml_file=path)()
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: expected TOML: {error}; correct that place") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: expected UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None


def _read_environment(from_file: dict[str, Any]) -> dict[str, Any]:
    try:
        values = EnvSettingsSource(Settings)()
    except SettingsError as error:
        raise ConfigurationError(f"environment: expected JSON for a list or table: {error}") from None
    return {name: _index_lists(value, from_file.get(name), (name,)) for name, value in values.items()}


def _index_lists(value: Any, below: Any, at: KeyPath) -> Any:
    """Read `{"0": ...}` as speaking of list items, where a list lies below or nothing does."""
    if not isinstance(value, dict):
        return value
    if value and all(key.isascii() and key.isdecimal() for key in value) and not isinstance(below, dict):
        items = below if isinstance(below, list) else []
        found = {}
        for key, item in value.items():
            index = _index(key, (*at, key))
            inner = _index_lists(item, items[index] if index < len(items) else None, (*at, key))
            found[index] = _read_item(inner, (*at, key))
        return found
    table = below if isinstance(below, dict) else {}
    return {key: _index_lists(item, table.get(key), (*at, key)) for key, item in value.items()}


def _index(key: str, at: KeyPath) -> int:
    digits = key.lstrip("0") or "0"
    if len(digits) > len(str(_LAST_INDEX)):
        raise ConfigurationError(
            f"environment {_variable(at)}: expected an index from 0 to {_LAST_INDEX}, got one of {len(digits)} digits"
        )
    return int(digits)


def _read_item(value: Any, at: KeyPath) -> Any:
    """Read JSON lists and tables inside a list item, which the library leaves as text there; a secret stays text."""
    if isinstance(value, dict):
        return {key: _read_item(item, (*at, key)) for key, item in value.items()}
    if isinstance(value, str) and value[:1] in ("[", "{") and not is_secret_name(at[-1]):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise ConfigurationError(
                f"environment {_variable(at)}: expected JSON for a list or table: {error.msg} "
                f"at character {error.pos + 1}; correct that variable"
            ) from None
    return value


def _variable(at: KeyPath) -> str:
    return ENV_PREFIX + ENV_DELIMITER.join(str(part) for part in at).upper()


def _unknown_variables() -> list[Problem]:
    """Report variables such as TRIMTAB_STROE__PATH, which speak of a table that does not exist."""
    found = []
    for variable in sorted(os.environ):
        table, delimiter, _ = variable.removeprefix(ENV_PREFIX).lower().partition(ENV_DELIMITER)
        if variable.startswith(ENV_PREFIX) and delimiter and table not in Settings.model_fields:
            found.append(Problem.unknown(f"environment {variable}", "table", table, Settings.model_fields))
    return found
