"""Co-location: how well slow-downs of pairs that never met are predicted, on pairs measured on real cards.

Data: `colocation/pairs_gavel.csv.gz` of the shared data (Gavel's 26 training jobs in pairs on K80 and P100); without
it the subject says so and measures nothing. Ten random draws of which pairs are known; the rest is predicted. Peer, on
the same draws: an additive model (ridge regression on who suffers and who does it). The predictor was
tuned on seeds 1000 to 1019 and on made-up matrices; no choice was made by the draws below. Beside what a few pairs
and the other kind of card tell stands what a model that saw the answers makes of them (`colocation_ceiling`).
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

from analyzer.colocation import MeasuredPair, Solo, predict
from analyzer.facts import records
from benchmarks.colocation_ceiling import Ceiling
from benchmarks.figures import Figure, figure

REPORTED_SEEDS = tuple(range(1, 11))
LIMIT = 1.75
KINDS = ("K80", "P100")
_QUARTER, _FEW, _MORE = 0.25, 0.05, (0.1, 0.2)
_FILE = Path("data") / "colocation" / "pairs_gavel.csv.gz"
Pair = tuple[str, str, str]


@dataclass(frozen=True)
class Measured:
    """All directed pairs that ran together, and the solo profiles (family and batch size by name, solo rate)."""

    pairs: tuple[MeasuredPair, ...]
    solos: tuple[Solo, ...]

    def of(self, card: str) -> list[MeasuredPair]:
        """Return the pairs of one kind of card."""
        return [pair for pair in self.pairs if pair.card == card]


def shared_file(name: Path = _FILE) -> Path | None:
    """Return a file of the shared data, or None where it is absent."""
    here = Path(__file__).resolve().parents[1]
    places = [Path(os.environ["TRIMTAB_SHARED"])] if "TRIMTAB_SHARED" in os.environ else []
    places += [here / "shared", here.parent / "shared"]
    return next((place / name for place in places if (place / name).exists()), None)


def load(path: Path) -> Measured:
    """Read directed pairs; one that did not run together is no pair."""
    table = pd.read_csv(path)
    pairs: dict[Pair, float] = {}
    rates: dict[tuple[str, str], float] = {}
    for row in records(table):
        for one, other in (("a", "b"), ("b", "a")):
            victim, suspect, card = row[f"job_{one}"], row[f"job_{other}"], row["gpu"]
            rates[victim, card] = row[f"solo_{one}"]
            if np.isfinite(row[f"slowdown_{one}"]):
                pairs[victim, suspect, card] = row[f"slowdown_{one}"]
    solos = tuple(_solo(job, card, rate) for (job, card), rate in sorted(rates.items()))
    return Measured(tuple(MeasuredPair(*key, value) for key, value in sorted(pairs.items())), solos)


def _solo(job: str, card: str, rate: float) -> Solo:
    size = re.search(r"batch size (\d+)", job)
    features = {"log rate": float(np.log(rate))} | ({"log size": float(np.log2(int(size[1])))} if size else {})
    return Solo(job, card, job.split(" (", maxsplit=1)[0], features)


def draw(pairs: list[MeasuredPair], share: float, seed: int) -> tuple[list[MeasuredPair], list[MeasuredPair]]:
    """Split directed pairs at random into known and unknown."""
    order = np.random.default_rng(seed).permutation(len(pairs))
    known = set(order[: round(share * len(pairs))].tolist())
    return [p for i, p in enumerate(pairs) if i in known], [p for i, p in enumerate(pairs) if i not in known]


def score(truth: list[MeasuredPair], told: np.ndarray) -> tuple[float, float]:
    """R2 of the logarithm of the slow-down, and area under the ROC curve for slower than the limit."""
    y = np.log([pair.slowdown for pair in truth])
    return float(1 - ((y - told) ** 2).sum() / ((y - y.mean()) ** 2).sum()), float(
        roc_auc_score(y > np.log(LIMIT), told)
    )


def ours(known: list[MeasuredPair], unknown: list[MeasuredPair], solos: tuple[Solo, ...], seed: int) -> pd.DataFrame:
    """Predict the unknown pairs: columns `middle`, `lower`, `upper` of the log slow-down."""
    wanted = [(p.victim, p.suspect, p.card) for p in unknown]
    found = predict(solos, known, wanted, limit=LIMIT, seed=seed)
    told = {"middle": [f.slowdown for f in found], "lower": [f.lower for f in found], "upper": [f.upper for f in found]}
    return pd.DataFrame({name: np.log(values) for name, values in told.items()})


def additive(known: list[MeasuredPair], unknown: list[MeasuredPair]) -> np.ndarray:
    """Predict by what the victim suffers and the suspect does, on average."""
    names = sorted({name for p in known + unknown for name in (p.victim, p.suspect)})
    x, y = _roles(known, names), np.log([p.slowdown for p in known])
    return np.asarray(Ridge(alpha=0.3).fit(x, y).predict(_roles(unknown, names)))


def _roles(pairs: list[MeasuredPair], names: list[str]) -> np.ndarray:
    column = {name: i for i, name in enumerate(names)}
    x = np.zeros((len(pairs), 2 * len(names)))
    for i, pair in enumerate(pairs):
        x[i, column[pair.victim]] = 1.0
        x[i, len(names) + column[pair.suspect]] = 1.0
    return x


def transfer(data: Measured, card: str, share: float, seed: int) -> list[MeasuredPair]:
    """Return all pairs of the other kind, and a share of this one: a part of the quarter, where it is smaller."""
    other = next(kind for kind in KINDS if kind != card)
    return data.of(other) + draw(data.of(card), share, seed)[0]


def agreement(data: Measured) -> float:
    """Return the squared correlation of the log slow-downs of the pairs measured on both kinds."""
    one, other = ({(p.victim, p.suspect): np.log(p.slowdown) for p in data.of(card)} for card in KINDS)
    both = [(one[key], other[key]) for key in sorted(one.keys() & other.keys())]
    return float(np.corrcoef(np.transpose(both))[0, 1] ** 2)


def within(truth: list[MeasuredPair], found: pd.DataFrame) -> float:
    """Return the share of measured slow-downs within their 95 % interval."""
    y = np.log([pair.slowdown for pair in truth])
    return float(np.mean((found["lower"] <= y) & (y <= found["upper"])))


def run(seeds: tuple[int, ...] = REPORTED_SEEDS) -> list[Figure]:
    """Measure on the reported draws."""
    path = shared_file()
    if path is None:
        print(f"colocation: skipped, {_FILE} is not there (set TRIMTAB_SHARED to the shared folder)", file=sys.stderr)
        return []
    data = load(path)
    text = f"squared correlation of log slow-downs of the same pairs, {' and '.join(KINDS)}"
    figures = [figure(text, agreement(data), "ratio")]
    ceiling = Ceiling(data.pairs, data.solos)
    for card in KINDS:
        told: dict[str, list[tuple[float, float]]] = defaultdict(list)
        covered: dict[str, list[float]] = defaultdict(list)
        spent = []
        solos = tuple(s for s in data.solos if s.card == card)
        bare = tuple(replace(s, family="", features={}) for s in solos)
        for seed in seeds:
            known, unknown = draw(data.of(card), _QUARTER, seed)
            start = time.process_time()
            found = ours(known, unknown, solos, seed)
            spent.append(time.process_time() - start)
            covered["a quarter known"].append(within(unknown, found))
            told["ours"].append(score(unknown, found["middle"].to_numpy()))
            told["bare"].append(score(unknown, ours(known, unknown, bare, seed)["middle"].to_numpy()))
            told["additive"].append(score(unknown, additive(known, unknown)))
            for share in (_FEW, *_MORE):
                known = transfer(data, card, share, seed)  # a part of the quarter: the same are unknown
                found = ours(known, unknown, data.solos, seed)
                told[f"{share:.0%}"].append(score(unknown, found["middle"].to_numpy()))
                covered[f"the other kind and {share:.0%} known"].append(within(unknown, found))
                if share == _FEW:
                    told["ceiling"].append(score(unknown, ceiling.told(known, unknown)))
        figures += _figures(card, told, covered, float(np.mean(spent)))
    return figures


def _figures(
    card: str, told: dict[str, list[tuple[float, float]]], covered: dict[str, list[float]], seconds: float
) -> list[Figure]:
    rows = []
    few = f"{_FEW:.0%}"
    for which, (name, bound) in enumerate((("R2 of log slow-down", 0.84), ("ROC AUC of slower than 1.75x", 0.96))):
        mean = {method: float(np.mean([score[which] for score in scores])) for method, scores in told.items()}
        plain, alone = (mean["additive"], "additive"), (mean["ours"], "a quarter without it")
        best = (mean["ceiling"], "a model fitted to the answers")
        for title, method, (peer, peer_name), least in (
            ("a quarter known", "ours", plain, bound),
            ("a quarter known, no profile at all", "bare", plain, None),
            (f"the other kind and {few} known", few, alone, alone[0]),
            (f"the other kind and {few} known", few, plain, None),
            (f"the other kind and {few} known", few, best, None),
            *((f"the other kind and {share:.0%} known", f"{share:.0%}", alone, None) for share in _MORE),
        ):
            text = f"{name}, {title}, {card}"
            rows.append(figure(text, mean[method], "ratio", peer=peer, peer_name=peer_name, at_least=least))
    for title, parts in covered.items():
        text = f"measured slow-downs within the 95 % interval, {title}, {card}"
        rows.append(figure(text, float(np.mean(parts)), "ratio", at_least=0.85))
    rows.append(figure(f"CPU a completion, {card}", seconds, "s"))
    return rows
