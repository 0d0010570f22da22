"""torch's normalisations as one operation each, as correct kernels compute them.

Mean and reciprocal deviation of each simulated kernel are off as sums are, whatever way they are
made: in two passes, or by updates of both (Welford), whose deviation is off by what a rounded mean
does to every difference. They are in float32 inside, but for those that torch returns in 16 bits
(batch norm without 16-bit weights, group norm on a GPU): these are rounded to that before
they are used.
Elements are (x - mean) rstd w + b or x (rstd w) + (b - mean rstd w): the second form rounds
summands that cancel, which counts where a mean is large compared with its deviation.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from . import sequential
from .arithmetic import DRIFT, FUNCTIONS, STEP, SUMS, of_sum
from .reads import eps_of
from .simulation import NARROW, Operands, Simulation
from .stored import Dtypes

_LAYER = {"native_layer_norm", "_fused_rms_norm"}
_BATCH = {
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
    "cudnn_batch_norm", "miopen_batch_norm",
}  # fmt: skip


def is_norm(name: str) -> bool:
    return name in _LAYER or name in _BATCH or name == "native_group_norm"


@dataclass
class _Form:
    """The operand as [rows, ...] with the axes that statistics are over, and what broadcasts to
    it."""

    x: torch.Tensor
    axes: list[int]
    slope: torch.Tensor | None
    shift: torch.Tensor | None

    @property
    def terms(self) -> int:
        return math.prod(self.x.shape[axis] for axis in self.axes)


def normalise(
    name: str, func: OpOverload, operands: Operands, simulation: Simulation, dtypes: Dtypes
) -> list[torch.Tensor]:
    """Stacks of the output and the statistics that the operation returns, in its order."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, operands.args, strict=False)) | operands.kwargs
    form = _form(name, given, operands)
    eps = given.get("eps", given.get("epsilon"))
    eps = eps_of(operands.stores) if eps is None else float(eps)
    simulation.check(form.x[0].numel(), form.x.device)
    stores = None
    if name in _BATCH or (name == "native_group_norm" and rounds_statistics(form.x.device)):
        stores = _stored(dtypes, simulation)
    if given.get("running_mean") is not None and not given.get("training", False):
        mean, rstd = _running(given, operands, form, eps, simulation)
    else:
        mean, rstd = _statistics(form, eps, simulation, centred=name != "_fused_rms_norm")
        if stores is not None:
            mean, rstd = (t.to(stores).double() for t in (mean, rstd))
    out = _applied(form, mean, rstd, simulation)
    shape = _operand(given).shape[operands.has_rows(_operand(given)) :]
    if name in _BATCH:
        mean, rstd = mean.flatten(1), rstd.flatten(1)  # one of each channel
    statistics = (rstd,) if name == "_fused_rms_norm" else (mean, rstd)
    return [out.reshape(len(out), *shape), *statistics]


@functools.cache
def rounds_statistics(device: torch.device) -> bool:
    """Whether torch's group norm uses the statistics as it returns them: of these two the mean is
    no bfloat16, and the first would come out as 0."""
    x = torch.tensor([[[100.0, 100.5]]], dtype=torch.bfloat16, device=device)
    y = torch.native_group_norm(x, None, None, 1, 1, 2, 1, 1e-5)[0]
    return bool(y.flatten()[0].abs() < 0.5)


def _operand(given: dict[str, Any]) -> torch.Tensor:
    x: torch.Tensor = given["input"]
    return x


def _stored(dtypes: Dtypes, simulation: Simulation) -> torch.dtype | None:
    """What 16-bit dtype the statistics are rounded to; one that keeps the result keeps them."""
    statistic = dtypes[1] if len(dtypes) > 1 else None
    if statistic not in NARROW or simulation.keeps(statistic):
        return None
    return statistic


