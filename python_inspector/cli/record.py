"""`inspector record`: a model, a run of it, and what of that is recorded."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..effort import EFFORTS, described
from ..errors import UsageError
from ..format.contract_words import INSIDE, RECORDED, asked
from ..usage import Parser, dtype
from .record_checks import check_options

if TYPE_CHECKING:
    import torch

    from ..cases.parts import OtherProcesses, Part
    from ..cases.run import Source
    from ..format.summary import Summary
    from ..models.inputs import RunPlan
    from ..taps.options import Options


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
    what.add_argument(
        "--backward", action="store_true", help="gradients of the first call of each block, too"
    )
    what.add_argument(
        "--loss",
        choices=("cross_entropy",),
        help="with --backward: of the whole model by its own loss, too",
    )
    what.add_argument("--chained", action="store_true", help="the whole model in float64, too")
    what.add_argument(
        "--effort",
        choices=EFFORTS,
        default="normal",
        help=f"{described()} (default: normal)",
    )
    what.add_argument(
        "--contract",
        type=_contract,
        metavar="eager+sums-16",
        help=f"what kernels may do inside, joined by +: {', '.join(INSIDE)}",
    )
    what.add_argument("--force", action="store_true", help="record what a guard would refuse")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--overwrite", action="store_true", help="replace the recording in DIR")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="shared file next to DIR")
    parser.add_argument(
        "--copy-weights",
        action="store_true",
        help="into the recording, instead of referring to the model's own files",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="after the same command with --jobs was killed: keep its complete parts",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="record a folder of parts, N at the same time (default: one recording)",
    )
    parser.add_argument("--started-by", type=int, help=argparse.SUPPRESS)  # a process of --jobs
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


def record(options: argparse.Namespace) -> int:
    from ..cases import parts

    check_options(options)
    _check_calls(options)
    if options.started_by is not None:
        parts.end_with(options.started_by)
        return _record_parts(options, None)
    with parts.alone(options.out):
        if options.resume and _is_finished(options.out, _made_by(options.command_line)):
            return 0
        _refuse_replacing(options)
        if not options.resume:
            parts.clear(options.out)
        if options.jobs is None:
            return _record_one(options)
        words = shlex.split(options.command_line)[1:]
        with (
            parts.kept_or_cleared(options.out),
            parts.OtherProcesses(words, options.jobs - 1) as others,
        ):
            return _record_parts(options, others)


def _record_one(options: argparse.Namespace) -> int:
    asked = _Asked(options)
    summary = asked.make(asked.options, options.out, options.name)
    print(f"{summary.path}: {asked.text(summary)}")
    return _done(options)


def _record_parts(options: argparse.Namespace, others: OtherProcesses | None) -> int:
    """Together with `others`; None where this is one of them."""
    from ..cases import parts

    asked = _Asked(options)
    every = parts.parts_of(asked.layers, chained=options.chained)
    folder, out = parts.folder_of(options.out), options.out.absolute()
    name = options.name or f"{out.parent.name}/{out.name}"

    def one(part: Part, path: Path) -> None:
        summary = asked.make(asked.of_part(part), path, f"{name}/{part.name}")
        print(f"{part.name}: {asked.text(summary)}", flush=True)

    parts.make(every, folder, one)
    if others is None:
        return 0
    missing = len(parts.complete(folder)) < len(every)
    for failure in others.failures(wait=missing):
        print(f"a process ended with {failure}; others make its parts", file=sys.stderr)
    parts.make(every, folder, one)
    parts.put_in_place(every, folder, options.out)
    print(f"{options.out}: {len(every)} parts")
    return _done(options)


def _done(options: argparse.Namespace) -> int:
    print(f"verify it: harness --fixture {shlex.quote(str(options.out))}")
    return 0


class _Asked:
    """The model, its run, and what of that is to be recorded."""

    def __init__(self, options: argparse.Namespace) -> None:
        from ..cases import parts, run
        from ..format.folders import disk_bytes
        from ..format.show import format_bytes
        from ..recorder.provenance import promised_weights_sha256

        quiet_transformers()
        self._options = options
        self._source = _source(options)
        self._model = run.load_model(self._source)
        self._plan = _plan(options, self._source, self._model)
        self.options = _asked(options)
        self._copies = (
            options.copy_weights
            or options.weights is not None
            or run.folder_of(self._source) is None
        )
        self._size = run.estimate(
            self._model, self._plan, self.options, copies_weights=self._copies
        )
        self._sha256 = promised_weights_sha256(self._model)
        if options.started_by is None:
            left = parts.complete(parts.folder_of(options.out))
            run.check_disk(self._size, options.out, kept=disk_bytes(left))
        print(
            f"recording {self._plan.calls} forward calls, about {format_bytes(self._size.total)} "
            f"({format_bytes(self._size.weights)} weights)"
        )

    @property
    def layers(self) -> list[int]:
        """Those that are recorded."""
        from ..taps.options import layer_of

        layers = self.options.what.layers
        paths = (path for path, _ in self._model.named_modules())
        found = {index for path in paths if (index := layer_of(path)) is not None}
        return sorted(found if layers is None else found & {*layers})

    def of_part(self, part: Part) -> Options:
        what, proof = self.options.what, self.options.proof
        if part.chain:
            return replace(self.options, what=replace(what, blocks=()))
        return replace(
            self.options,
            what=replace(what, layers=part.layers, outside=part.outside),
            proof=replace(proof, chained=False, chain_elsewhere=proof.chained),
        )

    def make(self, asked: Options, out: Path, name: str | None) -> Summary:
        from ..cases import run
        from ..recorder.where import Where

        plan = self._plan
        layers = run.layers_of(self._model)
        with run.progress_bar(plan.calls * len(layers), "layer") as (advance, progress):
            where = Where(
                out,
                name,
                command=_made_by(self._options.command_line),
                weights_path=self._options.weights,
                weights_sha256=self._sha256,
                progress=progress,
            )
            with run.told_of_room(self._size):
                return run.record_run(
                    self._model, self._source, plan, asked, where,
                    copy_weights=self._copies, advance=advance,
                )  # fmt: skip

    def text(self, summary: Summary) -> str:
        from ..format.show import format_bytes

        return (
            f"{summary.checkpoints} checkpoints, {summary.tensors} tensors, "
            f"{format_bytes(summary.total_bytes)} (JSON {format_bytes(summary.json_bytes)}, "
            f"tensors {format_bytes(summary.tensor_bytes)}, "
            f"weights {format_bytes(summary.weight_bytes)}"
            f"{', shared' if summary.weights_shared else ''})"
        )


def _check_calls(options: argparse.Namespace) -> None:
    count = (len(options.chunks) if options.chunks else 1) + options.steps
    if beyond := [call for call in options.calls or () if call >= count]:
        raise UsageError(f"--calls {beyond[0]}, but the run has {count} forward calls (from 0)")


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


def _asked(options: argparse.Namespace) -> Options:
    """Options of What are called as there."""
    from ..taps.options import Options, Proof, What

    given = {name: value for name, value in vars(options).items() if name in What.__annotations__}
    proof = Proof.of(
        options.effort,
        chained=options.chained,
        backward=options.backward,
        loss=options.loss,
        contract=options.contract,
    )
    return Options(What(**given), proof)


def _made_by(command: str) -> str:
    """What a recording is made by, in one go or several, by however many processes."""
    words = iter(shlex.split(command))
    left = []
    for word in words:
        if len(word) > 4 and any(it.startswith(word) for it in ("--resume", "--overwrite")):
            continue
        if word in ("--started-by", "--jobs"):
            next(words, None)
        elif not word.startswith("--jobs="):
            left.append(word)
    return shlex.join(left)


def _refuse_replacing(options: argparse.Namespace) -> None:
    """UsageError where `out` is a recording, which may be another one; FormatError where it is
    something else, which would be lost."""
    from ..cases.parts import is_of_parts
    from ..format.folders import require_place

    out, of_parts = options.out, is_of_parts(options.out)
    if ((out / "recording.json").is_file() or of_parts) and not options.overwrite:
        raise UsageError(f"--out: {out} has a recording already; --overwrite replaces it")
    if of_parts and options.jobs is None:
        raise UsageError(f"--out: {out} has a recording in parts; remove it, or give --jobs")
    if options.jobs is not None and not of_parts:
        require_place(out.absolute(), out.absolute() / "weights.safetensors", "recording.json")


def _is_finished(out: Path, command: str) -> bool:
    """Whether there is nothing to resume, because the recording is there; says what is."""
    from ..cases import parts
    from ..format.strict_json import load_json

    left = parts.complete(parts.folder_of(out))
    found = [out] if (out / "recording.json").is_file() else parts.complete(out)
    if not left and not found:
        print(f"nothing to resume for {out}: recording from the beginning")
        return False
    first = (left or found)[0]
    made_by = load_json(first / "recording.json")["provenance"]["command"]
    if made_by != command:
        raise UsageError(
            f"--resume: {first} was made by another command ({made_by}): give --overwrite "
            "instead of --resume to replace it"
        )
    if left:
        print(f"resuming: {len(left)} parts are complete in {parts.folder_of(out)}")
        return False
    print(f"nothing to resume: {out} is finished; --overwrite instead of --resume repeats it")
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
