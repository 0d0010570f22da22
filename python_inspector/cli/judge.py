"""`plumbline judge FORMAT ...`: candidates in the forms of benchmarks."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .check import CODES

FORMATS = ("kernelbench",)


def add_formats(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Judges a candidate in a benchmark's form, in a process of its own. Exit code as check's."
    )
    forms = parser.add_subparsers(required=True, metavar="FORMAT")
    form = forms.add_parser("kernelbench", help="PROBLEM.py has Model, CANDIDATE.py has ModelNew")
    form.set_defaults(run=kernelbench)
    form.add_argument("problem", type=Path, metavar="PROBLEM.py")
    form.add_argument("candidate", type=Path, metavar="CANDIDATE.py")
    form.add_argument(
        "--inputs", default="own,hard", help="the problem's own, hard ones in their shapes, or both"
    )
    form.add_argument("--seed", type=int, default=42, help="of both constructors and the inputs")
    form.add_argument("--salt", type=int, help="draws the hard inputs of a verdict again")
    form.add_argument("--timeout", type=float, default=60.0, help="seconds of the candidate")
    form.add_argument("--device", default="cpu", help="cpu, cuda:0")
    form.add_argument("--json", action="store_true", help="one line of JSON")


def kernelbench(options: argparse.Namespace) -> int:
    from ..benchmarks import kernelbench as form
    from ..errors import UsageError

    kinds = options.inputs.split(",")
    if unknown := [kind for kind in kinds if kind not in (form.OWN, form.HARD)]:
        raise UsageError(f"--inputs {unknown[0]}: expected own, hard or own,hard")
    verdicts = form.judged(
        options.problem, options.candidate, inputs=kinds, seed=options.seed, salt=options.salt,
        timeout=options.timeout, device=options.device,
    )  # fmt: skip
    status = form.status_of(verdicts)
    if options.json:
        each = {kind: verdict.to_json() for kind, verdict in verdicts.items()}
        print(json.dumps({"schema_version": 1, "status": status, "inputs": each}))
    else:
        print(f"{options.candidate}: {status}")
        for kind, verdict in verdicts.items():
            print(f"{kind} inputs: {verdict}")
    return CODES.get(status, 1)