def _form(name: str, given: dict[str, Any], operands: Operands) -> _Form:
    def rows(t: torch.Tensor) -> torch.Tensor:
        return t if operands.has_rows(t) else t[None]

    x, axes = rows(given["input"]), [0]
    if name in _LAYER:
        behind = given["normalized_shape"]
        axes = list(range(x.ndim - len(behind), x.ndim))
        shape = [*[1] * (x.ndim - 1 - len(behind)), *behind]
    elif name == "native_group_norm":
        groups = int(given["group"])
        shape = [1, groups, x.shape[2] // groups, 1]
        x, axes = x.reshape(len(x), x.shape[1], *shape[1:3], -1), [3, 4]
    else:
        axes = [1, *range(3, x.ndim)]
        shape = [1, x.shape[2], *[1] * (x.ndim - 3)]

    def beside(t: torch.Tensor | None) -> torch.Tensor | None:
        return None if t is None else rows(t).reshape(-1, *shape)

    return _Form(x, axes, beside(given.get("weight")), beside(given.get("bias")))


def _running(
    given: dict[str, Any], operands: Operands, form: _Form, eps: float, simulation: Simulation
) -> tuple[torch.Tensor, torch.Tensor]:
    """Statistics that the operation is given. The second form rounds mean rstd w twice, and all
    elements of a channel share that."""
    found = []
    for key in ("running_mean", "running_var"):
        t = given[key] if operands.has_rows(given[key]) else given[key][None]
        found.append(t.double().reshape(len(t), 1, -1, *[1] * (form.x.ndim - 3)))
    mean = _off(found[0], 2**0.5 * DRIFT * found[0][0].abs(), simulation)
    return mean, torch.rsqrt(found[1] + eps)


def _statistics(
    form: _Form, eps: float, simulation: Simulation, *, centred: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    x, axes, n = form.x, form.axes, form.terms
    of_squares = DRIFT * n**0.5 / 2
    if not centred:
        squares = x.square()
        rstd = torch.rsqrt(squares.mean(axes, keepdim=True) + eps)
        alone = _of_sum(squares, axes, rstd, simulation)
        return torch.zeros_like(rstd[:1]), _off(rstd, of_squares * rstd[0], simulation, alone)
    exact = x.mean(axes, keepdim=True)
    inner = [axis - 1 for axis in axes]
    size = x[0].abs().mean(inner, keepdim=True)
    # Updates round the mean of i values to denormals' step, of which i / n is left at the end.
    steps = STEP * (1 + n / 3) ** 0.5
    alone = None
    if simulation.samples():
        alone = sequential.of_operation("mean", (x[0], inner), exact[0])
    mean = _off(exact.clone(), of_sum(size, exact[0], n, steps), simulation, alone)
    # About a mean that is off the variance is larger.
    squares = (x - exact).square()
    variance = squares.mean(axes, keepdim=True) + (mean - exact).square()
    rstd = torch.rsqrt(variance + eps)
    of_updates = SUMS * size * rstd[0]
    off = (of_updates.square() + of_squares**2).sqrt()
    return mean, _off(rstd, off * rstd[0], simulation, _of_sum(squares, axes, rstd, simulation))


def _of_sum(
    squares: torch.Tensor, axes: list[int], rstd: torch.Tensor, simulation: Simulation
) -> torch.Tensor | None:
    """What the reciprocal deviation of a sequential sum of these squares is off by."""
    if not simulation.samples():
        return None
    inner = [axis - 1 for axis in axes]
    off = sequential.of_operation("mean", (squares[0], inner), rstd[0])
    return None if off is None else -0.5 * rstd[0] ** 3 * off


def _applied(
    form: _Form, mean: torch.Tensor, rstd: torch.Tensor, simulation: Simulation
) -> torch.Tensor:
    factor = rstd if form.slope is None else rstd * form.slope
    shift = torch.zeros_like(rstd[:1]) if form.shift is None else form.shift
    out = (form.x - mean) * factor + shift
    summands = (form.x[0].abs() + mean[0].abs()) * factor[0].abs()
    # Two products are rounded to denormals' step, one of them before it is multiplied by the slope.
    slope = rstd.new_ones(()) if form.slope is None else form.slope[0].abs().clamp_min(1)
    steps = torch.minimum(summands, STEP * (1 + slope))
    off = FUNCTIONS * (out[0].abs() + shift[0].abs()) + steps
    scale = torch.hypot(off, SUMS * summands)
    return _off(out, scale, simulation)


def _off(
    t: torch.Tensor,
    scale: torch.Tensor,
    simulation: Simulation,
    alone: torch.Tensor | None = None,
) -> torch.Tensor:
    """A stack; of one row for all, or already one."""
    stacked = len(t) == simulation.rows
    return simulation.perturb(t if stacked else t[0], scale, stacked, alone=alone)
