"""What kind of file is this? Told by its content, never by its name."""

from __future__ import annotations

import re
from enum import StrEnum

from collector.importing.columns import split_row

_LOOKED_AT = 40  # lines
_BINARY_LOOKED_AT = 8192  # characters
_BINARY_SHARE = 0.05  # of control characters and of bytes that are no text
_SAMPLE = re.compile(r"^[A-Za-z_:][A-Za-z0-9_:]*(\{.*\})?\s+[-+]?(\d[\d.eE+-]*|NaN|Inf)(\s|$)")
_METADATA = re.compile(r"^# (HELP|TYPE|UNIT|EOF)\b")
_STAMP = re.compile(r"^\d{4}[-/]\d{2}[-/]\d{2}[ T]\d{2}:\d{2}")
_LIST = re.compile(r"^GPU \d+: .*\(UUID: ")
_DMON = re.compile(r"^#\s*(Date\s+Time\s+)?gpu\b", re.IGNORECASE)


class Format(StrEnum):
    """Formats that are told apart; those after UNSTAMPED cannot be imported and are rejected by name."""

    EXPOSITION = "exposition text"
    SMI_QUERY = "nvidia-smi --query-gpu CSV"
    SMI_APPS = "nvidia-smi --query-compute-apps CSV"
    DMON = "nvidia-smi dmon"
    UNSTAMPED = "log without time stamps"
    HEADERLESS = "CSV without a header"
    ACCOUNTED = "nvidia-smi --query-accounted-apps CSV"
    PMON = "nvidia-smi pmon"
    DCGMI_DMON = "dcgmi dmon"
    SMI_LIST = "nvidia-smi -L listing"
    COUNTERS = "dcgm-exporter list of counters"
    JSON = "JSON document"
    HTTP = "HTTP error"
    EMPTY = "empty file"
    BINARY = "binary file"
    UNKNOWN = "unknown format"


WHY_NOT: dict[Format, str] = {
    Format.UNSTAMPED: "its rows carry no time: log with a timestamp column (dmon: -o DT)",
    Format.HEADERLESS: "its columns have no names: log without `noheader`",
    Format.ACCOUNTED: "it lists finished processes, not samples over time",
    Format.PMON: "its rows carry no time: log with -o DT, or use --query-compute-apps with a timestamp column",
    Format.DCGMI_DMON: "its rows carry no time: scrape dcgm-exporter instead",
    Format.SMI_LIST: "it is a list of devices and holds no sample",
    Format.COUNTERS: "it configures an exporter and holds no sample",
    Format.JSON: "expected exposition text or a log, got JSON",
    Format.HTTP: "the exporter answered with an error, not with samples",
    Format.EMPTY: "nothing is in it: the exporter was reloading, or saw no GPU",
    Format.BINARY: "expected text (UTF-8, or UTF-16 with a byte order mark), got a binary file",
    Format.UNKNOWN: "expected exposition text, or an nvidia-smi log with a header and time stamps",
}


def detect(text: str) -> Format:
    """Return the format of a file's content."""
    found = _told_by_lines(text)
    return Format.BINARY if found in WHY_NOT and _is_binary(text) else found


def _is_binary(text: str) -> bool:
    looked_at = text[:_BINARY_LOOKED_AT]
    strange = sum(c == "\ufffd" or (not c.isprintable() and not c.isspace()) for c in looked_at)
    return strange > _BINARY_SHARE * len(looked_at)


def _told_by_lines(text: str) -> Format:  # noqa: PLR0911 - one return a format
    # A torn line (NULs that a crash left, a line without end) says nothing about the others.
    lines = [line.strip() for line in text.splitlines()[: _LOOKED_AT * 5] if line.strip() and split_row(line)]
    lines = lines[:_LOOKED_AT]
    if not lines:
        return Format.EMPTY if not text.strip() else Format.UNKNOWN
    first = lines[0]
    if first.startswith("HTTP/"):
        return Format.HTTP
    if first[0] in "{[" and not any(_METADATA.match(line) for line in lines):
        return Format.JSON
    if _LIST.match(first):
        return Format.SMI_LIST
    if first.startswith(("#Entity", "# Entity")):
        return Format.DCGMI_DMON
    if _DMON.match(first):
        return _monitor(first)
    if any(line.startswith("DCGM_FI_") and line.count(",") >= 2 and "{" not in line for line in lines):
        return Format.COUNTERS
    if first.startswith(("dcgm_", "#")) and any(", gauge," in line or ", counter," in line for line in lines):
        return Format.COUNTERS
    cells = [cell.lower() for cell in split_row(first) or []]
    if len(cells) > 1 and "{" not in first:
        return _table(cells, first)
    if any(_METADATA.match(line) or _SAMPLE.match(line) for line in lines):
        return Format.EXPOSITION
    return Format.UNKNOWN


def _monitor(header: str) -> Format:
    words = header.lower().replace("#", " ").split()
    if "pid" in words:
        return Format.PMON
    return Format.DMON if "date" in words else Format.UNSTAMPED


def _table(cells: list[str], first: str) -> Format:
    named = any((cell and cell[0].isalpha() and "." in cell) or cell == "timestamp" for cell in cells)
    if _STAMP.match(first) or not named:
        return Format.HEADERLESS
    names = {cell.split(" [")[0] for cell in cells}
    if "pid" in names:
        return Format.ACCOUNTED if "gpu_utilization" in names or "time" in names else Format.SMI_APPS
    return Format.SMI_QUERY if "timestamp" in names else Format.UNSTAMPED
