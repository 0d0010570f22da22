"""Products of float32 that an accelerator makes in TF32, where torch allows it.

TF32 keeps 10 bits of a significand behind the point (NVIDIA, A100 whitepaper, 2020): operands of a
product are rounded to it, sums stay in float32. torch allows it in cuDNN's convolutions by default
and in matrix products when asked (torch.backends.{cuda.matmul,cudnn}.allow_tf32). Whether a run had
it shows in its result alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from .simulation import Noise

ANYWHERE = frozenset({"matmul", "cudnn"})
"""Both switches of torch."""
TF32_UNIT = 2.0**-11
"""Its unit roundoff."""
CUT_OFF = 0.72 * 2.0**-10
"""Mean relative loss of a product whose two operands are cut off rather than rounded, as tensor
cores do with float32 bits that no instruction has rounded: 2 x 2^-10 / 2 over the mean 1 / 1.39 of
a significand."""

_LEAST = 1e-12
"""A distance below which is none."""
FAR = 8.0
"""Times what simulated kernels are off by, that is no float32."""

_OPERANDS: dict[str, tuple[str, tuple[int, ...]]] = {
    "mm": ("matmul", (0, 1)),
    "bmm": ("matmul", (0, 1)),
    "addmm": ("matmul", (1, 2)),
    "baddbmm": ("matmul", (1, 2)),
    "_scaled_dot_product_efficient_attention": ("matmul", (0, 1, 2)),
    "_scaled_dot_product_attention_math": ("matmul", (0, 1, 2)),
    "_scaled_dot_product_flash_attention_for_cpu": ("matmul", (0, 1, 2)),
    "_grouped_mm": ("matmul", (0, 1)),
    "grouped_mm_fallback": ("matmul", (0, 1)),
    "convolution": ("cudnn", (0, 1)),
}
"""Which switch of torch an operation asks, and which of its arguments are multiplied."""


def allowed() -> frozenset[str]:
    """The switches that are on."""
    owners = {"matmul": torch.backends.cuda.matmul, "cudnn": torch.backends.cudnn}
    return frozenset(name for name, owner in owners.items() if _is_on(owner))


def may_be_tf32(t: torch.Tensor) -> bool:
    """Whether torch's switches count for what is made where t is."""
    return t.is_cuda


def _is_on(owner: object) -> bool:
    precision = getattr(owner, "fp32_precision", None)  # torch 2.9; once set, the other raises
    if precision in ("tf32", "ieee"):
        return bool(precision == "tf32")
    try:
        return bool(getattr(owner, "allow_tf32", False))
    except RuntimeError:  # both ways to ask were used
        return False


def in_tf32(name: str, stores: torch.dtype, products: frozenset[str]) -> tuple[int, ...]:
    """The arguments that this operation rounds to TF32; none where it does not."""
    kind, operands = _OPERANDS.get(name, ("", ()))
    return operands if kind in products and stores == torch.float32 else ()


def rounded_to_tf32(x: torch.Tensor) -> torch.Tensor:
    """To the nearest, ties to even; in the dtype of x."""
    bits = x.float().contiguous().view(torch.int32)
    kept = (bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF
    rounded = kept.view(torch.float32)
    return torch.where(x.isfinite() & rounded.isfinite(), rounded.to(x.dtype), x)


def cut_to_tf32(x: torch.Tensor) -> torch.Tensor:
    """Towards zero, as a tensor core reads the bits of a float32; in the dtype of x."""
    bits = x.float().contiguous().view(torch.int32)
    return torch.where(x.isfinite(), (bits & ~0x1FFF).view(torch.float32).to(x.dtype), x)


def cut_off(exact: torch.Tensor) -> Noise:
    """How far kernels whose operands are cut off to TF32 are: all results by the same share."""
    return Noise(exact.new_full((1,) * exact.ndim, CUT_OFF), exact, habit=True)


RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
"""Functions of torch whose products of matrices are cuDNN's."""


def ways(kinds: frozenset[str], recurrent: bool) -> list[frozenset[str]]:
    """What a run may have done where these switches are on: none in TF32, those, or, where it has
    recurrent layers, all."""
    every = [frozenset[str](), kinds, ANYWHERE if recurrent and "cudnn" in kinds else kinds]
    return list(dict.fromkeys(every))


def way_of_the_run(
    off: Mapping[frozenset[str], Sequence[float]],
    errors: Mapping[frozenset[str], Sequence[float]],
    error: Sequence[float],
) -> frozenset[str]:
    """The way that is nearest to a run; where that is float32, which is off by far less than the
    run, the way that is off by about as much.

    Of each way given how far its outputs are from the run's and from the oracle's, and of the run
    how far its are from the oracle's. Only outputs count that tell the ways apart, if there are
    any: not what any arithmetic is far off in, such as a running mean of about 0 or the end of a
    deep model.
    """
    none = frozenset[str]()
    plain = errors[none]
    telling = [
        at
        for at in range(len(error))
        if any(it[at] > FAR * max(plain[at], _LEAST) for it in errors.values())
    ] or range(len(error))

    def typical(distances: Sequence[float]) -> float:
        """Their geometric mean."""
        logs = [math.log(max(distances[at], _LEAST)) for at in telling]
        return math.exp(sum(logs) / len(logs)) if logs else 0.0

    best = min(off, key=lambda way: typical(off[way]))
    size = typical(error)
    if best or not 0 < typical(plain) < size / FAR:
        return best
    able = {way: typical(it) for way, it in errors.items() if way and typical(it) > size / FAR}
    return min(able, key=lambda way: abs(math.log(able[way] / size)), default=none)


def distance(r: torch.Tensor, model: torch.Tensor) -> float:
    """Between what a run gave and what a model of it gives; 0 of what is no float32."""
    if r.dtype != torch.float32 or r.shape != model.shape:
        return 0.0
    off = (r.double() - model.double()).nan_to_num(0.0, 0.0, 0.0)
    return float(off.norm() / r.double().nan_to_num(0.0, 0.0, 0.0).norm().clamp_min(1e-300))
