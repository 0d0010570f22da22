"""Every block once more, in plain float64, from inputs, weights and params alone.

Written from the formulas of the papers and of the recording's documentation, not from transformers:
what it agrees on with the lifted code to 1e-12 is what the blocks mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]
Block = Callable[[Tensors, Tensors, dict[str, Any]], Tensors]


def act(name: str, x: torch.Tensor) -> torch.Tensor:
    if name == "silu":
        return x / (1 + torch.exp(-x))
    if name == "gelu":
        return x / 2 * (1 + torch.erf(x / math.sqrt(2)))
    if name == "gelu_pytorch_tanh":
        return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    assert name == "tanh"
    return torch.tanh(x)


def norm(x: torch.Tensor, weight: torch.Tensor, p: dict[str, Any]) -> torch.Tensor:
    if "rounding" not in p:
        return _layer_norm({"x": x}, {"weight": weight}, p)["out"]
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + p["eps"]) * (weight + p["weight_offset"])


def dense(x: torch.Tensor, w: Tensors, name: str = "") -> torch.Tensor:
    bias = w.get(f"{name}bias")
    product = torch.einsum("...i,oi->...o", x, w[f"{name}weight"])
    return product if bias is None else product + bias


def turn(x: torch.Tensor, i: Tensors, p: dict[str, Any]) -> torch.Tensor:
    """Rotates the first `width` of the head's dimensions, pair by pair."""
    half = i["cos"].shape[-1] // 2
    columns = slice(0, None, 2) if p.get("table") == "pairs" else slice(0, half)
    c, s = i["cos"][:, None, :, columns], i["sin"][:, None, :, columns]
    pair = (
        (slice(0, half), slice(half, 2 * half))
        if p["style"] == "half"
        else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    )
    a, b = x[..., pair[0]], x[..., pair[1]]
    out = x.clone()
    out[..., pair[0]], out[..., pair[1]] = a * c - b * s, b * c + a * s
    return out


def visible(i: Tensors, p: dict[str, Any], queries: int, keys: int) -> torch.Tensor:
    q = torch.arange(queries)[:, None] + int(p["query_offset"])
    k = torch.arange(keys)[None] + int(p["key_offset"])
    seen = (k <= q) if p["causal"] else torch.ones(queries, keys, dtype=torch.bool)
    if p["window"] is not None:
        seen = seen & (q - k < p["window"])
    seen = seen[None, None]
    return seen & i["key_valid"][:, None, None] if "key_valid" in i else seen


