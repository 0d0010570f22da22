"""inputs= of check(): the arguments of each case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .drawing import Draw
from .extents import ranges_of, sizes_of, words_of

if TYPE_CHECKING:
    from ..recorder.one_call import Arguments

MOST_DRAWS = 64
"""Of one call: salts are so far apart."""


@dataclass(frozen=True)
class Called:
    """Inputs of check() where there are arguments in order and others by name."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """One set of operands; `name` says what is special about them."""

    name: str | None
    arguments: Arguments
    weights: Mapping[str, Any] = field(default_factory=dict)
    drawn: str = ""
    """What draws them again, and the sizes that this gave."""

    @property
    def called(self) -> Arguments:
        """What a function is called with."""
        args, kwargs = self.arguments
        return args, {**kwargs, **self.weights}

    def mapped(self, change: Callable[[Any], Any], name: str | None, drawn: str = "") -> Case:
        """With other values: what `change` makes of arguments and weights, one after the other."""
        args, kwargs = self.arguments
        return Case(
            name,
            (tuple(map(change, args)), {key: change(it) for key, it in kwargs.items()}),
            {key: change(it) for key, it in self.weights.items()},
            drawn,
        )


def arguments_of(inputs: Any) -> Arguments:
    if isinstance(inputs, Called):
        return inputs.args, dict(inputs.kwargs)
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if type(inputs) in (tuple, list) else (inputs,)), {}


def draws_of(inputs: Any, weights: Mapping[str, Any] | None = None) -> list[Draw]:
    args, kwargs = arguments_of(inputs)
    given = (*args, *kwargs.values(), *(weights or {}).values())
    return [value for value in given if isinstance(value, Draw)]


def cases_of(
    inputs: Any, salt: int = 0, weights: Mapping[str, Any] | None = None
) -> Iterator[Case]:
    """The operands of each call; those that are drawn give one per seed, with its kind and the
    sizes of its named extents."""
    given = Case(None, arguments_of(inputs), dict(weights or {}))
    draws = draws_of(inputs, weights)
    if not draws:
        yield given
        return
    names = {name for it in draws for name in it.names}
    ranges = ranges_of(names, (it.ranges for it in draws))
    salts = {id(d): own for own, d in enumerate(draws, salt * MOST_DRAWS)}
    for seed in max((d.seeds for d in draws), key=len):
        sizes = sizes_of(ranges, seed, salt)

        def made(value: Any, seed: int = seed, sizes: Mapping[str, int] = sizes) -> Any:
            drawn = isinstance(value, Draw)
            return value.tensor(seed, salts[id(value)], sizes) if drawn else value

        drawn = ": ".join(filter(None, (f"seeds=[{seed}]", words_of(sizes))))
        yield given.mapped(made, draws[0].kind(seed), drawn)
