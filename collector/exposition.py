"""Prometheus and OpenMetrics text, read line by line: fast where the text is the usual one, tolerant where it is not.

Labels are never parsed twice: a parser keeps a dictionary from the raw text of a series (all of the line up to its last
blank, and that blank) to the parsed series, and one from the text in braces to the labels, which the metrics of one
device share. From scrape to scrape a target says mostly the same series in the same order, so a body is first laid
beside the lines of the last one: only values are read then, all at once. Only an unknown text takes the slow path,
which reads escapes, unescaped quotes and backslashes, timestamps and exemplars. One bad line is one reject and never
loses a scrape.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, repeat
from operator import not_

import numpy as np
import orjson
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_START = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_.:]*)\s*=\s*"')
_STRICT_VALUE = re.compile(r'(?:[^"\\]|\\.)*"')
_AFTER_VALUE = re.compile(r'\s*(?:,\s*(?:[a-zA-Z_][a-zA-Z0-9_.:]*\s*=\s*"|\})|\}\s*(?:\S|$))')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}
_METADATA = ("# HELP", "# TYPE", "# EOF", "# UNIT")
_CACHE_SLACK = 1024
_JSON_NUMBERS = b"0123456789+-.eE,"


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A metric's name and labels. Compared by identity: a parser gives the same object for the same text."""

    name: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LineReject:
    """A line that could not be read: its number (from 1; 0: the whole body), the reason, and its first characters."""

    line: int
    reason: str
    text: str


@dataclass(slots=True)
class Exposition:
    """What one text held.

    series, values: parallel, in the order of the text; values as written (NaN and infinities included).
    stamps_ms: index -> explicit timestamp in milliseconds, for the few samples that carry one.
    reasons: index -> why a sample (then NaN) is invalid, where its source says so.
    metadata: some `# HELP`, `# TYPE` or `# EOF` was there (a scrape without samples is then one without devices).
    """

    series: Sequence[Series] = field(default_factory=list)
    values: Sequence[float] | Floats = field(default_factory=list)
    stamps_ms: dict[int, float] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    rejects: list[LineReject] = field(default_factory=list)
    metadata: bool = False


@dataclass(slots=True)
class _Shape:
    """The lines of a text without their values, where it holds known series and comments alone.

    samples, others: for each line, whether it is a sample or something else (a comment, an empty line).
    starts, series: of the samples, all of the line but its value, and what it says.
    comments: the lines that are no samples.
    fixed: how many characters of the text are not of values.
    """

    starts: list[str]
    series: list[Series]
    samples: list[bool]
    others: list[bool]
    comments: list[str]
    fixed: int
    metadata: bool