def scores(i: Tensors, p: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores after scale and softcap [b, h, t, s], what may be seen, and the values per head."""
    group = i["q"].shape[1] // i["k"].shape[1]
    k, v = (torch.repeat_interleave(i[n], group, 1) for n in "kv")
    s = torch.einsum("bhtd,bhsd->bhts", i["q"], k) * p["scale"]
    if p["softcap"] is not None:
        s = torch.tanh(s / p["softcap"]) * p["softcap"]
    if "mask" not in i:
        return s, visible(i, p, *s.shape[2:]).expand_as(s), v
    mask = i["mask"]
    if mask.dtype == torch.bool:
        return s, mask.expand_as(s), v
    seen = (mask > -6e4).expand_as(s)
    return s + torch.where(mask > -6e4, mask, 0.0), seen, v


def sdpa(i: Tensors, w: Tensors, p: dict[str, Any]) -> Tensors:
    s, seen, v = scores(i, p)
    weights = torch.softmax(torch.where(seen, s, -math.inf), -1)
    empty = ~seen.any(-1, keepdim=True)
    nothing = 1.0 / s.shape[-1] if p["fully_masked"] == "uniform" else 0.0
    weights = torch.where(empty, nothing, weights)
    return {"out": torch.einsum("bhts,bhsd->bthd", weights, v)}


def kv_cache(i: Tensors, w: Tensors, p: dict[str, Any]) -> Tensors:
    out = {}
    for new, name in (("k", "keys"), ("v", "values")):
        old = i.get(f"{name}_before")
        whole = i[new] if old is None else torch.cat([old, i[new]], 2)
        out[name], out[f"{name}_after"] = whole, whole
        if p["window"] is not None:
            out[f"{name}_after"] = whole[:, :, max(0, whole.shape[2] - p["window"] + 1) :]
    return out


def static_kv_cache(i: Tensors, w: Tensors, p: dict[str, Any]) -> Tensors:
    slots, seen = p["max_length"], p["seen"]
    out = {}
    for new, name in (("k", "keys"), ("v", "values")):
        old, fresh = i.get(f"{name}_before"), i[new]
        held = fresh[:, :, :0] if old is None else old[:, :, :seen]
        whole = torch.cat([held, fresh], 2)
        last = whole[:, :, -slots:]
        after = torch.nn.functional.pad(last, (0, 0, 0, slots - last.shape[2]))
        too_many = whole[:, :, 1:] if seen >= slots else whole
        out[name] = after if seen + fresh.shape[2] <= slots else too_many
        out[f"{name}_after"] = after
    return out


def attention(i: Tensors, w: Tensors, p: dict[str, Any]) -> Tensors:
    x = i["hidden"]
    if "qkv_proj.weight" in w:
        heads = dense(x, w, "qkv_proj.").unflatten(-1, (-1, p["head_dim"]))
        queries = w["o_proj.weight"].shape[1] // p["head_dim"]
        others = (heads.shape[2] - queries) // 2
        q, k, v = heads.split((queries, others, others), 2)
    else:
        q, k, v = (dense(x, w, f"{n}_proj.").unflatten(-1, (-1, p["head_dim"])) for n in "qkv")
    if "qk_norm" in p:
        q, k = norm(q, w["q_norm.weight"], p["qk_norm"]), norm(k, w["k_norm.weight"], p["qk_norm"])
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    q, k = (turn(t, i, p) for t in (q, k))
    out: Tensors = {}
    if p["cache"] is not None:
        cache = static_kv_cache if p["cache"]["kind"] == "static" else kv_cache
        cached = cache(i | {"k": k, "v": v}, {}, p["cache"])
        out = {name: cached[name] for name in ("keys_after", "values_after")}
        k, v = cached["keys"], cached["values"]
    attended = sdpa(i | {"q": q, "k": k, "v": v}, {}, p)["out"]
    return out | {"out": dense(attended.flatten(2), w, "o_proj.")}


def glu_mlp(i: Tensors, w: Tensors, p: dict[str, Any]) -> Tensors:
    x = i["hidden"]
    if "gate_up_proj.weight" in w:
        both = dense(x, w, "gate_up_proj.")
        gate, up = both[..., : both.shape[-1] // 2], both[..., both.shape[-1] // 2 :]
    else:
        gate, up = dense(x, w, "gate_proj."), dense(x, w, "up_proj.")
    return {"out": dense(act(p["function"], gate) * up, w, "down_proj.")}


def under(w: Tensors, prefix: str) -> Tensors:
    return {n.removeprefix(prefix): t for n, t in w.items() if n.startswith(prefix)}


def decoder_layer(i: Tensors, w: Tensors, p: dict[str, Any]) -> Tensors:
    def n(name: str, x: torch.Tensor) -> torch.Tensor:
        return norm(x, w[f"{name}_layernorm.weight"], p["norm"])

    def attend(x: torch.Tensor) -> torch.Tensor:
        return attention(i | {"hidden": x}, under(w, "self_attn."), p["attention"])["out"]

    def mlp(x: torch.Tensor) -> torch.Tensor:
        return glu_mlp({"hidden": x}, under(w, "mlp."), p["mlp"])["out"]

    x = i["hidden"]
    if p["form"] == "pre_norm":
        x = x + attend(n("input", x))
        return {"out": x + mlp(n("post_attention", x))}
    if p["form"] == "parallel":
        return {"out": x + attend(n("input", x)) + mlp(n("input", x))}
    x = x + n("post_attention", attend(n("input", x)))
    return {"out": x + n("post_feedforward", mlp(n("pre_feedforward", x)))}


def lm_head(i: Tensors, w: Tensors, p: dict[str, Any]) -> Tensors:
    x = i["hidden"]
    keep = p["logits_to_keep"] or x.shape[1]
    logits = dense(x[:, -keep:], w) * p.get("scale", 1.0)
    cap = p["softcap"]
    return {"out": logits if cap is None else torch.tanh(logits / cap) * cap}


def frequencies(i: Tensors, w: Tensors, p: dict[str, Any]) -> Tensors:
    kind, r, theta = p["type"], p["dim"], p["theta"]
    index = torch.arange(0, r, 2, dtype=torch.float64)
    scaling = 1.0
    if kind == "dynamic":
        stretched = p["factor"] * p["length"] / p["max_position"] - (p["factor"] - 1)
        theta = theta * stretched ** (r / (r - 2))
    inv = theta ** (-index / r)
    if kind == "linear":
        inv = inv / p["factor"]
    if kind == "llama3":
        inv = _llama3(inv, p)
    if kind == "yarn":
        inv, scaling = _yarn(inv, p)
    if kind == "longrope":
        long = p["length"] > p["original_max_position"]
        inv = inv / torch.tensor(p["long_factor" if long else "short_factor"], dtype=torch.float64)
        grown = 1 + math.log(p["factor"]) / math.log(p["original_max_position"])
        scaling = p.get("attention_factor", math.sqrt(grown))
    return {"inv_freq": inv, "attention_scaling": torch.tensor([scaling], dtype=torch.float64)}


def _llama3(inv: torch.Tensor, p: dict[str, Any]) -> torch.Tensor:
    wave = 2 * math.pi / inv
    original, low, high = (
        p["original_max_position"],
        p["low_freq_factor"],
        p["high_freq_factor"],
    )
    smooth = (original / wave - low) / (high - low)
    mixed = (1 - smooth) * inv / p["factor"] + smooth * inv
    out = torch.where(wave > original / low, inv / p["factor"], mixed)
    return torch.where(wave < original / high, inv, out)


def _yarn(inv: torch.Tensor, p: dict[str, Any]) -> tuple[torch.Tensor, float]:
    def edge(rotations: float) -> float:
        turns = p["original_max_position"] / (rotations * 2 * math.pi)
        return float(p["dim"] * math.log(turns) / (2 * math.log(p["theta"])))

    def grown(mscale: float) -> float:
        return 1.0 if p["factor"] <= 1 else 0.1 * mscale * math.log(p["factor"]) + 1.0

    low, high = edge(p["beta_fast"]), edge(p["beta_slow"])
    if p["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, p["dim"] - 1)
    high = high + 0.001 if low == high else high
    ramp = ((torch.arange(len(inv), dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    mixed = inv / p["factor"] * ramp + inv * (1 - ramp)
    if "attention_factor" in p:
        return mixed, p["attention_factor"]
    if "mscale" in p:
        return mixed, grown(p["mscale"]) / grown(p["mscale_all_dim"])
    return mixed, grown(1.0)


def rotary_table(i: Tensors, w: Tensors, p: dict[str, Any]) -> Tensors:
    angles = i["positions"].double()[..., None] * i["inv_freq"]
    pairs = p.get("table") == "pairs"
    angles = angles.repeat_interleave(2, -1) if pairs else torch.cat([angles, angles], -1)
    return {
        "cos": torch.cos(angles) * p["attention_scaling"],
        "sin": torch.sin(angles) * p["attention_scaling"],
    }


def causal_mask(i: Tensors, w: Tensors, p: dict[str, Any], lowest: float) -> Tensors:
    seen = visible(i, p, p["queries"], p["keys"]).expand(p["batch"], -1, -1, -1)
    return {"mask": seen if p["form"] == "bool" else torch.where(seen, 0.0, lowest).double()}


def _of_heads(b: torch.Tensor, a: torch.Tensor, transposed: bool) -> torch.Tensor:
    """The second operand of a product with as many heads as the first."""
    if a.shape[1] != b.shape[1]:
        b = b.repeat_interleave(a.shape[1] // b.shape[1], 1)
    return b.mT if transposed else b


def _scale(i: Tensors, w: Tensors, p: dict[str, Any]) -> Tensors:
    x = i["x"]
    return {"out": x * p["factor"] if p["operation"] == "multiply" else x / p["factor"]}


def _layer_norm(i: Tensors, w: Tensors, p: dict[str, Any]) -> Tensors:
    x = i["x"] - i["x"].mean(-1, keepdim=True)
    x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + p["eps"])
    return {"out": x * w["weight"] + w.get("bias", 0.0)}


BLOCKS: dict[str, Block] = {
    "embedding": lambda i, w, p: {"out": w["weight"][i["ids"]] * p["scale"]},
    "rotary_frequencies": frequencies,
    "rotary_table": rotary_table,
    "rotary": lambda i, w, p: {n: turn(i[n], i, p) for n in "qk"},
    "rms_norm": lambda i, w, p: {"out": norm(i["x"], w["weight"], p)},
    "layer_norm": _layer_norm,
    "linear": lambda i, w, p: {"out": dense(i["x"], w)},
    "activation": lambda i, w, p: {"out": act(p["function"], i["x"])},
    "glu_activation": lambda i, w, p: {"out": act(p["function"], i["gate"]) * i["up"]},
    "add": lambda i, w, p: {"out": i["a"] + i["b"]},
    "scale": _scale,
    "softcap": lambda i, w, p: {"out": torch.tanh(i["x"] / p["cap"]) * p["cap"]},
    "repeat_kv": lambda i, w, p: {"out": torch.repeat_interleave(i["x"], p["repeats"], 1)},
    "matmul": lambda i, w, p: {"out": i["a"] @ _of_heads(i["b"], i["a"], p["transpose_b"])},
    "masked_add": lambda i, w, p: {"out": i["x"] + i["mask"]},
    "softmax": lambda i, w, p: {"out": torch.softmax(i["x"], -1)},
    "kv_cache": kv_cache,
    "static_kv_cache": static_kv_cache,
    "sdpa": sdpa,
    "attention": attention,
    "glu_mlp": glu_mlp,
    "decoder_layer": decoder_layer,
    "lm_head": lm_head,
}
