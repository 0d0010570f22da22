"""A kernel's outputs and gradients: of an autograd.Function, a module, or whatever autograd goes
back through."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UsageError
from .results import ByName, ResultError, Template, matched, packed, unpacked

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
COTANGENT, WEIGHTS = "cotangent", "weights"
"""What the judged function is given besides the arguments of the forward."""
Parameters = Mapping[str, torch.nn.Parameter]


class KernelBackwardError(RuntimeError):
    """What the backward of a kernel raised; its verdict."""


def d_of(name: str) -> str:
    """The output that is the gradient of `name`."""
    return f"d_{name}"


def is_gradient(output: str) -> bool:
    return output.startswith("d_")


@dataclass(frozen=True)
class Asked:
    """What is asked of a kernel for the gradients of a `like`."""

    like: str
    template: Template
    """Of what it returns."""
    places: Mapping[str, str]
    """Of arguments that are differentiated, their names."""
    given: Collection[str]
    """Weights that it is handed."""
    parameters: Sequence[str]
    """Those of `like`, as a module."""
    names: Collection[str]
    """Of gradients."""

    def of(
        self, function: Callable[..., Any], shared: Parameters | None = None
    ) -> Callable[..., Any]:
        """`function` with gradients; `shared` are parameters of `like` that it may use."""
        apply = getattr(function, "apply", None)
        is_operation = isinstance(function, type) and issubclass(function, torch.autograd.Function)
        parameters = self._parameters_of(function, shared)

        def kernel(*args: Any, **kwargs: Any) -> Any:
            cotangent, weights = kwargs.pop(COTANGENT), kwargs.pop(WEIGHTS, {})
            kwargs |= {name: weights[name] for name in self.given}
            xs = Leaves({**self.places, **{name: name for name in self.given}})
            with torch.enable_grad(), _requiring(parameters.values()):
                args, kwargs = xs.of_call(args, kwargs)
                if is_operation and apply is not None:
                    returned = apply(*args, *kwargs.values())
                else:
                    returned = function(*args, **kwargs)
                try:
                    pairs = list(matched(self.template, returned))
                except ResultError:
                    return returned  # for the judge to say what it is
                made = {leaf.name: it for leaf, it in pairs if leaf.name and it is not None}
                self._require(made, cotangent)
                operands = {**parameters, **xs.found}
                try:
                    found = with_gradients(made, operands, cotangent, self.names)
                except Exception as error:
                    raise KernelBackwardError(
                        f"the kernel's backward raised {type(error).__name__}: {error}"
                    ) from error
            none = {d_of(n): torch.zeros_like(x) for n, x in operands.items()}
            return ByName({name: none[name] for name in sorted(self.names)} | found)

        return kernel

    def packed(self) -> tuple[Any, ...]:
        """As it reaches another process."""
        return (
            self.like, packed(self.template), dict(self.places), list(self.given),
            list(self.parameters), list(self.names),
        )  # fmt: skip

    @classmethod
    def unpacked(cls, it: Sequence[Any]) -> Asked:
        return cls(it[0], unpacked(it[1]), *it[2:])

    def _require(self, made: Mapping[str, Any], cotangent: Mapping[str, Any]) -> None:
        if missing := [name for name in cotangent if name not in made]:
            raise UsageError(
                f"backward=True: the kernel returns no {missing[0]}, through which gradients of "
                f"{self.like} go: return it, or judge it by code without it"
            )

    def _parameters_of(self, function: Callable[..., Any], shared: Parameters | None) -> Parameters:
        """Those whose gradients the kernel makes."""
        names = [name for name in self.parameters if name not in self.given]
        if isinstance(function, torch.nn.Module) and names:
            shared = floating(function)
            if missing := sorted(set(names) - shared.keys()):
                raise UsageError(
                    f"backward=True: {type(function).__name__} has no parameter {missing[0]!r} "
                    f"that {self.like} has; it has {', '.join(shared) or 'none'}: parameters are "
                    "paired by name"
                )
        if shared is None and names:
            raise UsageError(
                f"backward=True: in its own process a function has no parameter {names[0]!r} of "
                f"{self.like}: hand them over as weights=, or name a module that has them"
            )
        return {name: (shared or {})[name] for name in names}


class Leaves:
    """Arguments with those at some `places` replaced by tensors that gradients are asked of."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.found: dict[str, torch.Tensor] = {}
        self.made: Callable[[torch.Tensor], torch.Tensor] = _fresh

    def of_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        given = tuple(self._of(value, str(i)) for i, value in enumerate(args))
        return given, {name: self._of(value, name) for name, value in kwargs.items()}

    def leaf(self, name: str, t: torch.Tensor) -> torch.Tensor:
        """One tensor in two places is one leaf, and so is a weight that is an argument, too."""
        if name in self.found:
            return self.found[name]
        if id(t) not in self._known:
            self._known[id(t)] = t, self.made(t)
            self.found[name] = self._known[id(t)][1]
        return self._known[id(t)][1]

    def _of(self, value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            is_asked = path in self._places or id(value) in self._known
            return self.leaf(self._places.get(path, path), value) if is_asked else value
        if type(value) is dict:
            return {key: self._of(item, f"{path}.{key}") for key, item in value.items()}
        if isinstance(value, (tuple, list)):
            items = [self._of(item, f"{path}.{i}") for i, item in enumerate(value)]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return value


def with_gradients(
    made: Mapping[str, Any],
    xs: Mapping[str, torch.Tensor],
    cotangent: Mapping[str, Any],
    asked: Collection[str] | None,
) -> ByName:
    """Outputs by name, and the gradients that they have, of those `asked` for."""
    ys = {name: y for name, y in made.items() if _goes_back(y, cotangent.get(name))}
    wanted = {d_of(n): x for n, x in xs.items() if asked is None or d_of(n) in asked}
    found: Sequence[torch.Tensor | None] = ()
    if ys and wanted:
        handed = [cotangent[name].to(y) for name, y in ys.items()]
        found = torch.autograd.grad(
            list(ys.values()), list(wanted.values()), handed, allow_unused=True
        )
    gradients = {n: g for n, g in zip(wanted, found, strict=False) if g is not None}
    outputs = {n: y.detach() if isinstance(y, torch.Tensor) else y for n, y in made.items()}
    return ByName(outputs | gradients)


def floating(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if p.is_floating_point()}


@contextmanager
def _requiring(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Parameters require gradients, which frozen ones do not."""
    frozen = [p for p in parameters if not p.requires_grad]
    try:
        for p in frozen:
            p.requires_grad_()
        yield
    finally:
        for p in frozen:
            p.requires_grad_(False)


def _goes_back(y: Any, cotangent: torch.Tensor | None) -> bool:
    if cotangent is None or not isinstance(y, torch.Tensor):
        return False
    return y.requires_grad and y.shape == cotangent.shape


def _fresh(t: torch.Tensor) -> torch.Tensor:
    return t.detach().requires_grad_()
