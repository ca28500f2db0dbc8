"""Import files into a store: detect, read, write, and report what was accepted, rejected and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from collector.assemble import Assembler, Scrape
from collector.batch import Batch, Fact, Subject
from collector.declarations import WorkloadDeclaration
from collector.errors import ConfigurationError
from collector.exposition import parse_exposition
from collector.history import IMPORTED, CardKey
from collector.importing.dcgmi import read_dcgmi
from collector.importing.detect import WHY_NOT, Format, detect
from collector.importing.log import LogPlace, NotImportableError, Tally
from collector.importing.monitors import read_dmon, read_pmon
from collector.importing.smi_xml import read_xml
from collector.importing.snapshot import read_snapshot
from collector.importing.tables import read_apps, read_query
from collector.importing.text import LONG_LINE, TextFile, said
from collector.plugins import SourceContext
from collector.protocols import Store
from collector.settings import MappingSettings, TargetSettings, TenantSettings

Status = Literal["imported", "imported before", "rejected"]
Reader = Callable[[TextFile, LogPlace, Tally], Iterator[Batch]]
READERS: dict[Format, Reader] = {
    Format.SMI_QUERY: read_query,
    Format.SMI_APPS: read_apps,
    Format.SMI_XML: read_xml,
    Format.DMON: read_dmon,
    Format.PMON: read_pmon,
    Format.DCGMI_DMON: read_dcgmi,
    Format.SNAPSHOT: read_snapshot,
}
_MARK = "import:"
_UNFORESEEN = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, pa.ArrowException)


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How files are read.

    Attributes:
        cluster: cluster that the rows belong to.
        node: node of files that name none; empty: the file's name without its ending.
        zone: zone of stamps without one; None: UTC, with a warning (an error under `strict`).
        start: instant of captures, and of the first row of logs without stamps; None: the file's own time, with a
            warning.
        step_seconds: from row to row of logs without stamps; None: 1 s, with a warning.
        columns: names of the columns of logs without a heading.
        gpus: how many cards print their rows in turn in logs where no column tells them apart; None: guessed where
            it is beyond doubt.
        strict: a file with anything to guess, or with a rejected line, is rejected.
        interval_seconds: cycle that captures stand on.
    """

    cluster: str = "default"
    node: str = ""
    zone: tzinfo | None = None
    start: datetime | None = None
    step_seconds: float | None = None
    columns: tuple[str, ...] = ()
    gpus: int | None = None
    strict: bool = False
    interval_seconds: float = 60.0
    declarations: tuple[WorkloadDeclaration, ...] = ()
    tenants: tuple[TenantSettings, ...] = ()
    mappings: tuple[MappingSettings, ...] = ()


