"""The committed recordings of tiny models: which model, run and blocks each is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..taps.options import COMPONENTS, Options, Proof, What
from .case import (
    Case,
    Plan,
    calls,
    chunked,
    chunks_of,
    decode,
    padded,
    padded_decode,
    padded_decode_of,
    static,
    whole,
)
from .chain_cases import chain_cases
from .zamba2_cases import zamba2_cases

# What is left out keeps the tree small: single operations where another recording of the model has
# them, and layers beyond the first of each kind.
_PLAIN = Options(What(internals=False))
_CHAINED = Options(proof=Proof(chained=True))
_CHAINED_PLAIN = Options(What(internals=False), Proof(chained=True))
_CHAINED_JUDGED = Options(What(internals=False, masked_rows="judged"), Proof(chained=True))
_TWO_LAYERS = Options(What(internals=False, layers=(0, 1)))
_ONE_LAYER = Options(What(internals=False, layers=(0,)))
_MASKED = Options(What(blocks=("sdpa", "attention"), internals=False, masked_rows="judged"))
_MASKS = Options(What(blocks=("causal_mask", "sdpa"), layers=(0, 1), internals=False))
_ROTARY = Options(
    What(
        blocks=(
            "rotary_frequencies",
            "rotary_table",
            "rotary",
            "sdpa",
            "attention",
            "decoder_layer",
        ),
        layers=(0,),
        internals=False,
    )
)
# The tables alone, without weights: what is turned by them is in `_ROTARY` of another type.
_TABLES = Options(What(blocks=("rotary_frequencies", "rotary_table"), internals=False))
_COMPONENTS = Options(
    What(blocks=(*sorted(COMPONENTS), "softmax", "scale", "repeat_kv"), layers=(0,))
)
_TURNED = Options(What(blocks=("permute",), layers=(0,)))
_STATES = Options(
    What(blocks=("mask_fill", "conv1d", "conv_cache", "ssm_cache", "kv_cache"), layers=(0, 1))
)
_ONE_STATE = Options(replace(_STATES.what, layers=(0,)))
_POSITIONS = Options(What(blocks=("position_ids",)))
_CACHES = Options(What(blocks=("attention", "causal_mask"), layers=(0, 1)), Proof(chained=True))
_SEEN = Options(
    What(blocks=("attention", "causal_mask", "sdpa", "position_ids"), layers=(0, 1)),
    Proof(chained=True),
)
_STATIC_PADDED = Options(What(blocks=("causal_mask",), masked_rows="judged"), Proof(chained=True))
_CHAIN = Options(What(blocks=()), Proof(chained=True))
_JOINED = Options(What(blocks=("static_kv_cache", "concat", "slice"), layers=(0,)))
_OVERFLOW = Options(
    What(blocks=("causal_mask", "masked_add", "softmax", "sdpa", "attention", "decoder_layer"))
)


def _main_cases(
    model: str, about: str, single: Options, cut: Options, padding: Options
) -> Iterator[Case]:
    """The modes and dtypes that LLaMA and Gemma2 are recorded in, and how much of each."""
    yield Case(f"{model}/whole-f32", f"{about}, one call", model, "f32", whole(), asked=single)
    text = f"{about}, prefill and steps, chained"
    yield Case(f"{model}/decode-f32", text, model, "f32", decode, asked=_CHAINED)
    text = f"{about}, two chunks, chained"
    yield Case(f"{model}/chunked-f32", text, model, "f32", chunked, asked=cut)
    text = f"{about}, left padding, rows without a key {padding.what.masked_rows}, chained"
    yield Case(f"{model}/padded-decode-f32", text, model, "f32", padded_decode, asked=padding)
    text = f"{about}, 16 bits, chained"
    yield Case(f"{model}/decode-bf16", text, model, "bf16", decode, asked=_CHAINED)
    yield Case(f"{model}/whole-f16", f"{about}, 16 bits", model, "f16", whole(), asked=_PLAIN)


def _made(name: str, about: str, plan: Plan, asked: Options) -> Case:
    """One that is not committed."""
    model, mode = name.split("/")
    dtype = mode.split("-")[-1]
    return Case(name, about, model, dtype, plan, asked=asked, committed=False)


def _all_cases() -> Iterator[Case]:
    a1, a4 = "llama-a1", "gemma2-a4"
    yield from _main_cases(a1, "LLaMA", Options(), _CHAINED_PLAIN, _CHAINED_JUDGED)
    fused = "LLaMA with torch's fused attention"
    name = f"{a1}/decode-f32-sdpa"
    yield Case(name, fused, a1, "f32", decode, "sdpa", _TWO_LAYERS, committed=False)
    yield Case(
        f"{a1}/padded-f32-sdpa",
        "rows without a key are zero under fused attention",
        a1,
        "f32",
        padded(),
        "sdpa",
        Options(
            What(blocks=("causal_mask", "sdpa"), layers=(0,), internals=False, masked_rows="judged")
        ),
    )
    yield Case(
        f"{a1}/padded-f32-sdpa-t16",
        "a bool mask whose rows have 16 bytes",
        a1,
        "f32",
        padded(16),
        "sdpa",
        Options(What(blocks=("causal_mask",), internals=False)),
    )
    model, about = "llama-a2-mqa", "biases, head_dim 12, one kv head"
    yield Case(f"{model}/whole-f32", about, model, "f32", whole(), asked=_ONE_LAYER)
    about = "biases, head_dim 12, no groups"
    yield _made("llama-a2-mha/whole-f32", about, whole(), _ONE_LAYER)
    for kind in ("linear", "llama3", "yarn", "yarn-exact", "yarn-long", "yarn-mscale"):
        model = f"llama-a3-{kind}"
        table = kind in ("linear", "yarn-mscale")
        held, asked = table or kind == "yarn", _TABLES if table else _ROTARY
        name, about = f"{model}/whole-f32", f"rotary {kind}"
        yield Case(name, about, model, "f32", whole(), "eager", asked, held, not table)
    for kind, lengths in (("longrope", (10, 11)), ("dynamic", (14, 11, 10, 9))):
        model, about = f"llama-a3-{kind}", f"rotary {kind}, calls of {lengths} tokens"
        yield Case(f"{model}/whole-f32", about, model, "f32", calls(*lengths), asked=_ROTARY)
    cut, padding = (
        replace(asked, what=replace(asked.what, layers=(0, 1)))
        for asked in (_CHAINED_PLAIN, _CHAINED_JUDGED)
    )
    yield from _main_cases(a4, "Gemma2", _PLAIN, cut, padding)
    for tokens in (4, 5, 6, 11):
        about = f"{tokens} tokens around a window of 5"
        yield Case(f"{a4}/whole-f32-t{tokens}", about, a4, "f32", whole(tokens), asked=_MASKS)
    about = "Gemma2 without softcaps"
    yield _made("gemma2-a5-no-caps/whole-f32", about, whole(), _TWO_LAYERS)
    about = "inexact embedding scale"
    yield _made("gemma2-a5-c48/whole-bf16", about, whole(), _TWO_LAYERS)
    for dtype in ("f32", "bf16"):
        about = "blocks LLaMA and Gemma2 lack"
        yield Case(f"blocks/whole-{dtype}", about, "blocks", dtype, whole(9))
        about += ", fused attention, a bool mask"
        yield Case(f"blocks/whole-{dtype}-sdpa", about, "blocks", dtype, whole(9), "sdpa", _MASKED)
    about = "outlier channels and a massive activation"
    for dtype in ("f32", "bf16"):
        yield _made(f"llama-outliers/whole-{dtype}", about, whole(), _TWO_LAYERS)
    yield from zamba2_cases()
    yield from _component_cases()
    yield from _static_cases()


def _component_cases() -> Iterator[Case]:
    """Single operations of each kind: a layer's, and those that only some models have."""
    for dtype, tokens in (("f32", 5), ("bf16", 6)):  # rows of whole 16 bytes, and others
        name = f"whole-{dtype}-components"
        for model in ("components", "llama-a1"):
            about = f"single operations of {model}"
            yield Case(f"{model}/{name}", about, model, dtype, whole(tokens), asked=_COMPONENTS)
        model, about = "zamba2-a6", "Zamba2, the mixer's operations and the updates of its states"
        mode, asked = f"chunked-{dtype}-components", _STATES if dtype == "f32" else _ONE_STATE
        yield Case(f"{model}/{mode}", about, model, dtype, chunks_of(2, 5, 1), asked=asked)
    name, about = "llama-a1/whole-bf16-components-t72", "keys turned in whole vectors, over a tile"
    yield Case(name, about, "llama-a1", "bf16", whole(72, batch=1), asked=_TURNED)
    name, about = "llama-a1/padded-decode-f32-positions", "position ids of padded rows"
    yield Case(name, about, "llama-a1", "f32", padded_decode, asked=_POSITIONS)


