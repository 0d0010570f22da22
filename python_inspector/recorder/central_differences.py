"""Float64 gradients held to what outputs do when an operand moves.

Autograd's formulas are torch's, but an autograd.Function's backward is anyone's: it would be its
own oracle. The forward is run in float64 at both sides of each operand, with the choices of the
run held.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

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

        def loss(arguments: Arguments) -> tuple[float, float]:
            replay = Replay(given)
            args, kwargs = arguments
            run = run_lifted(gradients.loss, args, kwargs, [gradients.module], replay=replay)
            whole, terms = run.result.tolist()
            return whole, terms

        return _disagreement(gradients, arguments, exact, loss)


def _disagreement(
    gradients: Gradients,
    arguments: Arguments,
    exact: Mapping[str, torch.Tensor],
    loss: Callable[[Arguments], tuple[float, float]],
) -> str:
    """`loss`: what the outputs add up to, and all that is added up for it."""
    operands = [it for it in gradients.operands(arguments).items() if d_of(it[0]) in exact]
    here, terms = loss(arguments)
    rounding, dice = ROUNDING * terms, torch.Generator().manual_seed(1)
    for i in range(max(DIRECTIONS, len(operands))):
        name, x = operands[i % len(operands)]
        gradient = exact[d_of(name)]
        v = torch.randn(x.shape, generator=dice, dtype=torch.float64, device="cpu").to(x.device)
        moved = gradient != 0
        v *= moved  # a padding row changes the outputs, and has no gradient by definition
        size = float(x.double()[moved].abs().mean()) if bool(moved.any()) else 0.0
        said, norm = float((gradient * v).sum()), float(gradient.norm())
        for h in STEPS:
            step = h * (size + 1e-3)
            up, down = (
                loss(gradients.moved(arguments, name, side * step * v))[0] for side in (1, -1)
            )
            found = (up - down) / (2 * step)
            off = abs(found - said)
            bends = abs(up - 2 * here + down) / step
            if not math.isfinite(off) or off <= MOST * norm + rounding / step or bends > off:
                break  # at a border either side has a slope of its own
        else:
            return (
                f"along a random direction of {name} the outputs of {gradients.name} change by "
                f"{found:.4g}, {d_of(name)} says {said:.4g}: {off / norm:.1e} of the gradient, at "
                f"most {MOST:.0e} is allowed"
            )
    return ""
