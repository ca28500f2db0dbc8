"""The catalogue of finding codes: what each claims, how it is computed, how it can be wrong, what to do.

`python -m analyzer.codes DIR` writes one Markdown page a code and an index (docs/codes).
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from pathlib import Path

from analyzer.settings import AnalyzeSettings


class Scope(StrEnum):
    """What a code speaks of; the census counts these."""

    SLICE = "slice"
    CARD = "card"
    FLEET = "cluster"


@dataclass(frozen=True, slots=True)
class Code:
    """One finding code. `settings` are keys of `[analyze]`; `fixed` are thresholds that nobody needs to set."""

    code: str
    title: str
    scope: Scope
    claim: str
    computed: str = ""
    settings: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    risk: str = ""
    action: str = ""

    @property
    def implemented(self) -> bool:
        """True when something computes it."""
        return bool(self.computed)


NOT_THERE_YET = "Not there yet: this code is reserved, nothing computes it, and no finding carries it."

_FAMILIES = {
    "TT1": "Contention",
    "TT2": "Fragmentation and stranded capacity",
    "TT3": "Idle and wrong-sized",
    "TT4": "Bottlenecks",
    "TT5": "Forecast risk",
    "TT6": "Health",
}


@cache
def codes() -> Mapping[str, Code]:
    """Return all codes, in order."""
    data = tomllib.loads(resources.files("analyzer").joinpath("data/codes.toml").read_text("utf-8"))
    found = {}
    for name, entry in data.items():
        found[name] = Code(
            code=name,
            title=entry["title"],
            scope=Scope(entry["scope"]),
            claim=entry["claim"],
            computed=entry.get("computed", ""),
            settings=tuple(entry.get("settings", ())),
            fixed=tuple(entry.get("fixed", ())),
            risk=entry.get("risk", ""),
            action=entry.get("action", ""),
        )
    return found


def explain(code: str) -> str:
    """Return the page of a code, in Markdown.

    Raises:
        KeyError: there is no such code.
    """
    name = code.strip().upper()
    if name not in codes():
        raise KeyError(f"expected a finding code such as TT101, got {code!r}; known: {', '.join(codes())}")
    return page(codes()[name])


def page(code: Code) -> str:
    """Return a code's page, in Markdown."""
    parts = [f"# {code.code}: {code.title}", f"Speaks of: a {code.scope.value}.", "## What it claims", code.claim]
    if not code.implemented:
        return "\n\n".join([*parts, NOT_THERE_YET]) + "\n"
    parts += ["## How it is computed", code.computed]
    limits = [f"- `[analyze] {name}` = {_default(name)}: {_about(name)}" for name in code.settings]
    limits += [f"- fixed: {text}" for text in code.fixed]
    if limits:
        parts += ["## Thresholds", "\n".join(limits)]
    parts += ["## How it can be wrong", code.risk, "## What to do", code.action]
    return "\n\n".join(parts) + "\n"


def _default(name: str) -> str:
    return str(AnalyzeSettings.model_fields[name].default)


def _about(name: str) -> str:
    return AnalyzeSettings.model_fields[name].description or ""


def pages() -> dict[str, str]:
    """Return file name -> text of all pages and their index."""
    found = {f"{code.code}.md": page(code) for code in codes().values()}
    lines = ["# Finding codes", "", "Generated from `analyzer/data/codes.toml`. A code is never reused or renamed."]
    for prefix, family in _FAMILIES.items():
        lines += ["", f"## {prefix}xx: {family}", "", "| code | claim | there |", "|---|---|---|"]
        lines += [
            f"| [{c.code}]({c.code}.md) | {c.title} | {'yes' if c.implemented else 'not yet'} |"
            for c in codes().values()
            if c.code.startswith(prefix)
        ]
    found["README.md"] = "\n".join(lines) + "\n"
    return found


def write_pages(folder: Path) -> None:
    """Write all pages into `folder`, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/codes"))
