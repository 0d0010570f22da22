"""Gradients as results: forward and backward of a module or function as one function.

What is differentiated is an argument of it, so that reruns in float64 widen it; so is the
cotangent, what a loss would hand back for each output. torch's attention runs as its parts: of a
fused backward nothing would be seen.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.utils._pytree import tree_leaves

from ..errors import RecordError, UsageError
from ..foreign import is_cache
from ..taps.calls import bound_arguments
from ..trace.keyless import is_mask
from ..trace.replay import run_as_it_is
from ..trace.simulation import Normals
from .attention_in_parts import attention_in_parts
from .callables import Torch, callable_of, leaves, name_of
from .kernel_gradients import (
    COTANGENT,
    WEIGHTS,
    Asked,
    Leaves,
    d_of,
    floating,
    with_gradients,
)
from .one_call import Arguments, undisturbed
from .results import ByName, Template, differentiable_by_name, template_of

_WORDS = re.compile(r"[._\d]+")
_STATISTICS = ("running_mean", "running_var")
"""torch has no gradient of these: as a batch norm calls them."""
Place = tuple[Any, ...]
"""Of a tensor's elements."""
_Test = Callable[[torch.Tensor], bool]
_LEFT_OUT: dict[str, tuple[str, _Test]] = {
    "mask": ("a mask", lambda t: t.unique().numel() <= 2),
    **dict.fromkeys(("cos", "sin"), ("a table", lambda t: bool((t.abs() <= 1).all()))),
    **dict.fromkeys(("position", "positions"), ("a table", lambda t: torch.equal(t, t.round()))),
}
"""By words in names of arguments what they are, which no one asks the gradient of, and whether
their values are of that kind: a mask_token is learnt."""


class NoGradientError(RecordError):
    """Nothing that is given to a call has a gradient."""


class EmptyError(NoGradientError):
    """Because there is no element."""


@dataclass(frozen=True)
class Names:
    """What a recording calls a call, its operands and its results; others are no part of it."""

    call: str
    operands: Mapping[Place, str]
    results: Mapping[str, str]
    """By their path in what is returned."""


