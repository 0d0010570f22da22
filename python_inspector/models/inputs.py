"""What a model is run on: token ids, padding, and how a run is cut into forward calls."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..compatibility import positions_of_mask
from ..errors import PlanError
from ..foreign import CACHE_NAMES
from .dispatch import input_device

FIRST_RANDOM_ID = 3
PAD_ID = 0


@dataclass(frozen=True)
class RunPlan:
    """One run of a model.

    `ids` is [batch, tokens] or [batch, tokens + steps]; the ids of a step that are not given are
    the most likely ones of the logits before it. `tokens` counts the padding, which is
    `left_pad[row]` ids at the start of each row. `chunks` cuts the tokens into calls over one
    cache; without a cache it lists the lengths of separate calls, each from the first token.
    """

    ids: torch.Tensor
    tokens: int
    steps: int = 0
    chunks: tuple[int, ...] | None = None
    left_pad: tuple[int, ...] | None = None
    cache: str | None = None
    """None, "dynamic", or "static": one whose buffers have `max_length` slots."""
    max_length: int = 0
    logits_to_keep: int = 0
    """Passed to the model: logits of the last n tokens of a call only; 0 for all."""

    def __post_init__(self) -> None:
        batch, width = self.ids.shape
        if not 0 < self.tokens <= width:
            raise PlanError(f"the run has {self.tokens} tokens, ids have {width}")
        if self.cache not in (None, "dynamic", "static"):
            raise PlanError(f"cache is {self.cache!r}; known are none, dynamic and static")
        if self.cache == "static" and self.max_length < self.tokens + self.steps:
            raise PlanError(
                f"a static cache of {self.max_length} slots has no room for {self.tokens} tokens "
                f"and {self.steps} steps"
            )
        if self.steps and self.cache is None:
            raise PlanError(f"{self.steps} decode steps need a cache; pass --cache dynamic")
        if self.steps < 0:
            raise PlanError(f"steps is {self.steps}, must not be negative")
        self._check_chunks()
        self._check_padding(batch)

    @property
    def mode(self) -> str:
        """The recording's mode: whole, decode, chunked, padded or padded-decode."""
        if self.left_pad:
            return "padded-decode" if self.cache else "padded"
        if self.cache is None:
            return "whole"
        return "chunked" if self.chunks else "decode"

    @property
    def calls(self) -> int:
        """The number of forward calls."""
        return (len(self.chunks) if self.chunks else 1) + self.steps

    def header(self) -> dict[str, Any]:
        """provenance.run of the recording."""
        return {
            "mode": self.mode,
            "batch": self.ids.shape[0],
            "tokens": self.tokens,
            "steps": self.steps,
            "chunks": list(self.chunks) if self.chunks else None,
            "left_pad": list(self.left_pad) if self.left_pad else None,
            "cache": self.cache,
        }

    def attention_mask(self) -> torch.Tensor | None:
        """[batch, tokens] with 1 for real tokens, None without padding."""
        if not self.left_pad:
            return None
        pads = torch.tensor(self.left_pad)[:, None]
        return (torch.arange(self.tokens)[None, :] >= pads).long()

    def _check_chunks(self) -> None:
        if not self.chunks:
            return
        if any(chunk < 1 for chunk in self.chunks):
            raise PlanError(f"chunks are {list(self.chunks)}, each must be at least 1")
        if self.cache is None and max(self.chunks) > self.tokens:
            raise PlanError(f"a call of {max(self.chunks)} tokens needs more than {self.tokens}")
        if self.cache is not None and sum(self.chunks) != self.tokens:
            raise PlanError(
                f"chunks {list(self.chunks)} add up to {sum(self.chunks)}, the run has "
                f"{self.tokens} tokens"
            )
        if self.left_pad:
            raise PlanError("chunks and left padding cannot be combined")

    def _check_padding(self, batch: int) -> None:
        if not self.left_pad:
            return
        if len(self.left_pad) != batch:
            raise PlanError(f"left_pad has {len(self.left_pad)} numbers, the batch {batch} rows")
        if any(not 0 <= pad < self.tokens for pad in self.left_pad):
            raise PlanError(f"left_pad {list(self.left_pad)} must be below {self.tokens} tokens")


