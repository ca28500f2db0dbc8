"""Import files into a store: detect, read, write, and report what was accepted, rejected and why."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from collector.assemble import Assembler, Scrape
from collector.batch import Batch, Fact, Subject
from collector.declarations import WorkloadDeclaration
from collector.errors import ConfigurationError
from collector.exposition import parse_exposition
from collector.importing.detect import WHY_NOT, Format, detect
from collector.importing.smi import LogPlace, LogResult, NotImportableError, read_apps, read_dmon, read_query
from collector.plugins import SourceContext
from collector.protocols import Store
from collector.settings import MappingSettings, TargetSettings, TenantSettings

_MOST_BYTES = 1 << 30
Status = Literal["imported", "imported before", "rejected"]
_READERS = {Format.SMI_QUERY: read_query, Format.SMI_APPS: read_apps, Format.DMON: read_dmon}


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How files are read.

    Attributes:
        cluster: cluster that the rows belong to.
        node: node of files that name none; empty: the file's name without its ending.
        zone: zone of stamps without one; None: UTC, with a warning (an error under `strict`).
        start: instant of captures, which carry no stamp; None: the file's own time, with a warning.
        strict: a file with anything to guess, or with a rejected line, is rejected.
        interval_seconds: cycle that captures stand on.
    """

    cluster: str = "default"
    node: str = ""
    zone: tzinfo | None = None
    start: datetime | None = None
    strict: bool = False
    interval_seconds: float = 60.0
    declarations: tuple[WorkloadDeclaration, ...] = ()
    tenants: tuple[TenantSettings, ...] = ()
    mappings: tuple[MappingSettings, ...] = ()


@dataclass(slots=True)
class FileReport:
    """What became of one file. `rejected` maps a reason to the number of lines and the first of them."""

    path: str
    format: Format
    status: Status
    reason: str = ""
    accepted: int = 0
    rejected: dict[str, tuple[int, int]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def rejected_count(self) -> int:
        """Lines (or cells) that were rejected."""
        return sum(count for count, _ in self.rejected.values())

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "path": self.path,
            "format": self.format.value,
            "status": self.status,
            "reason": self.reason,
            "accepted": self.accepted,
            "rejected": [{"reason": r, "count": n, "first_line": line} for r, (n, line) in self.rejected.items()],
            "rows": self.rows,
            "warnings": self.warnings,
        }


@dataclass(slots=True)
class ImportReport:
    """What became of all files."""

    files: list[FileReport] = field(default_factory=list)

    @property
    def all_rejected(self) -> bool:
        """Whether nothing at all could be used."""
        return bool(self.files) and all(f.status == "rejected" for f in self.files)

    @property
    def any_rejected(self) -> bool:
        """Whether a file or a line was rejected."""
        return any(f.status == "rejected" or f.rejected for f in self.files)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"schema_version": 1, "files": [f.to_json() for f in self.files]}


def import_files(paths: Sequence[Path], store: Store, options: ImportOptions) -> ImportReport:
    """Import files (and all files of folders), each on its own: one that is rejected loses no other.

    Raises:
        ConfigurationError: a path does not exist.
    """
    report = ImportReport()
    known = {name for name in store.facts()["name"] if name.startswith("import:")}
    for path in _files(paths):
        one = _import_one(path, store, options, known)
        report.files.append(one)
    return report


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
        elif path.is_file():
            yield path
        else:
            raise ConfigurationError(f"expected a file or a folder, got {str(path)!r}, which is not there")


def _import_one(path: Path, store: Store, options: ImportOptions, known: set[str]) -> FileReport:
    try:
        content = _content(path)
    except (OSError, zlib.error, ValueError, EOFError) as error:
        return FileReport(_said(path), Format.UNKNOWN, "rejected", f"it cannot be read: {error}")
    text = _decoded(content)
    kind = detect(text)
    mark = f"import:{hashlib.sha256(content).hexdigest()}"
    if mark in known:
        return FileReport(_said(path), kind, "imported before")
    if kind in WHY_NOT:
        return FileReport(_said(path), kind, "rejected", WHY_NOT[kind])
    report, batch = _read(kind, path, text, options)
    if report.status == "imported":
        _remember(batch, mark, path, options)
        store.write(batch)
        known.add(mark)
    return report