class Gradients:
    """Which gradients `like` has, and the functions that return them with its outputs."""

    def __init__(
        self,
        like: Torch,
        arguments: Arguments,
        weights: Mapping[str, Any],
        names: Names | None = None,
    ) -> None:
        """`arguments` and `weights` are those of one case; others have the same form."""
        self.name = name_of(like) if names is None else names.call
        self.call, self.module = callable_of(like, {})
        self._like = like if isinstance(like, torch.nn.Module) else None
        self._given = frozenset(weights if self._like is not None else ())
        self._parameters = {} if self._like is None else floating(self._like)
        self._recorded = names
        whole = self._whole(arguments, weights)
        self._places, self.left_out = _differentiated(whole, self._bound(whole), names)
        if names is not None:
            own = self._parameters.items()
            self._parameters = {n: p for n, p in own if place_of(p) in names.operands}
        self._called = {n: self._name(p, n) for n, p in self._parameters.items()}
        self.functions: list[str] = []
        """The classes of autograd.Function that `like` goes through."""
        self._asked: frozenset[str] | None = None
        """None: whatever can be asked for."""
        self._attends: bool | None = None
        """Whether torch's attention is called; None until that is known."""
        self._attended = False
        self.template, self.names = self._tried(self.arguments(arguments, weights, 0))
        self._attends = self._attended
        self._asked = self.names
        self.function = self._judged()

    def arguments(self, arguments: Arguments, weights: Mapping[str, Any], seed: int) -> Arguments:
        """What the judged function is called with, a random cotangent for each output."""
        args, kwargs = self._whole(arguments, weights)
        if self._like is not None:
            own = {name: p.detach() for name, p in self._parameters.items()}
            kwargs = {**kwargs, WEIGHTS: own | dict(weights)}
        with undisturbed():
            made = run_as_it_is(self._forward, args, kwargs, [self.module]).result
        normals = Normals(f"cotangent {seed}")  # no operand's: one of a usual seed may be equal
        outputs, host = self._outputs(made).items(), torch.device("cpu")
        drawn = {n: normals.draw(y.shape, host).to(y) for n, y in outputs if _is_float(y)}
        return args, {**kwargs, COTANGENT: drawn}

    def loss(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The sum of outputs times cotangents, and that of what is added up."""
        cotangent = kwargs.pop(COTANGENT)
        made = self._outputs(self._forward(*args, **kwargs))
        terms = [made[name].double() * g for name, g in cotangent.items()]
        sums = [torch.stack([it.sum(), it.abs().sum()]) for it in terms]
        return torch.stack(sums).sum(0)

    def operands(self, arguments: Arguments) -> dict[str, torch.Tensor]:
        """What gradients are asked of, by name."""
        xs = Leaves(self._places)
        xs.made = lambda t: t
        xs.of_call(*arguments)
        weights = arguments[1].get(WEIGHTS, {})
        return xs.found | {self._called.get(name, name): t for name, t in weights.items()}

    def moved(self, arguments: Arguments, name: str, by: torch.Tensor) -> Arguments:
        """The judged function's arguments with one that is differentiated elsewhere, in float64."""
        args, kwargs = arguments
        if self._like is not None:
            weights = dict(kwargs.get(WEIGHTS, {}))
            for own, t in weights.items():
                weights[own] = t.double() + by if self._called.get(own, own) == name else t
            kwargs = {**kwargs, WEIGHTS: weights}
        xs = Leaves({path: own for path, own in self._places.items() if own == name})
        xs.made = lambda t: t.double() + by
        return xs.of_call(args, kwargs)

    def of_kernel(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A kernel's outputs and gradients; what it is not given of the weights it has itself, by
        name, or shares with `like`."""
        return self.asked.of(function, self._parameters)

    @property
    def asked(self) -> Asked:
        """What a kernel is asked for, wherever it runs."""
        return Asked(
            self.name, self.template, self._places, self._given, tuple(self._parameters), self.names
        )

    def _judged(self) -> Callable[..., Any]:
        def gradients(*args: Any, captured: Any = self.module, **kwargs: Any) -> Any:
            return self._both(*args, **kwargs)

        gradients.__name__ = self.name
        signature = _signature(self.call, [COTANGENT] + [WEIGHTS] * (self._like is not None))
        if signature is not None:
            vars(gradients)["__signature__"] = signature
        return gradients

    def _both(self, *args: Any, **kwargs: Any) -> ByName:
        """The outputs and gradients of `like`."""
        cotangent = kwargs.pop(COTANGENT)
        xs = Leaves(self._places)
        with torch.enable_grad():
            own = kwargs.pop(WEIGHTS, {})
            weights = {n: xs.leaf(self._called.get(n, n), t) for n, t in own.items()}
            args, kwargs = xs.of_call(args, kwargs)
            if self._like is not None:
                kwargs[WEIGHTS] = weights
            made = self._outputs(self._forward(*args, **kwargs))
            if self._asked is None:
                self.functions = sorted(set(_functions_behind(made.values())))
            return with_gradients(made, xs.found, cotangent, self._asked)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._attends is False:
            return self._called_with(*args, **kwargs)
        with attention_in_parts() as parts:
            made = self._called_with(*args, **kwargs)
        self._attended |= parts.attends
        return made

    def _called_with(self, *args: Any, **kwargs: Any) -> Any:
        if self._like is None:
            return self.call(*args, **kwargs)
        weights = kwargs.pop(WEIGHTS)
        return torch.func.functional_call(self._like, weights, args, kwargs)

    def _tried(self, arguments: Arguments) -> tuple[Template, frozenset[str]]:
        """The form of the outputs, and the gradients that there are."""
        args, kwargs = arguments
        with undisturbed():
            made = run_as_it_is(self._both, args, kwargs, [self.module]).result
            plain = {name: it for name, it in kwargs.items() if name != COTANGENT}
            template = template_of(run_as_it_is(self._forward, args, plain, [self.module]).result)
        weights = [self._called.get(name, name) for name in kwargs.get(WEIGHTS, ())]
        asked = [d_of(name) for name in (*self._places.values(), *weights)]
        names = frozenset(name for name in asked if name in made)
        floats = [t for t in tree_leaves((args, kwargs)) if _is_float(t)]
        if not names:
            raise (NoGradientError if all(t.numel() for t in floats) else EmptyError)(
                f"[check] backward=True: no output of {self.name} depends on a floating argument "
                f"or parameter that has a gradient ({', '.join(asked) or 'there is none'})"
            )
        self.left_out += tuple(f"{name} (no gradient)" for name in asked if name not in names)
        return template, names

    def _name(self, t: torch.Tensor, otherwise: str) -> str:
        return otherwise if self._recorded is None else self._recorded.operands[place_of(t)]

    def _outputs(self, result: Any) -> dict[str, torch.Tensor]:
        """By name; of a recorded call those that are recorded."""
        found = differentiable_by_name(result)
        if self._recorded is None:
            return found
        names = self._recorded.results
        return {names[path]: t for path, t in found.items() if path in names}

    def _whole(self, arguments: Arguments, weights: Mapping[str, Any]) -> Arguments:
        """With the weights that a function is given."""
        args, kwargs = arguments
        return args, dict(kwargs) if self._like is not None else {**kwargs, **weights}

    def _bound(self, arguments: Arguments) -> dict[str, Any]:
        """Arguments by name; UsageError where these are names of something else."""
        bound = bound_arguments(self.call, *arguments)
        for name in bound:
            taken = name in self._parameters and self._recorded is None
            if name == COTANGENT or taken or (self._like and name == WEIGHTS):
                raise UsageError(
                    f"backward=True: an argument of {self.name} is called {name!r}, as "
                    f"{'a parameter is' if name in self._parameters else 'what it adds'}"
                )
        return bound


def place_of(t: torch.Tensor) -> Place:
    """Where its elements are: the same of a tensor and of what is the same without a graph."""
    storage = t.untyped_storage()._cdata
    return storage, t.storage_offset(), tuple(t.shape), t.stride(), t.dtype


def _differentiated(
    arguments: Arguments, bound: Mapping[str, Any], recorded: Names | None = None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """By their place the names of what gradients are asked of, and what is left out, and why."""
    names = {id(t): path for name, value in bound.items() for path, t in leaves(value, name)}
    places: dict[str, str] = {}
    left_out = [f"{name} (a cache)" for name, value in bound.items() if is_cache(value)]
    args, kwargs = arguments
    for first, value in (*((str(i), it) for i, it in enumerate(args)), *kwargs.items()):
        for path, t in leaves(value, first):
            if not _is_float(t) or not t.numel() or names[id(t)] in places.values():
                continue
            name = names[id(t)]
            if recorded is not None:
                if place_of(t) not in recorded.operands:
                    continue
                name = recorded.operands[place_of(t)]
            if why := _left_out(name, t.detach()):
                left_out.append(f"{d_of(name)} ({why})")
            else:
                places[path] = name
    return places, tuple(left_out)


def _left_out(name: str, t: torch.Tensor) -> str:
    """Why no one asks the gradient of what is called so; "" where one may."""
    if is_mask(t):
        return "a mask"
    if name.lower().endswith(_STATISTICS):
        return "a running statistic"
    known = [_LEFT_OUT[word] for word in _WORDS.split(name.lower()) if word in _LEFT_OUT]
    return next((what for what, is_one in known if is_one(t)), "")


def _signature(call: Callable[..., Any], names: Sequence[str]) -> inspect.Signature | None:
    """That of a function which takes these, too; None where it has none."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return None
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    own = list(signature.parameters.values())
    at = len(own) - any(it.kind is inspect.Parameter.VAR_KEYWORD for it in own)
    return signature.replace(parameters=[*own[:at], *more, *own[at:]])


def _functions_behind(results: Iterable[torch.Tensor]) -> Iterator[str]:
    """Names of the classes of autograd.Function that results were made by."""
    left = [t.grad_fn for t in results if t.grad_fn is not None]
    seen = set(left)
    while left:
        node = left.pop()
        if isinstance(node, BackwardCFunction):
            yield type(node).__name__.removesuffix("Backward")
        behind = {it for it, _ in node.next_functions if it is not None} - seen
        seen |= behind
        left += behind


def _is_float(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.is_floating_point()