@dataclass(slots=True)
class FileReport:
    """What became of one file.

    `rejected` maps a reason to the number of lines and the first of them; `guesses` are the warnings that say what was
    guessed.
    """

    path: str
    format: Format
    status: Status
    reason: str = ""
    accepted: int = 0
    rejected: dict[str, tuple[int, int]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    facts: int = 0
    warnings: list[str] = field(default_factory=list)
    guesses: list[str] = field(default_factory=list)

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
    known = _marks(store)
    for path in _files(paths):
        report.files.append(_import_one(path, store, options, known))
    return report


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
        elif path.is_file():
            yield path
        else:
            raise ConfigurationError(f"expected a file or a folder, got {str(path)!r}, which is not there")


def _import_one(path: Path, store: Store, options: ImportOptions, known: dict[str, _Mark]) -> FileReport:
    try:
        file = TextFile(path)
    except OSError as error:
        return FileReport(said(path), Format.UNKNOWN, "rejected", f"it cannot be read: {error}")
    kind = detect(file.head)
    if kind is Format.HEADERLESS and options.columns:
        kind = Format.SMI_APPS if "pid" in options.columns else Format.SMI_QUERY
    name = f"{_MARK}{file.digest}"
    mark = known.get(name)
    if mark is not None and mark.done:
        again = "its rows keep the times and the node that they got then, whatever the options say now"
        return FileReport(said(path), kind, "imported before", warnings=[again])
    if kind in WHY_NOT:
        return FileReport(said(path), kind, "rejected", file.torn or WHY_NOT[kind])
    job = _Job(file, kind, _begun(options, mark), datetime.fromtimestamp(path.stat().st_mtime, UTC))
    report = FileReport(said(path), kind, "imported")
    if options.strict:
        # Nothing of a file that is refused must be written: it is read once before.
        for _ in job.batches(report):
            pass
        _refuse(report, strict=True)
    if report.status == "imported":
        fresh = FileReport(said(path), kind, "imported")
        _write(job, fresh, store)
        report = fresh
        if report.status == "imported":
            known[name] = _Mark(None, None, done=True)
    return report


def _write(job: _Job, report: FileReport, store: Store) -> None:
    """Write what a file holds, batch after batch; the mark that says so comes first as begun and last as done."""
    kept: Batch | None = None
    for batch in job.batches(report):
        if not batch.row_count and not batch.facts and not batch.events:
            continue
        if kept is not None:
            store.write(kept)
        else:
            batch.facts.append(job.mark(batch, done=False))
        job.note_span(batch)
        kept = batch
    _refuse(report, strict=False)
    if report.status == "imported" and kept is not None:
        kept.facts += [*job.history(), job.mark(kept, done=True)]
        store.write(kept)


def _refuse(report: FileReport, *, strict: bool) -> None:
    """Refuse a file with nothing of use in it, and under `strict` one where anything was guessed or is wrong."""
    if report.status == "rejected":
        return
    if strict and (report.guesses or report.rejected):
        first = report.guesses[0] if report.guesses else next(iter(report.rejected))
        report.status, report.reason = "rejected", f"--strict: {first}"
    elif not report.rows and not report.facts:
        report.status, report.reason = "rejected", "no sample in it belongs to a card, a slice or a queue"


@dataclass(slots=True)
class _Job:
    """One file to be read, as often as need be."""

    file: TextFile
    kind: Format
    options: ImportOptions
    file_time: datetime
    first: datetime | None = None
    begins: dict[CardKey, datetime] = field(default_factory=dict)
    ends: dict[tuple[str, str], datetime] = field(default_factory=dict)  # (cluster, node) -> newest row

    def batches(self, report: FileReport) -> Iterator[Batch]:
        """Yield what the file holds; the report tells of it when all is read."""
        tally = Tally()
        report.rows, report.facts = {}, 0
        try:
            for batch in self._read(tally):
                for name, table in sorted(batch.rows.items()):
                    if table.num_rows:
                        report.rows[name] = report.rows.get(name, 0) + table.num_rows
                report.facts += len(batch.facts)
                yield batch
        except NotImportableError as error:
            report.status, report.reason = "rejected", str(error)
        except _UNFORESEEN as error:
            # What no reader foresaw is the fault of one file, and must not lose the others.
            reason = f"expected {self.kind}, got what its reader cannot read: {error!r}"
            if report.rows:
                tally.reject(reason, 0)
            else:
                report.status, report.reason = "rejected", reason
        if self.file.torn:
            tally.reject(self.file.torn, 0)
        report.accepted, report.rejected = tally.accepted, tally.rejected
        report.warnings, report.guesses = tally.warnings, tally.guesses

    def _read(self, tally: Tally) -> Iterator[Batch]:
        options, path = self.options, self.file.path
        if self.kind is Format.EXPOSITION:
            yield _read_capture(self.file, options, self.file_time, tally)
            return
        node = options.node or said(Path(path.name)).split(".", maxsplit=1)[0]
        place = LogPlace(
            options.cluster,
            node,
            options.zone,
            options.start,
            options.step_seconds,
            options.columns,
            options.gpus,
            self.file_time,
        )
        yield from READERS[self.kind](self.file, place, tally)

    def note_span(self, batch: Batch) -> None:
        """Note since when each card is in the file, and until when its node."""
        for table in (batch.rows[name] for name in ("gpu", "slice") if name in batch.rows):
            times = table.select(["cluster", "node", "gpu", "time"]).group_by(["cluster", "node", "gpu"])
            for row in times.aggregate([("time", "min"), ("time", "max")]).to_pylist():
                key, node = (row["cluster"], row["node"], row["gpu"]), (row["cluster"], row["node"])
                self.begins[key] = min(self.begins.get(key, row["time_min"]), row["time_min"])
                self.ends[node] = max(self.ends.get(node, row["time_max"]), row["time_max"])

    def history(self) -> list[Fact]:
        """Return the facts that the rows of these cards are a past, and until when it goes."""
        return [
            Fact(Subject("gpu", *key), IMPORTED, self.ends[key[:2]].isoformat(), begin, "declared")
            for key, begin in sorted(self.begins.items())
        ]

    def mark(self, batch: Batch, *, done: bool) -> Fact:
        """Return the fact that this content was imported, with the times that it got."""
        if self.first is None:
            times = [table.column("time")[0].as_py() for table in batch.rows.values() if table.num_rows]
            self.first = min(times, default=self.file_time)
        options = self.options
        note = {
            "file": said(Path(self.file.path.name)),
            "first": self.first.isoformat(),
            "start": (options.start or self.file_time).isoformat(),
            "step_seconds": options.step_seconds,
            "done": done,
        }
        subject = Subject("cluster", options.cluster)
        text = json.dumps(note, sort_keys=True)
        return Fact(subject, f"{_MARK}{self.file.digest}", text, self.first, "declared")


@dataclass(frozen=True, slots=True)
class _Mark:
    """What is remembered of a content that was imported before, or that an import was broken off in."""

    start: datetime | None
    step_seconds: float | None
    done: bool


def _marks(store: Store) -> dict[str, _Mark]:
    facts = store.facts()
    found = {}
    for name, value in zip(facts["name"], facts["value"], strict=True):
        if name.startswith(_MARK):
            note = json.loads(value)
            start = note.get("start")
            found[name] = _Mark(
                datetime.fromisoformat(start) if start else None, note.get("step_seconds"), bool(note.get("done", True))
            )
    return found


def _begun(options: ImportOptions, mark: _Mark | None) -> ImportOptions:
    """Return the options with the times of an import that was broken off: its rows must get the same ones again."""
    if mark is None:
        return options
    return replace(options, start=mark.start, step_seconds=mark.step_seconds)


def _read_capture(file: TextFile, options: ImportOptions, file_time: datetime, tally: Tally) -> Batch:
    """Read one scrape of an exporter; its instant is that of the file, or the one that was given."""
    at = options.start
    if at is None:
        at = file_time
        tally.warn(f"a capture carries no time: taken as {at.isoformat(timespec='seconds')} (say --start)")
    context = SourceContext(
        cluster=options.cluster,
        interval_seconds=options.interval_seconds,
        declarations=options.declarations,
        tenants=options.tenants,
        mappings=options.mappings,
    )
    text, long = file.text_of_lines()
    body = parse_exposition(text)
    for number in long:
        tally.reject(LONG_LINE, number)
    assembler = Assembler(context)
    target = TargetSettings(url=f"file:{said(Path(file.path.name))}", node=options.node)
    batch = assembler.assemble(at, [Scrape(target, body)])
    # One scrape has no cycle, and must not speak of that of a collector.
    cycle = (Subject("cluster", options.cluster), "interval_seconds")
    batch.facts = [fact for fact in batch.facts if (fact.subject, fact.name) != cycle]
    # A row waits one cycle for its holder: an empty second cycle lets it go.
    for name, table in assembler.assemble(at, []).rows.items():
        before = batch.rows.get(name)
        both = table if before is None else pa.concat_tables([before, table], promote_options="default")
        batch.rows[name] = both
    for reject in body.rejects:
        tally.reject(reject.reason, reject.line)
    tally.accepted = len(body.values)
    return batch
