"""The state database: opening, upgrading, and the one lock that all writers take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from collector.atomic import make_private
from collector.errors import ConfigurationError, UnreachableError
from collector.masking import mask_address
from tuner.model import Group
from tuner.settings import StateSettings

_MIGRATIONS = Path(__file__).parent / "migrations"
_BUSY_SECONDS = 30.0
_POSTGRES_LOCK = 0x7472696D  # any constant: all writers of one database ask for the same advisory lock
_CACHED_GROUPS = 5000


class State:
    """An open state database. Safe to share between threads; other processes open their own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._groups: dict[str, Group] = {}

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one snapshot and writes nothing."""
        with self._engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a connection inside a transaction that no other writer can interleave; commit at the end (fsync).

        Raises:
            UnreachableError: the lock was not free in time, or the database cannot be written.
        """
        try:
            with self._engine.connect().execution_options(trimtab_write=True) as connection, connection.begin():
                if connection.dialect.name == "postgresql":
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _POSTGRES_LOCK})
                yield connection
        except DBAPIError as error:
            if "full" in str(error.orig) or "disk I/O" in str(error.orig):
                raise UnreachableError(
                    f"the state database cannot be written: expected room on its disk, got {_line(error)}; nothing of "
                    "this step was kept"
                ) from error
            if error.connection_invalidated or "locked" in str(error.orig) or "readonly" in str(error.orig):
                raise UnreachableError(
                    f"the state database cannot be written: expected a free lock within {_BUSY_SECONDS:.0f} s, "
                    f"got {_line(error)}; see who holds it and run again"
                ) from error
            raise

    def cached_group(self, group_id: str) -> Group | None:
        """Return a group that was decoded before (documents of groups never change)."""
        return self._groups.get(group_id)

    def cache_group(self, group: Group) -> None:
        """Keep a decoded group; the oldest go first."""
        if len(self._groups) >= _CACHED_GROUPS:
            del self._groups[next(iter(self._groups))]
        self._groups[group.id] = group

    def close(self) -> None:
        """Release all connections."""
        self._engine.dispose()


def open_state(settings: StateSettings, *, durable: bool = True) -> State:
    """Open the state database, creating or upgrading it first.

    Without `url` it is a SQLite file (WAL, synchronous=FULL: a commit is on disk before it returns).

    Args:
        settings: where it is.
        durable: wait for the disk at each commit of the file; a simulated cluster has nothing to lose with the power.

    Raises:
        ConfigurationError: the address cannot be understood, its driver is missing, or a newer version wrote it.
        UnreachableError: the database does not answer or the file cannot be opened.
    """
    parsed = _parse(settings.url or f"sqlite:///{settings.path}")
    address = mask_address(parsed.render_as_string())  # which hides the password before the host alone
    try:
        if parsed.get_backend_name() == "sqlite" and parsed.database and not parsed.database.startswith((":", "file:")):
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
            make_private(Path(parsed.database))  # the files that SQLite puts beside it get the same rights
        engine = create_engine(parsed)
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigurationError(
            f"[state] url: expected an SQLAlchemy address such as postgresql+psycopg://host/db, "
            f"got {address!r}: {error}"
        ) from error
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"[state] url: the driver {error.name!r} is not installed; run `pip install {error.name}`"
        ) from error
    except OSError as error:
        raise UnreachableError(f"[state] path: expected a writable folder for {settings.path}, got {error}") from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", partial(_set_pragmas, "FULL" if durable else "OFF"))
        event.listen(engine, "begin", _begin)
    state = State(engine)
    try:
        _upgrade(state)
    except DBAPIError as error:
        state.close()
        raise UnreachableError(
            f"the state database does not answer: expected {address}, got {_line(error)}; check [state] url or path"
        ) from error
    except ConfigurationError:
        state.close()
        raise
    return state


def _parse(url: str) -> URL:
    """Read an address; what cannot be read is not repeated, for nobody knows where its password stands."""
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        scheme, separator, _ = url.partition("://")
        got = f"one that begins with {scheme}://" if separator else "one without `://`"
        raise ConfigurationError(
            f"[state] url: expected an SQLAlchemy address such as postgresql+psycopg://host/db, got {got} "
            "and cannot be read; correct it"
        ) from None


def _line(error: DBAPIError) -> str:
    return " ".join(str(error.orig).split())


def _set_pragmas(synchronous: str, connection: Any, _record: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves, to be able to say IMMEDIATE
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout={int(_BUSY_SECONDS * 1000)}",
        "journal_mode=WAL",
        f"synchronous={synchronous}",
        "foreign_keys=ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    write = connection.get_execution_options().get("trimtab_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _upgrade(state: State) -> None:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    script = ScriptDirectory.from_config(config)
    head = script.get_current_head()
    with state.reading() as connection:
        if MigrationContext.configure(connection).get_current_revision() == head:
            return
    with state.writing() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
        known = {revision.revision for revision in script.walk_revisions()}
        if current is not None and current not in known:
            raise ConfigurationError(
                f"the state database has revision {current}, this version knows up to {head}; "
                "use the newer version that wrote it"
            )
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
