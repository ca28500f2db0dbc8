"""The in-memory DuckDB that answers reads; one connection, one thread, so that equal rows give equal sums."""

from __future__ import annotations

import threading

import duckdb
import pyarrow as pa


class Engine:
    """Runs statements over sealed files and a table `hot` that is handed over with each."""

    def __init__(self) -> None:
        self._db = duckdb.connect(":memory:", config={"threads": 1})
        self._db.execute("SET TimeZone = 'UTC'")
        self._lock = threading.Lock()

    def run(self, statement: str, hot: pa.Table) -> pa.Table:
        """Return the answer as an Arrow table.

        Raises:
            duckdb.IOException: a sealed file is gone.
        """
        with self._lock:
            self._db.register("hot", hot)
            try:
                return self._db.sql(statement).to_arrow_table()
            finally:
                self._db.unregister("hot")

    def close(self) -> None:
        """Release the connection."""
        with self._lock:
            self._db.close()
