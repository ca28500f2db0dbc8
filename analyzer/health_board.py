"""The health board: every card with a fault, how grave it is, and which cards should get no shared work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from analyzer.findings import Finding, Verdict

_SEVERITIES = ("info", "warning", "error", "critical")
_OF_A_CARD = ("TT601", "TT602", "TT603", "TT604", "TT605", "TT607", "TT608", "TT405", "TT406")


class CardState(StrEnum):
    """What to do with a card, worst first."""

    TAKE_OUT = "take out of sharing"
    SEE_TO = "see to it soon"
    WATCH = "watch"


@dataclass(frozen=True, slots=True)
class CardHealth:
    """One card with a fault: state, gravest severity, its findings (gravest first) and what to do about that."""

    cluster: str
    node: str
    gpu: str
    state: CardState
    severity: str
    findings: tuple[Finding, ...]

    @property
    def what_to_do(self) -> str:
        """The advice of the gravest finding."""
        return str(self.findings[0].evidence.get("what_to_do") or "")


def health_board(findings: Iterable[Finding]) -> tuple[CardHealth, ...]:
    """Return the cards that any claim about a card speaks of, worst first.

    A card is to be taken out of sharing where a finding that holds says so (`take_out`); an error or a critical fault
    otherwise wants to be seen to; what is suspected or a warning is watched.
    """
    by_card: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        if finding.code in _OF_A_CARD and finding.verdict in {Verdict.HOLDS, Verdict.SUSPECTED} and finding.subjects:
            subject = finding.subjects[0]
            if subject.gpu:
                by_card.setdefault((subject.cluster, subject.node, subject.gpu), []).append(finding)
    board = []
    for place, found in by_card.items():
        ordered = sorted(found, key=lambda f: (not _takes_out(f), -_gravity(f), f.code, f.id))
        severity = _SEVERITIES[max(_gravity(f) for f in found)]
        state = CardState.WATCH
        if _takes_out(ordered[0]):
            state = CardState.TAKE_OUT
        elif any(_gravity(f) >= _SEVERITIES.index("error") and f.verdict is Verdict.HOLDS for f in found):
            state = CardState.SEE_TO
        board.append(CardHealth(*place, state, severity, tuple(ordered)))
    order = list(CardState)
    return tuple(
        sorted(board, key=lambda c: (order.index(c.state), -_SEVERITIES.index(c.severity), c.cluster, c.node, c.gpu))
    )


def _takes_out(finding: Finding) -> bool:
    return bool(finding.evidence.get("take_out")) and finding.verdict is Verdict.HOLDS


def _gravity(finding: Finding) -> int:
    severity = finding.evidence.get("severity")
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else 0
