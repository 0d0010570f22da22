"""backward=True of check() and prepare(): the gradients of what `like` is given are outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from .inputs import Case
from .sealed import Replayed

if TYPE_CHECKING:
    from ..recorder.callables import Torch
    from ..recorder.gradients import Gradients
    from .how import How


def with_cotangents(
    like: Torch, cases: Sequence[Case], salt: int = 0
) -> tuple[Gradients, list[Case]]:
    """The gradients of `like`, and the cases with which they are asked for."""
    from ..recorder.gradients import Gradients

    gradients = Gradients(like, cases[0].arguments, cases[0].weights)
    return gradients, [
        replace(
            case,
            arguments=gradients.arguments(case.arguments, case.weights, salt + seed),
            weights={},
        )
        for seed, case in enumerate(cases)
    ]


def differentiated(
    like: Torch, cases: Sequence[Case], how: How, salt: int = 0
) -> tuple[Torch, list[Case], How]:
    """The function that returns the gradients of `like`, too, its cases, and how it is judged.

    UsageError where something else is asked for that says nothing of gradients. Where operands
    without elements leave none, all is as it was.
    """
    refused = {
        "arrays": how.arrays != "torch",
        "relations": bool(how.relations.demands),
        "valid": how.valid is not None,
    }
    for name, asked in refused.items():
        if asked:
            raise UsageError(f"backward=True and {name}= do not go together: leave one of them out")
    from ..recorder.gradients import EmptyError

    try:
        gradients, made = with_cotangents(like, cases, salt)
    except EmptyError:
        return like, list(cases), how
    return gradients.function, made, replace(how, gradients=gradients)


def kernel_of(function: Any, how: How) -> Any:
    """What is called of a kernel: with its gradients where they are asked for. One that was called
    already made them."""
    if isinstance(function, Replayed):
        return function
    if how.gradients is not None:
        return how.gradients.of_kernel(function)
    import torch

    is_operation = isinstance(function, type) and issubclass(function, torch.autograd.Function)
    return getattr(function, "apply", function) if is_operation else function
