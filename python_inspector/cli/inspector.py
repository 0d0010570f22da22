"""The `inspector` command. Heavy imports happen inside the commands, so that --help is instant."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import __version__, interrupts
from ..aliases import PACKAGE
from ..errors import PlanError, UnknownModelError, UsageError
from ..exit_codes import BAD_INPUT, INTERRUPTED, USAGE
from ..heap import keep_freed_memory
from ..usage import Parser, dtype
from .attribute import add_attribute
from .check import add_check, add_problem
from .judge import add_formats
from .mcp import add_mcp
from .record import add_record, quiet_transformers


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code, one of exit_codes."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["bench"]:  # it has a parser of its own
        return _bench(words[1:])
    options = build_parser().parse_args(words)
    options.command_line = shlex.join(["inspector", *words])
    keep_freed_memory()
    with interrupts.remembered():
        return int(options.run(options)) if options.debug else _run(options, words)


def _run(options: argparse.Namespace, words: Sequence[str]) -> int:
    try:
        return int(options.run(options))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, Exception) as error:
        if isinstance(error, KeyboardInterrupt) or interrupts.came():
            text = f"interrupted; {_notes(error) or 'nothing was written'}"
            print(f"inspector: {text}", file=sys.stderr)
            return INTERRUPTED
        text = _needs(words, error) or _one_line(error)
        print("inspector: " + "; ".join(filter(None, [text, _notes(error)])), file=sys.stderr)
        return _exit_code(error)


def _exit_code(error: Exception) -> int:
    usage = (UsageError, PlanError, UnknownModelError, re.error)
    return USAGE if isinstance(error, usage) else BAD_INPUT


def _needs(words: Sequence[str], error: Exception) -> str | None:
    """What to install, where a package is missing that is no part of the core."""
    if not isinstance(error, ImportError):
        return None
    from ..needs import advice_for

    command = next((word for word in words if not word.startswith("-")), "")
    return advice_for(f"inspector {command}".rstrip(), error)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    known = type(error).__module__.startswith((PACKAGE, "plumbline")) or isinstance(error, OSError)
    if known and text:
        return text
    return f"{type(error).__name__}: {text} (--debug shows where)"


def _notes(error: BaseException) -> str:
    """What became of the work, as whoever did it says."""
    return "; ".join(getattr(error, "__notes__", ()))


def build_parser() -> argparse.ArgumentParser:
    """All commands and options."""
    parser = Parser(prog="inspector", description="Records model runs and checks recordings.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("--debug", action="store_true", help="show a traceback on errors")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_record(commands.add_parser("record", help="run a model and record it"))
    add_check(commands.add_parser("check", help="judge a kernel against any torch code"))
    add_problem(commands.add_parser("problem", help="what a reference's inputs cannot show"))
    add_formats(commands.add_parser("judge", help="judge a candidate in a benchmark's form"))
    add_mcp(commands.add_parser("mcp", help="the judge as tools for agents, on stdio"))
    validate = commands.add_parser("validate", help="check a recording, or all below a folder")
    validate.add_argument("folder", type=Path, nargs="+")
    validate.set_defaults(run=_validate)
    show = commands.add_parser("show", help="summarise a recording")
    show.add_argument("folder", type=Path, help="a folder, or a name: llama-a1/decode-bf16")
    show.add_argument("--checkpoint", metavar="REGEX", help="checkpoints in detail")
    show.set_defaults(run=_show)
    rows = commands.add_parser("coverage", help="what recordings vary of each block, and what none")
    rows.add_argument("folder", type=Path, nargs="+", help="recordings, or folders of them")
    rows.add_argument(
        "--thin", action="store_true", help="rows that few checkpoints, or none, vary"
    )
    rows.set_defaults(run=_coverage)
    tiny = commands.add_parser("tiny", help="the built-in tiny models")
    tiny.add_argument("--list", action="store_true", help="list them (the default)")
    tiny.set_defaults(run=_tiny)
    fixtures = commands.add_parser("fixtures", help="make the committed recordings again")
    fixtures.add_argument("--out", type=Path, default=Path("fixtures"))
    fixtures.add_argument("--only", metavar="REGEX", help="cases whose name matches")
    fixtures.add_argument("--check", action="store_true", help="compare instead of writing")
    fixtures.add_argument("--list", action="store_true", help="list the cases")
    fixtures.set_defaults(run=_fixtures)
    _add_ops(commands.add_parser("ops", help="record single operations, as torch has them"))
    add_attribute(commands.add_parser("attribute", help="what each quantised weight costs"))
    _add_bugs(commands.add_parser("bugs", help="how many planted bugs a verdict kills"))
    _add_layer(commands.add_parser("layer", help="record one layer at published size"))
    text = commands.add_parser("generate", help="continue a text with the native harness")
    text.add_argument("--model", type=Path, required=True, help="folder, tokenizer included")
    text.add_argument("--prompt", required=True, metavar="TEXT")
    text.add_argument("options", nargs="*", metavar="-- OPTION", help="of harness generate")
    of_harness = ("--max-new-tokens", "--temperature", "--top-k", "--top-p", "--device")
    text.meant = {name: f"-- {name}, which harness generate takes" for name in of_harness}
    text.set_defaults(run=_generate)
    _add_map(commands.add_parser("map", help="which module of an engine is which recorded one"))
    _add_architectures(commands.add_parser("architectures", help="record and check them all"))
    commands.add_parser("bench", help="what recording (or: bench check, verify) costs")
    return parser


def _add_map(parser: argparse.ArgumentParser) -> None:
    from ..engines.map_command import add_map

    add_map(parser)


def _add_architectures(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_architectures)
    parser.add_argument("names", nargs="*", metavar="MODEL_TYPE", help="only these")
    parser.add_argument("--list", action="store_true", help="their names, nothing is run")
    parser.add_argument("--markdown", action="store_true", help="the table as Markdown")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many at once")


def _add_ops(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_ops)
    parser.description = (
        "Records calls of torch's operations: odd sizes, one element, broadcast operands; values "
        "that are huge, denormal, NaN and infinite. `harness --fixture DIR/ops-f32 --device D` "
        "holds a device's own ops to them."
    )
    parser.add_argument("names", nargs="*", metavar="OP", help="only these (harness support --ops)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the values")
    parser.add_argument("--device", default="cpu", help="a torch device: cpu, cuda, cuda:1")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")


def _add_bugs(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_bugs)
    parser.description = (
        "Plants bugs in every kind of call of tiny models, in float32 and bf16, and says how many "
        "a verdict kills; correct variants of the same calls must pass."
    )
    parser.add_argument("names", nargs="*", metavar="MODEL_TYPE", help="only these architectures")
    parser.add_argument("--tokens", type=int, default=19, metavar="N")
    parser.add_argument("--seed", type=int, default=5, help="of weights and ids")
    parser.add_argument("--most", type=int, default=40, metavar="N", help="bugs of a call")
    parser.add_argument("--kept", type=Path, metavar="DIR", help="for results, which are reused")
    parser.add_argument("--markdown", action="store_true", help="the tables as a page")


def _add_layer(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_layer)
    parser.description = (
        "Records one decoder layer of a published size and the blocks in it, each alone, on "
        "generated weights and inputs; of the outputs chosen rows and a sketch are stored."
    )
    parser.add_argument("--shape", required=True, help="llama3-8b, gemma2-2b, zamba2-1.2b, ...")
    parser.add_argument("--dtype", type=dtype, choices=("f32", "bf16", "f16"), default="bf16")
    parser.add_argument("--attn", choices=("eager", "sdpa"), default="eager")
    parser.add_argument("--tokens", type=int, default=4096, metavar="N")
    parser.add_argument("--device", default="cpu", help="a torch device: cpu, cuda, cuda:1")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")


def _validate(options: argparse.Namespace) -> int:
    from ..format.named_recordings import recording_folder
    from ..format.validate import find_recordings, unchecked, validate

    bad = 0
    folders = map(recording_folder, options.folder)
    recordings = [path for folder in folders for path in find_recordings(folder)]
    for path in recordings:
        findings = validate(path)
        bad += bool(findings)
        print(f"{'BAD' if findings else 'ok '}  {path}")
        for text in findings:
            print(f"     {text}")
    print(f"{len(recordings)} recordings, {bad} bad")
    if reason := unchecked():
        print(f"inspector: {reason}", file=sys.stderr)
    return BAD_INPUT if bad else 0


def _show(options: argparse.Namespace) -> int:
    from ..cases.parts import complete, is_of_parts
    from ..format.named_recordings import recording_folder
    from ..format.show import show

    folder = recording_folder(options.folder)
    recordings = complete(folder) if is_of_parts(folder) else [folder]
    print("\n\n".join(show(path, options.checkpoint) for path in recordings))
    return 0


def _coverage(options: argparse.Namespace) -> int:
    from ..format.coverage import coverage, table

    print("\n".join(table(coverage(options.folder), thin=options.thin)))
    return 0


def _tiny(options: argparse.Namespace) -> int:
    from ..models.tiny import ALIASES, MODELS

    for name, model in MODELS.items():
        print(f"tiny:{name:22} {model.about}")
    for alias, name in ALIASES.items():
        print(f"tiny:{alias:22} the same as tiny:{name}")
    return 0


def _fixtures(options: argparse.Namespace) -> int:
    from ..cases import committed

    quiet_transformers()
    if options.list:
        for case in committed.select(options.only):
            print(f"{case.name:36} {case.about}")
        return 0
    if options.check:
        return BAD_INPUT if committed.check(options.out, options.only) else 0
    committed.generate(options.out, options.only)
    return 0


def _layer(options: argparse.Namespace) -> int:
    import torch

    from ..cases import run
    from ..cases.border_cases import full_layer
    from ..format.show import format_bytes
    from ..recorder.where import Where

    quiet_transformers()
    if options.tokens < 2:
        raise UsageError(f"--tokens {options.tokens}, expected at least 2")
    if torch.device(options.device).type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device {options.device}, but this torch sees no GPU")
    case = full_layer(options.shape, options.dtype, options.tokens, options.device, options.attn)
    with run.progress_bar(len(case.steps), "step") as (advance, progress):
        where = Where(options.out, command=options.command_line, progress=progress)
        summary = case.record(where, advance)
    print(
        f"{summary.path}: {summary.checkpoints} checkpoints, {format_bytes(summary.total_bytes)} "
        f"(JSON {format_bytes(summary.json_bytes)})"
    )
    print(f"verify it: harness --fixture {shlex.quote(str(options.out))}")
    return 0


def _generate(options: argparse.Namespace) -> int:
    from ..cases.generate import generate

    print(options.prompt, end="", flush=True)
    for text in generate(options.model, options.prompt, options.options):
        print(text, end="", flush=True)
    print()
    return 0


def _architectures(options: argparse.Namespace) -> int:
    from ..cases import architectures

    quiet_transformers()
    complete = architectures.main(
        options.names, options.jobs, markdown=options.markdown, listed=options.list
    )
    return 0 if complete else BAD_INPUT


def _ops(options: argparse.Namespace) -> int:
    from ..cases.op_recordings import record_ops

    count, left_out = record_ops(options.out, options.names, options.seed, options.device)
    for text in left_out:
        print(f"left out: {text}")
    print(f"{count} calls in {options.out}; {len(left_out)} left out")
    return 0


def _bugs(options: argparse.Namespace) -> int:
    from ..cases import bug_page, bug_survey
    from ..models.any_tiny import configurations

    quiet_transformers()
    known = sorted(configurations())
    if unknown := sorted(set(options.names) - set(known)):
        raise UsageError(f"no architecture {unknown[0]!r}; `inspector architectures --list`")
    for name, least in (("tokens", 2), ("most", 1)):
        if (value := getattr(options, name)) < least:
            raise UsageError(f"--{name} {value}, expected at least {least}")
    names = options.names or known
    found = list(
        bug_survey.surveys(names, options.tokens, options.seed, options.most, options.kept)
    )
    print("\n".join((bug_page.markdown if options.markdown else bug_page.text)(found)))
    return BAD_INPUT if any(survey.alarms for survey in found) else 0


def _bench(words: Sequence[str]) -> int:
    from ..cases import bench_check, bench_verify
    from ..recorder import bench

    others = {"verify": bench_verify, "check": bench_check}
    if words and words[0] in others:
        return others[words[0]].main(words[1:])
    return bench.main(words)


if __name__ == "__main__":
    sys.exit(main())
