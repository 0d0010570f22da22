"""Keeps runs in a database: SQLite in a file by default, any that SQLAlchemy knows for a team."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, func, insert, select
from sqlalchemy.exc import IntegrityError

from .database import connect, errors, reading
from .figures import (
    Checkpoint,
    Key,
    Provenance,
    Run,
    numbers,
    output_from_json,
    output_to_json,
    to_json,
)
from .schema import HistoryError, checkpoints, prepare, runs


@dataclass(frozen=True)
class Stored:
    """What `list` says of a run."""

    id: int
    name: str
    added: str
    started: str
    commit: str
    committed: str
    dirty: bool | None
    complete: bool
    devices: tuple[str, ...]
    checkpoints: int

    @property
    def label(self) -> str:
        return self.commit[:10] + ("*" if self.dirty else "") if self.commit else f"#{self.id}"


class Error(NamedTuple):
    """A checkpoint's error; comparable where `basis`, recording and contract, is the same."""

    block: str
    status: str
    basis: tuple[str, str]
    value: float  # the largest E_T


class Store:
    """A history in a database. Every method is one transaction and raises HistoryError."""

    def __init__(
        self, url: str, create: bool = False, say: Callable[[str], None] | None = None
    ) -> None:
        """Opens it; `url` may be a path. create: makes it where there is none."""
        self._engine = connect(url, create)
        self.name = self._engine.url.render_as_string(hide_password=True)
        with errors(self.name):
            done = prepare(self._engine, create)
        if done:
            (say or _to_stderr)(done)

    def add(self, run: Run) -> tuple[int, bool]:
        """The run's number, and whether it is new: the same run is kept once."""
        content = _content(run)
        with errors(self.name):
            try:
                with self._engine.begin() as connection:
                    known = _known(connection, content)
                    return (known, False) if known else (_insert(connection, run, content), True)
            except IntegrityError:  # another writer added the same in between
                with self._engine.begin() as connection:
                    known = _known(connection, content)
                if not known:
                    raise
                return known, False

    def runs(self) -> list[Stored]:
        """All runs, the oldest commit first."""
        count = select(func.count()).where(checkpoints.c.run == runs.c.id).scalar_subquery()
        query = select(runs, count.label("number"))
        with errors(self.name), reading(self._engine) as connection:
            found = [_stored(row) for row in connection.execute(query)]
        return sorted(found, key=lambda run: (_instant(run.committed or run.started), run.id))

    def find(self, name: str) -> list[int]:
        """The runs that a text names: "last", "#7", or the beginning of a commit.

        Of a commit with several runs all are found, as repetitions. HistoryError: none, or several
        commits.
        """
        known = self.runs()
        if name == "last":
            found = known[-1:]
        elif name.startswith("#") and name[1:].isdecimal():
            found = [run for run in known if run.id == int(name[1:])]
        else:
            found = [run for run in known if run.commit and run.commit.startswith(name)]
        if not found:
            raise HistoryError(f"{self.name}: no run {name!r}; reports history list shows them")
        commits = {run.commit for run in found}
        if len(commits) > 1:
            raise HistoryError(f"{self.name}: {name!r} begins {len(commits)} commits: give more")
        return [run.id for run in found]

    def errors(self, number: int, device: str) -> dict[Key, Error]:
        """The errors alone of a run on a device."""
        c = checkpoints.c
        columns = (*(c[name] for name in Key._fields), c.block, c.status, c.golden_hash, c.contract,
                   c.error)  # fmt: skip
        query = select(*columns).where(c.run == number, c.device == device)
        with errors(self.name), reading(self._engine) as connection:
            return {
                _key(row): Error(
                    row.block, row.status, (row.golden_hash, row.contract),
                    math.nan if row.error is None else row.error,
                )
                for row in connection.execute(query)
            }  # fmt: skip

    def load(self, ids: Sequence[int]) -> list[Run]:
        """The runs, whole."""
        loaded = []
        with errors(self.name), reading(self._engine) as connection:
            for number in ids:
                row = connection.execute(select(runs).where(runs.c.id == number)).one()
                found = connection.execute(select(checkpoints).where(checkpoints.c.run == number))
                try:
                    loaded.append(_run(row, {_key(r): _checkpoint(r) for r in found}))
                except (KeyError, TypeError, ValueError) as error:
                    raise HistoryError(f"{self.name}: run #{number} is damaged: {error}") from error
        return loaded


