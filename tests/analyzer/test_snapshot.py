"""Snapshots: each format is read, bad entries are named, and the numbers are those of the measure."""

from __future__ import annotations

import gzip
import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.fgd import NodeIdle
from analyzer.findings import Finding
from analyzer.snapshot import Snapshot, SnapshotAnalysis, analyse_snapshot, idle_nodes, instant_window
from analyzer.snapshot_files import read_snapshot
from benchmarks.arrivals import read_state
from collector.errors import InputRejectedError

NOW = datetime(2026, 1, 5, tzinfo=UTC)
A100 = "NVIDIA A100-SXM4-40GB"


def analyse(*texts: str | dict[str, Any]) -> SnapshotAnalysis:
    whole = Snapshot()
    for i, text in enumerate(texts):
        whole.add(read_snapshot(text if isinstance(text, str) else json.dumps(text), f"file{i}"))
    return analyse_snapshot(whole, instant_window(NOW))


def only(found: SnapshotAnalysis, code: str) -> Finding:
    [finding] = [f for f in found.findings if f.code == code]
    return finding


def test_our_json() -> None:
    found = analyse(
        {
            "nodes": [
                {
                    "name": "a",
                    "pool": "train",
                    "model": A100,
                    "cards": 2,
                    "cpu_cores": 16,
                    "gpu_memory_bytes": 4e10,
                },
                {"name": "b", "model": "Tesla T4", "cards": 1, "free_shares": [0.25], "free_cpu_cores": 2},
            ],
            "pods": [
                {
                    "name": "x/a",
                    "node": "a",
                    "share": 0.4,
                    "memory_bytes": 1e10,
                    "cpu_cores": 4,
                    "card_numbers": [1],
                },
                {"name": "x/b", "node": "a", "share": 0.5, "cpu_cores": 2},
                {"name": "x/c", "cards": 2},
            ],
        }
    )
    assert found.fragmentation is not None
    # x/b's card is not told: the fullest that takes it is card 1.
    assert found.fragmentation["free_share_by_node"] == {"a": [1.0, 0.1], "b": [0.25]}
    assert found.snapshot["places_assumed"] == 1
    assert (found.snapshot["pods"], found.snapshot["waiting"]) == (2, 1)
    assert found.fragmentation["free_cards"] == pytest.approx(1.35)
    rooms = {room["pool"]: room for room in found.fragmentation["rooms"]}
    assert rooms["train"]["biggest_placeable"] == "50% of a card, 2 CPU"
    assert rooms["default"]["largest_piece"] == 0.25
    # 40 % with 10 GiB and 50 % fit on card 0; two whole cards do not, for want of share, and wait.
    assert [(d["fits"], d["lost_for"]) for d in found.fragmentation["demand"]].count((False, [])) == 1
    json.dumps(found.to_json(), allow_nan=False)


def test_given_requests_are_the_mix() -> None:
    nodes = {"nodes": [{"name": "n", "cards": 2, "free_shares": [0.4, 0.6]}]}
    mix = {"requests": [{"share": 0.5, "weight": 5}, {"weight": 3}, {"cards": 2, "weight": 2}]}
    found = analyse(nodes, mix)
    assert found.fragmentation is not None
    assert found.fragmentation["fragmented_cards"] == pytest.approx(0.5 * 0.4 + 0.3 * 1.0 + 0.2 * 1.0)
    assert found.snapshot["requests"] == "given"
    assert only(found, "TT211").evidence["lost_part"] == pytest.approx(0.3)


def test_tables_of_nodes_pods_and_requests() -> None:
    nodes = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,x,1,2,P100\n"
    pods = "cpu_milli,num_gpu,gpu_milli,gpu_index,node\n8000,1,470,1,n0\n32000,0,0,,n0\n"
    mix = "cpu_milli,num_gpu,gpu_milli,gpu_spec,n,p\n4000,1,500,,3,0.6\n40000,1,1000,T4|P100,2,0.4\n"
    found = analyse(nodes, pods, mix)
    assert found.fragmentation is not None
    assert found.fragmentation["free_share_by_node"] == {"n0": [1.0, 0.53]}
    assert found.snapshot["rejected"] == ["file0 line 3: expected a number as cpu_milli, got 'x'"]
    # 24 cores are left: the second request fits nowhere for want of CPU alone, and strands all of the node.
    assert found.fragmentation["fragmented_cards"] == pytest.approx(0.4 * 1.53)
    assert only(found, "TT212").evidence["lost_part"] == pytest.approx(0.4)
    left = "node,model,cpu_free_milli,gpus,gpu_free_milli\nn0,P100,24000,2,1000;530\n"
    again = analyse(left, mix)
    assert again.fragmentation is not None
    assert again.fragmentation["fragmented_cards"] == pytest.approx(0.4 * 1.53)


