"""Configuration of this floor: `cluster`, `[[source]]`, `[[mapping]]`, `[store]`, `[influx]`, `[[tenant]]`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator

from collector.window import LONGEST_SECONDS

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_UNIT_SECONDS = {"seconds": 1.0, "minutes": 60.0, "days": 86400.0}


class Section(BaseModel):
    """Base of every table: unknown keys are errors, values are frozen, numbers finite, times at most ten years."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _length_of_time(cls, value: Any, info: ValidationInfo) -> Any:
        unit = _UNIT_SECONDS.get((info.field_name or "").rpartition("_")[2])
        if unit is not None and isinstance(value, float) and value * unit > LONGEST_SECONDS:
            raise ValueError(f"`{info.field_name}`: expected at most ten years, got {value:g}")
        return value


class ClusterSettings(Section):
    """Table `[cluster]`: what is measured, and how often."""

    name: str = Field("default", min_length=1, description="name of the cluster; part of every row's identity")
    interval_seconds: float = Field(60.0, ge=1, description="one collection cycle, in seconds; rows stand on this grid")
    metrics_listen: str = Field(
        "",
        description="where `trimtab collect` serves metrics of itself: a port (on 127.0.0.1) or address:port; "
        "empty: nowhere",
    )


_SECRETS_AND_FILES = (
    *("bearer_token", "bearer_token_file", "password", "password_file"),
    *("ca_file", "cert_file", "key_file"),
)


