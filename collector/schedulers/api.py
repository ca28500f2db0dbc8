"""Lists of a Kubernetes API server, page by page, read only: paging, expired pages, refusals, time-outs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import orjson

from collector.errors import ConfigurationError, TrimtabError, UnreachableError
from collector.masking import mask_address
from collector.schedulers.objects import Json, items, table, text

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

PAGE_ITEMS = 500
_PIECE_BYTES = 2**18
_MAX_PAGE_BYTES = 256 * 2**20
_RESTARTS = 2  # times that a list whose pages expired is begun anew in one poll
_EXPIRED = 410


class DeniedError(TrimtabError):
    """A part of the API that this account may not read, or that answers with an error of its own."""


class KubeApi:
    """Reads lists of an API server.

    Args:
        client: address, certificates and token, as the client library holds them.
        timeout_seconds: limit for one request, from the first byte sent to the last one read.
    """

    def __init__(self, client: ApiClient, timeout_seconds: float) -> None:
        self._client = client
        self._timeout = timeout_seconds

    @property
    def address(self) -> str:
        """The server's address, without a password."""
        return mask_address(str(self._client.configuration.host))

    def each(self, path: str, use: Callable[[Json], None], *, selector: str = "") -> bool:
        """Hand every object of a list to `use`, or those that a selector matches; False: the server knows no such kind.

        A list whose next page has expired (410) is begun anew: `use` may see an object twice, the newer one last.

        Raises:
            DeniedError: this account may not list it (401, 403), or the server answers with another error.
            UnreachableError: no answer in time, or one that is no JSON.
        """
        for _ in range(_RESTARTS + 1):
            status = self._pages(path, use, selector)
            if status != _EXPIRED:
                return status != 404
        raise DeniedError(f"its pages expire faster than they are read ({_RESTARTS + 1} times); raise timeout_seconds")

    def _pages(self, path: str, use: Callable[[Json], None], selector: str) -> int:
        following = ""
        while True:
            query = {"limit": str(PAGE_ITEMS), **({"continue": following} if following else {})}
            query |= {"labelSelector": selector} if selector else {}
            status, body = self._get(f"{path}?{urlencode(query)}")
            if status in (404, _EXPIRED):
                return status
            if status != 200:
                raise DeniedError(_refusal(status, body))
            document = table(_json(body, self.address))
            for item in items(document.get("items")):
                use(item)
            before, following = following, text(table(document.get("metadata")).get("continue"))
            if not following:
                return status
            if following == before:
                raise DeniedError("expected another page, got the token of this one again")

    def _get(self, path: str) -> tuple[int, bytes]:
        import urllib3  # noqa: PLC0415  with the client, which loads slowly
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        headers = {"Accept": "application/json", "User-Agent": "trimtab"}
        bearer = self._client.configuration.auth_settings().get("BearerToken")
        if bearer is not None:
            headers[bearer["key"]] = bearer["value"]
        deadline = time.monotonic() + self._timeout
        url = self._client.configuration.host.rstrip("/") + path
        try:
            answer = self._client.rest_client.pool_manager.request(
                "GET",
                url,
                headers=headers,
                preload_content=False,
                redirect=False,  # the token goes nowhere else
                retries=False,
                timeout=urllib3.Timeout(total=self._timeout),
            )
            try:
                return answer.status, self._body(answer, deadline)
            finally:
                answer.close()
        except (HTTPError, OSError, ValueError) as error:
            late = time.monotonic() >= deadline
            reason = "no answer in time" if late else type(error).__name__
            raise UnreachableError(f"{self.address}: expected an answer, got {reason}") from error

    def _body(self, answer: Any, deadline: float) -> bytes:
        """Read an answer piece by piece, so that neither a trickle nor a flood is waited for."""
        body = bytearray()
        while piece := answer.read1(_PIECE_BYTES, decode_content=True):
            body += piece
            if len(body) > _MAX_PAGE_BYTES:
                raise UnreachableError(f"{self.address}: expected at most {_MAX_PAGE_BYTES} bytes a page, got more")
            if time.monotonic() >= deadline:
                raise UnreachableError(f"{self.address}: expected an answer, got no end of it in time")
        return bytes(body)


def _json(body: bytes, address: str) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UnreachableError(f"{address}: expected JSON, got something else; is it an API server?") from error


def _refusal(status: int, body: bytes) -> str:
    """Return in one line why a list was refused; the server's own words are cut, they name no secret of ours."""
    advice = {401: "the token is not accepted", 403: "this account may not list it"}.get(status)
    try:
        message = text(table(orjson.loads(body)).get("message"))
    except orjson.JSONDecodeError:
        message = ""
    said = " ".join(message.split())[:200]
    return f"HTTP {status}: {advice or said or 'no reason given'}"


def connect(*, url: str, token: str, kubeconfig: str, context: str, ca_file: str) -> ApiClient:
    """Return a client: for an address, else a kubeconfig file, else the pod's own service account.

    Raises:
        ConfigurationError: a file is missing or wrong, or this is no pod.
    """
    from kubernetes import client, config  # noqa: PLC0415  loads slowly

    if ca_file and not Path(ca_file).is_file():
        raise ConfigurationError(f"options.ca_file: expected a file of certificates, found none at {ca_file}")
    try:
        if url:
            settings = client.Configuration(host=url)
        else:
            settings = client.Configuration()
            if kubeconfig:
                chosen = context or None
                config.load_kube_config(config_file=kubeconfig, context=chosen, client_configuration=settings)  # type: ignore[no-untyped-call]  # the library has no types
            else:
                config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]  # the library has no types
    except (config.ConfigException, OSError, ValueError, TypeError, KeyError) as error:
        place = kubeconfig or "the pod's service account"
        raise ConfigurationError(
            f'source "kubernetes": expected `url`, `options.kubeconfig` or a pod with a service account; {place} '
            f"cannot be used ({type(error).__name__})"
        ) from error
    if token:
        settings.api_key["authorization"] = token
        settings.api_key_prefix["authorization"] = "Bearer"
    if ca_file:
        settings.ssl_ca_cert = ca_file
    settings.retries = False
    return client.ApiClient(settings)


def pages_of(api: KubeApi, paths: tuple[str, ...]) -> Iterator[Json] | None:
    """Return the objects under the first path that the server knows, None where it knows none."""
    for path in paths:
        found: dict[tuple[str, str], Json] = {}

        def keep(item: Json, into: dict[tuple[str, str], Json] = found) -> None:
            meta = table(item.get("metadata"))
            into[text(meta.get("namespace")), text(meta.get("name"))] = item

        if api.each(path, keep):
            return iter(found.values())
    return None