class ExpositionParser:
    """Parses the texts of one target; keeps what it learnt about the target's series from text to text."""

    def __init__(self) -> None:
        self._known: dict[str, Series] = {}
        self._blocks: dict[str, dict[str, str]] = {}
        self._last: _Shape | None = None

    def parse(self, text: str) -> Exposition:
        """Read a body. A body that is no exposition gives no samples and one reject with its reason."""
        lines = text.split("\n")
        result = self._of_last_shape(text, lines) or self._of_known_lines(text, lines)
        if result is None:
            result = self._line_by_line(lines)
            result.metadata = result.metadata or _has_metadata(text)
        if not result.series and not result.metadata and result.rejects:
            result.rejects = [LineReject(0, _body_reason(text), text.strip()[:80])]
        return result

    def _of_last_shape(self, text: str, lines: list[str]) -> Exposition | None:
        """Read a body whose lines are those of the last one but for values; None for any other."""
        last = self._last
        if last is None or len(lines) != len(last.samples):
            return None
        values = list(map(str.removeprefix, compress(lines, last.samples), last.starts))
        # A line that does not begin as expected stays whole, and then the values together are too long.
        if sum(map(len, values)) != len(text) - last.fixed or list(compress(lines, last.others)) != last.comments:
            return None
        numbers = _numbers(values)
        # The very list of series: who compares sees at once that nothing changed.
        return None if numbers is None else Exposition(last.series, numbers, metadata=last.metadata)

    def _of_known_lines(self, text: str, lines: list[str]) -> Exposition | None:
        """Read a body of known series and comments alone, in any order; None for any other."""
        self._last = None
        samples = [bool(line) and line[0] != "#" for line in lines]
        told = list(compress(lines, samples))
        blanks = list(map(str.rfind, told, repeat(" ")))
        starts = [line[: blank + 1] for line, blank in zip(told, blanks, strict=True)]
        try:
            series = list(map(self._known.__getitem__, starts))
        except KeyError:
            return None
        if not series:
            return None
        numbers = _numbers([line[blank + 1 :] for line, blank in zip(told, blanks, strict=True)])
        if numbers is None:
            return None
        others = list(map(not_, samples))
        comments = list(compress(lines, others))
        fixed = sum(map(len, starts)) + sum(map(len, comments)) + len(lines) - 1
        self._last = _Shape(starts, series, samples, others, comments, fixed, _has_metadata(text))
        return Exposition(series, numbers, metadata=self._last.metadata)

    def _line_by_line(self, lines: list[str]) -> Exposition:
        series: list[Series] = []
        values: list[float] = []
        result = Exposition(series)
        known = self._known.get
        for number, line in enumerate(lines, start=1):
            blank = line.rfind(" ") + 1
            one = known(line[:blank])
            if one is not None:
                try:
                    values.append(_number(line[blank:]))
                except ValueError:
                    self._slow(line, number, series, values, result)
                else:
                    series.append(one)
            elif line:
                self._slow(line, number, series, values, result)
        if len(self._known) > 2 * len(lines) + _CACHE_SLACK:
            present = set(series)
            self._known = {key: one for key, one in self._known.items() if one in present}
            self._blocks = {}
        result.values = np.array(values, dtype=np.float64)
        return result

    def _slow(self, line: str, number: int, series: list[Series], values: list[float], result: Exposition) -> None:
        """Read one line of any shape; remember its series."""
        stripped = line.strip()
        if not stripped:
            return
        if stripped[0] == "#":
            result.metadata = result.metadata or stripped.startswith(_METADATA)
            return
        try:
            end, one = self._series(stripped)
            value, stamp = _value_and_stamp(stripped[end:])
        except _BadLineError as error:
            result.rejects.append(LineReject(number, str(error), stripped[:80]))
            return
        if stamp is not None:
            result.stamps_ms[len(series)] = stamp
        series.append(one)
        values.append(value)

    def _series(self, line: str) -> tuple[int, Series]:
        """Return where the series' text ends and the series, the same object for the same text."""
        end = line.rfind("}") + 1
        series = self._known.get(line[:end] + " ")
        if series is not None:
            return end, series
        match = _NAME.match(line)
        if match is None:
            raise _BadLineError("no metric name")
        end = match.end()
        rest = line[end:].lstrip()
        labels: Mapping[str, str] = {}
        if rest.startswith("{"):
            end, labels = self._labels(line, line.index("{", end) + 1)
        elif line[end : end + 1] not in (" ", "\t"):
            raise _BadLineError("no metric name")
        text = line[:end] + " "
        series = self._known.get(text)
        if series is None:
            series = Series(sys.intern(match.group()), labels)
            self._known[text] = series
        return end, series

    def _labels(self, line: str, start: int) -> tuple[int, Mapping[str, str]]:
        """Read labels from behind `{`; return the position behind `}`. By the format's rules, else by tolerance."""
        end = line.rfind("}") + 1
        block = line[start:end]
        known = self._blocks.get(block)
        if known is not None:
            return end, known
        try:
            position, labels = _read_labels(line, start, _strict_end)
        except _BadLineError:
            return _read_labels(line, start, _tolerant_end)
        if position == end:
            self._blocks[block] = labels
        return position, labels


