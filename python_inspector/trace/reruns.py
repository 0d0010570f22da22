"""What the recorder learns of a call by running it again: oracle, simulated kernels, stability."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ..errors import UsageError
from ..format.axes import Named
from ..format.recording import call_of
from . import products
from .choices import any_doubt
from .contracts import Inside
from .given import Given, Replay, UnliftableError
from .judgement import Judgement
from .lift import LiftError
from .open_choices import Open, open_elements
from .replay import (
    Again,
    Rerun,
    run_as_it_is,
    run_following,
    run_lifted,
    run_rounded,
    run_watched,
)
from .simulation import Normals, Simulation
from .spread import Outputs, Simulated, simulate
from .writes import RoundedRunError

Known = Callable[[Given], Simulated | None]
"""From what a watched run found to what was kept of the call's simulated kernels."""
Settle = Callable[[Rerun, Given], None]
"""Tells a block what a watched run of its call used and changed."""


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
    undecided: dict[str, Open] = field(default_factory=dict)
    """Of outputs, the elements that depend on a choice which correct kernels may make otherwise."""
    given: Given | None = None
    """What the reruns followed, where they followed the reference."""
    inside: Inside = field(default_factory=Inside)
    """How simulated kernels departed from float32 arithmetic."""

    @property
    def words(self) -> frozenset[str]:
        """What of that the call's contract states."""
        return frozenset() if self.simulated is None else frozenset(self.inside.used)


def rerun(
    outputs: Outputs,
    again: Again,
    seed: str,
    *,
    runs: int,
    repeat: bool,
    inside: Inside | None = None,
) -> tuple[Reruns, list[str]]:
    """Runs the call again on copies of its inputs as they are now, and what to warn of.

    `outputs` reads a result; `seed` names the call, for the noise of `runs` simulated kernels,
    `inside` is how these depart from float32 arithmetic; `repeat` asks for a second real run.
    Raises LiftError where there is no oracle.
    """
    inside = inside or Inside()
    result, where = Reruns(inside=inside), call_of(seed)
    warnings: list[str] = []
    if repeat:
        repeated = again(run_as_it_is)
        result.repeated = outputs(repeated.result, repeated.twin)
    lifted = again(run_lifted)
    result.oracle = outputs(lifted.result, lifted.twin)
    if runs:
        try:
            result.simulated = simulate(again, outputs, runs, seed, inside=inside)
        except RoundedRunError as error:
            warnings.append(f"{where} has no rounded model: {error}")
    return result, warnings


def rerun_anything(
    outputs: Outputs,
    again: Again,
    seed: str,
    settle: Settle,
    *,
    runs: int,
    repeat: bool,
    inside: Inside | None = None,
    known: Known = lambda given: None,
    codes: Sequence[torch.Tensor] | None = None,
) -> tuple[Reruns, list[str]]:
    """As rerun(), of undescribed code: it follows the choices of the reference. Simulated kernels
    that are `known` are not run. `codes` are as in Given.

    An error that prevents an oracle becomes a warning. Raises torch.OutOfMemoryError.
    """
    given = Given(inside=inside or Inside(), codes=codes)
    result, where = Reruns(given=given), call_of(seed)
    try:
        repeated, oracle = exactly(outputs, again, settle, given)
        if repeat:
            result.repeated = repeated
    except (UsageError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        return result, [f"{where} has no oracle: {_line(error)}"]
    warnings = [
        f"{where}: what {name} computes is taken as given, its inside is not seen"
        for name in given.opaque
    ]
    result.oracle = oracle
    if not given.inside.products:
        given.inside = _as_the_run(again, outputs, given, oracle, seed)
    result.inside = given.inside
    if not runs:
        return result, warnings
    try:
        result.simulated = known(given) or simulate(again, outputs, runs, seed, given)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return result, [*warnings, f"{where} has no rounded model: {_line(error)}"]
    if any_doubt(given.choices) or given.lacks_keys:
        simulated = {} if result.simulated is None else result.simulated.outputs
        result.undecided = open_elements(outputs, again, oracle, simulated, given)
    return result, warnings


def exactly(
    outputs: Outputs, again: Again, settle: Settle, given: Given
) -> tuple[dict[str, Named], dict[str, Named]]:
    """What a call gives as it is, and in float64 with the same choices, which `given` notes."""
    repeated = again(run_watched(given))
    settle(repeated, given)
    as_it_is = outputs(repeated.result, repeated.twin)
    del repeated  # and its copies of the operands
    lifted = _lifted(again, given)
    exact = outputs(lifted.result, lifted.twin)
    for name, (t, _) in exact.items():
        if t in given.unseen:
            raise LiftError(
                f"{name} is what {' and '.join(given.opaque)} gave, whose inside is not seen; say "
                "what it computes: plumbline.register_decomposition"
            )
    return as_it_is, exact


def _lifted(again: Again, given: Given) -> Rerun:
    """The float64 run, where operations without a float64 kernel join what is given."""
    while True:
        try:
            return again(run_following(Replay(given, keeps=True)))
        except UnliftableError as error:
            if error.func in given.unliftable:
                raise LiftError(str(error)) from error
            given.unliftable.add(error.func)
            again(run_watched(given))


def _as_the_run(
    again: Again, outputs: Outputs, given: Given, oracle: dict[str, Named], seed: str
) -> Inside:
    """With products in TF32 by those switches of torch that allow it, where the run's own result is
    nearer to what that makes of it.

    Kernels that cut operands off are as far from rounded ones as from float32, and a deep model is
    far from any other run of it: what float32 is not off by, and TF32 is, is TF32 all the same.
    """
    kinds, asked = products.allowed(), given.inside
    if not kinds or not any(products.may_be_tf32(t) for t, _ in oracle.values()):
        return asked
    real = again(run_as_it_is)
    first = outputs(real.result, real.twin)
    off: dict[frozenset[str], list[float]] = {}
    errors: dict[frozenset[str], list[float]] = {}
    for tried in products.ways(kinds, given.recurrent):
        given.inside = asked.with_products(tried)
        rerun = again(run_rounded(Simulation(0, Normals(seed)), given))
        named = outputs(rerun.result, rerun.twin)
        off[tried] = _apart(first, named)
        errors[tried] = _apart(named, oracle)
    return asked.with_products(products.way_of_the_run(off, errors, _apart(first, oracle)))


def _apart(a: dict[str, Named], b: dict[str, Named]) -> list[float]:
    return [products.distance(t, b[name][0]) for name, (t, _) in a.items()]


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


def instability(r: torch.Tensor, repeated: torch.Tensor) -> float:
    """sqrt(sum (r' - r)^2 / sum r^2): 0 for the same values, Inf where one is not finite.

    Of whole numbers the share that differs.
    """
    if r.shape != repeated.shape:
        return 0.0
    if not r.is_floating_point():
        return float((r != repeated).float().mean()) if r.numel() else 0.0
    same = (r == repeated) | (r.isnan() & repeated.isnan())
    if bool(same.all()):
        return 0.0
    off = torch.where(same, 0.0, repeated.double() - r.double())
    size = torch.where(r.isfinite(), r.double(), 0.0).norm()
    error = float(off.norm() / size) if float(size) else float("inf")
    return error if error == error else float("inf")
