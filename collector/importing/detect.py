"""What kind of file is this? Told by its content, never by its name."""

from __future__ import annotations

import re
from enum import StrEnum

from collector.importing.columns import column_name, is_heading, split_row
from collector.importing.text import decoded

_LOOKED_AT = 40  # lines
_BINARY_LOOKED_AT = 8192  # characters
_BINARY_SHARE = 0.05  # of control characters and of bytes that are no text
_SAMPLE = re.compile(r"^[A-Za-z_:][A-Za-z0-9_:]*(\{.*\})?\s+[-+]?(\d[\d.eE+-]*|NaN|Inf)(\s|$)")
_METADATA = re.compile(r"^# (HELP|TYPE|UNIT|EOF)\b")
_CELL = re.compile(
    r"^\[?(N/A|Not Supported|Unknown Error)\]?$|^ERR!$|^[-+]?\d+(\.\d+)?( (%|MiB|W|MHz))?$|^\d{4}[-/]\d\d",
    re.IGNORECASE,
)
_LIST = re.compile(r"^GPU \d+: .*\(UUID: ")
_MONITOR = re.compile(r"^#\s*(Date[,\s]+)?(Time[,\s]+)?gpu\b", re.IGNORECASE)
_XML = re.compile(r"^<(\?xml|!DOCTYPE nvidia_smi_log|nvidia_smi_log)\b")
_SNAPSHOT = re.compile(r'"(segments|segment_type|device_traces)"\s*:')


class Format(StrEnum):
    """Formats that are told apart; those after HEADERLESS cannot be imported and are rejected by name."""

    EXPOSITION = "exposition text"
    SMI_QUERY = "nvidia-smi --query-gpu CSV"
    SMI_APPS = "nvidia-smi --query-compute-apps CSV"
    SMI_XML = "nvidia-smi -q -x XML"
    DMON = "nvidia-smi dmon"
    PMON = "nvidia-smi pmon"
    DCGMI_DMON = "dcgmi dmon"
    SNAPSHOT = "PyTorch memory snapshot"
    HEADERLESS = "CSV without a heading"
    ACCOUNTED = "nvidia-smi --query-accounted-apps CSV"
    SMI_LIST = "nvidia-smi -L listing"
    COUNTERS = "dcgm-exporter list of counters"
    JSON = "JSON document"
    HTTP = "HTTP error"
    EMPTY = "empty file"
    BINARY = "binary file"
    UNKNOWN = "unknown format"


WHY_NOT: dict[Format, str] = {
    Format.HEADERLESS: "its columns have no names: say them with --columns, as the query did",
    Format.ACCOUNTED: "it lists finished processes, not samples over time",
    Format.SMI_LIST: "it is a list of devices and holds no sample",
    Format.COUNTERS: "it configures an exporter and holds no sample",
    Format.JSON: "expected exposition text, a log or a memory snapshot, got other JSON",
    Format.HTTP: "the exporter answered with an error, not with samples",
    Format.EMPTY: "nothing is in it: the exporter was reloading, or saw no GPU",
    Format.BINARY: "expected text (UTF-8, or UTF-16 with a byte order mark), got a binary file",
    Format.UNKNOWN: "expected exposition text, or a log of nvidia-smi or dcgmi with a heading",
}


def detect(head: bytes | str) -> Format:
    """Return the format of a file by how its content begins."""
    if isinstance(head, bytes):
        if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
            return Format.SNAPSHOT  # a pickle: whether it is a snapshot shows when it is read
        head = decoded(head)
    found = _told_by_lines(head)
    return Format.BINARY if found in WHY_NOT and _is_binary(head) else found


def _is_binary(text: str) -> bool:
    looked_at = text[:_BINARY_LOOKED_AT]
    strange = sum(c == "\ufffd" or (not c.isprintable() and not c.isspace()) for c in looked_at)
    return strange > _BINARY_SHARE * len(looked_at)


def _told_by_lines(text: str) -> Format:  # noqa: PLR0911 - one return a format
    # A torn line (NULs that a crash left, a line without end) says nothing about the others.
    lines = [line.strip() for line in text.split("\n")[: _LOOKED_AT * 5] if line.strip() and split_row(line)]
    lines = lines[:_LOOKED_AT]
    if not lines:
        start = text.lstrip()[:1]
        if start in ("{", "[") and _SNAPSHOT.search(text):
            return Format.SNAPSHOT  # all in one line
        return Format.EMPTY if not text.strip() else Format.UNKNOWN
    first = lines[0]
    if first.startswith("HTTP/"):
        return Format.HTTP
    if first[0] in "{[" and not any(_METADATA.match(line) for line in lines):
        return Format.SNAPSHOT if _SNAPSHOT.search(text) else Format.JSON
    if _XML.match(first):
        return Format.SMI_XML
    if _LIST.match(first):
        return Format.SMI_LIST
    for line in lines:
        if line.startswith(("#Entity", "# Entity")):
            return Format.DCGMI_DMON
        if _MONITOR.match(line):
            return Format.PMON if "pid" in line.lower().split() else Format.DMON
    if any(line.startswith("DCGM_FI_") and line.count(",") >= 2 and "{" not in line for line in lines):
        return Format.COUNTERS
    if first.startswith(("dcgm_", "#")) and any(", gauge," in line or ", counter," in line for line in lines):
        return Format.COUNTERS
    if any(_METADATA.match(line) or _SAMPLE.match(line) for line in lines):
        return Format.EXPOSITION
    tables = (split_row(line) or [] for line in lines)
    return next((found for found in map(_table, tables) if found is not None), Format.UNKNOWN)


def _table(cells: list[str]) -> Format | None:
    """Return which table a line is of: by a heading, else by cells that only a table of nvidia-smi has."""
    if is_heading(cells):
        names = {column_name(cell) for cell in cells}
        if "pid" in names:
            return Format.ACCOUNTED if names & {"gpu_utilization", "gpu_util", "time"} else Format.SMI_APPS
        return Format.SMI_QUERY
    if len(cells) > 1 and sum(_CELL.match(cell) is not None for cell in cells) * 2 >= len(cells):
        return Format.HEADERLESS
    return None
