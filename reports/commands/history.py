"""reports history: keep runs, compare them, draw them, find the commit that made one worse."""

from __future__ import annotations

import argparse
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from . import Commands, UsageError

if TYPE_CHECKING:
    from ..history.baseline import Offer
    from ..history.store import Store

_SIDES = "a file of harness --json or several (A,B), a baseline, a commit, #RUN or last"
_FOUND = "only ids in which this regular expression is found"
_BUILD = "cmake --preset cpu && cmake --build --preset cpu --target harness"
_EXIT = "exit code of compare: 0 no worse, 1 worse, 2 usage, 3 bad input, 4 nothing comparable"


def add(commands: Commands) -> None:
    """Declares the command and its own commands."""
    parser = commands.add_parser("history", help="accuracy over commits", epilog=_EXIT)
    parser.add_argument("--db", help="a path or SQLAlchemy URL; default: $PLUMB_HISTORY, else "
                        ".plumbline/history.sqlite in the repository")  # fmt: skip
    own = parser.add_subparsers(dest="what", required=True)
    keep = _command(own, "add", _add, "keep runs")
    keep.add_argument("results", type=Path, nargs="+", help="files of harness --json, baselines")
    keep.add_argument(
        "--commit",
        default="",
        help="that was measured: its digits, or as git calls it; default: HEAD",
    )
    keep.add_argument("--dirty", action=argparse.BooleanOptionalAction, help="it was changed")
    _command(own, "list", _list, "the runs that are kept")
    show = _command(own, "show", _show, "one run's figures")
    show.add_argument("which", help=_SIDES)
    show.add_argument("--checkpoint", type=_expression, default="", help=_FOUND)
    plot = _command(own, "plot", _plot, "draw accuracy over commits, per block")
    plot.add_argument("--out", type=Path, required=True, help="a .svg or .png")
    plot.add_argument("--device", default="", help="default: the only one")
    plot.add_argument("--block", default="", help="some blocks: A,B")
    compare = _command(own, "compare", _compare, "what got worse between two runs")
    compare.add_argument("old", help=_SIDES)
    compare.add_argument("new", help="likewise")
    compare.add_argument("--best", default="", help="the best accepted: compared with, too")
    compare.add_argument("--all", action="store_true", help="leave nothing out")
    compare.add_argument("--strict", action="store_true",
                         help="what vanished or is not comparable counts as worse")  # fmt: skip
    accept = _command(own, "accept", _accept, "take new figures into a baseline")
    accept.add_argument("new", help=_SIDES)
    accept.add_argument("baseline", type=Path)
    accept.add_argument(
        "--commit",
        default="",
        help="that was measured: its digits, or as git calls it; default: HEAD",
    )
    accept.add_argument("--reason", default="", help="takes worse figures too, and is recorded")
    accept.add_argument("--checkpoint", type=_expression, default="", help=_FOUND)
    accept.add_argument("--drop-gone", action="store_true", help="with --reason: forget what the "
                        "run lacks")  # fmt: skip
    _add_bisect(_command(own, "bisect", _bisect, "the commit that made a checkpoint worse"))


def _command(commands: Commands, name: str, work: object, words: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=words)
    parser.set_defaults(run=work)
    return parser


