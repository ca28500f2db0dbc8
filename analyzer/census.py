"""The census: what was analysed, what was not, and why; for every code it adds up to the fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analyzer.cards import cards
from analyzer.codes import Scope
from analyzer.codes import codes as catalogue
from analyzer.protocols import Partition, Withheld

SUBJECT_COLUMNS = ("cluster", "node", "gpu", "slice")


@dataclass(frozen=True, slots=True)
class CodeCensus:
    """One code: how many subjects it speaks of, and what became of each. The three parts sum to `subjects`."""

    code: str
    scope: str
    subjects: int
    analysed: int
    withheld: int
    not_applicable: int
    reasons: dict[str, int]  # reason -> subjects, withheld and not applicable together


@dataclass(frozen=True, slots=True)
class Census:
    """How big the fleet is, and a count a code."""

    nodes: int
    cards: int
    slices: int
    codes: tuple[CodeCensus, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "nodes": self.nodes,
            "cards": self.cards,
            "slices": self.slices,
            "codes": {
                c.code: {
                    "scope": c.scope,
                    "subjects": c.subjects,
                    "analysed": c.analysed,
                    "withheld": c.withheld,
                    "not_applicable": c.not_applicable,
                    "reasons": c.reasons,
                }
                for c in self.codes
            },
        }


def measure_subjects(partition: Partition) -> pd.DataFrame:
    """Return the cards of a node (slice empty) and its slices, once each: columns `SUBJECT_COLUMNS`."""
    rows = []
    for card in cards(partition):
        key = (card.cluster, card.node, card.gpu)
        rows.append((*key, ""))
        rows += [(*key, name) for name in sorted({h.slice for h in card.holdings})]
    return pd.DataFrame(rows, columns=list(SUBJECT_COLUMNS))


def take_census(subjects: pd.DataFrame, codes: Sequence[str], withheld: Iterable[Withheld]) -> Census:
    """Count for each code what became of every subject that it speaks of.

    A subject that is withheld or not applicable for a code is counted once, under the first reason given; all others
    were analysed. What is withheld about something that the fleet does not hold is not counted.

    Args:
        subjects: rows of `measure_subjects` of all nodes.
        codes: the codes that were run.
        withheld: what the detectors could not say, or had nothing to say about.
    """
    keys = set(subjects.drop_duplicates().itertuples(index=False, name=None))
    slices = {key for key in keys if key[3]}
    cards_ = keys - slices
    fleets = {(key[0], "", "", "") for key in keys}
    universe = {Scope.SLICE: slices, Scope.CARD: cards_, Scope.FLEET: fleets}
    said: dict[str, dict[tuple[str, str, str, str], Withheld]] = {code: {} for code in codes}
    for w in sorted(withheld, key=lambda w: (w.code, w.cluster, w.node, w.gpu, w.slice, w.applicable, w.reason)):
        if w.code in said:
            said[w.code].setdefault((w.cluster, w.node, w.gpu, w.slice), w)
    counted = []
    for code in sorted(said.keys() & catalogue().keys()):  # a plug-in's own code says for itself what it speaks of
        scope = catalogue()[code].scope
        about = universe[scope]
        told = [w for key, w in said[code].items() if key in about]
        missing = sum(w.applicable for w in told)
        counted.append(
            CodeCensus(
                code=code,
                scope=scope.value,
                subjects=len(about),
                analysed=len(about) - len(told),
                withheld=missing,
                not_applicable=len(told) - missing,
                reasons=dict(sorted(Counter(w.reason for w in told).items())),
            )
        )
    return Census(nodes=len({key[:2] for key in keys}), cards=len(cards_), slices=len(slices), codes=tuple(counted))
