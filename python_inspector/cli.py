"""The `inspector` command. Heavy imports happen inside the commands, so that --help is instant."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from python_inspector import __version__
from python_inspector.errors import PlanError, UnknownModelError, UsageError

if TYPE_CHECKING:
    import torch

    from python_inspector.cases.run import Source
    from python_inspector.models.inputs import RunPlan

USAGE_ERROR, BAD_INPUT, INTERRUPTED = 2, 3, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code: 0 ok, 2 usage, 3 bad input, 130 interrupted."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["bench"]:  # it has a parser of its own
        return _bench(words[1:])
    options = build_parser().parse_args(words)
    options.command_line = shlex.join(["inspector", *words])
    if options.debug:
        return int(options.run(options))
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        print("inspector: interrupted, nothing was written", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        print(f"inspector: {_needs(words, error) or _one_line(error)}", file=sys.stderr)
        return _exit_code(error)


def _exit_code(error: Exception) -> int:
    usage = (UsageError, PlanError, UnknownModelError, re.error)
    return USAGE_ERROR if isinstance(error, usage) else BAD_INPUT


def _needs(words: Sequence[str], error: Exception) -> str | None:
    """What to install, where a package is missing that is no part of the core."""
    if not isinstance(error, ImportError):
        return None
    from python_inspector.needs import advice_for

    command = next((word for word in words if not word.startswith("-")), "")
    return advice_for(f"inspector {command}".rstrip(), error)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    known = type(error).__module__.startswith("python_inspector") or isinstance(error, OSError)
    if known and text:
        return text
    return f"{type(error).__name__}: {text} (--debug shows where)"


def build_parser() -> argparse.ArgumentParser:
    """All commands and options."""
    parser = argparse.ArgumentParser(
        prog="inspector", description="Records model runs and checks recordings."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("--debug", action="store_true", help="show a traceback on errors")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_record(commands.add_parser("record", help="run a model and record it"))
    validate = commands.add_parser("validate", help="check a recording, or all below a folder")
    validate.add_argument("folder", type=Path, nargs="+")
    validate.set_defaults(run=_validate)
    show = commands.add_parser("show", help="summarise a recording")
    show.add_argument("folder", type=Path, help="a folder, or a name: llama-a1/decode-bf16")
    show.add_argument("--checkpoint", metavar="REGEX", help="checkpoints in detail")
    show.set_defaults(run=_show)
    tiny = commands.add_parser("tiny", help="the built-in tiny models")
    tiny.add_argument("--list", action="store_true", help="list them (the default)")
    tiny.set_defaults(run=_tiny)
    fixtures = commands.add_parser("fixtures", help="make the committed recordings again")
    fixtures.add_argument("--out", type=Path, default=Path("fixtures"))
    fixtures.add_argument("--only", metavar="REGEX", help="cases whose name matches")
    fixtures.add_argument("--check", action="store_true", help="compare instead of writing")
    fixtures.add_argument("--list", action="store_true", help="list the cases")
    fixtures.set_defaults(run=_fixtures)
    _add_bugs(commands.add_parser("bugs", help="how many planted bugs a verdict kills"))
    _add_layer(commands.add_parser("layer", help="record one layer at published size"))
    text = commands.add_parser("generate", help="continue a text with the native harness")
    text.add_argument("--model", type=Path, required=True, help="folder, tokenizer included")
    text.add_argument("--prompt", required=True, metavar="TEXT")
    text.add_argument("options", nargs="*", metavar="-- OPTION", help="of harness generate")
    text.set_defaults(run=_generate)
    _add_map(commands.add_parser("map", help="which module of an engine is which recorded one"))
    _add_architectures(commands.add_parser("architectures", help="record and check them all"))
    commands.add_parser("bench", help="what recording (or: bench verify) costs")
    return parser


def _add_map(parser: argparse.ArgumentParser) -> None:
    from python_inspector.engines.map_command import add_map

    add_map(parser)


def _add_record(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_record)
    model = parser.add_argument_group("model")
    model.add_argument("--model", required=True, help="hub id, local path or tiny:NAME")
    model.add_argument("--revision", help="of a model on the hub")
    model.add_argument("--dtype", choices=("auto", "f32", "bf16", "f16", "f64"), default="auto")
    model.add_argument("--attn", choices=("eager", "sdpa"), default="eager")
    model.add_argument("--seed", type=int, default=1, help="of tiny weights and random ids")
    model.add_argument(
        "--device-map",
        metavar="auto|JSON",
        help="spread it over devices, cpu and disk by accelerate",
    )
    run = parser.add_argument_group("run")
    ids = run.add_mutually_exclusive_group()
    ids.add_argument("--prompt", action="append", metavar="TEXT", help="a row; may be repeated")
    ids.add_argument(
        "--token-ids", action="append", type=_integers, metavar="1,2,3", help="a row; likewise"
    )
    ids.add_argument("--tokens", type=int, metavar="N", help="N random ids, padding included")
    run.add_argument("--batch", type=int, metavar="B", help="rows of random ids (default 1)")
    run.add_argument("--steps", type=int, default=0, metavar="N", help="decode steps afterwards")
    run.add_argument("--left-pad", type=_integers, metavar="3,0", help="padding of each row")
    run.add_argument("--chunks", type=_integers, metavar="5,10", help="prefill in chunks")
    caches = ("none", "dynamic", "static")
    run.add_argument("--cache", choices=caches, help="default: dynamic if needed")
    run.add_argument(
        "--max-length", type=int, metavar="N", help="slots of a static cache (default: as needed)"
    )
    run.add_argument("--logits-to-keep", type=int, default=0, metavar="N", help="last N per call")
    what = parser.add_argument_group("what is recorded")
    what.add_argument("--blocks", type=_names, metavar="A,B", help="these kinds of blocks only")
    what.add_argument("--layers", type=_layers, metavar="0,1|0-3", help="these layers only")
    what.add_argument("--masked-rows", action="store_true", help="judge rows without a key, too")
    what.add_argument("--no-internals", action="store_true", help="no single torch operations")
    what.add_argument("--chained", action="store_true", help="the whole model in float64, too")
    what.add_argument(
        "--spread",
        type=int,
        default=16,
        metavar="N",
        help="simulated correct kernels (default 16, 0 for none: faster)",
    )
    what.add_argument(
        "--bugs",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="bugs planted in calls without a native block, and other roundings (small calls)",
    )
    oracle = what.add_mutually_exclusive_group()
    oracle.add_argument("--no-oracle", action="store_true", help="no float64 reference")
    oracle.add_argument("--leaves", action="store_true", help="no composite blocks: faster")
    what.add_argument("--force", action="store_true", help="record what a guard would refuse")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="shared file beside DIR")
    parser.add_argument("--name", help="of the recording (default: last two folders of DIR)")


def _add_architectures(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_architectures)
    parser.add_argument("names", nargs="*", metavar="MODEL_TYPE", help="only these")
    parser.add_argument("--list", action="store_true", help="their names, nothing is run")
    parser.add_argument("--markdown", action="store_true", help="the table as Markdown")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many at once")


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
    parser.add_argument("--kept", type=Path, metavar="DIR", help="results lie there, are reused")
    parser.add_argument("--markdown", action="store_true", help="the tables as a page")


def _add_layer(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_layer)
    parser.description = (
        "Records one decoder layer of a published size and the blocks in it, each alone, on "
        "generated weights and inputs; of the outputs chosen rows and a sketch are stored."
    )
    parser.add_argument("--shape", required=True, help="llama3-8b, gemma2-2b, zamba2-1.2b, ...")
    parser.add_argument("--dtype", choices=("f32", "bf16", "f16"), default="bf16")
    parser.add_argument("--attn", choices=("eager", "sdpa"), default="eager")
    parser.add_argument("--tokens", type=int, default=4096, metavar="N")
    parser.add_argument("--device", default="cpu", help="a torch device: cpu, cuda, cuda:1")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers like 1,2,3") from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _layers(text: str) -> tuple[int, ...]:
    layers: list[int] = []
    for word in text.split(","):
        if not (match := re.fullmatch(r"(\d+)(?:-(\d+))?", word.strip())):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of layers like 0,2 or 0-3")
        layers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(layers)


def _record(options: argparse.Namespace) -> int:
    from python_inspector.cases import run
    from python_inspector.format.show import format_bytes
    from python_inspector.models.dispatch import parse_map

    _quiet_transformers()
    try:
        device_map = options.device_map and parse_map(options.device_map)
    except ValueError as error:
        raise UsageError(f"--device-map: {error}") from error
    source = run.Source(
        options.model, options.dtype, options.attn, options.seed, options.revision, device_map
    )
    _check_row_options(options)
    model = run.load_model(source)
    plan = _plan(options, source, model)
    what = run.What(
        blocks=options.blocks,
        layers=options.layers,
        oracle="leaves" if options.leaves else not options.no_oracle,
        internals=not options.no_internals,
        masked_rows="judged" if options.masked_rows else "excluded",
        force=options.force,
        chained=options.chained,
        spread=options.spread,
        bugs=options.bugs,
    )
    size = run.estimate(model, plan, what)
    run.check_disk(size, options.out)
    print(
        f"recording {plan.calls} forward calls, about {format_bytes(size.total)} "
        f"({format_bytes(size.weights)} weights)"
    )
    with run.progress_bar(plan.calls) as (after_call, progress):
        summary = run.record_run(
            model,
            source,
            plan,
            what,
            run.Where(
                options.out,
                options.command_line,
                options.name,
                options.weights,
                progress=progress,
                after_call=after_call,
            ),
        )
    print(
        f"{summary.path}: {summary.checkpoints} checkpoints, {summary.tensors} tensors, "
        f"{format_bytes(summary.total_bytes)} (JSON {format_bytes(summary.json_bytes)}, tensors "
        f"{format_bytes(summary.tensor_bytes)}, weights {format_bytes(summary.weight_bytes)}"
        f"{', shared' if summary.weights_shared else ''})"
    )
    print(f"verify it: harness --fixture {shlex.quote(str(options.out))}")
    return 0


def _check_row_options(options: argparse.Namespace) -> None:
    """Options that can be refused before a model is loaded."""
    rows = options.prompt or options.token_ids
    if rows and options.batch not in (None, len(rows)):
        raise UsageError(
            f"--batch {options.batch}, but {len(rows)} rows are given by "
            f"{'--prompt' if options.prompt else '--token-ids'}"
        )
    if options.chained and (options.no_oracle or options.leaves):
        raise UsageError(
            f"--chained needs every block's oracle: drop "
            f"{'--no-oracle' if options.no_oracle else '--leaves'}"
        )
    if rows and options.left_pad:
        raise UsageError("--left-pad goes with --tokens; rows of different lengths are padded")
    if options.max_length is not None and options.cache != "static":
        raise UsageError(f"--max-length {options.max_length} goes with --cache static")
    least_of = {
        "batch": 1,
        "tokens": 1,
        "max_length": 1,
        "steps": 0,
        "logits_to_keep": 0,
        "spread": 0,
    }
    for name, least in least_of.items():
        value = getattr(options, name)
        if value is not None and value < least:
            raise UsageError(f"--{name.replace('_', '-')} {value}, expected at least {least}")


def _plan(options: argparse.Namespace, source: Source, model: torch.nn.Module) -> RunPlan:
    from python_inspector.cases import run
    from python_inspector.models.inputs import RunPlan, pad_left

    cache = options.cache or ("dynamic" if options.steps or options.chunks else "none")
    left_pad = options.left_pad
    if options.prompt or options.token_ids:
        rows = options.token_ids or run.tokenize(source, options.prompt)
        ids, left_pad = run.stack_rows(rows)
        tokens = ids.shape[1]
    else:
        tokens = options.tokens or (sum(options.chunks) if options.chunks else 11)
        batch = options.batch or (len(left_pad) if left_pad else 1)
        ids = run.random_run_ids(source, model, batch, tokens + options.steps)
        if left_pad is not None and len(left_pad) == batch:
            ids = pad_left(ids, left_pad)
    run.check_ids(ids, run.vocabulary(model))
    return RunPlan(
        ids,
        tokens,
        options.steps,
        options.chunks,
        left_pad,
        None if cache == "none" else cache,
        max_length=options.max_length or tokens + options.steps,
        logits_to_keep=options.logits_to_keep,
    )


def _validate(options: argparse.Namespace) -> int:
    from python_inspector.format.named_recordings import recording_folder
    from python_inspector.format.validate import find_recordings, validate

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
    return BAD_INPUT if bad else 0


def _show(options: argparse.Namespace) -> int:
    from python_inspector.format.named_recordings import recording_folder
    from python_inspector.format.show import show

    print(show(recording_folder(options.folder), options.checkpoint))
    return 0


def _tiny(options: argparse.Namespace) -> int:
    from python_inspector.models.tiny import ALIASES, MODELS

    for name, model in MODELS.items():
        print(f"tiny:{name:22} {model.about}")
    for alias, name in ALIASES.items():
        print(f"tiny:{alias:22} the same as tiny:{name}")
    return 0


def _fixtures(options: argparse.Namespace) -> int:
    from python_inspector.cases import committed

    _quiet_transformers()
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

    from python_inspector.cases import run
    from python_inspector.cases.border_cases import full_layer
    from python_inspector.format.show import format_bytes

    _quiet_transformers()
    if options.tokens < 2:
        raise UsageError(f"--tokens {options.tokens}, expected at least 2")
    if torch.device(options.device).type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device {options.device}, but this torch sees no GPU")
    case = full_layer(options.shape, options.dtype, options.tokens, options.device, options.attn)
    with run.progress_bar(len(case.steps)) as (after_call, progress):
        summary = case.record(
            run.Where(options.out, options.command_line, progress=progress, after_call=after_call)
        )
    print(
        f"{summary.path}: {summary.checkpoints} checkpoints, {format_bytes(summary.total_bytes)} "
        f"(JSON {format_bytes(summary.json_bytes)})"
    )
    print(f"verify it: harness --fixture {shlex.quote(str(options.out))}")
    return 0


def _generate(options: argparse.Namespace) -> int:
    from python_inspector.cases.generate import generate

    print(options.prompt, end="", flush=True)
    for text in generate(options.model, options.prompt, options.options):
        print(text, end="", flush=True)
    print()
    return 0


def _architectures(options: argparse.Namespace) -> int:
    from python_inspector.cases import architectures

    _quiet_transformers()
    complete = architectures.main(
        options.names, options.jobs, markdown=options.markdown, listed=options.list
    )
    return 0 if complete else BAD_INPUT


def _bugs(options: argparse.Namespace) -> int:
    from python_inspector.cases import bug_page, bug_survey
    from python_inspector.models.any_tiny import configurations

    _quiet_transformers()
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
    from python_inspector.cases import bench_verify
    from python_inspector.recorder import bench

    if list(words[:1]) == ["verify"]:
        return bench_verify.main(words[1:])
    return bench.main(words)


def _quiet_transformers() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


if __name__ == "__main__":
    sys.exit(main())
