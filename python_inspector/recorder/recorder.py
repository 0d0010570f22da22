"""record(): hooks on a model that turn every block of its runs into checkpoints."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from .. import interrupts
from ..errors import RecordWarning
from ..format.axes import Named, by_dimensions
from ..format.recording import TensorRef, backward_id, checkpoint_id
from ..format.summary import Summary
from ..format.writer import RecordingWriter
from ..models import dispatch
from ..taps.architectures import Taps
from ..taps.calls import Block, Call, Frame, bound_arguments
from ..taps.common import FunctionTap, ModuleTap
from ..taps.generic import any_call, any_function
from ..taps.masks import Visibility
from ..taps.options import Options, layer_of
from ..taps.pruned import with_masks
from ..taps.quantised import with_layers
from ..trace import truncation
from ..trace.given import Given
from ..trace.replay import Again, Rerun, Runner, aside, is_aside, run_as_it_is, run_watched
from ..trace.reruns import Reruns
from ..trace.wrapped import is_quantised
from . import provenance
from .backward_calls import Backward, backward_of, has_backward
from .chain import Chain, is_of_chain
from .checkpoints import Checkpoints
from .gradients import NoGradientError
from .losses import LOSS, loss_of
from .misfits import ATTENTION, Misfit, Misfits
from .operands import Operands
from .outputs import OutputStore
from .rerunner import Rerunner
from .rows import of_rows

Description = tuple[Callable[[Call], Block | None], Again]
"""What a call is as a block, and how it is run again."""


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
        self.misfits = Misfits(self.warn)
        self.on_judgement: Callable[[str, Block, Again, Reruns], None] | None = None
        """Called with every call without a native block, and its id; plants its own bugs."""
        self._chain = Chain(model, taps.base_path) if options.proof.chained else None
        self._shares: Frame | None = None
        """The outermost block that is running: its parts share what truncation loses in it."""
        self._thread = threading.get_ident()
        self._operands = Operands(model, writer)
        self._rerunner = Rerunner(options, taps, self.warn)
        self._differentiated_calls: set[str] = set()
        self._outputs = OutputStore(writer, options, self._operands.key, self.warn)
        self._checkpoints = Checkpoints(writer, self._operands, self._outputs, self._chain)

    # What taps and patches use.

    def passive(self) -> bool:
        """Whether what happens now is no part of the run: an oracle, the recorder's own arithmetic,
        or another thread."""
        return is_aside() or threading.get_ident() != self._thread

    @property
    def _step(self) -> int:
        """The forward call of the model that is running, or was last."""
        return max(0, len(self.runs) - 1)

    def warn(self, text: str) -> None:
        """A warning that the recording keeps."""
        self.writer.warn(text)
        warnings.warn(text, RecordWarning, stacklevel=3)

    def with_quantised(self, block: Block, module: torch.nn.Module) -> Block | None:
        """The block of a module, whose layers may have quantised weights; None where it cannot."""
        if not is_quantised(module):
            return block
        layers = self.taps.linears(module)
        return None if layers is None else with_layers(block, layers)

    def record(
        self,
        path: str,
        function: str | None,
        block: Block,
        result: Any,
        again: Again | None,
    ) -> None:
        """A block whose call is over; `again` runs it again (None: the result is exact)."""
        if self._wanted(block.kind, path):
            self._record(path, function, block, result, again)

    def _record(
        self, path: str, function: str | None, block: Block, result: Any, again: Again | None
    ) -> None:
        with aside(), torch.no_grad():
            taken = self._taken(path, block, again)
            if taken is None:
                return
            block, again = taken
            reruns, stored, backward = Reruns(), {}, None
            if self._is_recorded:
                if again is not None:
                    self._forget_losses()
                    reruns = self._rerun(path, function, block, again)
                    backward = self._differentiated(path, function, block, again)
                stored = self._operands.refs(block.inputs)
            elif again is not None:
                self._settle(block, again)
            results = block.outputs(result, _same)
            self._add(path, function, block, stored, results, reruns, backward)

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

        def as_called(run: Runner) -> Rerun:
            return run(original, args, kwargs, modules)

        def again(run: Runner) -> Rerun:
            if tap.oracle is None:
                return run(pure, args, kwargs, modules)
            above_modules = [above.module] if above.module is not None else []
            return run(tap.oracle(call, pure), args, kwargs, above_modules)

        with aside(), torch.no_grad():
            self._open(frame, tap.name, (tap.describe, again), (any_function, as_called))
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

    def settle(self) -> None:
        """Fills in what checkpoints still lack; none comes afterwards. KeyboardInterrupt where one
        got lost: something may be missing."""
        interrupts.check()
        with aside(), torch.no_grad():
            self._outputs.spreads.settle()
        truncation.forget()

    def save(self, name: str, tensor: torch.Tensor, axes: tuple[str, ...] | None) -> None:
        """A tensor that the caller names, as a checkpoint of kind `module` without an oracle."""
        if self.passive():
            return
        path = self.stack[-1].path if self.stack else ""
        named: Named = by_dimensions(tensor) if axes is None else (tensor, axes)
        block = Block("module", {}, lambda result, twin: {"out": named})
        with aside(), torch.no_grad():
            self._add(path, name, block, {}, {"out": named}, Reruns())

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
            forward = with_masks(module)

            def again(run: Runner) -> Rerun:
                return run(forward, args, kwargs, [module])

            self._open(frame, _function_of(path), (tap.describe, again), (any_call, again))
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
        if module is self.model and self.options.proof.loss and self._step == 0:
            block, again = loss_of(frame.call)
            self._record("", LOSS, block, again(run_as_it_is).result, again)
        if self.stack:
            above = self.stack[-1]
            name = path.removeprefix(above.path).lstrip(".").partition(".")[0]
            if name in above.keep:
                above.children[name] = (frame.call, result)
        tap = self.taps.module(module)
        if tap is not None and tap.after is not None:
            kind = type(module).__name__
            with self.misfits.kept_apart(path, kind, "what it describes inside is not recorded"):
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
        self, frame: Frame, function: str | None, described: Description, any_way: Description
    ) -> None:
        """Before the call, so that nothing has mutated: its inputs stored, its reruns made. Where
        the tap does not fit the call, `any_way`."""
        if self._is_left_out(frame.path):
            return
        if described[0] is any_way[0]:
            self._open_as(frame, function, *described)
            return
        fits, instead = False, "it is recorded as a call of kind `module`"
        with self.misfits.kept_apart(frame.path, _tap_of(frame, function), instead):
            self._open_as(frame, function, *described)
            fits = True
        if not fits:
            frame.block = frame.reruns = frame.backward = None
            self._open_as(frame, function, *any_way)

    def _open_as(
        self,
        frame: Frame,
        function: str | None,
        describe: Callable[[Call], Block | None],
        again: Again,
    ) -> None:
        block = describe(frame.call)
        if block is None or not self._wanted(block.kind, frame.path):
            return
        if block.uses_attention is not None:
            self.misfits.require_attention()
        taken = self._taken(frame.path, block, again)
        if taken is None:
            return
        block, again = taken[0], taken[1] or again
        if self._chain is not None:
            block.inputs |= self._chain.given_ids(block, frame.path)
        frame.block = block
        if self._is_recorded:
            self._forget_losses()
            outermost = self._shares is None
            if outermost:
                self._shares = frame
            with truncation.keeping(outermost):
                frame.reruns = self._rerun(frame.path, function, block, again)
            frame.stored = self._operands.refs(block.inputs)
            frame.backward = self._differentiated(frame.path, function, block, again)
        else:
            self._settle(block, again)

    @property
    def _is_recorded(self) -> bool:
        """Whether the forward call that is running is; others are made, and their calls counted."""
        return self.options.what.calls is None or self._step in self.options.what.calls

    def _settle(self, block: Block, again: Again) -> None:
        """Of a call that no tap describes and that is not recorded, what it uses and changes."""
        if block.settle is None or self.options.proof.oracle is False:
            return
        given = Given()
        with suppress(Exception):  # it has no oracle, as its recorded calls say
            block.settle(block, again(run_watched(given)), given)

    def _is_left_out(self, path: str) -> bool:
        """Whether nothing of a layer is recorded: what it is need not be found out, unless a block
        around it, as of a layer that shares it, asks for it."""
        if layer_of(path) is None or self._chain is not None or self.options.what.covers(path):
            return False
        return all(frame.block is None for frame in self.stack)

    def _forget_losses(self) -> None:
        """What truncation loses in a block that is over."""
        if all(frame is not self._shares for frame in self.stack):
            self._shares = None
            truncation.forget()

    def _taken(
        self, path: str, block: Block, again: Again | None
    ) -> tuple[Block, Again | None] | None:
        """Of a layer that is not recorded whole what works on single tokens, with those chosen;
        None for what does not. What is in no layer is recorded all the same, but for code that
        is not described, such as the whole model's."""
        if self.options.whole(path):
            return block, again
        assert self.options.what.rows is not None
        taken = of_rows(block, again, self.options.what.rows)
        if taken or layer_of(path) is not None or block.kind == "module":
            return taken
        return block, again

    def _rerun(self, path: str, function: str | None, block: Block, again: Again) -> Reruns:
        call = self._checkpoints.next_call(path, function)
        seed = checkpoint_id(path or "model", function, call)
        bugs = self.on_judgement is None
        reruns = self._rerunner.reruns(block, again, seed, first=call == 0, bugs=bugs)
        if reruns.judgement is not None and self.on_judgement is not None:
            self.on_judgement(seed, block, again, reruns)
        return reruns

    def _differentiated(
        self, path: str, function: str | None, block: Block, again: Again
    ) -> Backward | None:
        """The backward of the first call of this path and function that is recorded."""
        if not self.options.proof.backward or not has_backward(block):
            return None
        call = checkpoint_id(path or "model", function, 0)
        if call in self._differentiated_calls:
            return None
        self._differentiated_calls.add(call)
        number = self._checkpoints.next_call(path, function)
        id = backward_id(checkpoint_id(path or "model", function, number))
        try:
            made = backward_of(block, again, id, self._rerunner, bugs=self.on_judgement is None)
        except NoGradientError:
            return None
        except Exception as error:  # of code that cannot be differentiated: its forward can be used
            self.warn(f"{id} is not recorded: {type(error).__name__}: {error}")
            return None
        made.stored = self._operands.refs(made.block.inputs)
        return made

    def _close(self, frame: Frame, function: str | None, result: Any) -> None:
        block = frame.block
        assert block is not None
        results: dict[str, Named] = {}
        with self.misfits.kept_apart(frame.path, _tap_of(frame, function), "it is left out"):
            if block.uses_attention is not None:
                self._add_attention(frame, block, block.uses_attention)
            results = block.outputs(result, _same)
        if block.states is not None:
            self._leave_to_parts(frame, block.states, results)
        reruns, backward = frame.reruns or Reruns(), frame.backward
        if backward is not None:
            backward.stored = frame.stored | backward.stored  # with what attention found out
        self._add(frame.path, function, block, frame.stored, results, reruns, backward)

    def _add(
        self, path: str, function: str | None, block: Block, stored: dict[str, TensorRef],
        results: dict[str, Named], reruns: Reruns, backward: Backward | None = None,
    ) -> None:  # fmt: skip
        self._checkpoints.add(
            self._step, path, function, block, stored, results, reruns,
            recorded=self._is_recorded, backward=backward,
        )  # fmt: skip

    def _add_attention(self, frame: Frame, block: Block, where: str) -> None:
        """What the attention function inside of a block found out."""
        facts = frame.attention
        if facts is None:
            raise Misfit(f"no attention function ran in it that the tap {ATTENTION} knows")
        inner = block.params[where] if where else block.params
        inner |= facts.params
        if self._is_recorded:
            frame.stored |= self._operands.refs(facts.inputs)
        block.contract = facts.contract
        if facts.valid is not None:
            block.valid["out"] = (facts.valid, ("batch", "token"))

    def _leave_to_parts(
        self, frame: Frame, states: dict[str, tuple[int, str]], results: dict[str, Named]
    ) -> None:
        """A state that a part of the block changed is that part's output, not the whole's."""
        for name, place in states.items():
            if place in frame.settled:
                results.pop(name, None)
        for outer in self.stack:
            outer.settled |= set(states.values())

    def _wanted(self, kind: str, path: str) -> bool:
        if self.options.what.direct and len(self.stack) != 1:
            return False
        if is_of_chain(kind, path) and (
            self._chain is not None or self.options.proof.chain_elsewhere
        ):
            return self._chain is not None
        return self.options.wants(kind, path)


def _tap_of(frame: Frame, function: str | None) -> str:
    """The name of the tap, of a module that of its class."""
    is_module = function in (None, "forward")
    return type(frame.module).__name__ if is_module else str(function)


def _function_of(path: str) -> str | None:
    """The name of the call of the model itself, lest its id be that of a child called `model`."""
    return None if path else "forward"


def _same(value: Any) -> Any:
    return value


def _modules(args: Any) -> list[torch.nn.Module]:
    return [value for value in args if isinstance(value, torch.nn.Module)]
