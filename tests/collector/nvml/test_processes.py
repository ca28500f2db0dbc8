"""What processes do on a card, added up for the container, or for each process outside of one."""

from __future__ import annotations

import math
import os
import pwd
from collections.abc import Callable

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.assemble import Scrape
from collector.demand import Ask, GpuRequest, SchedulerState
from collector.nvml.holders import Owner
from collector.nvml.processes import Process, _spread, add_up
from collector.plugins import SourceContext
from collector.settings import SourceSettings, TargetSettings, TenantSettings
from tests.collector.nvml.conftest import GIB, HOPPER, START, TURING, Cycles, Driver, Host

Start = Callable[..., Cycles]


def pod(host: Host, pid: int, namespace: str, name: str, letter: str) -> None:
    host.process(pid, cgroup=host.container(letter * 64, namespace, name, "main", uid=f"u-{name}"))


def test_containers_of_a_shared_card(driver: Driver, start: Start, host: Host) -> None:
    card = driver.add(TURING)
    pod(host, 11, "ml", "train-0", "a")
    pod(host, 12, "ml", "train-0", "a")
    pod(host, 13, "web", "chat-6d4b75cb6d-x8k2p", "b")
    for pid, memory in ((11, GIB), (12, GIB), (13, 3 * GIB)):
        driver.process(card, pid, memory)
    for stamp in (1_000_000, 2_000_000):
        driver.used(card, 11, stamp, 30, encoder=4)
        driver.used(card, 12, stamp, 20)
    driver.used(card, 13, 2_000_000, 40, decoder=10)
    cycles = start(driver)
    cycles.poll()
    frame = cycles.rows("slice")
    train, chat = "ml/train-0/main/0", "web/chat-6d4b75cb6d-x8k2p/main/0"
    assert sorted(frame.index) == [train, chat]
    assert frame.at[train, "busy_ratio"] == pytest.approx(0.5)
    assert frame.at[train, "encoder_ratio"] == pytest.approx(0.04)
    assert frame.at[train, "memory_used_bytes"] == 2 * GIB
    assert frame.at[chat, "busy_ratio"] == pytest.approx(0.2)  # busy in one of two windows
    assert frame.at[chat, "decoder_ratio"] == pytest.approx(0.05)
    assert (frame.at[chat, "tenant"], frame.at[chat, "workload"]) == ("web", "chat")
    assert {(f.value, f.provenance) for f in cycles.batch.facts if f.name == "kind"} == {("timeslice", "estimated")}
    assert not cycles.batch.rejects


def test_a_process_outside_of_containers_is_a_slice_of_its_own(driver: Driver, start: Start, host: Host) -> None:
    card = driver.add(TURING)
    host.process(21, start=777)
    host.process(22, start=888)
    driver.process(card, 21, GIB)
    driver.process(card, 22, 2 * GIB)
    driver.used(card, 21, 5, 60)
    cycles = start(driver)
    cycles.poll()
    frame = cycles.rows("slice")
    assert sorted(frame.index) == ["node-a/21.777", "node-a/22.888"]
    assert frame["tenant"].tolist() == ["unknown", "unknown"]
    assert frame["busy_ratio"].tolist() == [0.6, 0.0]
    host.process(21, start=999)  # the number again, another process
    cycles.poll()
    assert "node-a/21.999" in cycles.rows("slice").index
    assert "node-a/21.777" not in cycles.rows("slice").index


def test_the_only_holder_has_the_whole_card(driver: Driver, start: Start, host: Host) -> None:
    card = driver.add(TURING)
    pod(host, 11, "ml", "train-0", "a")
    driver.process(card, 11, GIB)
    cycles = start(driver)
    cycles.poll()
    row = cycles.rows("slice").loc["whole"]
    assert (row["tenant"], row["workload"], row["busy_ratio"]) == ("ml", "train", 0.12)
    assert row["sm_quota_ratio"] == 1.0


def test_a_card_that_nobody_is_on_is_held_by_nobody(driver: Driver, start: Start) -> None:
    driver.add(TURING)
    cycles = start(driver)
    cycles.poll()
    assert cycles.rows("slice").empty


def test_where_processes_cannot_be_listed_the_holder_is_not_known(driver: Driver, start: Start) -> None:
    card = driver.add(TURING)
    for function in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
        driver.fail(function, pynvml.NVML_ERROR_NOT_SUPPORTED, device=card)
    cycles = start(driver)
    cycles.poll()
    assert cycles.rows("slice").at["whole", "tenant"] == "unknown"
    assert not cycles.batch.rejects


