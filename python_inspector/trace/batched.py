"""One aten operation on stacks of samples: [rows, ...] operands together with ordinary ones.

Elementwise operations, products, sums over axes and joins work on the stack as it is, everything
else row by row: inside of a dispatch mode torch.func.vmap fails, or crashes the process (2.13, on
gather, index_add, cumsum).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from .narrow_product import is_narrow, product_of_stack
from .simulation import product

aten = torch.ops.aten

_AXES_AT: dict[OpOverload, int] = {
    aten.sum.dim_IntList: 1,
    aten.mean.dim: 1,
    aten.amax.default: 1,
    aten.amin.default: 1,
    aten._softmax.default: 1,
    aten._log_softmax.default: 1,
    aten.cumsum.default: 1,
    aten.var.correction: 1,
    aten.all.dim: 1,
    aten.any.dim: 1,
}
"""Operations over axes, and which argument names them."""
_AS_IT_IS = {aten.clone.default, aten._to_copy.default}


def batched(
    func: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    stacked: Callable[[Any], bool],
    rows: int,
) -> Any:
    """func on every row; `stacked` says which tensors among the arguments have rows."""
    if torch.Tag.pointwise in func.tags or func is aten.copy_.default:
        return func(*_aligned(args, stacked), **kwargs)
    if func in _AS_IT_IS:
        return func(*args, **kwargs)
    if func in _AXES_AT and len(args) > _AXES_AT[func]:
        return _over_axes(func, args, kwargs)
    if func in (aten.mm.default, aten.bmm.default):
        return _product(args[0], args[1], stacked)
    if func in (aten.addmm.default, aten.baddbmm.default):
        made = _product(args[1], args[2], stacked)
        has_rows = any(map(stacked, args[1:3]))
        first, second = _aligned((args[0], made), lambda t: has_rows if t is made else stacked(t))
        return kwargs.get("beta", 1) * first + kwargs.get("alpha", 1) * second
    if func is aten.cat.default:
        return _joined(args, stacked, rows)
    if func is aten.gather.default:
        return _gathered(args, stacked, rows)
    return _mapped(func, args, kwargs, stacked, rows)


def _product(a: torch.Tensor, b: torch.Tensor, stacked: Callable[[Any], bool]) -> torch.Tensor:
    alone = stacked(a) and not stacked(b)
    return product_of_stack(a, b) if alone and is_narrow(a, b) else product(a, b)


def _aligned(args: Sequence[Any], stacked: Callable[[Any], bool]) -> list[Any]:
    """Operands that broadcast as those of one run do: stacks have their rows in front of all."""
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    rank = max(a.ndim - stacked(a) for a in tensors)

    def align(a: Any) -> Any:
        if not isinstance(a, torch.Tensor) or not stacked(a) or a.ndim == rank + 1:
            return a
        return a.reshape(a.shape[0], *[1] * (rank + 1 - a.ndim), *a.shape[1:])

    return [align(a) for a in args]


def _over_axes(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    at, x = _AXES_AT[func], args[0]
    axes = args[at]
    if axes is None or axes == []:
        axes = list(range(x.ndim - 1))
    moved: Any
    if isinstance(axes, int):
        moved = axes + 1 if axes >= 0 else axes
    else:
        moved = [axis + 1 if axis >= 0 else axis for axis in axes]
    return func(*args[:at], moved, *args[at + 1 :], **kwargs)


def _joined(args: Sequence[Any], stacked: Callable[[Any], bool], rows: int) -> torch.Tensor:
    axis = args[1] if len(args) > 1 else 0
    joined = [t for t in args[0] if t.shape != (0,)]  # torch lets such tensors be joined to any
    parts = [t if stacked(t) else t.expand(rows, *t.shape) for t in joined]
    return torch.cat(parts, axis + 1 if axis >= 0 else axis)


def _gathered(args: Sequence[Any], stacked: Callable[[Any], bool], rows: int) -> torch.Tensor:
    x, axis, index = args[:3]
    x, index = (t if stacked(t) else t.expand(rows, *t.shape) for t in (x, index))
    return torch.gather(x, axis + 1 if axis >= 0 else axis, index)


def _mapped(
    func: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    stacked: Callable[[Any], bool],
    rows: int,
) -> Any:
    flat, spec = tree_flatten((tuple(args), dict(kwargs)))
    with_rows = [isinstance(a, torch.Tensor) and stacked(a) for a in flat]
    given = [a for a, has in zip(flat, with_rows, strict=True) if has]

    def call(*values: torch.Tensor) -> Any:
        left = iter(values)
        filled = [next(left) if has else a for a, has in zip(flat, with_rows, strict=True)]
        one, named = tree_unflatten(filled, spec)
        return func(*one, **named)

    results = [call(*(t[row] for t in given)) for row in range(rows)]  # writes go to the stack
    return tree_map(lambda *parts: _stack(parts), results[0], *results[1:])


def _stack(parts: Sequence[Any]) -> Any:
    return torch.stack(list(parts)) if isinstance(parts[0], torch.Tensor) else parts[0]
