"""Float64 gradients held to what outputs do when an operand moves.

Autograd's formulas are torch's, but an autograd.Function's backward is anyone's: it would be its
own oracle. The forward is run in float64 at both sides of each operand, with the choices of the
run held.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..trace.given import Given, GivenError, Replay, UnliftableError
from ..trace.lift import LiftError
from ..trace.replay import run_lifted, run_watched
from ..trace.reruns import Reruns
from .gradients import Gradients
from .kernel_gradients import d_of
from .one_call import Arguments, undisturbed

DIRECTIONS = 16
STEPS = (1e-5, 1e-6, 1e-7)
"""Of the mean magnitude of what has a gradient. A smaller one tells a border that was crossed from
a gradient that is wrong."""
MOST = 1e-5
"""Of the gradient's norm. Right ones are within 5e-7; a term that is missing is above 1e-2."""
ROUNDING = 1e-14
"""Of all that the outputs add up to."""
NEXT = 1e-3
"""Of an operand's mean magnitude, to a point next to it."""
Loss = Callable[[Arguments], tuple[float, float]]
"""What the outputs add up to, and the magnitudes of all that is added up."""


def bad_oracle(
    gradients: Gradients, arguments: Arguments, reruns: Reruns
) -> tuple[str, tuple[str, ...]]:
    """Of a recorded call why its float64 gradients are not believed, "" where they are, and what
    is in doubt.

    torch's own formulas are right: where they alone are asked, and where there are no differences,
    what is found is such a doubt.
    """
    try:
        found = _disagreement_of(gradients, arguments, reruns)
    except (GivenError, LiftError, UnliftableError) as error:
        found = f"gradients of the reference are not held to differences: {error}"
    else:
        if found and gradients.functions:
            whose = " or ".join(gradients.functions)
            return f"bad oracle: {found}: the backward of {whose} is not that of its forward", ()
        found = f"{found}: something inside stops gradients (detach, no_grad)" if found else ""
    return "", (found,) if found else ()


def _disagreement_of(gradients: Gradients, arguments: Arguments, reruns: Reruns) -> str:
    exact = {name: t for name, (t, _) in (reruns.oracle or {}).items()}
    given = Given(unliftable=set(reruns.given.unliftable if reruns.given else ()))
    args, kwargs = arguments
    with undisturbed():
        run_watched(given)(gradients.loss, args, kwargs, [gradients.module])
        if given.opaque or not exact:
            return ""  # what an operation gives is held there, and the verdict says so

        def lifted(function: Callable[..., Any], arguments: Arguments, given: Given) -> Any:
            args, kwargs = arguments
            replay = Replay(given)
            return run_lifted(function, args, kwargs, [gradients.module], replay=replay).result

        def loss(arguments: Arguments) -> tuple[float, float]:
            whole, terms = lifted(gradients.loss, arguments, given).tolist()
            return whole, terms

        def slopes(arguments: Arguments) -> Mapping[str, torch.Tensor]:
            assert reruns.given is not None
            found: Mapping[str, torch.Tensor] = lifted(gradients.function, arguments, reruns.given)
            return found

        return _disagreement(gradients, arguments, exact, loss, slopes)


def _disagreement(
    gradients: Gradients,
    arguments: Arguments,
    exact: Mapping[str, torch.Tensor],
    loss: Loss,
    slopes: Callable[[Arguments], Mapping[str, torch.Tensor]],
) -> str:
    operands = [it for it in gradients.operands(arguments).items() if d_of(it[0]) in exact]
    dice, here = torch.Generator().manual_seed(1), loss(arguments)
    for i in range(max(DIRECTIONS, len(operands)) if operands else 0):
        name, x = operands[i % len(operands)]
        if _off(gradients, arguments, (name, x), exact[d_of(name)], (loss, here), dice):
            # Many borders at once, as of zeros before a relu: no other point is on them.
            by = NEXT * (float(x.double().abs().mean()) + 1e-3) * _normal(x, dice)
            nearby = gradients.moved(arguments, name, by)
            gradient = slopes(nearby)[d_of(name)]
            there = loss, loss(nearby)
            if found := _off(gradients, nearby, (name, x.double() + by), gradient, there, dice):
                return found
    return ""


def _off(
    gradients: Gradients,
    arguments: Arguments,
    operand: tuple[str, torch.Tensor],
    gradient: torch.Tensor,
    at: tuple[Loss, tuple[float, float]],
    dice: torch.Generator,
) -> str:
    """How far a gradient is from the differences along a random direction; "" where it agrees.
    `at`: the loss, and what it is here."""
    (name, x), (loss, (here, terms)) = operand, at
    rounding = ROUNDING * terms
    moved = gradient != 0
    v = _normal(x, dice) * moved  # a padding row has no gradient by definition, and changes outputs
    size = float(x.double()[moved].abs().mean()) if bool(moved.any()) else 0.0
    said, norm = float((gradient * v).sum()), float(gradient.norm())
    for h in STEPS:
        step = h * (size + 1e-3)
        up, down = (loss(gradients.moved(arguments, name, side * step * v))[0] for side in (1, -1))
        found = (up - down) / (2 * step)
        off = abs(found - said)
        bends = abs(up - 2 * here + down) / step
        if not math.isfinite(off) or off <= MOST * norm + rounding / step or bends > off:
            return ""  # at a border either side has a slope of its own
    return (
        f"along a random direction of {name} the outputs of {gradients.name} change by "
        f"{found:.4g}, {d_of(name)} says {said:.4g}: {off / norm:.1e} of the gradient, at most "
        f"{MOST:.0e} is allowed"
    )


def _normal(x: torch.Tensor, dice: torch.Generator) -> torch.Tensor:
    return torch.randn(x.shape, generator=dice, dtype=torch.float64, device="cpu").to(x.device)
