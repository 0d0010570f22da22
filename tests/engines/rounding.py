"""Which roundings does a kernel follow? Its bits next to those of every order in use.

Everything is computed in float64 and rounded where the candidate's name says; "16" is the
recording's storage dtype. This is no part of the judge: it shows from outside what an engine does,
and what the judge's own family has to contain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from .kernel import Case, allowed, rotate_half
from .wrong_operands import table

Round = Callable[[torch.Tensor], torch.Tensor]
Outputs = dict[str, torch.Tensor]
Candidates = Iterator[tuple[str, Outputs]]


def shares(case: Case, outputs: Outputs) -> list[tuple[str, float]]:
    """The candidates and the share of elements whose bits differ from theirs, best first."""
    if case.block not in FAMILIES:
        return []
    found = []
    for name, wanted in FAMILIES[case.block](case, rounding(case.dtype)):
        pairs = [(outputs[key], wanted[key].to(case.dtype)) for key in wanted]
        different = sum(int((a != b).sum()) for a, b in pairs)
        found.append((name, different / sum(a.numel() for a, _ in pairs)))
    return sorted(found, key=lambda each: each[1])


def rounding(dtype: torch.dtype) -> Round:
    return lambda x: x.to(dtype).double()


def whole(x: torch.Tensor) -> torch.Tensor:
    return x


def norms(case: Case, r: Round) -> Candidates:
    x, weight = case["x"].double(), case["weight"].double() + case.params["weight_offset"]
    eps = case.params["eps"]
    root = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    n = x * root
    yield "float32 inside", {"out": n * weight}
    yield "n in 16", {"out": r(n) * weight}
    yield "weight in 16", {"out": n * r(weight)}
    yield "n and weight in 16", {"out": r(n) * r(weight)}
    yield "x * weight in 16, then the root", {"out": r(x * r(weight)) * root}
    yield "root in 16", {"out": r(r(x * r(root)) * r(weight))}
    stored = torch.rsqrt(r(r(r(x.square()).mean(-1, keepdim=True)) + eps))
    yield "all in 16", {"out": r(r(x * r(stored)) * r(weight))}


def rotaries(case: Case, r: Round) -> Candidates:
    tables = []
    if "cos" in case.inputs:
        tables.append(("", case["cos"].double(), case["sin"].double()))
    if case.angles is not None:
        cos, sin = (each.double() for each in table(case))
        tables.append((", table in float32", cos, sin))
        if not tables[0][0]:
            tables.append((", own table in 16", r(cos), r(sin)))
        else:
            half = case.angles.positions.double()[..., None] * case.angles.inv_freq.double()
            turn = torch.cat([half, half], -1)
            exact_table = (each * case.angles.scaling for each in (turn.cos(), turn.sin()))
            tables = [("", *exact_table), *tables, (", table in 16", r(cos), r(sin))]
    for words, cos, sin in tables:
        for name, first, second in (
            ("both products in 16", r, r), ("float32 inside", whole, whole),
            ("x cos in 16", r, whole), ("x sin in 16", whole, r),
        ):  # fmt: skip
            yield (
                name + words,
                {
                    key: first(case[key].double() * cos[:, None])
                    + second(rotate_half(case[key].double()) * sin[:, None])
                    for key in ("q", "k")
                },
            )


def glus(case: Case, r: Round) -> Candidates:
    up = case["up"].double()
    for name, value in _activated(case["gate"].double(), case.params["function"], r):
        yield name + ", stored", {"out": r(value) * up}
        yield name + ", kept", {"out": value * up}


def activations(case: Case, r: Round) -> Candidates:
    for name, value in _activated(case["x"].double(), case.params["function"], r):
        yield name, {"out": value}


def _activated(x: torch.Tensor, function: str, r: Round) -> Iterator[tuple[str, torch.Tensor]]:
    if function == "silu":
        yield "float32 inside", x * torch.sigmoid(x)
        yield "sigmoid in 16", x * r(torch.sigmoid(x))
        yield "sigmoid composed in 16", x * r(1 / r(1 + r(torch.exp(-x))))
        yield "sigmoid composed in 16, divided", x / r(1 + r(torch.exp(-x)))
        half = 1 / (1 + r(torch.exp(x.abs())))  # MLX
        yield "exp(|x|) in 16", x * r(torch.where(x < 0, half, 1 - half))
    elif function == "tanh":
        yield "float32 inside", torch.tanh(x)
    elif function == "gelu":
        root, inner = math.sqrt(0.5), x * math.sqrt(0.5)
        yield "float32 inside", 0.5 * x * torch.special.erfc(-inner)
        erf = torch.special.erf(inner)
        yield "1 + erf in 16", 0.5 * x * r(1 + r(erf))
        stored = r(torch.special.erf(r(x * r(torch.tensor(root).double()))))
        yield "composed in 16, x (1 + erf) / 2", r(x * r(1 + stored)) / 2
        yield "composed in 16, 0.5 x (1 + erf)", r(0.5 * x) * r(1 + stored)
        erfc = r(torch.special.erfc(r(-x * r(torch.tensor(root).double()))))
        yield "composed in 16, 0.5 x erfc", r(0.5 * x) * erfc
    else:
        factor = math.sqrt(2 / math.pi)
        cube = x * x * x
        yield "float32 inside", 0.5 * x * (1 + torch.tanh(factor * (x + 0.044715 * cube)))
        f, c = (r(torch.tensor(v, dtype=torch.float64)) for v in (factor, 0.044715))
        for words, third in (("x^3", r(cube)), ("x x x", r(r(x * x) * x))):
            inner = r(f * r(x + r(c * third)))
            t = r(torch.tanh(inner))
            yield f"composed in 16, {words}, 0.5 (1 + tanh) first", x * r(0.5 * r(1 + t))
            yield f"composed in 16, {words}, 0.5 x first", r(0.5 * x) * r(1 + t)


def softcaps(case: Case, r: Round) -> Candidates:
    x, cap = case["x"].double(), case.params["cap"]
    inverse = r(torch.tensor(1 / cap, dtype=torch.float64))
    for name, inner in (
        ("x / cap kept", x / cap), ("x / cap in 16", r(x / cap)),
        ("x * (1 / cap in 16) in 16", r(x * inverse)),
    ):  # fmt: skip
        yield name + ", tanh in 16", {"out": r(torch.tanh(inner)) * cap}
        yield name + ", tanh kept", {"out": torch.tanh(inner) * cap}


BLOCKS_OF_KEYS = (None, 32, 64, 128, 512)


def attentions(case: Case, r: Round) -> Candidates:
    repeats = case["q"].shape[1] // case["k"].shape[1]
    q, k, v = (case[name].double() for name in ("q", "k", "v"))
    k, v = (each.repeat_interleave(repeats, 1) for each in (k, v))
    scale, cap, mask = case.params["scale"], case.params["softcap"], allowed(case)
    root = math.sqrt(scale)
    products = {
        "": q @ k.transpose(2, 3) * scale,
        "q * scale in 16, ": r(q * scale) @ k.transpose(2, 3),
        "q * (scale in 16) in 16, ": r(q * r(torch.tensor(scale).double())) @ k.transpose(2, 3),
        "q and k * sqrt(scale) in 16, ": r(q * root) @ r(k * root).transpose(2, 3),
    }
    for words, s in products.items():
        orders = {"kept": s, "in 16": r(s)}
        if not words:
            product = r(q @ k.transpose(2, 3))
            orders |= {"in 16 before the scale": product * scale, "in 16 twice": r(product * scale)}
        for stored, found in orders.items():
            for ending, capped in _capped(found, cap, r):
                if mask is not None:
                    capped = capped.masked_fill(~mask, float("-inf"))
                for weights, out in _weighted(capped, v, r):
                    name = f"{words}scores {stored}{ending}, {weights}"
                    yield name, {"out": out.transpose(1, 2)}


def _capped(s: torch.Tensor, cap: float | None, r: Round) -> Iterator[tuple[str, torch.Tensor]]:
    if not cap:
        yield "", s
        return
    yield "", torch.tanh(s / cap) * cap
    yield ", cap in 16 at its end", r(torch.tanh(s / cap) * cap)
    yield ", tanh in 16", r(torch.tanh(s / cap)) * cap
    yield ", tanh and cap in 16", r(r(torch.tanh(s / cap)) * cap)
    yield ", cap composed in 16", r(r(torch.tanh(r(s / cap))) * cap)


def _weighted(s: torch.Tensor, v: torch.Tensor, r: Round) -> Iterator[tuple[str, torch.Tensor]]:
    p = torch.softmax(s, -1)
    yield "P kept", p @ v
    yield "P in 16", r(p) @ v
    top = s.amax(-1, keepdim=True)
    raw = torch.exp(s - top)
    yield "exp in 16, sum of the rounded", r(raw) @ v / r(raw).sum(-1, keepdim=True)
    yield "all of softmax in 16", r(r(raw) / r(r(raw).sum(-1, keepdim=True))) @ v
    for block in BLOCKS_OF_KEYS:
        if block is None or block < s.shape[-1]:
            words = f"exp in 16 by blocks of {block}" if block else "exp in 16, sum of the exact"
            yield words, flash(s, v, r, block or s.shape[-1], torch.exp)
    yield "torch's cubic exp in 16 by blocks of 512", flash(s, v, r, 512, cubic_exp)


def flash(s: torch.Tensor, v: torch.Tensor, r: Round, block: int, exp: Round) -> torch.Tensor:
    """Weights rounded against the running maximum of blocks of keys, divided at the end."""
    shape = (*s.shape[:3], 1)
    top = torch.full(shape, -1e300, dtype=torch.float64)
    total, out = (
        torch.zeros(shape, dtype=torch.float64),
        torch.zeros_like(s[..., :1] * v[..., :1, :]),
    )
    for begin in range(0, s.shape[-1], block):
        part = s[..., begin : begin + block]
        higher = torch.maximum(top, part.amax(-1, keepdim=True))
        weights, shrink = exp(part - higher), torch.exp(top - higher)
        total = total * shrink + weights.sum(-1, keepdim=True)
        out = out * shrink + r(weights) @ v[:, :, begin : begin + block]
        top = higher
    return out / total


CUBIC = (0.00010703434948458272, 0.30354260500649682, -0.22433836478672356, -0.079204240219773236)


def cubic_exp(x: torch.Tensor) -> torch.Tensor:
    """exp as torch's flash attention on the CPU has it (Vectorized::fexp_u20): a cubic in the
    fraction of x log2(e), shifted into the exponent's bits; up to 1.07e-4 off. Whole vectors of
    16 keys only; what is left of a block is computed by std::exp."""
    whole_vectors = x.shape[-1] // 16 * 16
    octaves = x[..., :whole_vectors].float() * math.log2(math.e)
    fraction = (octaves - octaves.floor()).double()
    found = fraction.new_tensor(CUBIC[3])
    for coefficient in reversed(CUBIC[:3]):
        found = found * fraction + coefficient
    bits = ((octaves.double() - found + 127) * 2**23).clamp(0, 2**31 - 1)
    cubic = bits.to(torch.int32).view(torch.float32).double()
    return torch.cat([cubic, torch.exp(x[..., whole_vectors:])], -1)


def exact(case: Case) -> Outputs:
    """The block in float64."""
    for name, wanted in FAMILIES[case.block](case, whole):
        if name in EXACT:
            return wanted
    raise KeyError(case.block)


EXACT = {
    "float32 inside", "float32 inside, kept", "x / cap kept, tanh kept", "scores kept, P kept",
    "gate and up kept, float32 inside, kept",
}  # fmt: skip


def linears(case: Case, r: Round) -> Candidates:
    out = case["x"].double() @ case["weight"].double().T
    bias = case.get("bias")
    yield "float32 inside", {"out": out if bias is None else out + bias.double()}
    if bias is not None:
        yield "product in 16, then the bias", {"out": r(out) + bias.double()}


def heads(case: Case, r: Round) -> Candidates:
    keep, cap = int(case.params["logits_to_keep"]), case.params["softcap"]
    hidden = case["hidden"][:, -keep:] if keep else case["hidden"]
    out = hidden.double() @ case["weight"].double().T
    yield "float32 inside", {"out": torch.tanh(out / cap) * cap if cap else out}
    if cap:
        yield "product in 16", {"out": torch.tanh(r(out) / cap) * cap}
        yield "all in 16", {"out": r(torch.tanh(r(r(out) / cap))) * cap}


def mlps(case: Case, r: Round) -> Candidates:
    x = case["hidden"].double()
    packed = case.get("gate_up_proj.weight")
    if packed is not None:
        gate, up = (x @ packed.double().T).chunk(2, -1)
    else:
        gate, up = (_projected(case, name, x) for name in ("gate_proj", "up_proj"))
    for words, g, u in (("gate and up in 16", r(gate), r(up)), ("gate and up kept", gate, up)):
        for name, value in _activated(g, case.params["function"], r):
            for ending, wide in (("stored", r(value) * u), ("kept", value * u)):
                yield f"{words}, {name}, {ending}", {"out": _projected(case, "down_proj", r(wide))}


def _projected(case: Case, name: str, x: torch.Tensor) -> torch.Tensor:
    bias = case.get(f"{name}.bias")
    out = x @ case[f"{name}.weight"].double().T
    return out if bias is None else out + bias.double()


FAMILIES: dict[str, Callable[[Case, Round], Candidates]] = {
    "rms_norm": norms,
    "rotary": rotaries,
    "rotary_positions": rotaries,
    "glu_activation": glus,
    "activation": activations,
    "softcap": softcaps,
    "sdpa": attentions,
    "linear": linears,
    "glu_mlp": mlps,
    "lm_head": heads,
}
