"""The chained oracle: one float64 run of the whole model along with the recorded one.

Each forward call of the model is made under the lift first, on float64 caches and states that live
from call to call. Its leaves are those of the isolated oracles: weights, ids, positions and masks,
the embedding scale, inv_freq and attention_scaling as the real call uses them. What its blocks gave
is kept until the real call is over: the difference shows an error that built up over layers and
steps, the amplification how much of what came in a block passes on.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import RecordError
from ..foreign import cache_in, is_cache
from ..format.axes import Named
from ..format.recording import MAIN_INPUTS, chained_outputs
from ..taps.calls import Block, bound_arguments
from ..taps.rope import STATEFUL
from ..trace.copies import Memo
from ..trace.lift import LiftError, widen
from ..trace.replay import run_lifted

_RESIDUAL_STREAM = re.compile(r"|\w+|\w+\.\d+(\.mamba_decoder)?")
"""Paths in the decoder whose calls carry the residual stream."""


class Chain:
    """The float64 run while a recording runs: its caches, and what its blocks gave in this step."""

    def __init__(self, model: torch.nn.Module, base_path: str) -> None:
        self._model = model
        self._base_path = base_path
        self._watched = _residual_stream(model, base_path)
        self._caches: Memo = {}
        """From each cache of the run to its float64 copy."""
        self._given: Any = None
        """The cache that the call of this step was given."""
        self._cache: Any = None
        """The float64 cache of this step."""
        self._left: dict[int, list[tuple[Any, int]]] = {}
        """The keys that each cache of the run held when its last call was over, as they were."""
        self._ids: Any = None
        """What the model was given in this step."""
        self._calls: dict[str, tuple[Any, Any]] = {}
        """First argument and result of each watched module, by path."""

    def run(self, path: str, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """One forward call of the model, before it is made."""
        arguments = bound_arguments(module.forward, args, kwargs)
        given, self._ids = cache_in(arguments), arguments.get("input_ids")
        self._refuse_changes(given)
        self._calls.clear()
        with ExitStack() as stack:
            stack.enter_context(_frequencies_of_the_run(module))
            for name, child in self._watched.items():
                if child is not module:
                    keep = partial(self._keep, name)
                    handle = child.register_forward_hook(keep, with_kwargs=True)
                    stack.callback(handle.remove)
            try:
                lifted = run_lifted(module.forward, args, kwargs, [module], known=self._caches)
            except LiftError as error:
                raise RecordError(
                    f"[record] the model as a whole cannot be run in float64 ({error}): record it "
                    "without chained"
                ) from error
        self._keep(path, module, args, kwargs, lifted.result)
        if given is not None:
            self._caches[id(given)] = (given, lifted.twin(given))
        self._given, self._cache = given, cache_in(lifted.result)

    def over(self, result: Any) -> None:
        """The real call is over: a cache that it made itself is known from now on."""
        made = cache_in(result)
        if made is not None:
            self._caches[id(made)] = (made, self._cache)
        cache = self._given if made is None else made
        if is_cache(cache):
            self._left[id(cache)] = _keys(cache)

    def given_ids(self, block: Block, path: str) -> dict[str, Named]:
        """The ids of the model as an input of its embedding, where the model's code changed them
        on the way: a chain starts at those that the model was given."""
        if block.kind != "embedding" or not chained_outputs(block.kind, path):
            return {}
        ids, axes = block.inputs["ids"]
        if not isinstance(self._ids, torch.Tensor) or self._ids.ndim != ids.ndim:
            return {}
        return {} if torch.equal(self._ids, ids) else {"given": (self._ids, axes)}

    def outputs(self, block: Block, path: str) -> dict[str, torch.Tensor]:
        """What the chain has for the block's outputs; nothing for a block that it does not have."""
        if block.state is not None:
            state = {} if self._cache is None else block.state(self._cache)
            return {name: tensor for name, (tensor, _) in state.items()}
        if not chained_outputs(block.kind, path):
            return {}
        if block.kind == "lm_head":
            return {"out": self._calls[""][1].logits}
        return {"out": _first(self._calls[path][1])}

    def amplification(self, block: Block, path: str, oracle: torch.Tensor) -> float | None:
        """How many times larger an error of the main input is in the output, along the run's own.

        E(oracle - o) / E(x - o before), `oracle` being the isolated one, o the chained ones; None
        where that is no number, as where nothing came in, or the block's input is not chained.
        """
        if block.kind not in MAIN_INPUTS or not chained_outputs(block.kind, path):
            return None
        if block.kind == "lm_head":
            before = self._calls[self._base_path][1].last_hidden_state
        else:
            before = self._calls[path][0]
        valid = block.valid.get("out")
        came_in = _relative(block.inputs[MAIN_INPUTS[block.kind]][0], before, valid)
        went_out = _relative(oracle, self.outputs(block, path)["out"], valid)
        ratio = went_out / came_in if came_in else math.nan
        return ratio if math.isfinite(ratio) else None

    def _keep(self, path: str, module: torch.nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        first = next(iter(bound_arguments(module.forward, args, kwargs).values()), None)
        self._calls[path] = (first, out)

    def _refuse_changes(self, cache: Any) -> None:
        """What happened to a cache outside of the recorded calls did not happen to the chain's."""
        if not is_cache(cache):
            return
        left = self._left.pop(id(cache), None)
        if id(cache) not in self._caches:
            if seen := int(cache.get_seq_length()):
                raise RecordError(
                    f"[record] the cache holds {seen} tokens from before the recording, whose "
                    "chained oracle is unknown: record from the first token, or without chained"
                )
        elif left is None or not _same(left, _keys(cache)):
            raise RecordError(
                "[record] the cache was changed between two calls (by beam search, cropping or a "
                "call that failed), which the chained oracle does not know: record without chained"
            )


def is_of_chain(kind: str, path: str) -> bool:
    """Whether such a checkpoint holds something of a chain, or the positions it ran at."""
    return kind == "rotary_table" or bool(chained_outputs(kind, path))


def _keys(cache: Any) -> list[tuple[Any, int]]:
    """The tensors of keys that a cache holds, and torch's count of changes in place.

    Outside of updates others take their place, or, in a static cache, what they hold changes.
    """
    keys = [getattr(layer, "keys", None) for layer in cache.layers]
    return [(k, 0 if k is None or k.is_inference() else k._version) for k in keys]


def _same(before: list[tuple[Any, int]], now: list[tuple[Any, int]]) -> bool:
    return len(before) == len(now) and all(
        a is b and changes == other for (a, changes), (b, other) in zip(before, now, strict=True)
    )


def _residual_stream(model: torch.nn.Module, base_path: str) -> dict[str, torch.nn.Module]:
    """The decoder and what is in it: embeddings, layers, layers in those, final norm."""
    base = model.get_submodule(base_path)
    return {
        ".".join(filter(None, [base_path, path])): module
        for path, module in base.named_modules()
        if _RESIDUAL_STREAM.fullmatch(path) or isinstance(module, torch.nn.Embedding)
    }


def _first(result: Any) -> torch.Tensor:
    out = result[0] if isinstance(result, tuple) else result
    assert isinstance(out, torch.Tensor)
    return out


def _relative(x: torch.Tensor, o: torch.Tensor, valid: Named | None) -> float:
    """sqrt(sum (x - o)^2 / sum o^2) in float64, over the valid [batch, token] of [.., channel]."""
    off = x.double() - o
    if valid is not None:
        off, o = (torch.where(valid[0][..., None], t, 0.0) for t in (off, o))
    return float(off.norm() / o.norm())


@contextmanager
def _frequencies_of_the_run(model: torch.nn.Module) -> Iterator[None]:
    """Rotary embeddings that recompute inv_freq do so outside the lift, as the real call will."""
    default = torch.get_default_dtype()
    stateful = [m for m in model.modules() if getattr(m, "rope_type", None) in STATEFUL]
    for module in stateful:
        vars(module)["forward"] = partial(_pinned, module, default)
    try:
        yield
    finally:
        for module in stateful:
            del vars(module)["forward"]


def _pinned(module: Any, default: torch.dtype, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
    lifted = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            type(module).forward(module, x, position_ids)
            module._buffers["inv_freq"] = widen(module.inv_freq)
    finally:
        torch.set_default_dtype(lifted)
    return inspect.unwrap(type(module).forward)(module, x, position_ids)
