"""What every command starts from: the configuration, the store, the instant that it speaks of."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.clock import SystemClock
from collector.window import parse_instant
from dashboard.config import Loaded, Settings, load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collector.store import EmbeddedStore

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Now = Annotated[
    str | None,
    typer.Option("--now", metavar="T", help="Act as if it were this instant (ISO 8601; UTC where it names no zone)."),
]
Once = Annotated[bool, typer.Option("--once", help="Run one cycle and end.")]


@dataclass
class Context:
    """Options that stand before every command, and what is made of them on first use."""

    config: Path | None = None
    debug: bool = False
    overrides: dict[str, object] = field(default_factory=dict)

    @cached_property
    def loaded(self) -> Loaded:
        """Settings with their origins."""
        return load_settings(self.config)

    @property
    def settings(self) -> Settings:
        """The settings."""
        return self.loaded.settings


def instant(now: str | None) -> datetime:
    """Return the instant that was asked for, else the present."""
    return SystemClock().now() if now is None else parse_instant(now)


def context_of(ctx: typer.Context) -> Context:
    """Return the root's Context."""
    found = ctx.find_object(Context)
    assert found is not None, "the root callback makes it"  # noqa: S101
    return found


@contextmanager
def opened_store(context: Context, *, read_only: bool = True) -> Iterator[EmbeddedStore]:
    """Open the configured store and close it again."""
    from collector.store import EmbeddedStore  # noqa: PLC0415  DuckDB and Arrow load slowly; --help must not

    store = EmbeddedStore(context.settings.store, read_only=read_only)
    try:
        yield store
    finally:
        store.close()
