"""`inspector record`: a model, a run of it, and what of that is recorded."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..format.contract_words import INSIDE, RECORDED, asked
from ..heap import lasting_imports, rarely_collect, share_device
from ..stretches import Stretch, stretch_of
from ..usage import Parser, dtype
from .record_checks import check_options

if TYPE_CHECKING:
    import torch

    from ..cases.processes import Helpers
    from ..cases.run import Source, What
    from ..models.inputs import RunPlan


ELSEWHERE = {
    "--max-new-tokens": "--steps, decode steps behind the prompt",
    "--torch-dtype": "--dtype",
    "--attn-implementation": "--attn",
    "--model-id": "--model",
    "--model-name": "--model",
    "--input-ids": "--token-ids",
    "--output": "--out",
    "--output-dir": "--out",
}


def add_record(parser: Parser) -> None:
    parser.set_defaults(run=record)
    parser.meant = ELSEWHERE
    model = parser.add_argument_group("model")
    model.add_argument("--model", required=True, help="hub id, local path or tiny:NAME")
    model.add_argument("--revision", help="of a model on the hub")
    dtypes = ("auto", "f32", "bf16", "f16", "f64")
    model.add_argument("--dtype", type=dtype, choices=dtypes, default="auto")
    model.add_argument("--attn", choices=("eager", "sdpa"), default="eager")
    model.add_argument("--seed", type=int, default=1, help="of tiny weights and random ids")
    place = model.add_mutually_exclusive_group()
    place.add_argument("--device", metavar="cuda:0", help="where the model runs (default: cpu)")
    place.add_argument(
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
    what.add_argument(
        "--calls", type=_calls, metavar="0|1-4", help="these forward calls only, from 0"
    )
    what.add_argument(
        "--rows",
        type=int,
        metavar="N",
        help="of a large model: N tokens of a call, the layers of --whole-layers with all",
    )
    what.add_argument(
        "--whole-layers",
        type=_layers,
        metavar="0,15",
        help="with --rows (default: the first layer of each kind, and the last)",
    )
    what.add_argument(
        "--masked-rows",
        action="store_const",
        const="judged",
        default="excluded",
        help="judge rows without a key, too",
    )
    what.add_argument(
        "--no-internals",
        action="store_false",
        dest="internals",
        help="no single torch operations",
    )
    what.add_argument("--chained", action="store_true", help="the whole model in float64, too")
    what.add_argument(
        "--spread",
        type=int,
        default=16,
        metavar="N",
        help="simulated correct kernels (default 16, 0 for none: faster)",
    )
    what.add_argument(
        "--contract",
        type=_contract,
        metavar="eager+sums-16",
        help=f"what kernels may do inside, joined by +: {', '.join(INSIDE)}",
    )
    what.add_argument(
        "--bugs",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="bugs planted in calls without a native block, and other roundings (small calls)",
    )
    oracle = what.add_mutually_exclusive_group()
    oracle.add_argument(
        "--no-oracle",
        action="store_const",
        const=False,
        default=True,
        dest="oracle",
        help="no float64 reference",
    )
    oracle.add_argument(
        "--leaves",
        action="store_const",
        const="leaves",
        dest="oracle",
        help="no composite blocks: faster",
    )
    what.add_argument("--force", action="store_true", help="record what a guard would refuse")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--overwrite", action="store_true", help="replace the recording in DIR")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="shared file beside DIR")
    parser.add_argument(
        "--copy-weights",
        action="store_true",
        help="into the recording, instead of referring to the model's own files",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on where the same command was killed, interrupted or out of disk",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="processes that share the run (default: as a GPU has room for)",
    )
    parser.add_argument("--beside", type=int, help=argparse.SUPPRESS)  # the one that started this
    parser.add_argument("--stretch", type=_stretch, help=argparse.SUPPRESS)  # of one of them
    parser.add_argument("--name", help="of the recording (default: last two folders of DIR)")


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


def _calls(text: str) -> tuple[int, ...]:
    try:
        calls = _layers(text)
    except argparse.ArgumentTypeError:
        calls = ()
    if not calls:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of calls like 0,2 or 1-4")
    return tuple(sorted(set(calls)))


def _contract(text: str) -> str:
    try:
        asked(text, RECORDED)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _stretch(text: str) -> Stretch:
    try:
        return stretch_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def record(options: argparse.Namespace) -> int:
    from ..cases import processes
    from ..cases.shares import stretches

    check_options(options)
    helps = options.beside is not None
    if not helps and not options.resume and not options.overwrite:
        _refuse_replacing(options.out)
    if helps:
        processes.end_with(options.beside)
    own, *others = stretches(options, _forward_calls(options))
    if others:
        options.stretch = own
    words = shlex.split(options.command_line)[1:]
    with nullcontext() if helps else processes.alone(options.out):
        if options.resume and _is_finished(options.out, _made_by(options.command_line), helps):
            processes.clear(options.out.absolute())
            return 0
        with processes.Helpers(options.out, words, others, resume=options.resume) as helpers:
            return _record(options, helpers)


def _record(options: argparse.Namespace, helpers: Helpers) -> int:
    if options.own_process:
        share_device()
    with lasting_imports():
        from ..cases import run
    from ..format.show import format_bytes

    rarely_collect()
    quiet_transformers()
    source = _source(options)
    command = _made_by(options.command_line)
    model = run.load_model(source)
    plan, what = _plan(options, source, model), _what(options)
    copies = options.copy_weights or options.weights is not None or run.folder_of(source) is None
    size = run.estimate(model, plan, what, copies_weights=copies)
    run.check_disk(size, options.out)
    print(
        f"recording {plan.calls} forward calls{helpers.text}, about {format_bytes(size.total)} "
        f"({format_bytes(size.weights)} weights)"
    )
    with run.progress_bar(plan.calls * len(run.layers_of(model)), "layer") as (advance, progress):
        where = run.Where(
            options.out,
            command,
            options.name,
            options.weights,
            copies,
            resumable=True,
            resume=options.resume,
            to_be_joined=options.beside is not None,
            others=helpers.recordings,
            progress=progress,
            advance=advance,
        )
        with run.told_of_room(size):
            summary = run.record_run(model, source, plan, what, where)
    taken = f" ({summary.taken_over} taken over)" if summary.taken_over else ""
    print(
        f"{summary.path}: {summary.checkpoints} checkpoints{taken}, {summary.tensors} tensors, "
        f"{format_bytes(summary.total_bytes)} (JSON {format_bytes(summary.json_bytes)}, tensors "
        f"{format_bytes(summary.tensor_bytes)}, weights {format_bytes(summary.weight_bytes)}"
        f"{', shared' if summary.weights_shared else ''})"
    )
    print(f"verify it: harness --fixture {shlex.quote(str(options.out))}")
    return 0


def _forward_calls(options: argparse.Namespace) -> Sequence[int]:
    """Those that are recorded."""
    count = (len(options.chunks) if options.chunks else 1) + options.steps
    if beyond := [call for call in options.calls or () if call >= count]:
        raise UsageError(f"--calls {beyond[0]}, but the run has {count} forward calls (from 0)")
    return options.calls or range(count)


def _source(options: argparse.Namespace) -> Source:
    from ..cases.run import Source
    from ..models.dispatch import parse_map

    try:
        device_map = options.device_map and parse_map(options.device_map)
    except ValueError as error:
        raise UsageError(f"--device-map: {error}") from error
    return Source(
        options.model,
        options.dtype,
        options.attn,
        options.seed,
        options.revision,
        device_map,
        options.device,
    )


def _what(options: argparse.Namespace) -> What:
    """Most options are called as there."""
    from ..cases.run import What

    given = {name: value for name, value in vars(options).items() if name in What.__annotations__}
    return What(**given)


def _made_by(command: str) -> str:
    """What a recording is made by, in one go or several, whichever process asked for it."""
    words = shlex.split(command)
    if "--beside" in words:
        at = words.index("--beside")
        del words[at : at + 2]
    how = ("--resume", "--overwrite")
    return shlex.join(
        word for word in words if len(word) < 5 or not any(it.startswith(word) for it in how)
    )


def _refuse_replacing(out: Path) -> None:
    """UsageError where a recording lies at `out`, which may be another one."""
    if (out / "recording.json").is_file():
        raise UsageError(f"--out: {out} has a recording already; --overwrite replaces it")


def _is_finished(out: Path, command: str, helps: bool) -> bool:
    """Whether there is nothing to resume, because the recording is there; says what is. One that
    `helps` another, which takes it as it is, is made anew where it was damaged."""
    from ..format import share
    from ..format.journal import find_leftover
    from ..format.strict_json import load_json

    leftover = find_leftover(out.absolute())
    if leftover is not None:
        leftover.close()
        print(f"resuming: {leftover.checkpoints} checkpoints are finished in {leftover.folder}")
        return False
    if not (out / "recording.json").is_file() or (helps and not share.is_whole(out)):
        print(f"nothing to resume beside {out}: recording from the beginning")
        return False
    made_by = load_json(out / "recording.json")["provenance"]["command"]
    if made_by != command:
        raise UsageError(
            f"--resume: {out} is finished, and was made by another command ({made_by}): give "
            "--overwrite instead of --resume to replace it"
        )
    print(f"nothing to resume: {out} is finished (--overwrite in place of --resume: made anew)")
    return True


def _plan(options: argparse.Namespace, source: Source, model: torch.nn.Module) -> RunPlan:
    from ..cases import run
    from ..models.inputs import RunPlan, pad_left

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


def quiet_transformers() -> None:
    """No bars and notes of transformers between ours."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
