"""A source that reads exporters directly: concurrent GETs with a time-out, targets apart from each other."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import Any
from urllib.parse import urljoin

import requests
from urllib3 import HTTPConnectionPool, HTTPResponse, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, ReadTimeoutError

from collector.assemble import Assembler, Scrape
from collector.batch import Batch
from collector.clock import grid_floor
from collector.errors import ConfigurationError, UnreachableError
from collector.exposition import ExpositionParser
from collector.masking import mask_address
from collector.plugins import SourceContext
from collector.protocols import SourceDescription
from collector.settings import SourceSettings, TargetSettings

Fetch = Callable[[TargetSettings], str]
Discover = Callable[[], Sequence[TargetSettings]]

_WORKERS = 16
_MAX_BYTES = 256 * 2**20
_PIECE_BYTES = 2**16
_MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)


class HttpFetch:
    """Gets a target's text over HTTP; one session, so that connections are kept.

    Raises, when called:
        UnreachableError: not all of an answer in time, a status other than 200, or an answer that is too big.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._session = _Session()
        adapter = requests.adapters.HTTPAdapter(pool_maxsize=_WORKERS)
        adapter.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)
        self._session.headers["Accept"] = "text/plain;version=0.0.4, application/openmetrics-text;version=1.0.0;q=0.5"
        if settings.bearer_token is not None:
            self._session.headers["Authorization"] = f"Bearer {settings.bearer_token.get_secret_value()}"
        self._timeout = settings.timeout_seconds

    def __call__(self, target: TargetSettings) -> str:
        """Return the body as text."""
        place = mask_address(target.url)
        deadline = time.monotonic() + self._timeout
        try:
            with self._open(target.url, deadline) as answer:
                if answer.status_code != 200:
                    raise UnreachableError(f"{place}: expected HTTP 200, got {answer.status_code}")
                return _body(answer, place, deadline)
        # The address itself may be no address (ValueError), which the libraries find out at different depths.
        except (requests.RequestException, HTTPError, OSError, ValueError) as error:
            raise UnreachableError(f"{place}: expected an answer, got {_reason(error, deadline)}") from error

    def _open(self, url: str, deadline: float) -> requests.Response:
        """Get an answer whose body is not read yet, over a few redirects; another host does not get the token."""
        headers: dict[str, str | None] = {}
        for _ in range(_MAX_REDIRECTS + 1):
            answer = self._session.get(url, timeout=_left(deadline), stream=True, headers=headers)
            _left(deadline)
            location = answer.headers.get("Location")
            if location is None or answer.status_code not in _REDIRECTS:
                return answer
            answer.close()
            following = urljoin(url, location)
            if self._session.should_strip_auth(url, following):  # type: ignore[no-untyped-call]  # the library has no type
                headers["Authorization"] = None
            url = following
        raise requests.TooManyRedirects(f"more than {_MAX_REDIRECTS} redirects")

    def close(self) -> None:
        """Close kept connections."""
        self._session.close()


