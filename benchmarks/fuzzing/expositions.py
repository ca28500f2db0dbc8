"""Exposition text: series with hostile labels, bad lines between, and the same target scraped again and again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from benchmarks.fuzzing import words
from collector.exposition import ExpositionParser

_BAD = (
    '{a="b"} 1',
    'm{a="b" 1',
    "m abc",
    "m",
    "m 1 2 3",
    "m{=} 1",
    "9m 1",
    'm{a="b"}',
    "m{a=b} 1",
    "m 1_000",
    'm{a="b"} ERROR - FAILED TO CONVERT TO STRING',
    "---- free text ----",
    'm{a="b",...} 1',
    "m{,} 1",
)
_OTHER = ("", "# HELP m it's m", "# TYPE m gauge", "# a note", "#", "# EOF", "   ", '# HELP m 1e3 {x="y"} 7')
_SPACES = (" ", " ", " ", "  ", "\t")


@dataclass(frozen=True)
class _Series:
    line: str  # all of it but the value and what follows
    name: str
    labels: tuple[tuple[str, str], ...]
    escapes: bool


def check(random: Random) -> None:
    """Scrape one target a few times: series, values, stamps and the number of rejects are as generated."""
    parser = ExpositionParser()
    roster = [_series(random) for _ in range(random.randint(0, 12))]
    for _ in range(random.randint(1, 4)):
        if roster and random.random() < 0.3:
            roster.pop(random.randrange(len(roster)))
        if random.random() < 0.3:
            roster.insert(random.randint(0, len(roster)), _series(random))
        if random.random() < 0.2:
            random.shuffle(roster)
        _scrape(random, parser, roster)


def _scrape(random: Random, parser: ExpositionParser, roster: list[_Series]) -> None:
    lines: list[str] = []
    names: list[str] = []
    labels: list[dict[str, str]] = []
    values: list[float] = []
    stamps: dict[int, float] = {}
    bad, metadata = 0, False
    plain = random.random() < 0.5  # as well-behaved exporters write it
    for series in roster:
        while not plain and random.random() < 0.2:
            if random.random() < 0.5:
                lines.append(random.choice(_BAD))
                bad += 1
            else:
                lines.append(random.choice(_OTHER))
                metadata |= lines[-1].startswith(("# HELP", "# TYPE", "# EOF"))
        text, value = _value(random)
        stamp = None if plain or random.random() < 0.8 else _stamp(random)
        tail = "" if stamp is None else f" {stamp[0]}"
        if not plain and series.escapes and random.random() < 0.1:
            tail += ' # {trace_id="x"} 1.0 2'
        if stamp is not None:
            stamps[len(values)] = stamp[1]
        lines.append(series.line + random.choice(_SPACES if not plain else " ") + text + tail)
        names.append(series.name)
        labels.append(dict(series.labels))
        values.append(value)
    ending = "\r\n" if random.random() < 0.1 else "\n"
    result = parser.parse(ending.join(lines) + (ending if random.random() < 0.8 else ""))
    words.require_same("names", [one.name for one in result.series], names)
    words.require_same("labels", [dict(one.labels) for one in result.series], labels)
    words.require_same("values", [float(one) for one in result.values], values)
    words.require(result.stamps_ms == stamps, "stamps", result.stamps_ms, stamps)
    words.require(len(result.rejects) == (bad if values or metadata else min(bad, 1)), "rejects", result.rejects, bad)


def _series(random: Random) -> _Series:
    name = words.name(random, ":")
    escapes = random.random() < 0.8  # older exporters do not
    pairs: list[tuple[str, str]] = []
    texts: list[str] = []
    for label in dict.fromkeys(words.name(random) for _ in range(random.randint(0, 5))):
        value = words.text(random) if escapes else _raw(random)
        pairs.append((label, value))
        written = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") if escapes else value
        texts.append(f'{label}="{written}"')
    if not texts:
        return _Series(name + random.choice(("", "{}")), name, (), escapes)
    comma = random.choice((",", ",", ", "))
    last = random.choice(("", "", ","))
    blank = random.choice(("", "", " "))
    return _Series(f"{name}{blank}{{{comma.join(texts)}{last}}}", name, tuple(pairs), escapes)


def _raw(random: Random) -> str:
    """Return a value as an exporter writes it that escapes nothing: with a quote inside, or with nothing to escape."""
    if random.random() < 0.5:
        return words.blunt(random)
    return f'{words.blunt(random)} ("{words.blunt(random)}") {words.blunt(random)}'


def _value(random: Random) -> tuple[str, float]:
    kind = random.randrange(8)
    if kind == 0:
        text = random.choice(("NaN", "+Inf", "-Inf", "nan", "Inf"))
        return text, float(text)
    if kind == 1:
        text = random.choice(("9223372036854775794", "140737488355328.0", "1e400", "-0", "0.0", "1e-400", "+5", "1E3"))
        return text, float(text)
    if kind == 2:
        value = float(random.randint(-(10**15), 10**15))
        return f"{value:.0f}", value
    value = random.uniform(-1e6, 1e6) if kind < 5 else random.random()
    text = repr(value) if random.random() < 0.5 else f"{value:.3e}"
    return text, float(text)


def _stamp(random: Random) -> tuple[str, float]:
    if random.random() < 0.5:
        stamp = random.randint(10**12, 2 * 10**12)
        return str(stamp), float(stamp)
    seconds = random.randint(10**9, 2 * 10**9) + random.randint(0, 999) / 1000
    text = f"{seconds:.3f}"
    return text, float(text) * 1000.0 if math.isfinite(seconds) else math.nan
