"""Importing files: told apart by content; one bad line never loses a file; importing again changes nothing."""

from collector.importing.detect import Format, detect
from collector.importing.run import FileReport, ImportOptions, ImportReport, import_files

__all__ = ["FileReport", "Format", "ImportOptions", "ImportReport", "detect", "import_files"]
