"""Descriptions of blocks that architectures share; an architecture's table puts names to them.

Each function reads one call and says which tensors and numbers are the block's; none computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import activations

from ..errors import RecordError
from ..format.axes import (
    CACHED,
    HIDDEN,
    KEY,
    QUERY,
    REPEATED,
    TABLE,
    Named,
    by_dimensions,
)
from ..trace.replay import Twin
from .cache import cache_after, cache_params, cache_state
from .calls import Block, Call, Frame, Internals, Recorder, only_out

Rotation = Mapping[str, Any]
"""Params of a rotation: style, and where the model differs from LLaMA's table and float32."""
NormRow = Mapping[str, Any]
"""weight_offset and rounding of an RMSNorm; empty: a LayerNorm without bias."""
LLAMA_NORM: NormRow = {"weight_offset": 0, "rounding": "before"}
HALF: Rotation = {"style": "half"}
_PRUNED, _MASK = "_orig", "_mask"
Describe = Callable[[Call], Block | None]
After = Callable[[Recorder, Frame, Any], None]


@dataclass(frozen=True)
class ModuleTap:
    """How a module class becomes a block. `after` records what else its call held, once it is over,
    from the calls of the children named in `keep`."""

    describe: Describe | None = None
    internals: Internals | None = None
    after: After | None = None
    keep: tuple[str, ...] = ()


@dataclass(frozen=True)
class FunctionTap:
    """How a function of the modeling file becomes a block, called `name` in ids."""

    name: str
    describe: Describe
    internals: Internals | None = None
    sequence: tuple[str, ...] = ()
    """Names of the first, second ... call within one call of the caller, instead of `name`."""
    oracle: Callable[[Call, Callable[..., Any]], Callable[..., Any]] | None = None
    """What the oracle runs on the call's arguments, where that is not the function itself."""
    decorated: bool = False
    """The oracle runs the function with its decorators, of which nothing is known."""


@dataclass(frozen=True)
class Architecture:
    """The taps of one model_type: module classes by name, functions of the modeling file by name,
    and the functions that create masks with their names in ids."""

    modules: Mapping[str, ModuleTap]
    functions: Mapping[str, FunctionTap] = field(default_factory=dict)
    masks: Mapping[str, str] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    """Of these names those that some versions of transformers do not have."""
    softcapping: str | None = None
    """The config entry of a softcap on attention scores, which sdpa would drop."""


def weights_of(module: torch.nn.Module | None) -> dict[str, torch.Tensor]:
    """All parameters by their name relative to the module, with the masks of pruned ones:
    `weight_mask` of `weight_orig`, as torch.nn.utils.prune has them."""
    if module is None:
        return {}
    weights: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    masks = {
        name: mask
        for name, mask in module.named_buffers(remove_duplicate=False)
        if name.endswith(_MASK) and name.removesuffix(_MASK) + _PRUNED in weights
    }
    return weights | masks


def first_argument(call: Call) -> torch.Tensor:
    """The tensor that a one-input module was given, whatever its name."""
    for value in call.arguments.values():
        if isinstance(value, torch.Tensor):
            return value
    raise RecordError(f"[{call.path}] was called without a tensor")


def linear(call: Call) -> Block:
    """torch.nn.Linear: out = x weight^T + bias, weight [out, in]."""
    x = by_dimensions(first_argument(call))
    return Block("linear", {"x": x}, only_out(x[1]), weights=weights_of(call.module))


def embedding(call: Call) -> Block | None:
    """Rows of weight by id, times a scale rounded to the weight's dtype as the model does."""
    assert call.module is not None
    ids = first_argument(call)
    if ids.ndim not in (1, 2):
        return None
    weight = call.module.weight
    assert isinstance(weight, torch.Tensor)
    scale = getattr(call.module, "embed_scale", None)
    if isinstance(scale, torch.Tensor):
        scale = scale.to(weight.dtype).item()
    axes = ("batch", "token") if ids.ndim == 2 else ("token",)
    return Block(
        "embedding",
        {"ids": (ids, axes)},
        only_out((*axes, "channel")),
        params={"scale": 1.0 if scale is None else float(scale)},
        weights={"weight": weight},
    )


def layer_norm(call: Call) -> Block | None:
    module = call.module
    assert isinstance(module, torch.nn.LayerNorm)
    if module.weight is None or module.bias is None or len(module.normalized_shape) != 1:
        return None
    x = by_dimensions(first_argument(call))
    return Block("layer_norm", {"x": x}, only_out(x[1]), {"eps": module.eps}, weights_of(module))


def norm(row: NormRow) -> Callable[[Call], Block]:
    """x rsqrt(mean(x^2) + eps) times weight (+ 1), rounded to storage before or after the weight;
    or a LayerNorm in float32 with one rounding, whose weight may be of each head."""

    def describe(call: Call) -> Block:
        x = by_dimensions(first_argument(call))
        kind = "rms_norm" if row else "layer_norm"
        params = norm_params(call.module, row)
        return Block(kind, {"x": x}, only_out(x[1]), params, weights_of(call.module))

    return describe


def norm_params(module: Any, row: NormRow) -> dict[str, Any]:
    eps = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    return {"eps": float(eps), **row}


def activation_name(module: Any) -> str | None:
    """The format's name of an activation module; None for one that it does not know."""
    if isinstance(module, (activations.SiLUActivation, torch.nn.SiLU)):
        return "silu"
    if isinstance(module, torch.nn.Tanh):
        return "tanh"
    if isinstance(module, torch.nn.GELU):
        return "gelu" if module.approximate == "none" else "gelu_pytorch_tanh"
    if isinstance(module, activations.GELUTanh):
        return "gelu_pytorch_tanh" if "tanh_python" not in str(module.act) else None
    if isinstance(module, activations.GELUActivation):
        return "gelu" if "gelu_python" not in str(module.act) else None
    return None


