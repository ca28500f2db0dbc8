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

import numpy as np
from numpy.typing import NDArray

from collector.shapes import Shape, Text, read_number, read_numbers, shape_of

Floats = NDArray[np.float64]

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_START = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_.:]*)\s*=\s*"')
_STRICT_VALUE = re.compile(r'(?:[^"\\]|\\.)*"')
_AFTER_VALUE = re.compile(r'\s*(?:,\s*(?:[a-zA-Z_][a-zA-Z0-9_.:]*\s*=\s*"|\})|\}\s*(?:\S|$))')
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
    reasons: index -> why a sample (then NaN) is invalid, where its source says so.
    metadata: some `# HELP`, `# TYPE` or `# EOF` was there (a scrape without samples is then one without devices).
    """

    series: Sequence[Series] = field(default_factory=list)
    values: Sequence[float] | Floats = field(default_factory=list)
    stamps_ms: dict[int, float] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    rejects: list[LineReject] = field(default_factory=list)
    metadata: bool = False


class ExpositionParser:
    """Parses the texts of one target; keeps what it learnt about the target's series from text to text."""

    def __init__(self) -> None:
        self._known: dict[str, Series] = {}  # but for those of the shape, while there is one
        self._blocks: dict[str, dict[str, str]] = {}
        self._shaped: list[Series] = []  # of the last text, where it has a shape
        self._shape: Shape | None = None

    def parse(self, body: Text) -> Exposition:
        """Read a body. A body that is no exposition gives no samples and one reject with its reason."""
        known = self.read_known(body)
        if known is not None:
            return known
        if self._shape is not None:
            self._known.update(zip(self._shape.keys(), self._shaped, strict=True))
        text = body if isinstance(body, str) else str(body, "utf-8", errors="replace")
        lines = text.split("\n")
        result = self._of_known_lines(text, lines)
        if result is None:
            result = self._line_by_line(lines)
            result.metadata = result.metadata or _has_metadata(text)
            if not result.rejects and not result.stamps_ms:
                # A shape at once: else all texts of a target's lines would wait in `_known` for the next scrape.
                result = self._of_known_lines(text, lines) or result
        if not result.series and not result.metadata and result.rejects:
            result.rejects = [LineReject(0, _body_reason(text), text.strip()[:80])]
        return result

    def read_known(self, body: Text) -> Exposition | None:
        """Read a body that differs from the last one in its values alone; None for any other."""
        numbers = None if self._shape is None else self._shape.read(body)
        if numbers is None or self._shape is None:
            return None
        # The very list of series: who compares sees at once that nothing changed.
        return Exposition(self._shaped, numbers, metadata=self._shape.metadata)

    def _of_known_lines(self, text: str, lines: list[str]) -> Exposition | None:
        """Read a body of known series and comments alone, in any order; None for any other."""
        self._shape = None
        samples = [bool(line) and line[0] != "#" for line in lines]
        told = list(compress(lines, samples))
        blanks = list(map(str.rfind, told, repeat(" ")))
        starts = [line[: blank + 1] for line, blank in zip(told, blanks, strict=True)]
        try:
            series = list(map(self._known.__getitem__, starts))
        except KeyError:
            return None
        numbers = read_numbers([line[blank + 1 :] for line, blank in zip(told, blanks, strict=True)])
        if not series or numbers is None:
            return None
        self._shaped = series
        self._shape = shape_of(text, lines, samples, starts, numbers, metadata=_has_metadata(text))
        # The shape has these texts too: of thousands of lines they are not kept twice.
        for start in starts:
            self._known.pop(start, None)
        self._known = dict(self._known)  # which gives back the room of those that went
        self._blocks = {}  # what a new series says of a device is read again; the others share theirs
        return Exposition(series, numbers, metadata=self._shape.metadata)

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
                    values.append(read_number(line[blank:]))
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
        value = read_number(words[0])
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
