"""verify_module(): a module of an external model on a block's recorded operands."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..api.verdict import Verdict
from ..api.verification import Call, verify
from ..format.named_recordings import recording_folder
from ..format.strict_json import load_json
from .layouts import Transform, axes, identity, interleaved_from_half
from .layouts import half_from_interleaved as half

Source = str | Sequence[str] | tuple[str, Transform]
"""Where a weight of theirs comes from: a recorded name, several of which it is the rows of, or one
with a transform of the recorded one into theirs."""

_LETTERS = {
    "batch": "b", "token": "t", "kv_token": "t", "head": "n", "kv_head": "n", "head_dim": "h",
}  # fmt: skip
_ROTATED = ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")


@dataclass
class _Adapted:
    """A module and how recorded operands become its own; weights are converted once per path."""

    module: Any
    names: Mapping[str, Source] | None
    call: Callable[[Any, dict[str, Any], dict[str, Any]], Any]
    layout: str | None
    interleaved: bool
    described: Mapping[str, Any]
    """Checkpoints by id."""
    backward: bool = False
    """Gradients go back through it, to the recorded weights."""
    loaded: str = ""

    def __call__(
        self, inputs: dict[str, Any], weights: dict[str, Any], params: Any, call: Call
    ) -> Any:
        import torch

        if self.backward:
            return self._differentiable(inputs, weights, params, call)
        if self.loaded != call.path:
            state = self._converted(weights, call)
            if state:
                self.module.load_state_dict(state, strict=False)
            self.loaded = call.path
        with torch.no_grad():
            return self._called(lambda given: self.call(self.module, given, params), inputs, call)

    def _differentiable(
        self, inputs: dict[str, Any], weights: dict[str, Any], params: Any, call: Call
    ) -> Any:
        """With the recorded weights in place of the module's own."""
        import torch

        calls = _calls(self.module, self.call)
        own = {n.removeprefix("held."): t for n, t in calls.state_dict().items()}
        state = {
            f"held.{n}": t.to(own[n].dtype)
            for n, t in self._converted(weights, call).items()
            if n in own
        }
        return self._called(
            lambda given: torch.func.functional_call(calls, state, (given, params)), inputs, call
        )

    def _called(
        self, function: Callable[[dict[str, Any]], Any], inputs: dict[str, Any], call: Call
    ) -> Any:
        entry = self.described[call.checkpoint]
        made = function(
            {n: self._into(value, entry["inputs"][n]["axes"]) for n, value in inputs.items()}
        )
        outputs = {name: output["axes"] for name, output in entry["outputs"].items()}
        wanted = [name for name in outputs if not name.endswith("_after")] or list(outputs)
        if not isinstance(made, Mapping):
            values = made if isinstance(made, tuple | list) else (made,)
            made = dict(zip(wanted, values, strict=False))  # others are caches, weights of sums
        return {name: self._back(value, outputs[name]) for name, value in made.items()}

    def _converted(self, weights: dict[str, Any], call: Call) -> dict[str, Any]:
        import torch

        size = _head_dim(call.config)
        recorded = {
            name: interleaved_from_half(size, axis=0)(weight)
            if self.interleaved and name.endswith(_ROTATED)
            else weight
            for name, weight in weights.items()
        }
        if self.names is None:
            return recorded
        state: dict[str, Any] = {}
        for theirs, source in self.names.items():
            names, transform = _parts(source)
            missing = [name for name in names if name not in recorded]
            if missing:
                raise KeyError(f"{call.checkpoint} has no weight {missing[0]}: {sorted(recorded)}")
            state[theirs] = transform(torch.cat([recorded[name] for name in names]))
        return state

    def _into(self, value: Any, recorded: Sequence[str]) -> Any:
        if self.interleaved and recorded[-1] == "head_dim" and value.dim() == 4:
            value = interleaved_from_half(value.shape[-1])(value)
        letters = _letters(recorded)
        return axes(letters, str(self.layout))(value) if self._reorders(letters) else value

    def _back(self, value: Any, recorded: Sequence[str]) -> Any:
        letters = _letters(recorded)
        if self._reorders(letters):
            value = axes(str(self.layout), letters)(value)
        if self.interleaved and recorded[-1] == "head_dim" and value.dim() == 4:
            value = half(value.shape[-1])(value)
        return value

    def _reorders(self, letters: str) -> bool:
        return self.layout is not None and sorted(letters) == sorted(self.layout)


def verify_module(
    module: Any,
    recording: Path | str,
    block: str,
    *,
    names: Mapping[str, Source] | None = None,
    call: Callable[[Any, dict[str, Any], dict[str, Any]], Any] | None = None,
    layout: str | None = None,
    rope: str = "half",
    checkpoint: str | None = None,
    **options: Any,
) -> list[Verdict]:
    """Runs a torch module on every recorded call of a kind of block; a verdict for each.

    `names` goes from its parameters to the recorded weights of the block ("q_proj.weight"): a name,
    several whose rows it holds ("qkv.weight": ["q_proj.weight", "k_proj.weight", ...]), or a pair
    of name and transform; None: they have the same names. `call(module, inputs, params)` calls it,
    with the block's first input by default. `layout` is its order of the axes of tensors by head,
    such as "btnh"; `rope` is "half" as in HuggingFace, or "interleaved" where it turns neighbours:
    rows of q and k, and heads that come in or go out, are put in that order. Operands are on the
    device of its parameters. `options` are of verify(); `backward=True` is for modules that
    autograd goes back through.
    """
    if rope not in ("half", "interleaved"):
        raise ValueError(f"rope is {rope!r}, expected half or interleaved")
    document = load_json(recording_folder(Path(recording)) / "recording.json")
    described = {entry["id"]: entry for entry in document["checkpoints"]}
    adapted = _Adapted(
        module, names, call or _first_input, layout, rope == "interleaved", described,
        backward=bool(options.get("backward")),
    )  # fmt: skip

    def function(inputs: Any, weights: Any, params: Any, call: Call) -> Any:
        return adapted(inputs, weights, params, call)

    own = next(itertools.chain(module.parameters(), module.buffers()), None)
    options = {"device": None if own is None else own.device} | options
    return verify(function, recording, checkpoint, block=block, **options)


def _calls(module: Any, call: Callable[..., Any]) -> Any:
    """A module whose call is `call` of the other one."""
    import torch

    class Calls(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = module

        def forward(self, given: dict[str, Any], params: dict[str, Any]) -> Any:
            return call(self.held, given, params)

    return Calls()


def _first_input(module: Any, inputs: dict[str, Any], _params: dict[str, Any]) -> Any:
    for name in ("hidden", "x", "ids"):
        if name in inputs:
            return module(inputs[name])
    return module(*inputs.values())


def _parts(source: Source) -> tuple[list[str], Transform]:
    if isinstance(source, str):
        return [source], identity
    if len(source) == 2 and callable(source[1]):
        return [str(source[0])], source[1]
    return [str(name) for name in source], identity


def _letters(recorded: Sequence[str]) -> str:
    return "".join(_LETTERS.get(axis, "c") for axis in recorded)


def _head_dim(config: Mapping[str, Any]) -> int:
    known = config.get("head_dim")
    return int(known or config["hidden_size"] // config["num_attention_heads"])