def activation_of(module: Any) -> str | None:
    """The same of the activation that a gated MLP has."""
    return activation_name(getattr(module, "act_fn", getattr(module, "activation_fn", None)))


def activation(call: Call) -> Block | None:
    name = activation_name(call.module)
    if name is None:
        return None
    x = by_dimensions(first_argument(call))
    return Block("activation", {"x": x}, only_out(x[1]), {"function": name})


def rotary(rotation: Rotation) -> Callable[[Call], Block]:
    """apply_rotary_pos_emb(q, k, cos, sin)."""

    def describe(call: Call) -> Block:
        if call.get("unsqueeze_dim") not in (None, 1):
            raise RecordError(f"[{call.path}] rotary with unsqueeze_dim is not known")

        def outputs(result: Any, twin: Twin) -> dict[str, Named]:
            return {"q": (result[0], QUERY), "k": (result[1], KEY)}

        inputs: dict[str, Named] = {
            "q": (call["q"], QUERY),
            "k": (call["k"], KEY),
            "cos": (call["cos"], TABLE),
            "sin": (call["sin"], TABLE),
        }
        return Block("rotary", inputs, outputs, dict(rotation))

    return describe


def repeat_kv(call: Call) -> Block | None:
    """repeat_kv(hidden_states, n_rep): each kv head `n_rep` times in a row."""
    if call["n_rep"] == 1:
        return None
    inputs: dict[str, Named] = {"x": (first_argument(call), CACHED)}
    return Block("repeat_kv", inputs, only_out(REPEATED), {"repeats": int(call["n_rep"])})


def glu_mlp(call: Call) -> Block | None:
    """down(act(gate(x)) * up(x))."""
    name = activation_of(call.module)
    if name is None:
        return None
    hidden = by_dimensions(first_argument(call))
    return Block(
        "glu_mlp",
        {"hidden": hidden},
        only_out(hidden[1]),
        {"function": name},
        weights_of(call.module),
    )


def attention_inputs(call: Call, index: int) -> dict[str, Named]:
    """hidden, the rotary table where there is one, and the cached keys and values."""
    inputs: dict[str, Named] = {"hidden": (first_argument(call), HIDDEN)}
    table = next((v for v in call.arguments.values() if _is_table(v)), None)
    if table is not None:
        inputs |= {"cos": (table[0], TABLE), "sin": (table[1], TABLE)}
    cache = call.cache
    return inputs if cache is None else inputs | cache_state(cache, index, call.path)


def _is_table(value: Any) -> bool:
    """Whether an argument is the cosines and sines of a rotary embedding."""
    is_pair = isinstance(value, (tuple, list)) and len(value) == 2
    return is_pair and all(isinstance(part, torch.Tensor) for part in value)


def attention_params(call: Call, module: Any, index: int, rotation: Rotation) -> dict[str, Any]:
    cache = call.cache
    kind = None if cache is None else cache_params(cache, index, call.path)
    return {"head_dim": module.head_dim, **rotation, "cache": kind}


def attention_outputs(cache: Any, index: int) -> Callable[[Any, Twin], dict[str, Named]]:
    def outputs(result: Any, twin: Twin) -> dict[str, Named]:
        out: dict[str, Named] = {"out": (result[0], HIDDEN)}
        return out if cache is None else out | cache_after(cache, index, twin)

    return outputs


def attention(rotation: Rotation, norm: NormRow = LLAMA_NORM) -> Callable[[Call], Block]:
    """A self-attention module: projections, rotary, cache, attention function, o_proj; with norms
    of each head's queries and keys where it has them."""

    def describe(call: Call) -> Block:
        module: Any = call.module
        index = module.layer_idx
        params = attention_params(call, module, index, rotation)
        if hasattr(module, "q_norm"):
            params["qk_norm"] = norm_params(module.q_norm, norm)
        return Block(
            "attention",
            attention_inputs(call, index),
            attention_outputs(call.cache, index),
            params,
            weights_of(module),
            uses_attention="",
        )

    return describe


def decoder_layer(form: str, rotation: Rotation, norm: NormRow) -> Callable[[Call], Block | None]:
    """A decoder layer, of a form that the block decoder_layer knows."""

    def describe(call: Call) -> Block | None:
        module: Any = call.module
        inner = Call(call.path, module.self_attn, call.arguments, call.recorder)
        parts = attention(rotation, norm)(inner)
        function = activation_of(module.mlp)
        if function is None:
            return None
        params = {
            "form": form,
            "norm": norm_params(module.input_layernorm, norm),
            "attention": parts.params,
            "mlp": {"function": function},
        }
        return Block(
            "decoder_layer",
            parts.inputs,
            only_out(HIDDEN),
            params,
            weights_of(module),
            uses_attention="attention",
        )

    return describe


GENERIC: dict[type[torch.nn.Module], ModuleTap] = {
    torch.nn.Linear: ModuleTap(linear),
    torch.nn.Embedding: ModuleTap(embedding),
    torch.nn.LayerNorm: ModuleTap(layer_norm),
    torch.nn.SiLU: ModuleTap(activation),
    torch.nn.GELU: ModuleTap(activation),
    torch.nn.Tanh: ModuleTap(activation),
    activations.SiLUActivation: ModuleTap(activation),
    activations.GELUTanh: ModuleTap(activation),
    activations.GELUActivation: ModuleTap(activation),
}
"""Modules that are the same block wherever they are."""
