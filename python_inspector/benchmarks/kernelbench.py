"""KernelBench's form (github.com/ScalingIntelligence/KernelBench): a problem is a file with a class
Model and functions get_inputs and get_init_inputs, a candidate one with a class ModelNew.

Both are constructed with the same arguments under the same seed, so their weights are alike, and
run in the mode in which they are shipped; a batch norm in train mode is refused. The candidate is
constructed in its own process, which never imports the problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..api.checking import check
from ..api.drawing import draw
from ..api.sealed import Made, Sealed
from ..api.verdict import Verdict, WrongError
from ..errors import UsageError
from ..named_code import load

OWN, HARD = "own", "hard"
KINDS = ("normal", "outliers", "small", "sparse")
"""Of hard inputs; the problems' own are seldom negative."""


@dataclass(frozen=True)
class Problem:
    """What a file says: the module, the arguments of its constructor, and those of a call."""

    model: torch.nn.Module
    init: tuple[Any, ...]
    inputs: tuple[Any, ...]
    seed: int


def read(file: Path, seed: int) -> Problem:
    """Runs the file; UsageError where it lacks one of the three names."""
    init = tuple(load(f"{file}:get_init_inputs")())
    torch.manual_seed(seed)
    inputs = tuple(load(f"{file}:get_inputs")())
    model = constructed(load(f"{file}:Model"), init, seed)
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"{file}: Model is no torch.nn.Module")
    return Problem(model, init, inputs, seed)


def constructed(kind: Any, init: Sequence[Any], seed: int) -> Any:
    torch.manual_seed(seed)
    return kind(*init)


def candidate(file: str, init: Sequence[Any], seed: int, device: str) -> Any:
    """In the candidate's process: its module, as KernelBench constructs it."""
    made = constructed(load(f"{file}:ModelNew"), init, seed)
    return made.to(device) if isinstance(made, torch.nn.Module) else made


def judged(
    problem: Path,
    solution: Path,
    *,
    inputs: Sequence[str] = (OWN, HARD),
    seed: int = 42,
    salt: int | None = None,
    timeout: float = 60.0,
    device: str = "cpu",
) -> dict[str, Verdict]:
    """By kind of inputs the verdict on a candidate: "own" are the problem's, "hard" are drawn in
    their shapes. Raises UsageError for files of another form, RecordError where the problem itself
    cannot be judged."""
    stated = read(problem, seed)
    model = stated.model.to(device)
    own = tuple(t.to(device) if isinstance(t, torch.Tensor) else t for t in stated.inputs)
    maker = Made(f"{__name__}:candidate", (str(solution.resolve()), stated.init, seed, device))
    said = {}
    for kind in inputs:
        given = own if kind == OWN else tuple(_hard(t, device) for t in own)
        if kind == HARD and not any(isinstance(t, torch.Tensor) for t in own):
            continue
        try:
            said[kind] = check(maker, model, given, sealed=Sealed(timeout), salt=salt)
        except WrongError as error:
            said[kind] = error.verdict
    return said


def _hard(value: Any, device: str) -> Any:
    """A draw in the shape of a tensor of floats; anything else as it is."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
        return value
    return draw(tuple(value.shape), value.dtype, kinds=KINDS, device=device)


def status_of(verdicts: dict[str, Verdict]) -> str:
    """Of a candidate: wrong if it is wrong on any inputs, right if any proves it."""
    every = [verdict.status for verdict in verdicts.values()]
    wrong = [status for status in every if status not in ("pass", "blind")]
    return wrong[0] if wrong else "pass" if "pass" in every else "blind"
