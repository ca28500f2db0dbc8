"""The in-memory DuckDB that answers reads, with one thread, so that equal rows give equal sums."""

from __future__ import annotations

import functools
import threading

import duckdb
import pyarrow as pa


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    # Starting one takes longer than most reads, and it holds no rows of its own: one does for the process.
    return duckdb.connect(":memory:", config={"threads": 1})


class Engine:
    """A connection that runs statements over sealed files and a table `hot` that is handed over with each."""

    def __init__(self) -> None:
        self._connection = _database().cursor()
        self._lock = threading.Lock()

    def run(self, statement: str, hot: pa.Table) -> pa.Table:
        """Return the answer as an Arrow table.

        Raises:
            duckdb.IOException: a sealed file is gone.
        """
        with self._lock:
            self._connection.register("hot", hot)
            try:
                return self._connection.sql(statement).to_arrow_table()
            finally:
                self._connection.unregister("hot")

    def close(self) -> None:
        """Release the connection."""
        with self._lock:
            self._connection.close()
