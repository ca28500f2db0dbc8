"""A copy of the store while it is in use: the catalogue as of one instant, and the files it names."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from collector.clock import Clock, SystemClock
from collector.errors import ConfigurationError
from collector.settings import StoreSettings
from collector.store import catalogue
from collector.store.workshop import Workshop


def backup_store(settings: StoreSettings, target: Path, *, clock: Clock | None = None) -> int:
    """Copy the store to the folder `target`; return the bytes copied. Writers and readers go on meanwhile.

    To restore, put the copy in the place of `store.path` while nothing has it open, and run `trimtab store verify`. A
    shipper goes on from the cursor in the copy: what it sent since is sent again, to the same points.

    Raises:
        ConfigurationError: there is something in `target`.
        UnreachableError: there is no store, or it or the target cannot be read or written.
    """
    folder = settings.path.resolve()
    catalogue.connect(folder, read_only=True).close()  # says so where there is none, instead of making one
    if target.exists() and any(target.iterdir()):
        raise ConfigurationError(f"expected an empty folder or none at {target}, found files in it; name another")
    shop = Workshop(folder, settings, clock or SystemClock())
    try:
        # Nobody else removes files while the lock is held, so all that the copied catalogue names are still there.
        with catalogue.failures(folder, "copy"), shop.insisting():
            (target / "sealed").mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(target / "store.db")) as copy:
                shop.db.backup(copy)
                copy.execute("DELETE FROM lock")
                copy.execute("DELETE FROM seg WHERE state = 'deleted'")
                copy.commit()
                paths = [path for (path,) in copy.execute("SELECT path FROM seg")]
            for path in paths:
                shutil.copyfile(folder / path, target / path)
    finally:
        shop.close()
    return sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
