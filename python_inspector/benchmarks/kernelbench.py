"""KernelBench's form (github.com/ScalingIntelligence/KernelBench): a problem is a file with a class
Model and functions get_inputs and get_init_inputs, a candidate one with a class ModelNew.

Both are constructed with the same arguments under the same seed, so their weights are alike, and
run in the mode in which they are shipped: buffers that the call changes, statistics of a batch
norm, are results. The candidate is constructed in its own process, which never imports the problem.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..api.drawing import draw
from ..api.sealed import Made
from ..errors import UsageError
from ..named_code import load
from ..recorder.training import changed_buffers, with_state
from .files import apart, existing, loaded
from .stated import HARD, OWN, Stated
from .tensors import placed

KINDS = ("normal", "outliers", "small", "sparse")
"""Of inputs that are drawn; those of the benchmark are seldom negative."""


def stated(
    problem: Path,
    solution: Path,
    *,
    inputs: Sequence[str] = (OWN, HARD),
    seed: int = 42,
    device: str = "cpu",
    evaluated: bool = False,
) -> Stated:
    """Inputs "own" are the problem's, "hard" are drawn in their shapes; `evaluated` sets eval mode.
    Raises UsageError for files of another form."""
    existing(solution)
    with apart(problem.parent):
        init = tuple(loaded(f"{problem}:get_init_inputs")())
        torch.manual_seed(seed)
        own = tuple(placed(loaded(f"{problem}:get_inputs")(), device))
        model = constructed(loaded(f"{problem}:Model"), init, seed, evaluated)
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"{problem}: Model is no torch.nn.Module")
    model = model.to(device)
    changed = changed_buffers(model, own)
    arguments = (str(solution.resolve()), init, seed, device, evaluated, changed)
    given = {OWN: own, HARD: tuple(_drawn(t, device) for t in own)}
    if not any(isinstance(t, torch.Tensor) for t in own):
        given[HARD] = own
    return Stated(
        like=with_state(model, changed) if changed else model,
        inputs={kind: given[kind] for kind in inputs},
        candidate=Made(f"{__name__}:candidate", arguments),
    )


def constructed(kind: Any, init: Sequence[Any], seed: int, evaluated: bool) -> Any:
    torch.manual_seed(seed)
    made = kind(*init)
    return made.eval() if evaluated and isinstance(made, torch.nn.Module) else made


def _drawn(value: Any, device: str) -> Any:
    """A draw in the shape of a tensor of floats; anything else as it is."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
        return value
    return draw(tuple(value.shape), value.dtype, kinds=KINDS, device=device)


def candidate(
    file: str,
    init: Sequence[Any],
    seed: int,
    device: str,
    evaluated: bool,
    changed: Sequence[str],
) -> Callable[..., Any]:
    """In the candidate's process: its module, as KernelBench constructs it. Each call begins with
    the buffers that it was constructed with; those `changed` are results where it has them."""
    made = constructed(load(f"{file}:ModelNew"), init, seed, evaluated)
    if not isinstance(made, torch.nn.Module):
        return made
    made = made.to(device)
    if not changed:
        return made
    first = {name: t.detach().clone() for name, t in made.named_buffers()}

    def call(*args: Any) -> Any:
        with torch.no_grad():
            for name, t in made.named_buffers():
                t.copy_(first[name])
        result = made(*args)
        after = dict(made.named_buffers())
        return result, {name: after[name].clone() for name in changed if name in after}

    return call