class Credentials(Section):
    """How to prove who we are, and whom to believe: a token, or a user with a password; certificates."""

    bearer_token: SecretStr | None = Field(None, description="sent as Authorization: Bearer; set it by environment")
    bearer_token_file: Path | None = Field(
        None, description="file with that token, read anew for each request: tokens of Kubernetes change"
    )
    username: str = Field("", description="user of HTTP basic authentication")
    password: SecretStr | None = Field(None, description="password of that user; set it by environment")
    password_file: Path | None = Field(None, description="file with that password")
    ca_file: Path | None = Field(None, description="certificates (PEM) that an https server is checked against")
    cert_file: Path | None = Field(None, description="own certificate (PEM), where the server asks for one (mTLS)")
    key_file: Path | None = Field(None, description="its private key (PEM), where that stands in a file of its own")

    @field_validator(*_SECRETS_AND_FILES, mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return None if value == "" else value

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        given = [name for name in ("bearer_token", "bearer_token_file", "username") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"expected one way to log in, got {' and '.join(given)}; keep one")
        if self.password is not None and self.password_file is not None:
            raise ValueError("expected password or password_file, got both; keep one")
        if (self.password is not None or self.password_file is not None) and not self.username:
            raise ValueError("expected `username` beside the password, got none")
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("expected `cert_file` beside `key_file`, got none")
        return self


class TargetSettings(Section):
    """One exporter to scrape, with the labels that service discovery would have added; an address alone will do."""

    url: str = Field(description="address of the exporter, such as http://node1:9400/metrics")
    node: str = Field("", description="node that it speaks of; empty: taken from its labels or its host name")
    labels: dict[str, str] = Field(
        default_factory=dict, description="added to each sample: namespace, pod, container of a server or a trainer"
    )
    timeout_seconds: float = Field(
        0.0, ge=0, le=3600, description="limit for one answer of this exporter, in seconds; 0: the source's"
    )
    auth: Credentials | None = Field(
        None, description="credentials of this exporter, as those of a source; empty: the source's"
    )

    @model_validator(mode="before")
    @classmethod
    def _address(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"url": value}
        if isinstance(value, dict | TargetSettings):
            return value
        raise ValueError(f"expected an address or a table with `url`, got {value!r}")


class DnsSettings(Section):
    """One `[[source.dns]]` table: a name whose addresses are targets."""

    name: str = Field(min_length=1, description="name to look up, such as dcgm-exporter.gpu.svc.cluster.local")
    type: Literal["A", "AAAA", "SRV"] = Field("A", description="kind of record; SRV says ports too")
    port: int = Field(9400, ge=1, le=65535, description="port of the targets; not used with SRV")
    path: str = Field("/metrics", description="path of the targets")
    scheme: Literal["http", "https"] = Field("http", description="http or https")
    labels: dict[str, str] = Field(default_factory=dict, description="added to each sample of these targets")
    refresh_seconds: float = Field(30.0, gt=0, description="how often the name is looked up, in seconds")
    server: str = Field("", description="address:port of the name server to ask; empty: the system's")


class KubernetesDiscovery(Section):
    """Table `[source.kubernetes]`: pods that are targets; needs the right to list pods, and no other."""

    namespace: str = Field("", description="namespace to look in (a role there is enough); empty: all")
    selector: str = Field("app.kubernetes.io/name=dcgm-exporter", description="label selector of the pods")
    port: int | str = Field("metrics", description="number or name of the container's port")
    path: str = Field("/metrics", description="path of the targets")
    scheme: Literal["http", "https"] = Field("http", description="http or https")
    workloads: bool = Field(
        False, description="the pods are servers or trainers themselves: their samples speak of them"
    )
    refresh_seconds: float = Field(30.0, gt=0, description="how often pods are listed, in seconds")
    kubeconfig: str = Field("", description="file of clusters and users; empty: the pod's own service account")
    context: str = Field("", description="context of the kubeconfig; empty: its current one")


class HolderSettings(Section):
    """One `[[source.holders]]` table of an nvml source: whose a process is that no pod holds. The first match counts.

    With `container` its processes are one slice, as a pod's container is; without, each process is a slice of its own.
    """

    container_id: str = Field("", description="beginning of the container's id (64 hexadecimal digits); empty: any")
    cgroup: str = Field("*", description="glob on a path in /proc/PID/cgroup, such as */slurm/uid_1000/*")
    user: str = Field("*", description="glob on the user that the process runs as")
    command: str = Field("*", description="glob on the command line")
    namespace: str = Field("", description="namespace or project: its tenant pays")
    pod: str = Field("", description="name of the pod, the job or the service: its workload")
    container: str = Field("", description="name of the container")


class SourceSettings(Credentials):
    """One `[[source]]` table: exporters to scrape, a Prometheus to ask, or this host's driver."""

    kind: str = Field(
        "scrape",
        description="plug-in name: scrape, prometheus, nvml, pci, kubernetes, slurm, or one found by entry point",
    )
    name: str = Field("", description="a name for logs and doctor; the kind when empty")
    targets: tuple[TargetSettings, ...] = Field(
        (),
        description="scrape: exporters, each an address (http://node1:9400/metrics) or a table `[[source.targets]]`",
    )
    url: str = Field("", description="prometheus: base address of the server")
    timeout_seconds: float = Field(10.0, gt=0, le=3600, description="limit for one request, in seconds")
    interval_seconds: float = Field(
        0.0, ge=0, description="scrape: a longer interval of this source, a whole number of cycles; 0: each cycle"
    )
    sharded: bool = Field(
        True,
        description="scrape: with --shard each collector reads a part of the targets; false: all read them, "
        "as for kube-state-metrics, which every node's rows need",
    )
    targets_file: Path | None = Field(
        None,
        description="scrape: more targets, in a file that is watched: file_sd of Prometheus (JSON, YAML), or TOML",
    )
    dns: tuple[DnsSettings, ...] = Field((), description="scrape: more targets, from names in DNS")
    kubernetes: KubernetesDiscovery | None = Field(None, description="scrape: more targets, from pods of Kubernetes")
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict,
        description="kubernetes, slurm, pci: see docs/demand.md; else what a plug-in of another package asks for",
    )
    match: dict[str, str] = Field(
        default_factory=dict,
        description='prometheus: read only series with these label values, such as { cluster = "a" }',
    )

    @field_validator("targets_file", mode="before")
    @classmethod
    def _no_file(cls, value: Any) -> Any:
        return None if value == "" else value

    @model_validator(mode="after")
    def _labels(self) -> Self:
        wrong = [name for name in self.match if not _LABEL.fullmatch(name) or name == "__name__"]
        if self.kind == "prometheus" and wrong:
            raise ValueError(f"`match`: expected names of labels such as cluster, got {wrong[0]!r}")
        return self

    cluster: str = Field("", description="cluster that this source belongs to; empty: that of `[cluster]`")
    node: str = Field("", description="nvml: name of this host in rows, as Kubernetes has it; empty: the host name")
    library: Path | None = Field(None, description="nvml: file libnvidia-ml.so.1; empty: found by the loader")
    host_root: Path = Field(Path("/"), description="nvml: where the host's /proc, /var/log and /var/lib are mounted")
    holders: tuple[HolderSettings, ...] = Field((), description="nvml: whose processes are that no pod holds")


