"""What the taps say about a call, and what is kept of it until it becomes a checkpoint."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ..foreign import cache_in
from ..format.axes import Named, by_dimensions
from ..format.recording import TensorRef
from ..models.dispatch import Loaded
from ..trace.given import Given
from ..trace.replay import Again, Rerun, Twin
from ..trace.reruns import Reruns
from .masks import Visibility
from .options import Options


class Recorder(Protocol):
    """What a tap may ask of the recorder that a call belongs to."""

    options: Options
    stack: list[Frame]
    """The calls that are running, the innermost last."""
    masks: list[Visibility]
    """Masks that transformers made in this step."""
    frequencies: dict[str, torch.Tensor]
    """inv_freq as last recorded, by the path of the rotary embedding."""

    def warn(self, text: str) -> None:
        """A warning that the recording keeps."""

    def with_quantised(self, block: Block, module: torch.nn.Module) -> Block | None:
        """The block of a module, whose layers may have quantised weights; None where it cannot."""

    def record(
        self, path: str, function: str | None, block: Block, result: Any, again: Again | None
    ) -> None:
        """A block whose call is over; `again` runs it again (None: the result is exact)."""


def bound_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by name, those of **kwargs among them; defaults are left out.

    Positions are the names where the function has no signature, or the call does not fit it.
    """
    bare = getattr(function, "__func__", function)
    try:
        signature = _signature(bare, inspect.ismethod(function))
        bound = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return {str(i): value for i, value in enumerate(args)} | dict(kwargs)
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            bound |= bound.pop(parameter.name, {})
    return bound


@functools.lru_cache(maxsize=512)
def _signature(function: Callable[..., Any], bound: bool) -> inspect.Signature:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    return signature.replace(parameters=parameters[1:]) if bound else signature


@dataclass
class Call:
    """One call of a module or function before it runs, its arguments by name."""

    path: str
    module: torch.nn.Module | None
    arguments: Mapping[str, Any]
    recorder: Recorder
    before: dict[str, Any] = field(default_factory=dict)
    """Copies of state that the call changes, for blocks that are recorded while it runs."""

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str) -> Any:
        """The argument, or None where it was not given."""
        return self.arguments.get(name)

    @property
    def cache(self) -> Any:
        """The cache that was given, or None."""
        return cache_in(self.arguments)


@dataclass
class AttentionFacts:
    """What an attention function found out, for itself and for the blocks around it."""

    params: dict[str, Any]
    inputs: dict[str, Named]
    valid: torch.Tensor | None
    """Bool [batch or 1, token]: query rows with an allowed key; None if all have one."""
    contract: str


@dataclass
class Block:
    """A call as a block: everything of a checkpoint except ids and numbers about the outputs.

    `outputs` reads them from a result, the real one or the float64 one; `uses_attention` says where
    the facts of the attention function inside belong: in params (""), in params[name], or nowhere.
    """

    kind: str
    inputs: dict[str, Named]
    outputs: Callable[[Any, Twin], dict[str, Named]]
    params: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    contract: str = "eager"
    uses_attention: str | None = None
    valid: dict[str, Named] = field(default_factory=dict)
    state: Callable[[Any], dict[str, Named]] | None = None
    """Reads the outputs that are in a cache from one, here from that of the chained oracle."""
    settle: Callable[[Block, Rerun, Given], None] | None = None
    """Of a call of kind `module`: gets what a run on copies used and changed, before the
    block's inputs are stored."""
    of_rows: bool = False
    """Holds some tokens of the call alone: nothing of it is sampled again."""
    states: dict[str, tuple[int, str]] | None = None
    """Of such a call, the outputs that are states: the id of the argument and the name in it."""


def only_out(axes: tuple[str, ...] | None = None) -> Callable[[Any, Twin], dict[str, Named]]:
    """`outputs` of a block that returns one tensor (or a tuple that begins with it)."""

    def outputs(result: Any, twin: Twin) -> dict[str, Named]:
        out = result[0] if isinstance(result, tuple) else result
        return {"out": by_dimensions(out) if axes is None else (out, axes)}

    return outputs


@dataclass(frozen=True)
class Internals:
    """Names for the torch operations that run directly in a call, by kind, in order of appearance.

    `names` maps matmul, add, multiply, divide, tanh and softmax to function names; an operation
    beyond the last name gets the last name again. `axes` are those of elementwise operations;
    `child` is the child under whose path they are recorded; `masks` says that an add adds a mask;
    `softcap` names the composite of divide, tanh and multiply.
    """

    names: Mapping[str, tuple[str, ...]]
    axes: tuple[str, ...] | None = None
    child: str | None = None
    masks: bool = False
    softcap: str | None = None


@dataclass
class Frame:
    """A call that is running: the recorder keeps a stack of them."""

    path: str
    module: torch.nn.Module | None
    call: Call
    block: Block | None = None
    stored: dict[str, TensorRef] = field(default_factory=dict)
    reruns: Reruns | None = None
    backward: Any = None
    """Of the call, what becomes a checkpoint behind its own."""
    internals: Internals | None = None
    keep: tuple[str, ...] = ()
    seen: Counter[str] = field(default_factory=Counter)
    trail: list[Any] = field(default_factory=list)
    children: dict[str, tuple[Call, Any]] = field(default_factory=dict)
    attention: AttentionFacts | None = None
    settled: set[tuple[int, str]] = field(default_factory=set)
    """States that the calls inside of it have as outputs."""
    loaded: Loaded = field(default_factory=list)
    """Offloaded weights that are there as long as the call runs."""
