"""An InfluxDB of our own on loopback: it keeps lines, answers the InfluxQL that we write, and fails as it is told.

As 3.x it keeps the shapes that its documentation gives: databases come into being as they are written to, the tags of a
table are fixed by its first line, a name is a tag or a field, there is neither Flux nor delete, the organisation is not
looked at, the token comes as `Token` or `Bearer`.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Tags = tuple[tuple[str, str], ...]
Point = dict[str, float | str]


class BadLineError(ValueError):
    """A line that is not line protocol."""


def parse_line(line: str) -> tuple[str, Tags, Point, int]:
    """Read one line by the protocol's letter."""
    head, rest = _cut(line, " ")
    body, stamp = _cut(rest, " ", quotes=True)
    parts = _split(head, ",")
    tags = []
    for part in parts[1:]:
        name, value = _cut(part, "=")
        if not name or not value:
            raise BadLineError(f"missing tag value: {line!r}")
        tags.append((_plain(name), _plain(value)))
    fields: Point = {}
    for part in _split(body, ",", quotes=True):
        name, value = _cut(part, "=")
        if value.startswith('"'):
            fields[_plain(name)] = re.sub(r'\\(["\\])', r"\1", value[1:-1])
        else:
            number = float(value)
            if not math.isfinite(number):
                raise BadLineError(f"invalid number: {line!r}")
            fields[_plain(name)] = number
    if not fields:
        raise BadLineError(f"missing fields: {line!r}")
    return _plain(parts[0]), tuple(tags), fields, int(stamp)


def _cut(text: str, mark: str, *, quotes: bool = False) -> tuple[str, str]:
    parts = _split(text, mark, quotes=quotes, most=1)
    if len(parts) != 2:
        raise BadLineError(f"expected {mark!r} in {text!r}")
    return parts[0], parts[1]


def _split(text: str, mark: str, *, quotes: bool = False, most: int = -1) -> list[str]:
    parts, start, index, quoted = [], 0, 0, False
    while index < len(text):
        char = text[index]
        if char == "\\":
            index += 2
            continue
        if char == '"' and quotes:
            quoted = not quoted
        elif char == mark and not quoted and (most < 0 or len(parts) < most):
            parts.append(text[start:index])
            start = index + 1
        index += 1
    return [*parts, text[start:]]


def _plain(text: str) -> str:
    return re.sub(r"\\([,= ])", r"\1", text)


def split_lines(text: str) -> list[str]:
    """Cut a body at newlines that stand in no quoted text; quotes count only behind a line's tags."""
    lines, quoted, start, tags = [], False, 0, True
    index = 0
    while index < len(text):
        char = text[index]
        if char == "\\":
            index += 2
            continue
        if char == " ":
            tags = False
        elif char == '"' and not tags:
            quoted = not quoted
        elif char == "\n" and not quoted:
            lines.append(text[start:index])
            start, tags = index + 1, True
        index += 1
    return [line for line in [*lines, text[start:]] if line]


@dataclass
class Fault:
    """What one request gets instead of an answer; `drop` closes the connection without one."""

    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "told to fail"
    keep: bool = False  # the lines were kept all the same: the answer was lost
    drop: bool = False


