"""The loss of a whole model as a call of its own, `model:loss#0`: its backward goes through all
layers, from what a training step hands back.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

import torch

from ..errors import RecordError
from ..foreign import is_cache
from ..taps.calls import Block, Call
from ..taps.generic import GenericCall
from ..trace.replay import Again, Rerun, Runner

LOSS, CROSS_ENTROPY = "loss", "cross_entropy"
LOSSES = (CROSS_ENTROPY,)
IGNORED, SHARE = -100, 0.2
"""The label that transformers' losses ignore, and of how many tokens it is."""
_OTHER = ("labels", "use_cache", "logits_to_keep", "return_dict")


def require_loss(model: torch.nn.Module) -> None:
    if "labels" not in inspect.signature(model.forward).parameters:
        raise RecordError(
            f"[record] loss: {type(model).__name__} takes no labels: record without it"
        )


def loss_of(call: Call) -> tuple[Block, Again]:
    """Of the call of a model that takes labels: the block, and what runs it again. The model shifts
    the labels."""
    model = cast(torch.nn.Module, call.module)
    ids = call.get("input_ids")
    if ids is None:
        raise RecordError("[record] loss: the model was called without input_ids, which are labels")
    given = {n: v for n, v in call.arguments.items() if n not in _OTHER and not is_cache(v)}
    given["labels"] = labels_of(ids)

    def loss(**arguments: Any) -> torch.Tensor:
        made: torch.Tensor = model(**arguments, use_cache=False).loss
        return made

    def again(run: Runner) -> Rerun:
        return run(loss, (), given, [model])

    block = GenericCall(Call(call.path, model, _tensors(given), call.recorder), model).block()
    assert block is not None
    return block, again


def labels_of(ids: torch.Tensor) -> torch.Tensor:
    """The ids, every fifth or so ignored."""
    dice = torch.Generator().manual_seed(0)
    ignored = torch.rand(ids.shape, generator=dice, device="cpu") < SHARE
    return ids.masked_fill(ignored.to(ids.device), IGNORED)


def _tensors(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
