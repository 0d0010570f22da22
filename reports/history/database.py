"""Opens a history's database, and says what to do when it refuses."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from ..beside import extra
from ..files import OWN_FOLDER
from .schema import HistoryError

_PATIENCE_S = 120  # for other writers
_ADVICE = (
    ("disk is full", "the disk is full: free some space and repeat; nothing of this was written"),
    ("disk I/O error", "it could not be written or read: look for space and the disk's state, and "
     "repeat; nothing of this was written"),
    ("readonly database", "it is read-only: make it writable, or name another with --db"),
    ("unable to open", "it cannot be opened: look at the folder and its permissions"),
    ("not a database", "this is no SQLite database, or a damaged one: restore a copy, or move it "
     "away and add the runs again"),
    ("malformed", "it is damaged: restore a copy, or rescue what is there with "
     "`sqlite3 FILE .recover`"),
    ("locked", f"others have been writing for {_PATIENCE_S} s: repeat later"),
)  # fmt: skip


def _make_folder(folder: Path) -> None:
    """Where a history is kept; git ignores one that is made in a user's repository."""
    is_new = not folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    if is_new and folder.name == OWN_FOLDER:
        (folder / ".gitignore").write_text("*\n")


@contextmanager
def errors(name: str) -> Iterator[None]:
    """Turns the errors of a database's driver into HistoryError with what to do."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        words = str(error.orig if isinstance(error, DBAPIError) else error).strip()
        advice = next((advice for sign, advice in _ADVICE if sign in words), "")
        raise HistoryError(f"{name}: {words}{': ' if advice else ''}{advice}") from error


def connect(text: str, create: bool) -> Engine:
    """The engine for a URL or a path. HistoryError for what is neither, or is not there."""
    try:
        url = make_url(text if "://" in text else f"sqlite:///{text}")
        if url.get_backend_name() != "sqlite":
            return create_engine(url, poolclass=NullPool)
    except (ArgumentError, ImportError, NoSuchModuleError) as error:
        raise HistoryError(
            f"--db: {error}; give a path, or a URL such as postgresql+psycopg://HOST/NAME "
            f"(pip install {extra('postgresql')})"
        ) from error
    file = Path(str(url.database))
    if not create and not file.exists():
        raise HistoryError(f"{file}: there is no history yet: reports history add FILE")
    if create:
        _make_folder(file.parent)
    engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": _PATIENCE_S})
    event.listen(engine, "connect", _sqlite_connected)
    event.listen(engine, "begin", _sqlite_begins)
    return engine


def reading(engine: Engine) -> AbstractContextManager[Connection]:
    """A connection for one transaction that only reads, and waits for no writer."""
    return engine.execution_options(reading=True).connect()


def _sqlite_connected(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions are SQLAlchemy's, below
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    # Of a file the first writer sets it for all; who comes second, or may not write, does without.
    with suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA journal_mode = WAL")


def _sqlite_begins(connection: Connection) -> None:
    # A writer waits for others before it begins, not halfway through.
    only_reads = connection.get_execution_options().get("reading", False)
    connection.exec_driver_sql("BEGIN" if only_reads else "BEGIN IMMEDIATE")