def _to_stderr(words: str) -> None:
    print(f"reports: {words}", file=sys.stderr)


def _content(run: Run) -> str:
    """A hash over all that is kept of a run."""
    digest = hashlib.sha256(repr(run.provenance).encode())
    for key in sorted(run.checkpoints):
        checkpoint = run.checkpoints[key]
        digest.update(repr((key, checkpoint)).encode())
        later = (checkpoint.determinism, checkpoint.margins)  # than the first histories
        if later != ("", None):
            digest.update(repr(later).encode())
    return digest.hexdigest()


def _known(connection: Connection, content: str) -> int | None:
    found = connection.execute(select(runs.c.id).where(runs.c.content == content))
    return found.scalar_one_or_none()


def _insert(connection: Connection, run: Run, content: str) -> int:
    source = run.provenance
    values = {
        "content": content,
        "name": run.name.encode(errors="replace").decode(),
        "added": datetime.now(UTC).isoformat(timespec="seconds"),
        "started": source.started,
        "complete": run.complete,
        "command": source.command,
        "version": source.version,
        "compiler": source.environment.get("compiler", ""),
        "environment": json.dumps(dict(source.environment)),
        "devices": json.dumps(source.devices),
        "commit_id": source.commit,
        "committed": source.committed,
        "dirty": source.dirty,
    }
    query = insert(runs).values(values).returning(runs.c.id)
    number = int(connection.execute(query).scalar_one())
    rows = [_row(number, key, checkpoint) for key, checkpoint in run.checkpoints.items()]
    connection.execute(insert(checkpoints), rows)
    return number


def _row(run: int, key: Key, checkpoint: Checkpoint) -> dict[str, object]:
    error, margins = checkpoint.error, checkpoint.margins
    outputs = {
        name: {**output_to_json(output), "details": output.details}
        for name, output in checkpoint.outputs.items()
    }
    return {
        "run": run,
        **key._asdict(),
        "block": checkpoint.block,
        "status": checkpoint.status,
        "contract": checkpoint.contract,
        "error": None if math.isnan(error) else error,
        "impl": json.dumps(checkpoint.impl),
        "outputs": json.dumps(outputs),
        "blind_to": json.dumps(checkpoint.blind_to),
        "output_hash": checkpoint.bits,
        "golden_hash": checkpoint.golden,
        "determinism": checkpoint.determinism,
        "margins": json.dumps(margins and {bug: to_json(x) for bug, x in margins.items()}),
    }


def _stored(row: Row[Any]) -> Stored:
    return Stored(
        row.id, row.name, row.added, row.started, row.commit_id, row.committed, row.dirty,
        row.complete, tuple(json.loads(row.devices)), row.number,
    )  # fmt: skip


def _instant(time: str) -> datetime:
    """An ISO 8601 time; an unknown one is the oldest."""
    try:
        instant = datetime.fromisoformat(time)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def _run(row: Row[Any], found: dict[Key, Checkpoint]) -> Run:
    provenance = Provenance(
        started=row.started,
        command=row.command,
        version=row.version,
        environment=json.loads(row.environment),
        devices=tuple(json.loads(row.devices)),
        commit=row.commit_id,
        committed=row.committed,
        dirty=row.dirty,
    )
    name = f"#{row.id} ({row.commit_id[:10]})" if row.commit_id else f"#{row.id}"
    return Run(name, provenance, found, row.complete)


def _key(row: Row[Any]) -> Key:
    return Key(row.recording, row.checkpoint, row.device, row.dtype, row.fused)


def _checkpoint(row: Row[Any]) -> Checkpoint:
    outputs, margins = json.loads(row.outputs), json.loads(row.margins)
    return Checkpoint(
        block=row.block,
        status=row.status,
        contract=row.contract,
        impl=tuple(json.loads(row.impl)),
        outputs={name: output_from_json(output) for name, output in outputs.items()},
        bits=row.output_hash,
        golden=row.golden_hash,
        blind_to=tuple(json.loads(row.blind_to)),
        determinism=row.determinism,
        margins=None if margins is None else numbers(margins),
    )