class InfluxDouble:
    """The server; use `running()`."""

    def __init__(self, version: str = "3.4.1", token: str = "") -> None:
        self.version = version
        self.token = token
        self.points: dict[str, dict[tuple[str, Tags, int], Point]] = defaultdict(dict)
        self.kinds: dict[tuple[str, str], tuple[str, ...]] = {}  # (database, measurement) -> its tags
        self.buckets = {"trimtab": 7 * 86400, "trimtab_minute": 90 * 86400, "trimtab_hour": 730 * 86400}
        self.faults: list[Fault] = []
        self.longest_body: int | None = None
        self.refuse: Callable[[str, Tags, Point, int], str | None] = lambda *_: None
        self.query_closed = False
        self.missing: set[str] = set()  # buckets that are not there
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.url = ""
        self._lock = threading.Lock()

    # Writing

    def write(self, database: str, precision: str, body: str) -> tuple[int, str]:
        scale = {"ms": 1_000_000, "ns": 1}[precision]
        if self.longest_body is not None and len(body) > self.longest_body:
            return 413, "request too large"
        refused: list[str] = []
        for line in split_lines(body):
            try:
                measurement, tags, fields, stamp = parse_line(line)
            except ValueError as error:
                refused.append(f"unable to parse: {error}")
                continue
            why = self.refuse(measurement, tags, fields, stamp) or self._wrong_shape(
                database, measurement, tags, fields
            )
            if why:
                refused.append(why)
                continue
            self.points[database].setdefault((measurement, tags, stamp * scale), {}).update(fields)
        if refused:
            return (422 if self.version.startswith("2") else 400), f"partial write: {refused[0]} dropped={len(refused)}"
        return 204, ""

    def _wrong_shape(self, database: str, measurement: str, tags: Tags, fields: Point) -> str | None:
        if not self.version.startswith("3"):
            return None
        names = tuple(sorted(name for name, _ in tags))
        known = self.kinds.setdefault((database, measurement), names)
        if known != names:
            return f"tags of {measurement} are {known}, got {names}"
        both = set(names) & set(fields)
        return f"{both} are tags and fields" if both else None

    def rows(self, database: str, measurement: str) -> list[tuple[dict[str, str], int, Point]]:
        with self._lock:
            found = [(dict(t), ns, f) for (m, t, ns), f in self.points[database].items() if m == measurement]
        return sorted(found, key=lambda row: (sorted(row[0].items()), row[1]))

    # Reading

    def query(self, database: str, statement: str) -> str:
        match = _SELECT.match(statement)
        if match is None:
            return f"error\nunable to parse {statement}\n"
        groups = [g.strip() for g in (match["group"] or "").split(", ") if g.strip()]
        every = next((int(g[5:-3]) for g in groups if g.startswith("time(")), None)
        by = [_unquoted(g) for g in groups if not g.startswith("time(")]
        start, end, accept = _condition(match["where"] or "")
        columns = [_column(c) for c in _commas(match["columns"])]
        series: dict[tuple[str, ...], list[tuple[int, Point]]] = defaultdict(list)
        for tags, ns, fields in self.rows(database, _unquoted(match["from"])):
            ms = ns // 1_000_000
            if start <= ms < end and accept(tags) and any(c.source in fields for c in columns):
                series[tuple(tags.get(tag, "") for tag in by)].append((ms, fields))
        lines = []
        for group in sorted(series):
            points = sorted(series[group], key=lambda p: p[0])
            text = ",".join(f"{tag}={_escaped(value)}" for tag, value in zip(by, group, strict=True))
            for ms, values in _answer(points, columns, every, start):
                lines.append([_unquoted(match["from"]), text, str(ms), *map(_text, values)])
        if not lines:
            return ""
        header = ["name", "tags", "time", *(c.alias for c in columns)]
        return "".join(",".join(map(_csv, line)) + "\n" for line in [header, *lines])


_SELECT = re.compile(
    r'SELECT (?P<columns>.+) FROM (?P<from>"(?:[^"\\]|\\.)*")'
    r"(?: WHERE (?P<where>.+?))?(?: GROUP BY (?P<group>.+?))?(?: fill\(none\))?$",
    re.DOTALL,
)
_COLUMN = re.compile(
    r'(?:(?P<function>\w+)\((?P<source>"[^"]*")(?:, (?P<rank>[\d.]+))?\)|(?P<plain>"[^"]*"))'
    r'(?: AS (?P<alias>"[^"]*"))?$'
)


@dataclass
class _Column:
    function: str | None
    source: str
    rank: float
    alias: str


def _commas(text: str) -> list[str]:
    return re.split(r", (?=(?:\w+\()?\")", text)


def _column(text: str) -> _Column:
    match = _COLUMN.match(text)
    assert match is not None, text
    source = _unquoted(match["source"] or match["plain"])
    alias = _unquoted(match["alias"]) if match["alias"] else source
    return _Column(match["function"], source, float(match["rank"] or 0), alias)


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def _escaped(text: str) -> str:
    return re.sub(r"([,= ])", r"\\\1", text)


_EQUAL = re.compile(r'("(?:[^"\\]|\\.)*") = (\'(?:[^\'\\]|\\.)*\')')


def _condition(text: str) -> tuple[int, int, Callable[[dict[str, str]], bool]]:
    start, end = 0, 2**62
    if match := re.search(r"time >= (\d+)ms", text):
        start = int(match[1])
    if match := re.search(r"time < (\d+)ms", text):
        end = int(match[1])
    groups = re.findall(r"\(((?:\"(?:[^\"\\]|\\.)*\" = '(?:[^'\\]|\\.)*'(?: OR )?)+)\)", text)
    wanted = [[(_unquoted(t), _unquoted(v)) for t, v in _EQUAL.findall(group)] for group in groups]
    return start, end, lambda tags: all(any(tags.get(t, "") == v for t, v in group) for group in wanted)