def _read(kind: Format, path: Path, text: str, options: ImportOptions) -> tuple[FileReport, Batch]:
    report = FileReport(_said(path), kind, "imported")
    try:
        capture = kind is Format.EXPOSITION
        result = _read_capture(path, text, options) if capture else _read_log(kind, path, text, options)
    except NotImportableError as error:
        report.status, report.reason = "rejected", str(error)
        return report, Batch()
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, pa.ArrowException) as error:
        # What no reader foresaw is the fault of one file, and must not lose the others.
        report.status, report.reason = "rejected", f"expected {kind}, got what its reader cannot read: {error!r}"
        return report, Batch()
    report.accepted = result.accepted
    report.rejected = {reason: (len(lines), lines[0]) for reason, lines in result.rejected.items()}
    report.rows = {name: table.num_rows for name, table in sorted(result.batch.rows.items())}
    report.warnings = result.warnings
    if options.strict and (result.warnings or report.rejected):
        first = result.warnings[0] if result.warnings else next(iter(report.rejected))
        report.status, report.reason = "rejected", f"--strict: {first}"
    elif not result.batch.row_count and not result.batch.facts:
        report.status, report.reason = "rejected", "no sample in it belongs to a card, a slice or a queue"
    return report, result.batch


def _said(path: Path) -> str:
    """Return a path as text; bytes of a name that are no text are replaced."""
    return str(path).encode("utf-8", "replace").decode("utf-8")


def _decoded(content: bytes) -> str:
    """Return text: UTF-8, or UTF-16 where a byte order mark says so; what is no text is replaced."""
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = content.decode("utf-16" if wide else "utf-8-sig", errors="replace")
    return text.replace("\r\n", "\n")


def _content(path: Path) -> bytes:
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        with gzip.open(path) as file:
            raw = file.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise ValueError(f"expected at most {_MOST_BYTES >> 20} MiB, got more: split it")
    return raw


def _node(path: Path, options: ImportOptions) -> str:
    return options.node or _said(Path(path.name)).split(".", maxsplit=1)[0]


def _read_log(kind: Format, path: Path, text: str, options: ImportOptions) -> LogResult:
    return _READERS[kind](text, LogPlace(options.cluster, _node(path, options), options.zone))


def _read_capture(path: Path, text: str, options: ImportOptions) -> LogResult:
    """Read one scrape of an exporter; its instant is that of the file, or the one that was given."""
    result = LogResult(Batch())
    at = options.start
    if at is None:
        at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        result.warnings.append(f"a capture carries no time: taken as {at.isoformat(timespec='seconds')} (say --start)")
    context = SourceContext(
        cluster=options.cluster,
        interval_seconds=options.interval_seconds,
        declarations=options.declarations,
        tenants=options.tenants,
        mappings=options.mappings,
    )
    body = parse_exposition(text)
    assembler = Assembler(context)
    target = TargetSettings(url=f"file:{_said(Path(path.name))}", node=options.node)
    result.batch = assembler.assemble(at, [Scrape(target, body)])
    # One scrape has no cycle, and must not speak of that of a collector.
    cycle = (Subject("cluster", options.cluster), "interval_seconds")
    result.batch.facts = [fact for fact in result.batch.facts if (fact.subject, fact.name) != cycle]
    # A row waits one cycle for its holder: an empty second cycle lets it go.
    for name, table in assembler.assemble(at, []).rows.items():
        before = result.batch.rows.get(name)
        both = table if before is None else pa.concat_tables([before, table], promote_options="default")
        result.batch.rows[name] = both
    for reject in body.rejects:
        result.rejected[reject.reason].append(reject.line)
    result.accepted = len(body.values)
    return result


def _remember(batch: Batch, mark: str, path: Path, options: ImportOptions) -> None:
    """Write down that this content was imported, with the times that it got."""
    first = [table.column("time")[0].as_py() for table in batch.rows.values() if table.num_rows]
    at = min(first, default=datetime.fromtimestamp(path.stat().st_mtime, UTC))
    note = json.dumps({"file": _said(Path(path.name)), "start": at.isoformat()}, sort_keys=True)
    batch.facts.append(Fact(Subject("cluster", options.cluster), mark, note, at, "declared"))