def test_a_table_of_pods_without_nodes_is_a_mix() -> None:
    nodes = "name,cards,free_shares\nn,1,0.5\n"
    found = analyse(nodes, "name,cpu_milli,num_gpu,gpu_milli\np,0,1,500\nq,0,1,1000\n")
    assert (found.snapshot["requests"], found.snapshot["waiting"]) == ("given", 0)
    assert found.fragmentation is not None
    assert [d["part"] for d in found.fragmentation["demand"]] == [0.5, 0.5]


def test_cut_cards() -> None:
    cut = [
        [{"profile": "1g.5gb", "start": 0, "holder": "t/a"}, {"profile": "3g.20gb", "start": 4}],
        [{"profile": "9g"}],
    ]
    found = analyse(
        {
            "nodes": [{"name": "m", "model": A100, "cards": 2, "instances_by_card": cut}],
            "pods": [{"name": "t/big", "profile": "mig-4g.20gb"}],
        }
    )
    first, second = found.cut_cards
    assert (first["board"], first["largest_placeable"], first["layout_told"]) == ("A100-40GB", "2g.10gb", True)
    assert first["mix_placement_fragmentation"] == 0.0  # three compute slices are left: 4g does not fit by capacity
    assert second["unknown"].startswith("no placement table")
    assert found.fragmentation is None
    assert {w.code for w in found.withheld} >= {"TT221", "TT222"}


def node(name: str, labels: dict[str, str], allocatable: dict[str, str], **spec: Any) -> dict[str, Any]:
    annotations = spec.pop("annotations", {})
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": spec,
        "status": {"allocatable": allocatable, "capacity": allocatable},
    }


def pod(name: str, where: str, requests: dict[str, str], **more: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "c", "resources": {"requests": requests}}], **more.pop("spec", {})}
    if where:
        spec["nodeName"] = where
    phase = more.pop("phase", "Running" if where else "Pending")
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "annotations": more},
        "spec": spec,
        "status": {"phase": phase},
    }


LABELS = {
    "nvidia.com/gpu.count": "2",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
    "nvidia.com/gpu.memory": "40960",
    "cloud.google.com/gke-nodepool": "pool-a",
}


def kubectl(*objects: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}


def test_kubernetes_whole_cards_cpu_and_types() -> None:
    found = analyse(
        kubectl(
            node("n", LABELS, {"cpu": "32", "nvidia.com/gpu": "2"}),
            node("cordoned", LABELS, {"cpu": "32", "nvidia.com/gpu": "2"}, unschedulable=True),
            node("no-gpu", {}, {"cpu": "64"}),
            pod("one", "n", {"nvidia.com/gpu": "1", "cpu": "4"}),
            pod("web", "n", {"cpu": "20"}),
            pod("done", "n", {"nvidia.com/gpu": "1"}, phase="Succeeded"),
            pod("cpu", "", {"nvidia.com/gpu": "1", "cpu": "16"}),
            pod("h100", "", {"nvidia.com/gpu": "1"}, spec={"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100"}}),
        )
    )
    assert found.fragmentation is not None
    assert found.fragmentation["free_share_by_node"] == {"n": [0.0, 1.0]}
    assert found.snapshot["left_out"] == {"node is cordoned": 1, "no card is counted on the node": 1}
    assert found.fragmentation["rooms"][0]["pool"] == "pool-a"
    lost = {d["request"]: d["lost_for"] for d in found.fragmentation["demand"]}
    assert lost["a whole card, 16 CPU"] == ["cpu"]
    assert lost["a whole card of type NVIDIA H100"] == ["type"]


def test_kubernetes_hami_shares_lie_where_it_says() -> None:
    cards = "GPU-aa,10,40960,100,NVIDIA-A100,0,true:GPU-bb,10,40960,100,NVIDIA-A100,0,true:"
    register = {"hami.io/node-nvidia-register": cards}
    given = {"hami.io/vgpu-devices-allocated": "GPU-bb,NVIDIA,8192,30:;"}
    found = analyse(
        kubectl(
            node(
                "n",
                LABELS,
                {"cpu": "32", "nvidia.com/gpu": "20"},
                annotations=register,
            ),
            pod("a", "n", {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "30", "nvidia.com/gpumem": "8192"}, **given),
            pod("b", "", {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "80", "nvidia.com/gpumem": "38000"}),
        )
    )
    assert found.fragmentation is not None
    assert found.fragmentation["free_share_by_node"] == {"n": [1.0, 0.7]}
    assert found.snapshot["places_assumed"] == 0
    assert found.fragmentation["free_memory_bytes"] == pytest.approx((40960 + 40960 - 8192) * 2**20)