@pytest.mark.parametrize("idle", ["not found", "success"])
def test_an_idle_process_does_nothing_and_that_is_a_value(driver: Driver, start: Start, host: Host, idle: str) -> None:
    card = driver.add(TURING)
    if idle == "success":
        driver.put(card, {"idle_is_success": 1})
    for pid in (21, 22):
        host.process(pid)
        driver.process(card, pid, GIB)
    cycles = start(driver)
    cycles.poll()
    assert cycles.rows("slice")["busy_ratio"].tolist() == [0.0, 0.0]
    assert not cycles.batch.rejects


def test_where_use_of_processes_is_not_supported_it_is_absent(driver: Driver, start: Start, host: Host) -> None:
    card = driver.add(TURING)
    driver.remove(card, "process_use")
    for pid in (21, 22):
        host.process(pid)
        driver.process(card, pid, GIB)
    cycles = start(driver)
    cycles.poll()
    frame = cycles.rows("slice")
    assert "busy_ratio" not in frame
    assert frame["memory_used_bytes"].tolist() == [GIB, GIB]
    assert not cycles.batch.rejects


def test_an_error_of_the_list_or_of_the_use_is_counted(driver: Driver, start: Start, host: Host) -> None:
    card = driver.add(TURING)
    host.process(21)
    driver.process(card, 21, GIB)
    driver.fail("nvmlDeviceGetProcessUtilization", pynvml.NVML_ERROR_UNKNOWN, times=1)
    cycles = start(driver)
    cycles.poll()
    assert {reject.reason for reject in cycles.batch.rejects} == {"GPU-t4: processes: unknown"}
    for function in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"):
        driver.fail(function, pynvml.NVML_ERROR_NO_PERMISSION)
        cycles.poll()
        assert {reject.reason for reject in cycles.batch.rejects} == {"GPU-t4: processes: no_permission"}
        driver.mend()


def test_samples_that_were_seen_do_not_count_again(driver: Driver, start: Start, host: Host) -> None:
    card = driver.add(TURING)
    for pid in (21, 22):
        host.process(pid)
        driver.process(card, pid, GIB)
    driver.used(card, 21, 1_000, 80)
    cycles = start(driver)
    cycles.poll()
    assert cycles.rows("slice")["busy_ratio"].tolist() == [0.8, 0.0]
    driver.used(card, 22, 2_000, 50)
    cycles.poll()
    assert cycles.rows("slice")["busy_ratio"].tolist() == [0.0, 0.5]


def test_garbage_in_samples_is_left_out(driver: Driver, start: Start, host: Host) -> None:
    card = driver.add(TURING)
    for pid in (21, 22):
        host.process(pid)
        driver.process(card, pid, GIB)
    driver.used(card, 21, 1_000, 40)
    driver.used(card, 21, 2_000, 4_294_967_295)
    driver.used(card, 0, 2_000, 99)
    cycles = start(driver)
    cycles.poll()
    assert cycles.rows("slice")["busy_ratio"].tolist() == [0.4, 0.0]


def test_a_list_that_grows_while_it_is_read_is_asked_for_again(driver: Driver, start: Start, host: Host) -> None:
    card = driver.add(TURING)
    for pid in (21, 22):
        host.process(pid)
        driver.process(card, pid, GIB)
    driver.fail("nvmlDeviceGetMPSComputeRunningProcesses_v3", pynvml.NVML_ERROR_INSUFFICIENT_SIZE, times=2)
    cycles = start(driver)
    cycles.poll()
    assert not cycles.batch.rejects
    assert len(cycles.rows("slice")) == 2


def test_memory_that_the_driver_does_not_tell_is_absent(driver: Driver, start: Start, host: Host) -> None:
    card = driver.add(TURING)
    for pid, memory in ((21, GIB), (22, None)):
        host.process(pid)
        driver.process(card, pid, memory)
    cycles = start(driver)
    cycles.poll()
    memory = cycles.rows("slice")["memory_used_bytes"].tolist()
    assert memory[0] == GIB
    assert math.isnan(memory[1])


def test_clients_of_mps_and_their_server(driver: Driver, start: Start, host: Host) -> None:
    card = driver.add(HOPPER)
    host.process(30, name="nvidia-cuda-mps-server")
    host.process(31)
    host.process(32)
    driver.process(card, 30, 28 * 2**20)
    driver.process(card, 31, GIB, mps=True)
    driver.process(card, 32, GIB, mps=True)
    cycles = start(driver)
    cycles.poll()
    assert sorted(cycles.rows("slice").index) == ["node-a/31.1000", "node-a/32.1000"]
    assert {(f.value, f.provenance) for f in cycles.batch.facts if f.name == "kind"} == {("mps", "measured")}


def test_the_only_client_of_mps_shares_the_card(driver: Driver, start: Start, host: Host) -> None:
    card = driver.add(HOPPER)
    host.process(31)
    driver.process(card, 31, GIB, mps=True)
    cycles = start(driver)
    cycles.poll()
    assert list(cycles.rows("slice").index) == ["node-a/31.1000"]


