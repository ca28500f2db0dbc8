"""What is wrong with a configuration, one line each: the place, what was expected, what came, the nearest known key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, SecretStr, ValidationError

from collector.masking import MASK, is_secret_name, mask_address, masked

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]")
_KEY = re.compile(r"^\s*([A-Za-z0-9_\-.\"']+)\s*=")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: `place` is a line of the file, a variable or a table."""

    place: str
    text: str

    def __str__(self) -> str:
        """Return `place: text`."""
        return f"{self.place}: {self.text}"

    @classmethod
    def unknown(cls, place: str, what: str, key: str, known: Iterable[str]) -> Problem:
        """Name an unknown key or table, and the nearest known one."""
        names = list(known)
        if not names:
            return cls(place, f"unknown {what} `{key}`; this table has no keys in this version: remove it")
        near = difflib.get_close_matches(key, names, n=1, cutoff=0.0)[0]
        return cls(place, f"unknown {what} `{key}`; the nearest known one is `{near}` (known: {', '.join(names)})")


def problems_of(
    error: ValidationError, root: type[BaseModel], path: Path | None, from_environment: Mapping[str, Any]
) -> list[Problem]:
    """Turn what pydantic found into one line a problem, in the order of the file."""
    lines = _line_numbers(path.read_text(encoding="utf-8")) if path is not None else {}
    found = sorted(error.errors(), key=lambda details: _line(details["loc"], lines))
    return [_problem(details, root, path, lines, from_environment) for details in found]


def nearest(key: str, known: Iterable[str]) -> str:
    """Return ` (nearest known: x)`, or an empty text where nothing is near."""
    near = difflib.get_close_matches(key, list(known), n=1)
    return f"; the nearest known one is `{near[0]}`" if near else ""


def _problem(
    details: ErrorDetails,
    root: type[BaseModel],
    path: Path | None,
    lines: Mapping[tuple[str | int, ...], int],
    from_environment: Mapping[str, Any],
) -> Problem:
    location = details["loc"]
    place = _place(location, path, lines, from_environment)
    key = str(location[-1]) if location else "?"
    if details["type"] == "extra_forbidden":
        what = "table" if len(location) == 1 else "key"
        return Problem.unknown(place, what, key, _known_keys(root, location[:-1]))
    if details["type"] == "missing":
        return Problem(place, f"expected a key `{key}`, found none; add it")
    text = details["msg"].removeprefix("Value error, ").removeprefix("Input should be ").removesuffix(".")
    if details["type"] == "value_error":
        return Problem(place, mask_address(text))
    got = MASK if _is_secret(root, location) else _short(details["input"])
    return Problem(place, f"`{key}`: expected {text}, got {got}")


def _is_secret(root: type[BaseModel], location: tuple[str | int, ...]) -> bool:
    """Say whether what stands at `location`, or what holds it, is a secret by its type or its name."""
    if any(is_secret_name(part) for part in location):
        return True
    model: type[BaseModel] | None = root
    for part in location:
        field = None if model is None else model.model_fields.get(str(part))
        if field is not None:
            if SecretStr in (field.annotation, *get_args(field.annotation)):
                return True
            model = model_within(field.annotation)
    return False


def _short(value: Any) -> str:
    text = repr(masked(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def _place(
    location: tuple[str | int, ...],
    path: Path | None,
    lines: Mapping[tuple[str | int, ...], int],
    from_environment: Mapping[str, Any],
) -> str:
    if _holds(from_environment, location):
        return "environment TRIMTAB_" + "__".join(str(part) for part in location).upper()
    table = _table_name(location if len(location) == 1 else location[:-1])
    if path is None:
        return table
    line = _line(location, lines)
    return f"{path}:{line} {table}" if line else f"{path} {table}"


def _line(location: tuple[str | int, ...], lines: Mapping[tuple[str | int, ...], int]) -> int:
    """Return the line of a key, else of the table that holds it; 0 where it is not in the file."""
    found = (lines[location[:length]] for length in range(len(location), 0, -1) if location[:length] in lines)
    return next(found, 0)


def _holds(tree: Any, location: tuple[str | int, ...]) -> bool:
    for part in location:
        if isinstance(tree, list):  # the variable held the whole list as JSON
            return True
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True


def _table_name(location: tuple[str | int, ...]) -> str:
    """Return `[store]`, `[[source]] 2` for the second table of a list, `[[source.targets]] 2.1` for one within."""
    name = ".".join(str(part) for part in location if not isinstance(part, int))
    indices = ".".join(str(part + 1) for part in location if isinstance(part, int))
    return f"[[{name}]] {indices}" if indices else f"[{name}]"


def _known_keys(root: type[BaseModel], location: tuple[str | int, ...]) -> list[str]:
    model = root
    for part in location:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        inner = None if field is None else model_within(field.annotation)
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def model_within(annotation: Any) -> type[BaseModel] | None:
    """Return the table's model inside an annotation such as `tuple[SourceSettings, ...]` or `Objective | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := model_within(part))), None)


def _line_numbers(text: str) -> dict[tuple[str | int, ...], int]:
    """Return the line of each table and key of a TOML text (keys of inline tables stand on their table's line)."""
    lines: dict[tuple[str | int, ...], int] = {}
    counts: dict[tuple[str | int, ...], int] = {}
    table: tuple[str | int, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            parts = [part.strip().strip("\"'") for part in header[2].split(".")]
            table = _header_path(parts, counts, many=header[1] == "[[")
            lines.setdefault(table, number)
            lines.setdefault(table[:1], number)
        elif key := _KEY.match(line):
            dotted = tuple(part.strip("\"'") for part in key[1].split("."))
            for length in range(1, len(dotted) + 1):
                lines.setdefault((*table, *dotted[:length]), number)
    return lines


def _header_path(parts: list[str], counts: dict[tuple[str | int, ...], int], *, many: bool) -> tuple[str | int, ...]:
    """Return where a header's table stands: `[workload.objective]` belongs to the newest `[[workload]]`."""
    at: tuple[str | int, ...] = ()
    for place, part in enumerate(parts, start=1):
        at = (*at, part)
        if many and place == len(parts):
            counts[at] = counts.get(at, -1) + 1
        if at in counts:
            at = (*at, counts[at])
    return at
