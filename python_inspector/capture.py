"""What the taps say about a call, and what is kept of it until it becomes a checkpoint."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from python_inspector.dispatch import Loaded
from python_inspector.format import TensorRef

if TYPE_CHECKING:
    from python_inspector.recorder import Recorder
    from python_inspector.reruns import Reruns
    from python_inspector.sampled import Sampling

Named = tuple[torch.Tensor, tuple[str, ...]]
"""A tensor and one axis name per dimension."""

Twin = Callable[[Any], Any]
"""From an input object to the one that the run at hand used: itself, or its float64 copy."""

HIDDEN = ("batch", "token", "channel")
QUERY = ("batch", "head", "token", "head_dim")
KEY = ("batch", "kv_head", "token", "head_dim")
CACHED = ("batch", "kv_head", "kv_token", "head_dim")
REPEATED = ("batch", "head", "kv_token", "head_dim")
SCORES = ("batch", "head", "token", "kv_token")
TABLE = ("batch", "token", "head_dim")

_BY_DIMENSIONS = {0: (), 1: ("channel",), 2: ("token", "channel"), 3: HIDDEN, 4: QUERY}


class RecordError(RuntimeError):
    """A run that cannot be recorded as it is; the text says why and what to do."""


def by_dimensions(tensor: torch.Tensor) -> Named:
    """Axis names from the number of dimensions, where nothing better is known."""
    if tensor.ndim > 6:
        raise RecordError(f"[record] a tensor of {tensor.ndim} dimensions has no axis names")
    spare = ("batch", "group", "state", "token", "head", "channel")
    return tensor, _BY_DIMENSIONS.get(tensor.ndim, spare[: tensor.ndim])


COMPOSITES = {
    "attention", "glu_mlp", "decoder_layer", "lm_head", "low_rank_adapter",
    "mamba2_mixer", "shared_transformer", "mamba_layer", "hybrid_layer",
}  # fmt: skip
"""Blocks made of blocks: their oracle repeats what their parts' oracles did."""

COMPONENTS = {
    "concat", "slice", "permute", "cast", "mul", "div", "add_scalar", "mask_fill", "position_ids",
    "conv1d", "conv_cache", "ssm_cache",
}  # fmt: skip
"""Kinds that a recording holds only where they are asked for by name: they are many and small."""


@dataclass(frozen=True)
class Options:
    """What record() was asked for; its text explains them."""

    blocks: Collection[str] | None = None
    layers: Collection[int] | None = None
    oracle: bool | Literal["leaves"] = True
    internals: bool = True
    force: bool = False
    masked_rows: Literal["excluded", "judged"] = "excluded"
    sampling: Sampling | None = None
    direct: bool = False
    chained: bool = False
    spread: int = 0

    @property
    def operations(self) -> bool:
        """Whether single torch operations are recorded."""
        return self.internals and self.oracle != "leaves"

    @property
    def components(self) -> bool:
        """Whether any kind of COMPONENTS was asked for."""
        return self.blocks is not None and not COMPONENTS.isdisjoint(self.blocks)

    def wants(self, kind: str, path: str) -> bool:
        """Whether a block of this kind, called at this module path, is to be recorded."""
        if kind in COMPONENTS and self.blocks is None:
            return False
        if self.blocks is not None and kind not in self.blocks:
            return False
        if self.oracle == "leaves" and kind in COMPOSITES:
            return False
        if self.layers is None:
            return True
        index = re.search(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)(?:\.|$)", path)
        return index is None or int(index[1]) in self.layers


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
    """Reads the outputs that lie in a cache from one, here from that of the chained oracle."""


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
    `child` is the child under whose path they stand; `masks` says that an add adds a mask;
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
    internals: Internals | None = None
    keep: tuple[str, ...] = ()
    seen: Counter[str] = field(default_factory=Counter)
    trail: list[Any] = field(default_factory=list)
    children: dict[str, tuple[Call, Any]] = field(default_factory=dict)
    attention: AttentionFacts | None = None
    loaded: Loaded = field(default_factory=list)
    """Offloaded weights that are there as long as the call runs."""


@dataclass
class Difference:
    """delta = o - r as f32 (None: exactly zero) and error = sqrt(sum delta^2 / sum o^2)."""

    delta: torch.Tensor | None
    error: float


def difference(
    r: torch.Tensor, o: torch.Tensor, valid: torch.Tensor | None, where: str
) -> Difference:
    """How far the reference is from the oracle; `valid` broadcasts against both.

    Equal infinities and equal NaNs differ by zero.
    """
    if r.shape != o.shape:
        raise RecordError(f"[{where}] output is {tuple(r.shape)}, its oracle {tuple(o.shape)}")
    if not r.is_floating_point():
        return Difference(None, 0.0)
    delta = (o - r).float()
    spread = _norm(delta)
    if not math.isfinite(spread):
        same = (r == o) | (r.isnan() & o.isnan())
        delta = torch.where(same, 0.0, delta)
        spread = _norm(delta)
    if spread == 0.0:
        return Difference(None, 0.0)
    if valid is not None:
        spread, o = _norm(torch.where(valid, delta, 0.0)), torch.where(valid, o, 0.0)
    size = _norm(o)
    error = spread / size if size else math.inf
    return Difference(delta, error if spread else 0.0)


def _norm(tensor: torch.Tensor) -> float:
    """sqrt of the sum of squares, in float64."""
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
