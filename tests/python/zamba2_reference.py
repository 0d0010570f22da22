"""Zamba2's blocks in float64 NumPy, the scan token by token: independent of transformers and torch.

Each takes inputs, weights and params of a checkpoint and gives its outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Arrays = dict[str, np.ndarray]
Params = dict[str, Any]

EVERY = np.ones((1, 1))
"""token_valid where no token is padding."""


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def softplus(x: np.ndarray) -> np.ndarray:
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def under(w: Arrays, prefix: str) -> Arrays:
    return {n.removeprefix(prefix): t for n, t in w.items() if n.startswith(prefix)}


def dense(x: np.ndarray, w: Arrays, name: str) -> np.ndarray:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)


def rms(x: np.ndarray, weight: np.ndarray, eps: float, group: int | None = None) -> np.ndarray:
    parts = x.reshape(*x.shape[:-1], -1, group or x.shape[-1])
    parts = parts / np.sqrt(np.mean(parts**2, -1, keepdims=True) + eps)
    return parts.reshape(x.shape) * weight


def conv(i: Arrays, w: Arrays, p: Params) -> Arrays:
    columns, kernel = i["x"].swapaxes(1, 2), w["weight"].shape[-1]
    before = i.get("state_before", np.zeros((*columns.shape[:2], kernel)))
    seen = np.concatenate([before, columns], 2)
    tokens = columns.shape[2]
    taps = [w["weight"][:, 0, s, None] * seen[:, :, 1 + s : 1 + s + tokens] for s in range(kernel)]
    out = silu(sum(taps) + w["bias"][:, None]).swapaxes(1, 2)
    return {
        "out": out * i.get("token_valid", EVERY)[..., None],
        "state_after": seen[:, :, -kernel:],
    }


def scan(i: Arrays, w: Arrays, p: Params) -> Arrays:
    x, dt = i["x"], softplus(i["dt"] + w["dt_bias"])
    batch, tokens, heads, width = x.shape
    if p["form"] == "chunk":
        dt = np.clip(dt, p["dt_min"], p["dt_max"])
    b, c = (np.repeat(i[name], heads // i[name].shape[2], 2) for name in "bc")
    state = i.get("state_before", np.zeros((batch, heads, width, b.shape[-1])))
    decay = np.exp(-np.exp(w["A_log"]) * dt)
    y = np.empty_like(x)
    for t in range(tokens):
        new = dt[:, t, :, None, None] * x[:, t, :, :, None] * b[:, t, :, None, :]
        state = decay[:, t, :, None, None] * state + new
        y[:, t] = np.einsum("bhpn,bhn->bhp", state, c[:, t]) + w["D"][:, None] * x[:, t]
    return {"y": y, "state_after": state}


def gated_norm(i: Arrays, w: Arrays, p: Params) -> Arrays:
    return {"out": rms(i["x"] * silu(i["gate"]), w["weight"], p["eps"], p["group_size"])}


def mixer(i: Arrays, w: Arrays, p: Params) -> Arrays:
    valid = {"token_valid": i["token_valid"]} if "token_valid" in i else {}
    hidden = i["hidden"] * valid.get("token_valid", EVERY)[..., None]
    inner, states = p["heads"] * p["head_dim"], p["groups"] * p["state"]
    gate, x, dt = np.split(dense(hidden, w, "in_proj"), [inner, 2 * inner + 2 * states], -1)
    past = {"state_before": i["conv_before"]} if "conv_before" in i else {}
    convolved = conv({"x": x} | valid | past, under(w, "conv1d."), p)
    x, b, c = np.split(convolved["out"], [inner, inner + states], -1)
    past = {"state_before": i["ssm_before"]} if "ssm_before" in i else {}
    heads = x.reshape(*x.shape[:2], p["heads"], -1)
    b, c = (part.reshape(*x.shape[:2], p["groups"], -1) for part in (b, c))
    scanned = scan({"x": heads, "dt": dt, "b": b, "c": c} | past, w, p)
    y = scanned["y"].reshape(x.shape)
    out = gated_norm({"x": y, "gate": gate}, under(w, "norm."), p["norm"])["out"]
    after = {"conv_after": convolved["state_after"], "ssm_after": scanned["state_after"]}
    return {"out": dense(out, w, "out_proj")} | after


def adapter(i: Arrays, w: Arrays, p: Params) -> Arrays:
    return {"out": dense(dense(i["x"], w, "0"), w, "1")}


def adapted(x: np.ndarray, w: Arrays, name: str, adapters: str, p: Params, on: str) -> np.ndarray:
    own = under(w, f"{adapters}_adapter_list.{p['call']}.")
    return dense(x, w, name) + (adapter({"x": x}, own, {})["out"] if p[on] else 0)


def rotated(x: np.ndarray, i: Arrays) -> np.ndarray:
    a, b = np.split(x, 2, -1)
    return x * i["cos"][:, None] + np.concatenate([-b, a], -1) * i["sin"][:, None]


def attention(i: Arrays, w: Arrays, p: Params) -> Arrays:
    hidden = i["hidden"]
    rows = [
        adapted(hidden, w, f"{n}_proj", f"linear_{n}", p, "adapters").reshape(
            *hidden.shape[:2], -1, p["head_dim"]
        )
        for n in "qkv"
    ]
    q, k, v = (part.swapaxes(1, 2) for part in rows)
    if p["rotary"]:
        q, k = rotated(q, i), rotated(k, i)
    if "keys_before" in i:
        k, v = np.concatenate([i["keys_before"], k], 2), np.concatenate([i["values_before"], v], 2)
    after = {"keys_after": k, "values_after": v}
    k, v = (np.repeat(part, q.shape[1] // k.shape[1], 1) for part in (k, v))
    slots = np.arange(q.shape[2])[:, None] + p["query_offset"]
    seen = np.broadcast_to(np.arange(k.shape[2]) <= slots, (len(q), 1, q.shape[2], k.shape[2]))
    seen = seen & i.get("key_valid", np.ones((1, 1), bool))[:, None, None]
    scores = np.where(seen, q @ k.swapaxes(2, 3) * p["scale"], -1e300)  # a blind row sees all alike
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    heads = (weights / weights.sum(-1, keepdims=True)) @ v
    return after | {"out": dense(heads.swapaxes(1, 2).reshape(*hidden.shape[:2], -1), w, "o_proj")}


def mlp(i: Arrays, w: Arrays, p: Params) -> Arrays:
    gate, up = np.split(adapted(i["hidden"], w, *["gate_up_proj"] * 2, p, "adapter"), 2, -1)
    return {"out": dense(gelu(gate) * up, w, "down_proj")}


def shared_transformer(i: Arrays, w: Arrays, p: Params) -> Arrays:
    both = np.concatenate([i["hidden"], i["original"]], -1)
    x = rms(both, w["input_layernorm.weight"], p["norm"]["eps"])
    x = attention(i | {"hidden": x}, under(w, "self_attn."), p["attention"])["out"]
    x = rms(x, w["pre_ff_layernorm.weight"], p["norm"]["eps"])
    return mlp({"hidden": x}, under(w, "feed_forward."), p["mlp"])


def mamba_layer(i: Arrays, w: Arrays, p: Params) -> Arrays:
    x = i["hidden"] + i.get("transformer", 0)
    x = rms(x, w["input_layernorm.weight"], p["norm"]["eps"])
    return {"out": i["hidden"] + mixer(i | {"hidden": x}, under(w, "mamba."), p["mamba"])["out"]}


def hybrid_layer(i: Arrays, w: Arrays, p: Params) -> Arrays:
    x = shared_transformer(i, under(w, "shared_transformer."), p)["out"]
    return mamba_layer(i | {"transformer": dense(x, w, "linear")}, under(w, "mamba_decoder."), p)


def _of_arrays(function: Callable[[Arrays, Arrays, Params], Arrays]) -> Callable[..., Any]:
    def block(i: Any, w: Any, p: Params) -> dict[str, torch.Tensor]:
        inputs, weights = ({k: t.numpy() for k, t in tensors.items()} for tensors in (i, w))
        return {k: torch.from_numpy(np.array(t)) for k, t in function(inputs, weights, p).items()}

    return block


BLOCKS = {
    kind: _of_arrays(function)
    for kind, function in {
        "causal_conv1d": conv,
        "ssd_scan": scan,
        "gated_rms_norm": gated_norm,
        "mamba2_mixer": mixer,
        "low_rank_adapter": adapter,
        "shared_transformer": shared_transformer,
        "mamba_layer": mamba_layer,
        "hybrid_layer": hybrid_layer,
        "attention": attention,
        "glu_mlp": mlp,
    }.items()
}
"""attention and glu_mlp are those with adapters; what else Zamba2 has is in reference.py."""
