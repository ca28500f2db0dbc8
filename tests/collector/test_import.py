"""Importing files: formats told by content, right values, rejects with their place, twice is once."""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from collector.errors import ConfigurationError
from collector.importing import Format, ImportOptions, ImportReport, detect, import_files
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.window import Window

ALL = Window(datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
QUERY = """\
timestamp, index, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB], power.draw [W], temperature.gpu
2026/04/01 10:00:00.000, 0, NVIDIA L4, 37 %, 1024 MiB, 23034 MiB, 40.50 W, 51
2026/04/01 10:00:00.000, 1, NVIDIA L4, 0 %, 4 MiB, 23034 MiB, 16.00 W, 30
2026/04/01 10:00:01.000, 0, NVIDIA L4, [N/A], 2048 MiB, 23034 MiB, 41.00 W, 52
Wed Apr  1 10:00:01 UTC 2026
timestamp, index, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB], power.draw [W], temperature.gpu
2026/04/01 10:00:01.000, 1, NVIDIA L4, 4294967295 %, 4 MiB, 23034 MiB, ERR!, 30
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(StoreSettings(path=tmp_path / "store"))
    yield opened
    opened.close()


def put(tmp_path: Path, text: str, name: str = "box1.log") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def run(store: EmbeddedStore, path: Path, **options: object) -> ImportReport:
    return import_files([path], store, ImportOptions(**options))  # type: ignore[arg-type]


def test_query_log_gives_values_in_base_units_and_names_what_it_rejects(tmp_path: Path, store: EmbeddedStore) -> None:
    (report,) = run(store, put(tmp_path, QUERY)).files
    assert (report.status, report.format, report.accepted) == ("imported", Format.SMI_QUERY, 4)
    assert report.rejected == {
        "expected 8 columns, got another number": (1, 5),
        "busy_ratio: out of range: 4294967295 %": (1, 7),
        "power_watts: the device answered 'ERR!'": (1, 7),
    }
    rows = store.read("gpu", ALL)
    assert rows["gpu"].tolist() == ["box1/0", "box1/0", "box1/1", "box1/1"]
    assert rows["busy_ratio"].iloc[0] == pytest.approx(0.37)
    assert math.isnan(rows["busy_ratio"].iloc[1])  # [N/A] is absent
    assert math.isnan(rows["busy_ratio"].iloc[3])  # garbage is absent, and counted
    assert rows["memory_used_bytes"].iloc[0] == 1024 * 2**20
    assert rows["power_watts"].iloc[0] == 40.5
    assert rows["time"].iloc[0] == datetime(2026, 4, 1, 10, tzinfo=UTC)
    holders = store.read("slice", ALL)
    assert holders["gpu"].tolist() == ["box1/0", "box1/0"]  # 4 MiB are the driver's own
    assert set(holders["tenant"]) == {"unknown"}
    facts = store.facts().set_index(["gpu", "name"])["value"]
    assert facts["box1/0", "model"] == "NVIDIA L4"
    assert facts["box1/0", "identity"] == "assumed"
    assert facts["box1/0", "interval_seconds"] == "1"
    assert ("", "interval_seconds") not in facts.index  # a log tells nothing of the cycle of a collector
    assert "memory_used_bytes" not in holders or holders["memory_used_bytes"].isna().all()  # that is the card's
    assert store.rejects(ALL)["count"].sum() == 2
    assert store.events(ALL)["code"].tolist() == ["device_error"]


def test_the_zone_moves_the_stamps_and_silences_the_warning(tmp_path: Path, store: EmbeddedStore) -> None:
    (report,) = run(store, put(tmp_path, QUERY), zone=ZoneInfo("Asia/Shanghai")).files
    assert store.span("gpu") is not None
    assert store.read("gpu", ALL)["time"].iloc[0] == datetime(2026, 4, 1, 2, tzinfo=UTC)
    assert not any("zone" in warning for warning in report.warnings)


def local_log(*stamps: str) -> str:
    rows = "".join(f"{stamp}, GPU-1, {10 + n} %\n" for n, stamp in enumerate(stamps))
    return "timestamp, uuid, utilization.gpu [%]\n" + rows


def test_an_hour_that_comes_twice_is_told_and_one_that_never_was_is_rejected(
    tmp_path: Path, store: EmbeddedStore
) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    autumn = local_log(*(f"2025/10/26 {hour}:30:00.000" for hour in ("01", "02", "03")))
    (report,) = run(store, put(tmp_path, autumn, "autumn.csv"), zone=berlin).files
    (told,) = (text for text in report.warnings if "set back" in text)
    assert "set back on 2025-10-26: time stamps from 02:30:00 on were there twice" in told
    hours = [
        at.hour
        for at in store.read("gpu", Window(datetime(2025, 10, 1, tzinfo=UTC), datetime(2025, 12, 1, tzinfo=UTC)))[
            "time"
        ]
    ]
    assert hours == [23, 0, 2]  # 01:30 and 02:30 are of summer, 03:30 is of winter
    (strict,) = run(store, put(tmp_path, autumn + "\n", "strict.csv"), zone=berlin, strict=True).files
    assert strict.status == "rejected"
    spring = local_log(*(f"2026/03/29 {hour}:30:00.000" for hour in ("01", "02", "03")))
    (report,) = run(store, put(tmp_path, spring, "spring.csv"), zone=berlin).files
    assert report.accepted == 2
    assert list(report.rejected.values()) == [(1, 3)]


def test_importing_again_changes_nothing(tmp_path: Path, store: EmbeddedStore) -> None:
    path = put(tmp_path, QUERY)
    run(store, path)
    before = store.read("gpu", ALL)
    renamed = put(tmp_path, QUERY, "other-name.csv")
    assert [f.status for f in import_files([path, renamed], store, ImportOptions()).files] == ["imported before"] * 2
    assert store.read("gpu", ALL).equals(before)


def test_strict_rejects_what_would_be_guessed(tmp_path: Path, store: EmbeddedStore) -> None:
    (report,) = run(store, put(tmp_path, QUERY), strict=True).files
    assert report.status == "rejected"
    assert report.reason.startswith("--strict:")
    assert store.read("gpu", ALL).empty


def test_a_log_of_one_card_needs_no_index_and_interleaved_ones_are_rejected_by_name(
    tmp_path: Path, store: EmbeddedStore
) -> None:
    one = "timestamp, utilization.gpu [%]\n2026/04/01 10:00:00, 5 %\n2026/04/01 10:00:01, 6 %\n"
    (report,) = run(store, put(tmp_path, one, "a.csv")).files
    assert report.warnings[0] == "the log names no card: all rows are taken for one card, index 0"
    two = "timestamp, utilization.gpu [%]\n2026/04/01 10:00:00, 5 %\n2026/04/01 10:00:00, 6 %\n"
    (report,) = run(store, put(tmp_path, two, "b.csv")).files
    assert (report.status, "share a time stamp" in report.reason) == ("rejected", True)


def test_the_column_that_varies_is_the_cards_number(tmp_path: Path, store: EmbeddedStore) -> None:
    text = "timestamp,gpu,index,memory.used\n2025-09-08T17:26:50+08:00,0, 0, 4\n2025-09-08T17:26:50+08:00,1, 0, 90\n"
    run(store, put(tmp_path, text), node="n1")
    rows = store.read("gpu", ALL)
    assert rows["gpu"].tolist() == ["n1/0", "n1/1"]
    assert rows["time"].iloc[0] == datetime(2025, 9, 8, 9, 26, 50, tzinfo=UTC)


def test_dmon_with_date_and_time(tmp_path: Path, store: EmbeddedStore) -> None:
    text = (
        "#Date       Time        gpu    pwr  gtemp     sm    mem   pclk\n"
        "#YYYYMMDD   HH:MM:SS    Idx      W      C      %      %    MHz\n"
        " 20260401   10:00:00      0     70     45     80     30   1410\n"
        " 20260401   10:00:01      0     71     45      -     30   1410\n"
        " 20260401   10:00:02      0     71\n"
        " yesterday  10:00:03      0     71     45     80     30   1410\n"
    )
    (report,) = run(store, put(tmp_path, text), node="n1", zone=UTC).files
    assert (report.format, report.accepted, report.rejected_count) == (Format.DMON, 2, 2)
    rows = store.read("gpu", ALL)
    assert rows["busy_ratio"].iloc[0] == pytest.approx(0.8)
    assert math.isnan(rows["busy_ratio"].iloc[1])
    assert rows["sm_clock_hertz"].iloc[0] == 1.41e9


def test_compute_apps_become_slices_of_unknown_tenants(tmp_path: Path, store: EmbeddedStore) -> None:
    text = (
        "timestamp, gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n"
        "2026/07/03 08:33:53.650, GPU-1, 20037, /usr/bin/ffmpeg, 538 MiB\n"
        "2026/07/03 08:33:53.650, GPU-1, 20038, C:\\\\tools\\\\app.exe, [N/A]\n"
        "2026/07/03 08:33:53.650, , 20038, x, 1 MiB\n"
    )
    (report,) = run(store, put(tmp_path, text), node="n1", zone=UTC).files
    assert (report.accepted, report.rejected_count) == (2, 1)
    rows = store.read("slice", ALL)
    first = int(datetime(2026, 7, 3, 8, 33, 53, tzinfo=UTC).timestamp())
    assert rows["slice"].tolist() == [f"n1/20037.{first}", f"n1/20038.{first}"]
    assert rows["workload"].tolist() == ["ffmpeg", "app.exe"]
    assert rows["memory_used_bytes"].iloc[0] == 538 * 2**20
    assert math.isnan(rows["memory_used_bytes"].iloc[1])


CAPTURE = """\
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA L4",Hostname="n7"} 25
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA L4",Hostname="n7"} 100
this line is torn
"""


def test_a_capture_stands_at_the_instant_that_is_given(tmp_path: Path, store: EmbeddedStore) -> None:
    start = datetime(2026, 4, 1, tzinfo=UTC)
    (report,) = run(store, put(tmp_path, CAPTURE, "scrape.prom"), start=start).files
    assert (report.status, report.accepted, report.rejected_count) == ("imported", 2, 1)
    row = store.read("gpu", ALL).iloc[0]
    assert (row["time"], row["node"], row["gpu"]) == (start, "n7", "GPU-1")
    assert row["busy_ratio"] == pytest.approx(0.25)
    (dated,) = run(store, put(tmp_path, CAPTURE + "\n", "later.prom")).files
    assert "carries no time" in dated.warnings[0]


def test_gzip_is_opened_and_torn_gzip_is_rejected(tmp_path: Path, store: EmbeddedStore) -> None:
    packed = tmp_path / "box1.csv.gz"
    packed.write_bytes(gzip.compress(QUERY.encode()))
    assert run(store, packed).files[0].accepted == 4
    rest = "NVIDIA L4, 9 %, 9 MiB, 9 MiB, 9 W, 50"
    many = QUERY + "".join(f"2026/04/01 10:{n // 60:02}:{n % 60:02}.{n:03}, 0, {rest}\n" for n in range(900))
    whole = gzip.compress(many.encode())
    torn = tmp_path / "torn.gz"
    torn.write_bytes(whole[: len(whole) // 2])
    (report,) = run(store, torn).files
    assert report.status == "imported"
    assert 100 < report.accepted < 904
    assert any(reason.startswith("it is cut short or damaged") for reason in report.rejected)
    torn.write_bytes(whole[:12])
    assert run(store, torn).files[0].reason.startswith("it is cut short or damaged")


def test_a_folder_is_read_file_by_file_and_a_missing_path_is_an_error(tmp_path: Path, store: EmbeddedStore) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    put(folder, QUERY, "a.csv")
    put(folder, "", "b.txt")
    report = run(store, folder)
    assert [f.status for f in report.files] == ["imported", "rejected"]
    assert report.any_rejected
    assert not report.all_rejected
    assert report.to_json()["files"][1]["format"] == "empty file"
    with pytest.raises(ConfigurationError, match="not there"):
        run(store, tmp_path / "nothing")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Format.EMPTY),
        ("\n\n", Format.EMPTY),
        ("HTTP/1.1 500 Internal Server Error\n", Format.HTTP),
        ('{"status":"success"}', Format.JSON),
        ("GPU 0: NVIDIA H100 (UUID: GPU-1)\n", Format.SMI_LIST),
        ("#Entity   GPUTL\nID\nGPU 0     N/A\n", Format.DCGMI_DMON),
        ("# gpu    pwr  sm\n# Idx      W   %\n    0    100  5\n", Format.DMON),
        ("#Time        gpu    pwr  sm\n", Format.DMON),
        ("<?xml version='1.0'?>\n<nvidia_smi_log>\n", Format.SMI_XML),
        ('{"segments": [], "device_traces": []}', Format.SNAPSHOT),
        ("torn\ntimestamp, utilization.gpu [%]\n", Format.SMI_QUERY),
        ("# gpu         pid   type     sm\n", Format.PMON),
        ("DCGM_FI_DEV_SM_CLOCK, gauge, SM clock frequency.\n", Format.COUNTERS),
        ("# note\ndcgm_sm_clock, gauge, SM clock\n", Format.COUNTERS),
        ("2026/04/25 16:06:06.780, 0 %, 0 %, 2 MiB\n", Format.HEADERLESS),
        ("347.05 W, 74, N/A, 100 %\n", Format.HEADERLESS),
        ("timestamp, pid, gpu_utilization [%], time [ms]\n", Format.ACCOUNTED),
        ("index, utilization.gpu [%]\n0, 5 %\n", Format.SMI_QUERY),
        ("pid, used_memory [MiB]\n", Format.SMI_APPS),
        ("# HELP a b\n# TYPE a gauge\n", Format.EXPOSITION),
        ("tgi_queue_size 3\n", Format.EXPOSITION),
        ("What a lovely day it is.\n", Format.UNKNOWN),
    ],
)
def test_formats_are_told_by_content(text: str, expected: Format) -> None:
    assert detect(text) is expected


def test_every_reference_capture_and_log_goes_through(shared_dir: Path, store: EmbeddedStore) -> None:
    report = import_files(
        [shared_dir / "telemetry" / "captures", shared_dir / "data" / "gpu_logs" / "raw"], store, ImportOptions()
    )
    by_name = {Path(f.path).name: f for f in report.files}
    assert len(by_name) >= 80
    assert by_name["miris_v100.csv"].accepted == 107
    assert by_name["qwen3asr_gpu_log.csv"].rows["gpu"] == 652
    assert by_name["plato_headerless.csv"].format is Format.HEADERLESS
    assert all(f.reason for f in report.files if f.status == "rejected")
    window = Window(datetime(2025, 6, 13, tzinfo=UTC), datetime(2025, 6, 14, tzinfo=UTC))
    volta = store.read("gpu", window, where={"node": "miris_v100"}, every=timedelta(days=1), aggregate="max")
    assert volta["busy_ratio"].iloc[0] <= 1.0