def _answer(
    points: list[tuple[int, Point]], columns: list[_Column], every: int | None, start: int
) -> Iterator[tuple[int, list[float | str | None]]]:
    functions = {c.function for c in columns if c.function}
    if not functions:
        for ms, fields in points:
            yield ms, [fields.get(c.source) for c in columns]
        return
    if functions <= {"first", "last"} and every is None and sum(c.function is not None for c in columns) == 1:
        (selector,) = (c for c in columns if c.function)
        present = [p for p in points if selector.source in p[1]]
        if present:
            ms, fields = present[0 if selector.function == "first" else -1]
            yield ms, [fields.get(c.source) for c in columns]
        return
    buckets: dict[int, list[Point]] = defaultdict(list)
    for ms, fields in points:
        buckets[start if every is None else ms // every * every].append(fields)
    for at in sorted(buckets):
        yield at, [_aggregate(c, [f[c.source] for f in buckets[at] if c.source in f]) for c in columns]


def _aggregate(column: _Column, values: list[Any]) -> float | None:
    if column.function == "percentile":
        rank = int(len(values) * column.rank / 100 + 0.5)
        return sorted(values)[rank - 1] if 1 <= rank <= len(values) else None
    if not values:
        return None
    return {
        "mean": lambda: sum(values) / len(values),
        "min": lambda: min(values),
        "max": lambda: max(values),
        "sum": lambda: sum(values),
        "count": lambda: len(values),
        "first": lambda: values[0],
        "last": lambda: values[-1],
    }[str(column.function)]()


def _text(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else repr(value)


def _csv(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if re.search(r'[",\n\r]', text) else text


class _Handler(BaseHTTPRequestHandler):
    double: InfluxDouble
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._body()
        if self.path.startswith("/ping"):
            self._say(204, b"")
        elif self.path.startswith("/api/v2/setup"):
            self._say(200 if self.double.version.startswith("2") else 404, b"{}")
        elif self._refused():
            self._say(401, b'{"message": "unauthorized"}')
        elif self.path.startswith("/api/v2/buckets") and self.double.version.startswith("2"):
            found = [
                {"id": name, "name": name, "retentionRules": [{"everySeconds": seconds}] if seconds else []}
                for name, seconds in self.double.buckets.items()
            ]
            self._say(200, json.dumps({"buckets": found}).encode())
        else:
            self._say(404, b"{}")

    def do_POST(self) -> None:
        raw = self._body()
        url = urlsplit(self.path)
        query = {k: v[0] for k, v in parse_qs(url.query, keep_blank_values=True).items()}
        with self.double._lock:
            self.double.requests.append((url.path, self.headers.get("Authorization", ""), query))
            fault = self.double.faults.pop(0) if self.double.faults and url.path != "/ping" else None
        if self._refused():
            self._say(401, b'{"message": "unauthorized"}')
            return
        if fault is not None and not fault.keep:
            self._fail(fault)
            return
        if url.path == "/api/v2/write":
            text = (gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw).decode()
            if query["bucket"] in self.double.missing:
                message = f'bucket \\"{query["bucket"]}\\" not found'
                self._say(404, f'{{"code": "not found", "message": "{message}"}}'.encode())
                return
            with self.double._lock:
                status, why = self.double.write(query["bucket"], query["precision"], text)
            if fault is not None:
                self._fail(fault)
                return
            self._say(status, b"" if status == 204 else json.dumps({"message": why}).encode())
        elif url.path == "/query" and not self.double.query_closed:
            form = {k: v[0] for k, v in parse_qs(raw.decode(), keep_blank_values=True).items()}
            self._say(200, self.double.query(form["db"], form["q"]).encode(), "application/csv")
        else:
            self._say(404, b'{"message": "not found"}')

    def _refused(self) -> bool:
        wanted = (f"Token {self.double.token}", f"Bearer {self.double.token}")
        return bool(self.double.token) and self.headers.get("Authorization", "") not in wanted

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _fail(self, fault: Fault) -> None:
        if fault.drop:
            self.close_connection = True
            return
        body = b"" if fault.status == 204 else json.dumps({"message": fault.message}).encode()
        self._say(fault.status, body, headers=fault.headers)

    def _say(
        self, status: int, body: bytes, kind: str = "application/json", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("X-Influxdb-Version", self.double.version)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def running(version: str = "3.4.1", token: str = "") -> Iterator[InfluxDouble]:
    """Run it on a free port of loopback."""
    double = InfluxDouble(version, token)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"double": double}))
    server.daemon_threads = True
    double.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield double
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
