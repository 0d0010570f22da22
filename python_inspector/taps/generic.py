"""Any call of a module or function as the block `module`: what no tap describes.

All tensors among the arguments are inputs, called as the code calls them, nested ones by dotted
names (`position_embeddings.0`, `past_key_values.3.keys`); the module's buffers too
(`buffers.inv_freq`), and plain numbers among the arguments are params. Outputs are all tensors that
come back, and states that the call changed (`past_key_values.3.keys_after`): which those are is
seen in a run on copies, before the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ..foreign import is_cache
from ..format.axes import Named, by_dimensions
from ..format.recording import CODES, DTYPES
from ..trace.copies import is_state
from ..trace.given import Given
from ..trace.replay import Rerun, Twin
from ..trace.wrapped import is_quantised, parts
from .calls import Block, Call

MOST_BUFFER_ELEMENTS = 1 << 20
"""Larger ones are tables that a kernel would make for itself."""
STATE_AFTER = "_after"
BUFFERS = "buffers."
Tensors = dict[str, torch.Tensor]
Names = Callable[[Any], Tensors]
"""From a result to the outputs in it."""
AxesOf = Callable[[str, torch.Tensor, bool], tuple[str, ...]]
"""From an output's name and tensor, and whether its last axis is the two parts of complex numbers,
to its axes."""


def any_call(call: Call) -> Block | None:
    """A module's call; None for one without a tensor, or of parts where only leaves are wanted."""
    is_leaf = call.module is None or next(call.module.children(), None) is None
    if call.recorder.options.proof.oracle == "leaves" and not is_leaf:
        return None
    return GenericCall(call, call.module).block()


def any_function(call: Call) -> Block | None:
    """A function's call: of the modules that it was handed it may use weights."""
    given = [v for v in call.arguments.values() if isinstance(v, torch.nn.Module)]
    return GenericCall(call, given[0] if given else None).block()


class GenericCall:
    """One call while it becomes a block: its arguments, and which of them it uses and changes.

    `module` is the one whose weights and buffers it may use; `names` finds the outputs in a result,
    `axes` names their dimensions.
    """

    def __init__(
        self,
        call: Call,
        module: torch.nn.Module | None,
        names: Names | None = None,
        axes: AxesOf | None = None,
    ) -> None:
        self._call = call
        self._module = module
        self._names = names or _numbered
        self._axes = axes
        self._before = {name: _kept(t) for name, t in self._tensors(_same).items()}
        self._changed: list[str] = []
        self._states: dict[str, tuple[int, str]] = {}

    @property
    def changed(self) -> list[str]:
        """The states, once the block is settled."""
        return self._changed

    def block(self) -> Block | None:
        if not self._before:
            return None
        inputs = {name: storable(t) for name, t in self._before.items()}
        buffers = {
            f"{BUFFERS}{name}": storable(t)
            for name, t in _buffers(self._module).items()
            if t.numel() <= MOST_BUFFER_ELEMENTS
        }
        return Block(
            "module",
            inputs | buffers,
            self._outputs,
            params=_numbers(self._call.arguments),
            weights=_weights(self._module),
            settle=self._settle,
            states=self._states,
        )

    def _settle(self, block: Block, rerun: Rerun, given: Given) -> None:
        """After a run on copies: states are outputs where it changed them, and inputs where it read
        them; weights and buffers are the block's where it read them."""
        after = self._tensors(rerun.twin)
        for name, tensor in after.items():
            before = self._before.get(name)
            if before is None or not _identical(before, tensor):
                self._changed.append(name)
                first, _, rest = name.partition(".")
                place = (id(self._call.arguments[first]), rest)
                self._states[f"{name}{STATE_AFTER}"] = place

        def is_used(t: torch.Tensor | None) -> bool:
            return t is not None and t in given.used

        own = _cache_layers(self._module)
        for name in self._before:
            layer = _layer_of(name, self._call.arguments)
            is_own = layer is None or layer in own or name in self._changed
            if not is_own and not is_used(after.get(name)):
                del block.inputs[name]
        for name, tensor in _buffers(self._module).items():
            if not is_used(tensor):
                block.inputs.pop(f"{BUFFERS}{name}", None)
        block.weights = {name: t for name, t in block.weights.items() if is_used(t)}

    def _outputs(self, result: Any, twin: Twin) -> dict[str, Named]:
        found = dict(self._names(result))
        if self._changed:
            after = self._tensors(twin)
            found |= {
                f"{name}{STATE_AFTER}": after[name]
                for name in self._changed
                if name in after and after[name].numel()
            }
        return {name: self._storable(name, t) for name, t in found.items()}

    def _storable(self, name: str, t: torch.Tensor) -> Named:
        made, axes = storable(t)
        return made, axes if self._axes is None else self._axes(name, made, t.is_complex())

    def _tensors(self, twin: Twin) -> Tensors:
        """All tensors among the arguments, or among their copies."""
        return tensors_of(self._call.arguments, twin)


