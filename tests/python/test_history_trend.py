"""reports history plot: courses over ten synthetic commits, drawn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from history_runs import checkpoint, output, write

from reports.__main__ import main
from reports.history.results import read_results
from reports.history.sources import at_commit
from reports.history.store import Store
from reports.history.trend import follow

COMMITS = 10
BLOCKS = ("rms_norm", "sdpa", "linear", "rotary", "glu_mlp", "softmax", "logits<&$x", "scan", "add")


def factor(block: int, member: int, commit: int) -> float:
    """What a checkpoint's error is multiplied by: every block has a fate of its own."""
    if block == 0:
        return 2.0 if commit >= 4 else 1.0
    if block == 1:
        return 1.07**commit
    if block == 2:
        return 0.4 if commit >= 6 else 1.0
    if block == 3 and member == 0:
        return 3.0 if 3 <= commit < 7 else 1.0
    if block in (4, 5):
        return 1 + 0.15 * math.sin(commit * (block + member))
    return 1.0


def filled(tmp_path: Path, commits: int = COMMITS) -> Store:
    store = Store(str(tmp_path / "history.sqlite"), create=True, say=lambda _: None)
    for commit in range(commits):
        lines = [
            line(block, member, factor(block, member, commit), commit)
            for block in range(len(BLOCKS))
            for member in range(4)
        ]
        path = write(tmp_path / "run.jsonl", *lines, started=f"2026-01-{commit + 1:02}T00:00:00Z")
        store.add(at_commit(read_results(path)[0], f"{commit:02x}f00dbeef"))
    return store


def line(block: int, member: int, factor: float, commit: int) -> dict[str, Any]:
    failed = block == 6 and commit == 5
    return checkpoint(
        f"c{member}", output(10 ** -(1 + member) * factor), recording=f"r{block}",
        block=BLOCKS[block], status="fail" if failed else "pass",
    )  # fmt: skip


def test_a_course_is_what_the_errors_were_multiplied_by(tmp_path: Path) -> None:
    courses = follow(filled(tmp_path))
    assert courses.device == "cpu" and courses.commits[-1] == "09f00dbeef"
    for block in (0, 1, 2):
        expected = [factor(block, 0, commit) for commit in range(COMMITS)]
        assert courses.blocks[BLOCKS[block]].mean == pytest.approx(expected)
    rotary = courses.blocks["rotary"]
    assert rotary.worst == pytest.approx([1, 1, 1, 3, 3, 3, 3, 1, 1, 1])
    assert rotary.mean[3] == pytest.approx(3 ** (1 / 4))
    assert courses.blocks["logits<&$x"].failed == [0, 0, 0, 0, 0, 4, 0, 0, 0, 0]
    assert list(follow(Store(str(tmp_path / "history.sqlite")), "cpu", {"sdpa"}).blocks) == ["sdpa"]


def test_another_recording_and_new_checkpoints_do_not_move_a_course(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "history.sqlite"), create=True, say=lambda _: None)
    runs = [
        [checkpoint("a", error=1e-3)],
        [checkpoint("a", error=1.0, golden_sha256="c" * 64), checkpoint("new", error=5.0)],
        [checkpoint("a", error=2.0, golden_sha256="c" * 64), checkpoint("new", error=5.0)],
        [checkpoint("other", error=1e-9)],
        [checkpoint("other", error=0.0)],
    ]
    for number, lines in enumerate(runs):
        path = write(tmp_path / "run.jsonl", *lines, started=f"2026-01-0{number + 1}T00:00:00Z")
        store.add(read_results(path)[0])
    course = follow(store).blocks["rms_norm"]
    root = math.sqrt(2)
    assert course.mean == pytest.approx([1, 1, root, root, root])
    assert course.worst == pytest.approx([1, 1, 2, 1, 1])


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_trend_over_ten_commits_is_drawn(suffix: str, tmp_path: Path) -> None:
    filled(tmp_path)
    out = tmp_path / f"trend.{suffix}"
    command = ["history", "--db", str(tmp_path / "history.sqlite"), "plot", "--out", str(out)]
    assert main(command) == 0
    first = out.read_bytes()
    assert main(command) == 0
    assert out.read_bytes() == first
    if suffix == "png":
        assert first.startswith(b"\x89PNG")
        return
    words = " ".join(ElementTree.fromstring(first).itertext())
    assert all(name in words for name in ("rms_norm", "logits<&$x", "2.00x", "09f00dbeef"))
    assert "Moved by less than a percent: add, scan" in words


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--out", "x.gif"], 2, "name a .svg or a .png"),
        (["--out", "x.svg", "--device", "tpu"], 3, "no run on tpu"),
        (["--out", "x.svg", "--block", "nosuch"], 3, "no block of nosuch: there are add, glu_mlp"),
        (["--out", "/nonexistent/x.svg"], 3, "/nonexistent/x.svg: cannot be written"),
    ],
)
def test_what_cannot_be_drawn_says_why(
    words: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path, 2)
    command = ["history", "--db", str(tmp_path / "history.sqlite"), "plot", *words]
    try:
        ended = main(command)
    except SystemExit as error:
        ended = int(str(error.code))
    assert (ended, said in capsys.readouterr().err) == (code, True)
