"""The committed recordings of whole models that hold little else than their chain.

Of what only some models have: rotary types past the length they were trained for, windows on all or
some layers, batches of rows with other lengths.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..taps.options import Options, Proof, What
from .case import Case, decode_of, padded_decode_of, whole

ROTARY = ("linear", "llama3", "yarn", "yarn-exact", "yarn-long", "yarn-mscale", "longrope",
          "dynamic")  # fmt: skip
COMMITTED = ("longrope", "dynamic")
"""Those whose recordings of whole models are; the others are made."""

_CHAIN = Options(What(blocks=()), Proof(chained=True))
_WINDOW = Options(
    What(blocks=("causal_mask", "sdpa", "attention"), internals=False), Proof(chained=True)
)


def chain_cases() -> Iterator[Case]:
    short = decode_of(9, 2, batch=1)
    for kind in ROTARY:
        model, about = f"llama-a3-{kind}", f"rotary {kind}, whole model past 10 tokens, chained"
        held = kind in COMMITTED
        yield Case(f"{model}/decode-f32", about, model, "f32", short, "eager", _CHAIN, held)
    for model, about in (
        ("mistral-b1", "Mistral, a window on all layers"),
        ("qwen2-b2", "Qwen2, a window from layer 1 on, biases"),
    ):
        text = f"{about}, prefill and steps, chained"
        yield Case(f"{model}/decode-f32", text, model, "f32", short, asked=_WINDOW)
    for model, about in (
        ("mistral-b1-full", "Mistral without a window"),
        ("qwen2-b2-full", "Qwen2, its window switched off"),
    ):
        text = f"{about}, one call, chained"
        yield Case(f"{model}/whole-f32", text, model, "f32", whole(9, batch=1), asked=_WINDOW)
    text = "three rows with other lengths, none sees another, chained"
    batch = padded_decode_of(9, 2, left_pad=(0, 2, 5))
    what = Options(What(blocks=("causal_mask",), masked_rows="judged"), Proof(chained=True))
    yield Case("llama-a1/padded-decode-f32-batch", text, "llama-a1", "f32", batch, asked=what)
