"""The source `kubernetes`: pods, nodes, quotas and the queues of Kueue, KAI and Volcano, listed from the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial

from pydantic import Field

from collector.assemble import Assembler, Scrape
from collector.demand import SchedulerState, merged_states
from collector.errors import ConfigurationError, UnreachableError
from collector.gathering import GatheringSource
from collector.kube import KubeState
from collector.plugins import SourceContext
from collector.protocols import SourceDescription
from collector.schedulers.api import DeniedError, KubeApi, connect, pages_of
from collector.schedulers.kai import read_kai
from collector.schedulers.kueue import read_kueue
from collector.schedulers.objects import Json, table, text
from collector.schedulers.options import read_options
from collector.schedulers.pods import add_node, add_pod, add_quota
from collector.schedulers.volcano import read_volcano
from collector.settings import Section, SourceSettings, TargetSettings

_GROUP_ANNOTATIONS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")

# Ways to log in that exporters know, and the client's library does not from us.
_UNUSED = ("bearer_token_file", "username", "cert_file")

# Everything that is ever asked of the API: `deploy/kubernetes/rbac.yaml` grants to list these, and nothing else.
LISTS: Mapping[str, tuple[str, ...]] = {
    "pods": ("/api/v1/pods",),
    "nodes": ("/api/v1/nodes",),
    "resource quotas": ("/api/v1/resourcequotas",),
    "Kueue cluster queues": tuple(f"/apis/kueue.x-k8s.io/{v}/clusterqueues" for v in ("v1beta2", "v1beta1")),
    "Kueue local queues": tuple(f"/apis/kueue.x-k8s.io/{v}/localqueues" for v in ("v1beta2", "v1beta1")),
    "Kueue workloads": tuple(f"/apis/kueue.x-k8s.io/{v}/workloads" for v in ("v1beta2", "v1beta1")),
    "KAI queues": ("/apis/scheduling.run.ai/v2/queues",),
    "Volcano queues": ("/apis/scheduling.volcano.sh/v1beta1/queues",),
    "Volcano pod groups": ("/apis/scheduling.volcano.sh/v1beta1/podgroups",),
}


class KubernetesOptions(Section):
    """`options` of a source of kind `kubernetes`."""

    kubeconfig: str = Field("", description="file of clusters and users; empty, and no `url`: the pod's own account")
    context: str = Field("", description="context of the kubeconfig; empty: its current one")
    ca_file: str = Field("", description="certificates that the server's own is checked against")


class KubernetesSource(GatheringSource):
    """Lists what waits and what runs, by the API server's own word; it needs no kube-state-metrics.

    Args:
        settings: the `[[source]]` table: `url` and `bearer_token`, or `options`.
        context: cluster, interval, declarations, tenants.

    Raises:
        ConfigurationError: an option is not known, a log-in is of another kind, or nothing says which server.
    """

    def __init__(self, settings: SourceSettings, context: SourceContext) -> None:
        options = read_options(KubernetesOptions, settings)
        unused = [name for name in _UNUSED if getattr(settings, name)]
        if unused:
            raise ConfigurationError(
                f'source "{settings.name or settings.kind}": expected `bearer_token`, or files that '
                f"`options.kubeconfig` names, got {unused[0]}, which has no effect on this kind"
            )
        token = settings.bearer_token
        client = connect(
            url=settings.url,
            token=token.get_secret_value() if token is not None else "",
            kubeconfig=options.kubeconfig,
            context=options.context,
            ca_file=options.ca_file or str(settings.ca_file or ""),
        )
        self._client = client
        self._api = KubeApi(client, settings.timeout_seconds)
        self._name = settings.name or settings.kind
        self._context = context
        self._target = TargetSettings(url=self._api.address)
        self.assembler = Assembler(context)

    def gather(self, now: datetime) -> list[Scrape]:
        """List everything once; what may not be listed is named, the rest is used."""
        del now
        denied: dict[str, str] = {}
        try:
            kube, demand = self._read(denied)
        except UnreachableError as error:
            return [Scrape(self._target, None, str(error))]
        if len(denied) == len(LISTS):
            return [Scrape(self._target, None, f"{self._api.address}: {next(iter(denied.values()))}")]
        return [Scrape(self._target, None, kube=kube, demand=demand, denied=denied)]

    def describe(self) -> SourceDescription:
        """Say what this source is."""
        return SourceDescription("kubernetes", self._name, (self._api.address,), self._context.interval_seconds)

    def close(self) -> None:
        """Release connections."""
        self._client.rest_client.pool_manager.clear()

    def _read(self, denied: dict[str, str]) -> tuple[KubeState | None, SchedulerState]:
        kube = KubeState()
        groups: set[str] = set()

        def take_pod(item: Json) -> None:
            add_pod(kube, item)
            meta = table(item.get("metadata"))
            notes = table(meta.get("annotations"))
            groups.update(
                f"{text(meta.get('namespace'))}/{notes[name]}" for name in _GROUP_ANNOTATIONS if name in notes
            )

        self._stream("pods", take_pod, denied)
        self._stream("nodes", partial(add_node, kube), denied)
        self._stream("resource quotas", partial(add_quota, kube), denied)
        lists = {part: self._list(part, denied) for part in list(LISTS)[3:]}
        demand = merged_states(
            (
                read_kueue(lists["Kueue cluster queues"], lists["Kueue local queues"], lists["Kueue workloads"]),
                read_kai(lists["KAI queues"]),
                read_volcano(lists["Volcano queues"], lists["Volcano pod groups"], groups),
            )
        )
        # Without pods nobody can say who is not known to Kubernetes.
        return (None if "pods" in denied else kube), demand

    def _stream(self, part: str, use: Callable[[Json], None], denied: dict[str, str]) -> None:
        try:
            self._api.each(LISTS[part][0], use)
        except DeniedError as error:
            denied[part] = str(error)

    def _list(self, part: str, denied: dict[str, str]) -> list[Json]:
        try:
            return list(pages_of(self._api, LISTS[part]) or ())
        except DeniedError as error:
            denied[part] = str(error)
            return []
