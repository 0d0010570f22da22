"""PyTorch's ways of doing what `harness bench` measures, by the names of its cases.

A way is a plain function of the operands, as a model's author would write it; `compiled` ways go
through torch.compile. Only what PyTorch offers counts: nothing here is tuned by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from .beside_ops import ELEMENTWISE, OPS, REDUCTIONS, Op
from .shapes import Shape, Sizes

Operands = dict[str, Tensor]
Function = Callable[[Operands], object]


@dataclass
class Operand:
    """Normal numbers, ids below `below`, positions, rotary frequencies, or true and false."""

    shape: tuple[int, ...]
    deviation: float = 1.0
    below: int | None = None
    positions: bool = False
    frequencies: bool = False
    flags: bool = False
    shared: bool = False  # one for all operand sets
    dtype: str = ""  # other than the run's


@dataclass
class Way:
    """One way of doing a case. `slow_to_compile` ways are left out of a quick run."""

    name: str
    function: Function
    compiled: bool = False
    slow_to_compile: bool = False


@dataclass
class Case:
    """A case of `harness bench`: its operands and PyTorch's ways."""

    name: str
    operands: dict[str, Operand]
    ways: list[Way] = field(default_factory=list)

    def eager_and_compiled(self, function: Function, slow: bool = False) -> Case:
        """Adds a function as it is and through torch.compile."""
        self.ways += [Way("eager", function), Way("compile", function, True, slow)]
        return self

    def way(self, name: str, function: Function) -> Case:
        """Adds a way that is not compiled."""
        self.ways.append(Way(name, function))
        return self


@dataclass
class Maker:
    """Builds the cases of one shape."""

    shape: Shape
    sizes: Sizes

    @property
    def hidden(self) -> Operand:
        return Operand((1, self.sizes.tokens, self.shape.hidden))

    @property
    def norm_weight(self) -> Operand:
        return Operand((self.shape.hidden,))

    def heads(self, count: int, slots: int) -> Operand:
        return Operand((1, count, slots, self.shape.head_dim))

    def weight(self, rows: int, columns: int) -> Operand:
        return Operand((rows, columns), 1 / math.sqrt(columns))

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """LlamaRMSNorm or Gemma2RMSNorm, as transformers writes them."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        if self.shape.gemma:
            return (normed * (1.0 + weight.float())).type_as(x)
        return weight * normed.to(x.dtype)

    def fast_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """PyTorch's fused operator; Gemma's 1 + weight would be folded when a model is loaded."""
        return F.rms_norm(x, (self.shape.hidden,), weight, 1e-6)

    def activation(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh") if self.shape.gemma else F.silu(x)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """apply_rotary_pos_emb of one of q and k."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos.unsqueeze(1) + turned * sin.unsqueeze(1)


