"""Which commit a run is kept with: what --commit takes, and what it refuses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from history_runs import checkpoint, write

from reports.__main__ import main
from reports.history.sources import commit_of, find, measured_commit
from reports.history.store import Store

UNKNOWN = "abcdef0123" * 4


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a repository with one commit."""
    monkeypatch.chdir(tmp_path)
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *words], check=True)
    return tmp_path


def add(folder: Path, *words: str) -> int:
    results = write(folder / "r.jsonl", checkpoint())
    try:
        return main(["history", "--db", str(folder / "h.sqlite"), "add", str(results), *words])
    except SystemExit as ended:
        return int(str(ended.code))


def test_a_name_of_git_s_becomes_its_commit(repository: Path) -> None:
    head = commit_of("HEAD", repository)
    assert [add(repository, "--commit", name) for name in ("HEAD", head[:7], head)] == [0, 0, 0]
    assert {run.commit for run in Store(str(repository / "h.sqlite")).runs()} == {head}


def test_what_begins_a_kept_commit_may_begin_one_of_git_s_too(repository: Path) -> None:
    head = commit_of("HEAD", repository)
    elsewhere = head[:8] + "0" * 32
    assert add(repository, "--commit", elsewhere) == 0
    store = Store(str(repository / "h.sqlite"))
    assert [run.provenance.commit for run in find(head[:6], lambda: store)] == [elsewhere]
    assert add(repository, "--commit", head) == 0
    for name in (head[:6], "HEAD"):
        assert [run.provenance.commit for run in find(name, lambda: store)] == [head]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nonsense", "--commit: 'nonsense' is no commit: give 7 to 40 hexadecimal digits"),
        ("abcdef", "is no commit"),
        (UNKNOWN + "0", "is no commit"),
        (UNKNOWN[:10], "git knows no commit abcdef0123 in "),
    ],
)
def test_what_is_no_commit_is_refused(
    name: str, said: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["add"], ["accept", "b.jsonl"]):
        results = str(write(repository / "r.jsonl", checkpoint()))
        with pytest.raises(SystemExit) as ended:
            main(
                ["history", "--db", "h.sqlite", command[0], results, *command[1:], "--commit", name]
            )
        assert (ended.value.code, said in capsys.readouterr().err) == (2, True)
    assert not (repository / "h.sqlite").exists()


def test_all_digits_of_a_commit_that_is_not_here_are_kept(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add(repository, "--commit", UNKNOWN) == 0
    assert f"git does not know {UNKNOWN} here" in capsys.readouterr().err
    assert [run.commit for run in Store(str(repository / "h.sqlite")).runs()] == [UNKNOWN]


def test_without_a_repository_some_digits_do(tmp_path: Path) -> None:
    assert measured_commit("ABCDEF0", tmp_path) == "abcdef0"
    with pytest.raises(ValueError, match="is no commit"):
        measured_commit("HEAD", tmp_path)
