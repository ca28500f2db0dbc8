"""HTTP with limits, for every source: an answer comes whole, in time and below a size, or not at all.

A socket's own time-out counts each byte, so that a server that trickles or never ends would hold a collector for ever;
here one deadline holds for connecting, headers, body and redirects together. Neither a log-in nor a client certificate
follows a redirect to another host, and none of them stands in an error.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urljoin

import requests
from urllib3 import HTTPConnectionPool, HTTPResponse, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, ReadTimeoutError

from collector.errors import ConfigurationError, UnreachableError, no_connection
from collector.login import MAX_REDIRECTS, REDIRECTS, leads_away, login_of, read_text, without_login
from collector.masking import mask_address
from collector.settings import SourceSettings

CONNECTIONS = 16
_PIECE_BYTES = 2**16


class TooLargeError(requests.RequestException):
    """An answer is larger than its limit."""


class HttpSession(requests.Session):
    """A session whose every answer is bounded; connections are kept.

    Args:
        settings: the `[[source]]` table: time-out and log-in.
        max_bytes: limit of a body, unpacked.

    Raises:
        ConfigurationError: a file that the settings name cannot be read, or a token is none.
    """

    def __init__(self, settings: SourceSettings, max_bytes: int) -> None:
        super().__init__()
        self.max_bytes = max_bytes
        self._timeout_seconds = settings.timeout_seconds
        self.adapter = requests.adapters.HTTPAdapter(pool_maxsize=CONNECTIONS)
        self.adapter.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
        self.mount("http://", self.adapter)
        self.mount("https://", self.adapter)
        for path in (settings.ca_file, settings.cert_file, settings.key_file):
            if path is not None:
                read_text(path)
        if settings.ca_file is not None:
            self.verify = str(settings.ca_file)
        self._certificate = _certificate(settings)
        self._login = login_of(settings)
        self._login()  # what is wrong with it is said at the start

    def request(  # type: ignore[override]  # limits, log-in and redirects are the session's; what callers pass is dropped
        self,
        method: str,
        url: str,
        params: Any = None,
        data: Any = None,
        headers: Any = None,
        **_ignored: Any,
    ) -> requests.Response:
        """Return an answer whose body is read, over a few redirects.

        Raises:
            TooLargeError: the body is larger than `max_bytes`.
            UnreachableError: the file of the token or the password cannot be read any more.
            requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError: no answer in time; the address
                may be no address, which the libraries find out at different depths. `reason_of` says it in words.
        """
        deadline = time.monotonic() + self._timeout_seconds
        address, own = without_login(url)
        try:
            with self._open(method, address, deadline, own, params=params, data=data, headers=headers) as answer:
                answer._content = _body(answer, deadline, self.max_bytes)  # noqa: SLF001  where requests keeps a body
        except (HTTPError, OSError) as error:
            if time.monotonic() >= deadline:
                raise requests.Timeout from error
            raise
        return answer

    def get_redirect_target(self, resp: requests.Response) -> str | None:  # noqa: ARG002  the library's signature
        """Leave redirects to `request`: the library would read the whole body of each one first."""
        return None

    def _open(self, method: str, url: str, deadline: float, own: str, **sent: Any) -> requests.Response:
        try:
            login = own or self._login()
        except ConfigurationError as error:  # the file is gone since the start
            raise UnreachableError(str(error)) from error
        certificate = self._certificate
        for _ in range(MAX_REDIRECTS + 1):
            answer = super().request(
                method,
                url,
                timeout=_left(deadline),
                stream=True,
                verify=self.verify,  # else REQUESTS_CA_BUNDLE would win over `ca_file`
                auth=_Authorization(login),
                cert=certificate,
                **sent,
            )
            _left(deadline)
            location = answer.headers.get("Location")
            if location is None or answer.status_code not in REDIRECTS:
                return answer
            if method != "GET" and answer.status_code == 303:
                return answer  # it asks for another page instead of taking what was sent
            answer.close()
            following = urljoin(url, location)
            if leads_away(url, following):
                login, certificate = "", None
            url, sent["params"] = without_login(following)[0], None
        raise requests.TooManyRedirects(f"more than {MAX_REDIRECTS} redirects")


class _Authorization(requests.auth.AuthBase):
    """Sends a log-in, or none: neither one of an address nor one of ~/.netrc takes its place."""

    def __init__(self, value: str) -> None:
        self._value = value

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._value:
            request.headers["Authorization"] = self._value
        return request


def reason_of(error: Exception) -> str:
    """Say in words why there is no answer, without what was sent."""
    if isinstance(error, requests.Timeout | TimeoutError | ReadTimeoutError):
        return "no answer in time"
    if isinstance(error, requests.exceptions.SSLError):
        return "a certificate that is not trusted, or none of ours that it trusts (ca_file, cert_file)"
    return next((said for cause in _causes(error) if (said := no_connection(cause))), type(error).__name__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what led to it: the libraries wrap what the system said several times."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _certificate(settings: SourceSettings) -> str | tuple[str, str] | None:
    if settings.cert_file is None:
        return None
    return str(settings.cert_file) if settings.key_file is None else (str(settings.cert_file), str(settings.key_file))


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


def _body(answer: requests.Response, deadline: float, max_bytes: int) -> bytes:
    """Read a body piece by piece, so that neither a trickle nor a flood (also one that was packed) is waited for."""
    body = bytearray()
    while piece := answer.raw.read1(_PIECE_BYTES, decode_content=True):
        body += piece
        if len(body) > max_bytes:
            raise TooLargeError(f"expected at most {max_bytes} bytes, got more")
        _left(deadline)
    return bytes(body)


def unreachable(url: str, error: Exception) -> UnreachableError:
    """Return the error to raise where an address gave no answer."""
    place = mask_address(url)
    if isinstance(error, TooLargeError):
        return UnreachableError(f"{place}: {error}")
    return UnreachableError(f"{place}: expected an answer, got {reason_of(error)}")
