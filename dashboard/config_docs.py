"""The commented example and docs/configuration.md, both generated from the models.

`python -m dashboard.config_docs > docs/configuration.md` renews the page; a test keeps it in step.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import orjson
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from dashboard.config import ENV_DELIMITER, ENV_PREFIX, SEARCHED, Settings
from dashboard.config_errors import model_within

# What the example shows for keys whose default says little, or that have none.
SHOWN: dict[str, Any] = {
    "cluster.name": "gpu-fleet",
    "source.targets": [
        "http://node1:9400/metrics",
        {"url": "http://ranker:8000/metrics", "node": "node1", "labels": {"namespace": "search", "pod": "ranker-0"}},
    ],
    "source.url": "http://prometheus:9090",
    "mapping.metric": "acme_step_seconds",
    "mapping.measurement": "slice",
    "mapping.field": "step_seconds",
    "tenant.name": "search",
    "tenant.namespaces": ["search", "search-*"],
    "workload.match": "ranker*",
    "workload.tenant": "search",
    "workload.objective.bound_seconds": 0.2,
    "source.options": {"device": "0"},
    "backend.options": {"address": "https://quotas:8443", "retries": 3},
    "calendar.name": "office hours",
    "calendar.days": [0, 1, 2, 3, 4],
    "calendar.start": "08:00",
    "calendar.end": "18:00",
    "tuner.modes.mode": "approve",
    "price.per_gpu_hour": 2.5,
}


def tables(root: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel], bool]]:
    """Yield (name, model, whether it is a list of tables) of every top table."""
    for name, field in root.model_fields.items():
        model = model_within(field.annotation)
        assert model is not None, f"{name} is no table"  # noqa: S101
        yield name, model, _is_many(field)


def example(root: type[BaseModel]) -> str:
    """Return a TOML text with every key, its meaning and its default, all commented out."""
    lines = [
        "# Trimtab's configuration. Every key is optional and shown with its default or an example:",
        "# remove the `#` in front of a table's name and of the keys that you want to set.",
        f"# Any key may be set by environment instead: {ENV_PREFIX}STORE{ENV_DELIMITER}PATH sets `path` of [store].",
    ]
    for name, model, many in tables(root):
        lines += ["", f"# {_about(model)}", f"#[[{name}]]" if many else f"#[{name}]"]
        lines += _example_keys(name, model)
    return "\n".join(lines) + "\n"


def _example_keys(at: str, model: type[BaseModel]) -> Iterator[str]:
    # In TOML a list of tables inside a table stands after the table's own keys.
    for key, field in sorted(model.model_fields.items(), key=lambda item: _stands_apart(at, *item)):
        path = f"{at}.{key}"
        yield f"# {field.description}"
        inner = model_within(field.annotation)
        if inner is None or path in SHOWN:
            yield f"#{key} = {toml_value(_shown(path, field))}"
        elif _is_many(field):
            yield f"#[[{path}]]"
            yield from _example_keys(path, inner)
        else:
            parts = [f"{k} = {toml_value(_shown(f'{path}.{k}', f))}" for k, f in inner.model_fields.items()]
            yield f"#{key} = {{ {', '.join(parts)} }}"


def _stands_apart(at: str, key: str, field: FieldInfo) -> bool:
    return _is_many(field) and f"{at}.{key}" not in SHOWN


def _is_many(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is tuple and model_within(field.annotation) is not None


def _shown(path: str, field: FieldInfo) -> Any:
    if path in SHOWN:
        return SHOWN[path]
    value = field.get_default(call_default_factory=True)
    return "" if value is None else value


def toml_value(value: Any) -> str:
    """Write a default as TOML."""
    if isinstance(value, SecretStr):
        value = ""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, bool | int | float):
        return orjson.dumps(value).decode()
    return orjson.dumps(str(value)).decode()


def markdown(root: type[BaseModel]) -> str:
    """Return docs/configuration.md."""
    places = ", then ".join(f"`{path}`" if path.is_absolute() else f"`./{path}`" for path in SEARCHED)
    secret = f"{ENV_PREFIX}SOURCE{ENV_DELIMITER}0{ENV_DELIMITER}BEARER_TOKEN"
    parts = [
        "# Configuration",
        "",
        "<!-- Generated: python -m dashboard.config_docs > docs/configuration.md -->",
        "",
        f"One TOML file configures everything. It is the one named by `--config`, else by `{ENV_PREFIX}CONFIG`, else",
        f"{places}. Without a file the defaults hold.",
        "Relative paths start at the working directory.",
        "",
        f"Any key may be overridden by a variable, `{ENV_PREFIX}<TABLE>{ENV_DELIMITER}<KEY>`: secrets above all.",
        f"Where a table may stand several times, its number counts from 0: `{secret}`.",
        "A list is written as JSON.",
        "",
        "- `trimtab config show` lists every value and where it came from.",
        "- `trimtab config check` reports every problem; an unknown key comes with its line and the nearest known one.",
        "- `trimtab config example > trimtab.toml` writes a file with every key, commented out.",
    ]
    for name, model, many in tables(root):
        parts += ["", f"## `[[{name}]]`" if many else f"## `[{name}]`", "", f"{_about(model)}"]
        if many:
            parts += ["", "May stand several times."]
        rows = list(_rows("", f"{name}.0" if many else name, model))
        if rows:
            parts += ["", "| key | type | default | meaning | variable |", "|---|---|---|---|---|", *rows]
    return "\n".join(parts) + "\n"


def _rows(prefix: str, at: str, model: type[BaseModel]) -> Iterator[str]:
    for key, field in model.model_fields.items():
        inner = model_within(field.annotation)
        if inner is not None:
            many = _is_many(field)
            yield f"| `{prefix}{key}` | {'list of tables' if many else 'table'} | | {field.description} | |"
            yield from _rows(f"{prefix}{key}.", f"{at}.{key}.0" if many else f"{at}.{key}", inner)
            continue
        variable = ENV_PREFIX + f"{at}.{key}".replace(".", ENV_DELIMITER).upper()
        yield (
            f"| `{prefix}{key}` | {type_text(field.annotation)}{_range(field)} | {_default(field)} "
            f"| {field.description} | `{variable}` |"
        )


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "" if value is None or value in ("", (), {}) else f"`{toml_value(value)}`"


def _range(field: FieldInfo) -> str:
    words = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    limits = [
        f"{sign} {getattr(rule, name):g}"
        for rule in field.metadata
        for name, sign in words.items()
        if getattr(rule, name, None) is not None
    ]
    return f", {' and '.join(limits)}" if limits else ""


def type_text(annotation: Any) -> str:
    """Return a type in words."""
    words = {str: "text", Path: "path", int: "integer", float: "number", bool: "true or false", SecretStr: "secret"}
    if annotation in words:
        return words[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return type_text(next(part for part in arguments if part is not type(None)))
    if origin is tuple:
        return f"list of {type_text(arguments[0])}"
    if origin is dict:
        return "table of text" if arguments[1] is str else "table of texts, numbers, true or false"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "one of " + ", ".join(f"`{item.value}`" for item in annotation)
    raise AssertionError(f"no words for type {annotation!r}")


def _about(model: type[BaseModel]) -> str:
    """Return what a table is for: its docstring without the table's name, which stands above it anyway."""
    text = " ".join((model.__doc__ or "").split())
    head, colon, tail = text.partition(": ")
    about = tail if colon and ("Table `" in head or "One `[[" in head) else text
    return about[:1].upper() + about[1:]


if __name__ == "__main__":
    sys.stdout.write(markdown(Settings))
