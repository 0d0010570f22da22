"""The history in SQLite and in PostgreSQL: nothing is lost, and every refusal says what to do."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import sqlalchemy
from history_runs import checkpoint, output, write
from postgresql import server
from sqlalchemy import Connection
from sqlalchemy import text as sql

from reports.__main__ import main
from reports.history import database, schema
from reports.history.figures import Run
from reports.history.results import read_results
from reports.history.schema import HistoryError
from reports.history.store import Store

ROOT = Path(__file__).parents[2]
TO_SCHEMA_1 = (
    "ALTER TABLE checkpoints DROP COLUMN determinism",
    "ALTER TABLE checkpoints DROP COLUMN margins",
    "UPDATE plumbline_schema SET version = 1",
)


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    with server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return str(tmp_path / "history.sqlite")
    template = request.getfixturevalue("postgresql")
    name = f"t{abs(hash(tmp_path))}"
    engine = sqlalchemy.create_engine(template.format("postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sql(f"CREATE DATABASE {name}"))
    engine.dispose()
    return str(template.format(name))


def run(tmp_path: Path, name: str = "run", checkpoints: int = 3, **source: object) -> Run:
    lines = [checkpoint(f"c{i}", error=1e-3 * (i + 1)) for i in range(checkpoints)]
    path = write(tmp_path / f"{name}.jsonl", *lines, command=f"harness {name}", **source)
    return read_results(path)[0]


def change(url: str, *statements: str) -> None:
    engine = sqlalchemy.create_engine(url if "://" in url else f"sqlite:///{url}")
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(sql(statement))
    engine.dispose()


def test_a_run_comes_back_as_it_was(url: str, tmp_path: Path) -> None:
    odd = output("nan", gain="-inf", conformance={"differ": 3}, families={"token x head": "inf"})
    known = {"determinism": "D1", "margins": {"softcap left out": "inf", "window": 0.1 + 0.2}}
    name = "'; DROP TABLE runs; --\t\u00e9%s"
    path = write(tmp_path / "odd.jsonl", checkpoint(name, odd, **known))
    for written in (run(tmp_path), read_results(path)[0]):
        store = Store(url, create=True)
        number, new = store.add(written)
        (read,) = store.load([number])
        assert new and repr(read.checkpoints) == repr(_without_zeros(written).checkpoints)
        for key, found in written.checkpoints.items():
            back = read.checkpoints[key]
            assert (back.determinism, back.margins) == (found.determinism, found.margins)
        assert read.provenance == written.provenance and read.complete
    assert [stored.checkpoints for stored in store.runs()] == [3, 1]


def _without_zeros(run: Run) -> Run:
    """Zeros behind a histogram are not kept."""
    for found in run.checkpoints.values():
        for out in found.outputs.values():
            counts = list(out.octaves or ())
            while counts and not counts[-1]:
                counts.pop()
            object.__setattr__(out, "octaves", tuple(counts))
    return run


def test_the_same_run_is_kept_once(url: str, tmp_path: Path) -> None:
    store = Store(url, create=True)
    assert [store.add(run(tmp_path)) for _ in range(2)] == [(1, True), (1, False)]
    assert store.add(run(tmp_path, "other")) == (2, True)


def test_runs_are_found_by_number_commit_and_place(url: str, tmp_path: Path) -> None:
    files = [str(write(tmp_path / f"{n}.jsonl", checkpoint(), command=n)) for n in ("a", "b", "c")]
    for file, commit in zip(files, ("abc1", "abc1", "abd2"), strict=True):
        assert main(["history", "--db", url, "add", file, "--commit", commit * 10, "--dirty"]) == 0
    store = Store(url)
    assert store.find("abc") == [1, 2] and store.find("#3") == store.find("last") == [3]
    assert all(stored.dirty for stored in store.runs())
    for name, words in (("ab", "begins 2 commits"), ("#9", "no run '#9'")):
        with pytest.raises(HistoryError, match=words):
            store.find(name)
    assert main(["history", "--db", url, "compare", "abc1", "abd2"]) == 0
    for command in (["list"], ["show", "#1"]):
        assert main(["history", "--db", url, *command]) == 0


def test_show_has_determinism_and_margins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {"determinism": "D1", "margins": {"softcap left out": "inf", "window + 1": 0.5}}
    lines = [checkpoint("a", **known), checkpoint("b"), checkpoint("c", determinism="not measured")]
    url, file = str(tmp_path / "history.sqlite"), write(tmp_path / "r.jsonl", *lines)
    assert main(["history", "--db", url, "add", str(file)]) == 0
    for which in ("#1", str(file)):
        capsys.readouterr()
        assert main(["history", "--db", url, "show", which]) == 0
        shown = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
        assert [row[:3] for row in shown] == [
            ["status", "repeats", "E_T"], ["pass", "no", "0.001"], ["inf", "of", "the"],
            ["0.5", "of", "the"], ["pass", "yes", "0.001"], ["pass", "-", "0.001"],
        ]  # fmt: skip
        assert shown[3][3:] == ["limit", "with", "the", "bug:", "window", "+", "1"]


WRITER = """
import sys
from pathlib import Path
from reports.history.results import read_results
from reports.history.store import Store
url, folder, name, runs = sys.argv[1:]
for i in range(int(runs)):
    (read,) = read_results(Path(folder) / f"{name}-{i}.jsonl")
    Store(url, create=True, say=lambda words: None).add(read)
    print(i, flush=True)
