"""Exporters' metric names against the schema: one declarative TOML table an exporter, and the user's own.

Unit and counter-ness are decided by the metric's name from these tables, never from HELP or TYPE text.
"""

from collector.mappings.tables import (
    ExporterMapping,
    MappedMetric,
    MappingTable,
    MetricRow,
    builtin_exporters,
)
from collector.mappings.user import mapping_table

__all__ = ["ExporterMapping", "MappedMetric", "MappingTable", "MetricRow", "builtin_exporters", "mapping_table"]
