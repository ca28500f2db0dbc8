"""The driver itself as a source: cards, MIG instances and processes of this host through NVML (nvidia-ml-py).

Values are handed on under names of our own, in the driver's units; `mappings/nvml.toml` says which field each one is.
"""

from collector.nvml.source import NvmlSource

__all__ = ["NvmlSource"]
