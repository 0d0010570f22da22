"""Attention functions: transformers' eager and sdpa forwards as the block `sdpa`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..format.axes import CACHED, QUERY, SCORES
from .calls import AttentionFacts, Block, Call, Internals, only_out
from .masks import (
    MASK,
    Visibility,
    effective,
    largest_score,
    leaves_no_score,
    says_the_same,
)

OUT = ("batch", "token", "head", "head_dim")

EAGER_INTERNALS = Internals(
    names={
        "matmul": ("sdpa.scores", "sdpa.values"),
        "multiply": ("sdpa.scale", "sdpa.softcap_multiply"),
        "divide": ("sdpa.softcap_divide",),
        "tanh": ("sdpa.softcap_tanh",),
        "add": ("sdpa.mask",),
        "softmax": ("sdpa.softmax",),
    },
    axes=SCORES,
    masks=True,
    softcap="sdpa.softcap",
)
"""The operations of eager_attention_forward, as LLaMA and Gemma2 have it."""


def describe_sdpa(fused: bool) -> Callable[[Call], Block]:
    """The attention function as a block; its facts also go to the blocks around it."""

    def describe(call: Call) -> Block:
        facts = _facts(call, fused)
        for frame in call.recorder.stack:
            frame.attention = facts
        inputs = {
            "q": (call["query"], QUERY),
            "k": (call["key"], CACHED),
            "v": (call["value"], CACHED),
        }
        return Block(
            "sdpa",
            inputs | facts.inputs,
            only_out(OUT),
            dict(facts.params),
            contract=facts.contract,
            valid={} if facts.valid is None else {"out": (facts.valid, ("batch", "token"))},
        )

    return describe


def _facts(call: Call, fused: bool) -> AttentionFacts:
    recorder = call.recorder
    q, k, mask = call["query"], call["key"], call.get("attention_mask")
    scale = call.get("scaling")
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    softcap = None if fused else call.get("softcap")
    softcap = None if softcap is None else float(softcap)
    causal = call.get("is_causal")
    causal = fused and bool(getattr(call.module, "is_causal", True) if causal is None else causal)
    visibility = _find(recorder.masks, q, k, mask, call.get("sliding_window"), causal)
    params: dict[str, Any]
    if visibility is not None:
        params, inputs, allowed = visibility.params(), visibility.inputs(), visibility.allowed()
    else:
        allowed = effective(mask, q.shape[2], k.shape[2], causal)
        explicit = allowed if mask is None else mask
        params = {"causal": False, "window": None, "query_offset": 0, "key_offset": 0}
        inputs = {"mask": (explicit, MASK)}
    rows = allowed.any(-1).all(1)
    blind_rows = not bool(rows.all())
    excluded = blind_rows and (
        recorder.options.what.masked_rows == "excluded"
        or (not fused and mask is not None and leaves_no_score(q, k, mask, scale, softcap))
    )
    params["fully_masked"] = "excluded" if excluded else "zero" if fused else "uniform"
    params["scale"] = scale
    params["softcap"] = softcap
    params["max_abs_score"] = largest_score(q, k, allowed, scale, softcap)
    return AttentionFacts(params, inputs, rows if excluded else None, "fused" if fused else "eager")


def _find(
    known: list[Visibility],
    q: torch.Tensor,
    k: torch.Tensor,
    mask: torch.Tensor | None,
    window: int | None,
    causal: bool,
) -> Visibility | None:
    """Of the masks made in this step the one whose numbers give exactly the mask applied here."""
    shape = (q.shape[2], k.shape[2])
    if mask is None and not known:
        known = [Visibility(causal and shape[0] > 1, None, 0, 0, len(q), *shape, None)]
    fitting = [
        v
        for v in known
        if (v.queries, v.keys) == shape and (mask is None or v.made is mask or v.made is None)
    ]
    fitting.sort(key=lambda v: (v.made is not mask, v.window != window))
    for visibility in fitting:
        if says_the_same(visibility, mask, causal):
            return visibility
    return None
