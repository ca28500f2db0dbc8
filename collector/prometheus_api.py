"""Questions to a Prometheus (or what answers like one: Thanos, Mimir, VictoriaMetrics): names, and raw samples.

The connection is prometheus-api-client's, over a session with limits. Raw samples with their true stamps come from
instant queries with a range selector; no evaluation step repeats or invents any. Prometheus 2 includes both borders of
a range and 3 leaves the first one out: a range is asked for a little wider than needed and cut to [start, end) here, so
that no sample is doubled or lost at a border on either.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar
from urllib.parse import urlsplit

import numpy as np
import orjson
import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from urllib3.exceptions import HTTPError

from collector.clock import from_ms, to_ms
from collector.errors import UnreachableError
from collector.http import HttpSession, TooLargeError, unreachable
from collector.masking import mask_address
from collector.prometheus_answer import BadAnswerError, RangeAnswer, read_range
from collector.settings import SourceSettings

T = TypeVar("T")
Address = tuple[str, str]  # job and instance of a target

MAX_BYTES = 64 * 2**20
_NAMES_A_QUERY = 40
_ADDRESSES_A_QUERY = 50
_BORDER_SECONDS = 1
_PAUSES_SECONDS = (0.2, 1.0)  # before the second and the third try
_PASSING = (429, 502, 503, 504)
_TOO_MUCH = ("too many samples", "timeout", "timed out", "exceeded maximum resolution", "limit exceeded")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class TooMuchError(UnreachableError):
    """The server would answer a smaller question, this one is too much for it or for us."""


def quoted(value: str) -> str:
    r"""Return a value as a string of PromQL: quotes, backslashes and line ends are escaped.

    >>> quoted('a"b\\c')
    '"a\\"b\\\\c"'
    """
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{text}"'


def selector(names: Sequence[str], match: Mapping[str, str]) -> str:
    """Return a selector of series by names (any of them) and labels (all of them).

    Names are those of metrics as Prometheus allows them everywhere (letters, digits, `_`, `:`), or are escaped.
    """
    pattern = "|".join(_literal(name) for name in names)
    labels = [f"__name__=~{quoted(pattern)}", *(f"{name}={quoted(value)}" for name, value in match.items())]
    return "{" + ",".join(labels) + "}"


def _literal(name: str) -> str:
    """Return a pattern (RE2) that matches nothing but the name."""
    return "".join(char if char.isalnum() or char in "_:" else f"\\x{{{ord(char):x}}}" for char in name)


class PrometheusApi:
    """One server.

    Args:
        settings: the `[[source]]` table: address, time-out, log-in, `match`.
        pause: waits so many seconds before another try.

    Raises:
        ConfigurationError: a file that the settings name cannot be read.
    """

    def __init__(self, settings: SourceSettings, pause: Callable[[float], None] = time.sleep) -> None:
        self.url = settings.url.rstrip("/")
        self.place = mask_address(self.url)
        self._match = settings.match
        self._timeout_seconds = settings.timeout_seconds
        self._pause = pause
        self._session = HttpSession(settings, MAX_BYTES)
        if urlsplit(self.url).hostname in _LOOPBACK:
            self._session.headers["Accept-Encoding"] = "identity"  # packing costs more than it saves
        self._connection = PrometheusConnect(url=self.url, session=self._session)
        self._session.mount(self.url, self._session.adapter)  # the library put one without limits in its place

    def names(self, start: datetime | None = None, end: datetime | None = None) -> list[str]:
        """Return the metric names that have samples in a window (None: ever), as far as the server can tell, sorted.

        Raises:
            UnreachableError: the server does not answer, or answers with an error.
        """
        window = {name: f"{at.timestamp():.3f}" for name, at in (("start", start), ("end", end)) if at is not None}
        if self._match:
            window["match[]"] = "{" + ",".join(f"{name}={quoted(value)}" for name, value in self._match.items()) + "}"
        try:
            found = self._connection.all_metrics(params=window)
        except (*_FAILURES, PrometheusApiClientException, KeyError, TypeError) as error:
            raise UnreachableError(f"{self.place}: expected metric names, got {_words(error)}") from error
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise UnreachableError(f"{self.place}: expected metric names, got something else")
        return sorted(found)

    def samples(self, names: Sequence[str], start: datetime, end: datetime) -> Iterator[RangeAnswer]:
        """Yield all raw samples of the named metrics in [start, end), some names at a time.

        Each sample comes once, whatever the server's borders; within a series in order of time.

        Raises:
            TooMuchError: the window is too long for the server, or its answer too large, even for one name.
            UnreachableError: the server does not answer, or answers with an error.
        """
        first_ms, end_ms = to_ms(start), to_ms(end)
        waiting = [names[n : n + _NAMES_A_QUERY] for n in range(0, len(names), _NAMES_A_QUERY)]
        while waiting:
            some = waiting.pop(0)
            try:
                answer = self.query(f"{selector(some, self._match)}[{_seconds(first_ms, end_ms)}s]", end)
            except TooMuchError:
                if len(some) == 1:
                    raise
                half = len(some) // 2
                waiting[:0] = [some[:half], some[half:]]
                continue
            yield _cut(answer, first_ms, end_ms)

    def told(self, names: Sequence[str], addresses: Sequence[Address], start: datetime, end: datetime) -> set[Address]:
        """Return which of some targets had samples of any of the named metrics within a window, by the server's index.

        Raises:
            UnreachableError: the server does not answer, or answers with an error.
        """
        window = {name: f"{at.timestamp():.3f}" for name, at in (("start", start), ("end", end))}
        found: set[Address] = set()
        for n in range(0, len(addresses), _ADDRESSES_A_QUERY):
            some = addresses[n : n + _ADDRESSES_A_QUERY]
            jobs, instances = (
                "|".join(sorted({_literal(text) for text in texts})) for texts in zip(*some, strict=True)
            )
            of_them = f",job=~{quoted(jobs)},instance=~{quoted(instances)}}}"
            for m in range(0, len(names), _NAMES_A_QUERY):
                wanted = selector(names[m : m + _NAMES_A_QUERY], self._match).removesuffix("}") + of_them
                answer = self._post("series", {"match[]": wanted, **window})
                found |= self._read(answer, _addresses)
        return found & set(addresses)

    def query(self, query: str, at: datetime) -> RangeAnswer:
        """Ask a question whose answer is a range of samples; one that passes (overload, a restart) is asked again.

        Raises:
            TooMuchError: too much for the server, or for the limit of an answer.
            UnreachableError: the server does not answer, or answers with an error.
        """
        form = {"query": query, "time": f"{from_ms(to_ms(at)).timestamp():.3f}"}
        form["timeout"] = f"{math.ceil(self._timeout_seconds)}s"
        return self._read(self._post("query", form), read_range)

    def _post(self, what: str, form: Mapping[str, str]) -> requests.Response:
        for pause in (*_PAUSES_SECONDS, None):
            try:
                answer = self._session.request("POST", f"{self.url}/api/v1/{what}", data=form)
            except TooLargeError as error:
                raise TooMuchError(f"{self.place}: {error}") from error
            except _FAILURES as error:
                # A kept connection that a restarted server has closed; a time-out has used up its time.
                if pause is None or not isinstance(error, requests.ConnectionError):
                    raise unreachable(self.url, error) from error
            else:
                if pause is None or answer.status_code not in _PASSING or _is_too_much(answer):
                    return answer
            self._pause(pause)
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _read(self, answer: requests.Response, reader: Callable[[bytes], T]) -> T:
        if answer.status_code != 200:
            said = _error_of(answer) or f"HTTP {answer.status_code}{_hint(answer)}"
            make = TooMuchError if _is_too_much(answer) else UnreachableError
            raise make(f"{self.place}: expected samples, got {said}")
        try:
            return reader(answer.content)
        except BadAnswerError as error:
            raise UnreachableError(f"{self.place}: expected samples, got {error}") from error


def _addresses(content: bytes) -> set[Address]:
    """Return job and instance of each series of an answer.

    Raises:
        BadAnswerError: it is none of series.
    """
    try:
        return {(labels.get("job", ""), labels.get("instance", "")) for labels in orjson.loads(content)["data"]}
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise BadAnswerError("something else than series") from error


_FAILURES = (requests.RequestException, HTTPError, OSError, ValueError)


def _seconds(first_ms: int, end_ms: int) -> int:
    return math.ceil((end_ms - first_ms) / 1000) + _BORDER_SECONDS


def _cut(answer: RangeAnswer, first_ms: int, end_ms: int) -> RangeAnswer:
    """Return the samples in [first, end)."""
    inside = (answer.times_ms >= first_ms) & (answer.times_ms < end_ms)
    if inside.all():
        return answer
    series = np.repeat(np.arange(len(answer.metrics)), answer.counts)[inside]
    counts = np.bincount(series, minlength=len(answer.metrics)).astype(np.int64)
    return RangeAnswer(answer.metrics, counts, answer.times_ms[inside], answer.values[inside])


def _is_too_much(answer: requests.Response) -> bool:
    said = _error_of(answer).lower()
    return answer.status_code != 200 and any(words in said for words in _TOO_MUCH)


def _error_of(answer: requests.Response) -> str:
    """Return what the server says is wrong; empty where it does not say it as Prometheus does."""
    try:
        said = orjson.loads(answer.content)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""
    return " ".join(str(said).split())[:200]


def _hint(answer: requests.Response) -> str:
    if answer.status_code in (401, 403):
        return " (bearer_token, bearer_token_file or username and password of [[source]])"
    if answer.status_code == 404:
        return " (is `url` the base address, without /api/v1?)"
    if 300 <= answer.status_code < 400:
        return " (a redirect that drops the question: set `url` to where it points)"
    return ""


def _words(error: Exception) -> str:
    if isinstance(error, PrometheusApiClientException):  # its text holds the status, then the body
        status = "".join(filter(str.isdigit, str(error).partition("(")[0]))
        return f"HTTP {status}"
    return str(unreachable("", error)).rpartition("got ")[2]
