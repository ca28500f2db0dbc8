"""The connection to InfluxDB, over influxdb-client's HTTP client: writes, reads as a stream, deletes; typed failures.

Nothing is retried here: who calls knows what can wait. The token stands in a header of each request and nowhere else.
"""

from __future__ import annotations

import gzip
import io
import ipaddress
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from collector.errors import ConfigurationError, TrimtabError, UnreachableError
from collector.masking import mask_address
from collector.settings import InfluxSettings

if TYPE_CHECKING:
    from influxdb_client import InfluxDBClient

_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_REFUSED = frozenset({400, 413, 422})
_NO_POLICY = "retention policy not found"  # 1.x answers 500 where it is not there
_LONGEST_MESSAGE = 300

_LOG = logging.getLogger(__name__)


class Flavour(Enum):
    """Which of the three APIs answers."""

    V1 = 1
    V2 = 2
    V3 = 3


class TryLaterError(UnreachableError):
    """InfluxDB cannot be reached, or cannot take more now.

    retry_after_seconds: what the server asks for, None where it says nothing.
    """

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class WriteRefusedError(TrimtabError):
    """InfluxDB refused some or all lines of a request; what it could use of them it has kept.

    too_large: the request as a whole is too long (413).
    """

    def __init__(self, message: str, *, too_large: bool) -> None:
        super().__init__(message)
        self.too_large = too_large


class QueryRefusedError(UnreachableError):
    """InfluxDB does not answer this kind of query (no InfluxQL for the bucket, or the endpoint is closed)."""


def read_token(settings: InfluxSettings) -> str:
    """Return the token, empty where none is set.

    Raises:
        ConfigurationError: its file cannot be read.
    """
    if settings.token_file is not None:
        try:
            return settings.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"[influx] token_file: {settings.token_file} cannot be read: {type(error).__name__}; correct the path"
            ) from None
    return settings.token.get_secret_value() if settings.token is not None else ""