def random_ids(
    batch: int, tokens: int, vocab: int, *, seed: int = 1, marked: int | None = None
) -> torch.Tensor:
    """Ids of at least 3, rows differing; `marked` occurs once, in the first row, if it is given."""
    if vocab <= FIRST_RANDOM_ID + 1:
        raise PlanError(f"a vocabulary of {vocab} is too small for random ids from 3 on")
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(FIRST_RANDOM_ID, vocab, (batch, tokens), generator=generator)
    if marked is not None:
        ids[ids == marked] = marked - 1
        ids[0, tokens // 3] = marked
    return ids


def pad_left(ids: torch.Tensor, left_pad: Sequence[int]) -> torch.Tensor:
    """The ids with the first `left_pad[row]` of each row replaced by padding."""
    pads = torch.tensor(left_pad)[:, None]
    return torch.where(torch.arange(ids.shape[1])[None, :] < pads, PAD_ID, ids)


def run_model(
    model: torch.nn.Module, plan: RunPlan, after_call: Callable[[], None] = lambda: None
) -> list[torch.Tensor]:
    """Runs the plan as transformers' generate would; the logits of each forward call."""
    device = input_device(model)
    ids = plan.ids.to(device)
    if plan.cache is None and plan.chunks:
        calls = [(0, length) for length in plan.chunks]
    else:
        ends = torch.tensor(plan.chunks or (plan.tokens,)).cumsum(0).tolist()
        calls = list(zip([0, *ends[:-1]], ends, strict=True))
    logits: list[torch.Tensor] = []
    mask = plan.attention_mask()
    mask = None if mask is None else mask.to(device)
    carried = Carried(model, plan)
    with torch.no_grad():
        for begin, end in calls:
            logits.append(carried.forward(ids[:, begin:end], mask))
            after_call()
        for step in range(plan.steps):
            column = plan.tokens + step
            known = column < ids.shape[1]
            token = ids[:, column : column + 1] if known else logits[-1][:, -1:].argmax(-1)
            mask = None if mask is None else torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
            logits.append(carried.forward(token, mask))
            after_call()
    return logits


class Carried:
    """What goes from call to call: a cache, or whatever the model hands back in its place."""

    def __init__(self, model: torch.nn.Module, plan: RunPlan) -> None:
        self._model = model
        self._keep = plan.logits_to_keep
        self._uses_cache = plan.cache is not None
        self._parameters = inspect.signature(model.forward).parameters
        self._state: dict[str, Any] = {}
        name = next((name for name in _NAMES_OF_CACHES if name in self._parameters), None)
        if name is not None and not _makes_its_own(model):
            self._state[name] = _new_cache(model, plan)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        arguments: dict[str, Any] = {"input_ids": ids}
        if "use_cache" in self._parameters:
            arguments["use_cache"] = self._uses_cache
        if self._keep:
            arguments["logits_to_keep"] = self._keep
        arguments |= {name: state for name, state in self._state.items() if state is not None}
        if mask is not None:
            positions = positions_of_mask(self._model, ids, mask)
            arguments |= {"attention_mask": mask, "position_ids": positions[:, -ids.shape[1] :]}
        out = self._model(**arguments)
        if self._uses_cache and all(self._state.get(n) is None for n in _NAMES_OF_CACHES):
            self._state = {name: out[name] for name in CACHE_NAMES if out.get(name) is not None}
        logits: torch.Tensor = out.logits
        return logits


_NAMES_OF_CACHES = ("past_key_values", "cache")
"""Of CACHE_NAMES those that a Cache of transformers' own can be handed in under."""


def _makes_its_own(model: torch.nn.Module) -> bool:
    """Whether the model takes no cache but one of its own class."""
    from transformers import Cache

    file = sys.modules[type(model).__module__]
    return any(
        issubclass(kind, Cache) and kind.__module__ == file.__name__
        for kind in vars(file).values()
        if isinstance(kind, type)
    )


def _new_cache(model: torch.nn.Module, plan: RunPlan) -> Any:
    if plan.cache is None:
        return None
    from transformers import DynamicCache, StaticCache

    config: Any = model.config
    if plan.cache == "static":
        return StaticCache(config=config, max_cache_len=plan.max_length)
    return DynamicCache(config=config)
