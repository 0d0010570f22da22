"""Calls of a torch module or function recorded one by one, without a model around them."""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import torch

from ..errors import RecordError
from ..format.recording import (
    Checkpoint,
    Contract,
    TensorRef,
    checkpoint_id,
    dtype_name,
    plain,
)
from ..format.writer import RecordingWriter
from ..oracle.replay import Again, Runner, aside, run_as_it_is
from ..oracle.reruns import Reruns, rerun_anything
from ..oracle.spread import DEFAULT_RUNS
from ..taps.calls import Block, Call, Recorder, bound_arguments
from ..taps.generic import GenericCall
from ..taps.options import Options
from .alternatives import bug_refs, member_refs
from .outputs import OutputStore
from .provenance import producer

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
RANDOM = 0.03
"""Relative difference of two runs that no order of sums explains."""

Torch = torch.nn.Module | Callable[..., Any]


@dataclass
class Kept:
    """What is left in memory of a call that was recorded: enough to say more of it."""

    checkpoint: Checkpoint
    block: Block
    again: Again
    reruns: Reruns
    module: torch.nn.Module

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        block: Block,
        again: Again,
        reruns: Reruns,
        module: torch.nn.Module,
    ) -> Kept:
        """Without the samples of simulated kernels, once the checkpoint is complete."""
        entries = {
            name: [dict(it) for it in (ref.simulated.spread, ref.simulated.truncated) if it]
            for name, ref in checkpoint.outputs.items()
            if ref.simulated is not None
        }
        if reruns.simulated is not None:
            reruns = replace(reruns, simulated=reruns.simulated.models(entries))
        return cls(checkpoint, block, again, reruns, module)


class OneCallRecording:
    """A recording of calls of one module or function; `commit` puts it at `out`.

    Each becomes a checkpoint of kind `module` with its oracle, rounded model and simulated kernels.
    `weights` take the place of a module's parameters of those names, and are keyword arguments of a
    function. A module is called in eval mode. As a context manager it aborts unless commit was
    called.
    """

    def __init__(
        self, like: Torch, out: Path, *, weights: Mapping[str, Any], spread: int = DEFAULT_RUNS
    ) -> None:
        self.name = name_of(like)
        self._of = (like, weights)
        whole = isinstance(like, torch.nn.Module)
        self._keywords = {} if whole else dict(weights)
        self._call, self._module = _callable(like, weights)
        self._writer = RecordingWriter(out)
        self._spread = spread
        options = Options(spread=spread)
        writer = self._writer
        self._store = OutputStore(writer, options, lambda _, t: writer.tensor(t), writer.warn)
        self._calls: Counter[str | None] = Counter()
        self._storage = "f32"

    def __enter__(self) -> OneCallRecording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._writer.abort()

    def add(self, arguments: Arguments, case: str | None = None) -> Kept:
        """Makes and records one call; `case` says what is special about its operands.

        Raises RecordError where nothing goes in or comes back that can be judged.
        """
        args, kwargs = arguments[0], {**arguments[1], **self._keywords}
        again = functools.partial(_again, self._call, args, kwargs, [self._module])
        bound = bound_arguments(self._call, args, kwargs)
        call = self._calls[case]
        self._calls[case] += 1
        id = checkpoint_id(self.name, case, call)
        with undisturbed(self._module):
            unasked = cast(Recorder, self)  # such a call asks nothing of a recorder
            block = GenericCall(Call(self.name, self._module, bound, unasked), self._module).block()
            if block is None:
                raise RecordError(f"[check] {self.name} is given no tensor with elements")
            reruns = self._rerun(block, again, id)
            checkpoint = self._checkpoint(id, case, call, block, again, reruns)
        self._writer.checkpoint(checkpoint)
        self._store.spreads.settle()
        return Kept.of(checkpoint, block, again, reruns, self._module)

    def another(self, out: Path) -> OneCallRecording:
        """One of calls of the same function."""
        like, weights = self._of
        return OneCallRecording(like, out, weights=weights, spread=self._spread)

    def add_again(self, kept: Kept) -> None:
        """Records a call that another recording has, from what is known of it, with its `bugs` and
        members."""
        of = kept.checkpoint
        with undisturbed(self._module):
            checkpoint = self._checkpoint(
                of.id, of.function, of.call, kept.block, kept.again, kept.reruns
            )
        self._writer.checkpoint(checkpoint)

    def commit(self) -> None:
        provenance = {
            "created": "2000-01-01T00:00:00Z",
            "command": f"check(like={self.name})",
            "producer": producer(),
            "architecture": self.name,
            "model_type": self.name,
            "dtype": self._storage,
            "attention": None,
            "model": {"source": self.name, "seed": None, "revision": None, "weights_sha256": None},
            "run": {
                "mode": "whole", "batch": 1, "tokens": 1, "steps": 0, "chunks": None,
                "left_pad": None, "cache": None, "spread": self._spread,
            },
        }  # fmt: skip
        header = {"name": f"check/{self.name}", "config": {}, "network": []}
        self._writer.commit(header | {"provenance": provenance})

    def _rerun(self, block: Block, again: Again, id: str) -> Reruns:
        assert block.settle is not None
        settle = functools.partial(block.settle, block)
        reruns, texts = rerun_anything(
            block.outputs, again, id, settle, runs=self._spread, repeat=True
        )
        for text in texts:
            self._writer.warn(text)
        for name, mask in reruns.undecided.items():
            oracle = (reruns.oracle or {})[name]
            if oracle[0].is_floating_point():
                block.valid[name] = (~mask, oracle[1])
        return reruns

    def _checkpoint(
        self, id: str, case: str | None, call: int, block: Block, again: Again, reruns: Reruns
    ) -> Checkpoint:
        real = again(run_as_it_is)
        outputs = block.outputs(real.result, real.twin)
        if not outputs:
            raise RecordError(
                f"[check] {self.name} returned {type(real.result).__name__} without a tensor"
            )
        self._storage = _storage_of([t for t, _ in outputs.values()], self._storage)
        stored = {}
        for name, named in outputs.items():
            stored[name] = self._store.store(id, name, block, named, reruns)
            stored[name].members = member_refs(self._writer, reruns, name)
            if (stored[name].unstable or 0) > RANDOM:
                raise RecordError(
                    f"[check] two runs of {self.name} differ by {stored[name].unstable:.1e} in "
                    f"{name}: it draws random numbers, and nothing can be held to that"
                )
        return Checkpoint(
            id=id,
            block="module",
            path=self.name,
            function=case,
            call=call,
            step=0,
            contract=self._declare(),
            params=plain(block.params, "params"),
            inputs={n: TensorRef(self._writer.tensor(t), a) for n, (t, a) in block.inputs.items()},
            weights={n: self._writer.weight(n, t) for n, t in block.weights.items()},
            outputs=stored,
            trace=None
            if reruns.simulated is None
            else self._writer.trace(reruns.simulated.operations),
            bugs=bug_refs(self._writer, reruns),
        )

    def _declare(self) -> str:
        name = f"eager-{self._storage}"
        bits = 53 if self._storage == "f64" else 24
        accumulator = {"bits": bits, "rounding": "nearest"}
        self._writer.contract(name, Contract(self._storage, self._storage, accumulator, "eager"))
        return name


