"""What is judged: one case of a recording, and a kernel of some engine that computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

Tensors = Mapping[str, torch.Tensor]


class UnsupportedError(Exception):
    """The engine has no kernel for this case; the text says why."""


@dataclass(frozen=True)
class Angles:
    """What a rotary table was made of."""

    positions: torch.Tensor  # [batch, token]
    inv_freq: torch.Tensor  # [head_dim / 2], float32
    scaling: float


@dataclass(frozen=True)
class Case:
    """A checkpoint's operands, in the dtypes of the recording."""

    id: str
    block: str
    params: Mapping[str, Any]
    inputs: Tensors
    weights: Tensors
    outputs: tuple[str, ...]
    angles: Angles | None = None

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.inputs[name] if name in self.inputs else self.weights[name]

    def get(self, name: str) -> torch.Tensor | None:
        return self[name] if name in self.inputs or name in self.weights else None

    @property
    def dtype(self) -> torch.dtype:
        first = ("q", "x", "gate", "hidden")
        return next(self.inputs[name].dtype for name in first if name in self.inputs)

    def with_params(self, **changes: Any) -> Case:
        return replace(self, params={**self.params, **changes})

    def with_inputs(self, **changes: torch.Tensor) -> Case:
        return replace(self, inputs={**self.inputs, **changes})

    def with_weights(self, **changes: torch.Tensor) -> Case:
        return replace(self, weights={**self.weights, **changes})


Result = torch.Tensor | Mapping[str, torch.Tensor]
Function = Callable[[Case], Result]


@dataclass(frozen=True)
class Kernel:
    """`run` computes a case or raises UnsupportedError; `name` tells it from others of a block."""

    engine: str
    block: str
    name: str
    run: Function
    of_inputs: bool = True
    """Whether it computes from the block's inputs alone: not where it makes a table of its own."""

    def outputs(self, case: Case) -> dict[str, torch.Tensor]:
        result = self.run(case)
        named = result if isinstance(result, Mapping) else {case.outputs[0]: result}
        return {name: tensor.detach().contiguous() for name, tensor in named.items()}


def require(holds: bool, reason: str) -> None:
    """Raises UnsupportedError with the reason."""
    if not holds:
        raise UnsupportedError(reason)


def allowed(case: Case) -> torch.Tensor | None:
    """Which keys a query may see, bool and broadcast to [batch, head, token, key]; None: all."""
    params = case.params
    explicit = case.get("mask")
    if explicit is not None:
        require(explicit.dtype == torch.bool, "an additive mask")
        return explicit
    queries = torch.arange(case["q"].shape[2])[:, None] + int(params["query_offset"])
    keys = torch.arange(case["k"].shape[2])[None, :] + int(params["key_offset"])
    mask = torch.ones(queries.shape[0], keys.shape[1], dtype=torch.bool)
    if params["causal"]:
        mask &= keys <= queries
    if params["window"] is not None:
        mask &= queries - keys < params["window"]
    mask = mask[None, None]
    valid = case.get("key_valid")
    if valid is not None:
        mask = mask & valid.bool()[:, None, None, :]
    return None if bool(mask.all()) else mask


def repeated(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values with a head for each query head."""
    repeats = case["q"].shape[1] // case["k"].shape[1]
    return case["k"].repeat_interleave(repeats, 1), case["v"].repeat_interleave(repeats, 1)


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)
