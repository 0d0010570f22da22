"""Every operation by itself: what is not taken for right is an alarm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from python_inspector.api.sealed import Sealed
from python_inspector.benchmarks import opinfo
from python_inspector.benchmarks.samples import operations, taken
from python_inspector.benchmarks.stated import GOOD, judged

F = "nn.functional."
CATALOGUE: dict[str, Sequence[str]] = {
    "of one operand": (
        "neg", "reciprocal", "exp", "expm1", "log", "log1p", "sin", "cos", "abs", "square", "sqrt",
        "rsqrt", "tanh", "sigmoid", "floor", "ceil", "round", "sign", "erf", f"{F}relu", f"{F}elu",
        f"{F}leaky_relu", f"{F}gelu", f"{F}silu", f"{F}softplus",
    ),
    "of several": (
        "add", "sub", "mul", "div.no_rounding_mode", "div.floor_rounding", "div.trunc_rounding",
        "pow", "minimum", "maximum", "eq", "ne", "lt", "le", "gt", "ge", "logical_and",
        "logical_or", "where", "addcmul", "masked_fill",
        f"{F}scaled_dot_product_attention",
    ),
    "along axes": (
        "sum", "mean", "prod", "amin", "amax", "min.reduction_with_dim", "max.reduction_with_dim",
        "argmin", "argmax", "any", "all", "cumsum", "logsumexp", "norm", "linalg.vector_norm",
        "topk", "sort", "softmax", "softmax.with_dtype", "log_softmax",
    ),
    "by index": (
        f"{F}embedding", "index_select", "gather", "index_add", "scatter_add", "fill", "full",
        "ones", "zeros", "arange",
    ),
    "moved and cast": (
        "to", "double", "float", "half", "bfloat16", "int", "long", "bool", "byte", "char", "clone",
        "contiguous", "cat", "narrow", "permute", "transpose", "expand", "flip", "roll",
        "repeat_interleave", f"{F}pad.constant", f"{F}pad.reflect", f"{F}pad.replicate",
        f"{F}pad.circular",
    ),
    "products": (
        "mm", "bmm", "matmul", "addmm", "baddbmm", "addmv", "mv", "dot", f"{F}linear",
        f"{F}conv1d", f"{F}conv2d", f"{F}conv_transpose1d", f"{F}conv_transpose2d",
    ),
    "norms and pools": (
        f"{F}layer_norm", f"{F}rms_norm", f"{F}group_norm", f"{F}avg_pool1d", f"{F}avg_pool2d",
        f"{F}max_pool1d", f"{F}max_pool2d", f"{F}upsample_nearest", f"{F}interpolate.nearest",
    ),
}  # fmt: skip
"""The operations of `harness support --ops` that PyTorch has samples of, by its names."""


@dataclass(frozen=True)
class Row:
    """Of one operation how many sets of inputs have which status, and what is an alarm."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    alarms: Sequence[str] = ()

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {status}" for status, count in self.counts.items())
        return "\n  ".join([f"{self.name}: {counts or 'nothing judged'}", *self.alarms])


def row(name: str, most: int, dtypes: Sequence[str] = (), device: str = "cpu") -> Row:
    """`most` samples of each dtype that it takes, of `dtypes` alone where they are given."""
    try:
        takes = next(taken(op, device) for op in operations() if op.full_name == name)
        chosen = [it for it in takes if not dtypes or it in dtypes]
        if not chosen:
            return Row(name)
        stated = opinfo.stated(name, most=most, dtypes=chosen, device=device)
        found = judged(stated, Sealed(), explain=False)
    except Exception as error:
        return Row(name, alarms=[f"raises {type(error).__name__}: {error}"])
    alarms = [
        f"{inputs}: {it.status}: {it.reason}"
        for inputs, it in found.items()
        if it.status not in GOOD
    ]
    return Row(name, Counter(it.status for it in found.values()), alarms)


def of_catalogue() -> Iterator[str]:
    for names in CATALOGUE.values():
        yield from names
