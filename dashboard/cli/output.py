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

_GAP = 3  # between two columns of a table
_WORD = 14  # a longer word may be broken, to keep a table within a terminal
_SENTENCE = 20  # least room for a text of more than twice as much


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

    On a terminal it is as wide as that: long cells are folded. Where that would leave too little room for a column,
    each row is a block of lines instead, one a column. Piped, nothing is folded or cut.

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
    if not sys.stdout.isatty():
        sys.stdout.write(_plain_table(columns, cells, clean(title)))
        return
    headings = [heading.removeprefix(">") for heading in columns]
    widths = _widths(headings, cells, console.width - _GAP * (len(headings) - 1))
    if widths is None:
        _print_blocks(console, headings, cells, clean(title))
        return
    table = Table(
        title=Text(clean(title)) if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        header_style="bold",
    )
    for heading, shown, width in zip(columns, headings, widths, strict=True):
        table.add_column(Text(shown), justify=_align(heading), overflow="fold", width=width)
    for row in cells:
        table.add_row(*row)
    console.print(table)


def _widths(headings: Sequence[str], rows: Sequence[Sequence[Text]], room: int) -> list[int] | None:
    """Return how wide each column of a table is: the widest give way first; None where some would have too little."""
    widths, least = [], []
    for n, heading in enumerate(headings):
        cells = [row[n].plain for row in rows]
        natural = max(cell_len(heading), *(cell_len(line) for cell in cells for line in cell.split("\n") or [""]))
        word = min(max(map(_widest_word, cells)), _WORD)
        widths.append(natural)
        least.append(max(cell_len(heading), word, _SENTENCE if natural > 2 * _SENTENCE else 0))
    while (over := sum(widths) - room) > 0:
        spare = [width - low for width, low in zip(widths, least, strict=True)]
        n = spare.index(max(spare))
        if spare[n] <= 0:
            return None
        widths[n] -= min(over, max(spare[n] // 2, 1))
    return widths


def _widest_word(text: str) -> int:
    return max((cell_len(word) for word in text.split()), default=0)


def _print_blocks(console: Console, headings: Sequence[str], rows: Sequence[Sequence[Text]], title: str) -> None:
    """Print each row as lines of heading and value, for a terminal that is too narrow for a table."""
    if title:
        console.print(Text(title, style="italic"))
    for number, row in enumerate(rows):
        if number:
            console.print()
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="bold", overflow="fold", max_width=console.width // 2)
        grid.add_column(overflow="fold")
        for heading, cell in zip(headings, row, strict=True):
            grid.add_row(Text(heading), cell)
        console.print(grid)


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
