"""One committed recording of a model's run, and the runs that such recordings are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ..format.summary import Summary
from ..models.inputs import RunPlan, pad_left
from ..recorder.where import Where
from ..taps.options import Options
from . import run
from .run import Source

BATCH, TOKENS, PREFILL, STEPS = 2, 15, 11, 4
LEFT_PAD = (3, 0)

Ids = Callable[..., torch.Tensor]
"""Random ids [batch, n] for the model at hand, from n and batch (BATCH unless given)."""
Plan = Callable[[Ids], RunPlan]


@dataclass(frozen=True)
class Case:
    """One committed recording, `<model>/<mode>-<dtype>[-<what is special>]`."""

    name: str
    about: str
    model: str
    dtype: str
    plan: Plan
    attention: str = "eager"
    asked: Options = field(default_factory=Options)
    committed: bool = True
    """Else it takes seconds from a seed, and is made where it is verified (made_cases.py)."""
    all_weights: bool = True
    """In a file for every recording of the model; else a recording keeps what it needs."""

    @property
    def source(self) -> Source:
        return Source(run.TINY + self.model, self.dtype, self.attention)

    def ids(self, model: torch.nn.Module) -> Ids:
        """Random ids that the model knows."""

        def ids(tokens: int, batch: int = BATCH) -> torch.Tensor:
            return run.random_run_ids(self.source, model, batch, tokens)

        return ids

    def record(self, where: Where) -> Summary:
        model = run.load_model(self.source)
        plan = self.plan(self.ids(model))
        if self.all_weights:
            weights = Path(where.folder).parent / f"weights-{self.dtype}.safetensors"
            where = replace(where, weights_path=weights)
        return run.record_run(model, self.source, plan, self.asked, where)


def whole(tokens: int = TOKENS, batch: int = BATCH) -> Plan:
    """One call without a cache."""
    return lambda ids: RunPlan(ids(tokens, batch), tokens)


def calls(*lengths: int) -> Plan:
    """Separate calls without a cache on one model, for rotary types with a memory."""
    return lambda ids: RunPlan(ids(max(lengths)), max(lengths), chunks=lengths)


def decode_of(prefill: int, steps: int, batch: int = BATCH) -> Plan:
    """Prefill, then single tokens."""
    return lambda ids: RunPlan(ids(prefill + steps, batch), prefill, steps, cache="dynamic")


def chunks_of(*lengths: int) -> Plan:
    """Prefill in chunks; logits of the last tokens only, as generate would have them."""
    n = sum(lengths)
    return lambda ids: RunPlan(ids(n), n, chunks=lengths, cache="dynamic", logits_to_keep=3)


def static(max_length: int, *chunks: int, steps: int = 0, batch: int = BATCH) -> Plan:
    """Prefill, in chunks where there are several, and single tokens into buffers of fixed size."""
    n = sum(chunks)
    return lambda ids: RunPlan(
        ids(n + steps, batch),
        n,
        steps,
        chunks=chunks if len(chunks) > 1 else None,
        cache="static",
        max_length=max_length,
    )


decode = decode_of(PREFILL, STEPS)
chunked = chunks_of(5, 10)


def padded_decode_of(
    prefill: int, steps: int, left_pad: tuple[int, ...] = LEFT_PAD, max_length: int = 0
) -> Plan:
    """As decode_of, with padding on the left of each row; into buffers of `max_length`, if any."""
    cache = "static" if max_length else "dynamic"

    def plan(ids: Ids) -> RunPlan:
        padded = pad_left(ids(prefill + steps, len(left_pad)), left_pad)
        return RunPlan(
            padded, prefill, steps, left_pad=left_pad, cache=cache, max_length=max_length
        )

    return plan


padded_decode = padded_decode_of(PREFILL, STEPS)


def padded(tokens: int = PREFILL) -> Plan:
    """One call without a cache, with padding on the left of the first row."""
    return lambda ids: RunPlan(pad_left(ids(tokens), LEFT_PAD), tokens, left_pad=LEFT_PAD)
