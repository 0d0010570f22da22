"""verify(backward=True): the gradients of a function of a block's forward, under recorded
cotangents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..format.recording import BACKWARD

COTANGENT = "cotangent."


class NoGradientsError(Exception):
    """What the function returned does not go back to what it was given."""


def differentiated(forward: Callable[..., Any], takes_call: str) -> Callable[..., Any]:
    """The function of a backward checkpoint: what `forward` returns, differentiated by what it is
    given. `takes_call` is how it takes the Call, which is the forward's."""

    def gradients(inputs: Any, weights: Any, params: Any, call: Any, outputs: Sequence[str]) -> Any:
        import torch

        handed = {n[len(COTANGENT) :]: g for n, g in inputs.items() if n.startswith(COTANGENT)}
        given = {n: t for n, t in inputs.items() if not n.startswith(COTANGENT)}
        wanted = [name.removeprefix("d_") for name in outputs]
        with torch.enable_grad():
            leaves = {n: (given | weights)[n].detach().requires_grad_() for n in wanted}
            known = {id((given | weights)[n]): leaf for n, leaf in leaves.items()}
            operands = [
                {n: leaves.get(n, known.get(id(t), t)) for n, t in it.items()}
                for it in (given, weights)
            ]
            arguments: list[Any] = [*operands, params]
            named = {"call": _forward_of(call)} if takes_call == "named" else {}
            if takes_call == "positional":
                arguments.append(_forward_of(call))
            made = _by_name(forward(*arguments, **named), list(handed))
            ys = {n: y for n, y in made.items() if y.requires_grad}
            found: Sequence[Any] = [torch.zeros_like(leaf) for leaf in leaves.values()]
            if ys:
                found = torch.autograd.grad(
                    list(ys.values()),
                    list(leaves.values()),
                    [handed[name].to(y) for name, y in ys.items()],
                    allow_unused=True,
                    materialize_grads=True,
                )
        return dict(zip(outputs, found, strict=True))

    return gradients


def _by_name(returned: Any, names: Sequence[str]) -> dict[str, Any]:
    """The outputs that have a cotangent."""
    if not isinstance(returned, Mapping):
        values = returned if isinstance(returned, (tuple, list)) else (returned,)
        returned = dict(zip(names, values, strict=False))
    if missing := [name for name in names if returned.get(name) is None]:
        raise NoGradientsError(f"the function returned no {missing[0]}, which has a cotangent")
    return {name: returned[name] for name in names}


def _forward_of(call: Any) -> Any:
    """Of a backward's."""
    checkpoint = call.checkpoint.removesuffix(f"/{BACKWARD}")
    return replace(call, checkpoint=checkpoint, block=call.block.removesuffix(f".{BACKWARD}"))
