"""Plug-ins: sources, stores and others found by entry point, built-in ones and third-party ones in the same way."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from collector.declarations import WorkloadDeclaration
from collector.errors import ConfigurationError
from collector.settings import MappingSettings, TenantSettings
from collector.sharding import Shard


@dataclass(frozen=True, slots=True)
class SourceContext:
    """What every source knows beside its own table.

    cluster: name of the cluster, the first part of each row's identity.
    interval_seconds: length of a cycle; rows stand on this grid.
    declarations, tenants, mappings: the tables `[[workload]]`, `[[tenant]]`, `[[mapping]]`.
    simulated: the source is a simulation; a fact of the cluster says so. Exporters may say it themselves.
    shard: which of several collectors this is; None: the only one.
    """

    cluster: str = "default"
    interval_seconds: float = 60.0
    declarations: tuple[WorkloadDeclaration, ...] = ()
    tenants: tuple[TenantSettings, ...] = ()
    mappings: tuple[MappingSettings, ...] = ()
    simulated: bool = False
    shard: Shard | None = None


def plugin_names(group: str) -> tuple[str, ...]:
    """Return the names that are installed in an entry-point group such as `trimtab.sources`, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=group)}))


def load_plugin(group: str, name: str) -> Any:
    """Return the class or function that is registered as `name` in `group`.

    Raises:
        ConfigurationError: nothing of that name is installed, or its import fails.
    """
    found = entry_points(group=group, name=name)
    if not found:
        known = ", ".join(plugin_names(group)) or "none"
        raise ConfigurationError(f"expected a plug-in of {group} (installed: {known}), got {name!r}")
    point = next(iter(found))
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"plug-in {name!r} of {group} ({point.value}) cannot be loaded: {error}") from error
