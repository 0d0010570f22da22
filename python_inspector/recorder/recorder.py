"""record(): hooks on a model that turn every block of its runs into checkpoints."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from python_inspector.errors import RecordWarning
from python_inspector.format.axes import Named, by_dimensions
from python_inspector.format.recording import (
    ChainedRef,
    Checkpoint,
    Contract,
    TensorRef,
    checkpoint_id,
)
from python_inspector.format.writer import RecordingWriter, Summary
from python_inspector.models import dispatch
from python_inspector.models.parameters import Parameters
from python_inspector.oracle.lift import LiftError
from python_inspector.oracle.replay import Again, aside, is_aside
from python_inspector.oracle.reruns import Reruns, rerun, rerun_anything
from python_inspector.recorder import provenance
from python_inspector.recorder.alternatives import bug_refs, judgement_of, member_refs
from python_inspector.recorder.chain import Chain
from python_inspector.recorder.difference import difference
from python_inspector.recorder.outputs import OutputStore
from python_inspector.recorder.rows import of_rows
from python_inspector.taps import Taps
from python_inspector.taps.calls import Block, Call, Frame, bound_arguments
from python_inspector.taps.common import FunctionTap, ModuleTap
from python_inspector.taps.masks import Visibility
from python_inspector.taps.options import Options, layer_of


class Recorder:
    """One recording while it runs: the stack of calls, the counters and the writer."""

    def __init__(
        self, model: torch.nn.Module, writer: RecordingWriter, taps: Taps, options: Options
    ) -> None:
        self.model = model
        self.writer = writer
        self.taps = taps
        self.options = options
        self.stack: list[Frame] = []
        self.masks: list[Visibility] = []
        """Masks that transformers made in this step."""
        self.frequencies: dict[str, torch.Tensor] = {}
        """inv_freq as last recorded, by the path of the rotary embedding."""
        self.runs: list[dict[str, Any]] = []
        """What is known of each forward call of the model."""
        self.summary: Summary | None = None
        self.on_judgement: Callable[[str, Block, Again, Reruns], None] | None = None
        """Told of every call without a native block, by its id; plants its own bugs."""
        self._chain = Chain(model, taps.base_path) if options.chained else None
        self._calls: Counter[str] = Counter()
        self._thread = threading.get_ident()
        self._keys = WeakIdKeyDictionary()
        self._storage = provenance.model_dtype(model)
        self._parameters = Parameters(model)
        self._outputs = OutputStore(writer, options, self.key, self.warn)

    # What taps and patches use.

    def passive(self) -> bool:
        """Whether what happens now is no part of the run: an oracle, the recorder's own arithmetic,
        or another thread."""
        return is_aside() or threading.get_ident() != self._thread

    def warn(self, text: str) -> None:
        """A warning that the recording keeps."""
        self.writer.warn(text)
        warnings.warn(text, RecordWarning, stacklevel=3)

    def record(
        self,
        path: str,
        function: str | None,
        block: Block,
        result: Any,
        again: Again | None,
    ) -> None:
        """A block whose call is over; `again` runs it again (None: the result is exact)."""
        if not self._wanted(block.kind, path):
            return
        with aside(), torch.no_grad():
            taken = self._taken(path, block, again)
            if taken is None:
                return
            block, again = taken
            reruns = Reruns() if again is None else self._rerun(path, function, block, again)
            stored = self._store(block.inputs)
            self._emit(path, function, block, stored, block.outputs(result, _same), reruns)

    def call_function(
        self, tap: FunctionTap, original: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Runs a tapped function inside a frame of the module that calls it."""
        if self.passive() or not self.stack:
            return original(*args, **kwargs)
        above = self.stack[-1]
        call = Call(above.path, above.module, bound_arguments(original, args, kwargs), self)
        frame = Frame(above.path, above.module, call, internals=tap.internals)
        pure = original
        if not tap.decorated:
            pure = inspect.unwrap(original)  # torch code beneath hub kernels' and other patches
        modules = _modules(args)
        if tap.oracle is not None:
            pure = tap.oracle(call, pure)
            modules = [above.module] if above.module is not None else []
        with aside(), torch.no_grad():
            self._open(frame, tap.name, tap.describe, lambda run: run(pure, args, kwargs, modules))
        self.stack.append(frame)
        try:
            result = original(*args, **kwargs)
        finally:
            self.stack.pop()
        if frame.block is not None:
            function = tap.name
            if tap.sequence:
                function = tap.sequence[min(above.seen[tap.name], len(tap.sequence) - 1)]
                above.seen[tap.name] += 1
            with aside(), torch.no_grad():
                self._close(frame, function, result)
        return result

    def save(self, name: str, tensor: torch.Tensor, axes: tuple[str, ...] | None) -> None:
        """A tensor of somebody's own, as a checkpoint of kind `module` without an oracle."""
        if self.passive():
            return
        path = self.stack[-1].path if self.stack else ""
        named: Named = by_dimensions(tensor) if axes is None else (tensor, axes)
        block = Block("module", {}, lambda result, twin: {"out": named})
        with aside(), torch.no_grad():
            self._emit(path, name, block, {}, {"out": named}, Reruns())

    # Hooks.

    def before(self, path: str, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """A module is called: a frame for it, and its block if it is one."""
        call = Call(path, module, bound_arguments(module.forward, args, kwargs), self)
        if not self.stack and (module is self.model or path == self.taps.base_path):
            self.masks.clear()
            self.runs.append(provenance.describe_run(call.arguments))
            if self._chain is not None:
                self._chain.run(path, module, args, kwargs)
        tap = self.taps.module(module) or ModuleTap()
        frame = Frame(path, module, call, internals=tap.internals, keep=tap.keep)
        if tap.describe is not None:
            frame.loaded = dispatch.load(module)
            self._open(
                frame,
                _function_of(path),
                tap.describe,
                lambda run: run(module.forward, args, kwargs, [module]),
            )
        self.stack.append(frame)

    def after(self, path: str, module: torch.nn.Module, result: Any) -> None:
        """The call is over; `result` is None where it failed."""
        if all(frame.module is not module for frame in self.stack):
            return
        while (frame := self.stack.pop()).module is not module:
            dispatch.unload(frame.loaded)
        try:
            if result is not None:
                self._over(frame, path, module, result)
        finally:
            dispatch.unload(frame.loaded)

    def _over(self, frame: Frame, path: str, module: torch.nn.Module, result: Any) -> None:
        """A module's call that ended well."""
        if not self.stack and self._chain is not None:
            self._chain.over(result)
        if self.stack:
            above = self.stack[-1]
            name = path.removeprefix(above.path).lstrip(".").partition(".")[0]
            if name in above.keep:
                above.children[name] = (frame.call, result)
        tap = self.taps.module(module)
        if tap is not None and tap.after is not None:
            tap.after(self, frame, result)
        if frame.block is not None:
            self._close(frame, _function_of(path), result)

    def hooks(self, path: str, module: torch.nn.Module) -> list[RemovableHandle]:
        """Registers this recorder on one module."""

        def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if not self.passive():
                with aside(), torch.no_grad():
                    self.before(path, module, args, kwargs)

        def after(module: torch.nn.Module, args: Any, kwargs: Any, result: Any) -> None:
            if not self.passive():
                with aside(), torch.no_grad():
                    self.after(path, module, result)

        return [
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after, with_kwargs=True, always_call=True),
        ]

    # From a call to a checkpoint.

    def _open(
        self,
        frame: Frame,
        function: str | None,
        describe: Callable[[Call], Block | None],
        again: Again,
    ) -> None:
        """Before the call, so that nothing has mutated: its inputs stored, its reruns made."""
        block = describe(frame.call)
        if block is None or not self._wanted(block.kind, frame.path):
            return
        taken = self._taken(frame.path, block, again)
        if taken is None:
            return
        frame.block = block = taken[0]
        frame.reruns = self._rerun(frame.path, function, block, taken[1] or again)
        frame.stored = self._store(block.inputs)

    def _taken(
        self, path: str, block: Block, again: Again | None
    ) -> tuple[Block, Again | None] | None:
        """Of a layer that is not recorded whole what works on single tokens, with those chosen;
        None for what does not. What stands in no layer is recorded all the same, but for code that
        is not described, such as the whole model's."""
        if self.options.whole(path):
            return block, again
        assert self.options.rows is not None
        taken = of_rows(block, again, self.options.rows)
        if taken or layer_of(path) is not None or block.kind == "module":
            return taken
        return block, again

    def _rerun(self, path: str, function: str | None, block: Block, again: Again) -> Reruns:
        """The reruns of a call; the first one of each path and function is also repeated."""
        if not self.options.oracle:
            return Reruns()
        path = path or "model"
        call = self._calls[path if function is None else f"{path}:{function}"]
        seed = checkpoint_id(path, function, call)
        runs = self.options.spread
        repeat = call == 0 and not block.of_rows  # other products may be used for fewer rows
        if block.settle is None:
            try:
                reruns, warnings = rerun(block.outputs, again, seed, runs=runs, repeat=repeat)
            except LiftError as error:
                if self.taps.architecture is not None:
                    raise
                reruns, warnings = Reruns(), [f"{seed.rpartition('#')[0]} has no oracle: {error}"]
        else:
            settle = partial(block.settle, block)
            reruns, warnings = rerun_anything(
                block.outputs, again, seed, settle, runs=runs, repeat=repeat
            )
            for name, mask in reruns.undecided.items():
                named = (reruns.oracle or {})[name]
                if named[0].is_floating_point():
                    block.valid[name] = (~mask, named[1])
        for text in warnings:
            self.warn(text)
        bugs = call == 0 and self.on_judgement is None
        reruns.judgement = judgement_of(block, again, reruns, self.options, seed, bugs=bugs)
        if reruns.judgement is not None and self.on_judgement is not None:
            self.on_judgement(seed, block, again, reruns)
        return reruns

    def _close(self, frame: Frame, function: str | None, result: Any) -> None:
        block = frame.block
        assert block is not None
        facts = frame.attention
        if block.uses_attention is not None and facts is not None:
            inner = block.params
            for key in filter(None, [block.uses_attention]):
                inner = inner[key]
            inner |= facts.params
            frame.stored |= self._store(facts.inputs)
            block.contract = facts.contract
            if facts.valid is not None:
                block.valid["out"] = (facts.valid, ("batch", "token"))
        results = block.outputs(result, _same)
        if block.states is not None:
            self._leave_to_parts(frame, block.states, results)
        self._emit(frame.path, function, block, frame.stored, results, frame.reruns or Reruns())

    def _leave_to_parts(
        self, frame: Frame, states: dict[str, tuple[int, str]], results: dict[str, Named]
    ) -> None:
        """A state that a part of the block changed is that part's output, not the whole's."""
        for name, place in states.items():
            if place in frame.settled:
                results.pop(name, None)
        for outer in self.stack:
            outer.settled |= set(states.values())

    def _emit(
        self,
        path: str,
        function: str | None,
        block: Block,
        stored: dict[str, TensorRef],
        results: dict[str, Named],
        reruns: Reruns,
    ) -> None:
        if not results:
            return
        path = path or "model"
        name = path if function is None else f"{path}:{function}"
        call = self._calls[name]
        self._calls[name] += 1
        outputs = {
            key: self._outputs.store(f"{name}#{call}", key, block, named, reruns)
            for key, named in results.items()
        }
        for key, output in outputs.items():
            output.members = member_refs(self.writer, reruns, key)
        amplification = None
        if self._chain is not None:
            for key, o in self._chain.outputs(block, path).items():
                if key in outputs:
                    outputs[key].chained = self._chained(f"{name}#{call}", results[key][0], o)
            if reruns.oracle is not None and "out" in reruns.oracle:
                amplification = self._chain.amplification(block, path, reruns.oracle["out"][0])
        self._declare(block.contract)
        weights = {
            key: self._weight(f"{path}.{key}", tensor) for key, tensor in block.weights.items()
        }
        self.writer.checkpoint(
            Checkpoint(
                id=checkpoint_id(path, function, call),
                block=block.kind,
                path=path,
                function=function,
                call=call,
                step=max(0, len(self.runs) - 1),
                contract=block.contract,
                params=block.params,
                inputs=stored,
                weights=weights,
                outputs=outputs,
                trace=self._trace(reruns),
                amplification=amplification,
                bugs=bug_refs(self.writer, reruns, outputs),
            )
        )

    def _trace(self, reruns: Reruns) -> str | None:
        return None if reruns.simulated is None else self.writer.trace(reruns.simulated.operations)

    def _chained(self, where: str, r: torch.Tensor, o: torch.Tensor) -> ChainedRef:
        """Every element counts: nothing is excluded from what is handed on."""
        delta = difference(r, o, None, f"{where}: chained").delta
        return ChainedRef(None if delta is None else self.writer.tensor(delta))

    def key(self, tensor: torch.Tensor) -> str:
        """The tensor's key; one that lives on unchanged is not hashed again."""
        if tensor.is_inference():
            return self.writer.tensor(tensor)
        known = self._keys.get(tensor)
        if known is not None and known[0] == tensor._version:
            return known[1]
        key = self.writer.tensor(tensor)
        self._keys[tensor] = (tensor._version, key)
        return key

    def _weight(self, name: str, tensor: torch.Tensor) -> str:
        with self._parameters.stored(name, tensor) as (stored, values):
            return self.writer.weight(stored, values)

    def _store(self, inputs: dict[str, Named]) -> dict[str, TensorRef]:
        return {name: TensorRef(self.key(t), axes) for name, (t, axes) in inputs.items()}

    def _wanted(self, kind: str, path: str) -> bool:
        if self.options.direct and len(self.stack) != 1:
            return False
        if self._chain is not None and self._chain.needs(kind, path):
            return True
        return self.options.wants(kind, path)

    def _declare(self, name: str) -> None:
        storage = "f32" if name == "float32" else self._storage
        accumulator = {"bits": 53 if storage == "f64" else 24, "rounding": "nearest"}
        points = "fused" if name == "fused" else "eager"
        self.writer.contract(name, Contract(storage, storage, accumulator, points))


def _function_of(path: str) -> str | None:
    """The name of the call of the model itself, lest its id be that of a child called `model`."""
    return None if path else "forward"


def _same(value: Any) -> Any:
    return value


def _modules(args: Any) -> list[torch.nn.Module]:
    return [value for value in args if isinstance(value, torch.nn.Module)]