class _BadLineError(Exception):
    """Reason why a line cannot be read."""


def _number(text: str) -> float:
    """Return a number as exporters write it; Python alone reads `1_000` as one.

    Raises:
        ValueError: it is none.
    """
    if "_" in text:
        raise ValueError(text)
    return float(text)


def _numbers(texts: list[str]) -> Floats | None:
    """Return many numbers at once; None where any text is none."""
    try:
        return np.array(list(map(_number, texts)) if (read := _json_numbers(texts)) is None else read, dtype=np.float64)
    except ValueError:
        return None


def _json_numbers(texts: list[str]) -> list[float] | None:
    """Read numbers at a tenth of `float`'s cost where all are written as JSON's are (no NaN, no infinity)."""
    joined = ",".join(texts).encode()
    if joined.translate(None, _JSON_NUMBERS):
        return None
    try:
        numbers: list[float] = orjson.loads(b"[%b]" % joined)
    except orjson.JSONDecodeError:
        return None
    return numbers if len(numbers) == len(texts) else None


_ValueEnd = Callable[[str, int], tuple[int, str]]


def parse_exposition(text: str) -> Exposition:
    """Read one body without a memory of earlier ones."""
    return ExpositionParser().parse(text)


def _read_labels(line: str, start: int, value_end: _ValueEnd) -> tuple[int, dict[str, str]]:
    labels: dict[str, str] = {}
    position = start
    while True:
        match = _LABEL_START.match(line, position)
        if match is None:
            tail = line[position:].lstrip()
            if not tail.startswith("}"):
                raise _BadLineError("bad labels")
            return line.index("}", position) + 1, labels
        position, labels[match.group(1)] = value_end(line, match.end())
        while position < len(line) and line[position] in " \t":
            position += 1
        if line[position : position + 1] == ",":
            position += 1
        elif line[position : position + 1] != "}":
            raise _BadLineError("bad labels")


def _strict_end(line: str, start: int) -> tuple[int, str]:
    match = _STRICT_VALUE.match(line, start)
    if match is None:
        raise _BadLineError("bad labels")
    text = line[start : match.end() - 1]
    if "\\" in text:
        text = _ESCAPE.sub(lambda m: _ESCAPED.get(m.group(1), m.group(0)), text)
    return match.end(), text


def _tolerant_end(line: str, start: int) -> tuple[int, str]:
    """Return the end by the rule that the closing quote is the one before `, name="` or before `} value`."""
    position = line.find('"', start)
    while position >= 0:
        if _AFTER_VALUE.match(line, position + 1):
            return position + 1, line[start:position]
        position = line.find('"', position + 1)
    raise _BadLineError("bad labels")


def _value_and_stamp(text: str) -> tuple[float, float | None]:
    """Read what follows the series: value, perhaps a timestamp, perhaps an exemplar."""
    words = text.partition(" # ")[0].split()
    if not words:
        raise _BadLineError("no value")
    try:
        value = _number(words[0])
    except ValueError:
        raise _BadLineError("value is not a number") from None
    if len(words) == 1:
        return value, None
    if len(words) > 2:
        raise _BadLineError("text after the value")
    try:
        stamp = float(words[1])
    except ValueError:
        raise _BadLineError("timestamp is not a number") from None
    # OpenMetrics writes seconds, with a point; the older format whole milliseconds.
    return value, stamp * 1000.0 if "." in words[1] or abs(stamp) < 1e11 else stamp


def _has_metadata(text: str) -> bool:
    return text.startswith(_METADATA) or any(f"\n{mark}" in text for mark in _METADATA)


def _body_reason(text: str) -> str:
    head = text.lstrip()[:16].lower()
    if head.startswith(("{", "[")):
        return "body is JSON, not an exposition"
    if head.startswith("<"):
        return "body is HTML, not an exposition"
    if head.startswith("http/"):
        return "body is an HTTP error, not an exposition"
    return "body is not an exposition"