def is_loopback(url: str) -> bool:
    """Whether an address names this host."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class InfluxClient:
    """One server; safe for several threads.

    Args:
        settings: table `[influx]` with a `url`.

    Raises:
        ConfigurationError: the address is none, or the token's file cannot be read.
    """

    def __init__(self, settings: InfluxSettings) -> None:
        if not settings.url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"[influx] url: expected an address such as http://influx:8086, got {mask_address(settings.url)!r}"
            )
        self._settings = settings
        self.address = mask_address(settings.url).rstrip("/")
        self._compress = settings.gzip == "on" or (settings.gzip == "auto" and not is_loopback(settings.url))
        self._token = read_token(settings)
        self._told_unreadable = False
        self._lock = threading.Lock()
        self._made: InfluxDBClient | None = None
        self._flavour: Flavour | None = None

    def _client(self) -> InfluxDBClient:
        with self._lock:
            if self._made is None:
                from influxdb_client import InfluxDBClient  # noqa: PLC0415  it loads for a second

                self._made = InfluxDBClient(
                    url=self._settings.url,
                    token=self._token,
                    org=self._settings.org or "-",
                    timeout=round(self._settings.timeout_seconds * 1000),
                    ssl_ca_cert=None if self._settings.ca_file is None else str(self._settings.ca_file),
                )
            self._renew_token(self._made)
            return self._made

    def _renew_token(self, client: InfluxDBClient) -> None:
        """Take up a token that was rotated; while its file cannot be read, the token before it stays."""
        if self._settings.token_file is None:
            return
        try:
            token = read_token(self._settings)
        except ConfigurationError as error:
            if not self._told_unreadable:
                _LOG.warning("%s; the token read before is used meanwhile", error)
            self._told_unreadable = True
            return
        self._told_unreadable = False
        if token and token != self._token:
            self._token = token
            client.api_client.set_default_header("Authorization", f"Token {token}")

    def close(self) -> None:
        """Release connections."""
        with self._lock:
            if self._made is not None:
                self._made.close()
                self._made = None

    def write(self, body: bytes, bucket: str, *, precision: str = "ms") -> None:
        """Write lines into a bucket.

        Raises:
            TryLaterError: not reachable, or it asks to wait (429, 5xx).
            WriteRefusedError: some or all lines are wrong (400, 422), or too many (413).
            ConfigurationError: token, organisation or bucket is wrong.
        """
        headers = {"Content-Type": "text/plain; charset=utf-8"}
        if self._compress:
            body = gzip.compress(body, compresslevel=1, mtime=0)
            headers["Content-Encoding"] = "gzip"
        query = {"org": self._settings.org or "-", "bucket": bucket, "precision": precision}
        self._call("POST", "/api/v2/write", query=query, headers=headers, body=body)

    def select(self, statement: str, database: str, policy: str = "") -> io.BufferedReader:
        """Run an InfluxQL statement; return its answer as CSV, read as it comes. The caller closes it.

        Raises:
            TryLaterError: not reachable, or it asks to wait.
            QueryRefusedError: this server or bucket takes no InfluxQL.
            ConfigurationError: the token is wrong.
        """
        form = {"db": database, "q": statement, "epoch": "ms", "chunked": "true", **({"rp": policy} if policy else {})}
        return self._stream("/query", form=form, accept="application/csv")

    def flux(self, script: str) -> io.BufferedReader:
        """Run a Flux script; return its answer as CSV without annotations. The caller closes it.

        Raises:
            TryLaterError: not reachable, or it asks to wait.
            QueryRefusedError: this server takes no Flux.
            ConfigurationError: the token is wrong.
        """
        body = {"query": script, "type": "flux", "dialect": {"header": True, "annotations": [], "delimiter": ","}}
        query = {"org": self._settings.org or "-"}
        return self._stream("/api/v2/query", query=query, body=body, accept="application/csv")

    def execute(self, statement: str, database: str = "") -> str:
        """Run an InfluxQL statement of administration (1.x); return the answer's JSON text."""
        form = {"q": statement, **({"db": database} if database else {})}
        with self._stream("/query", form=form, accept="application/json") as answer:
            return answer.read().decode("utf-8", "replace")

    def _stream(
        self,
        path: str,
        *,
        accept: str,
        form: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        body: object = None,
    ) -> io.BufferedReader:
        headers = {"Accept": accept, "Accept-Encoding": "gzip" if self._compress else "identity"}
        headers["Content-Type"] = "application/json" if form is None else "application/x-www-form-urlencoded"
        answer = self._call("POST", path, query=query, headers=headers, body=body, form=form, stream=True)
        answer.auto_close = False  # else it is closed at its end, and a buffer over it cannot be read to its own
        return io.BufferedReader(answer, 1 << 18)

    def delete(self, bucket: str, start_ms: int, end_ms: int, predicate: str) -> None:
        """Delete points of [start, end); `predicate` is like `_measurement="gpu" AND node="n1"`.

        Raises:
            TryLaterError: not reachable, or it asks to wait.
            ConfigurationError: the token may not, or the server (3.x) cannot delete.
        """
        body = {
            "start": f"{_rfc3339(start_ms)}Z",
            "stop": f"{_rfc3339(end_ms - 1)}999999Z",  # inclusive: the last nanosecond before the end
            "predicate": predicate,
        }
        query = {"org": self._settings.org or "-", "bucket": bucket}
        self._call("POST", "/api/v2/delete", query=query, headers={"Content-Type": "application/json"}, body=body)

    def call_json(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        tolerate: tuple[int, ...] = (),
    ) -> Any:
        """Call an endpoint of administration (2.x); return its JSON, None where it answered a status of `tolerate`."""
        headers = {"Content-Type": "application/json"}
        return self._call(method, path, query=query, headers=headers, body=body, tolerate=tolerate).data

    def flavour(self) -> Flavour:
        """Return which API answers; asked once.

        Raises:
            TryLaterError: not reachable.
        """
        if self._flavour is None:
            ping = self._call("GET", "/ping", headers={}, tolerate=(401, 403, 404))
            version = str(ping.headers.get("X-Influxdb-Version", "")).lstrip("v")
            if version[:1] in ("1", "2", "3") and version[1:2] == ".":
                self._flavour = Flavour(int(version[0]))
            else:  # builds of one's own may say `unknown`: only 2.x has a setup page
                found = self._call("GET", "/api/v2/setup", headers={}, tolerate=(401, 403, 404, 405))
                self._flavour = Flavour.V2 if found.status == 200 else Flavour.V1
        return self._flavour

    def _call(
        self,
        method: str,
        path: str,
        *,
        headers: dict[str, str],
        query: Mapping[str, str] | None = None,
        body: object = None,
        form: Mapping[str, str] | None = None,
        stream: bool = False,
        tolerate: tuple[int, ...] = (),
    ) -> Any:
        from influxdb_client.rest import ApiException  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        client = self._client()
        try:
            answer = client.api_client.call_api(
                path,
                method,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                post_params=list(form.items()) if form else None,
                response_type=None if stream else "object",
                _preload_content=not stream,
                _return_http_data_only=stream,
            )
            return answer if stream else _Answer(answer[1], answer[2], answer[0])
        except ApiException as error:
            if error.status in tolerate:
                return _Answer(int(error.status), error.headers or {}, None)
            raise self._failure(path, error) from None
        except HTTPError as error:
            raise TryLaterError(f"InfluxDB at {self.address} does not answer: {_reason(error)}") from None
        except (OSError, ValueError) as error:
            raise TryLaterError(f"InfluxDB at {self.address} does not answer: {type(error).__name__}") from None

    def _failure(self, path: str, error: Any) -> TrimtabError:
        status = int(error.status or 0)
        said = f"InfluxDB at {self.address} answered {status}: {_said(error)}"
        if (status in _BUSY or status == 0) and _NO_POLICY not in said:
            return TryLaterError(said, _retry_after(error.retry_after))
        if path in ("/query", "/api/v2/query") and status in (400, 404, 405, 501):
            return QueryRefusedError(said)
        if path == "/api/v2/write" and status in _REFUSED:
            return WriteRefusedError(said, too_large=status == 413)
        if status in (401, 403) and not self._token:
            return ConfigurationError(
                f"{said}; no token is set: [influx] token_file, or TRIMTAB_INFLUX__TOKEN in the environment"
            )
        if status in (401, 403):
            source = f"token_file {self._settings.token_file}" if self._settings.token_file is not None else "token"
            return ConfigurationError(f"{said}; check the {source} of [influx], and that it may use its buckets")
        return ConfigurationError(f"{said}; check url, org and bucket of [influx]; `trimtab store prepare` makes them")


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    data: Any


def _rfc3339(milliseconds: int) -> str:
    return (
        datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{milliseconds % 1000:03d}"
    )


def _said(error: Any) -> str:
    """Return what the server says is wrong: `message` of 2.x, `error` of 1.x and 3.x, else the text, on one line."""
    body = error.body.decode("utf-8", "replace") if isinstance(error.body, bytes) else error.body
    try:
        told = orjson.loads(body or "null")
    except orjson.JSONDecodeError:
        told = None
    text = next((told[k] for k in ("message", "error") if told.get(k)), None) if isinstance(told, dict) else body
    text = " ".join(str(text or error.reason or "no reason given").split())
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}..."


def _reason(error: Exception) -> str:
    # The library's own text repeats the address, and with it what may be secret in it.
    return type(getattr(error, "reason", None) or error).__name__


def _retry_after(value: str | None) -> float | None:
    if not value:
        return None
    try:
        return max(float(value), 0.0)
    except ValueError:
        pass
    try:
        return max((parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds(), 0.0)
    except (TypeError, ValueError):
        return None