"""


def writer(url: str, folder: Path, name: str, runs: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, url, str(folder), name, str(runs)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_eight_writers_at_once_lose_nothing(url: str, tmp_path: Path) -> None:
    """From no database on; one run is everybody's, and is kept once."""
    for name in range(8):
        for i in range(3):
            run(tmp_path, f"{name}-{i}", 40)
        (tmp_path / f"{name}-3.jsonl").write_bytes((tmp_path / "0-0.jsonl").read_bytes())
    writers = [writer(url, tmp_path, str(name), 4) for name in range(8)]
    assert [one.wait(timeout=120) for one in writers] == [0] * 8
    stored = Store(url).runs()
    assert [found.checkpoints for found in stored] == [40] * 24
    assert not list(tmp_path.glob("*.schema*"))  # it was not taken for an older one


def test_a_killed_writer_leaves_whole_runs_and_all_it_had_finished(
    url: str, tmp_path: Path
) -> None:
    for i in range(16):
        run(tmp_path, f"k-{i}", 200)
    Store(url, create=True)
    chance = random.Random(7)
    finished = 0
    for _ in range(4):
        one = writer(url, tmp_path, "k", 16)
        assert one.stdout is not None
        said = one.stdout.readline()  # it has begun
        time.sleep(chance.random() * 0.15)
        one.send_signal(signal.SIGKILL)
        said += one.stdout.read()
        one.wait()
        finished = max(finished, len(said.splitlines()))
        found = Store(url).runs()
        assert len(found) >= finished and all(stored.checkpoints == 200 for stored in found)
    assert finished < 16
    assert writer(url, tmp_path, "k", 16).wait(timeout=120) == 0
    assert [stored.checkpoints for stored in Store(url).runs()] == [200] * 16


