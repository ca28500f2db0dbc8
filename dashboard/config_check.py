"""What a valid configuration can still get wrong: names of no plug-in, times that are none, secrets in the open."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import SecretStr

from collector.errors import ConfigurationError
from collector.mappings import mapping_table
from collector.masking import mask_address
from collector.plugins import plugin_names
from collector.settings import SourceSettings
from collector.window import parse_duration
from dashboard.config import Loaded, Settings, leaves
from dashboard.config_errors import Problem, nearest
from tuner.settings import CalendarSettings

_CLOCK_TIME = re.compile(r"^([01]\d|2[0-3]):[0-5]\d$")
_CODE = re.compile(r"^TT\d{0,3}$")


def check_settings(loaded: Loaded) -> list[Problem]:
    """Return what is wrong with settings that validate, in the order of the tables."""
    settings = loaded.settings
    return [
        *_sources(settings),
        *_mappings(settings),
        *_influx(settings),
        *(problem for i, calendar in enumerate(settings.calendar) for problem in _calendar(i, calendar)),
        *_analysis(settings),
        *(
            Problem(f"[[backend]] {i + 1}", f"no backend plug-in `{backend.kind}`{_plugins('backends', backend.kind)}")
            for i, backend in enumerate(settings.backend)
            if backend.kind not in plugin_names("trimtab.backends")
        ),
        *_open_secrets(loaded),
    ]


def _plugins(group: str, name: str) -> str:
    names = plugin_names(f"trimtab.{group}")
    return f"{nearest(name, names)} (installed: {', '.join(names)})"


def _sources(settings: Settings) -> Iterator[Problem]:
    for i, source in enumerate(settings.source):
        place = f"[[source]] {i + 1}"
        if source.kind not in plugin_names("trimtab.sources"):
            yield Problem(place, f"no source plug-in `{source.kind}`{_plugins('sources', source.kind)}")
        elif source.kind == "prometheus" and not source.url:
            yield Problem(place, "expected `url`, the base address of the Prometheus server; add it")
        elif source.kind == "scrape" and not (source.targets or source.targets_file or source.dns or source.kubernetes):
            yield Problem(place, "expected `targets`, the addresses of the exporters; add at least one")
        if source.kind == "nvml":
            yield from _of_host(place, source)
        for address in (*(target.url for target in source.targets), *([source.url] if source.url else [])):
            if not address.startswith(("http://", "https://")):
                yield Problem(
                    place, f"expected an address that starts with http:// or https://, got {mask_address(address)!r}"
                )


def _of_host(place: str, source: SourceSettings) -> Iterator[Problem]:
    if source.targets or source.url:
        yield Problem(place, "an nvml source reads this host: `targets` and `url` have no effect; remove them")
    if source.library is not None and not source.library.is_file():
        yield Problem(place, f"`library`: expected a file at {source.library}, found none; correct the path")
    if not (source.host_root / "proc").is_dir():
        yield Problem(
            place, f"`host_root`: expected the host's files, {source.host_root} has no proc; correct the path"
        )
    for n, row in enumerate(source.holders, start=1):
        if not (row.container_id or {row.cgroup, row.user, row.command} - {"*"}):
            yield Problem(place, f"`holders` {n}: fits every process; name container_id, cgroup, user or command")
        if not (row.namespace or row.pod):
            yield Problem(place, f"`holders` {n}: expected `namespace` or `pod`, who holds; add one")


def _influx(settings: Settings) -> Iterator[Problem]:
    found = settings.influx
    if found.url and not found.url.startswith(("http://", "https://")):
        text = f"`url`: expected an address such as http://influx:8086, got {mask_address(found.url)!r}"
        yield Problem("[influx]", text)
    for key, path in (("token_file", found.token_file), ("ca_file", found.ca_file)):
        if found.url and path is not None and not path.is_file():
            yield Problem("[influx]", f"`{key}`: expected a file at {path}, found none; correct the path")


def _mappings(settings: Settings) -> Iterator[Problem]:
    for i, mapping in enumerate(settings.mapping):
        try:
            mapping_table((mapping,))
        except ConfigurationError as error:
            yield Problem(f"[[mapping]] {i + 1}", str(error).removeprefix("[[mapping]] "))


def _calendar(index: int, calendar: CalendarSettings) -> Iterator[Problem]:
    place = f"[[calendar]] {index + 1}"
    for key, text in (("start", calendar.start), ("end", calendar.end)):
        if not _CLOCK_TIME.match(text):
            yield Problem(place, f"`{key}`: expected a time such as 08:30, got {text!r}")
    if any(day not in range(7) for day in calendar.days):
        yield Problem(place, f"`days`: expected weekdays 0 (Monday) to 6, got {list(calendar.days)}")
    try:
        ZoneInfo(calendar.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        yield Problem(place, f"`timezone`: expected an IANA name such as Europe/Berlin, got {calendar.timezone!r}")


def _analysis(settings: Settings) -> Iterator[Problem]:
    lengths = [("analyze", "window", settings.analyze.window)]
    lengths += [("forecast", "horizons", horizon) for horizon in settings.forecast.horizons]
    for table, key, text in lengths:
        try:
            parse_duration(text)
        except ConfigurationError as error:
            yield Problem(f"[{table}]", f"`{key}`: {error}")
    for key, codes in (("select", settings.analyze.select), ("ignore", settings.analyze.ignore)):
        for code in codes:
            if not _CODE.match(code):
                yield Problem("[analyze]", f"`{key}`: expected a code or a beginning such as TT3, got {code!r}")
    for quantile in settings.forecast.quantiles:
        if not 0 < quantile < 1:
            yield Problem("[forecast]", f"`quantiles`: expected numbers between 0 and 1, got {quantile}")


def _open_secrets(loaded: Loaded) -> Iterator[Problem]:
    if loaded.path is None or not loaded.path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        return
    for key, value in leaves(loaded.settings):
        if isinstance(value, SecretStr) and value.get_secret_value() and loaded.origin(key) == "file":
            name = ".".join(str(part) for part in key)
            text = f"`{name}` is a secret in a file that others may read; set it by environment, or chmod 600 the file"
            yield Problem(str(loaded.path), text)
