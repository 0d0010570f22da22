"""Bounds of indices, asked before a changed operation runs on an accelerator.

There an index beyond its axis is no error of one call: it ends the process's use of the device. A
planted bug may lead any index astray.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..format.host_copy import is_host

INDEX_AT = {"gather": 2, "index_select": 2, "embedding": 1, "take": 1, "index_add": 2,
            "scatter": 2, "scatter_add": 2, "scatter_reduce": 2, "index_copy": 2,
            "index_fill": 2}  # fmt: skip
"""Which argument of an operation holds indices of its first, or of embedding's table."""

_CLASSES_AT = {"nll_loss_forward": (0, 1, 4), "nll_loss2d_forward": (0, 1, 4),
               "nll_loss_backward": (1, 2, 5), "nll_loss2d_backward": (1, 2, 5)}  # fmt: skip
"""Which arguments of an operation are rows of classes, a class of each, and the class that means
none."""
_FROM_THE_END = ("index", "index_put", "_unsafe_index", "take")
"""Operations that count a negative index from the end of its axis; to the others it is beyond."""
_BIASED = ("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention")
_BIAS = 3
_VECTOR = 16
"""Elements that an attention's kernel reads at once, at most."""


def is_whole(t: Any) -> bool:
    """Whether these are indices."""
    return isinstance(t, torch.Tensor) and t.dtype in (torch.int64, torch.int32)


def require_inside(op: str, args: Sequence[Any]) -> None:
    """IndexError where an index on an accelerator is beyond its axis; elsewhere torch says so."""
    for index, size in _indices(op, args):
        if is_host(index.device) or not index.numel():
            continue
        least, most = (int(v) for v in index.aminmax())
        lowest = -size if op in _FROM_THE_END else 0
        if most >= size or least < lowest:
            raise IndexError(f"[bounds] {op}: index {most if most >= size else least} of {size}")


def with_aligned_bias(op: str, args: Sequence[Any]) -> Sequence[Any]:
    """An attention's operands, its bias in rows of whole vectors where it is on an accelerator.

    Kernels read it that way without asking; torch pads a bias for them, unless that is the bug.
    """
    if op not in _BIASED or len(args) <= _BIAS:
        return args
    bias = args[_BIAS]
    if not isinstance(bias, torch.Tensor) or bias.ndim < 2 or is_host(bias.device):
        return args
    if not bias.stride(-2) % _VECTOR and not bias.storage_offset() % _VECTOR:
        return args
    columns = bias.shape[-1]
    wide = bias.new_zeros(*bias.shape[:-1], -(-columns // _VECTOR) * _VECTOR)
    wide[..., :columns] = bias
    return [*args[:_BIAS], wide[..., :columns], *args[_BIAS + 1 :]]


def _indices(op: str, args: Sequence[Any]) -> Iterator[tuple[torch.Tensor, int]]:
    """Indices and the size of the axis that they are of."""
    if op in ("index", "index_put", "_unsafe_index") and isinstance(args[1], (list, tuple)):
        for axis, index in enumerate(args[1]):
            if is_whole(index):
                yield index, args[0].shape[axis]
    elif op in _CLASSES_AT:
        rows, classes, none = (args[at] for at in _CLASSES_AT[op])
        yield classes[classes != none], rows.shape[min(rows.ndim - 1, 1)]
    elif (at := INDEX_AT.get(op)) is not None and len(args) > at and is_whole(args[at]):
        axis = args[1] if isinstance(args[1], int) and args[0].ndim else 0
        whole = op == "take" or not args[0].ndim
        yield args[at], args[0].numel() if whole else args[0].shape[axis]