def row_cases(m: Maker) -> list[Case]:
    """Embedding, norms and the residual sum."""
    s, tokens = m.shape, m.sizes.tokens
    scale = math.sqrt(s.hidden) if s.gemma else 1.0
    embedding = Case(
        "embedding",
        {
            "weight": Operand((s.vocab, s.hidden), shared=True),
            "ids": Operand((1, tokens), below=s.vocab),
        },
    )
    embedding.eager_and_compiled(
        (lambda t: F.embedding(t["ids"], t["weight"]) * scale)
        if s.gemma
        else (lambda t: F.embedding(t["ids"], t["weight"])),
        slow=True,
    )
    x_and_weight = {"x": m.hidden, "weight": m.norm_weight}
    rms = Case("rms_norm", x_and_weight).eager_and_compiled(lambda t: m.norm(t["x"], t["weight"]))
    rms.way("F.rms_norm", lambda t: m.fast_norm(t["x"], t["weight"]))

    def add_norm(t: Operands, norm: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        total = t["x"] + t["residual"]
        return total, norm(total, t["weight"])

    both = Case("add_rms_norm", {**x_and_weight, "residual": m.hidden})
    both.eager_and_compiled(lambda t: add_norm(t, m.norm))
    both.way("add, F.rms_norm", lambda t: add_norm(t, m.fast_norm))
    layer = Case("layer_norm", {**x_and_weight, "bias": m.norm_weight}).eager_and_compiled(
        lambda t: F.layer_norm(t["x"], (s.hidden,), t["weight"], t["bias"], 1e-5), slow=True
    )
    add = Case("add", {"a": m.hidden, "b": m.hidden}).way("eager", lambda t: t["a"] + t["b"])
    return [embedding, rms, both, layer, add]


def linear_cases(m: Maker) -> list[Case]:
    """Projections of one layer."""
    s = m.shape
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    sides = {
        "q_proj": (q, s.hidden),
        "kv_proj": (kv, s.hidden),
        "o_proj": (s.hidden, q),
        "gate_proj": (s.intermediate, s.hidden),
        "down_proj": (s.hidden, s.intermediate),
    }
    return [
        Case(
            f"linear.{name}",
            {"x": Operand((1, m.sizes.tokens, columns)), "weight": m.weight(rows, columns)},
        ).way("F.linear", lambda t: F.linear(t["x"], t["weight"]))
        for name, (rows, columns) in sides.items()
    ]


def rotary_cases(m: Maker) -> list[Case]:
    """The table of angles and its application to q and k."""
    s, tokens = m.shape, m.sizes.tokens
    dtype = getattr(torch, TORCH_NAMES[m.sizes.dtype])

    def table(t: Operands) -> tuple[Tensor, Tensor]:
        angles = t["positions"].float()[..., None] * t["inv_freq"]
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(dtype), both.sin().to(dtype)

    def apply(t: Operands) -> tuple[Tensor, Tensor]:
        return rotate(t["q"], t["cos"], t["sin"]), rotate(t["k"], t["cos"], t["sin"])

    angles = Operand((1, tokens, s.head_dim))
    return [
        Case(
            "rotary_table",
            {
                "positions": Operand((1, tokens), positions=True),
                "inv_freq": Operand((s.head_dim // 2,), frequencies=True),
            },
        ).eager_and_compiled(table, slow=True),
        Case(
            "rotary",
            {
                "q": m.heads(s.heads, tokens),
                "k": m.heads(s.kv_heads, tokens),
                "cos": angles,
                "sin": angles,
            },
        ).eager_and_compiled(apply),
    ]


def cache_case(m: Maker) -> Case:
    """DynamicCache: the new keys and values after the old ones."""
    kv, tokens, past = m.shape.kv_heads, m.sizes.tokens, m.sizes.context - m.sizes.tokens
    case = Case("kv_cache", {"k": m.heads(kv, tokens), "v": m.heads(kv, tokens)})
    if past == 0:
        return case.way("clone", lambda t: (t["k"].clone(), t["v"].clone()))
    case.operands |= {"keys_before": m.heads(kv, past), "values_before": m.heads(kv, past)}
    return case.way(
        "cat",
        lambda t: (
            torch.cat((t["keys_before"], t["k"]), 2),
            torch.cat((t["values_before"], t["v"]), 2),
        ),
    )


def activation_cases(m: Maker) -> list[Case]:
    """The activation alone and gated."""
    wide = Operand((1, m.sizes.tokens, m.shape.intermediate))
    return [
        Case("activation", {"x": wide}).way("eager", lambda t: m.activation(t["x"])),
        Case("glu_activation", {"gate": wide, "up": wide}).eager_and_compiled(
            lambda t: m.activation(t["gate"]) * t["up"]
        ),
    ]


def logits_cases(m: Maker) -> list[Case]:
    """The last token's logits, and Gemma2's final softcap on all of them."""
    s, cap = m.shape, m.shape.final_softcap

    def capped(x: Tensor) -> Tensor:
        return torch.tanh(x / cap) * cap if cap else x

    def last(t: Operands) -> Tensor:
        return capped(F.linear(t["hidden"][:, -1:], t["weight"]))

    head = Case("lm_head", {"hidden": m.hidden, "weight": m.weight(s.vocab, s.hidden)})
    out = [head.eager_and_compiled(last, slow=True)]
    if cap:
        logits = Operand((1, m.sizes.tokens, s.vocab), 20)
        out.append(Case("softcap", {"x": logits}).eager_and_compiled(lambda t: capped(t["x"])))
    return out


def component_cases(m: Maker) -> list[Case]:
    """Single operations that models use outside of the blocks of a decoder layer."""
    tokens = m.sizes.tokens
    dtype = getattr(torch, TORCH_NAMES[m.sizes.dtype])
    lowest = torch.finfo(dtype).min
    mask = (1, 1, tokens, m.sizes.context)

    def position_ids(t: Operands) -> Tensor:
        return (t["valid"].long().cumsum(-1) - 1).masked_fill(~t["valid"], 0)

    return [
        Case("div", {"x": m.hidden, "divisor": m.hidden}).way(
            "eager", lambda t: t["x"] / t["divisor"]
        ),
        Case("add_scalar", {"x": m.hidden}).way("eager", lambda t: t["x"] + 1),
        Case("permute", {"x": m.heads(m.shape.kv_heads, tokens)}).way(
            "eager", lambda t: t["x"].transpose(2, 3).contiguous()
        ),
        Case("mask_fill", {"x": Operand(mask), "mask": Operand(mask, flags=True)}).way(
            "eager", lambda t: t["x"].masked_fill(t["mask"], lowest)
        ),
        Case("position_ids", {"valid": Operand((1, tokens), flags=True)}).eager_and_compiled(
            position_ids
        ),
    ]


def op_cases(m: Maker) -> list[Case]:
    """Elementwise ops and reductions of the op table, by what torch calls them."""
    out = []
    for name, op in OPS.items():
        if name in ELEMENTWISE:
            operands = {it: Operand(m.hidden.shape, flags=it in op.flags) for it in op.operands}
            out.append(Case(f"ops.{name}", operands).way("eager", _called(op, op.params[0])))
        for what, axis in (("rows", 2), ("columns", 1)) if name in REDUCTIONS else ():
            case = Case(f"ops.{name}.{what}", {"x": m.hidden})
            out.append(case.way("eager", _called(op, {"axes": [axis]})))
    return [*out, *product_cases(m)]


def product_cases(m: Maker) -> list[Case]:
    """Of 8 bits, [tokens, hidden] by a weight [intermediate, hidden]."""
    inner = m.shape.hidden

    def case(dtype: str, deviation: float) -> Case:
        a = Operand((m.sizes.tokens, inner), deviation, dtype=dtype)
        return Case(
            f"products.{dtype}",
            {"a": a, "b": Operand((m.shape.intermediate, inner), deviation, dtype=dtype)},
        )

    def scaled(t: Operands, fast: bool) -> Tensor:
        one = torch.ones((), device=t["a"].device)
        return torch._scaled_mm(
            t["a"], t["b"].mT, one, one, out_dtype=torch.float32, use_fast_accum=fast
        )

    return [
        case("f8_e4m3", 1)
        .way("scaled_mm", lambda t: scaled(t, False))
        .way("scaled_mm, fast", lambda t: scaled(t, True)),
        case("i8", 40).way("int_mm", lambda t: torch._int_mm(t["a"], t["b"].mT)),
    ]


def _called(op: Op, params: Mapping[str, Any]) -> Function:
    call = op.calls or op.like
    return lambda t: call(*(t[name] for name in op.operands), **params)


TORCH_NAMES = {
    **{"f32": "float32", "f16": "float16", "bf16": "bfloat16"},
    **{"f8_e4m3": "float8_e4m3fn", "i8": "int8"},
}
