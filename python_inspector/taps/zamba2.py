"""Zamba2 (transformers' modeling_zamba2.py): Mamba2 layers, and hybrid layers that put a
transformer shared between them, with low-rank adapters of their own, before theirs."""

from __future__ import annotations

from typing import Any

import torch

from ..format.axes import HIDDEN, Named, by_dimensions
from ..trace.replay import stubbed
from .calls import Block, Call, Frame, Recorder, only_out
from .common import (
    HALF,
    LLAMA_NORM,
    Architecture,
    FunctionTap,
    ModuleTap,
    activation_name,
    attention_inputs,
    attention_outputs,
    attention_params,
    first_argument,
    norm,
    norm_params,
    repeat_kv,
    rotary,
    weights_of,
)
from .glue import (
    HEAD_CHILDREN,
    LAYER_INTERNALS,
    after_causal_lm,
    identity,
    record_glu_activation,
)
from .mamba2 import (
    chunk_scan,
    exact_decay,
    gated_rms_norm,
    mamba_layer,
    mixer,
    mixer_inputs,
    mixer_params,
    state_update,
)
from .rope import after_rotary_embedding
from .scores import EAGER_INTERNALS, describe_sdpa

ADAPTERS = "gate_up_proj_adapter_list"


def low_rank_adapter(call: Call) -> Block:
    """Two linear maps in a row, the first to a small width."""
    x = by_dimensions(first_argument(call))
    return Block("low_rank_adapter", {"x": x}, only_out(x[1]), weights=weights_of(call.module))


def call_index(module: Any, call: Call) -> int:
    """Which call of the shared transformers this is, counted over the hybrid layers."""
    return int(module.layer_dic[call["layer_idx"]])


def weights_of_call(module: torch.nn.Module, index: int) -> dict[str, torch.Tensor]:
    """The module's parameters, of its adapters only those of this call."""
    return {
        name: weight
        for name, weight in weights_of(module).items()
        if "_adapter_list." not in name or f"_adapter_list.{index}." in name
    }


def attention(call: Call) -> Block:
    """As other models' attention, with adapters of q, k and v, and rotary where it is on."""
    module: Any = call.module
    layer, index = call["layer_idx"], call_index(module, call)
    params = attention_params(call, module, layer, HALF) | {
        "rotary": bool(module.config.use_mem_rope),
        "adapters": bool(module.config.use_shared_attention_adapter),
        "call": index,
    }
    return Block(
        "attention",
        attention_inputs(call, layer),
        attention_outputs(call.cache, layer),
        params,
        weights_of_call(module, index),
        uses_attention="",
    )


def mlp(call: Call) -> Block:
    """down(act(gate) * up), where an adapter adds to the packed gate and up."""
    module: Any = call.module
    hidden: Named = (call["hidden_state"], HIDDEN)
    weights = weights_of_call(module, call_index(module, call))
    return Block(
        "glu_mlp", {"hidden": hidden}, only_out(HIDDEN), _mlp_params(module, call), weights
    )


def _mlp_params(module: Any, call: Call) -> dict[str, Any]:
    function = activation_name(module.act_fn)
    return {"function": function, "adapter": True, "call": call_index(module, call)}


def after_mlp(recorder: Recorder, frame: Frame, result: Any) -> None:
    """act(gate) * up, on the sum of projection and adapter."""
    module, children = frame.module, frame.children
    assert module is not None
    layer = frame.call["layer_idx"]
    adapters: Any = getattr(module, ADAPTERS)
    index = str(call_index(module, frame.call))
    gate_up = children["gate_up_proj"][1] + children[ADAPTERS][1]

    def run(parts: tuple[torch.Tensor, ...]) -> Any:
        gate_up = torch.cat(parts, dim=-1)
        outer = {"gate_up_proj": gate_up, "down_proj": identity}
        with stubbed(module, outer), stubbed(adapters, {index: 0.0}):
            return module.forward(gate_up, layer)

    record_glu_activation(recorder, frame, gate_up.chunk(2, dim=-1), run)


def shared_transformer(call: Call) -> Block:
    """mlp(norm(attention(norm(hidden | original)))), without any residual."""
    module: Any = call.module
    inner = Call(call.path, module.self_attn, call.arguments, call.recorder)
    parts, index = attention(inner), call_index(module.self_attn, call)
    original: dict[str, Named] = {"original": (call["original_hidden_states"], HIDDEN)}
    params = {
        "block": int(module.block_id),
        "call": index,
        "norm": norm_params(module.input_layernorm, LLAMA_NORM),
        "attention": parts.params,
        "mlp": _mlp_params(module.feed_forward, call),
    }
    return Block(
        "shared_transformer",
        parts.inputs | original,
        only_out(HIDDEN),
        params,
        weights_of_call(module, index),
        uses_attention="attention",
    )


def hybrid_layer(call: Call) -> Block:
    """A Mamba2 layer that adds linear(shared_transformer(hidden)) to its mixer's input only."""
    module: Any = call.module
    cache, mamba = call.cache, module.mamba_decoder.mamba
    inner = Call(call.path, module.shared_transformer, call.arguments, call.recorder)
    parts = shared_transformer(inner)
    return Block(
        "hybrid_layer",
        parts.inputs | mixer_inputs(call, mamba, cache),
        only_out(HIDDEN),
        parts.params | {"mamba": mixer_params(call, mamba, cache)},
        weights_of_call(module, parts.params["call"]),
        uses_attention="attention",
    )


TAPS = Architecture(
    modules={
        "Zamba2RMSNorm": ModuleTap(norm(LLAMA_NORM)),
        "Zamba2RMSNormGated": ModuleTap(gated_rms_norm),
        "Zamba2RotaryEmbedding": ModuleTap(after=after_rotary_embedding),
        "Zamba2MambaMixer": ModuleTap(mixer, keep=("in_proj",)),
        "Zamba2MambaDecoderLayer": ModuleTap(mamba_layer, LAYER_INTERNALS),
        "Sequential": ModuleTap(low_rank_adapter),
        "Zamba2MLP": ModuleTap(
            mlp, LAYER_INTERNALS, after=after_mlp, keep=("gate_up_proj", ADAPTERS, "down_proj")
        ),
        "Zamba2Attention": ModuleTap(attention, LAYER_INTERNALS),
        "Zamba2AttentionDecoderLayer": ModuleTap(shared_transformer),
        "Zamba2HybridLayer": ModuleTap(hybrid_layer),
        "Zamba2ForCausalLM": ModuleTap(after=after_causal_lm(), keep=HEAD_CHILDREN),
    },
    functions={
        "apply_rotary_pos_emb": FunctionTap("rotary", rotary(HALF)),
        "eager_attention_forward": FunctionTap("sdpa", describe_sdpa(False), EAGER_INTERNALS),
        "repeat_kv": FunctionTap(
            "repeat_kv", repeat_kv, sequence=("sdpa.repeat_keys", "sdpa.repeat_values")
        ),
        "mamba2_chunk_scan": FunctionTap("ssd_scan", chunk_scan, oracle=exact_decay),
        "mamba2_selective_state_update": FunctionTap("ssd_scan", state_update, oracle=exact_decay),
    },
    masks={"create_causal_mask": "causal_mask"},
)
