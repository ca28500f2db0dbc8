"""The wheel alone, installed bare: it holds everything that `trimtab demo` needs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _ran(*command: str | Path, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TRIMTAB_", "PYTHON", "COV_", "VIRTUAL_"))}
    ran = subprocess.run(  # noqa: S603  our own commands
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=cwd,
        env=environment,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_the_demo_runs_from_the_wheel_in_a_bare_environment(tmp_path: Path) -> None:
    uv = Path(sys.executable).parent / "uv"
    if not uv.exists():
        pytest.skip("needs uv beside Python (make test installs it)")
    _ran(
        uv, "build", "--wheel", "--no-build-isolation", "--offline", "--python", sys.executable,
        "-o", tmp_path / "dist", ROOT, cwd=tmp_path,
    )  # fmt: skip
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    _ran(sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare", cwd=tmp_path)
    python = tmp_path / "bare" / "bin" / "python"
    _ran(uv, "pip", "install", "--offline", "--no-deps", "--python", python, wheel, cwd=tmp_path)
    # Other packages come from here without a download. A .pth inside that folder is not read again, so that the
    # repository, which is installed there as editable, stays out of sight.
    (bare,) = (tmp_path / "bare" / "lib").glob("python*/site-packages")
    (bare / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = _ran(
        python, "-c", "import dashboard, collector; print(dashboard.__file__, collector.__file__)", cwd=elsewhere
    )
    assert all(Path(file).is_relative_to(bare) for file in where.split())
    out = _ran(python.parent / "trimtab", "demo", "--headless", "--hours", "0.5", cwd=elsewhere)
    assert "useful utilisation" in out
    report = next(line for line in out.splitlines() if line.startswith("report ")).split(maxsplit=1)[1]
    assert (elsewhere / report).is_file()
