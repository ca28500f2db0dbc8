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
    """A connection that runs statements over sealed files and over tables that are handed over with each."""

    def __init__(self) -> None:
        self._connection = _database().cursor()
        self._lock = threading.Lock()

    def run(self, statement: str, **tables: pa.Table) -> pa.Table:
        """Return the answer as an Arrow table; `tables` are known to the statement by their names.

        Raises:
            duckdb.IOException: a sealed file is gone.
        """
        with self._lock:
            for name, table in tables.items():
                self._connection.register(name, table)
            try:
                return self._connection.sql(statement).to_arrow_table()
            finally:
                for name in tables:
                    self._connection.unregister(name)

    def close(self) -> None:
        """Release the connection."""
        with self._lock:
            self._connection.close()