def _expression(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error


def _add_bisect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--good", required=True, help="a commit")
    parser.add_argument("--bad", required=True, help="a later one")
    parser.add_argument("--checkpoint", required=True, help="its id")
    parser.add_argument("--recording", default="", help="where several have the checkpoint")
    parser.add_argument("--device", required=True)
    parser.add_argument("--fixture", type=Path, help="default: fixtures of the working tree")
    parser.add_argument("--threshold", type=float, help="E_T above which a commit is bad; default: "
                        "halfway between good and bad")  # fmt: skip
    parser.add_argument("--build", default=_BUILD, help=f"default: {_BUILD}")
    parser.add_argument(
        "--harness", type=Path, default=Path("build/cpu/bin/harness"), help="that it builds"
    )


def _store(options: argparse.Namespace, create: bool = False) -> Store:
    from ..history.sources import database
    from ..history.store import Store

    return Store(options.db or database(), create)


def _measured(options: argparse.Namespace) -> str:
    """The commit that --commit names, or nothing."""
    from ..history.sources import commit_of, measured_commit

    if not options.commit:
        return ""
    try:
        commit = measured_commit(options.commit)
    except ValueError as error:
        raise UsageError(f"--commit: {error}") from error
    if not commit_of(commit):
        print(f"reports: git does not know {commit} here: kept without its date", file=sys.stderr)
    return commit


def _add(options: argparse.Namespace) -> int:
    from ..history.sources import at_commit, read_file

    commit = _measured(options)
    read = [run for path in options.results for run in read_file(path)]
    store = _store(options, create=True)
    for run in read:
        run = at_commit(run, commit, options.dirty)
        number, new = store.add(run)
        words = "" if new else ", was there already"
        cut = "" if run.complete else ", cut short"
        commit = run.provenance.commit[:10] or "no commit"
        print(f"#{number}  {commit}  {len(run.checkpoints)} checkpoints{cut}{words}")
    return 0


def _list(options: argparse.Namespace) -> int:
    from ..terminal import printable

    for run in _store(options).runs():
        cut = "" if run.complete else "  cut short"
        words = f"#{run.id:<4} {run.label:<11}  {run.started:<20}  {run.checkpoints:>6} checkpoints"
        print(printable(f"{words}  {'; '.join(run.devices)}{cut}"))
    return 0


def _show(options: argparse.Namespace) -> int:
    from ..history.sources import find
    from ..history.words import place
    from ..terminal import printable

    for run in find(options.which, lambda: _store(options)):
        source = run.provenance
        print(printable(f"{run.name}: {source.command}"))
        print(printable(f"{dict(source.environment)} {'; '.join(source.devices)}"))
        print("status   repeats  E_T       block  recording  checkpoint  device dtype")
        for key in sorted(run.checkpoints):
            checkpoint = run.checkpoints[key]
            if options.checkpoint.search(key.checkpoint):
                repeats = {"D0": "yes", "D1": "no"}.get(checkpoint.determinism, "-")
                words = f"{checkpoint.status:<8} {repeats:<8} {checkpoint.error:<9.3g}"
                print(f"{printable(words)} {printable(checkpoint.block)}  {place(key)}")
                for bug, margin in (checkpoint.margins or {}).items():
                    print(printable(f"           {margin:.3g} of the limit with the bug: {bug}"))
    return 0


def _plot(options: argparse.Namespace) -> int:
    from ..history import plot, trend

    if options.out.suffix not in (".svg", ".png"):
        raise UsageError(f"--out {options.out}: name a .svg or a .png")
    store = _store(options)
    blocks = set(filter(None, options.block.split(",")))
    course = trend.follow(store, options.device, blocks)
    plot.draw(course, options.out)
    print(f"{options.out}: {len(course.blocks)} blocks over {len(course.commits)} commits")
    return 0


def _compare(options: argparse.Namespace) -> int:
    from ..history.compare import Kind, compare
    from ..history.sources import find
    from ..history.words import in_words

    new = find(options.new, lambda: _store(options))
    code = 0
    for name in filter(None, (options.old, options.best)):
        found = compare(find(name, lambda: _store(options)), new)
        print(in_words(found, options.all), end="")
        unproved = found.vanished or found.of(Kind.NOT_COMPARABLE)
        if found.got_worse or (options.strict and unproved):
            code = 1
        elif not found.comparable:
            code = code or 4
    return code


def _accept(options: argparse.Namespace) -> int:
    from ..files import locked
    from ..history import baseline
    from ..history.sources import at_commit, author, commit_of, find

    commit = _measured(options)
    if options.reason and not options.reason.strip():
        raise UsageError("--reason is blank: say why worse figures are right")
    if options.drop_gone and not options.reason:
        raise UsageError("--drop-gone needs --reason")
    with locked(options.baseline):
        before = baseline.read(options.baseline)
        found = find(options.new, lambda: _store(options))
        runs = [at_commit(run, commit) for run in found]
        offered = baseline.offer(before, runs, options.checkpoint)
        acceptance = None
        if options.reason:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            acceptance = baseline.Acceptance(now, author(), commit_of("HEAD"), options.reason)
        baseline.write(baseline.accept(before, offered, acceptance, options.drop_gone))
    counts = [len(offered.better), len(offered.larger), len(offered.refused)]
    taken = sum(counts) if acceptance else counts[0]
    dropped = len(offered.gone) if acceptance and options.drop_gone else 0
    print(
        f"{options.baseline}: {taken} checkpoints taken"
        + (f", {dropped} that the run lacks forgotten" if dropped else "")
        + f", {len(before.checkpoints)} were there"
    )
    return 0 if acceptance else _left(offered)


def _left(offered: Offer) -> int:
    """Says what was not taken without a reason; the exit code, 1 as compare's for what is worse."""
    from ..history.words import place, trend_in_words

    for key, (_, why) in sorted(offered.refused.items())[:20]:
        print(f"  not taken, {why}: {place(key)}")
    for trend in offered.found.trends:
        if trend.worse:
            print(f"  {trend_in_words(trend)}")
    if offered.larger:
        print(f"{len(offered.larger)} are larger within what is allowed: the smaller figures stay")
    if offered.refused:
        print(f"{len(offered.refused)} were not taken: --reason TEXT takes all there is")
    return 1 if offered.refused or offered.found.got_worse else 0


def _bisect(options: argparse.Namespace) -> int:
    from ..history import bisect
    from ..history.sources import repository

    root = repository()
    plan = bisect.Plan(
        checkpoint=options.checkpoint,
        recording=options.recording,
        device=options.device,
        fixture=(options.fixture or root / "fixtures").resolve(),
        build=options.build,
        harness=options.harness,
        threshold=options.threshold,
    )
    return bisect.find(root, options.good, options.bad, plan)
