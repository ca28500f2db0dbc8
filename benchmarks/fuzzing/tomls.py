"""TOML: users' files of mappings, and the configuration."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fuzzing import words
from collector.errors import ConfigurationError
from collector.mappings import MappingTable
from collector.mappings.user import load_exporter
from collector.schema import MEASUREMENTS
from collector.units import UNITS, fits
from dashboard.config import load_settings

_FIELDS = [
    (name, field.name, unit)
    for name in ("gpu", "slice", "node")
    for field in MEASUREMENTS[name].fields
    for unit in UNITS
    if fits(unit, field, counter=False)
]


def check_mapping(random: Random) -> None:
    """Load a file of mappings: each row goes to its field with its unit's factor; a spoilt file is one clear error."""
    rows, wanted = [], {}
    for n in range(random.randint(1, 8)):
        measurement, field, unit = random.choice(_FIELDS)
        metric = f"{words.name(random, ':')}_{n}"
        labels = {words.name(random): words.text(random) for _ in range(random.randint(0, 2))}
        lines = [f"metric = {_toml([metric])}", f"measurement = {_toml(measurement)}", f"field = {_toml(field)}"]
        lines.append(f"unit = {_toml(unit)}")
        if labels:
            lines.append("where = { " + ", ".join(f"{k} = {_toml(v)}" for k, v in labels.items()) + " }")
        random.shuffle(lines)
        rows.append("[[metric]]\n" + "\n".join(lines) + "\n")
        wanted[metric] = (field, UNITS[unit][1], labels)
    text = f"subject = {_toml(random.choice(['device', 'server', 'node', 'container']))}\n" + "\n".join(rows)
    exporter = _load(text)
    words.require(exporter is not None, "a good mapping was refused", text)
    table = MappingTable([exporter])
    for metric, (field, scale, labels) in wanted.items():
        (found,) = table.find(metric, labels)
        words.require((found.row.field, found.row.scale) == (field, scale), metric, found.row)
        other = {name: value + "x" for name, value in labels.items()}
        never = labels and any(value != "*" for value in labels.values())
        words.require(not never or not table.find(metric, other), "labels that are not asked for", metric, other)
    _load(words.spoilt(random, text.encode()))


def _load(content: str | bytes) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "own.toml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        try:
            return load_exporter(path)
        except ConfigurationError as error:
            words.require("\n" not in str(error) or isinstance(content, bytes), "an error of one line", str(error))
            return None


def _toml(value: Any) -> str:
    """Return a TOML value: its basic strings and lists are written as JSON's."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def check_config(random: Random) -> None:
    """Load a configuration: values are as written, an unknown key is an error that names it, garbage one clear line."""
    name = words.text(random) or "c"
    interval = random.choice((1, 30, 60.5, 3600))
    tenants = [
        (words.text(random), [words.text(random) for _ in range(random.randint(0, 3))])
        for _ in range(random.randint(0, 3))
    ]
    text = f"[cluster]\nname = {_toml(name)}\ninterval_seconds = {interval}\n"
    for tenant, namespaces in tenants:
        text += f"[[tenant]]\nname = {_toml(tenant)}\nnamespaces = {_toml(namespaces)}\n"
    loaded = _configured(text)
    words.require(not isinstance(loaded, str), "a good configuration was refused", loaded, text)
    settings = loaded.settings
    words.require(
        (settings.cluster.name, settings.cluster.interval_seconds) == (name, interval), "cluster", settings.cluster
    )
    got = [(tenant.name, list(tenant.namespaces)) for tenant in settings.tenant]
    words.require(got == tenants, "tenants", got, tenants)
    stranger = words.name(random).lower()
    refused = _configured(text + f"[cluster.{stranger}]\nx = 1\n")
    words.require(isinstance(refused, str) and stranger in refused, "an unknown key", refused, stranger)
    wrong = random.choice(("interval_seconds = -1", 'interval_seconds = "soon"', "name = 7", "interval_seconds = nan"))
    words.require(isinstance(_configured(f"[cluster]\n{wrong}\n"), str), "a wrong value was taken", wrong)
    _configured(words.spoilt(random, text.encode()))


def _configured(content: str | bytes) -> Any:
    """Return what is loaded, or the error's text. Variables of the environment do not count."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trimtab.toml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        kept = {key: os.environ.pop(key) for key in list(os.environ) if key.startswith("TRIMTAB_")}
        try:
            return load_settings(path)
        except ConfigurationError as error:
            return str(error)
        finally:
            os.environ.update(kept)
