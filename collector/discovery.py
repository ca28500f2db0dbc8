"""Which targets there are: as configured, as a watched file says, as DNS or Kubernetes says.

Each provider keeps what it said last: a file that is broken, a name that is not found or an API server that is away
change nothing, and are told.
"""

from __future__ import annotations

import logging
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import orjson
from pydantic import ValidationError

from collector.batch import Severity
from collector.errors import ConfigurationError, TrimtabError, UnreachableError
from collector.settings import DnsSettings, KubernetesDiscovery, SourceSettings, TargetSettings
from collector.workers import Workers

if TYPE_CHECKING:
    from collector.schedulers.api import KubeApi

_LOG = logging.getLogger(__name__)
_FIRST_SECONDS = 10.0  # that the first look-up of a name may hold up the first cycle
_DNS_SECONDS = 5.0

Targets = Sequence[TargetSettings]


class Provider(Protocol):
    """Gives targets; what is wrong since the last call stands in `problem` (empty: nothing)."""

    name: str
    problem: str

    def targets(self) -> Targets:
        """Return the targets that there are now, as far as is known; never waits long."""
        ...

    def close(self) -> None:
        """Stop looking."""
        ...


class Discovery:
    """All targets of a source.

    Args:
        settings: the `[[source]]` table.

    Raises:
        ConfigurationError: an address that is configured is not HTTP, the file of targets cannot be read at the start,
            or Kubernetes is asked for outside of it.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._static = settings.targets
        self._providers: list[Provider] = []
        if settings.targets_file is not None:
            self._providers.append(TargetsFile(settings.targets_file))
        for dns in settings.dns:
            self._providers.append(Refreshed(f"DNS {dns.name}", partial(look_up, dns), dns.refresh_seconds))
        if settings.kubernetes is not None:
            found = settings.kubernetes
            look = pods_of(found, settings.timeout_seconds)
            self._providers.append(Refreshed("Kubernetes", look, found.refresh_seconds))
        self._told: dict[str, str] = {}

    def __call__(self) -> Targets:
        """Return the targets, each address once."""
        by_url = {target.url: target for target in self._static}
        for provider in self._providers:
            for target in provider.targets():
                by_url.setdefault(target.url, target)
        return tuple(by_url.values())

    def notices(self) -> list[tuple[str, Severity, str]]:
        """Return what is new: (code, severity, message) of a provider that fails, or works again."""
        said: list[tuple[str, Severity, str]] = []
        for provider in self._providers:
            before = self._told.get(provider.name, "")
            if provider.problem == before:
                continue
            self._told[provider.name] = provider.problem
            if provider.problem:
                said.append(("discovery_failed", Severity.WARNING, f"{provider.name}: {provider.problem}"))
            else:
                said.append(("discovery_recovered", Severity.INFO, f"{provider.name}: targets are found again"))
        return said

    def close(self) -> None:
        """Stop looking."""
        for provider in self._providers:
            provider.close()


class TargetsFile:
    """Targets of a file; it is read again when it changed. A version that cannot be read leaves the one before.

    Raises:
        ConfigurationError: the first version cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.problem = ""
        self._path = path
        self._seen = _version(path)
        self._targets = read_targets(path)

    def targets(self) -> Targets:
        """Return the targets of the newest version that could be read."""
        version = _version(self._path)
        if version != self._seen:
            self._seen = version
            try:
                self._targets, self.problem = read_targets(self._path), ""
            except ConfigurationError as error:
                self.problem = f"{error}; the {len(self._targets)} targets of the version before are kept"
        return self._targets

    def close(self) -> None:
        """Nothing is open."""


class Refreshed:
    """Targets that something slow says: it is asked in the background, and what it said last holds meanwhile."""

    def __init__(self, name: str, look: Callable[[], Targets], refresh_seconds: float) -> None:
        self.name = name
        self.problem = ""
        self._look = look
        self._refresh = refresh_seconds
        self._pool = Workers(1, "discovery")
        self._future: Future[Targets] | None = None
        self._targets: Targets = ()
        self._next = 0.0

    def targets(self) -> Targets:
        """Return what was said last; only the first call waits for an answer, and not for long."""
        first = self._future is None and not self._next
        if self._future is None and time.monotonic() >= self._next:
            self._next = time.monotonic() + self._refresh
            self._future = self._pool.submit(self._look)
        if self._future is not None:
            self._take(self._future, _FIRST_SECONDS if first else 0.0)
        return self._targets

    def _take(self, future: Future[Targets], wait_seconds: float) -> None:
        try:
            self._targets, self.problem = future.result(wait_seconds), ""
        except TimeoutError:
            return
        except Exception as error:  # noqa: BLE001  whatever it is: it is told, and asked again
            said = str(error) if isinstance(error, TrimtabError) else f"unexpected {type(error).__name__}"
            self.problem = f"{said}; the {len(self._targets)} targets found before are kept"
        self._future = None

    def close(self) -> None:
        """Leave a question that is under way."""
        self._pool.close()


