"""What the recorder learns of a call by running it again: oracle, simulated kernels, stability."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from python_inspector.format.axes import Named
from python_inspector.oracle.judgement import Judgement
from python_inspector.oracle.lift import LiftError
from python_inspector.oracle.replay import Again, run_as_it_is, run_lifted
from python_inspector.oracle.rounded import RoundedRunError
from python_inspector.oracle.spread import Outputs, Simulated, simulate


@dataclass
class Reruns:
    """The outputs of a call's reruns, by name; None where there was none."""

    oracle: dict[str, Named] | None = None
    """In float64."""
    simulated: Simulated | None = None
    repeated: dict[str, Named] | None = None
    """As the model computes them, once more."""
    judgement: Judgement | None = None
    """Other ways to round, and planted bugs, of a call without a native block."""


def rerun(
    outputs: Outputs, again: Again, seed: str, *, runs: int, repeat: bool, liftable: bool
) -> tuple[Reruns, list[str]]:
    """Runs the call again on copies of its inputs as they are now, and what to warn of.

    `outputs` reads a result; `seed` names the call, for the noise of `runs` simulated kernels;
    `repeat` asks for a second real run. A call that is `liftable` has an oracle or is an error.
    """
    result, where = Reruns(), seed.rpartition("#")[0]
    warnings: list[str] = []
    if repeat:
        repeated = again(run_as_it_is)
        result.repeated = outputs(repeated.result, repeated.twin)
    try:
        lifted = again(run_lifted)
    except LiftError as error:
        if liftable:
            raise
        return result, [f"{where} has no oracle: {error}"]
    result.oracle = outputs(lifted.result, lifted.twin)
    if runs:
        try:
            result.simulated = simulate(again, outputs, runs, seed)
        except RoundedRunError as error:
            warnings.append(f"{where} has no rounded model: {error}")
    return result, warnings


def instability(r: torch.Tensor, repeated: torch.Tensor) -> float:
    """sqrt(sum (r' - r)^2 / sum r^2): 0 for the same values, Inf where one is not finite."""
    if r.shape != repeated.shape or not r.is_floating_point():
        return 0.0
    same = (r == repeated) | (r.isnan() & repeated.isnan())
    if bool(same.all()):
        return 0.0
    off = torch.where(same, 0.0, repeated.double() - r.double())
    size = torch.where(r.isfinite(), r.double(), 0.0).norm()
    error = float(off.norm() / size) if float(size) else float("inf")
    return error if error == error else float("inf")
