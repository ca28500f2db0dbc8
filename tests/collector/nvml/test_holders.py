"""Cgroups of all container runtimes, odd process names, files of the kubelet that are not what they should be."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.errors import UnreachableError
from collector.nvml.holders import Grant, HolderFinder, Owner
from tests.collector.nvml.conftest import Host

ID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podx.slice/cri-containerd-{ID}.scope",
        f"0::/kubepods/burstable/podx/{ID}",
        f"0::/kubepods.slice/kubepods-podx.slice/crio-{ID}.scope/container",
        f"0::/system.slice/docker-{ID}.scope",
        f"0::/machine.slice/libpod-{ID}.scope/container",
        f"12:devices:/kubepods/besteffort/podx/{ID}\n11:memory:/kubepods/besteffort/podx/{ID}\n1:name=systemd:/init",
        f"0::/docker/{OTHER}/kubelet.slice/kubelet-kubepods.slice/cri-containerd-{ID}.scope",  # a node in a container
    ],
)
def test_the_container_of_a_process(host: Host, cgroup: str) -> None:
    host.container(ID, "web", "chat-0", "main")
    host.process(7, cgroup=cgroup)
    assert HolderFinder(host.root, "node-a").owner(7) == Owner("web", "chat-0", "main")


@pytest.mark.parametrize("cgroup", ["0::/", "0::/user.slice/user-1000.slice", f"0::/x/{ID}abc", f"0::/x/{ID[:40]}", ""])
def test_a_process_outside_of_containers(host: Host, cgroup: str) -> None:
    host.container(ID, "web", "chat-0", "main")
    host.process(7, start=99, cgroup=cgroup)
    assert HolderFinder(host.root, "node-a").owner(7) == Owner(process="node-a/7.99")


def test_a_container_that_the_kubelet_does_not_know_is_a_bare_process(host: Host) -> None:
    host.process(7, cgroup=f"0::/system.slice/docker-{ID}.scope")
    assert HolderFinder(host.root, "node-a").owner(7) == Owner(process="node-a/7.1000")


def test_a_container_that_comes_later_is_found(host: Host) -> None:
    finder = HolderFinder(host.root, "node-a")
    cgroup = host.container(ID, "web", "a-0", "main")
    host.process(7, cgroup=cgroup)
    assert finder.owner(7) == Owner("web", "a-0", "main")
    host.process(8, cgroup=host.container(OTHER, "ml", "b-c", "side-car"))
    assert finder.owner(8) == Owner("ml", "b-c", "side-car")
    finder.forget_all_but({8})
    assert finder.owner(7) == Owner("web", "a-0", "main")


@pytest.mark.parametrize("name", ["python", "a b", "x) y (z", "((", "tmux: server", "名前", ")", ""])
def test_names_of_commands_do_not_hide_the_start(host: Host, name: str) -> None:
    folder = host.root / "proc/7"
    folder.mkdir()
    (folder / "stat").write_text(f"7 ({name}) S 1 {'0 ' * 17}4711 {'0 ' * 30}\n")
    (folder / "cgroup").write_text("0::/\n")
    assert HolderFinder(host.root, "n").owner(7) == Owner(process="n/7.4711")


@pytest.mark.parametrize("stat", ["", "7", "7 (x) S 1 0"])
def test_a_process_that_ends_while_it_is_read_is_not_there(host: Host, stat: str) -> None:
    folder = host.root / "proc/7"
    folder.mkdir()
    (folder / "stat").write_text(stat)
    with pytest.raises(ProcessLookupError):
        HolderFinder(host.root, "n").owner(7)


def test_grants(host: Host) -> None:
    host.container(ID, "web", "chat-0", "main", uid="u-1")
    host.container(OTHER, "ml", "train", "main", uid="u-2")
    host.checkpoint(
        ("u-1", "main", {"0": ["GPU-a::3"], "1": ["GPU-b"]}),
        ("u-2", "main", {"-1": ["MIG-c", "some-fpga-0"]}),
        ("u-2", "side", None),
        ("u-gone", "main", ["GPU-a"]),
    )
    assert HolderFinder(host.root, "n").grants() == [
        Grant("GPU-a", Owner("web", "chat-0", "main"), shared=True),
        Grant("GPU-b", Owner("web", "chat-0", "main"), shared=False),
        Grant("MIG-c", Owner("ml", "train", "main"), shared=False),
    ]


def test_without_a_kubelet_there_are_no_grants(tmp_path: Path) -> None:
    assert HolderFinder(tmp_path, "n").grants() is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries({"PodUID": json_values, "ContainerName": json_values, "DeviceIDs": json_values}))
def test_no_checkpoint_ends_a_cycle(host: Host, entry: dict[str, object]) -> None:
    host.checkpoint((entry["PodUID"], entry["ContainerName"], entry["DeviceIDs"]))  # type: ignore[arg-type]
    grants = HolderFinder(host.root, "n").grants()
    assert grants is not None
    assert all(grant.device.startswith(("GPU-", "MIG-")) for grant in grants)


@pytest.mark.parametrize("entries", ["3", '"text"', "[1, null, []]", "{}", "true"])
def test_entries_that_are_none_are_no_grants(host: Host, entries: str) -> None:
    host.checkpoint()
    path = host.root / "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
    path.write_text(f'{{"Data": {{"PodDeviceEntries": {entries}}}}}')
    finder = HolderFinder(host.root, "n")
    if entries in ("3", "true"):
        with pytest.raises(UnreachableError, match="has another shape than is known"):
            finder.grants()
    else:
        assert finder.grants() == []


def test_a_record_that_cannot_be_read_is_not_taken_for_no_kubelet(host: Host) -> None:
    host.checkpoint()
    path = host.root / "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
    path.unlink()
    path.mkdir()  # unreadable also for root
    with pytest.raises(UnreachableError, match=r"cannot be read \(Is a directory\): run the collector as root"):
        HolderFinder(host.root, "n").grants()
