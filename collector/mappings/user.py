"""The user's own mappings: single metrics of `[[mapping]]` tables, and whole exporters in files that they name."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from collector.errors import ConfigurationError
from collector.mappings.tables import (
    ExporterMapping,
    MappingTable,
    MetricRow,
    Nature,
    Subject,
    builtin_exporters,
)
from collector.settings import MappingSettings
from collector.units import nearest

# What a user maps goes before what came with the product.
_PREFERENCE = -1
_SUBJECTS: dict[str, Subject] = {"gpu": "device", "slice": "server", "node": "node"}
# Labels by which the exporters that we know name a card; a user's own exporter may take any of them.
_UUIDS = ("UUID", "uuid", "gpu_uuid", "device_uuid", "deviceuuid")


def mapping_table(user: Sequence[MappingSettings] = ()) -> MappingTable:
    """Return the built-in rows with the user's rows and files before them.

    Raises:
        ConfigurationError: a row names a field or a unit that does not exist, or a file is none of a mapping.
    """
    return MappingTable([*(own for settings in user for own in _own(settings)), *builtin_exporters()])


def load_exporter(path: Path) -> ExporterMapping:
    """Return the exporter that a file describes, in the format of the tables in `collector/mappings`.

    Raises:
        ConfigurationError: the file cannot be read, is no TOML, or has a row that makes no sense; names the place.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"[[mapping]] {path}: expected a TOML file of a mapping, got {error}") from error
    document.setdefault("exporter", path.stem)
    document.setdefault("preference", _PREFERENCE)
    try:
        return ExporterMapping.model_validate(document)
    except ValidationError as error:
        raise ConfigurationError(f"[[mapping]] {path}: {_first_problem(error, document)}") from error


def _own(settings: MappingSettings) -> Iterator[ExporterMapping]:
    if settings.file:
        yield load_exporter(Path(settings.file))
        return
    is_mean = settings.counter and settings.field == "step_seconds"
    nature: Nature = "mean" if is_mean else "counter" if settings.counter else "gauge"
    row: dict[str, Any] = {
        "metric": (settings.metric,),
        "measurement": settings.measurement,
        "field": settings.field,
        "nature": nature,
        "where": dict(text.split("=", maxsplit=1) for text in settings.where),
        "adds_up": settings.adds_up,
    }
    row |= {"unit": settings.unit} if settings.unit else {"scale": settings.scale}
    try:
        metric = MetricRow.model_validate(row)
    except ValidationError as error:
        raise ConfigurationError(f"[[mapping]] {_first_problem(error, row)}") from error
    yield ExporterMapping(
        exporter="user",
        subject=settings.subject or _SUBJECTS[metric.measurement],
        preference=_PREFERENCE,
        uuid=_UUIDS,
        index=("gpu",),
        model=("modelName",),
        node=("node", "Hostname", "hostname", "kubernetes_node"),
        metric=(metric,),
    )


def _first_problem(error: ValidationError, document: dict[str, Any]) -> str:
    """Return the first thing that is wrong, with its place: the number of the row and its metric."""
    details = error.errors()[0]
    location = details["loc"]
    rows = document.get("metric")
    place = ""
    if len(location) > 1 and location[0] == "metric" and isinstance(rows, list):
        number = int(location[1])
        names = rows[number].get("metric") if isinstance(rows[number], dict) else None
        place = f"[[metric]] {number + 1}" + (f" ({', '.join(map(str, names))})" if isinstance(names, list) else "")
        location = location[2:]
    key = ".".join(map(str, location))
    if details["type"] == "extra_forbidden":
        model = MetricRow if place else ExporterMapping
        text = f"unknown key `{key}`{nearest(key, model.model_fields)}"
    elif details["type"] == "value_error":
        text = details["msg"].removeprefix("Value error, ")
    else:
        text = f"`{key}`: {details['msg']}"
    return f"{place}: {text}" if place else text
