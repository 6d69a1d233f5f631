"""The database of a run's own Prefect server: a copy of an empty one, in a folder that is deleted with the run.

Prefect's default database may belong to another server (`gristmill ui`), whose pages would then show half of the run.
The copy also saves time: only the first run waits for Prefect's tables, which takes half of a start.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from storage.files.locks import hold, hold_if_free

FOLDER = "gristmill"  # in Prefect's home
FILLED = {  # a copy needs no set-up at the start
    "PREFECT_SERVER_DATABASE_MIGRATE_ON_START": "false",
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
}


def home() -> Path:
    """Prefect's home, without importing Prefect."""
    return Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()


@dataclass(frozen=True)
class Database:
    """A server's SQLite file, and the empty one that it is copied from."""

    path: Path
    empty: Path
    copied: bool

    @property
    def settings(self) -> dict[str, str]:
        """The environment of a server that uses it."""
        url = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{self.path}"}
        return url | (FILLED if self.copied else {})

    def keep_empty(self) -> None:
        """Save the tables for the next server to copy. Call it once the server answers, before it stores anything."""
        if self.copied:
            return
        made = self.path.with_name("tables.db")
        with suppress(OSError, sqlite3.Error):  # only the next start is slower
            with closing(sqlite3.connect(self.path)) as used, closing(sqlite3.connect(made)) as kept:
                used.backup(kept)
                # Prefect sets this mode without a timeout: of several connections to a file in another mode, one fails
                kept.execute("PRAGMA journal_mode=WAL")
            os.replace(made, self.empty)


@contextmanager
def own_database() -> Iterator[Database]:
    """A database for this process's server. Raises OSError if it can't be created.

    First removes the folders of killed runs: nobody holds their locks.
    """
    folder = home() / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    empty = folder / f"tables-{version('prefect')}.db"
    with ExitStack() as held:
        with hold(folder / "lock"):
            for abandoned in folder.glob("run-*"):
                with hold_if_free(abandoned / "lock") as free:
                    if free:
                        shutil.rmtree(abandoned, ignore_errors=True)
            own = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
            held.callback(shutil.rmtree, own, ignore_errors=True)
            held.enter_context(hold(own / "lock"))
        copied = _is_whole(empty)
        if copied:
            shutil.copyfile(empty, own / "prefect.db")
        yield Database(own / "prefect.db", empty, copied)


def _is_whole(empty: Path) -> bool:
    """Whether it exists with Prefect's tables: a power cut can leave a file without content."""
    if not empty.is_file():
        return False
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"{empty.resolve().as_uri()}?immutable=1", uri=True)) as opened,
    ):
        ((state,),) = opened.execute("PRAGMA quick_check")
        return state == "ok" and opened.execute("SELECT 1 FROM alembic_version").fetchone() is not None
    return False