def name_of(like: Torch) -> str:
    """Of a module its class, of a function its name: the path in ids."""
    while isinstance(like, functools.partial):
        like = like.func
    name = type(like).__name__ if isinstance(like, torch.nn.Module) else ""
    name = name or getattr(like, "__name__", "") or type(like).__name__
    return name.strip("<>") or "function"


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What a nested value holds, by dotted path."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}.{index}")
    else:
        yield path, value


def _again(
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    modules: list[torch.nn.Module],
    run: Runner,
) -> Any:
    return run(call, args, kwargs, modules)


def copied(value: Any) -> Any:
    """Operands that a call may write to: tensors without their history, everything else as it is
    copied by Python."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(copied(item) for item in value)
    return copy.deepcopy(value)


def _callable(
    like: Torch, weights: Mapping[str, Any]
) -> tuple[Callable[..., Any], torch.nn.Module]:
    """What is called with the inputs, and the module whose tensors it may use."""
    if not isinstance(like, torch.nn.Module):
        return like, captured(like)
    if not weights:
        return like.forward, like
    module = copy.deepcopy(like)
    for name, tensor in weights.items():
        path, _, attribute = name.rpartition(".")
        try:
            old = getattr(module.get_submodule(path), attribute)
        except AttributeError:
            names = ", ".join(sorted(dict(module.named_parameters()))) or "none"
            raise RecordError(
                f"[check] weights has {name!r}, which {type(like).__name__} lacks; it has {names}"
            ) from None
        if old.shape != tensor.shape:
            raise RecordError(
                f"[check] weights: {name} is {tuple(tensor.shape)}, {type(like).__name__} has "
                f"{tuple(old.shape)}"
            )
        parameter = torch.nn.Parameter(tensor.detach(), requires_grad=False)
        module.get_submodule(path)._parameters[attribute] = parameter
    return module.forward, module


def captured(function: Callable[..., Any]) -> torch.nn.Module:
    """A module of what a function uses without being given it: modules and tensors of its closure,
    its globals, its defaults, and what it is bound to."""
    found: list[Any] = []
    while isinstance(function, functools.partial):
        found += [*function.args, *function.keywords.values()]
        function = function.func
    found.append(getattr(function, "__self__", None))
    bare = inspect.unwrap(getattr(function, "__func__", function))
    if inspect.isfunction(bare):
        variables = inspect.getclosurevars(bare)
        found += [*variables.nonlocals.values(), *variables.globals.values()]
        found += [*(bare.__defaults__ or ()), *(bare.__kwdefaults__ or {}).values()]
    holder = torch.nn.Module()
    for i, (_, leaf) in enumerate(leaf for value in found for leaf in leaves(value, "")):
        if isinstance(leaf, torch.nn.Module):
            holder.add_module(f"captured_{i}", leaf)
        elif isinstance(leaf, torch.nn.Parameter):
            holder.register_parameter(f"captured_{i}", leaf)
        elif isinstance(leaf, torch.Tensor):
            holder.register_buffer(f"captured_{i}", leaf.detach())
    return holder


@contextmanager
def undisturbed(module: torch.nn.Module) -> Iterator[None]:
    """Calls inside are no part of a run that is recorded."""
    with aside(), torch.no_grad(), _evaluated(module), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of the dtypes that reruns have
        yield


@contextmanager
def _evaluated(module: torch.nn.Module) -> Iterator[None]:
    """In eval mode: a fresh module is in train mode, where dropout draws."""
    training = [m for m in module.modules() if m.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def _storage_of(outputs: list[torch.Tensor], before: str) -> str:
    """The dtype that a recording is of: that of its floats."""
    floats = [t.dtype for t in outputs if t.is_floating_point()]
    return dtype_name(floats[0]) if floats else before