def test_a_newer_schema_is_refused_and_left_alone(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Store(url, create=True).add(run(tmp_path))
    change(url, "UPDATE plumbline_schema SET version = 99")
    assert main(["history", "--db", url, "add", str(tmp_path / "run.jsonl")]) == 3
    said = capsys.readouterr().err
    assert "has schema 99, this program knows 2: update Plumbline; nothing was changed" in said
    change(url, "UPDATE plumbline_schema SET version = 2")
    assert len(Store(url).runs()) == 1


def test_an_older_schema_is_copied_and_migrated(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(url, create=True).add(run(tmp_path))
    change(url, *TO_SCHEMA_1)
    right = schema.MIGRATIONS[1]

    def fails(connection: Connection) -> None:
        right(connection)
        raise HistoryError("power cut")

    with monkeypatch.context() as patch, pytest.raises(HistoryError, match="power cut"):
        patch.setattr(schema, "MIGRATIONS", {1: fails})
        Store(url)
    said: list[str] = []
    assert [found.checkpoints for found in Store(url, say=said.append).runs()] == [3]
    assert "migrated from schema 1 to 2" in said[0] and not Store(url, say=said.append).runs()[1:]
    assert len(said) == 1
    if "://" in url:
        change(url, "SELECT content FROM runs_schema_1")
    else:
        copy = f"{url}.schema1"
        assert copy in said[0]
        change(copy, "SELECT content FROM runs", "SELECT id FROM checkpoints")
        with pytest.raises(sqlalchemy.exc.OperationalError, match="margins"):
            change(copy, "SELECT margins FROM checkpoints")


def test_what_an_older_schema_held_is_the_same_run(url: str, tmp_path: Path) -> None:
    lines = [checkpoint(f"c{i}", error=1e-3 * (i + 1)) for i in range(3)]
    for line in lines:
        del line["determinism"], line["margins"]
    (old,) = read_results(write(tmp_path / "old.jsonl", *lines))
    Store(url, create=True).add(old)
    content = "1a10a398d46dc63e6525e64aa6a2d2b0153d2967b5fcf25183937759537a246d"  # as it was then
    change(url, *TO_SCHEMA_1, f"UPDATE runs SET content = '{content}'")
    store = Store(url)
    (read,) = store.load([1])
    assert {(c.determinism, c.margins) for c in read.checkpoints.values()} == {("", None)}
    assert store.add(old) == (1, False)
    path = write(tmp_path / "now.jsonl", checkpoint("c0", determinism="D0", margins={}))
    number, new = store.add(read_results(path)[0])
    (known,) = store.load([number])[0].checkpoints.values()
    assert new and (known.determinism, known.margins) == ("D0", {})


def test_what_is_no_history_is_left_alone(url: str) -> None:
    with pytest.raises(HistoryError, match="there is no history yet: reports history add FILE"):
        Store(url)
    change(url, "CREATE TABLE other (x INTEGER)")
    for create in (False, True):
        with pytest.raises(HistoryError, match=r"has tables \(other\) but none of a history"):
            Store(url, create)


@pytest.mark.parametrize("text", ["nosuch://host/name", "postgresql+nodriver://h/n", "://"])
def test_a_url_that_is_none_says_how_they_look(text: str) -> None:
    with pytest.raises(HistoryError, match=r"postgresql\+psycopg://HOST/NAME"):
        Store(text)


def test_no_password_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    url = "postgresql+psycopg://me:secret@/name?host=/nonexistent"
    assert main(["history", "--db", url, "list"]) == 3
    said = capsys.readouterr().err
    assert "me:***@" in said and "secret" not in said


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)


def test_a_damaged_database_is_named_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    Store(str(path), create=True).add(run(tmp_path))
    damaged(path)
    with pytest.raises(HistoryError, match=r"history\.sqlite: .*malformed.*restore a copy"):
        Store(str(path), create=True).runs()
    path.write_text("something else " * 100)
    with pytest.raises(HistoryError, match=r"history\.sqlite: .*not a database.*restore a copy"):
        Store(str(path), create=True)
    assert path.read_text().startswith("something else")


def test_reading_waits_for_no_writer_and_writing_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "history.sqlite"
    Store(str(path), create=True).add(run(tmp_path))
    monkeypatch.setattr(database, "_PATIENCE_S", 0.1)
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert len(Store(str(path)).runs()) == 1
        with pytest.raises(HistoryError, match="database is locked: others have been writing"):
            Store(str(path), create=True).add(run(tmp_path, "other"))


def test_a_run_gets_the_commit_that_is_checked_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept in the repository unless the environment says where."""
    files = [str(write(tmp_path / f"{n}.jsonl", checkpoint(), command=n)) for n in ("a", "b")]
    root = tmp_path / "repository"
    (root / "inner").mkdir(parents=True)

    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", "-C", str(root), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    (root / "file").write_text("1")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    monkeypatch.delenv("PLUMB_HISTORY", raising=False)
    monkeypatch.chdir(root / "inner")
    assert main(["history", "add", files[0]]) == 0
    (root / "file").write_text("2")
    assert main(["history", "add", files[1]]) == 0
    assert (root / ".plumbline" / ".gitignore").read_text() == "*\n"
    seen = subprocess.run(["git", "status", "--short"], cwd=root, text=True, capture_output=True)
    assert ".plumbline" not in seen.stdout, "git sees the history"
    stored = Store(str(root / ".plumbline" / "history.sqlite")).runs()
    assert [(one.commit, one.dirty) for one in stored] == [
        (git("rev-parse", "HEAD"), False), (git("rev-parse", "HEAD"), True),
    ]  # fmt: skip
    assert main(["history", "show", "HEAD"]) == 0
    monkeypatch.setenv("PLUMB_HISTORY", str(tmp_path / "other.sqlite"))
    assert main(["history", "add", files[0]]) == 0 and (tmp_path / "other.sqlite").exists()


LIMITED = """
import resource, sys
from reports.__main__ import main
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.exit(main(sys.argv[2:]))
"""


def limited(limit: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that cannot make a file longer than the limit, as on a full disk."""
    command = [sys.executable, "-c", LIMITED, str(limit), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    store = Store(str(path), create=True)
    store.add(run(tmp_path))
    big = tmp_path / "big.jsonl"
    run(tmp_path, "big", 2000)
    size = path.stat().st_size
    for limit in (size // 2, size, size + 200_000):
        done = limited(limit, "history", "--db", str(path), "add", str(big))
        assert done.returncode == 3 and "nothing of this was written" in done.stderr, done.stderr
        assert [stored.checkpoints for stored in store.runs()] == [3]
    assert limited(2**30, "history", "--db", str(path), "add", str(big)).returncode == 0
    assert [stored.checkpoints for stored in store.runs()] == [3, 2000]


def as_nobody(folder: Path, *words: str) -> tuple[int, str]:
    """Runs a command without root's rights, for whom no file is read-only; code and output."""
    out = folder / "out"
    out.touch()
    child = os.fork()
    if child == 0:
        with out.open("w") as file, redirect_stdout(file), redirect_stderr(file):
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            code = main(list(words))
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), out.read_text()


def test_a_read_only_database_is_read_and_not_written(open_folder: Path, tmp_path: Path) -> None:
    path = open_folder / "history.sqlite"
    Store(str(path), create=True).add(run(tmp_path))
    path.chmod(0o444)
    command = ["history", "--db", str(path)]
    assert main([*command, "list"]) == 0  # imports what the child cannot reach
    source = write(open_folder / "new.jsonl", checkpoint("new"))
    code, said = as_nobody(open_folder, *command, "add", str(source), "--commit", "abc1234")
    assert code == 3
    assert f"{path}: attempt to write a readonly database: it is read-only" in said
    code, said = as_nobody(open_folder, *command, "list")
    assert (code, said.count("3 checkpoints")) == (0, 1), said
