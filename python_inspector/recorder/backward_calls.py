"""The backward of a recorded call: a checkpoint of its own, behind that of the call.

What the call's rerun is made of is differentiated, by the names that the recording has: the code
with its arguments, and the modules whose weights it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..format.axes import Named, by_dimensions
from ..format.recording import TensorRef, backward_kind, call_of
from ..taps.calls import Block
from ..trace.given import Given
from ..trace.replay import Again, Rerun, Runner, run_as_it_is
from ..trace.reruns import Reruns
from .believed import believed, without_unknown
from .central_differences import bad_oracle
from .closed_rows import TURNS, without_open_rows, words_on_closed
from .gradients import Gradients, Names, Place, place_of
from .kernel_gradients import COTANGENT, d_of
from .one_call import Arguments, undisturbed
from .rerunner import Rerunner
from .results import differentiable_by_name

SEED = 0
"""Of the cotangents: a recording states it."""
_CONSTANT = frozenset({"rotary_frequencies", "rotary_table", "causal_mask", "position_ids"})
"""Blocks of which no loss asks the gradient."""
_OF_MATRIX, _OF_TABLE = ("out_channel", "in_channel"), ("vocab", "channel")


@dataclass
class Backward:
    """What becomes a checkpoint, once that of the forward is there."""

    block: Block
    outputs: dict[str, Named]
    reruns: Reruns
    remarks: tuple[str, ...]
    """What else is to be known of the gradients, and of those that are not there."""
    labels: dict[str, tuple[str, ...]]
    """Of the gradients of weights what their axes are called."""
    stored: dict[str, TensorRef] = field(default_factory=dict)
    """Its inputs, once they are in the recording."""


def has_backward(block: Block) -> bool:
    """Whether gradients may be asked of it; of chosen rows alone they would be others."""
    operands = [t for t, _ in block.inputs.values()] + list(block.weights.values())
    is_smooth = any(t.is_floating_point() for t in operands)
    return is_smooth and not block.of_rows and block.kind not in _CONSTANT


def backward_of(block: Block, again: Again, id: str, rerunner: Rerunner, *, bugs: bool) -> Backward:
    """The backward of a call whose inputs are as the call gets them; `id` is the backward's.

    RecordError where there is nothing to differentiate.
    """
    with undisturbed():
        call = _Call(block, again)
        gradients = Gradients(call.like, call.arguments, {}, call.names)
        arguments = gradients.arguments(call.arguments, {}, SEED)
        made = _Made(call, gradients, arguments, id, rerunner)
        for _ in range(TURNS):
            other = without_open_rows(arguments, made.reruns.undecided)
            if other is None:
                break
            arguments = other
            made = _Made(call, gradients, arguments, id, rerunner)
        closed = words_on_closed(arguments)
        outputs, unknown = without_unknown(made.block, made.outputs, made.reruns, gradients.names)
        outputs, doubts = believed(outputs, made.reruns, gradients.names)
        bad, found = bad_oracle(gradients, arguments, made.reruns)
        if bad:
            rerunner.warn(f"{call_of(id)} has no oracle: {bad}")
            made.reruns = Reruns()
        rerunner.judge(made.block, made.again, made.reruns, id, bugs=bugs)
    left_out = (f"not judged: {text}" for text in gradients.left_out)
    table = _OF_TABLE if block.kind == "embedding" else _OF_MATRIX
    weights = {d_of(name): t for name, t in block.weights.items()}
    labels = {n: table if t.ndim == 2 else ("",) * t.ndim for n, t in weights.items()}
    own = {name: it for name, it in outputs.items() if name in gradients.names}
    return Backward(
        made.block, own, made.reruns, (*closed, *unknown, *doubts, *found, *left_out), labels
    )


class _Call:
    """A recorded call as code to differentiate."""

    def __init__(self, block: Block, again: Again) -> None:
        self.block = block
        function, arguments, modules, named, result = _pieces(block, again)
        given = {place_of(t) for t, _ in block.inputs.values()}
        turned = [_is_turned(t, given) for t in arguments[0]]
        if any(turned):
            self.like = _Holding(_turning(function, turned), modules)
            self.arguments = _turned(arguments[0], turned), arguments[1]
        else:
            self.like = _Holding(function, modules)
            self.arguments = arguments
        self.axes = {name: axes for name, (_, axes) in named.items()}
        of = {name: t for name, (t, _) in block.inputs.items()} | block.weights
        places = {place_of(t): name for name, t in reversed(of.items())}
        made = {place_of(t): name for name, (t, _) in reversed(named.items())}
        paths = {path: made.get(place_of(t)) for path, t in differentiable_by_name(result).items()}
        self.names = Names(block.kind, places, {path: name for path, name in paths.items() if name})


class _Made:
    """What a backward gave under some cotangents, and what its reruns show."""

    def __init__(
        self, call: _Call, gradients: Gradients, arguments: Arguments, id: str, rerunner: Rerunner
    ) -> None:
        args, kwargs = arguments

        def again(run: Runner) -> Rerun:
            return run(gradients.function, args, kwargs, [gradients.module])

        axes = {d_of(name): axes for name, (_, axes) in call.block.inputs.items()}

        def outputs(result: Mapping[str, torch.Tensor], twin: Any) -> dict[str, Named]:
            known = axes | call.axes
            return {n: (t, known[n]) if n in known else by_dimensions(t) for n, t in result.items()}

        cotangents = kwargs[COTANGENT].items()
        inputs = {f"{COTANGENT}.{name}": (t, call.axes[name]) for name, t in cotangents}
        block = call.block
        self.again = again
        self.block = Block(
            backward_kind(block.kind),
            block.inputs | inputs,
            outputs,
            block.params,
            block.weights,
            settle=_uses_all,
        )
        real = again(run_as_it_is)
        self.outputs = outputs(real.result, real.twin)
        self.reruns = rerunner.rerun(self.block, again, id, repeat=True)


def _uses_all(block: Block, rerun: Rerun, given: Given) -> None:
    """The operands are those of the forward."""


class _Holding(torch.nn.Module):
    """A function as a module that has the weights which it uses."""

    def __init__(self, function: Callable[..., Any], modules: Iterable[torch.nn.Module]) -> None:
        super().__init__()
        for i, module in enumerate(modules):
            self.add_module(str(i), module)
        self.forward = function


def _is_turned(t: Any, given: Container[Place]) -> bool:
    """Whether the recording has it the other way round, as keys of a product are."""
    if not isinstance(t, torch.Tensor) or t.ndim < 2:
        return False
    return place_of(t) not in given and place_of(t.mT) in given


def _turned(args: Sequence[Any], turned: Sequence[bool]) -> tuple[Any, ...]:
    return tuple(t.mT if turn else t for t, turn in zip(args, turned, strict=True))


def _turning(function: Callable[..., Any], turned: Sequence[bool]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*_turned(args, turned), **kwargs)

    return call


def _pieces(block: Block, again: Again) -> tuple[Any, Arguments, list[torch.nn.Module], Any, Any]:
    """What a rerun calls with what, its outputs by name, and all that it returns."""
    seen: list[Any] = []

    def run(function: Any, args: Any, kwargs: Any, modules: Any = ()) -> Rerun:
        made = run_as_it_is(function, args, kwargs, list(modules))
        seen.append((function, (tuple(args), dict(kwargs)), list(modules), made.result))
        return made

    made = again(run)
    function, arguments, modules, result = seen[-1]
    return function, arguments, modules, block.outputs(made.result, made.twin), result