def storable(t: torch.Tensor) -> Named:
    """As the format has it: complex numbers as pairs, small integers and 8-bit floats widened."""
    if t.is_complex():
        t = torch.view_as_real(t.resolve_conj())
    if t.dtype not in DTYPES or DTYPES[t.dtype] in CODES:
        t = t.to(torch.float32 if t.is_floating_point() else torch.int64)
    return by_dimensions(t)


def tensors_of(arguments: Mapping[str, Any], twin: Twin) -> Tensors:
    """All tensors among the arguments of a call, by dotted name, as `twin` has them."""
    found: Tensors = {}
    for name, value in arguments.items():
        if not isinstance(value, torch.nn.Module):
            found |= dict(_named(name, _twin_of(value, twin)))
    return found


def numbers_of(arguments: Mapping[str, Any], twin: Twin) -> dict[str, Any]:
    """What else can be compared in states and containers, which a call may change, by name."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        if not isinstance(value, (*_PLAIN, torch.nn.Module)):
            found |= dict(_named(name, _twin_of(value, twin), _PLAIN))
    return found


def _twin_of(value: Any, twin: Twin) -> Any:
    """The copy of an argument; of a tuple that the call was not given as such, of its items."""
    try:
        return twin(value)
    except KeyError:
        if isinstance(value, (tuple, list)):
            return [_twin_of(item, twin) for item in value]
        if isinstance(value, dict):
            return {key: _twin_of(item, twin) for key, item in value.items()}
        return value


_TENSORS = (torch.Tensor,)
_PLAIN = (bool, int, float, str)


def _named(name: str, value: Any, wanted: tuple[type, ...] = _TENSORS) -> Iterator[tuple[str, Any]]:
    """The tensors, or whatever is wanted, in a value with dotted names; tensors without elements
    are left out."""
    if isinstance(value, torch.Tensor):
        if wanted is _TENSORS and value.numel():
            yield name, value
    elif isinstance(value, wanted):
        yield name, value
    elif is_cache(value):
        for i, layer in _layers(value.layers):
            yield from _named(f"{name}.{i}", _public(layer), wanted)
        others = {key: item for key, item in _public(value).items() if key != "layers"}
        yield from _named(name, others, wanted)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named(f"{name}.{key}", item, wanted)
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            yield from _named(f"{name}.{i}", item, wanted)
    elif is_state(value):
        yield from _named(name, _public(value), wanted)


def _public(state: Any) -> dict[str, Any]:
    return {name: item for name, item in vars(state).items() if not name.startswith("_")}


def _layers(layers: Any) -> list[tuple[int, Any]]:
    """A cache's layers; of a copy those that were looked at, the others are as they were."""
    if hasattr(layers, "touched"):
        return sorted(layers.touched().items())
    return list(enumerate(layers))


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a result; caches among it are states, not results."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)


def _numbered(result: Any) -> Tensors:
    """By position."""
    found = [t for t in _leaves(result) if t.numel()]
    names = ["out"] if len(found) == 1 else [f"out.{i}" for i in range(len(found))]
    return dict(zip(names, found, strict=True))


def _identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_floating_point() or a.is_complex():
        return bool(((a == b) | ((a != a) & (b != b))).all())
    return torch.equal(a, b)


def _kept(t: torch.Tensor) -> torch.Tensor:
    return t.detach()


def _same(value: Any) -> Any:
    return value


def _cache_layers(module: torch.nn.Module | None) -> set[int]:
    """Which layers of a cache are the module's own, or its children's."""
    found = set() if module is None else {getattr(m, "layer_idx", None) for m in module.modules()}
    return {index for index in found if isinstance(index, int)}


def _layer_of(name: str, arguments: Mapping[str, Any]) -> int | None:
    """Which layer of a cache a tensor is of; None for one of another argument."""
    first, _, rest = name.partition(".")
    index = rest.partition(".")[0]
    is_layer = is_cache(arguments.get(first)) and index.isdigit()
    return int(index) if is_layer else None


def _buffers(module: torch.nn.Module | None) -> Tensors:
    return {} if module is None else {n: t for n, t in parts(module.named_buffers()) if t.numel()}


def _weights(module: torch.nn.Module | None) -> Tensors:
    """Parameters of dtypes that a recording can hold; of quantised modules what files of them hold
    besides, such as scales that are no parameters."""
    if module is None:
        return {}
    named = list(parts(module.named_parameters(remove_duplicate=False)))
    if is_quantised(module):
        known = {name for name, _ in (*named, *parts(module.named_buffers()))}
        stored = module.state_dict(keep_vars=True).items()
        tensors = [(name, t) for name, t in stored if isinstance(t, torch.Tensor)]
        named += [(name, t) for name, t in parts(tensors) if name not in known]
    return {name: t for name, t in named if t.dtype in DTYPES}


def _numbers(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and words among the arguments, as the call had them."""
    return {
        name: value
        for name, value in arguments.items()
        if isinstance(value, (bool, int, float, str)) and len(str(value)) < 1000
    }


Describe = Callable[[Call], Block | None]


def or_any_call(describe: Describe) -> Describe:
    """As `describe` has it; where it does not know the call, as any call."""

    def either(call: Call) -> Block | None:
        return describe(call) or any_call(call)

    return either
