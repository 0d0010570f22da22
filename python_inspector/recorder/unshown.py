"""What the operands of a call cannot show, whatever its code is: values that are alike, operands
that are equal, operands that the results do not depend on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ..taps.calls import bound_arguments
from ..taps.generic import tensors_of
from ..trace.planting import forms, same_values
from ..trace.replay import Rerun, run_as_it_is
from ..trace.tape import Tape
from ..trace.trials import Deadline
from .one_call import Kept

Said = tuple[str, str]
"""What names it, the same for all calls, and what is said of it."""


def unshown(kept: Kept, tape: Tape | None, deadline: Deadline) -> Iterator[Said]:
    """As long as there is time for the last of these, which runs the call again where there is no
    tape of it."""
    operands = {name: tensor for name, (tensor, _) in kept.block.inputs.items()}
    for name, tensor in {**operands, **kept.block.weights}.items():
        yield from _alike(name, tensor)
    yield from _the_same(operands)
    yield from _without_effect(kept, tape, deadline)


def _alike(name: str, tensor: torch.Tensor) -> Iterator[Said]:
    """What is read at another index along an axis is the same."""
    if tensor.is_complex() or tensor.dtype == torch.bool or tensor.dtype.itemsize < 2:
        return
    axes = [axis for axis, size in enumerate(tensor.shape) if size > 1 and _repeats(tensor, axis)]
    if tensor.is_floating_point() and axes and len(axes) == sum(size > 1 for size in tensor.shape):
        yield f"elements of {name}", f"which element of {name} is read: all are equal"
        return
    for axis in axes:
        words = f"the index of axis {axis} at which {name} is read: all are equal"
        yield f"{name} along {axis}", words


def _repeats(tensor: torch.Tensor, axis: int) -> bool:
    first = tensor.narrow(axis, 0, 1)
    return bool((tensor.narrow(axis, 1, 1) == first).all()) and bool((tensor == first).all())


def _the_same(operands: Mapping[str, torch.Tensor]) -> Iterator[Said]:
    """Two operands of one form with the same values: a kernel that takes one for the other."""
    names = list(operands)
    for i, name in enumerate(names):
        for other in names[i + 1 :]:
            a, b = operands[name], operands[other]
            alike = (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
            if alike and a.numel() > 1 and torch.equal(a, b):
                yield f"{name} for {other}", f"{name} in place of {other}: they are equal"


def _without_effect(kept: Kept, tape: Tape | None, deadline: Deadline) -> Iterator[Said]:
    """Operands with other values that give the same results."""
    with torch.no_grad():
        # What was observed may be that of more rows.
        arguments = _arguments_of(kept)
        right = tape.right if tape else _outputs(kept, {})
        for name, tensor in tensors_of(arguments, lambda t: t).items():
            if right is None or deadline.is_over:
                return
            if name in kept.observed.changed or not tensor.numel() or _may_end_all(tensor):
                continue
            other = _other_values(tensor)
            found = tape.with_values(tensor, other) if tape else None
            if found is None:
                found = _outputs(kept, {id(tensor): other})
            if found is not None and _same(found, right):
                yield f"values of {name}", f"the values of {name}: other ones give the same"


def _same(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    return forms(a) == forms(b) and all(same_values(a[name], b[name]) for name in b)


def _may_end_all(tensor: torch.Tensor) -> bool:
    """On a GPU an index beyond its table ends the process's use of it."""
    return tensor.device.type != "cpu" and not tensor.is_floating_point()


def _other_values(tensor: torch.Tensor) -> torch.Tensor:
    """Whole numbers stay within the range of those that are there: they may be indices."""
    if tensor.is_floating_point() or tensor.is_complex():
        # torch has no sums of 8 bits
        wide = tensor if tensor.dtype.itemsize > 1 else tensor.float()
        return ((wide + 1).roll(1) * -1.5).to(tensor.dtype)
    if tensor.dtype == torch.bool:
        return ~tensor
    other = tensor.flatten().roll(1).reshape(tensor.shape)
    return other if not torch.equal(other, tensor) else tensor.new_full(tensor.shape, 0)


def _arguments_of(kept: Kept) -> dict[str, Any]:
    """Those of the call by name; nothing runs."""
    found: dict[str, Any] = {}

    def bind(function: Any, args: Any, kwargs: Any, modules: Any = ()) -> Rerun:
        found.update(bound_arguments(function, args, kwargs))
        return Rerun(None, {})

    kept.again(bind)
    return found


def _outputs(kept: Kept, instead: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor] | None:
    """Of a run with other operands; None where the code does not take them."""

    def run(function: Any, args: Any, kwargs: Any, modules: Any = ()) -> Rerun:
        def change(value: Any) -> Any:
            return instead.get(id(value), value)

        return run_as_it_is(function, tree_map(change, args), tree_map(change, kwargs), modules)

    try:
        rerun = kept.again(run)
        named = kept.block.outputs(rerun.result, rerun.twin)
    except Exception:  # of code that says nothing of such operands
        return None
    return {name: tensor for name, (tensor, _) in named.items()}