class MappingSettings(Section):
    """One `[[mapping]]` table: a metric of your own, or a file that maps a whole exporter (docs/mappings.md)."""

    file: str = Field("", description="path of a TOML file that maps a whole exporter; instead of the keys below")
    metric: str = Field("", description="the exporter's metric name")
    measurement: Literal["gpu", "slice", "node"] | None = Field(None, description="whose row it goes to")
    field: str = Field("", description="field of the schema (docs/metrics.md)")
    unit: str = Field("", description="unit that the exporter writes, such as percent, MiB, mJ or us")
    scale: float = Field(1.0, description="factor to the base unit, where no unit is given")
    counter: bool = Field(False, description="true for a monotonic counter: its growth is stored")
    subject: Literal["", "device", "container", "server", "node"] = Field(
        "",
        description="what its labels name: a card (device), a container on a card, the scraped server or trainer, "
        "or the node; empty: as the measurement suggests",
    )
    where: tuple[str, ...] = Field(
        (), description='only series with these labels, such as ["method=decode"]; * stands for any value'
    )
    adds_up: tuple[str, ...] = Field((), description="labels whose series add up, such as an engine's number")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.file and self.metric:
            raise ValueError(f"a mapping takes `file` or `metric`, got both: {self.file!r} and {self.metric!r}")
        if not self.file and not (self.metric and self.measurement and self.field):
            raise ValueError("a mapping needs `metric`, `measurement` and `field`, or `file`")
        if self.unit and self.scale != 1.0:
            raise ValueError(f"a mapping takes `unit` or `scale`, got both: {self.unit!r} and {self.scale:g}")
        wrong = [text for text in self.where if "=" not in text]
        if wrong:
            raise ValueError(f"`where`: expected label=value, got {wrong[0]!r}")
        return self


class StoreSettings(Section):
    """Table `[store]`: the embedded store."""

    path: Path = Field(Path("var/store"), description="folder of the embedded store; must be on a local disk")
    synchronous: Literal["NORMAL", "FULL"] = Field("NORMAL", description="FULL: an fsync a commit")
    seal_rows: int = Field(200_000, ge=1000, description="seal a measurement after so many unsealed rows")
    seal_seconds: float = Field(900.0, gt=0, description="seal at the latest after so much real time, in seconds")
    raw_days: float = Field(7.0, gt=0, description="keep raw rows, in days")
    minute_days: float = Field(90.0, gt=0, description="keep 1-min rows, in days")
    hour_days: float = Field(730.0, gt=0, description="keep 1-h rows, in days")
    disk_max_bytes: int = Field(
        0,
        ge=0,
        description="drop the oldest rows beyond so many bytes; those not shipped to InfluxDB yet go last; 0: no limit",
    )


class InfluxSettings(Section):
    """Table `[influx]`: InfluxDB 1.8+, 2.x or 3.x as the store of record; the embedded store feeds it."""

    url: str = Field("", description="base address; empty: the embedded store alone")
    org: str = Field("", description="organisation (2.x); `-` on 1.8; not used by 3.x")
    bucket: str = Field("trimtab", min_length=1, description="bucket of raw rows, or database/retention-policy on 1.8")
    token: SecretStr | None = Field(None, description="API token; user:password on 1.8; set it by environment")
    token_file: Path | None = Field(
        None, description="file that holds the token, instead of `token`; read for each request, so it may be rotated"
    )
    ca_file: Path | None = Field(
        None, description="certificates (PEM) that the server's is checked against, if private"
    )
    gzip: Literal["auto", "on", "off"] = Field("auto", description="compress what is sent; auto: not on loopback")
    batch_rows: int = Field(5_000, ge=1, le=100_000, description="rows of one write request")
    timeout_seconds: float = Field(30.0, gt=0, le=3600, description="limit for one request, in seconds")
    raw_days: float = Field(7.0, gt=0, description="keep raw rows there, in days")
    minute_days: float = Field(90.0, gt=0, description="keep 1-min rows there, in days")
    hour_days: float = Field(730.0, gt=0, description="keep 1-h rows, facts and events there, in days")

    @model_validator(mode="after")
    def _one_token(self) -> InfluxSettings:
        if self.token is not None and self.token.get_secret_value() and self.token_file is not None:
            raise ValueError("`token_file`: expected `token` or `token_file`, got both; remove one")
        return self


class TenantSettings(Section):
    """One `[[tenant]]` table: which namespaces, nodes and cards belong to one payer."""

    name: str = Field(description="name of the tenant")
    namespaces: tuple[str, ...] = Field((), description="globs on the namespace")
    nodes: tuple[str, ...] = Field((), description="globs on the node: cards there whose holder nobody names are its")
    gpus: tuple[str, ...] = Field((), description="globs on the card's UUID, likewise")
