"""Finds the commit that made a checkpoint worse: git bisect, judged by the checkpoint's E_T.

All happens in a temporary worktree: the user's files, branch and index are not touched, nor is a
bisection of theirs. Recordings are those of the working tree, so that every commit answers the same
question.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..terminal import printable
from .results import read_results
from .rules import GROWTH

_SKIP = 125  # git's: this commit cannot be judged
_MEASURED = ("pass", "fail", "nondeterministic", "blind")
_FOLDER = Path(__file__).parents[__name__.count(".")]  # with the package


@dataclass(frozen=True)
class Plan:
    """What is built, run and judged at every commit."""

    checkpoint: str
    device: str
    fixture: Path
    build: str
    harness: Path  # within the worktree, or absolute
    recording: str = ""
    threshold: float | None = None  # E_T above which a commit is bad


@dataclass(frozen=True)
class Figure:
    """What a commit gives; `status` says why where there is no error."""

    status: str
    error: float = math.nan

    @property
    def measured(self) -> bool:
        return self.status in _MEASURED

    def __str__(self) -> str:
        return printable(f"{self.status} {self.error:.3g}" if self.measured else self.status)


def find(root: Path, good: str, bad: str, plan: Plan) -> int:
    """Prints the first bad commit and every figure on the way; 1 where it could be several.

    Raises ValueError where good and bad do not differ, or one cannot be measured.
    """
    commits = {name: _git(root, "rev-parse", "--verify", f"{name}^{{commit}}")
               for name in (good, bad)}  # fmt: skip
    with _worktree(root, commits[bad]) as tree:
        plan = _with_threshold(tree, plan, commits[good], commits[bad])
        _git(tree, "bisect", "start", commits[bad], commits[good])
        script = json.dumps(asdict(plan), default=str)
        step = [sys.executable, "-P", "-m", __name__, script]
        done = subprocess.run(
            ["git", "bisect", "run", *step], cwd=tree, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(_FOLDER)},
        )  # fmt: skip
        if done.returncode != 0:
            skipped = re.findall(r"^[0-9a-f]{40}$", done.stdout, re.MULTILINE)
            print("no commit can be named: those that could be the first cannot be measured")
            for commit in skipped:
                print(f"  {_describe(tree, commit)}")
            return 1
        print(f"first bad: {_describe(tree, _git(tree, 'rev-parse', 'refs/bisect/bad'))}")
    return 0


def _with_threshold(tree: Path, plan: Plan, good: str, bad: str) -> Plan:
    """The plan with a threshold that tells good from bad, both of which are measured first."""
    figures = []
    for commit in (good, bad):
        _git(tree, "checkout", "--quiet", "--detach", commit)
        figures.append(_measured(tree, plan))
        print(f"{figures[-1]!s:<24} {_describe(tree, commit)}", flush=True)
    (before, now), threshold = figures, plan.threshold
    for commit, figure in zip((good, bad), figures, strict=True):
        if not figure.measured:
            raise ValueError(f"{commit[:10]}: cannot be measured: {figure}")
    if threshold is None:
        threshold = math.sqrt(before.error * now.error) if now.error >= before.error else math.inf
        if not now.error > GROWTH * before.error and not _failed(now):
            raise ValueError(
                f"{plan.checkpoint}: {before} at good, {now} at bad: less than {GROWTH}x, "
                "name a --threshold between them"
            )
    if _is_bad(before, threshold) or not _is_bad(now, threshold):
        raise ValueError(
            f"{plan.checkpoint}: {before} at good, {now} at bad: a threshold of {threshold:.3g} "
            "does not tell them apart"
        )
    return replace(plan, threshold=threshold)


def _failed(figure: Figure) -> bool:
    return figure.status in ("fail", "nondeterministic")


def _is_bad(figure: Figure, threshold: float) -> bool:
    return _failed(figure) or not figure.error <= threshold


def _measured(tree: Path, plan: Plan) -> Figure:
    """Builds what is checked out and runs the checkpoint. Raises ValueError for an unclear one."""
    print(f"building {_describe(tree, 'HEAD')}", file=sys.stderr, flush=True)
    built = subprocess.run(plan.build, shell=True, cwd=tree, capture_output=True)
    if built.returncode != 0:
        return _without_figure("does not build", built)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.jsonl"
        command = [
            str(tree / plan.harness), "--device", plan.device, "--fixture", str(plan.fixture),
            "--checkpoint", plan.checkpoint, "--repeat", "1", "--json", str(results),
        ]  # fmt: skip
        try:
            done = subprocess.run(command, cwd=tree, capture_output=True)
        except OSError as error:
            return Figure(f"does not run: {error.strerror}")
        if not results.is_file():
            return _without_figure("left no results", done)
        try:
            runs = read_results(results)
        except ValueError as error:
            return Figure(f"left other results: {error}")
    found = {
        key: checkpoint
        for key, checkpoint in runs[-1].checkpoints.items()
        if key.checkpoint == plan.checkpoint and plan.recording in ("", key.recording)
    }
    if len(found) > 1:
        places = ", ".join(sorted({key.recording for key in found}))
        raise ValueError(f"{plan.checkpoint}: is in several recordings: {places}: --recording NAME")
    if not found:
        return Figure("has no such checkpoint")
    checkpoint = next(iter(found.values()))
    return Figure(checkpoint.status, checkpoint.error)


def _without_figure(what: str, done: subprocess.CompletedProcess[bytes]) -> Figure:
    """What a program did not do, with its last words."""
    said = done.stderr.decode(errors="replace").strip().splitlines()
    last = f": {said[-1][:200]}" if said else ""
    return Figure(f"{what} (exit code {done.returncode}){last}")


def _step(script: str) -> int:
    """What git bisect asks at every commit: 0 good, 1 bad, 125 not to be judged."""
    values = json.loads(script)
    plan = Plan(
        **{**values, "fixture": Path(values["fixture"]), "harness": Path(values["harness"])}
    )
    tree = Path.cwd()
    figure = _measured(tree, plan)
    print(f"{figure!s:<24} {_describe(tree, 'HEAD')}", file=sys.stderr, flush=True)
    if not figure.measured or plan.threshold is None:
        return _SKIP
    return int(_is_bad(figure, plan.threshold))


def _describe(tree: Path, commit: str) -> str:
    return printable(_git(tree, "show", "-s", "--format=%h %s", commit))


@contextmanager
def _worktree(root: Path, commit: str) -> Iterator[Path]:
    """A checkout of a commit of its own, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="plumbline-bisect-") as folder:
        tree = Path(folder) / "tree"
        _git(root, "worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            _git(root, "worktree", "remove", "--force", str(tree))


def _git(folder: Path, *words: str) -> str:
    """What git prints. ValueError with git's own words where it fails."""
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(f"{shlex.join(['git', *words])}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(_step(sys.argv[1]))
