"""Rows as files: `export_rows` writes one a measurement, `load_rows` reads such files back.

Beside the measurements there are `fact`, `event` and `reject`, so that an analysis of files knows what a store knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from collector.atomic import replacing
from collector.errors import InputRejectedError
from collector.protocols import StoreReader
from collector.schema import MEASUREMENTS
from collector.store import spans
from collector.store.frame import FrameStore
from collector.window import Window

Format = Literal["parquet", "csv"]
_TEXTS = {"fact": spans.FACT_COLUMNS, "event": spans.EVENT_COLUMNS, "reject": spans.REJECT_COLUMNS}
_NAMES = (*MEASUREMENTS, *_TEXTS)
_FILE_NAME = re.compile(rf"({'|'.join(_NAMES)})(?![a-z])", re.ASCII)
_DAY = timedelta(days=1)


def export_rows(
    store: StoreReader,
    folder: Path,
    window: Window,
    *,
    fmt: Format = "parquet",
    measurements: Sequence[str] | None = None,
) -> list[Path]:
    """Write the raw rows of `window`, one file a measurement, a day in memory at a time; return the files.

    Args:
        store: where from.
        folder: made where it does not exist; files of the same names are replaced.
        window: which rows; facts are those valid in it.
        fmt: `parquet` or `csv`.
        measurements: which of gpu, slice, node, queue, event, reject beside the facts, which are always written: they
            tell what the rows are, and whether they are simulated; None: all.

    Raises:
        KeyError: unknown measurement.
    """
    unknown = [name for name in measurements or () if name not in _NAMES]
    if unknown:
        raise KeyError(f"expected measurements out of {', '.join(_NAMES)}, got {', '.join(unknown)}")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in dict.fromkeys((*measurements, "fact")) if measurements else _NAMES:
        path = folder / f"{name}.{fmt}"
        with replacing(path) as beside:
            _write(beside, _frames(store, name, window), fmt)
        written.append(path)
    return written


def _frames(store: StoreReader, name: str, window: Window) -> Iterator[pd.DataFrame]:
    if name == "fact":
        yield store.facts(window)
    elif name == "event":
        yield store.events(window)
    elif name == "reject":
        yield store.rejects(window)
    else:
        # Only days that have rows, however long the window is; without any, a frame of no rows that names the columns.
        days = store.read(name, window, fields=(), by=("cluster",), every=_DAY)["time"].unique()
        for day in sorted(pd.Timestamp(day).to_pydatetime() for day in days) or [window.start]:
            yield store.read(name, Window(max(day, window.start), min(day + _DAY, window.end)))


def _write(path: Path, frames: Iterator[pd.DataFrame], fmt: Format) -> None:
    writer: pq.ParquetWriter | pa_csv.CSVWriter | None = None
    try:
        for frame in frames:
            frame.attrs = {}  # which store answered: nothing that a file could carry
            table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
            if writer is None:
                kind = pq.ParquetWriter if fmt == "parquet" else pa_csv.CSVWriter
                writer = kind(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def load_rows(paths: Iterable[Path]) -> FrameStore:
    """Read files of rows, or folders of such files; the name of a file tells its measurement (`gpu.csv`, `gpu-2.csv`).

    Columns that are absent are absent values. Several files of one measurement are laid under one another.

    Raises:
        InputRejectedError: nothing to read, a name that tells no measurement, or a file that cannot be read.
    """
    parts: dict[str, list[pd.DataFrame]] = {}
    for file in _files(paths):
        match = _FILE_NAME.match(file.name)
        if match is None:
            raise InputRejectedError(
                f"expected a file named after one of {', '.join(_NAMES)}, got {file.name}; rename it"
            )
        parts.setdefault(match[1], []).append(_load(file, match[1]))
    frames = {name: pd.concat(frames, ignore_index=True) for name, frames in parts.items()}
    return FrameStore(
        {name: frame for name, frame in frames.items() if name in MEASUREMENTS},
        frames.get("fact"),
        frames.get("event"),
        frames.get("reject"),
    )


def _files(paths: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [
                p for p in sorted(path.iterdir()) if p.suffix in (".parquet", ".csv") and _FILE_NAME.match(p.name)
            ]
            if not inside:
                raise InputRejectedError(f"expected files such as gpu.parquet or slice.csv in {path}, found none")
            found += inside
        elif path.suffix in (".parquet", ".csv") and path.is_file():
            found.append(path)
        else:
            raise InputRejectedError(f"expected a .parquet or .csv file or a folder of them, got {path}")
    if not found:
        raise InputRejectedError("expected files of rows, got none; name a folder that `trimtab export` wrote")
    return found


def _load(file: Path, name: str) -> pd.DataFrame:
    try:
        if file.suffix == ".parquet":
            table = pq.ParquetFile(file).read()
        else:
            table = pa_csv.read_csv(file, convert_options=_csv_options(name))
    except (pa.ArrowException, OSError) as error:
        raise InputRejectedError(f"cannot read {file}: {str(error).splitlines()[0]}") from error
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _csv_options(name: str) -> pa_csv.ConvertOptions:
    if name in _TEXTS:
        types = dict.fromkeys(_TEXTS[name], pa.string()) | {"count": pa.int64()}
    else:
        spec = MEASUREMENTS[name]
        types = dict.fromkeys(("time", *spec.tags), pa.string()) | dict.fromkeys(spec.field_names, pa.float64())
    return pa_csv.ConvertOptions(column_types=types, strings_can_be_null=False, null_values=["", "NaN", "nan", "null"])