class ScrapeSource:
    """Scrapes exporters.

    Args:
        settings: the `[[source]]` table: targets, time-out, token.
        context: cluster, interval, declarations.
        fetch: how a target's text is got; over HTTP by default, several targets at once.
        discover: which targets there are now; those of the settings by default.

    Raises:
        ConfigurationError: neither targets nor `discover` are given, or an address is not HTTP.
    """

    def __init__(
        self,
        settings: SourceSettings,
        context: SourceContext,
        *,
        fetch: Fetch | None = None,
        discover: Discover | None = None,
    ) -> None:
        if discover is None and not settings.targets:
            raise ConfigurationError(
                'source "scrape": expected targets such as ["http://node1:9400/metrics"], got none'
            )
        wrong = [target.url for target in settings.targets if not target.url.startswith(("http://", "https://"))]
        if wrong and fetch is None:
            raise ConfigurationError(
                f'source "scrape": expected http:// or https:// addresses, got {mask_address(wrong[0])!r}'
            )
        self._settings = settings
        self._context = context
        self._fetch: Fetch = HttpFetch(settings) if fetch is None else fetch
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="scrape") if fetch is None else None
        self._discover: Discover = (lambda: settings.targets) if discover is None else discover
        self._parsers: dict[str, ExpositionParser] = {}
        self.assembler = Assembler(context)

    def poll(self, now: datetime) -> Batch:
        """Scrape all targets; rows stand on the cycle's grid. A target that does not answer is an event."""
        return self.assembler.assemble(grid_floor(now, self._context.interval_seconds), self.gather(now))

    def gather(self, now: datetime) -> list[Scrape]:
        """Scrape all targets."""
        del now
        targets = list(self._discover())
        texts = list(self._pool.map(self._get, targets) if self._pool else map(self._get, targets))
        scrapes = []
        for target, (text, error) in zip(targets, texts, strict=True):
            body = None
            if not error:
                parser = self._parsers.get(target.url)
                if parser is None:
                    parser = self._parsers[target.url] = ExpositionParser()
                body = parser.parse(text)
            scrapes.append(Scrape(target, body, error))
        gone = self._parsers.keys() - {target.url for target in targets}
        for url in gone:
            del self._parsers[url]
        return scrapes

    def backfill(self, start: datetime, end: datetime) -> Iterator[Batch]:
        """Yield nothing: an exporter has no past."""
        del start, end
        yield from ()

    def describe(self) -> SourceDescription:
        """Say what this source is."""
        return SourceDescription(
            kind="scrape",
            name=self._settings.name or self._settings.kind,
            targets=tuple(target.url for target in self._discover()),
            interval_seconds=self._context.interval_seconds,
        )

    def export_state(self) -> dict[str, Any]:
        """Return what a later start needs to go on."""
        return self.assembler.export_state()

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `export_state` returned."""
        self.assembler.import_state(state)

    def close(self) -> None:
        """Release threads and connections."""
        if self._pool is not None:
            self._pool.shutdown()
        if isinstance(self._fetch, HttpFetch):
            self._fetch.close()

    def _get(self, target: TargetSettings) -> tuple[str, str]:
        try:
            return self._fetch(target), ""
        except UnreachableError as error:
            return "", str(error)


class _Session(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> str | None:  # noqa: ARG002  the library's signature
        """Leave redirects to `HttpFetch`: the library would read the whole body of each one first."""
        return None


class _CutHeaders(HTTPConnection):
    """A connection whose status and headers come within the time-out as a whole; a socket's own counts each byte."""

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as in the library
        """Wait for status and headers; at the time-out the other side seems to hang up."""
        timer = threading.Timer(self.timeout or 0.0, _hang_up, (self.sock,))
        timer.daemon = True
        timer.start()
        try:
            return super().getresponse()
        finally:
            timer.cancel()


class _CutSecureHeaders(_CutHeaders, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _CutHeaders


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _CutSecureHeaders


def _hang_up(sock: socket.socket) -> None:
    with suppress(OSError):  # closed already
        sock.shutdown(socket.SHUT_RDWR)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise requests.Timeout
    return left


def _body(answer: requests.Response, place: str, deadline: float) -> str:
    """Read a body piece by piece, so that neither a trickle nor a flood (also one that was packed) is waited for."""
    body = bytearray()
    while piece := answer.raw.read1(_PIECE_BYTES, decode_content=True):
        body += piece
        if len(body) > _MAX_BYTES:
            raise UnreachableError(f"{place}: expected at most {_MAX_BYTES} bytes, got more")
        _left(deadline)
    return body.decode("utf-8", errors="replace")


def _reason(error: Exception, deadline: float) -> str:
    if time.monotonic() >= deadline or isinstance(error, requests.Timeout | TimeoutError | ReadTimeoutError):
        return "no answer in time"
    return type(error).__name__