def _static_cases() -> Iterator[Case]:
    """Buffers of 7 to 16 slots, and of 5 where a layer has Gemma2's window."""
    a1, a4 = "llama-a1", "gemma2-a4"

    def case(name: str, about: str, plan: Plan, asked: Options) -> Case:
        model, mode = name.split("/")
        text = f"static cache, {about}" + (", chained" if asked.proof.chained else "")
        return Case(name, text, model, mode.split("-")[-2], plan, asked=asked)

    short, padded = static(8, 3, 2, batch=1), padded_decode_of(4, 1, (2, 0), max_length=8)
    text = "full, prefill and steps"
    yield case(f"{a1}/decode-f32-static", text, static(12, 7, steps=2), _SEEN)
    yield case(f"{a1}/chunked-f32-static", "full, chunks 3, 2", short, _CHAIN)
    yield case(f"{a1}/padded-decode-f32-static", "full, left padding", padded, _STATIC_PADDED)
    text = "full and sliding layers, steps past the window"
    yield case(f"{a4}/decode-f32-static", text, static(12, 3, steps=5, batch=1), _CACHES)
    yield case(f"{a4}/decode-bf16-static", text, static(7, 3, steps=3), _CHAIN)
    text = "full and sliding layers, left padding, prefill shorter than the window"
    yield case(f"{a4}/padded-decode-f32-static", text, padded, _STATIC_PADDED)
    text, plan = "full and sliding layers, chunks 3, 4, 6, 1", static(16, 3, 4, 6, 1, batch=1)
    yield case(f"{a4}/chunked-f32-static", text, plan, _CACHES)
    name, text = f"{a4}/chunked-f32-static-joins", "static cache, chunks 7, 1, 3"
    yield Case(name, text, a4, "f32", static(16, 7, 1, 3), asked=_JOINED)


def _overflow_case() -> Case:
    text = "scores of hundreds in fp16, where a mask added to one overflows"
    plan = padded_decode_of(9, 2)
    return Case("llama-x2/padded-decode-f16", text, "llama-x2", "f16", plan, asked=_OVERFLOW)


MODEL_CASES: tuple[Case, ...] = (*_all_cases(), *chain_cases(), _overflow_case())
