"""What check() and prepare() are asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .relations import Asked

if TYPE_CHECKING:
    import torch

    from ..format.contract_words import Asked as Contract
    from ..recorder.axes import Axes
    from ..recorder.gradients import Gradients


@dataclass(frozen=True)
class How:
    """What check() and prepare() are asked for, besides the reference and its inputs."""

    arrays: str | Callable[[Any], Any]
    contract: Contract
    bugs: bool
    explain: bool | float
    spread: int
    repeat: int
    axes: Axes
    valid: Any
    mutates: Collection[str] | None
    harness: Path | str | None
    relations: Asked
    gradients: Gradients | None = None
    """Of the reference, where they are judged."""
    closes: bool = True
    """Whether no gradient is asked of rows in which what is right is open, once that is known."""
    codes: Sequence[torch.Tensor] | None = None
    """What the reference rounds to few values, in place of its own."""


def how_of(
    arrays: str | Callable[[Any], Any],
    contract: str | None,
    *rest: Any,
) -> How:
    """What is asked for; ValueError where that is none."""
    from ..format.contract_words import asked

    how = How(arrays, asked(contract), *rest)
    if how.repeat < 1:
        raise ValueError(f"repeat is {how.repeat}: the function is called once at least")
    return how
