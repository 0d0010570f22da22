"""Recordings that are not committed: they take seconds from a seed.

tests/python/test_made_recordings.py makes them and has the harness verify them. They are those of
tiny models that vary one feature, and those that fill rows which all others leave thin
(`inspector coverage` says which).
"""

from __future__ import annotations

from collections.abc import Iterator

from ..taps.options import Options, Proof, What
from . import border_steps as do
from .border import Step, Subject
from .border_cases import BorderCase
from .case import Case, decode_of, padded_decode_of, whole
from .model_cases import MODEL_CASES

DTYPES = ("f32", "bf16", "f16")
FEW = 4
"""Simulated kernels of a thin row's recording: enough for limits, a quarter of the time."""
LAST_POSITION = 131_071
VOCABULARY = 70_001
_STATES = ("cast", "add_scalar", "conv_cache", "ssm_cache", "concat", "slice", "mul", "div")
_WINDOWS = ("kv_cache", "causal_mask", "sdpa", "attention", "decoder_layer", "rms_norm", "lm_head")


def _far(dtype: str) -> BorderCase:
    """Positions up to the last of 131,072, and more ids than 16 bits count."""
    sizes = {
        **{"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},
        **{"intermediate_size": 48, "vocab_size": VOCABULARY, "tie_word_embeddings": False},
    }
    parts = ("rotary_emb", "layer_norm", "large_embedding", "causal_lm")
    steps: list[Step] = [
        do.rotary(9, LAST_POSITION - 8),
        do.rotary(2, 65_535),
        do.part("layer_norm", 33),
        do.ids_up_to("large_embedding", VOCABULARY, 9),
        do.logits(2),
    ]
    subject = Subject("llama3.2-1b", dtype, parts, sizes=sizes)
    about = "positions to 131,071, 70,001 ids"
    return BorderCase(f"thin-far/whole-{dtype}", about, subject, steps, 33)


def _models(dtype: str) -> Iterator[Case]:
    """Every dtype of what is recorded in few; 5 and 32 rows."""
    few = Options(proof=Proof(spread=FEW, bugs=False))
    states = Options(What(blocks=_STATES, layers=(0, 1)), Proof(spread=FEW, bugs=False))
    windows = Options(What(blocks=_WINDOWS), Proof(spread=FEW, bugs=False, chained=True))
    decode, padding = decode_of(7, 2, batch=5), padded_decode_of(7, 2, (3, 0, 1, 0, 2))
    yield Case(f"thin-states/decode-{dtype}", "states", "zamba2-a6", dtype, decode, asked=states)
    yield Case(f"thin-gemma2/whole-{dtype}", "softcaps", "gemma2-a4", dtype, whole(7), asked=few)
    yield Case(f"thin-blocks/whole-{dtype}", "interleaved", "blocks", dtype, whole(9, 5), asked=few)
    yield Case(
        f"thin-rows/decode-{dtype}", "32 rows", "qwen2", dtype, decode_of(5, 2, 32), asked=windows
    )
    yield Case(f"thin-window/decode-{dtype}", "5 rows", "mistral", dtype, padding, asked=windows)


MADE_CASES: tuple[Case | BorderCase, ...] = (
    *(case for case in MODEL_CASES if not case.committed),
    *map(_far, DTYPES),
    *(case for dtype in DTYPES for case in _models(dtype)),
)