def test_processes_of_another_pid_namespace_are_counted_and_named(driver: Driver, start: Start) -> None:
    card = driver.add(TURING)
    driver.process(card, 21, GIB)
    driver.add(TURING, uuid="GPU-idle")
    cycles = start(driver)
    cycles.poll()
    frame = cycles.rows("slice")
    assert list(zip(frame["gpu"], frame.index, frame["tenant"], strict=True)) == [("GPU-t4", "whole", "unknown")]
    [reject] = cycles.batch.rejects
    assert reject.reason == "process not seen here: the collector needs the host's PID namespace (hostPID)"


def test_use_above_the_card_is_capped_and_counted(driver: Driver, start: Start, host: Host) -> None:
    card = driver.add(TURING)
    for pid in (11, 12):
        pod(host, pid, "ml", "train-0", "a")
        driver.process(card, pid, GIB)
        driver.used(card, pid, 1_000, 90)
    host.process(21)
    driver.process(card, 21, GIB)
    cycles = start(driver)
    cycles.poll()
    assert cycles.value("slice", "ml/train-0/main/0", "busy_ratio") == 1.0
    assert ("0", "busy_ratio", "above_1_capped") in cycles.rejects()


def test_time_slicing_by_the_kubelets_record(driver: Driver, start: Start, host: Host) -> None:
    driver.add(TURING)
    host.container("a" * 64, "ml", "train-0", "main", uid="u-1")
    host.checkpoint(("u-1", "main", {"-1": ["GPU-t4::0"]}), ("u-gone", "main", {"-1": ["GPU-t4::1"]}))
    cycles = start(driver)
    cycles.poll()
    row = cycles.rows("slice").loc["ml/train-0/main/0"]
    assert (row["tenant"], row["busy_ratio"], row["memory_used_bytes"]) == ("ml", 0.0, 0.0)
    assert cycles.facts("kind") == {"0": "timeslice"}


def test_a_record_of_the_kubelet_that_cannot_be_read_is_counted(driver: Driver, start: Start, host: Host) -> None:
    driver.add(TURING)
    (host.root / "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint").mkdir(parents=True)
    cycles = start(driver)
    cycles.poll()
    assert {reject.reason for reject in cycles.batch.rejects} == {
        "the kubelet's record of devices cannot be read (Is a directory): run the collector as root"
    }
    assert cycles.rows("slice").at["whole", "tenant"] == "unknown"  # not nobody: it may be held by who runs nothing


def test_a_holder_that_runs_nothing_uses_nothing_only_where_all_processes_are_seen(
    driver: Driver, start: Start, host: Host
) -> None:
    card = driver.add(TURING)
    host.container("a" * 64, "ml", "train-0", "main", uid="u-1")
    host.checkpoint(("u-1", "main", {"-1": ["GPU-t4::0"]}))
    driver.process(card, 99, GIB)  # perhaps his
    cycles = start(driver)
    cycles.poll()
    assert cycles.rows("slice").empty
    driver.no_processes()
    driver.remove(card, "process_use")
    cycles.poll()
    row = cycles.rows("slice").loc["ml/train-0/main/0"].dropna()
    assert row["memory_used_bytes"] == 0.0
    assert "busy_ratio" not in row


def test_an_exclusive_card_that_runs_nothing_is_held(driver: Driver, start: Start, host: Host) -> None:
    driver.add(TURING)
    host.container("a" * 64, "ml", "idle-0", "main", uid="u-1")
    host.checkpoint(("u-1", "main", ["GPU-t4"]))  # as kubelets before 1.20 wrote it
    cycles = start(driver)
    cycles.poll()
    row = cycles.rows("slice").loc["whole"]
    assert (row["tenant"], row["workload"]) == ("ml", "idle")


@pytest.mark.parametrize("content", ["", "{", '{"Data": {}}', '{"Data": null}', "[1]"])
def test_a_checkpoint_that_is_none_is_no_kubelet(driver: Driver, start: Start, host: Host, content: str) -> None:
    driver.add(TURING)
    host.checkpoint()
    (host.root / "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint").write_text(content)
    cycles = start(driver)
    cycles.poll()
    assert list(cycles.rows("gpu").index) == ["GPU-t4"]


def table(driver: Driver, host: Host, *rows: dict[str, str]) -> Cycles:
    from collector.nvml import NvmlSource  # noqa: PLC0415  only here with tenants

    settings = SourceSettings.model_validate(
        {"kind": "nvml", "library": driver.path, "node": "node-a", "host_root": host.root, "holders": rows}
    )
    tenants = (TenantSettings(name="research", namespaces=("lab-*",)),)
    return Cycles(NvmlSource(settings, SourceContext(cluster="test", tenants=tenants)))