def test_kubernetes_time_slices_are_parts_of_a_card() -> None:
    labels = {**LABELS, "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-SHARED"}
    found = analyse(
        kubectl(
            node("n", labels, {"cpu": "32", "nvidia.com/gpu": "8"}),
            pod("a", "n", {"nvidia.com/gpu": "1"}),
            pod("b", "", {"nvidia.com/gpu": "1"}),
        )
    )
    assert found.fragmentation is not None
    assert found.fragmentation["free_share_by_node"] == {"n": [0.75, 1.0]}
    assert found.fragmentation["rooms"][0]["model"] == "NVIDIA A100 SXM4 40GB"


def test_kubernetes_mig_instances() -> None:
    allocatable = {"cpu": "32", "nvidia.com/gpu": "0", "nvidia.com/mig-3g.20gb": "2", "nvidia.com/mig-1g.5gb": "2"}
    found = analyse(kubectl(node("n", LABELS, allocatable), pod("a", "n", {"nvidia.com/mig-3g.20gb": "1"})))
    assert [card["instances"] for card in found.cut_cards] == [
        [["1g.5gb", None, False], ["3g.20gb", None, True]],
        [["1g.5gb", None, False], ["3g.20gb", None, False]],
    ]
    uneven = analyse(kubectl(node("n", LABELS, {**allocatable, "nvidia.com/mig-1g.5gb": "3"})))
    assert all("not told" in card["unknown"] for card in uneven.cut_cards)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a table of nodes, pods or requests in file0, got columns none"),
        ("a,b\n1,2\n", "got columns a, b"),
        ("\x00\x1b[31m,\ufffd\n", "got something that is no text; see"),
        ("x" * 120_000, r"got columns x{200}\.\.\.; see"),
        ("x" * 200_000, "expected a table in file0, got field larger than field limit"),
        ("{", "expected JSON in file0"),
        ("[1]", "expected an object with nodes, pods or requests"),
        ('{"nodes": 3}', "expected a list as nodes"),
        ('{"nodes": []}', "found none that can be read"),
        ('{"nodes": [{"cards": 2}]}', r"file0: nodes\[0\]: expected the name of a node"),
        ('{"items": []}', "found none that can be read"),
    ],
)
def test_what_is_no_snapshot_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputRejectedError, match=message):
        read_snapshot(text, "file0")


def test_bad_entries_are_named_and_the_rest_is_read() -> None:
    bad = [
        {"name": "a", "cards": 2.5},
        {"name": "b", "cards": 2, "free_shares": [1.0]},
        {"name": "c", "cards": 1, "free_shares": [1.5]},
        {"name": "d", "cards": 1, "instances_by_card": [[{"profile": "1g.5gb", "start": "x"}]]},
        {"name": ["e"], "cards": 1},
        "f",
        {"name": "g", "cards": 1},
    ]
    pods = [{"share": 2}, {"share": 0.5, "card_numbers": ["x"]}, {"memory_bytes": -1}, {"share": True}, {"node": "g"}]
    requests = [{"weight": -1}, 3, {"share": 0.5}]
    found = read_snapshot(json.dumps({"nodes": bad, "pods": pods, "requests": requests}), "f")
    assert list(found.nodes) == ["g"]
    assert len(found.pods) == 1
    assert sum(found.requests.values()) == 1_000_000
    assert len(found.rejected) == 12
    assert "f: nodes[1]: expected 2 free_shares, one a card that is not cut, got 1" in found.rejected
    assert "f: requests[0]: expected a weight of 0 or more, got -1" in found.rejected


