"""Blocks that are no module and no function: they run between the children of a module.

Their oracle is the parent's own unedited forward, with the children replaced by the tensors that
were recorded from them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from ..format.axes import HIDDEN, by_dimensions
from ..trace.replay import Again, stubbed
from .calls import Block, Frame, Internals, Recorder, only_out
from .common import activation_of, first_argument, weights_of

LOGITS = ("batch", "token", "vocab")

GLU_CHILDREN = ("gate_proj", "up_proj", "down_proj")
PACKED_GLU_CHILDREN = ("gate_up_proj", "down_proj")
HEAD_CHILDREN = ("model", "lm_head")
LAYER_INTERNALS = Internals(names={"add": ("add",)}, axes=HIDDEN)
"""The residual sums of a decoder layer."""
HEAD_INTERNALS = Internals(
    names={
        "divide": ("softcap_divide",),
        "tanh": ("softcap_tanh",),
        "multiply": ("softcap_multiply",),
    },
    axes=LOGITS,
    child="lm_head",
)
"""The parts of the softcap on logits."""


def after_glu_mlp(recorder: Recorder, frame: Frame, result: Any) -> None:
    """act(gate) * up, between the projections of a gated MLP, separate or packed (gate first)."""
    module, children = frame.module, frame.children
    if module is None or any(child not in children for child in frame.keep):
        return
    outer = {child: children[child][1] for child in frame.keep if child != "down_proj"}
    values = tuple(outer.values())
    parts = values if len(values) == 2 else values[0].chunk(2, dim=-1)

    def run(parts: tuple[torch.Tensor, ...]) -> Any:
        given = parts if len(outer) == 2 else (torch.cat(parts, dim=-1),)
        stubs = dict(zip(outer, given, strict=True))
        with stubbed(module, {**stubs, "down_proj": identity}):
            return module.forward(given[0])

    record_glu_activation(recorder, frame, parts, run)


def record_glu_activation(
    recorder: Recorder,
    frame: Frame,
    parts: tuple[torch.Tensor, ...],
    run: Callable[[Any], Any],
) -> None:
    """act(gate) * up as a block: `parts` are gate and up, `run(parts)` computes it again."""
    name = activation_of(frame.module)
    if name is None:
        return
    axes = by_dimensions(parts[0])[1]
    inputs = {"gate": (parts[0], axes), "up": (parts[1], axes)}
    block = Block("glu_activation", inputs, only_out(axes), {"function": name})
    product = first_argument(frame.children["down_proj"][0])
    recorder.record(
        frame.path, "glu_activation", block, product, lambda runner: runner(run, (parts,), {})
    )


def after_causal_lm(cap_key: str | None = None, scale_key: str | None = None) -> Any:
    """The logits of a CausalLM: slice, product, scale, softcap, of the config's entries."""

    def after(recorder: Recorder, frame: Frame, result: Any) -> None:
        module: Any = frame.module
        if any(child not in frame.children for child in HEAD_CHILDREN):
            return
        keep = frame.call.get("logits_to_keep")
        keep = 0 if keep is None else keep
        if not isinstance(keep, int):
            recorder.warn("logits_to_keep is a tensor: lm_head:logits is not recorded")
            return
        path = f"{frame.path}.lm_head".lstrip(".")
        hidden = _hidden_state(frame.children["model"][1])
        raw = frame.children["lm_head"][1]
        logits = _logits(result, frame)
        cap = None if cap_key is None else getattr(module.config, cap_key)
        forward = inspect.unwrap(type(module).forward)

        def run(children: dict[str, torch.Tensor]) -> Any:
            stubs: dict[str, Any] = {"model": lambda **_: _DecoderOutput(children["model"])}
            if "lm_head" in children:
                stubs["lm_head"] = children["lm_head"]
            with stubbed(module, stubs):
                return forward(module, logits_to_keep=keep).logits

        def again(**children: torch.Tensor) -> Again:
            return lambda runner: runner(run, (children,), {}, [module.lm_head])

        if cap is not None:
            block = Block("softcap", {"x": (raw, LOGITS)}, only_out(LOGITS), {"cap": cap})
            recorder.record(path, "softcap", block, logits, again(model=hidden, lm_head=raw))
        weights = weights_of(module.lm_head)
        params = {"logits_to_keep": keep, "softcap": cap}
        if scale_key is not None:
            params["scale"] = getattr(module.config, scale_key)
        block = Block(
            "lm_head",
            {"hidden": (hidden, HIDDEN)},
            only_out(LOGITS),
            params,
            weights,
        )
        taken = recorder.with_quantised(block, module.lm_head)
        if taken is not None:
            recorder.record(path, "logits", taken, logits, again(model=hidden))

    return after


def identity(x: torch.Tensor) -> torch.Tensor:
    return x


class _DecoderOutput:
    """What a decoder gave, as far as its head computes with it; all else that a version of
    transformers hands on, under whatever name, is None."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, name: str) -> None:
        return None


def _hidden_state(output: Any) -> torch.Tensor:
    state = output.last_hidden_state if hasattr(output, "last_hidden_state") else output[0]
    assert isinstance(state, torch.Tensor)
    return state


def _logits(result: Any, frame: Frame) -> torch.Tensor:
    """From a model output, or from a tuple, where the loss comes first if there are labels."""
    if hasattr(result, "logits"):
        return result.logits
    return result[0 if frame.call.get("labels") is None else 1]
