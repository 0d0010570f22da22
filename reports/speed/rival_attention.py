"""PyTorch's ways of attention: its parts, scaled_dot_product_attention, flex_attention, blocks."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from .rival_cases import (
    TORCH_NAMES,
    Case,
    Function,
    Maker,
    Operand,
    Operands,
    Way,
    rotate,
)
from .shapes import Sizes


def allowed(sizes: Sizes, window: int | None) -> Tensor:
    """Which keys a query may see, bool [1, 1, T, S]: causal and, if any, the window."""
    at = torch.arange(sizes.tokens, device=sizes.device) + sizes.context - sizes.tokens
    distance = at[:, None] - torch.arange(sizes.context, device=sizes.device)[None]
    mask = distance >= 0
    if window is not None:
        mask &= distance < window
    return mask[None, None]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where allowed, the lowest finite number elsewhere."""
    lowest = torch.finfo(dtype).min
    return torch.where(mask, 0.0, lowest).to(dtype)


def repeat_kv(x: Tensor, heads: int) -> Tensor:
    """repeat_kv of transformers."""
    batch, kv_heads, slots, width = x.shape
    if heads == kv_heads:
        return x
    wide = x[:, :, None].expand(batch, kv_heads, heads // kv_heads, slots, width)
    return wide.reshape(batch, heads, slots, width)


def part_cases(m: Maker) -> list[Case]:
    """What eager attention consists of."""
    s, tokens, context = m.shape, m.sizes.tokens, m.sizes.context
    dtype = getattr(torch, TORCH_NAMES[m.sizes.dtype])
    scores = Operand((1, s.heads, tokens, context))
    keys = m.heads(s.kv_heads, context)
    matmul = Case("matmul", {"a": m.heads(s.heads, tokens), "b": keys})
    matmul.way("repeat_kv, matmul", lambda t: t["a"] @ repeat_kv(t["b"], s.heads).transpose(2, 3))
    matmul.way(
        "matmul of groups",
        lambda t: t["a"].reshape(1, s.kv_heads, -1, s.head_dim) @ t["b"].transpose(2, 3),
    )
    softmax = Case("softmax", {"x": scores})
    softmax.way("torch.softmax", lambda t: torch.softmax(t["x"], -1))
    softmax.way("eager", lambda t: torch.softmax(t["x"], -1, dtype=torch.float32).to(dtype))
    scale = s.head_dim**-0.5
    return [
        Case("causal_mask", {}).eager_and_compiled(
            lambda _: additive(allowed(m.sizes, None), dtype), slow=True
        ),
        Case("repeat_kv", {"x": keys}).way("eager", lambda t: repeat_kv(t["x"], s.heads)),
        matmul,
        Case("scale", {"x": scores}).way("eager", lambda t: t["x"] * scale),
        Case("masked_add", {"x": scores, "mask": Operand((1, 1, tokens, context))}).way(
            "eager", lambda t: t["x"] + t["mask"]
        ),
        softmax,
    ]


def eager_attention(m: Maker, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """eager_attention_forward of Llama and Gemma2."""
    heads, cap = m.shape.heads, m.shape.attention_softcap
    scores = q @ repeat_kv(k, heads).transpose(2, 3) * m.shape.head_dim**-0.5
    if cap:
        scores = torch.tanh(scores / cap) * cap
    weights = torch.softmax(scores + mask, -1, dtype=torch.float32).to(q.dtype)
    return (weights @ repeat_kv(v, heads)).transpose(1, 2)


def fused_attention(
    m: Maker, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool
) -> Tensor:
    """scaled_dot_product_attention with grouped heads."""
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=causal,
        scale=m.shape.head_dim**-0.5,
        enable_gqa=m.shape.heads != m.shape.kv_heads,
    ).transpose(1, 2)


def flex_way(m: Maker, window: int | None) -> Way:
    """flex_attention, compiled, with a block mask made once."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    past, cap = m.sizes.context - m.sizes.tokens, m.shape.attention_softcap

    def mask_mod(_b: Tensor, _h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = key <= query + past
        return seen if window is None else seen & (query + past - key < window)

    def score_mod(score: Tensor, *_: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap) if cap else score

    @functools.cache
    def block_mask() -> Any:
        return create_block_mask(
            mask_mod, None, None, m.sizes.tokens, m.sizes.context, device=m.sizes.device
        )

    @functools.cache
    def compiled() -> Any:
        return torch.compile(flex_attention, dynamic=False)

    def call(t: Operands) -> object:
        return compiled()(
            t["q"],
            t["k"],
            t["v"],
            score_mod=score_mod if cap else None,
            block_mask=block_mask(),
            scale=m.shape.head_dim**-0.5,
            enable_gqa=m.shape.heads != m.shape.kv_heads,
        )

    return Way("flex_attention", call, slow_to_compile=m.sizes.device == "cpu")


def backend_ways(m: Maker, mask: Tensor | None, causal: bool) -> list[Way]:
    """scaled_dot_product_attention through each of its backends."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if m.sizes.device == "cpu":
        return [Way("F.sdpa", lambda t: fused_attention(m, t["q"], t["k"], t["v"], mask, causal))]

    def through(backend: SDPBackend) -> Function:
        def call(t: Operands) -> object:
            with sdpa_kernel(backend):
                return fused_attention(m, t["q"], t["k"], t["v"], mask, causal)

        return call

    names = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
    return [
        Way("F.sdpa " + name.split("_")[0].lower(), through(getattr(SDPBackend, name)))
        for name in names
    ]


def sdpa_case(m: Maker, name: str, window: int | None) -> Case:
    """Attention over all keys, or those of a sliding window."""
    s, tokens, context = m.shape, m.sizes.tokens, m.sizes.context
    dtype = getattr(torch, TORCH_NAMES[m.sizes.dtype])
    kv = m.heads(s.kv_heads, context)
    case = Case(name, {"q": Operand((1, s.heads, tokens, s.head_dim), 3.0), "k": kv, "v": kv})
    mask = additive(allowed(m.sizes, window), dtype)
    case.way("eager", lambda t: eager_attention(m, t["q"], t["k"], t["v"], mask))
    if not s.attention_softcap:  # the backends know no softcap
        whole = window is None and tokens in (1, context)
        case.ways += backend_ways(m, None if whole else mask, whole and tokens > 1)
    elif tokens == 1 and window is not None:
        last = mask[..., -window:]
        case.way(
            "eager on the window's keys",
            lambda t: eager_attention(
                m, t["q"], t["k"][:, :, -window:], t["v"][:, :, -window:], last
            ),
        )
    if m.sizes.device != "cpu" or dtype == torch.float32:
        case.ways.append(flex_way(m, window))
    return case


def block_cases(m: Maker) -> list[Case]:
    """MLP, attention and decoder layer from PyTorch's fast parts."""
    s, tokens, context = m.shape, m.sizes.tokens, m.sizes.context
    q, kv, past = s.heads * s.head_dim, s.kv_heads * s.head_dim, context - tokens
    dtype = getattr(torch, TORCH_NAMES[m.sizes.dtype])
    mask = additive(allowed(m.sizes, None), dtype)

    def mlp(t: Operands, x: Tensor) -> Tensor:
        gate = m.activation(F.linear(x, t["gate_proj"]))
        return F.linear(gate * F.linear(x, t["up_proj"]), t["down_proj"])

    def attention(t: Operands, x: Tensor) -> Tensor:
        def heads(name: str) -> Tensor:
            return F.linear(x, t[name]).view(1, tokens, -1, s.head_dim).transpose(1, 2)

        queries = rotate(heads("q_proj"), t["cos"], t["sin"])
        keys, values = rotate(heads("k_proj"), t["cos"], t["sin"]), heads("v_proj")
        if past:
            keys = torch.cat((t["keys_before"], keys), 2)
            values = torch.cat((t["values_before"], values), 2)
        if s.attention_softcap:
            result = eager_attention(m, queries, keys, values, mask)
        else:
            plain = tokens in (1, context)
            result = fused_attention(
                m, queries, keys, values, None if plain else mask, plain and tokens > 1
            )
        return F.linear(result.reshape(1, tokens, q), t["o_proj"])

    def layer(t: Operands) -> Tensor:
        x = t["hidden"]
        branch = attention(t, m.fast_norm(x, t["input_norm"]))
        if s.gemma:
            x = x + m.fast_norm(branch, t["post_attention_norm"])
            branch = mlp(t, m.fast_norm(x, t["pre_feedforward_norm"]))
            return x + m.fast_norm(branch, t["post_feedforward_norm"])
        x = x + branch
        return x + mlp(t, m.fast_norm(x, t["post_attention_norm"]))

    mlp_weights = {
        "gate_proj": m.weight(s.intermediate, s.hidden),
        "up_proj": m.weight(s.intermediate, s.hidden),
        "down_proj": m.weight(s.hidden, s.intermediate),
    }
    angles = Operand((1, tokens, s.head_dim), 0.7)
    attention_operands = {
        "q_proj": m.weight(q, s.hidden),
        "k_proj": m.weight(kv, s.hidden),
        "v_proj": m.weight(kv, s.hidden),
        "o_proj": m.weight(s.hidden, q),
        "cos": angles,
        "sin": angles,
    }
    if past:
        attention_operands |= {
            "keys_before": m.heads(s.kv_heads, past),
            "values_before": m.heads(s.kv_heads, past),
        }
    norms = ["input_norm", "post_attention_norm"]
    norms += ["pre_feedforward_norm", "post_feedforward_norm"] if s.gemma else []
    hidden = {"hidden": m.hidden}
    return [
        Case("glu_mlp", hidden | mlp_weights).eager_and_compiled(
            lambda t: mlp(t, t["hidden"]), slow=True
        ),
        Case("attention", hidden | attention_operands).eager_and_compiled(
            lambda t: attention(t, t["hidden"]), slow=True
        ),
        Case(
            "decoder_layer",
            hidden | attention_operands | mlp_weights | dict.fromkeys(norms, m.norm_weight),
        ).eager_and_compiled(layer, slow=True),
    ]


def sdpa_cases(m: Maker) -> list[Case]:
    """Attention, and with a window where the context exceeds it."""
    out = [sdpa_case(m, "sdpa", None)]
    if m.shape.window is not None and m.sizes.context > m.shape.window:
        out.append(sdpa_case(m, "sdpa.window", m.shape.window))
    return out
