"""Steps of border recordings: one call of one part, or of an attention function, each."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..format.axes import CACHED, QUERY, SCORES, Named
from ..format.generator import UNIT
from ..taps.calls import Block, only_out
from .border import Stage, Step, attention_module

FAR = 700
"""A first position at which float32 angles cost many ulps."""


def part(name: str, tokens: int, width: int | None = None, exponent: int = UNIT) -> Step:
    """A module of one input, on `width` channels (the hidden size)."""

    def step(stage: Stage) -> None:
        channels = stage.config.hidden_size if width is None else width
        stage.model.get_submodule(name)(stage.tensor("x", 1, tokens, channels, exponent=exponent))

    return step


def part_of(name: str, width: int) -> Callable[[int], Step]:
    """`part` as a function of the tokens."""
    return lambda tokens: part(name, tokens, width)


def embedding(tokens: int) -> Step:
    def step(stage: Stage) -> None:
        module = stage.model.embedding
        ids = stage.positions(tokens) * 37 % module.num_embeddings
        module(ids)

    return step


def ids_up_to(name: str, vocabulary: int, tokens: int) -> Step:
    """An embedding of so many rows, the first and the last among those taken."""

    def step(stage: Stage) -> None:
        last = vocabulary - 1
        stage.model.get_submodule(name)(stage.positions(tokens) * last // (tokens - 1))

    return step


def grouped_products(rows: int, columns: int, kv_heads: int, groups: int, width: int = 16) -> Step:
    """Products of each head with its kv head's matrix, lying either way: transformers repeats kv
    heads before, so that no model has fewer in the second operand."""

    def product(a: torch.Tensor, b: torch.Tensor, transposed: bool) -> torch.Tensor:
        b = b.repeat_interleave(groups, 1)
        return a @ (b.mT if transposed else b)

    def step(stage: Stage) -> None:
        a = stage.tensor("a", 1, kv_heads * groups, rows, width)
        for transposed in (True, False):
            shape = (columns, width) if transposed else (width, columns)
            b = stage.tensor("b", 1, kv_heads, *shape)
            axes = (*CACHED[:2], *(CACHED[2:] if transposed else CACHED[:1:-1]))
            inputs: dict[str, Named] = {"a": (a, QUERY), "b": (b, axes)}
            block = Block("matmul", inputs, only_out(SCORES), {"transpose_b": transposed})
            stage.record("grouped_product", block, product, (a, b, transposed))

    return step


def rotary(tokens: int, offset: int = FAR) -> Step:
    """The table, and q and k turned by it."""

    def step(stage: Stage) -> None:
        config, (cos, sin) = stage.config, stage.table(tokens, offset)
        q = stage.tensor("q", 1, config.num_attention_heads, tokens, config.head_dim)
        k = stage.tensor("k", 1, config.num_key_value_heads, tokens, config.head_dim)
        stage.file.apply_rotary_pos_emb(q, k, cos, sin)

    return step


def sdpa(queries: int, keys: int | None = None, kv_heads: int | None = 1, sharp: int = 1) -> Step:
    """The architecture's attention function; `queries` are the last of `keys` tokens, of which a
    window may have dropped the first.

    `kv_heads`, None for the published number, have as many heads each as published. `sharp` is the
    power of two that q is larger by: with 1 the scores have a sigma of 2 or so.
    """

    def step(stage: Stage) -> None:
        config, cache = stage.config, stage.cache((keys or queries) - queries)
        total = queries + (0 if cache is None else cache.layers[0].keys.shape[2])
        groups = config.num_attention_heads // config.num_key_value_heads
        width, pairs = config.head_dim, kv_heads or config.num_key_value_heads
        q = stage.tensor("q", 1, pairs * groups, queries, width, exponent=UNIT + sharp)
        k = stage.tensor("k", 1, pairs, total, width)
        v = stage.tensor("v", 1, pairs, total, width)
        mask = stage.mask(queries, cache, sliding=stage.sliding)
        attend = stage.file.eager_attention_forward
        options = {}
        if config._attn_implementation != "eager":
            attend = stage.file.ALL_ATTENTION_FUNCTIONS[config._attn_implementation]
        if config.model_type == "gemma2":
            window = config.sliding_window if stage.sliding else None
            options = {"softcap": config.attn_logit_softcapping, "sliding_window": window}
        scale = getattr(config, "query_pre_attn_scalar", width) ** -0.5
        if config.model_type == "zamba2":
            scale = (width / 2) ** -0.5
        attend(attention_module(groups), q, k, v, mask, scaling=scale, dropout=0.0, **options)

    return step


def attention(queries: int, keys: int | None = None, *, name: str = "self_attn") -> Step:
    """Layer 0's attention, or the whole layer, behind keys - queries cached tokens."""

    def step(stage: Stage) -> None:
        before = (keys or queries) - queries
        cache = stage.cache(before)
        stage.model.get_submodule(name)(
            hidden_states=stage.hidden(queries),
            position_embeddings=stage.table(queries, before),
            attention_mask=stage.mask(queries, cache, sliding=stage.sliding),
            past_key_values=cache,
        )

    return step


def hybrid(tokens: int, name: str = "hybrid") -> Step:
    """Zamba2's hybrid layer, or the shared transformer in it, on the first tokens."""

    def step(stage: Stage) -> None:
        module = stage.model.get_submodule(name)
        mask = stage.mask(tokens, None, sliding=False)
        module(
            stage.hidden(tokens),
            original_hidden_states=stage.tensor("x0", 1, tokens, stage.config.hidden_size),
            layer_idx=1,
            position_embeddings=stage.table(tokens),
            **({"causal_mask": mask} if name == "hybrid" else {"attention_mask": mask}),
        )

    return step


def shared_mlp(tokens: int) -> Step:
    """The shared transformer's MLP, with the adapter of its first use."""

    def step(stage: Stage) -> None:
        stage.model.hybrid.shared_transformer.feed_forward(stage.hidden(tokens), 1)

    return step


def logits(tokens: int) -> Step:
    """The head of a model without layers: norm, product, softcap."""

    def step(stage: Stage) -> None:
        stage.model.causal_lm(inputs_embeds=stage.hidden(tokens), use_cache=False)

    return step


def kv_cache(before: int, new: int) -> Step:
    """New keys and values behind cached ones."""

    def step(stage: Stage) -> None:
        config, cache = stage.config, stage.cache(before)
        shape = (1, config.num_key_value_heads, new, config.head_dim)
        cache.update(stage.tensor("k", *shape), stage.tensor("v", *shape), 0)

    return step
