"""`plumbline check`: one kernel against any torch code, from a shell."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..api.annotations import add_annotations, annotate
from ..api.relations import BITS, KNOWN, RELATIONS, asked_relations
from ..errors import UsageError
from ..exit_codes import FAIL, STATUSES
from ..format.contract_words import INSIDE, ROUNDINGS, asked

if TYPE_CHECKING:
    from ..api.verdict import Verdict

NAMED = "FILE.py:NAME"


def add_check(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Judges a kernel against torch code: the same as plumbline.check(). Exit codes: plumbline "
        "exit-codes."
    )
    parser.set_defaults(run=check)
    parser.add_argument("function", metavar=NAMED, help="the kernel; or package.module:NAME")
    parser.add_argument(
        "--like", metavar=NAMED,
        help="a torch module or a function of torch code; or package.module:NAME. Without it "
        "--relations alone are tried",
    )  # fmt: skip
    _add_inputs(parser)
    parser.add_argument(
        "--weights", metavar="FILE.safetensors", type=Path, help="keyword arguments of both"
    )
    parser.add_argument("--arrays", default="torch", help="what the kernel is given: numpy, jax")
    parser.add_argument(
        "--contract", type=_contract, metavar="eager+sums-16",
        help=f"one rounding that is demanded: {', '.join(ROUNDINGS)}; and what may happen inside: "
        f"{', '.join(INSIDE)}",
    )  # fmt: skip

    parser.add_argument(
        "--sealed", nargs="?", type=float, const=60.0, metavar="SECONDS",
        help="calls the kernel in a process of its own, which has ended before a reference exists; "
        "it may take so long (60)",
    )  # fmt: skip
    parser.add_argument(
        "--relations", type=_relations, metavar="batch,position", default={},
        help="further calls in which rows must keep their bits, or with batch=limits what --like "
        f"allows: all, or of {', '.join(KNOWN)}",
    )  # fmt: skip
    parser.add_argument(
        "--batch", type=_batch, metavar="AXIS|x=0,k=1", help="which axis has the rows (0)"
    )
    add_scrutiny(parser)
    parser.add_argument(
        "--mutates", type=lambda text: text.split(",") if text else [], metavar="x,cache",
        help="arguments that the kernel may change; by default those that --like changes",
    )  # fmt: skip
    add_cases(parser)
    parser.add_argument("--json", action="store_true", help="the verdict as one line of JSON")
    parser.add_argument("--salt", type=int, help="draws the inputs of a sealed verdict again")
    add_annotations(parser)


def add_cases(parser: argparse.ArgumentParser) -> None:
    """More cases than those given, and where they stay."""
    parser.add_argument(
        "--hard", nargs="?", const=True, default=False, type=lambda names: names.split(","),
        metavar="KIND,KIND", help="also judges on hard operands made of these: signed, zeros, huge "
        "and so on, all kinds or those named",
    )  # fmt: skip
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="puts the case there, and the smallest that fails"
    )
    parser.add_argument("--backward", action="store_true", help="judges gradients, too")


def add_scrutiny(parser: argparse.ArgumentParser) -> None:
    """What else is done with a sealed function."""
    parser.add_argument(
        "--time", action="store_true",
        help="times the kernel, its reference and torch.compile of that, with cold caches",
    )  # fmt: skip
    parser.add_argument(
        "--sanitize", action="store_true", help="runs the kernel under compute-sanitizer, too"
    )


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--inputs", required=True, metavar=f"{NAMED}|FILE.safetensors",
        help="what is called without arguments and returns what check() takes, or tensors: keyword "
        "arguments by their names, arguments in order where these are 0, 1, ...",
    )  # fmt: skip


def add_problem(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Judges torch code by itself, with planted bugs, and by functions that do no work: what "
        "its inputs cannot show. Exit code 0, or 1 where something that does no work passes."
    )
    parser.set_defaults(run=problem)
    parser.add_argument("like", metavar=NAMED, help="a torch module or a function of torch code")
    _add_inputs(parser)
    parser.add_argument("--seconds", type=float, default=20.0, help="for planted bugs (20)")
    parser.add_argument("--json", action="store_true", help="the report as one line of JSON")


def problem(options: argparse.Namespace) -> int:
    from ..api.problem import problem
    from ..named_code import load

    found = problem(load(options.like), _inputs(options.inputs), seconds=options.seconds)
    print(json.dumps(found.to_json()) if options.json else found)
    return int(bool(found.solved_by))


def _contract(text: str) -> str:
    try:
        asked(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _relations(text: str) -> dict[str, str]:
    if text == "all":
        return dict.fromkeys(RELATIONS, BITS)
    pairs = [item.partition("=") for item in text.split(",")]
    try:
        return dict(asked_relations({name: rest or BITS for name, _, rest in pairs}, None).demands)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _batch(text: str) -> int | dict[str, int]:
    pairs = [item.partition("=") for item in text.split(",")]
    try:
        return int(text) if "=" not in text else {name: int(axis) for name, _, axis in pairs}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: expected an axis, or x=0,k=1") from None


def check(options: argparse.Namespace) -> int:
    from ..api.verdict import WrongError
    from ..api.worker_process import start_ahead

    for name in ("salt", "time", "sanitize"):
        if options.sealed is None and getattr(options, name) not in (None, False):
            raise UsageError(f"--{name}: only with --sealed")
    if options.like is None and not options.relations:
        raise UsageError("--like: name what the kernel is held to, or --relations")
    if options.sealed and options.like:
        start_ahead()
    try:
        verdict = _checked(options) if options.like else _invariant(options)
    except WrongError as error:
        verdict = error.verdict
    print(json.dumps(verdict.to_json()) if options.json else verdict)
    if options.annotate:
        annotate(options.function, [verdict])
    return STATUSES.get(verdict.status, FAIL)


def _invariant(options: argparse.Namespace) -> Verdict:
    from ..api.invariance import invariant
    from ..named_code import load

    if options.sealed or options.contract or options.hard or options.keep or options.backward:
        raise UsageError("--sealed, --contract, --hard, --keep, --backward: only with --like")
    weights = options.weights and _tensors(options.weights)
    return invariant(
        load(options.function), _inputs(options.inputs), options.relations, batch=options.batch,
        weights=weights, arrays=options.arrays,
    )  # fmt: skip


def _checked(options: argparse.Namespace) -> Verdict:
    from ..api.checking import check
    from ..api.sealed import Sealed
    from ..named_code import load

    function = options.function if options.sealed else load(options.function)
    like = load(options.like)
    if isinstance(like, type):
        raise UsageError(f"--like {options.like}: is a class; name a module made of it")
    inputs = _inputs(options.inputs)
    weights = options.weights and _tensors(options.weights)
    return check(
        function, like, inputs, weights=weights, arrays=options.arrays,
        contract=options.contract, salt=options.salt, relations=options.relations,
        batch=options.batch, mutates=options.mutates, hard=options.hard, keep=options.keep,
        backward=options.backward,
        sealed=options.sealed and Sealed(
            options.sealed, spare=False, time=options.time, sanitize=options.sanitize
        ),
    )  # fmt: skip


def _inputs(named: str) -> Any:
    if not named.endswith(".safetensors"):
        from ..named_code import load

        made = load(named)
        return made() if callable(made) else made
    tensors = _tensors(Path(named))
    if sorted(tensors) != sorted(map(str, range(len(tensors)))):
        return tensors
    return tuple(tensors[str(i)] for i in range(len(tensors)))


def _tensors(path: Path) -> dict[str, Any]:
    from ..format.safetensors_file import read_header

    file = read_header(path)
    return {name: file.read(name) for name in file.tensors}
