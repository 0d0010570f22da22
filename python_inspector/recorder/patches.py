"""Replaces functions of a modeling file while a recording runs, and puts them back.

Attention functions, rotary, Cache.update and mask creation are no modules, so no hook sees them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from transformers import masking_utils, modeling_utils
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin

from ..compatibility import (
    MAKES_POSITIONS,
    PreTrainedConfig,
    has_positions_method,
    mask_question,
)
from ..format.axes import SCORES, Named
from ..taps.cache import conv_cache, kv_cache, ssm_cache, untapped_kv_cache
from ..taps.calls import Block, bound_arguments
from ..taps.common import FunctionTap
from ..taps.components import position_ids
from ..taps.generic import any_function
from ..taps.masks import Visibility, from_interface, says_the_same
from ..taps.scores import describe_sdpa
from ..trace.replay import Twin
from . import guards
from .recorder import Recorder

_FUSED = FunctionTap("sdpa", describe_sdpa(fused=True))
_ANY_FUSED = FunctionTap("sdpa_attention_forward", any_function, decorated=True)
_STATE_UPDATES = {
    "update_conv_state": FunctionTap("conv_cache", conv_cache),
    "update_recurrent_state": FunctionTap("ssm_cache", ssm_cache),
}


@contextmanager
def function_patches(recorder: Recorder) -> Iterator[None]:
    """The tapped functions of the model's own modeling files, recorded while this is open."""
    with ExitStack() as stack:
        architecture = recorder.taps.architecture
        describe = untapped_kv_cache if architecture is None else kv_cache
        wrap = functools.partial(_tapped, recorder, FunctionTap("kv_cache", describe))
        stack.enter_context(_attribute(Cache, "update", wrap))
        for method, tap in _STATE_UPDATES.items():
            if not hasattr(Cache, method):
                continue
            stack.enter_context(
                _attribute(Cache, method, functools.partial(_tapped, recorder, tap))
            )
        if has_positions_method:
            wrap = functools.partial(_position_maker, recorder)
            stack.enter_context(_attribute(GenerationMixin, MAKES_POSITIONS, wrap))
        for (file, name), tap in recorder.taps.untapped_functions().items():
            stack.enter_context(_attribute(file, name, functools.partial(_tapped, recorder, tap)))
        if architecture is None:
            stack.enter_context(_fused_attention(recorder, modeling_utils, _ANY_FUSED))
        else:
            for file in recorder.taps.files():
                for name, tap in architecture.functions.items():
                    if hasattr(file, name) and (recorder.options.operations or not tap.sequence):
                        wrap = functools.partial(_tapped, recorder, tap)
                        stack.enter_context(_attribute(file, name, wrap))
                for name, label in architecture.masks.items():
                    if hasattr(file, name):
                        wrap = functools.partial(_mask_maker, recorder, label)
                        stack.enter_context(_attribute(file, name, wrap))
                stack.enter_context(_fused_attention(recorder, file, _FUSED))
        yield


def _tapped(
    recorder: Recorder, tap: FunctionTap, original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return recorder.call_function(tap, original, args, kwargs)

    return wrapper


def _position_maker(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps what generate() makes position ids with; it runs outside of the model's forward."""

    @functools.wraps(original)
    def wrapper(model: Any, inputs: torch.Tensor, model_kwargs: Any) -> Any:
        made = original(model, inputs, model_kwargs)
        valid = model_kwargs.get("attention_mask")
        if valid is not None and not recorder.passive():
            block, path = position_ids(0, valid), recorder.taps.base_path
            recorder.record(path, "position_ids", block, made, None)
        return made

    return wrapper


def _mask_maker(recorder: Recorder, label: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps create_causal_mask and its like: keeps what the mask says, records the mask."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if recorder.passive():
            return original(*args, **kwargs)
        given = bound_arguments(original, args, kwargs)
        guards.refuse_packed(given, recorder.options.what.force)
        config = next((v for v in given.values() if isinstance(v, PreTrainedConfig)), None)
        with _asked(getattr(config, "_attn_implementation", "eager")) as asked:
            mask = original(*args, **kwargs)
        if asked:
            where = recorder.stack[-1].path if recorder.stack else recorder.taps.base_path
            with recorder.misfits.kept_apart(where, label, "it is left out"):
                _keep_mask(recorder, label, from_interface(mask_question(asked[-1]), mask))
        return mask

    return wrapper


@contextmanager
def _asked(implementation: str) -> Iterator[list[dict[str, Any]]]:
    """Collects what transformers asks its mask function for."""
    calls: list[dict[str, Any]] = []

    def spy(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(**kwargs: Any) -> Any:
            calls.append(kwargs)
            return original(**kwargs)

        return wrapper

    with _entry(masking_utils.ALL_MASK_ATTENTION_FUNCTIONS, implementation, spy):
        yield calls


def _keep_mask(recorder: Recorder, label: str, visibility: Visibility) -> None:
    mask = visibility.made
    if mask is None:
        recorder.masks.append(visibility)
        return
    if not says_the_same(visibility, mask, causal=True):
        recorder.warn(f"{label} is not what causal, window and padding say: recorded as it is")
        return
    recorder.masks.append(visibility)
    additive = mask.dtype != torch.bool
    params = visibility.params() | {
        "fully_masked": "uniform" if additive else "zero",
        "form": "additive" if additive else "bool",
        "queries": visibility.queries,
        "keys": visibility.keys,
        "batch": visibility.batch,
    }

    def outputs(result: Any, twin: Twin) -> dict[str, Named]:
        return {"mask": (result, SCORES)}

    path = recorder.stack[-1].path if recorder.stack else recorder.taps.base_path
    recorder.record(
        path, label, Block("causal_mask", visibility.inputs(), outputs, params), mask, None
    )


@contextmanager
def _fused_attention(recorder: Recorder, file: Any, tap: FunctionTap) -> Iterator[None]:
    table = getattr(file, "ALL_ATTENTION_FUNCTIONS", None)
    if table is None or "sdpa" not in table:
        yield
        return
    with _entry(table, "sdpa", functools.partial(_tapped, recorder, tap)):
        yield


@contextmanager
def _attribute(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces owner.name by wrap(owner.name)."""
    own = name in vars(owner)
    old = getattr(owner, name)
    setattr(owner, name, wrap(old))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, old)
        else:
            delattr(owner, name)


@contextmanager
def _entry(table: MutableMapping[str, Any], key: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces an entry of one of transformers' function tables, for this table object only."""
    local: dict[str, Any] = table._local_mapping  # type: ignore[attr-defined]
    before = dict(local)
    local[key] = wrap(table[key])
    try:
        yield
    finally:
        local.clear()
        local.update(before)