names = st.sampled_from(["name", "cards", "share", "node", "kind", "metadata", "spec"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "cards", "share", "node", "kind", "metadata", "spec"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(st.lists(json_values, max_size=4), st.sampled_from(["nodes", "pods", "requests", "items"]))
def test_no_document_breaks_the_reader(entries: list[Any], key: str) -> None:
    try:
        found = read_snapshot(json.dumps({key: entries}), "f")
    except InputRejectedError:
        return
    if found.nodes:
        json.dumps(analyse_snapshot(found, instant_window(NOW)).to_json(), allow_nan=False)


def test_pods_add_up_to_what_a_recorded_state_has_left(shared_dir: Path) -> None:
    folder = shared_dir / "data" / "cluster_snapshot"
    whole = Snapshot()
    whole.add(read_snapshot((folder / "nodes_gpu.csv").read_text(), "nodes"))
    pods = gzip.decompress((folder / "states" / "default_bestfit_60_s42_pods.csv.gz").read_bytes()).decode()
    whole.add(read_snapshot(pods, "pods"))
    nodes, _, assumed, over = idle_nodes(whole)
    name = "default_bestfit_60_s42"
    want, _ = read_state(folder / "states" / f"{name}_nodes.csv.gz", folder / "states" / "typical_default.csv")
    assert (assumed, over) == (0, 0)
    assert [_bare(one) for one in nodes] == [_bare(one) for one in want]


def _bare(one: NodeIdle) -> tuple[str, tuple[float, ...], float]:
    return one.name, tuple(round(share, 6) for share in one.left), round(one.cpu_cores_left, 6)


def test_more_given_than_there_is_is_counted() -> None:
    found = analyse(
        {
            "nodes": [{"name": "n", "cards": 1, "cpu_cores": 2}],
            "pods": [{"node": "n", "share": 0.6, "cpu_cores": 2}, {"node": "n", "share": 0.6}],
        }
    )
    assert found.snapshot["nodes_over_given"] == 1
    assert found.fragmentation is not None
    assert math.isclose(found.fragmentation["free_cards"], 0.4)


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        ({"gpu_index": [-7]}, "numbers of cards from 0 on, got [-7]"),
        ({"gpu_index": [10**9]}, "numbers of cards from 0 on"),
        ({"gpu_index": [math.inf]}, "numbers of cards, got [inf]"),
        ({"cpu_cores": 10**400}, "a number as cpu_cores"),
        ({"cpu_cores": 1e308}, "a number as cpu_cores, got '1e+308'"),
    ],
)
def test_numbers_beyond_reason_are_named_and_the_rest_is_read(pod: dict[str, Any], said: str) -> None:
    node = {"name": "a", "cards": 2}
    found = analyse({"nodes": [node], "pods": [{"cards": 1, "node": "a"} | pod, {"cards": 1, "node": "a"}]})
    [rejected] = found.snapshot["rejected"]
    assert rejected.startswith("file0: pods[0]: expected ")
    assert said in rejected
    assert found.fragmentation is not None
    assert found.fragmentation["free_cards"] == 1.0


@pytest.mark.parametrize("start", [-1, 10**40])
def test_an_instance_begins_on_the_card(start: int) -> None:
    cut = {"name": "m", "model": A100, "instances_by_card": [[{"profile": "1g.5gb", "start": start}]]}
    found = analyse({"nodes": [{"name": "a", "cards": 1}, cut]})
    assert "expected a memory slice's number as start" in found.snapshot["rejected"][0]


def test_halves_of_a_character_are_replaced() -> None:
    found = read_snapshot('{"nodes": [{"name": "a\\ud800", "cards": 1}]}', "file")
    assert list(found.nodes) == ["a?"]


@pytest.mark.parametrize(
    ("text", "requests", "rejected"),
    [
        ("num_gpu,weight\r2,3\r1,1\r", 2, 0),
        ("num_gpu,weight\n" + "1" * 200_000 + ",2\n1,1\n", 1, 1),
    ],
)
def test_tables_of_any_line_end_and_width(text: str, requests: int, rejected: int) -> None:
    found = read_snapshot(text, "file")
    assert (len(found.requests), len(found.rejected)) == (requests, rejected)


def test_a_table_without_a_head_that_can_be_read_is_refused() -> None:
    with pytest.raises(InputRejectedError, match="expected a table in file, got field larger than"):
        read_snapshot("x" * 200_000 + ",b\n", "file")


_HELD = ("allocatable", "capacity")
_TOO_MANY = "more than 1024 cards or instances are counted on the node"


@pytest.mark.parametrize(
    ("labels", "resources", "left_out"),
    [
        ({"nvidia.com/gpu.count": "99999999999"}, {}, _TOO_MANY),
        ({}, {"nvidia.com/mig-1g.5gb": "1E"}, "no card is counted on the node"),
        ({"nvidia.com/gpu.count": "1"}, {"nvidia.com/mig-1g.5gb": "1E"}, _TOO_MANY),
        ({"nvidia.com/gpu.count": "²", "nvidia.com/gpu.memory": "²"}, {}, ""),
    ],
)
def test_nodes_that_count_beyond_reason_are_left_out(
    labels: dict[str, str], resources: dict[str, str], left_out: str
) -> None:
    held = {"cpu": "8", **(resources or {"nvidia.com/gpu": "2"})}
    strange = {"kind": "Node", "metadata": {"name": "n", "labels": labels}, "status": dict.fromkeys(_HELD, held)}
    good = {"kind": "Node", "metadata": {"name": "g"}, "status": {key: {"nvidia.com/gpu": "4"} for key in _HELD}}
    asked = {"resources": {"limits": {"nvidia.com/mig-1g.5gb": "1E"}}}
    pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [asked]}}
    found = read_snapshot(json.dumps({"items": [strange, good, {**pod, "status": {"phase": "Running"}}]}), "file")
    assert {name: node.cards for name, node in found.nodes.items()} == ({"g": 4} if left_out else {"n": 2, "g": 4})
    assert list(found.left_out) == ([left_out] if left_out else [])
