"""The stores: the embedded one on disk, its read half over frames in memory, and rows as files."""

from collector.store.embedded import EmbeddedStore
from collector.store.files import export_rows, load_rows
from collector.store.frame import FrameStore

__all__ = ["EmbeddedStore", "FrameStore", "export_rows", "load_rows"]
