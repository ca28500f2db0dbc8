"""Importing what is torn, strange or ill: a line or a file is rejected with its place, and nothing else is lost."""

from __future__ import annotations

import codecs
import gzip
import math
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

import collector.importing.run
from collector.batch import Batch
from collector.importing import Format, ImportOptions, detect, import_files
from collector.importing.columns import fact_text
from collector.importing.log import LogPlace, Tally
from collector.importing.monitors import read_dmon
from collector.importing.tables import read_apps, read_query
from collector.importing.text import LONGEST_LINE, TextFile
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.window import Window
from tests.collector.reading import Read, read

ALL = Window(datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
HEAD = "timestamp, uuid, index, utilization.gpu [%], memory.used [MiB]\n"
QUERY = HEAD + "2026/04/01 10:00:00, GPU-1, 0, 37 %, 1024 MiB\n2026/04/01 10:00:01, GPU-1, 0, 38 %, 1024 MiB\n"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(StoreSettings(path=tmp_path / "store"))
    yield opened
    opened.close()


def line(second: int, rest: str) -> str:
    return f"2026/04/01 10:00:{second:02}, {rest}\n"


def cards(result: Read) -> list[str]:
    return list(result.batch.rows["gpu"].column("gpu").to_pylist())


@pytest.mark.parametrize("torn", ["x" * 200_000, "\0" * 100, 'GPU-1,"\0'])
def test_a_torn_line_is_rejected_with_its_place(torn: str) -> None:
    text = QUERY + torn + "\n" + line(2, "GPU-1, 0, 39 %, 1024 MiB")
    result = read(read_query, text)
    assert result.accepted == 3
    assert list(result.rejected.values()) == [(1, 4)]
    assert detect(torn + "\n" + QUERY) is Format.SMI_QUERY


@pytest.mark.parametrize(
    "stamp",
    [
        "1999/12/31 23:59:59",
        "2100/01/01 00:00:00",
        "1980/01/01 00:00:00",
        "0001-01-01 00:00:00+09:00",
        "9999-12-31 23:59:59-09:00",
        "800000000",
        "9999999999999",
    ],
)
def test_a_line_of_a_time_out_of_reason_is_rejected(store: EmbeddedStore, stamp: str) -> None:
    result = read(read_query, f"{QUERY}{stamp}, GPU-1, 0, 39 %, 1024 MiB\n")
    assert result.accepted == 2
    assert list(result.rejected.values()) == [(1, 4)]
    store.write(result.batch)


def test_a_later_dmon_heading_without_a_date_loses_only_its_own_lines() -> None:
    text = (
        "#Date Time gpu sm\n 20260401 10:00:00 0 80\n"
        "# gpu sm\n 0 81\n"
        "#Date Time gpu pid sm\n 20260401 10:00:01 0 17 81\n"
        "#Date Time gpu sm\n 20260401 10:00:02 0 82\n 20260401 10:00:03 all 82\n"
    )
    result = read(read_dmon, text)
    assert result.accepted == 2
    assert dict(result.rejected) == {
        "expected a date and a time": (1, 4),
        "expected a heading with the names of the columns above it": (1, 6),
        "expected the number of a card": (1, 9),
    }


def test_an_unexpected_error_rejects_its_file_by_name_and_no_other(
    tmp_path: Path, store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text(QUERY)
    (tmp_path / "b.txt").write_text("#Date Time gpu sm\n 20260401 10:00:00 0 80\n")

    def broken(_file: TextFile, _place: LogPlace, _tally: Tally) -> Iterator[Batch]:
        raise KeyError("unforeseen")

    monkeypatch.setitem(collector.importing.run.READERS, Format.SMI_QUERY, broken)
    report = import_files([tmp_path / "a.csv", tmp_path / "b.txt"], store, ImportOptions())
    assert [f.status for f in report.files] == ["rejected", "imported"]
    assert "unforeseen" in report.files[0].reason
    assert report.files[0].path.endswith("a.csv")


@pytest.mark.parametrize(
    "content",
    [
        codecs.BOM_UTF8 + QUERY.encode(),
        codecs.BOM_UTF16_LE + QUERY.encode("utf-16-le"),
        codecs.BOM_UTF16_BE + QUERY.replace("\n", "\r\n").encode("utf-16-be"),
        QUERY.encode() + b"\xed\xa0\x80\xff\n",
        codecs.BOM_UTF16_LE + QUERY.encode("utf-16-le") + b"\x00\xd8",
    ],
)
def test_marks_of_byte_order_are_read_and_garbage_is_replaced(
    content: bytes, tmp_path: Path, store: EmbeddedStore
) -> None:
    (tmp_path / "n1.csv").write_bytes(content)
    (report,) = import_files([tmp_path / "n1.csv"], store, ImportOptions()).files
    assert (report.format, report.status, report.accepted) == (Format.SMI_QUERY, "imported", 2)
    assert store.read("gpu", ALL)["gpu"].tolist() == ["GPU-1", "GPU-1"]


def test_a_binary_file_is_rejected_by_name(tmp_path: Path, store: EmbeddedStore) -> None:
    noise = np.random.default_rng(7).integers(0, 256, 20_000, dtype=np.uint8).tobytes()
    for name, content in {"noise": noise, "elf": b"\x7fELF\x02\x01\x01" + bytes(500), "nuls": bytes(4096)}.items():
        (tmp_path / name).write_bytes(content)
        (report,) = import_files([tmp_path / name], store, ImportOptions()).files
        assert (report.format, report.status) == (Format.BINARY, "rejected"), name
        assert "binary" in report.reason


def test_a_name_that_is_no_text_is_no_obstacle(tmp_path: Path, store: EmbeddedStore) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/box\xff.csv"))
    try:
        path.write_text(QUERY)
    except OSError:
        pytest.skip("this file system takes no such name")
    (report,) = import_files([path], store, ImportOptions()).files
    assert report.status == "imported"
    assert store.read("gpu", ALL)["node"].tolist() == ["box?", "box?"]


@pytest.mark.parametrize(
    ("cell", "events"), [("[Unknown Error]", 1), ("[GPU is lost]", 1), ("[N/A]", 0), ("", 0), ("ERR!", 1)]
)
def test_a_cell_without_a_uuid_is_no_card(cell: str, events: int) -> None:
    text = QUERY + line(2, f"{cell}, 1, [Unknown Error], 4 MiB") + line(3, f"{cell}, [N/A], 1 %, 4 MiB")
    result = read(read_query, text)
    assert cards(result) == ["GPU-1", "GPU-1", "n1/1"]
    told = [(e.subject.kind, e.subject.gpu) for e in result.batch.events if cell in e.message and cell]
    # The cell of utilization answered with an error as well.
    if events:
        assert ("gpu", "n1/1") in told
        assert ("node", "") in told
    else:
        assert result.rejected["expected the UUID or the number of a card"] == (1, 5)
    assert any(f.name == "identity" and f.subject.gpu == "n1/1" for f in result.batch.facts)
    assert not any("[" in f.subject.gpu for f in result.batch.facts)


def test_a_process_is_named_by_its_first_sight_and_an_invalid_cell_is_counted() -> None:
    text = (
        "timestamp, gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n"
        "2026/04/01 10:00:05, GPU-1, 7, train, 5 MiB\n"
        "2026/04/01 10:00:00, GPU-1, 7, train, [Unknown Error]\n"
        "2026/04/01 10:00:05, GPU-1, 8, [Not Found], lots\n"
        "2026/04/01 10:00:05, [GPU is lost], 8, x, 1 MiB\n"
        "2026/04/01 10:00:05, GPU-1, [N/A], x, 1 MiB\n"
    )
    result = read(read_apps, text)
    start = int(datetime(2026, 4, 1, 10, tzinfo=UTC).timestamp())
    rows = result.batch.rows["slice"].to_pydict()
    assert rows["slice"] == [f"n1/7.{start}", f"n1/7.{start}", f"n1/8.{start + 5}"]
    assert rows["workload"] == ["train", "train", "unknown"]
    assert [(r.subject.slice, r.field, r.count) for r in result.batch.rejects] == [
        (f"n1/7.{start}", "memory_used_bytes", 1),
        (f"n1/8.{start + 5}", "memory_used_bytes", 1),
    ]
    assert [(e.subject.kind, e.subject.gpu) for e in result.batch.events] == [("gpu", "GPU-1")]
    assert result.rejected["expected a time stamp, a card and a pid"] == (2, 5)


def test_facts_are_told_again_when_they_change(tmp_path: Path, store: EmbeddedStore) -> None:
    head = "timestamp, uuid, driver_version, power.limit [W]\n"
    rows = [("[N/A]", "[Unknown Error]"), ("570.1", "300.00 W"), ("570.1", "ERR!"), ("580.2", "250.00 W")]
    (tmp_path / "n1.csv").write_text(head + "".join(line(i, f"GPU-1, {a}, {b}") for i, (a, b) in enumerate(rows)))
    import_files([tmp_path / "n1.csv"], store, ImportOptions())
    facts = store.facts(names=["driver_version", "power_limit_watts"]).sort_values(["name", "from"])
    assert facts["value"].tolist() == ["570.1", "580.2", "300", "250"]
    assert facts["from"].dt.second.tolist() == [1, 3, 1, 3]
    assert fact_text("9e999 W", 1.0) == ""


def test_held_not_held_and_unknown_are_three_things() -> None:
    rows = ["[N/A], 900 MiB", "[N/A], [N/A]", "0 %, [N/A]", "[N/A], 4 MiB", "3 %, 4 MiB"]
    result = read(read_query, HEAD + "".join(line(i, f"GPU-1, 0, {row}") for i, row in enumerate(rows)))
    held = result.batch.rows["slice"].to_pydict()
    assert [at.second for at in held["time"]] == [0, 1, 4]
    assert "memory_used_bytes" not in held
    memory = result.batch.rows["gpu"].column("memory_used_bytes").to_pylist()
    assert memory[0] == 900 * 2**20
    assert math.isnan(memory[1])


def test_a_torn_line_of_words_is_no_heading() -> None:
    head = "uuid, name, pstate, utilization.gpu [%], timestamp\n"
    rows = [f"GPU-0, L4, P0, {n} %, 2026/04/01 10:00:0{n}\n" for n in range(3)]
    result = read(read_query, head + rows[0] + "GPU-0, L4.X, index\n" + rows[1] + "GPU-0, L4.X\n" + rows[2])
    assert result.accepted == 3
    assert result.rejected == {"expected 5 columns, got another number": (2, 3)}


def test_a_clock_that_was_never_set_is_no_time() -> None:
    result = read(read_query, HEAD + "0001/01/01 00:00:00, GPU-1, 0, 1 %, 4 MiB\n" + line(0, "GPU-1, 0, 1 %, 4 MiB"))
    assert (result.accepted, result.rejected["expected a time stamp"]) == (1, (1, 2))


def test_slices_that_wait_for_their_holder_stand_beside_those_that_do_not(tmp_path: Path, store: EmbeddedStore) -> None:
    labels = 'Hostname="n7",modelName="NVIDIA L4",namespace="a",container="c"'
    text = "# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n"
    for n, pod in enumerate(("known", "late")):
        text += f'DCGM_FI_DEV_GPU_UTIL{{gpu="{n}",UUID="GPU-{n}",device="nvidia{n}",pod="{pod}",{labels}}} 25\n'
    text += 'kube_pod_info{namespace="a",pod="known",node="n7",uid="u1"} 1\n'
    text += 'kube_pod_status_phase{namespace="a",pod="known",phase="Running"} 1\n'
    (tmp_path / "scrape.prom").write_text(text)
    start = datetime(2026, 4, 1, tzinfo=UTC)
    (report,) = import_files([tmp_path / "scrape.prom"], store, ImportOptions(start=start)).files
    assert report.status == "imported"
    assert store.read("slice", ALL)["gpu"].tolist() == ["GPU-0", "GPU-1"]
    assert store.facts(names=["interval_seconds"]).empty


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.prom", 'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 50\nLINE\nDCGM_FI_DEV_GPU_TEMP{gpu="0"} 40\n', 1),
        (
            "a.csv",
            "timestamp, index, power.draw [W]\n2026/01/01 00:00:00, 0, 5 W\nLINE\n2026/01/01 00:01:00, 0, 6 W\n",
            2,
        ),
        ("a.txt", "# gpu    pwr\n# Idx      W\n    0     50\nLINE\n    0     51\n", 2),
    ],
)
def test_a_line_without_end_is_one_reject_and_the_rest_is_read(
    tmp_path: Path, store: EmbeddedStore, *, packed: bool, name: str, content: str, rows: int
) -> None:
    """Its work and memory are those of its bytes, not of what a reader would make of it."""
    path = tmp_path / name
    number = content[: content.index("LINE")].count("\n") + 1
    written = content.replace("LINE", 'DCGM_FI_DEV_POWER_USAGE{gpu="' + 'x", ' * 1_000_000).encode()
    path.write_bytes(gzip.compress(written, 1) if packed else written)
    (report,) = import_files([path], store, ImportOptions(zone=UTC, node="n")).files
    assert report.status == "imported"
    assert [(count, first) for count, first in report.rejected.values()] == [(1, number)]
    assert report.rows["gpu"] == rows


def test_lines_are_cut_and_numbered_whatever_the_pieces(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\n" + b"b" * (3 << 20) + b"\nc\n\n" + b"d" * (LONGEST_LINE + 5))
    found = [(number, line[0:1], min(len(line), LONGEST_LINE + 1)) for number, line in TextFile(path).lines()]
    assert found == [(1, "a", 1), (2, "b", LONGEST_LINE + 1), (3, "c", 1), (4, "", 0), (5, "d", LONGEST_LINE + 1)]
