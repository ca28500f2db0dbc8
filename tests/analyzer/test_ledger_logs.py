"""Logs of nvidia-smi, imported and put into the ledger: golden figures, each of which was added up by hand.

`used` is the mean of the utilisation column times samples over intervals. What is left of a card is `free` where nobody
holds it (no memory, no use), `wasted` where an unknown holder keeps memory without running anything, and `unobserved`
where no sample lies.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from analyzer.ledger import LEVEL_1
from analyzer.settings import AnalyzeSettings
from collector.importing import ImportOptions, import_files
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.window import Window
from dashboard.cli.context import interval_of
from tuner.service.analyse import load_detectors, run_analysis

GOLDEN = Path(__file__).parent / "golden"
START = datetime(2026, 4, 1, tzinfo=UTC)
BARE = ("power.draw", "temperature.gpu", "temperature.memory", "utilization.gpu", "utilization.memory")
REAL = {
    "miris_v100.csv": (),
    "qwen3asr_gpu_log.csv": (),
    "gpu_glasses_multi.csv": (),
    "txl_tch_gan_gan_result_t3_nvidia_smi1.txt": BARE,
    "txl_tf_yolov3_nvidia_smi1.log": BARE,
}
OWN = {
    # Ten seconds: four busy at 50 %, six idle with 900 MiB held.
    "held.csv": "timestamp, index, utilization.gpu [%], memory.used [MiB]\n"
    + "".join(f"2026/04/01 00:00:0{n}.000, 0, {50 if n < 4 else 0} %, 900 MiB\n" for n in range(10)),
    # The same with three samples lost on the way.
    "holes.csv": "timestamp, index, utilization.gpu [%], memory.used [MiB]\n"
    + "".join(
        f"2026/04/01 00:00:0{n}.000, 0, {50 if n < 4 else 0} %, 900 MiB\n" for n in range(10) if n not in {2, 5, 6}
    ),
    # Nobody: no memory, no use.
    "quiet.csv": "timestamp, index, utilization.gpu [%], memory.used [MiB]\n"
    + "".join(f"2026/04/01 00:00:0{n}.000, 0, 0 %, 1 MiB\n" for n in range(10)),
    # Two cards; the second one tells no utilisation.
    "blind.csv": "timestamp, index, utilization.gpu [%], memory.used [MiB]\n"
    + "".join(
        f"2026/04/01 00:00:0{n}.000, 0, 80 %, 900 MiB\n2026/04/01 00:00:0{n}.000, 1, [N/A], 900 MiB\n"
        for n in range(10)
    ),
    "full.csv": "timestamp, index, utilization.gpu [%], memory.used [MiB]\n"
    + "".join(f"2026/04/01 00:00:0{n}.000, 0, 100 %, 8000 MiB\n" for n in range(10)),
}


def accounted(path: Path, folder: Path, columns: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the ledger of a log in shares of its capacity, and how many findings stand on it."""
    store = EmbeddedStore(StoreSettings(path=folder / "store"))
    try:
        import_files([path], store, ImportOptions(start=START, step_seconds=1.0, columns=columns, zone=UTC))
        span = store.span("gpu")
        assert span is not None
        interval = interval_of(store, 60.0)
        window = Window(span.start, span.end - timedelta(milliseconds=1) + timedelta(seconds=interval))
        settings = AnalyzeSettings()
        got = run_analysis(
            store,
            window,
            interval_seconds=interval,
            settings=settings,
            detectors=load_detectors(settings, ("idle",)),
        )
    finally:
        store.close()
    fleet = got.ledger.fleet
    assert abs(fleet["unaccounted_1"]) <= 1e-9 * fleet["capacity"]
    assert all(f.evidence for f in got.findings)
    return {
        "cards": len(got.ledger.gpus),
        "interval_seconds": round(interval, 3),
        "seconds": round(window.seconds, 1),
        **{name: round(float(fleet[name] / fleet["capacity"]), 4) + 0.0 for name in LEVEL_1},
        "findings": len(got.findings),
    }


def golden(name: str, found: dict[str, Any]) -> dict[str, Any]:
    path = GOLDEN / name
    if os.environ.get("TRIMTAB_WRITE_GOLDEN"):
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return told


def test_logs_of_our_own(tmp_path: Path) -> None:
    found = {}
    for name, text in OWN.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        found[name] = accounted(tmp_path / name, tmp_path / f"{name}.d")
    assert found == golden("ledger_logs_own.json", found)


def test_five_recorded_logs(shared_dir: Path, tmp_path: Path) -> None:
    folder = shared_dir / "data" / "gpu_logs" / "raw"
    found = {name: accounted(folder / name, tmp_path / name, columns) for name, columns in REAL.items()}
    assert found == golden("ledger_logs_recorded.json", found)
