"""The history's tables, and how a database of an older schema becomes one of this.

Opening never loses anything: a database of a newer schema is refused, one of an older schema is
copied before it is changed, and creating and migrating are one transaction each.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy import text as sql

VERSION = 2
_CREATING = 7_305_467  # PostgreSQL's advisory lock while tables are made or changed

tables = MetaData()

version_of = Table("plumbline_schema", tables, Column("version", Integer, nullable=False))

runs = Table(
    "runs",
    tables,
    Column("id", Integer, primary_key=True),
    Column("content", Text, nullable=False, unique=True, comment="SHA-256 of what was added"),
    Column("name", Text, nullable=False),
    Column("added", Text, nullable=False),
    Column("started", Text, nullable=False),
    Column("complete", Boolean, nullable=False),
    Column("command", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("compiler", Text, nullable=False),
    Column("environment", Text, nullable=False, comment="JSON"),
    Column("devices", Text, nullable=False, comment="JSON; the drivers among the words"),
    Column("commit_id", Text, nullable=False),
    Column("committed", Text, nullable=False),
    Column("dirty", Boolean),
    Index("runs_commit", "commit_id"),
)

checkpoints = Table(
    "checkpoints",
    tables,
    Column("id", Integer, primary_key=True),
    Column("run", ForeignKey("runs.id"), nullable=False),
    Column("recording", Text, nullable=False),
    Column("checkpoint", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("dtype", Text, nullable=False),
    Column("fused", Boolean, nullable=False),
    Column("block", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("contract", Text, nullable=False),
    Column("error", Float, comment="largest E_T; NULL: none, or not a number"),
    Column("impl", Text, nullable=False, comment="JSON"),
    Column("outputs", Text, nullable=False, comment="JSON: all figures of every output"),
    Column("blind_to", Text, nullable=False, comment="JSON"),
    Column("output_hash", Text, nullable=False),
    Column("golden_hash", Text, nullable=False),
    Column("determinism", Text, nullable=False, comment="'': unknown"),
    Column("margins", Text, nullable=False, comment="JSON by known bug; null: not measured"),
    UniqueConstraint("run", "recording", "checkpoint", "device", "dtype", "fused"),
)


def _add_determinism_and_margins(connection: Connection) -> None:
    for column in ("determinism TEXT NOT NULL DEFAULT ''", "margins TEXT NOT NULL DEFAULT 'null'"):
        connection.execute(sql(f"ALTER TABLE checkpoints ADD COLUMN {column}"))


# From each older schema to the next: tables are changed through the connection alone.
MIGRATIONS: Mapping[int, Callable[[Connection], None]] = {1: _add_determinism_and_margins}


class HistoryError(ValueError):
    """What keeps a history from being used; the text names it and says what to do."""


def prepare(engine: Engine, create: bool) -> str:
    """Makes the tables where there are none, or brings them to this schema; says what was done.

    Raises HistoryError where the database is of a newer schema, or no history.
    """
    name = engine.url.render_as_string(hide_password=True)
    with engine.execution_options(reading=True).connect() as connection:
        version = _version(connection, name)
    if version == VERSION:
        return ""
    if version is None and not create:
        raise HistoryError(f"{name}: there is no history yet: reports history add FILE")
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sql("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATING})
        version = _version(connection, name)  # another process may have been faster
        if version is None:
            tables.create_all(connection)
            connection.execute(insert(version_of).values(version=VERSION))
            return f"{name}: made"
        if version == VERSION:
            return ""
        backup = _back_up(engine, connection, version)
        for step in range(version, VERSION):
            MIGRATIONS[step](connection)
        connection.execute(update(version_of).values(version=VERSION))
    return f"{name}: migrated from schema {version} to {VERSION}; the old one is {backup}"


def _version(connection: Connection, name: str) -> int | None:
    """The schema's; None: an empty database. HistoryError: a newer one, or no history."""
    found = inspect(connection).get_table_names()
    if version_of.name in found:
        version = int(connection.execute(select(version_of.c.version)).scalar_one())
        if version > VERSION:
            raise HistoryError(
                f"{name}: has schema {version}, this program knows {VERSION}: update Plumbline; "
                "nothing was changed"
            )
        return version
    if found:
        raise HistoryError(
            f"{name}: has tables ({', '.join(sorted(found)[:3])}) but none of a history: "
            "name another database with --db"
        )
    return None


def _back_up(engine: Engine, connection: Connection, version: int) -> str:
    """Copies the database: SQLite's file next to it, other servers' tables within it."""
    if engine.dialect.name == "sqlite":
        file = Path(str(engine.url.database))
        backup = file.with_name(f"{file.name}.schema{version}")
        with closing(sqlite3.connect(file)) as old, closing(sqlite3.connect(backup)) as new:
            old.backup(new)
        return str(backup)
    quote = engine.dialect.identifier_preparer.quote
    names = [n for n in inspect(connection).get_table_names() if "_schema_" not in n]
    for name in names:
        copy = f"{name}_schema_{version}"
        connection.execute(sql(f"CREATE TABLE {quote(copy)} AS SELECT * FROM {quote(name)}"))
    return f"in the tables *_schema_{version}"
