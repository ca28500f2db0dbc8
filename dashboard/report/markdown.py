"""The report as Markdown: the same words and tables, without the drawings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dashboard.cli.output import clean as printable
from dashboard.report.view import Badge, Block, Cards, Cell, Drawing, Figure, Kind, Note, Page, Table
from dashboard.report.words import shorter

_MARKUP = re.compile(r"[\\`*_\[\]<>|~&$@]|:(?=//)|\.(?<=www\.)", re.IGNORECASE)
_START = re.compile(r"^(\d+(?=[.)](?:\s|$)))?([#+=.)-])")  # what begins a heading, a list or a rule where a line begins


def render_markdown(page: Page) -> str:
    """Return the text; names show exactly their characters and are never markup."""
    lines = [f"# {_text(page.title)}", _text(page.subtitle)]
    if page.simulated:
        lines.append("**simulated: these rows come from a simulation, not from real cards**")
    lines.append(_paragraph(page.summary))
    lines.append(_table(("", "", ""), [(t.label, t.value, t.note) for t in page.tiles], (False, True, False)))
    for section in page.sections:
        lines.append(f"## {_text(section.title)}")
        for block in section.blocks:
            lines += _block(block)
    lines.append(_text(page.foot) + (" **simulated**" if page.simulated else ""))
    return "\n\n".join(lines) + "\n"


def _block(block: Block) -> list[str]:
    match block:
        case Note():
            return [_paragraph(block.text)]
        case Table():
            return _block_table(block)
        case Cards():
            return [
                line
                for card in block.cards
                for line in _card(card.title, card.badge, card.text, card.facts, card.command)
            ]
        case Figure():
            return []  # every figure stands beside a table that says the same


def _block_table(table: Table) -> list[str]:
    kept = [i for i, column in enumerate(table.columns) if column.kind is not Kind.DRAWING]
    head = [table.columns[i].label for i in kept]
    right = [table.columns[i].kind is Kind.NUMBER for i in kept]
    rows = [[_cell(row[i]) for i in kept] for row in table.rows]
    lines = [_paragraph(table.caption)] if table.caption else []
    lines.append(_table(head, rows, right))
    if table.more:
        lines.append(_paragraph(table.more))
    return lines


def _cell(cell: Cell) -> str:
    match cell:
        case Badge():
            return cell.text
        case Drawing():
            return ""
        case _:
            return cell


def _card(title: str, badge: Badge, text: str, facts: Iterable[tuple[str, str]], command: str) -> list[str]:
    lines = [f"### {_text(title)} ({_text(badge.text)})", _paragraph(text)]
    lines.append("\n".join(f"- {_text(name)}: {_text(value)}" for name, value in facts))
    if command:
        lines.append(f"Check: {_text(command)}")
    return lines


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[bool]) -> str:
    lines = [_row(head), "|" + "|".join("---:" if number else "---" for number in right) + "|"]
    return "\n".join([*lines, *(_row(row) for row in rows)])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_text(cell) for cell in cells) + " |"


def _text(text: str) -> str:
    """Return text that shows exactly its characters: nothing in it is markup, a link, a mention or a formula."""
    return _MARKUP.sub(r"\\\g<0>", printable(shorter(text)).strip())


def _paragraph(text: str) -> str:
    return _START.sub(r"\1\\\2", _text(text))
