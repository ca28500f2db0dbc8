"""A cold start loads what the command needs, and the table of commands says what the modules register."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dashboard.cli import index
from dashboard.cli.index import ENTRIES, load_module
from tests.servers import pages

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "duckdb",
    "influxdb_client",
    "kubernetes",
    "numpy",
    "pandas",
    "prometheus_api_client",
    "pyarrow",
    "requests",
    "scipy",
    "sklearn",
    "streamlit",
)
CALL = """
import json, sys
from dashboard.cli.root import run
code = run(sys.argv[2:])
sys.stdout.flush()
print(json.dumps([code, sorted(set(json.loads(sys.argv[1])) & set(sys.modules))]), file=sys.stderr)
"""


def loaded(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Run a command in a process of its own; return its exit code and which heavy packages it loaded."""
    ran = subprocess.run(  # noqa: S603 - our own interpreter and script
        [sys.executable, "-c", CALL, json.dumps(HEAVY), *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "TRIMTAB_STATE__KILL_SWITCH": str(folder / "PAUSED")},
        check=False,
    )
    code, found = json.loads(ran.stderr.splitlines()[-1])
    return code, found


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["pause"],
        ["resume"],
        ["explain", "TT101"],
        ["config", "show"],
        ["config", "check"],
        ["config", "example"],
        ["audit", "--help"],
    ],
    ids=" ".join,
)
def test_light_commands_load_nothing_heavy(tmp_path: Path, arguments: list[str]) -> None:
    assert loaded(tmp_path, *arguments) == (0, [])


def test_a_collector_that_scrapes_loads_neither_pandas_nor_a_database_engine(tmp_path: Path) -> None:
    labels = (
        'gpu="0",UUID="GPU-1",modelName="NVIDIA H100 80GB HBM3",Hostname="n1",namespace="team",pod="p",container="c"'
    )
    body = f"# TYPE DCGM_FI_DEV_GPU_UTIL gauge\nDCGM_FI_DEV_GPU_UTIL{{{labels}}} 50\n"
    (tmp_path / "trimtab.toml").write_text("[store]\npath = 'store'\n")
    with pages({"/metrics": lambda: body}) as address:
        assert loaded(tmp_path, "collect", "--once", "--target", f"{address}/metrics") == (0, ["numpy", "pyarrow"])


def test_the_look_at_loaded_packages_sees_them(tmp_path: Path) -> None:
    assert "pandas" in loaded(tmp_path, "doctor")[1]


def test_the_table_of_commands_says_what_the_modules_register() -> None:
    folder = Path(index.__file__).parent
    registered = {
        name: (module, command.rich_help_panel, " ".join((command.help or "").split("\n\n")[0].split()))
        for module in sorted(path.stem for path in folder.glob("*.py") if "\ndef register(app:" in path.read_text())
        for name, command in load_module(module).items()
    }
    assert registered == {name: (entry.module, entry.panel, entry.help) for name, entry in ENTRIES.items()}