def read_targets(path: Path) -> Targets:
    """Read a file of targets: `[[targets]]` tables of TOML, or Prometheus's file_sd as JSON or YAML.

    Raises:
        ConfigurationError: it cannot be read, or is none.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".toml":
            tables = tomllib.loads(content.decode()).get("targets", [])
            return tuple(TargetSettings.model_validate(entry) for entry in tables)
        return tuple(target for group in _groups(path, content) for target in _of_group(group))
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        reason = _first_line(error)
        raise ConfigurationError(
            f"{path}: expected targets ([[targets]] of TOML, or a list of "
            f'{{"targets": ["host:port"], "labels": {{}}}} as JSON or YAML), got: {reason}'
        ) from error


def _groups(path: Path, content: bytes) -> list[Any]:
    if path.suffix in (".yml", ".yaml"):
        import yaml  # type: ignore[import-untyped]  # noqa: PLC0415  only where somebody writes YAML

        try:
            groups = yaml.safe_load(content)
        except yaml.YAMLError as error:
            raise ValueError(" ".join(str(error).split())) from error
    else:
        groups = orjson.loads(content)
    if groups is None:
        return []
    if not isinstance(groups, list):
        raise TypeError("no list")
    return groups


def _of_group(group: Mapping[str, Any]) -> list[TargetSettings]:
    """Return the targets of one group of file_sd; labels with two underscores are instructions, as in Prometheus."""
    unknown = group.keys() - {"targets", "labels"}
    if unknown or not isinstance(group["targets"], list):
        raise ValueError(f"a group with {', '.join(sorted(map(str, group)))}")
    labels = {str(name): str(value) for name, value in (group.get("labels") or {}).items()}
    scheme, path = labels.get("__scheme__", "http"), labels.get("__metrics_path__", "/metrics")
    own = {name: value for name, value in labels.items() if not name.startswith("__")}
    node = own.pop("node", "")
    found = []
    for address in group["targets"]:
        if not isinstance(address, str) or not address or "/" in address:
            raise ValueError(f"the target {address!r}, which is no host:port")
        found.append(TargetSettings(url=f"{scheme}://{address}{path}", node=node, labels=own))
    return found


def _version(path: Path) -> tuple[int, ...]:
    try:
        said = path.stat()
    except OSError:
        return ()
    return said.st_mtime_ns, said.st_size, said.st_ino


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return (str(error).partition("\n")[0] or type(error).__name__)[:200]


def look_up(settings: DnsSettings) -> Targets:
    """Return the targets that a name in DNS stands for.

    Raises:
        UnreachableError: it is not found, or the name server does not answer.
    """
    from dns import resolver  # noqa: PLC0415  only where DNS is asked
    from dns.exception import DNSException  # noqa: PLC0415

    try:
        asked = resolver.Resolver(configure=not settings.server)
        if settings.server:
            host, _, port = settings.server.rpartition(":")
            asked.nameservers, asked.port = [host or port], int(port) if host else 53
        answer = asked.resolve(settings.name, settings.type, search=True, lifetime=_DNS_SECONDS)
    except (DNSException, OSError, ValueError) as error:
        raise UnreachableError(f"expected {settings.type} records, got {type(error).__name__}") from error
    if settings.type == "SRV":
        places = [(str(record.target).rstrip("."), record.port) for record in answer]
    else:
        addresses = [record.address for record in answer]
        places = [(f"[{one}]" if ":" in one else one, settings.port) for one in addresses]
    return tuple(
        TargetSettings(url=f"{settings.scheme}://{host}:{port}{settings.path}", labels=settings.labels)
        for host, port in sorted(places)
    )


def pods_of(settings: KubernetesDiscovery, timeout_seconds: float) -> Callable[[], Targets]:
    """Return what lists the pods that are targets.

    Raises:
        ConfigurationError: there is neither a kubeconfig nor a service account.
    """
    from collector.schedulers.api import KubeApi, connect  # noqa: PLC0415  the client loads slowly

    client = connect(url="", token="", kubeconfig=settings.kubeconfig, context=settings.context, ca_file="")
    return partial(list_pods, KubeApi(client, timeout_seconds), settings)


def list_pods(api: KubeApi, settings: KubernetesDiscovery) -> Targets:
    """Return the running pods that match, as targets on their nodes.

    Raises:
        DeniedError: the account may not list pods.
        UnreachableError: no answer.
    """
    path = f"/api/v1/namespaces/{settings.namespace}/pods" if settings.namespace else "/api/v1/pods"
    found: dict[str, TargetSettings] = {}

    def keep(pod: Mapping[str, Any]) -> None:
        target = _of_pod(pod, settings)
        if target is not None:
            found[target.url] = target

    api.each(path, keep, selector=settings.selector)
    return tuple(found[url] for url in sorted(found))


def _of_pod(pod: Mapping[str, Any], settings: KubernetesDiscovery) -> TargetSettings | None:
    meta, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    address = status.get("podIP")
    if not address or status.get("phase") != "Running" or meta.get("deletionTimestamp"):
        return None
    container, port = _port(spec, settings.port)
    if not port:
        return None
    labels = {}
    if settings.workloads:
        labels = {"namespace": meta.get("namespace", ""), "pod": meta.get("name", ""), "container": container}
    host = f"[{address}]" if ":" in address else address
    url = f"{settings.scheme}://{host}:{port}{settings.path}"
    return TargetSettings(url=url, node=spec.get("nodeName", ""), labels=labels)


def _port(spec: Mapping[str, Any], wanted: int | str) -> tuple[str, int]:
    """Return the container that has a port, and the port's number (0: none has it)."""
    containers = spec.get("containers") or []
    for container in containers:
        for port in container.get("ports") or []:
            if wanted in (port.get("name"), port.get("containerPort")):
                return container.get("name", ""), int(port["containerPort"])
    if isinstance(wanted, int):  # a pod need not declare its ports
        return (containers[0].get("name", "") if containers else ""), wanted
    return "", 0
