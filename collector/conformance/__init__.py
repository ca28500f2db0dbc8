"""Laws that every source and every store keeps, as pytest classes to inherit from.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda: MyStore(tmp_path)

Each `make_store()` of one test opens an empty store or, where it was called before, one that sees the same rows only if
the implementation keeps them; the suite calls it once a test. Override `settle` to let the store reorganise its rows
between writing and reading: no law may notice.
"""

from collector.conformance.readers import StoreReaderConformance
from collector.conformance.rows import DAY, HOUR, MINUTE, START, at, slice_rows, window
from collector.conformance.sources import SourceConformance
from collector.conformance.stores import StoreConformance

__all__ = [
    "DAY",
    "HOUR",
    "MINUTE",
    "START",
    "SourceConformance",
    "StoreConformance",
    "StoreReaderConformance",
    "at",
    "slice_rows",
    "window",
]