def test_a_users_table_names_whose_bare_processes_are(driver: Driver, host: Host) -> None:
    card = driver.add(TURING)
    me = pwd.getpwuid(os.geteuid()).pw_name
    host.process(21, cgroup="0::/system.slice/slurmstepd.scope/job_77/step_0", command="python fit.py --size 3")
    host.process(22, cgroup="0::/system.slice/docker-" + "c" * 64 + ".scope")
    host.process(23, command="python serve.py")
    host.process(24, command="other")
    for pid in (21, 22, 23, 24):
        driver.process(card, pid, GIB)
    cycles = table(
        driver,
        host,
        {"cgroup": "*/job_77/*", "namespace": "lab-1", "pod": "fit"},
        {"container_id": "cccc", "namespace": "web", "pod": "shop", "container": "api"},
        {"user": me, "command": "*serve.py*", "namespace": "lab-2", "pod": "serve"},
        {"user": "nobody-else", "namespace": "wrong"},
    )
    cycles.poll()
    frame = cycles.rows("slice")
    assert {name: (row.tenant, row.workload) for name, row in frame.iterrows()} == {
        "node-a/21.1000": ("research", "fit"),
        "web/shop/api/0": ("web", "shop"),
        "node-a/23.1000": ("research", "serve"),
        "node-a/24.1000": ("unknown", "unknown"),
    }
    cycles.source.close()


def test_a_slurm_job_is_one_holder_and_slurm_says_whose(driver: Driver, start: Start, host: Host) -> None:
    first, second = driver.add(TURING), driver.add(TURING, uuid="GPU-t4-b")
    host.process(21, cgroup="0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0")
    host.process(22, cgroup="0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_1")
    host.process(23, cgroup="4:memory:/slurm/uid_1000/job_78/step_batch")
    driver.process(first, 21, GIB)
    driver.process(first, 22, GIB)
    driver.process(second, 22, GIB)
    driver.process(second, 23, GIB)
    job = Ask("physics/77", "physics", "fold", "gpu", GpuRequest(1, 1.0, None, 1, ""), 0.0, granted=1.0, to_pods=False)
    other = Ask("ml/78x", "ml", "no number", "gpu", GpuRequest(1, 1.0, None, 1, ""), 0.0, to_pods=False)
    said = SchedulerState(asks={ask.key: ask for ask in (job, other)})
    cycles = start(driver)
    slurm = Scrape(TargetSettings(url="slurm"), None, demand=said)
    cycles.batch = cycles.source.assembler.assemble(START, [*cycles.source.gather(START), slurm])
    frame = cycles.rows("slice").reset_index().set_index(["gpu", "slice"])
    assert {key: (row.tenant, row.workload) for key, row in frame.iterrows()} == {
        ("GPU-t4", "whole"): ("physics", "fold"),
        ("GPU-t4-b", "node-a/22.1000"): ("physics", "fold"),
        ("GPU-t4-b", "node-a/23.1000"): ("unknown", "unknown"),
    }


processes = st.lists(
    st.builds(
        Process,
        pid=st.integers(1, 50),
        memory=st.none() | st.integers(0, 2**40),
        busy=st.none() | st.floats(0, 100),
        encoder=st.none() | st.floats(0, 100),
        decoder=st.none() | st.floats(0, 100),
        mps=st.booleans(),
    ),
    unique_by=lambda process: process.pid,
)


@given(processes, st.integers(1, 4))
def test_sums_over_owners_are_the_sum_over_processes(listed: list[Process], owners: int) -> None:
    of = {process.pid: Owner(pod=f"p{process.pid % owners}") for process in listed}
    uses = add_up(listed, of)
    assert set(uses) == set(of.values())
    for owner, use in uses.items():
        own = [process.memory for process in listed if of[process.pid] == owner]
        assert use.memory == (None if None in own else sum(memory for memory in own if memory is not None))
        assert use.mps == any(process.mps for process in listed if of[process.pid] == owner)


class Sample:
    def __init__(self, pid: int, sm: int) -> None:
        self.pid, self.smUtil, self.encUtil, self.decUtil = pid, sm, 0, 0


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 100)), max_size=40))
def test_a_mean_over_windows_lies_between_0_and_the_highest_sample(samples: list[tuple[int, int]]) -> None:
    listed = [Process(pid) for pid in range(1, 6)]
    _spread(listed, [Sample(pid, sm) for pid, sm in samples])
    for process in listed:
        own = [sm for pid, sm in samples if pid == process.pid]
        assert process.busy is not None
        assert 0 <= process.busy <= max(own, default=0)
