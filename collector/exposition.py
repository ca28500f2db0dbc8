"""Prometheus and OpenMetrics text, read line by line: fast where the text is the usual one, tolerant where it is not.

Labels are never parsed twice: a parser keeps a dictionary from the raw text of a series (all of the line up to its last
blank) to the parsed series. From scrape to scrape a target says mostly the same series in the same order, so a body is
first laid beside the lines of those before: a line that begins as expected costs no look-up, only its `float`. Only an
unknown text takes the slow path, which reads escapes, unescaped quotes and backslashes, timestamps and exemplars. One
bad line is one reject and never loses a scrape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from operator import eq

from collector.roster import merged

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_START = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_.:]*)\s*=\s*"')
_STRICT_VALUE = re.compile(r'(?:[^"\\]|\\.)*"')
_AFTER_VALUE = re.compile(r'\s*(?:,\s*(?:[a-zA-Z_][a-zA-Z0-9_.:]*\s*=\s*"|\})|\}\s*\S)')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}
_METADATA = ("# HELP", "# TYPE", "# EOF", "# UNIT")
_CACHE_SLACK = 1024


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
    metadata: some `# HELP`, `# TYPE` or `# EOF` was there (a scrape without samples is then one without devices).
    """

    series: list[Series] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    stamps_ms: dict[int, float] = field(default_factory=dict)
    rejects: list[LineReject] = field(default_factory=list)
    metadata: bool = False


_COMMENT = Series("#", {})


class ExpositionParser:
    """Parses the texts of one target; keeps what it learnt about the target's series from text to text."""

    def __init__(self) -> None:
        self._known: dict[str, Series] = {}
        self._starts: list[str] = []  # what sample lines are expected to begin with, in the order of the text
        self._expected: list[Series] = []  # their series
        self._places: dict[str, int] = {}  # position of each
        self._last: tuple[str, Exposition] = ("", Exposition())

    def parse(self, text: str) -> Exposition:
        """Read a body. A body that is no exposition gives no samples and one reject with its reason.

        The result belongs to the parser: an equal body gives the same object.
        """
        if text and text == self._last[0]:
            return self._last[1]
        lines = text.split("\n")
        result = self._as_expected(lines) or self._line_by_line(lines)
        result.metadata = result.metadata or _has_metadata(text)
        if not result.series and not result.metadata and result.rejects:
            result.rejects = [LineReject(0, _body_reason(text), text.strip()[:80])]
        self._last = (text, result)
        return result

    def _as_expected(self, lines: list[str]) -> Exposition | None:
        """Read a body whose samples are some of the expected ones, in the same order; None for any other."""
        samples = [line for line in lines if line and line[0] != "#"]
        result = Exposition()
        values, series = result.values, result.series
        place = 0
        while len(values) < len(samples):
            rests = list(map(str.removeprefix, islice(samples, len(values), None), islice(self._starts, place, None)))
            read = _floats(rests, values)
            # A bare number reads well although it has no beginning.
            if any(map(eq, rests[:read], islice(samples, len(values) - read, None))):
                return None
            if read == len(self._expected) == len(samples):
                result.series = self._expected  # the very list: who compares sees at once that nothing changed
                return result
            series += self._expected[place : place + read]
            if len(values) < len(samples):
                there = self._places.get(samples[len(values)].rpartition(" ")[0] + " ", -1)
                if there <= place + read:
                    return None
                place = there
        return result if samples else None

    def _line_by_line(self, lines: list[str]) -> Exposition:
        result = Exposition()
        series_append, value_append = result.series.append, result.values.append
        known = self._known.get
        starts: list[str] = []
        for number, line in enumerate(lines, start=1):
            key, blank, raw = line.rpartition(" ")
            series = known(key)
            if series is not None and series is not _COMMENT:
                try:
                    value = float(raw)
                except ValueError:
                    self._slow(line, number, result)
                    continue
                series_append(series)
                value_append(value)
                starts.append(key + blank)
            elif line and not (series is _COMMENT and line[0] == "#"):
                self._slow(line, number, result)
        if len(self._known) > 2 * len(lines) + _CACHE_SLACK:
            present = set(result.series)
            self._known = {key: series for key, series in self._known.items() if series in present}
        self._expect(starts)
        return result

    def _expect(self, starts: list[str]) -> None:
        """Expect these beginnings of lines next time, beside those of earlier texts."""
        self._starts = [start for start in merged(self._starts, starts) if start[:-1] in self._known]
        self._expected = [self._known[start[:-1]] for start in self._starts]
        self._places = {start: place for place, start in enumerate(self._starts)}

    def _slow(self, line: str, number: int, result: Exposition) -> None:
        """Read one line of any shape; remember its series."""
        stripped = line.strip()
        if not stripped:
            return
        if stripped[0] == "#":
            result.metadata = result.metadata or stripped.startswith(_METADATA)
            self._known[line.rpartition(" ")[0]] = _COMMENT
            return
        try:
            end, series = self._series(stripped)
            value, stamp = _value_and_stamp(stripped[end:])
        except _BadLineError as error:
            result.rejects.append(LineReject(number, str(error), stripped[:80]))
            return
        if stamp is not None:
            result.stamps_ms[len(result.series)] = stamp
        result.series.append(series)
        result.values.append(value)

    def _series(self, line: str) -> tuple[int, Series]:
        """Return where the series' text ends and the series, the same object for the same text."""
        end = line.rfind("}") + 1
        series = self._known.get(line[:end])
        if series is not None and series is not _COMMENT:
            return end, series
        match = _NAME.match(line)
        if match is None:
            raise _BadLineError("no metric name")
        end = match.end()
        rest = line[end:].lstrip()
        labels: dict[str, str] = {}
        if rest.startswith("{"):
            end, labels = _labels(line, line.index("{", end) + 1)
        elif line[end : end + 1] not in (" ", "\t"):
            raise _BadLineError("no metric name")
        text = line[:end]
        series = self._known.get(text)
        if series is None or series is _COMMENT:
            series = Series(match.group(), labels)
            self._known[text] = series
        return end, series


class _BadLineError(Exception):
    """Reason why a line cannot be read."""


def _floats(texts: list[str], values: list[float]) -> int:
    """Append numbers up to the first text that is none; return how many they were."""
    before = len(values)
    try:
        values += list(map(float, texts))
    except ValueError:
        with suppress(ValueError):
            for value in map(float, texts):
                values.append(value)
    return len(values) - before


_ValueEnd = Callable[[str, int], tuple[int, str]]


def parse_exposition(text: str) -> Exposition:
    """Read one body without a memory of earlier ones."""
    return ExpositionParser().parse(text)


def _labels(line: str, start: int) -> tuple[int, dict[str, str]]:
    """Read labels from behind `{`; return the position behind `}`. First by the format's rules, else by tolerance."""
    try:
        return _read_labels(line, start, _strict_end)
    except _BadLineError:
        return _read_labels(line, start, _tolerant_end)


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
        value = float(words[0])
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
