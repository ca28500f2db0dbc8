"""A loopback server that answers as an API server does: lists in pages, expired pages, refusals, silence."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "let-me-in"  # noqa: S105  of this server alone


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    """Return a `Status` object, as the server sends with every refusal."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


@dataclass
class Api:
    """Lists by path; what is asked is noted.

    refused: path -> HTTP status; expiring: path -> how many of its second pages are 410; page: items a page at most.
    """

    lists: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    expiring: dict[str, int] = field(default_factory=dict)
    page: int = 500
    bodies: dict[str, bytes] = field(default_factory=dict)
    silent: threading.Event = field(default_factory=threading.Event)
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str, query: dict[str, list[str]], token: str) -> tuple[int, dict[str, Any] | bytes]:
        """Return what the server says to a GET."""
        if token != f"Bearer {TOKEN}":
            return 401, status(401, "Unauthorized", "Unauthorized")
        if path in self.bodies:
            return 200, self.bodies[path]
        if path in self.refused:
            code = self.refused[path]
            message = (
                f'{path.rpartition("/")[2]} is forbidden: User "trimtab" cannot list resource at the cluster scope'
            )
            return code, status(code, "Forbidden", message)
        if path not in self.lists:
            return 404, status(404, "NotFound", "the server could not find the requested resource")
        start = int(query.get("continue", ["0"])[0])
        if start and self.expiring.get(path, 0):
            self.expiring[path] -= 1
            return 410, status(410, "Expired", "The provided continue parameter is too old")
        size = min(int(query["limit"][0]), self.page)
        items = self.lists[path]
        meta: dict[str, Any] = {"resourceVersion": "4711"}
        if start + size < len(items):
            meta |= {"continue": str(start + size), "remainingItemCount": len(items) - start - size}
        return 200, {"kind": "List", "apiVersion": "v1", "metadata": meta, "items": items[start : start + size]}


@contextmanager
def serving(api: Api) -> Iterator[Api]:
    """Serve on a free port of loopback; sets `url`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            api.asked.append(self.path)
            if api.silent.is_set():
                self.close_connection = True
                done.wait(30)
                return
            parts = urlsplit(self.path)
            code, document = api.answer(parts.path, parse_qs(parts.query), self.headers.get("Authorization", ""))
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the library's name
            pass

    done = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield api
    finally:
        done.set()
        server.shutdown()
        server.server_close()
        thread.join()


def gpu_pod(
    name: str,
    namespace: str = "team-a",
    *,
    cards: int = 1,
    node: str = "",
    created: str = "2026-01-05T00:00:00Z",
    started: str = "",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    owner: tuple[str, str] = ("", ""),
    phase: str = "",
) -> dict[str, Any]:
    """Return a pod that asks for cards; it waits where it has no node."""
    scheduled = {"type": "PodScheduled", "status": "True" if node else "False"}
    if node:
        scheduled["lastTransitionTime"] = started or created
    meta: dict[str, Any] = {"name": name, "namespace": namespace, "creationTimestamp": created, "labels": labels or {}}
    meta["annotations"] = annotations or {}
    if owner[0]:
        meta["ownerReferences"] = [{"kind": owner[0], "name": owner[1], "controller": True}]
    limits = {"nvidia.com/gpu": str(cards), "cpu": "4"} if cards else {"cpu": "4"}
    spec: dict[str, Any] = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    state: dict[str, Any] = {"phase": phase or ("Running" if node else "Pending"), "conditions": [scheduled]}
    if node:
        spec["nodeName"] = node
        state["startTime"] = started or created
    return {"metadata": meta, "spec": spec, "status": state}


def kueue_workload(
    name: str,
    namespace: str = "team-a",
    *,
    queue: str = "main",
    pods: int = 1,
    cards: int = 1,
    created: str = "2026-01-05T00:00:00Z",
    admitted: str = "",
    finished: bool = False,
    evicted: str = "",
    owner: tuple[str, str] = ("Job", "train"),
) -> dict[str, Any]:
    """Return a Workload of Kueue; it waits where `admitted` is empty."""
    conditions = []
    if admitted:
        conditions += [
            {"type": kind, "status": "True", "lastTransitionTime": admitted} for kind in ("QuotaReserved", "Admitted")
        ]
    if evicted:
        conditions += [
            {"type": "Evicted", "status": "True", "lastTransitionTime": evicted},
            {"type": "QuotaReserved", "status": "False", "lastTransitionTime": evicted},
        ]
    if finished:
        conditions.append({"type": "Finished", "status": "True", "lastTransitionTime": "2026-01-05T09:00:00Z"})
    container = {"name": "main", "resources": {"requests": {"nvidia.com/gpu": cards, "cpu": "8"}}}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "creationTimestamp": created,
            "ownerReferences": [{"kind": owner[0], "name": owner[1], "controller": True}],
        },
        "spec": {
            "queueName": queue,
            "active": True,
            "podSets": [{"name": "main", "count": pods, "template": {"spec": {"containers": [container]}}}],
        },
        "status": {"conditions": conditions, **({"admission": {"clusterQueue": "research"}} if admitted else {})},
    }


def cluster_queue(name: str = "research", *, quota: str = "8", reserved: str = "4", pending: int = 1) -> dict[str, Any]:
    """Return a ClusterQueue with one flavor of cards."""
    covered = [{"name": "cpu", "nominalQuota": "100"}, {"name": "nvidia.com/gpu", "nominalQuota": quota}]
    return {
        "metadata": {"name": name},
        "spec": {"cohortName": "all", "resourceGroups": [{"flavors": [{"name": "h100", "resources": covered}]}]},
        "status": {"pendingWorkloads": pending, "flavorsReservation": reservation(reserved)},
    }


def local_queue(namespace: str = "team-a", name: str = "main", pool: str = "research", **told: Any) -> dict[str, Any]:
    """Return a LocalQueue that leads to a cluster queue."""
    reserved = told.get("reserved", "4")
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterQueue": pool},
        "status": {"pendingWorkloads": told.get("pending", 1), "flavorsReservation": reservation(reserved)},
    }


def reservation(cards: str) -> list[dict[str, Any]]:
    """Return `flavorsReservation` of one flavor."""
    return [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "total": cards, "borrowed": "0"}]}]
