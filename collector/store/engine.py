"""The in-memory DuckDB that answers reads, with one thread, so that equal rows give equal sums.

It is loaded with the first statement: a collector that only writes does without it.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import duckdb


class EngineError(Exception):
    """DuckDB could not run a statement, such as over a sealed file that is gone; the message is DuckDB's."""


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    # Starting one takes longer than most reads, and it holds no rows of its own: one does for the process.
    import duckdb  # noqa: PLC0415

    return duckdb.connect(":memory:", config={"threads": 1})


class Engine:
    """A connection that runs statements over sealed files and over tables that are handed over with each."""

    def __init__(self) -> None:
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._lock = threading.Lock()

    def run(self, statement: str, **tables: pa.Table) -> pa.Table:
        """Return the answer as an Arrow table; `tables` are known to the statement by their names.

        Raises:
            EngineError: a sealed file is gone, or cannot be read.
        """
        import duckdb  # noqa: PLC0415

        with self._lock:
            try:
                if self._connection is None:
                    self._connection = _database().cursor()
                for name, table in tables.items():
                    self._connection.register(name, table)
                try:
                    return self._connection.sql(statement).to_arrow_table()
                finally:
                    for name in tables:
                        self._connection.unregister(name)
            except duckdb.Error as error:
                raise EngineError(str(error)) from error

    def close(self) -> None:
        """Release the connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
