"""The Health page: cards with faults and what to do with each, broken isolation, metrics that cannot be trusted."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analyzer.codes import codes
from analyzer.findings import Finding
from analyzer.health_board import CardHealth, CardState, health_board
from dashboard.cli.output import clean as printable
from dashboard.views.names import CardNames, named

COLUMNS = ("card", "state", "severity", "why", "what to do")
COLOURS = {CardState.TAKE_OUT: "red", CardState.SEE_TO: "orange", CardState.WATCH: "blue"}


def counts(board: Sequence[CardHealth]) -> dict[CardState, int]:
    """Return how many cards are in each state."""
    return {state: sum(card.state is state for card in board) for state in CardState}


def board_table(board: Sequence[CardHealth], names: CardNames) -> pd.DataFrame:
    """Return one row a card with `COLUMNS`, worst first."""
    return pd.DataFrame([_row(card, names) for card in board], columns=list(COLUMNS))


def _row(card: CardHealth, names: CardNames) -> tuple[str, ...]:
    why = dict.fromkeys(_title(f) for f in card.findings)
    advice = named(card.what_to_do, names)
    return (
        names.get(card.gpu, printable(f"{card.node} {card.gpu}")),
        card.state.value,
        card.severity,
        ", ".join(why),
        printable(advice),
    )


def _title(finding: Finding) -> str:
    known = codes().get(finding.code)
    title = finding.code if known is None else known.title
    number = finding.evidence.get("xid")
    return f"XID {number}" if finding.code == "TT601" and number else title


def of_findings(findings: Sequence[Finding]) -> tuple[CardHealth, ...]:
    """Return the board of a page's findings."""
    return health_board(findings)
