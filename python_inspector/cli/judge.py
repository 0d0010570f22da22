"""`plumbline judge FORMAT ...`: candidates in the forms of benchmarks."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ..api.annotations import add_annotations, annotate
from ..errors import UsageError
from ..exit_codes import FAIL, STATUSES
from .check import add_cases, add_scrutiny

if TYPE_CHECKING:
    from ..api.verdict import Verdict
    from ..benchmarks.stated import Stated

SCHEMA_VERSION = 1
KINDS = ("own", "hard")
SHOWN = 2
"""Verdicts that are printed whole; of more those that do not pass."""


def add_formats(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Judges a candidate in a benchmark's form, in a process of its own. Exit codes: plumbline "
        "exit-codes."
    )
    forms = parser.add_subparsers(required=True, metavar="FORMAT")
    for name, (about, add, stated) in FORMS.items():
        form = forms.add_parser(name, help=about, description=about)
        form.set_defaults(run=run, stated=stated, form=name)
        add(form)
        form.add_argument("--seed", type=int, default=42, help="of inputs and constructors")
        form.add_argument("--salt", type=int, help="draws a verdict's inputs again")
        form.add_argument("--timeout", type=float, default=60.0, help="seconds of the candidate")
        add_scrutiny(form)
        add_cases(form)
        form.add_argument(
            "--explain", type=float, default=5.0, help="seconds for planted bugs, 0 for none (5)"
        )
        form.add_argument("--device", default="cpu", help="cpu, cuda:0")
        form.add_argument("--json", action="store_true", help="one line of JSON")
        add_annotations(form)


def run(options: argparse.Namespace) -> int:
    from ..api.worker_process import start_ahead

    if options.candidate:
        start_ahead()
    from ..api.sealed import Sealed
    from ..benchmarks.flashinfer_traces import append  # before a candidate runs
    from ..benchmarks.stated import judged, status_of

    with TemporaryDirectory(prefix="plumbline-") as scratch:
        stated = options.stated(options, Path(scratch))
        verdicts = judged(
            stated,
            Sealed(options.timeout, spare=False, time=options.time, sanitize=options.sanitize),
            options.salt,
            explain=options.explain or False,
            hard=options.hard,
            keep=options.keep,
            backward=options.backward,
        )
    status = status_of(verdicts)
    name = options.candidate or f"torch's {options.name}"
    if options.json:
        each = {kind: verdict.to_json() for kind, verdict in verdicts.items()}
        print(
            json.dumps(
                {"schema_version": SCHEMA_VERSION, "form": options.form, "status": status}
                | {"inputs": each}
            )
        )
    else:
        print(f"{name}: {status}{_counted(verdicts)}")
        for kind, verdict in verdicts.items():
            if len(verdicts) <= SHOWN or not verdict.passed:
                print(f"{kind} inputs: {verdict}")
    if options.annotate:
        annotate(options.candidate, verdicts.values())
    if getattr(options, "traces", None):
        append(options.traces, options.files, verdicts)
    return STATUSES.get(status, FAIL)


def _counted(verdicts: Mapping[str, Verdict]) -> str:
    if len(verdicts) <= SHOWN:
        return ""
    counts = Counter(verdict.status for verdict in verdicts.values())
    words = ", ".join(f"{count} {status}" for status, count in counts.items())
    return f" ({len(verdicts)} sets of inputs: {words})"


def _kinds(options: argparse.Namespace) -> list[str]:
    kinds: list[str] = options.inputs.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise UsageError(f"--inputs {unknown[0]}: expected own, hard or own,hard")
    return kinds


def _add_inputs(form: argparse.ArgumentParser, hard: str) -> None:
    form.add_argument(
        "--inputs", default="own,hard", help=f"the problem's own, hard ones ({hard}), or both"
    )


def _add_kernelbench(form: argparse.ArgumentParser) -> None:
    form.add_argument("problem", type=Path, metavar="PROBLEM.py")
    form.add_argument("candidate", type=Path, metavar="CANDIDATE.py")
    _add_inputs(form, "drawn in their shapes")
    form.add_argument("--eval", action="store_true", help="both in eval mode, not as shipped")


def _kernelbench(options: argparse.Namespace, scratch: Path) -> Stated:
    from ..benchmarks import kernelbench

    return kernelbench.stated(
        options.problem, options.candidate, inputs=_kinds(options), seed=options.seed,
        device=options.device, evaluated=options.eval,
    )  # fmt: skip


def _add_gpu_mode(form: argparse.ArgumentParser) -> None:
    form.add_argument("task", type=Path, metavar="TASK", help="task.yml, or its folder")
    form.add_argument("candidate", type=Path, metavar="SUBMISSION.py")
    _add_inputs(form, "with other seeds")


def _gpu_mode(options: argparse.Namespace, scratch: Path) -> Stated:
    from ..benchmarks import gpu_mode

    return gpu_mode.stated(
        options.task, options.candidate, scratch, inputs=_kinds(options), salt=options.salt,
        device=options.device,
    )  # fmt: skip


def _add_samples(form: argparse.ArgumentParser) -> None:
    form.add_argument("--dtypes", default="", help="f32,bf16: some of those that it takes")
    form.add_argument("--most", type=int, default=16, help="samples of a dtype (16)")


def _samples(options: argparse.Namespace) -> dict[str, Any]:
    dtypes = [name for name in options.dtypes.split(",") if name]
    return {
        "dtypes": dtypes, "most": options.most, "seed": options.seed, "device": options.device,
    }  # fmt: skip


def _add_backendbench(form: argparse.ArgumentParser) -> None:
    form.add_argument("candidate", type=Path, metavar="OP_DIR", help="a folder: add__Tensor")
    form.add_argument("--trace", type=Path, metavar="FILE", help="calls, in the benchmark's text")
    _add_samples(form)


def _backendbench(options: argparse.Namespace, scratch: Path) -> Stated:
    from ..benchmarks import backendbench

    return backendbench.stated(options.candidate, trace=options.trace, **_samples(options))


def _add_opinfo(form: argparse.ArgumentParser) -> None:
    form.add_argument("name", metavar="NAME", help="softmax, nn.functional.rms_norm")
    form.add_argument(
        "candidate", nargs="?", metavar="FILE.py:NAME", help="without it torch's own is judged"
    )
    _add_samples(form)


def _opinfo(options: argparse.Namespace, scratch: Path) -> Stated:
    from ..benchmarks import opinfo

    return opinfo.stated(options.name, options.candidate, **_samples(options))


def _add_flashinfer(form: argparse.ArgumentParser) -> None:
    form.add_argument("definition", type=Path, metavar="DEFINITION.json")
    form.add_argument("workloads", type=Path, metavar="WORKLOADS.jsonl")
    form.add_argument("candidate", type=Path, metavar="SOLUTION.json")
    form.add_argument("--root", type=Path, default=Path(), help="of the safetensors' paths")
    form.add_argument("--most", type=int, help="workloads, the first so many")
    form.add_argument("--traces", type=Path, metavar="FILE.jsonl", help="verdicts are added to it")


def _flashinfer(options: argparse.Namespace, scratch: Path) -> Stated:
    from ..benchmarks import flashinfer

    options.files = definition, workloads, solution = flashinfer.read(
        options.definition, options.workloads, options.candidate, options.most
    )
    return flashinfer.stated(
        definition, workloads, solution, scratch, root=options.root, seed=options.seed,
        device=options.device,
    )  # fmt: skip


FORMS: dict[str, tuple[str, Callable[..., None], Callable[..., Stated]]] = {
    "kernelbench": ("PROBLEM.py has Model, CANDIDATE.py ModelNew", _add_kernelbench, _kernelbench),
    "backendbench": ("a folder with an operator's kernel", _add_backendbench, _backendbench),
    "flashinfer-bench": ("Definition, Workloads, Solution: JSON", _add_flashinfer, _flashinfer),
    "gpu-mode": ("task.yml, reference.py and a submission", _add_gpu_mode, _gpu_mode),
    "opinfo": ("PyTorch's samples of an operation", _add_opinfo, _opinfo),
}
"""By name: what it is, its arguments, and what they come to."""
FORMATS = tuple(FORMS)
