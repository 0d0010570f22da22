"""reports history bisect: on a small repository whose harness is a script."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from history_runs import RUN, checkpoint

from reports.__main__ import main

CHECKPOINT = "norm#0"

# Reads the commit's error from a file; a word instead is a status, "none" leaves no results.
HARNESS = """#!{python}
import json, sys
from pathlib import Path
words = sys.argv[1:]
error = Path("error").read_text().strip()
if error == "none":
    print("first\\nno such checkpoint", file=sys.stderr)
    sys.exit(5)
assert Path(words[words.index("--fixture") + 1]).is_dir() and Path("built").exists()
line = {line!r}
line["checkpoint"] = words[words.index("--checkpoint") + 1]
line["device"] = words[words.index("--device") + 1]
if error.isalpha():
    line["status"] = error
else:
    line["outputs"][0]["statistics"]["E_T"] = float(error)
Path(words[words.index("--json") + 1]).write_text(
    json.dumps({run!r}) + "\\n" + json.dumps(line) + "\\n"
)
"""


@dataclass(frozen=True)
class Repository:
    root: Path
    commits: list[str]

    def git(self, *words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", "-C", str(self.root), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, error: str, build: str = "touch built") -> None:
        (self.root / "error").write_text(error)
        (self.root / "build.sh").write_text(build)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", f"error {error} \x1b[31m")
        self.commits.append(self.git("rev-parse", "HEAD"))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    root = tmp_path / "repository"
    (root / "fixtures").mkdir(parents=True)
    (root / "fixtures" / "a").touch()
    script = root / "harness"
    script.write_text(HARNESS.format(python=sys.executable, line=checkpoint(), run=RUN))
    script.chmod(0o755)
    made = Repository(root, [])
    made.git("init", "-q", "-b", "main")
    monkeypatch.chdir(root)
    return made


def bisect(repository: Repository, *words: str) -> int:
    return main([
        "history", "bisect", "--good", repository.commits[0], "--bad", repository.commits[-1],
        "--checkpoint", CHECKPOINT, "--device", "cpu", "--harness", "harness",
        "--build", "sh build.sh", *words,
    ])  # fmt: skip


def first_bad(said: str) -> str:
    return next(line.split()[2] for line in said.splitlines() if line.startswith("first bad:"))


@pytest.mark.parametrize(
    ("errors", "guilty"),
    [
        (["1e-3", "1e-3", "1.1e-3", "1e-3", "2e-3", "2.1e-3", "1.9e-3"], 4),
        (["1e-3", "1e-3", "fail", "fail", "fail"], 2),
        (["0", "0", "0", "1e-9", "1e-9"], 3),
        (["1e-3", "1e-3", "none", "1e-3", "2e-3", "unsupported", "2e-3"], 4),
    ],
)
def test_the_first_bad_commit_is_found(
    errors: list[str], guilty: int, repository: Repository, capfd: pytest.CaptureFixture[str]
) -> None:
    for error in errors:
        repository.commit(error)
    assert bisect(repository) == 0
    said = capfd.readouterr()
    assert repository.commits[guilty].startswith(first_bad(said.out))
    assert "\x1b" not in said.out + said.err


def test_the_working_tree_and_a_bisection_of_ones_own_stay(
    repository: Repository, capfd: pytest.CaptureFixture[str]
) -> None:
    for error in ("1e-3", "1e-3", "4e-3", "4e-3"):
        repository.commit(error)
    repository.git("bisect", "start", "HEAD", repository.commits[0])
    (repository.root / "error").write_text("not committed")
    (repository.root / "new").touch()
    before = [repository.git(*words) for words in (("status",), ("bisect", "log"), ("diff",))]
    assert bisect(repository) == 0
    assert repository.commits[2].startswith(first_bad(capfd.readouterr().out))
    assert before == [
        repository.git(*words) for words in (("status",), ("bisect", "log"), ("diff",))
    ]
    assert len(repository.git("worktree", "list").splitlines()) == 1


def test_commits_that_do_not_build_are_skipped_and_named_where_they_decide(
    repository: Repository, capfd: pytest.CaptureFixture[str]
) -> None:
    repository.commit("1e-3")
    repository.commit("1e-3", "exit 3")
    repository.commit("1e-3")
    repository.commit("4e-3", "exit 3")
    repository.commit("4e-3")
    assert bisect(repository) == 1
    said = capfd.readouterr()
    assert "does not build (exit code 3)" in said.err
    listed = said.out.split("cannot be measured")[1]
    assert [commit for commit in repository.commits if commit[:7] in listed] == (
        repository.commits[3:]
    )


@pytest.mark.parametrize(
    ("errors", "words", "said"),
    [
        (["1e-3", "1.2e-3"], [], "less than 1.5x, name a --threshold between them"),
        (["1e-3", "2e-3"], ["--threshold", "3e-3"], "does not tell them apart"),
        (["fail", "2e-3"], [], "does not tell them apart"),
        (["none", "2e-3"], [], "left no results (exit code 5): no such checkpoint"),
        (["1e-3", "2e-3"], ["--build", "false"], "cannot be measured: does not build"),
        (["1e-3", "2e-3"], ["--harness", "nosuch"], "cannot be measured: does not run"),
        (["1e-3", "2e-3"], ["--good", "nosuch"], "git rev-parse --verify"),
        (["1e-3", "2e-3"], ["--recording", "other"], "has no such checkpoint"),
    ],
)
def test_what_cannot_be_told_apart_is_no_answer(
    errors: list[str], words: list[str], said: str,
    repository: Repository, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for error in errors:
        repository.commit(error)
    assert bisect(repository, *words) == 3
    assert said in capfd.readouterr().err
    assert len(repository.git("worktree", "list").splitlines()) == 1


def test_a_threshold_of_ones_own_decides(
    repository: Repository, capfd: pytest.CaptureFixture[str]
) -> None:
    for error in ("1e-3", "1.1e-3", "1.2e-3", "1.3e-3"):
        repository.commit(error)
    assert bisect(repository, "--threshold", "1.15e-3") == 0
    assert repository.commits[2].startswith(first_bad(capfd.readouterr().out))
