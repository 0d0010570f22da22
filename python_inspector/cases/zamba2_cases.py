"""The committed recordings of Zamba2: its mixer, its shared blocks and its states."""

from __future__ import annotations

from collections.abc import Iterator

from ..taps.options import Options, Proof, What
from .case import (
    PREFILL,
    Case,
    Plan,
    calls,
    chunked,
    chunks_of,
    decode_of,
    padded_decode,
    padded_decode_of,
    whole,
)

# Zamba2's layers: linear, hybrid with block 0, linear, hybrid with 1, hybrid with 0 again, linear.
# Kinds that Zamba2 has in common with other models, and the parts of an adapter, are recorded where
# layers are few.
_MIXERS = ("causal_conv1d", "ssd_scan", "gated_rms_norm", "mamba2_mixer")
_MIXER = Options(What(blocks=_MIXERS, layers=(0,)))
_ZAMBA2_KINDS = (
    *_MIXERS, "attention", "glu_mlp", "kv_cache", "causal_mask", "low_rank_adapter",
    "shared_transformer", "mamba_layer", "hybrid_layer", "lm_head",
)  # fmt: skip
_ZAMBA2_CHAINED = Options(What(blocks=(*_ZAMBA2_KINDS, "rms_norm", "sdpa")), Proof(chained=True))
_ZAMBA2_FIRST = Options(What(blocks=_ZAMBA2_KINDS, layers=(0, 1, 3)))
_ZAMBA2_PADDED = Options(What(blocks=(*_ZAMBA2_KINDS, "sdpa"), layers=(0, 1), masked_rows="judged"))
_ZAMBA2_SINGLE = Options(What(blocks=("attention", "glu_mlp", "mamba2_mixer"), layers=(0, 1)))
_ZAMBA2_PLAIN = Options(What(internals=False, layers=(0, 1)))


def zamba2_cases() -> Iterator[Case]:
    model, about = "zamba2-a6", "Zamba2"

    def case(mode: str, text: str, plan: Plan, asked: Options, committed: bool = True) -> Case:
        dtype = mode.split("-")[-2 if mode.endswith(("-mixer", "-layer", "-single")) else -1]
        name = f"{model}/{mode}"
        return Case(name, f"{about}, {text}", model, dtype, plan, asked=asked, committed=committed)

    yield case("whole-f32", "three chunks of the scan", whole(20), _ZAMBA2_FIRST)
    text = "mixer: tokens around the kernel of 4 and the scan's chunks of 8"
    yield case("whole-f32-mixer", text, calls(1, 3, 4, 8, 9), _MIXER)
    yield case(
        "whole-f32-layer", "a hybrid layer's operations", whole(9), Options(What(layers=(1,)))
    )
    yield case("whole-f16", "16 bits", whole(9), _ZAMBA2_PLAIN)
    short = decode_of(9, 2)
    yield case("decode-f32", "prefill and steps, all layers, chained", short, _ZAMBA2_CHAINED)
    yield case("decode-bf16", "16 bits, all layers, chained", short, _ZAMBA2_CHAINED)
    text = "mixer: sixteen bits, a state that eight steps round"
    yield case("decode-bf16-mixer", text, decode_of(PREFILL, 8), _MIXER)
    text = "steps of one sequence: what follows a product of one row is done with it"
    yield case("decode-f32-single", text, decode_of(9, 4, batch=1), _ZAMBA2_SINGLE)
    cut = Options(What(blocks=_ZAMBA2_KINDS, layers=(0, 4)), Proof(chained=True))
    yield case("chunked-f32", "two chunks, chained", chunked, cut)
    text = "mixer: states shorter than the kernel, a step between chunks"
    yield case("chunked-f32-mixer", text, chunks_of(1, 1, 2, 9, 8), _MIXER)
    cut = Options(_ZAMBA2_PADDED.what, Proof(chained=True))
    yield case("padded-decode-f32", "left padding, chained", padded_decode_of(9, 2), cut)
    model, about = "zamba2-a7", "Zamba2 without rotary and attention adapters, one shared block"
    yield case("whole-f32", "one call", whole(), _ZAMBA2_FIRST)
    yield case("decode-f32", "prefill and steps", short, _ZAMBA2_FIRST, committed=False)
    model, about = "zamba2-a8", "Zamba2 with a lower limit on dt and biases"
    yield case("whole-f32", "one call", whole(), _ZAMBA2_PLAIN, committed=False)
    yield case("decode-f32", "prefill and steps", short, _ZAMBA2_PADDED)
    text, name = "a bias that leaks from padding", "padded-decode-f32-mixer"
    yield case(name, text, padded_decode, _MIXER, committed=False)
