"""`python -m benchmarks SUBJECT... [--json]`: run subjects, print one row a figure, exit 1 where a bound fails."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # CPU seconds then measure work, not threads that wait

import numpy as np
import pandas as pd

from benchmarks.figures import Figure, calibration_seconds

_WITH = {
    "collect": ("backfill",),  # the past is collected as well
    "contention": ("contention_across", "contention_probe", "fleet_week"),
}


def subjects() -> list[str]:
    """Modules of this folder that have a `run()`."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
    return [name for name in names if "def run(" in (Path(__file__).parent / f"{name}.py").read_text()]


def main() -> int:
    """Run the subjects that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("subject", nargs="+", choices=subjects())
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    parser.add_argument("--minutes", type=float, help="fuzz: CPU minutes of all parsers together")
    options = parser.parse_args()
    print(
        f"{platform.platform()}, Python {platform.python_version()}, numpy {np.__version__}, pandas {pd.__version__}; "
        f"calibration {calibration_seconds():.3f} CPU s",
        file=sys.stderr,
    )
    names = dict.fromkeys(name for subject in options.subject for name in (subject, *_WITH.get(subject, ())))
    figures: list[Figure] = []
    for name in names:
        chosen = {"minutes": options.minutes} if name == "fuzz" and options.minutes is not None else {}
        figures += importlib.import_module(f"benchmarks.{name}").run(**chosen)
    if options.json:
        print(json.dumps([figure.to_json() for figure in figures], indent=1))
    else:
        table = pd.DataFrame([figure.to_json() for figure in figures])
        print(table.to_string(index=False, na_rep="-", float_format=lambda value: f"{value:.4g}"))
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
