"""inputs= of check(): the arguments of each case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .drawing import Draw

if TYPE_CHECKING:
    from ..recorder.one_call import Arguments

Case = tuple[str | None, "Arguments"]
"""What is special about the operands, and they."""
MOST_DRAWS = 64
"""Of one call: salts are so far apart."""


@dataclass(frozen=True)
class Called:
    """Inputs of check() where there are arguments in order and others by name."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def arguments_of(inputs: Any) -> Arguments:
    if isinstance(inputs, Called):
        return inputs.args, dict(inputs.kwargs)
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if type(inputs) in (tuple, list) else (inputs,)), {}


def draws_of(inputs: Any) -> list[Draw]:
    args, kwargs = arguments_of(inputs)
    return [value for value in (*args, *kwargs.values()) if isinstance(value, Draw)]


def cases_of(inputs: Any, salt: int = 0) -> Iterator[Case]:
    """The arguments of each call; those that are drawn give one per seed, with its kind."""
    args, kwargs = arguments_of(inputs)
    draws = draws_of(inputs)
    if not draws:
        yield None, (args, kwargs)
        return
    for seed in range(max(d.seeds for d in draws)):
        salts = {id(d): own for own, d in enumerate(draws, salt * MOST_DRAWS)}

        def made(value: Any, seed: int = seed, salts: dict[int, int] = salts) -> Any:
            drawn = isinstance(value, Draw)
            return value.tensor(seed, salts[id(value)]) if drawn else value

        yield (
            draws[0].kind(seed),
            (tuple(map(made, args)), {name: made(value) for name, value in kwargs.items()}),
        )
