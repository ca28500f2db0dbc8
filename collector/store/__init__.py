"""The stores: the embedded one on disk, and its read half over frames in memory."""

from collector.store.embedded import EmbeddedStore

__all__ = ["EmbeddedStore"]
