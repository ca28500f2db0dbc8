"""What commands print: one JSON document or plain tables on stdout, notes and errors on stderr.

Names come from other people's pods: control characters are replaced and nothing is read as markup.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import orjson
from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from analyzer.findings import plain
from dashboard.origin import SIMULATED


def clean(value: object) -> str:
    """Return a value as text that a terminal takes literally: no control, direction or surrogate characters."""
    return "".join("\N{REPLACEMENT CHARACTER}" if _acts(char) else char for char in str(value))


def _acts(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def stdout() -> Console:
    """Return the console of results: plain and wide when piped, without colour where NO_COLOR says so."""
    return _console(stderr=False)


def stderr() -> Console:
    """Return the console of notes and errors."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    return Console(file=stream, stderr=stderr, force_terminal=terminal, highlight=False, markup=False, emoji=False)


def progress_bars() -> Progress:
    """Return bars for stderr, to be entered as a context; each task has a description and a field `rows`."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]} rows", markup=False),
        TimeRemainingColumn(),
        console=stderr(),
    )


def say(text: str) -> None:
    """Print a line of result on stdout."""
    stdout().print(Text(clean(text)), soft_wrap=True)


def say_origin(*, simulated: bool) -> None:
    """Print the line that keeps a simulation from passing for a fleet."""
    if simulated:
        say(SIMULATED)


def say_marked(mark: str, style: str, text: str) -> None:
    """Print a line of result that begins with a styled mark; on a terminal its further lines stand under its text."""
    console = stdout()
    if not console.is_terminal:
        console.print(Text.assemble((mark, style), " ", clean(text)), soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(mark, style=style), Text(clean(text)))
    console.print(grid)


def note(text: str) -> None:
    """Print a line on stderr, for the person who watches."""
    stderr().print(Text(clean(text), style="dim"), soft_wrap=True)


def error(text: str) -> None:
    """Print an error as one line on stderr."""
    stderr().print(Text.assemble(("trimtab: ", "bold red"), clean(" ".join(text.split()))), soft_wrap=True)


def print_json(document: Any) -> None:
    """Print one JSON document on stdout; NaN is null, instants are ISO 8601."""
    text = orjson.dumps(plain(document), option=orjson.OPT_INDENT_2, default=str)
    sys.stdout.write(text.decode() + "\n")


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", empty: str = "nothing"
) -> None:
    """Print rows as a table, or `empty` where there are none.

    Args:
        columns: headings; one that starts with `>` stands right, as numbers do.
        rows: cells; a rich Text keeps its style, anything else is cleaned text.
        title: printed above.
        empty: the line that stands for no rows.
    """
    console = stdout()
    cells = [[cell if isinstance(cell, Text) else Text(clean(cell)) for cell in row] for row in rows]
    if not cells:
        say(empty)
        return
    if not console.is_terminal:
        sys.stdout.write(_plain_table(columns, cells, clean(title)))
        return
    table = Table(
        title=Text(clean(title)) if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        header_style="bold",
    )
    for heading in columns:
        table.add_column(Text(heading.removeprefix(">")), justify=_align(heading), overflow="fold")
    for row in cells:
        table.add_row(*row)
    console.print(table)


def _align(heading: str) -> Literal["left", "right"]:
    return "right" if heading.startswith(">") else "left"


def _plain_table(columns: Sequence[str], rows: Sequence[Sequence[Text]], title: str) -> str:
    """Lay a table out for a pipe: never wrapped or cut, two spaces between columns."""
    lines = [[heading.removeprefix(">") for heading in columns], *([cell.plain for cell in row] for row in rows)]
    widths = [max(cell_len(line[i]) for line in lines) for i in range(len(columns))]
    out = [title] if title else []
    for line in lines:
        padded = [
            set_cell_size(text, width) if _align(heading) == "left" else " " * (width - cell_len(text)) + text
            for text, width, heading in zip(line, widths, columns, strict=True)
        ]
        out.append("  ".join(padded).rstrip())
    return "\n".join(out) + "\n"
