"""Calls of a torch module or function recorded one by one, without a model around them."""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from python_inspector.errors import RecordError
from python_inspector.format.axes import Named, by_dimensions
from python_inspector.format.recording import (
    DTYPES,
    Checkpoint,
    Contract,
    TensorRef,
    checkpoint_id,
    dtype_name,
    plain,
)
from python_inspector.format.writer import RecordingWriter
from python_inspector.oracle.replay import Again, Runner, Twin, aside, parameter_names
from python_inspector.oracle.reruns import rerun
from python_inspector.oracle.spread import DEFAULT_RUNS
from python_inspector.recorder.outputs import OutputStore
from python_inspector.recorder.provenance import producer
from python_inspector.taps.calls import Block
from python_inspector.taps.options import Options

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Torch = torch.nn.Module | Callable[..., Any]


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
        self._weights = dict(weights)
        self._like = like
        self._call, self._modules = _callable(like, self._weights)
        self._writer = RecordingWriter(out)
        self._options = Options(spread=spread)
        self._store = OutputStore(self._writer, self._options, self._writer.tensor, self._warn)
        self._calls: Counter[str | None] = Counter()
        self._storage = "f32"
        self._command = f"check(like={self.name})"

    def __enter__(self) -> OneCallRecording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._writer.abort()

    def add(self, arguments: Arguments, case: str | None = None) -> Checkpoint:
        """Makes and records one call; `case` says what is special about its operands.

        Raises RecordError where nothing comes back that can be judged.
        """
        args, kwargs = arguments
        if not isinstance(self._like, torch.nn.Module):
            kwargs = {**kwargs, **self._weights}
        again = functools.partial(_again, self._call, args, kwargs, self._modules)
        with aside(), torch.no_grad(), _evaluated(self._modules):
            # The inputs before they may be written to, and the result before anything else is run.
            inputs, params = self._operands(args, kwargs)
            result = self._call(*copied(args), **copied(kwargs))
            outputs = outputs_of(result)
            self._storage = _storage_of([t for t, _ in outputs.values()], self._storage)
            return self._record(case, inputs, params, outputs, again)

    def commit(self) -> None:
        provenance = {
            "created": "2000-01-01T00:00:00Z",
            "command": self._command,
            "producer": producer(),
            "architecture": self.name,
            "model_type": self.name,
            "dtype": self._storage,
            "attention": None,
            "model": {"source": self.name, "seed": None, "revision": None, "weights_sha256": None},
            "run": {
                "mode": "whole", "batch": 1, "tokens": 1, "steps": 0, "chunks": None,
                "left_pad": None, "cache": None, "spread": self._options.spread,
            },
        }  # fmt: skip
        header = {"name": f"check/{self.name}", "config": {}, "network": []}
        self._writer.commit(header | {"provenance": provenance})

    def _record(
        self,
        case: str | None,
        inputs: dict[str, TensorRef],
        params: dict[str, Any],
        outputs: dict[str, Named],
        again: Again,
    ) -> Checkpoint:
        call = self._calls[case]
        self._calls[case] += 1
        id = checkpoint_id(self.name, case, call)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of the dtypes that reruns have
            reruns, texts = rerun(
                _named_outputs, again, id, runs=self._options.spread, repeat=True, liftable=False
            )
        for text in texts:
            self._warn(text)
        block = Block("module", {}, _named_outputs)
        contract = self._declare()
        checkpoint = Checkpoint(
            id=id,
            block="module",
            path=self.name,
            function=case,
            call=call,
            step=0,
            contract=contract,
            params=params,
            inputs=inputs,
            weights={
                name: self._writer.weight(name, tensor) for name, tensor in self._stored_weights()
            },
            outputs={
                name: self._store.store(id, name, block, named, reruns)
                for name, named in outputs.items()
            },
            trace=None
            if reruns.simulated is None
            else self._writer.trace(reruns.simulated.operations),
        )
        self._writer.checkpoint(checkpoint)
        return checkpoint

    def _declare(self) -> str:
        name = f"eager-{self._storage}"
        bits = 53 if self._storage == "f64" else 24
        accumulator = {"bits": bits, "rounding": "nearest"}
        self._writer.contract(name, Contract(self._storage, self._storage, accumulator, "eager"))
        return name

    def _stored_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        whole = isinstance(self._like, torch.nn.Module)
        for i, module in enumerate(self._modules):
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                if tensor.dtype in DTYPES:
                    yield (name if whole else f"captured.{i}.{name}"), tensor.detach()
        for name, value in self._weights.items():
            if isinstance(value, torch.Tensor) and not whole:
                yield name, value.detach()

    def _operands(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, TensorRef], dict[str, Any]]:
        inputs: dict[str, TensorRef] = {}
        params: dict[str, Any] = {}
        names = [*parameter_names(self._call), *(str(i) for i in range(len(args)))]
        given = dict(zip(names, args, strict=False)) | dict(kwargs)
        for name, value in given.items():
            if name in self._weights:
                continue
            for path, leaf in leaves(value, name):
                if isinstance(leaf, torch.Tensor):
                    tensor, axes = by_dimensions(leaf.detach())
                    inputs[path] = TensorRef(self._writer.tensor(tensor), axes)
                elif leaf is None or isinstance(leaf, (bool, int, float, str)):
                    params[path] = plain(leaf, path)
        return inputs, params

    def _warn(self, text: str) -> None:
        self._writer.warn(text)


def name_of(like: Torch) -> str:
    """Of a module its class, of a function its name: the path in ids."""
    while isinstance(like, functools.partial):
        like = like.func
    name = type(like).__name__ if isinstance(like, torch.nn.Module) else ""
    name = name or getattr(like, "__name__", "") or type(like).__name__
    return name.strip("<>") or "function"


def outputs_of(result: Any) -> dict[str, Named]:
    """`out` of a single tensor; `out.0`, `out.1`, ... or `out.key` of several."""
    named = {
        path: by_dimensions(leaf.detach())
        for path, leaf in leaves(result, "out")
        if isinstance(leaf, torch.Tensor) and leaf.dtype in DTYPES
    }
    if not named:
        raise RecordError(
            f"[check] `like` returned {type(result).__name__} without a tensor that can be "
            f"recorded; known dtypes are {', '.join(sorted(DTYPES.values()))}"
        )
    return named


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


def _named_outputs(result: Any, twin: Twin) -> dict[str, Named]:
    return outputs_of(result)


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
) -> tuple[Callable[..., Any], list[torch.nn.Module]]:
    """What is called with the inputs, and the modules whose tensors it may use."""
    if not isinstance(like, torch.nn.Module):
        return like, captured(like)
    if not weights:
        return like.forward, [like]
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
    return module.forward, [module]


def captured(function: Callable[..., Any]) -> list[torch.nn.Module]:
    """Modules and tensors that a function uses without being given them: of its closure, its
    globals, its defaults, and what it is bound to."""
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
    modules = [value for value in found if isinstance(value, torch.nn.Module)]
    tensors = [leaf for value in found for _, leaf in leaves(value, "")]
    holder = torch.nn.Module()
    for i, tensor in enumerate(t for t in tensors if isinstance(t, torch.Tensor)):
        holder.register_buffer(f"captured_{i}", tensor.detach())
    return [*modules, holder] if next(holder.buffers(), None) is not None else modules


@contextmanager
def _evaluated(modules: list[torch.nn.Module]) -> Iterator[None]:
    """In eval mode: a fresh module is in train mode, where dropout draws."""
    training = [m for root in modules for m in root.modules() if m.training]
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
