"""What is measured of a kernel: its error in float64, the gates it passes, what check() says."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from python_inspector import prepare
from python_inspector.api.verdict import Verdict, WrongError

from .float64 import Truth
from .gates import GATES
from .rows import DTYPES, Kernel, Problem, Values

NOT_WRONG = ("pass", "blind")
"""What check() may say of a right kernel. Blind: the inputs prove nothing."""
MOST = 1e9
"""Of an error: this is, or is beyond, what no rounding does."""


@dataclass(frozen=True)
class Measured:
    kernel: str
    dtype: str
    fault: str
    """Its kind; empty for a right kernel."""
    source: str
    error: float
    """In float64, over what rounding may do; a right kernel has at most 1."""
    passes: tuple[str, ...]
    """Gates of benchmarks."""
    says: str
    """The status that check() gives."""
    why: str
    """Of a failure: the kind of the inputs, the gate, how far beyond its limit."""
    plain: str = ""
    """Where check() is given hard=True: the status without."""

    @property
    def misjudged(self) -> bool:
        """By check()."""
        return (self.says in NOT_WRONG) == bool(self.fault)

    def line(self) -> str:
        return json.dumps({name: it for name, it in asdict(self).items() if it not in ("", ())})


class Judge:
    """check() on the inputs of every kind, one after the other, by the same object."""

    def __init__(self, problem: Problem, dtype: str, device: str) -> None:
        self._cases = {
            kind: prepare(
                problem.like,
                problem.of(Values(kind, DTYPES[dtype], device, i)),
                explain=False,
                hard=problem.hard,
            )
            for i, kind in enumerate(problem.kinds)
        }

    def operands(self) -> list[Any]:
        """Of all cases, hard ones where the reference survives them."""
        return [it.case.arguments[0] for judge in self._cases.values() for it in judge.cases]

    def plain(self, row: Kernel) -> str:
        """The status without hard cases, of a problem that has them."""
        if not row.problem.hard:
            return ""
        (judge,) = self._cases.values()
        try:
            return judge(row.fresh()).cases[0].status
        except WrongError as error:
            return error.verdict.cases[0].status
        except Exception:  # on a hard case: says() has its words
            return "pass"

    def says(self, row: Kernel) -> tuple[str, str]:
        """The status, and the reason of a failure: the first kind of inputs that shows it."""
        kernel = row.fresh()
        statuses = []
        for kind, judge in self._cases.items():
            try:
                statuses.append(judge(kernel).status)
            except WrongError as error:
                verdict = error.verdict
                if verdict.status not in NOT_WRONG:
                    return verdict.status, f"{_hard_kind(verdict) or kind}: {_reason(verdict)}"
                statuses.append(verdict.status)
            except Exception as error:
                first = str(error).partition("\n")[0][:80]
                return "error", f"{kind}: {type(error).__name__}: {first}"
        return "pass" if "pass" in statuses else statuses[0], ""


def _hard_kind(verdict: Verdict) -> str:
    """Of the first case that is wrong."""
    wrong = (it for it in verdict.cases if it.status not in NOT_WRONG)
    return next((it.checkpoint.partition(":")[2].partition("#")[0] for it in wrong), "")


def _reason(verdict: Verdict) -> str:
    gate = verdict.worst_gate
    if gate is None or gate["passed"]:
        return verdict.reason.partition("\n")[0][:80]
    return f"{gate['name']} {gate['ratio']:.2g} x its limit"


def measure(rows: Sequence[Kernel], dtype: str, device: str) -> Iterator[Measured]:
    """Of one problem, all of it."""
    problem = rows[0].problem
    right = [it for it in rows if not it.fault]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        judge = Judge(problem, dtype, device)
        truth = Truth(problem, right, dtype, device, judge.operands())
        for row in rows:
            if dtype in row.dtypes:
                error = float(f"{min(truth.error(row.fresh()), MOST):.2g}")
                passes = tuple(it.name for it in GATES if it.passes(row, dtype, device))
                says, why = judge.says(row)
                of = row.name, dtype, row.fault, row.source, error
                yield Measured(*of, passes, says, why, judge.plain(row))


def read(line: str) -> Measured:
    made = {"fault": "", "source": "", "passes": (), "why": ""} | json.loads(line)
    return Measured(**made | {"passes": tuple(made["passes"])})


def part(problem: str, dtype: str, device: str) -> list[Measured]:
    """Of one problem, in a process that measures others, too."""
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
    from .catalogue import kernels

    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # a reference in float32 is one
    return list(measure(kernels(device)[problem], dtype, device))
