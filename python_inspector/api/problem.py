"""problem(): what a reference and its inputs can show at all, before a kernel is judged by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .prepared import Prepared, prepare
from .verdict import Verdict, WrongError

if TYPE_CHECKING:
    from ..recorder.callables import Torch

SECONDS = 20.0
"""For planted bugs, by default."""


@dataclass(frozen=True)
class Problem:
    """`verdict` is on `like` itself; `solved_by` names what does no work and passes."""

    verdict: Verdict
    solved_by: tuple[str, ...]

    @property
    def blind_to(self) -> tuple[str, ...]:
        """Bugs of `like` that these inputs do not show."""
        return self.verdict.blind_to

    def __str__(self) -> str:
        lines = [f"{self.verdict.checkpoint}: {self.verdict.status} on itself"]
        if self.solved_by:
            lines.append(f"  solved without work by: {', '.join(self.solved_by)}")
        lines += [f"  does not show: {bug}" for bug in self.blind_to]
        if len(lines) == 1:
            lines.append("  shows every bug that was planted")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "status": self.verdict.status,
            "solved_by": list(self.solved_by),
            "blind_to": list(self.blind_to),
            "planted": list(self.verdict.planted or ()),
        }


def problem(like: Torch, inputs: Any, *, seconds: float = SECONDS, **options: Any) -> Problem:
    """Judges `like` by itself and plants bugs in it for so many `seconds`, then judges what does no
    work: zeros, a constant, an argument, what `like` makes of other values.

    `options` are those of prepare(). Raises what it raises where `like` cannot be judged.
    """
    try:
        verdict = prepare(like, inputs, explain=seconds, **options)(like)
    except WrongError as error:
        return Problem(error.verdict, ())
    judge = prepare(like, inputs, explain=False, repeat=1, **options)
    solved = tuple(name for name, kernel in _idle(like, inputs) if _passes(judge, kernel))
    return Problem(verdict, solved)


def _passes(judge: Prepared, kernel: Callable[..., Any]) -> bool:
    try:
        return judge(kernel).status == "pass"
    except WrongError:
        return False
    except (TypeError, RuntimeError, ValueError, IndexError):  # it cannot take the arguments
        return False


def _idle(like: Torch, inputs: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions that do none of the work, by name."""
    import torch
    from torch.utils._pytree import tree_map

    from .inputs import arguments_of

    def mapped(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            made = like(*args, **kwargs)
            return tree_map(lambda t: change(t) if isinstance(t, torch.Tensor) else t, made)

        return kernel

    def mean(t: torch.Tensor) -> torch.Tensor:
        return torch.full_like(t, t.double().mean().item() if t.is_floating_point() else 0)

    def elsewhere(*args: Any, **kwargs: Any) -> Any:
        def other(value: Any) -> Any:
            floats = isinstance(value, torch.Tensor) and value.is_floating_point()
            return torch.rand_like(value) if floats else value

        return like(*tree_map(other, args), **tree_map(other, kwargs))

    yield "zeros", mapped(torch.zeros_like)
    yield "a constant", mapped(mean)
    args, kwargs = arguments_of(inputs)
    for i in range(len(args)):
        yield f"argument {i}", lambda *given, _i=i, **_: given[_i]
    for name in kwargs:
        yield f"argument {name}", lambda *_, _name=name, **given: given[_name]
    yield "the answer to other values", elsewhere
