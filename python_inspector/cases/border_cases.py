"""The committed border recordings, and a whole layer of published size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..format.sampled import Sampling
from ..format.summary import Summary
from ..recorder.where import Where
from . import border_steps as do
from .border import EPSILONS, Step, Subject, record_parts

LIMIT = 1_500_000
"""Bytes of one border recording."""

LENGTHS = (63, 64, 65, 127, 129, 257)
"""Tokens and keys around the tiles of kernels: 64, 128 and 256, one less and one more."""
SMALL = -28
"""Exponent of inputs with a sigma of 1.4e-4."""


@dataclass(frozen=True)
class BorderCase:
    """One recording, `<folder>/<mode>-<dtype>[-<what is special>]`."""

    name: str
    about: str
    subject: Subject
    steps: Sequence[Step]
    tokens: int
    sampling: Sampling = field(default_factory=Sampling)

    @property
    def dtype(self) -> str:
        return self.subject.dtype

    @property
    def mode(self) -> str:
        return self.name.rpartition("/")[2].partition("-")[0]

    def record(self, where: Where, advance: Callable[[], None] = lambda: None) -> Summary:
        run: dict[str, Any] = {"mode": self.mode, "tokens": self.tokens}
        if self.mode != "whole":
            run["cache"] = "dynamic"
        return record_parts(self.subject, self.steps, where, run, self.sampling, advance)


def _each(step: Any, *lengths: int, **options: Any) -> list[Step]:
    return [step(n, **options) for n in lengths]


def _decoding(kv_heads: int) -> list[Step]:
    """One query, every number of keys."""
    return [do.sdpa(1, keys, kv_heads) for keys in LENGTHS]


def _chunk(kv_heads: int) -> list[Step]:
    return [do.sdpa(65, 129, kv_heads), do.sdpa(63, 257, kv_heads), do.sdpa(2, 65, kv_heads)]


def _llama(shape: str, dtype: str, attention: str = "eager") -> Iterator[BorderCase]:
    """Whole, decode and chunked recordings of a LLaMA shape."""
    folder, kv_heads = f"border-{shape.replace('.', '')}", 8
    special = "" if attention == "eager" else f"-{attention}"
    parts = ("norm", "rotary_emb", "layer_norm", "embedding")[: 2 if special else 4]
    about = f"{shape}: tile borders"
    whole = Subject(shape, dtype, parts, attention)
    tail = [] if special else [do.part("layer_norm", 63), do.embedding(65)]
    yield BorderCase(
        f"{folder}/whole-{dtype}{special}",
        f"{about}, blocks alone",
        whole,
        [
            do.part("norm", 65),
            do.rotary(65),
            *_each(do.sdpa, *LENGTHS),
            do.sdpa(65, kv_heads=kv_heads),
            *tail,
        ],
        65,
    )
    alone = Subject(shape, dtype, ("norm",), attention)
    yield BorderCase(
        f"{folder}/decode-{dtype}{special}",
        f"{about}, one query",
        alone,
        [do.part("norm", 1), *_decoding(kv_heads)],
        1,
    )
    yield BorderCase(
        f"{folder}/chunked-{dtype}{special}",
        f"{about}, queries behind cached keys",
        alone,
        [do.part("norm", 2), *_chunk(1)],
        65,
    )


def _grouped(dtype: str) -> BorderCase:
    """Products with fewer kv heads, as many groups as kv heads and not."""
    return BorderCase(
        f"border-llama32-1b/whole-{dtype}-grouped",
        "products of heads with fewer kv heads",
        Subject("llama3.2-1b", dtype, ("norm",), sizes={"hidden_size": 32}),
        [do.grouped_products(5, 7, kv_heads=2, groups=3), do.grouped_products(1, 9, 4, 2)],
        5,
    )


def _composites() -> Iterator[BorderCase]:
    """Projections and blocks made of blocks; the inner size of MLPs is cut, off the tile."""
    sizes = {"intermediate_size": 520}
    small = Subject("llama3.2-1b", "bf16", ("self_attn", "mlp", "rotary_emb"), sizes=sizes)
    yield BorderCase(
        "border-llama32-1b/chunked-bf16",
        "llama3.2-1b: attention and MLP",
        small,
        [do.attention(65, 129), do.part("mlp", 65)],
        65,
    )
    layer = Subject("llama3.2-1b", "f32", ("layer", "rotary_emb"), sizes=sizes)
    yield BorderCase(
        "border-llama32-1b/decode-f32-layer",
        "llama3.2-1b: a layer, one token behind 64",
        layer,
        [do.attention(1, 65, name="layer"), do.attention(3, 129, name="layer")],
        1,
    )
    fused = Subject("llama3.2-1b", "f16", ("self_attn", "rotary_emb", "mlp"), "sdpa", sizes)
    yield BorderCase(
        "border-llama32-1b/whole-f16-attention",
        "llama3.2-1b: fused attention with its projections",
        fused,
        [do.attention(65), do.part("mlp", 63)],
        65,
    )
    window = {"sliding_window": 64, "intermediate_size": 264}
    gemma = Subject(
        "gemma2-2b", "bf16", ("layer", "rotary_emb", "causal_lm"),
        sizes=window | {"num_hidden_layers": 1},
    )  # fmt: skip
    yield BorderCase(
        "border-gemma2-2b/decode-bf16-layer",
        "gemma2-2b: a layer with a window of 64, one token behind 64",
        gemma,
        [do.attention(1, 65, name="layer"), do.attention(3, 65, name="layer"), do.logits(3)],
        1,
    )


def _gemma2(dtype: str) -> Iterator[BorderCase]:
    sizes = {"sliding_window": 64, "intermediate_size": 264}
    parts = ("norm", "rotary_emb", "mlp")
    folder = "border-gemma2-2b"
    about = "gemma2-2b: tile borders, a window of 64, softcap"
    subject = Subject("gemma2-2b", dtype, parts, sizes=sizes)
    yield BorderCase(
        f"{folder}/whole-{dtype}",
        f"{about}, blocks alone",
        subject,
        [
            do.part("norm", 65),
            do.rotary(65),
            do.part("mlp", 65),
            *_each(do.sdpa, *LENGTHS, sharp=3),
            do.sdpa(65, kv_heads=4, sharp=3),
        ],
        65,
    )
    yield BorderCase(
        f"{folder}/decode-{dtype}",
        f"{about}, one query and chunks",
        Subject("gemma2-2b", dtype, ("norm",), sizes=sizes),
        [do.part("norm", 1), *_decoding(4), *_chunk(1)],
        1,
    )


def _odd(dtype: str, width: int | None) -> Iterator[BorderCase]:
    """Sizes off every tile and vector width, and head sizes between the powers of two."""
    parts = ("odd_linear", "wide_linear", "odd_norm", "odd_layer_norm", "silu", "gelu", "gelu_tanh")
    yield BorderCase(
        f"border-odd/whole-{dtype}",
        "inner and outer sizes off the tile",
        Subject("llama3.2-1b", dtype, parts),
        [
            *_each(do.part_of("odd_linear", 1031), 1, 63, 64, 65, 129),
            *_each(do.part_of("wide_linear", 4104), 1, 17),
            *[do.part(name, 65, 1031) for name in parts[2:]],
        ],
        65,
    )
    if width is not None:
        sizes = {"head_dim": width}
        yield BorderCase(
            f"border-odd/decode-{dtype}-d{width}",
            f"heads of {width}",
            Subject("llama3.2-1b", dtype, ("norm", "rotary_emb"), sizes=sizes),
            [
                do.part("norm", 1),
                do.rotary(65),
                *_each(do.sdpa, *LENGTHS),
                *_decoding(1),
                *_chunk(1),
            ],
            65,
        )


def _small_norms() -> Iterator[BorderCase]:
    """Inputs of about 1.4e-4, whose mean square is below every eps."""
    for dtype in ("f32", "bf16"):
        for shape, model in (("llama3.2-1b", "llama"), ("gemma2-2b", "gemma2")):
            yield BorderCase(
                f"border-small/whole-{dtype}-{model}",
                f"norms of {model} on small activations, for each eps",
                Subject(shape, dtype, tuple(EPSILONS), sizes={"hidden_size": 64}),
                [do.part(name, 9, exponent=SMALL) for name in EPSILONS],
                9,
            )


def _rare() -> Iterator[BorderCase]:
    """What no published model has, so that every kernel there is has run on a recording."""
    sizes = {"head_dim": 32, "hidden_size": 512, "intermediate_size": 264, "hidden_act": "tanh"}
    yield BorderCase(
        "border-odd/decode-f32-d32",
        "heads of 32 and an MLP with tanh",
        Subject("llama3.2-1b", "f32", ("mlp",), sizes=sizes),
        [do.part("mlp", 3), *_decoding(1)],
        1,
    )


def _all_cases() -> Iterator[BorderCase]:
    yield from _llama("llama3-8b", "bf16")
    yield from _llama("llama3-8b", "f32", "sdpa")
    yield from _llama("llama3.2-1b", "f32")
    yield from _llama("llama3.2-1b", "f16", "sdpa")
    yield from _composites()
    yield from _gemma2("bf16")
    yield from _gemma2("f32")
    for dtype, width in (("f32", 80), ("f16", None), ("bf16", 96)):
        yield from _odd(dtype, width)
    yield from _small_norms()
    yield from _rare()
    yield from map(_grouped, ("f32", "bf16"))


BORDER_CASES: tuple[BorderCase, ...] = tuple(_all_cases())


def full_layer(
    shape: str, dtype: str, tokens: int, device: str, attention: str = "eager"
) -> BorderCase:
    """One layer at full size, and blocks in it: attention, MLP, norm, attention function; of Zamba2
    a linear and a hybrid layer. A softcap is reached by scores; a window, only by more tokens."""
    parts, steps = _decoder_layer(shape, tokens)
    if shape.startswith("zamba2"):
        parts, steps = _zamba2_layers(tokens)
    return BorderCase(
        f"{shape}/whole-{dtype}",
        f"one layer of {shape}, {tokens} tokens",
        Subject(shape, dtype, parts, attention, device=device),
        steps,
        tokens,
        Sampling(random=8),
    )


def _decoder_layer(shape: str, tokens: int) -> tuple[tuple[str, ...], list[Step]]:
    """Parts and steps of a LLaMA or Gemma2 layer."""
    sharp = 3 if shape.startswith("gemma2") else 1
    return ("layer", "norm", "rotary_emb"), [
        do.part("norm", tokens),
        do.part("layer.mlp.gate_proj", tokens),
        do.part("layer.mlp", tokens),
        do.rotary(tokens, 0),
        do.sdpa(tokens, kv_heads=None, sharp=sharp),
        do.attention(tokens, name="layer.self_attn"),
        do.attention(tokens, name="layer"),
    ]


def _zamba2_layers(tokens: int) -> tuple[tuple[str, ...], list[Step]]:
    """Parts and steps of Zamba2's two kinds of layers."""
    return ("mamba", "hybrid", "norm", "rotary_emb"), [
        do.part("norm", tokens),
        do.part("mamba.mamba.in_proj", tokens),
        do.part("mamba.mamba", tokens),
        do.part("mamba", tokens),
        do.rotary(tokens, 0),
        do.sdpa(tokens, kv_heads=None),
        do.shared_mlp(tokens),
        do.hybrid(tokens, "hybrid.shared_transformer"),
        do.hybrid(tokens),
    ]
