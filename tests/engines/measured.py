"""One kernel on all recordings of a dtype: right, and with each mistake."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from . import judged, rounding, wrong_operands
from .kernel import Case, Kernel, UnsupportedError
from .recordings import ROOT, folders

FRESH = ROOT / "build" / "engines"
AS_ACCURATE = 1.02
"""Errors of kernels that round at the same points agree within this over a recording."""


@dataclass
class Count:
    """Verdicts on a kernel; `bit_equal`: wrong, but not a bit tells it from the right one."""

    passed: int = 0
    failed: int = 0
    bit_equal: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    diagnoses: Counter[str] = field(default_factory=Counter)

    @property
    def judged(self) -> int:
        return self.passed + self.failed


@dataclass
class Right(Count):
    """Of the kernel as it is, on one recording."""

    dtype: str = ""
    errors: list[tuple[float, float]] = field(default_factory=list)
    """Relative errors, the kernel's and the reference's, of each checkpoint."""

    @property
    def ratio(self) -> float:
        return error_ratio(self.errors)

    @property
    def as_accurate(self) -> bool:
        """In float32 every right kernel is: what differs is the order of its sums."""
        return self.dtype == "f32" or not self.ratio > AS_ACCURATE


def error_ratio(errors: list[tuple[float, float]]) -> float:
    """The kernel's error over the reference's, over all checkpoints."""
    own, reference = (math.hypot(*(pair[i] for pair in errors)) for i in (0, 1))
    return own / reference if reference else float("nan")


Outputs = dict[str, dict[str, torch.Tensor]]


@cache
def right(kernel: Kernel, dtype: str) -> tuple[dict[str, Right], Counter[str]]:
    """The kernel as it is, by recording, and why it takes some cases not."""
    found: dict[str, Right] = {}
    unsupported: Counter[str] = Counter()
    for folder in folders(dtype, FRESH):
        references = judged.reference_errors(folder)
        cases = {case.id: case for case in judged.cases(folder).get(kernel.block, [])}
        outputs = _computed(kernel, cases.values(), unsupported)
        for verdict in judged.judge(folder, outputs) if outputs else ():
            count = found.setdefault(f"{folder.parent.name}/{folder.name}", Right(dtype=dtype))
            _count(count, verdict)
            own = relative_error(folder, cases[verdict.checkpoint], outputs[verdict.checkpoint])
            count.errors.append((own, references[verdict.checkpoint]))
    return found, unsupported


@cache
def mistakes(kernel: Kernel, dtype: str) -> dict[str, Count]:
    """The kernel with each mistake, on every recording that can show it."""
    found: dict[str, Count] = {}
    for folder in folders(dtype, FRESH):
        cases = judged.cases(folder).get(kernel.block, [])
        if not cases:
            continue
        outputs = _computed(kernel, cases, Counter())
        for mistake in wrong_operands.MISTAKES[kernel.block]:
            count = found.setdefault(mistake.__name__, Count())
            wrong = dict(_mistaken(kernel, cases, outputs, mistake, count))
            for verdict in judged.judge(folder, wrong) if wrong else ():
                _count(count, verdict)
    return found


def _mistaken(
    kernel: Kernel, cases: list[Case], outputs: Outputs, mistake: wrong_operands.Mistake,
    count: Count,
) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:  # fmt: skip
    for case in cases:
        wrong = mistake(case) if case.id in outputs else None
        if wrong is None:
            continue
        try:
            made = kernel.outputs(wrong)
        except UnsupportedError:
            continue
        if all(torch.equal(made[name], outputs[case.id][name]) for name in made):
            count.bit_equal += 1
        else:
            yield case.id, made


def _computed(kernel: Kernel, cases: Iterable[Case], unsupported: Counter[str]) -> Outputs:
    outputs: Outputs = {}
    for case in cases:
        try:
            outputs[case.id] = kernel.outputs(case)
        except UnsupportedError as reason:
            unsupported[str(reason)] += 1
    return outputs


def _count(count: Count, verdict: judged.Judged) -> None:
    if verdict.passed:
        count.passed += 1
        return
    count.failed += 1
    count.reasons[verdict.reason] += 1
    count.diagnoses[verdict.diagnosis] += 1


def relative_error(folder: Path, case: Case, outputs: dict[str, torch.Tensor]) -> float:
    """sqrt(sum (y - o)^2 / sum o^2) of the stored rows, the worst of the outputs, o in float64."""
    rows = judged.stored_rows(folder)
    found = 0.0
    for name, wanted in _exact(case).items():
        given = outputs[name].double()
        if (case.id, name) in rows:
            axis, index = rows[case.id, name]
            wanted, given = (each.index_select(axis, index) for each in (wanted, given))
        found = max(found, float((given - wanted).norm() / wanted.norm().clamp_min(1e-300)))
    return found


_kept: dict[int, tuple[Case, rounding.Outputs]] = {}


def _exact(case: Case) -> rounding.Outputs:
    if id(case) not in _kept:
        _kept[id(case)] = (case, rounding.exact(case))  # the case, so that its id stays its own
    return _kept[id(case)][1]


@cache
def best_candidates(kernel: Kernel, dtype: str, cases: int = 2) -> list[tuple[float, str]]:
    """Candidates of rounding.py and the share of bits that differ, of the longest recordings."""
    sizes: Counter[str] = Counter()
    differ: dict[str, float] = {}
    for folder in folders(dtype, FRESH)[-2:]:
        for case in judged.cases(folder).get(kernel.block, [])[:cases]:
            try:
                outputs = kernel.outputs(case)
            except UnsupportedError:
                continue
            size = sum(tensor.numel() for tensor in outputs.values())
            for name, share in rounding.shares(case, outputs):
                sizes[name] += size
                differ[name] = differ.get(name, 0.0) + share * size
    return sorted((differ[name] / sizes[name], name) for name in differ)
