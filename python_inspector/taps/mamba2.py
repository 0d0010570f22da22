"""Mamba2 mixers as transformers' torch path runs them: convolution, scan, gated norm, the whole.

The cached states are written in place: what they were is stored, and where need be copied, before.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..format.axes import HIDDEN, Named
from ..trace.replay import Twin
from .cache import (
    CONV_STATE,
    SSM_STATE,
    conv_after,
    conv_state,
    copy_of_conv_layer,
    mixer_after,
    mixer_state,
    ssm_after,
)
from .calls import Block, Call, only_out
from .common import LLAMA_NORM, norm_params, weights_of

HEADS = ("batch", "token", "head", "head_dim")
GROUPS = ("batch", "token", "group", "state")
STEPS = ("batch", "token", "head")


def mixer(call: Call) -> Block:
    """A mixer module: projection, convolution, scan, gated norm, projection."""
    module: Any = call.module
    cache, index = call.cache, module.layer_idx
    call.before["layer"] = copy_of_conv_layer(cache, index, call.path)

    def outputs(result: Any, twin: Twin) -> dict[str, Named]:
        out: dict[str, Named] = {"out": (result, HIDDEN)}
        return out if cache is None else out | mixer_after(cache, index, twin)

    inputs: dict[str, Named] = {"hidden": (call["hidden_states"], HIDDEN)}
    inputs |= mixer_inputs(call, module, cache)
    params = mixer_params(call, module, cache)
    return Block("mamba2_mixer", inputs, outputs, params, weights_of(module))


def mixer_inputs(call: Call, module: Any, cache: Any) -> dict[str, Named]:
    """Which tokens are no padding, and the states before; each where there is one."""
    return token_valid(call) | mixer_state(cache, module.layer_idx, call.path)


def token_valid(call: Call) -> dict[str, Named]:
    mask = call.get("attention_mask")
    return {} if mask is None else {"token_valid": (mask.bool(), ("batch", "token"))}


def mixer_params(call: Call, module: Any, cache: Any) -> dict[str, Any]:
    past = conv_state(cache, module.layer_idx, call.path) is not None
    step = past and call["hidden_states"].shape[1] == 1
    return _scan_params(module, "step" if step else "chunk") | {
        "heads": module.num_heads,
        "groups": module.n_groups,
        "state": module.ssm_state_size,
        "head_dim": module.head_dim,
        "norm": _gated_params(module.norm),
        "activation": module.activation,
    }


def _scan_params(module: Any, form: str) -> dict[str, Any]:
    """dt has limits in the chunk form only; None where there is none."""
    limits = [None if math.isinf(v) else float(v) for v in module.time_step_limit]
    low, high = limits if form == "chunk" else (None, None)
    return {"form": form, "chunk_size": module.chunk_size, "dt_min": low, "dt_max": high}


def mamba_layer(call: Call) -> Block:
    """hidden + mixer(norm(hidden + transformer)), the second summand where there is one."""
    module: Any = call.module
    cache, other = call.cache, call.get("transformer_hidden_states")
    inputs: dict[str, Named] = {"hidden": (call["hidden_states"], HIDDEN)}
    if other is not None:
        inputs["transformer"] = (other, HIDDEN)
    inputs |= mixer_inputs(call, module.mamba, cache)
    params = {
        "norm": norm_params(module.input_layernorm, LLAMA_NORM),
        "mamba": mixer_params(call, module.mamba, cache),
    }
    return Block("mamba_layer", inputs, only_out(HIDDEN), params, weights_of(module))


def gated_rms_norm(call: Call) -> Block:
    """rms_norm(x silu(gate)) times weight, the mean over groups of channels."""
    inputs: dict[str, Named] = {
        "x": (call["hidden_states"], HIDDEN),
        "gate": (call["gate"], HIDDEN),
    }
    params = _gated_params(call.module)
    return Block("gated_rms_norm", inputs, only_out(HIDDEN), params, weights_of(call.module))


def _gated_params(module: Any) -> dict[str, Any]:
    return {"eps": float(module.variance_epsilon), "group_size": int(module.group_size)}


def chunk_scan(call: Call) -> Block:
    """mamba2_chunk_scan(x, dt, A, B, C ...) -> y, or y and the state after."""
    x, b, c = (call[name] for name in ("hidden_states", "B", "C"))
    _record_convolution(call, torch.cat([part.flatten(2) for part in (x, b, c)], -1))
    before = call.get("initial_states")

    def outputs(result: Any, twin: Twin) -> dict[str, Named]:
        y, after = result if isinstance(result, tuple) else (result, None)
        return _scan_outputs(y, after)

    return _scan(call, "chunk", (x, call["dt"], b, c), before, outputs)


def state_update(call: Call) -> Block:
    """mamba2_selective_state_update(state, x, dt, A, B, C ...) -> y; state is written in place."""
    state, x, dt = call["state"], call["hidden_states"], call["dt"]
    x, dt, b, c = (part[:, None] for part in (x, dt[..., 0], call["B"], call["C"]))
    _record_convolution(call, torch.cat([part.flatten(2) for part in (x, b, c)], -1))

    def outputs(result: Any, twin: Twin) -> dict[str, Named]:
        return _scan_outputs(result[:, None], twin(state))

    return _scan(call, "step", (x, dt, b, c), state, outputs)


def _scan(
    call: Call,
    form: str,
    tensors: tuple[torch.Tensor, ...],
    before: torch.Tensor | None,
    outputs: Callable[[Any, Twin], dict[str, Named]],
) -> Block:
    module: Any = call.module
    axes = (HEADS, STEPS, GROUPS, GROUPS)
    inputs: dict[str, Named] = dict(
        zip(("x", "dt", "b", "c"), zip(tensors, axes, strict=True), strict=True)
    )
    if before is not None:
        inputs["state_before"] = (before, SSM_STATE)
    weights = {name: getattr(module, name) for name in ("A_log", "D", "dt_bias")}
    params, after = _scan_params(module, form), partial(ssm_after, module.layer_idx)
    return Block("ssd_scan", inputs, outputs, params, weights, state=after)


def _scan_outputs(y: torch.Tensor, after: torch.Tensor | None) -> dict[str, Named]:
    out: dict[str, Named] = {"y": (y, HEADS)}
    return out if after is None else out | {"state_after": (after, SSM_STATE)}


def exact_decay(call: Call, function: Callable[..., Any]) -> Callable[..., Any]:
    """The scan with A = -exp(A_log) in float64, which the mixer hands over in float32."""

    def run(*args: Any, **kwargs: Any) -> Any:
        module: Any = call.module
        given = inspect.signature(function).bind(*args, **kwargs)
        rounded = given.arguments["A"]
        exact = -torch.exp(module.A_log.float())
        shape = (-1, *[1] * (rounded.ndim - 1))
        given.arguments["A"] = exact.reshape(shape).expand_as(rounded)
        return function(*given.args, **given.kwargs)

    return run


def _record_convolution(call: Call, out: torch.Tensor) -> None:
    """The convolution, its state and the second mask: what comes between in_proj and the scan.

    Several functions do that between them, so it is recorded when the scan begins.
    """
    recorder, module = call.recorder, call.module
    assert isinstance(module, torch.nn.Module)
    frame = recorder.stack[-1]
    mixer: Any = module
    projected = frame.children["in_proj"][1]
    sizes = [mixer.intermediate_size, mixer.conv_dim, mixer.num_heads]
    x = projected.split(sizes, dim=-1)[1]
    cache, mask = frame.call.cache, frame.call.get("attention_mask")
    layer = frame.call.before["layer"]
    inputs: dict[str, Named] = {"x": (x, HIDDEN)} | token_valid(frame.call)
    if layer is not None and layer.has_previous_state[0]:
        inputs["state_before"] = (layer.conv_states[0], CONV_STATE)

    def outputs(result: Any, twin: Twin) -> dict[str, Named]:
        named: dict[str, Named] = {"out": (result[0], HIDDEN)}
        return named if result[1] is None else named | {"state_after": (result[1], CONV_STATE)}

    after = conv_state(cache, mixer.layer_idx, call.path)
    recorder.record(
        f"{call.path}.conv1d",
        None,
        Block(
            "causal_conv1d",
            inputs,
            outputs,
            {"activation": mixer.activation},
            weights_of(mixer.conv1d),
            state=partial(conv_after, mixer.layer_idx),
        ),
        (out, after),
        lambda runner: runner(partial(_convolve, mixer), (x, layer, mask), {}, [mixer]),
    )


def _convolve(
    mixer: Any, x: torch.Tensor, layer: Any, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """transformers' functions in the order in which the mixer's forward calls them."""
    file = sys.modules[type(mixer).__module__]
    weight, bias = mixer.conv1d.weight.squeeze(1), mixer.conv1d.bias
    tokens, columns = x.shape[1], x.transpose(1, 2)
    if layer is not None and layer.has_previous_state[0] and tokens == 1:
        update = inspect.unwrap(file.causal_conv1d_update)
        out = update(columns, layer.conv_states[0], weight, bias, activation=mixer.activation)
    else:
        if layer is not None:
            columns = layer.update_conv_state(columns, conv_kernel_size=mixer.conv_kernel_size)
        convolve = inspect.unwrap(file.causal_conv1d_fn)
        out = convolve(columns, weight, bias, activation=mixer.activation)[:, :, -tokens:]
    out = file.apply_mask_to_padding_states(out.transpose(1, 2), mask)
    return out, None if layer is None else layer.conv_states[0]
