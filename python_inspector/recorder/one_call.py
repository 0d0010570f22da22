"""Calls of a torch module or function recorded one by one, without a model around them."""

from __future__ import annotations

import copy
import functools
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch

from ..arrays import require_plain
from ..effort import DEFAULT_RUNS
from ..errors import NO_GRADIENT, RecordError
from ..format.axes import Named
from ..format.contract_words import in_order, misfit, spelled
from ..format.draft import Draft
from ..format.recording import (
    DTYPES,
    Checkpoint,
    Contract,
    TensorRef,
    checkpoint_id,
    dtype_name,
    plain,
)
from ..taps.calls import Block, Call, Recorder, bound_arguments
from ..taps.generic import GenericCall, numbers_of, tensors_of
from ..taps.options import Options, Proof
from ..trace.contracts import Inside
from ..trace.copies import aliases_kept
from ..trace.dispatch import gradients
from ..trace.given import Given
from ..trace.judgement import Judgement
from ..trace.replay import (
    Again,
    Rerun,
    Runner,
    aside,
    own_tensors,
    run_as_it_is,
    run_watched,
)
from ..trace.reruns import Reruns, rerun_anything
from ..trace.spread import Simulated
from . import problem_cache
from .alternatives import bug_refs, member_refs
from .axes import Axes, OutputAxes
from .believed import believed, far_from_said, without_unknown
from .callables import Torch, callable_of, name_of
from .left_out import Valid
from .outputs import OutputStore
from .provenance import producer
from .results import Template, holds_empty_alone, template_of, tensors_by_name
from .training import in_training, refuse_training

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
RANDOM = 0.03
"""Relative difference of two runs that no order of sums explains."""


@dataclass(frozen=True)
class Observed:
    """What a call did, for those that other functions' results are paired with."""

    template: Template
    """Of its result."""
    arguments: Mapping[str, Any]
    """By name, as they were given."""
    changed: frozenset[str] = frozenset()
    """Which tensors among them it changed."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """Plain values in them, after the call."""
    outputs: tuple[str, ...] = ()
    """As the recording has them; none where every output is empty, and nothing was recorded."""
    unstable: frozenset[str] = frozenset()
    """Outputs with other bits when the call is made again."""


@dataclass(frozen=True)
class Ran:
    """A call as it is."""

    again: Again
    bound: dict[str, Any]
    """Its arguments by name."""
    real: Rerun
    differentiates: bool
    """Whether it needs gradients."""


@dataclass
class Kept:
    """What is left in memory of a call that was recorded: enough to say more of it."""

    checkpoint: Checkpoint
    block: Block
    again: Again
    reruns: Reruns
    observed: Observed
    differentiates: bool
    """Whether it needs gradients."""
    doubts: tuple[str, ...] = ()
    """What is held to the rounded model, because the call's own result is not near it."""
    with_members: Judgement | None = None
    """Its other ways to round, once they were sought."""

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        block: Block,
        again: Again,
        reruns: Reruns,
        observed: Observed,
        differentiates: bool,
    ) -> Kept:
        """Without the samples of simulated kernels, once the checkpoint is complete."""
        entries = {
            name: [dict(it) for it in (ref.simulated.spread, ref.simulated.truncated) if it]
            for name, ref in checkpoint.outputs.items()
            if ref.simulated is not None
        }
        if reruns.simulated is not None:
            reruns = replace(reruns, simulated=reruns.simulated.models(entries))
        return cls(checkpoint, block, again, reruns, observed, differentiates)


class OneCallRecording:
    """A recording of calls of one module or function, in memory; `save` writes it.

    Each becomes a checkpoint of kind `module` with its oracle, rounded model and simulated kernels.
    `weights` take the place of a module's parameters of those names, and are keyword arguments of a
    function. A module is called in its own mode.
    """

    def __init__(
        self,
        like: Torch,
        *,
        weights: Mapping[str, Any],
        spread: int = DEFAULT_RUNS,
        axes: Axes = None,
        valid: Valid | None = None,
        inside: frozenset[str] = frozenset(),
        gradients: frozenset[str] = frozenset(),
        codes: Sequence[torch.Tensor] | None = None,
    ) -> None:
        """`gradients` are outputs that hold some. `codes` are what the call rounds to few values,
        in place of its own: see Given."""
        self._codes = codes
        self.name, self._gradients = name_of(like), gradients
        self._valid, self._inside = valid, inside
        self._like, self._prefixes = like, False
        self._use(weights)
        self._draft = draft = Draft()
        self._spread = spread
        options = Options(proof=Proof(spread=spread, bugs=False))
        self._store = OutputStore(draft, options, lambda _, t: draft.tensor(t), draft.warn)
        self._calls: Counter[str | None] = Counter()
        self._storage = "f32"
        self._axes = OutputAxes(axes)
        refuse_training(self._module, self.name)
        own = (*self._module.named_parameters(), *self._module.named_buffers())
        require_plain("check", own)

    def _use(self, weights: Mapping[str, Any]) -> None:
        self._weights = dict(weights)
        self._keywords = {} if isinstance(self._like, torch.nn.Module) else self._weights
        self._call, self._module = callable_of(self._like, weights)
        own = vars(self._module)
        holds = any(own[it] for it in ("_parameters", "_buffers", "_modules"))
        self._has_modules = holds or isinstance(self._like, torch.nn.Module)

    def using(self, weights: Mapping[str, Any]) -> OneCallRecording:
        """This recording, for calls with these weights instead."""
        if all(self._weights.get(name) is it for name, it in weights.items()):
            return self
        other = copy.copy(self)
        other._prefixes = True  # a name is of one tensor
        other._use(weights)
        return other

    def run(self, arguments: Arguments) -> Ran:
        """Makes one call, as it is."""
        bound = bound_arguments(self._call, arguments[0], {**arguments[1], **self._keywords})
        require_plain("check", tensors_of(bound, lambda value: value).items())
        again = self.again(arguments)
        with undisturbed():
            real, differentiates = _real(again, self._codes)
        require_plain("check", tensors_by_name(real.result).items())
        return Ran(again, bound, real, differentiates)

    def again(self, arguments: Arguments) -> Again:
        """A call that a Runner can run again."""
        args, kwargs = arguments[0], {**arguments[1], **self._keywords}
        modules = [self._module] if self._has_modules else []
        return functools.partial(_again, self._call, args, kwargs, modules)

    def described(self, arguments: Arguments) -> Block | None:
        """What goes in and comes back of a call; None where it is given no tensor."""
        bound = bound_arguments(self._call, arguments[0], {**arguments[1], **self._keywords})
        return self._generic(bound).block()

    def drop(self, kept: Kept) -> None:
        """The last call is no part of the recording."""
        self._draft.drop(kept.checkpoint.id)
        self._calls[kept.checkpoint.function] -= 1

    def _generic(self, bound: dict[str, Any]) -> GenericCall:
        unasked = cast(Recorder, self)  # such a call asks nothing of a recorder
        tap = Call(self.name, self._module, bound, unasked)
        return GenericCall(tap, self._module, tensors_by_name, self._axes)

    def add(self, arguments: Arguments, case: str | None = None, ran: Ran | None = None) -> Kept:
        """Records one call, and makes it where it did not run yet; `case` says what is special
        about its operands.

        Raises RecordError where nothing goes in or comes back that can be judged. A call whose
        results are all empty is no checkpoint.
        """
        ran = ran or self.run(arguments)
        again, bound, real, differentiates = ran.again, ran.bound, ran.real, ran.differentiates
        call = self._calls[case]
        self._calls[case] += 1
        id = checkpoint_id(self.name, case, call)
        with undisturbed(differentiates):
            generic = self._generic(bound)
            block, template = generic.block(), template_of(real.result)
            if holds_empty_alone(template):
                nothing = Checkpoint(id, "module", self.name, case, call, 0, "", {})
                empty = Block("module", {}, lambda result, twin: {})
                return Kept(nothing, empty, again, Reruns(), Observed(template, bound), False)
            if block is None:
                raise RecordError(f"[check] {self.name} is given no tensor with elements")
            key = None if self._codes else problem_cache.key_of(again, id, self._spread)
            reruns = self._rerun(block, again, id, key)
            loaded = reruns.simulated is not None and bool(reruns.simulated.spreads)
            outputs = block.outputs(real.result, real.twin)
            if not outputs:
                raise RecordError(
                    f"[check] {self.name} returned {type(real.result).__name__} without a tensor"
                )
            outputs, unknown = without_unknown(block, outputs, reruns, self._gradients)
            said = far_from_said(outputs, reruns)
            outputs, doubts = believed(outputs, reruns, self._gradients)
            checkpoint = self._checkpoint(id, case, call, block, outputs, reruns)
            observed = Observed(
                template,
                bound,
                frozenset(generic.changed),
                numbers_of(bound, real.twin),
                tuple(checkpoint.outputs),
                frozenset(name for name, ref in checkpoint.outputs.items() if ref.unstable),
            )
        self._draft.checkpoint(checkpoint)
        self._store.spreads.settle()
        kept = Kept.of(checkpoint, block, again, reruns, observed, differentiates)
        kept.doubts = (*unknown, *doubts, *said)
        simulated = kept.reruns.simulated
        if key and simulated and not loaded and problem_cache.may_be_kept(reruns.given):
            problem_cache.keep(key, simulated)
        return kept

    def versions(self) -> list[int]:
        """Of the tensors that `like` has besides its arguments: a write changes them."""
        return [0 if t.is_inference() else t._version for t in self.tensors()]

    def tensors(self) -> list[torch.Tensor]:
        """What `like` has besides its arguments, and the weights that it is given."""
        given = [t for t in self._keywords.values() if isinstance(t, torch.Tensor)]
        return [*own_tensors([self._module]), *given]

    def save(self, out: Path, explained: Collection[Explained] | None = None) -> bool:
        """Writes the recording to the folder, or one of some calls with what they are `explained`
        by; false where there is no checkpoint."""
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
        draft = self._draft if explained is None else self._draft.without_checkpoints()
        for call, judgement in explained or ():
            draft.checkpoint(_explained(draft, call.checkpoint, judgement))
        return draft.save(out, header | {"provenance": provenance})

    def _rerun(self, block: Block, again: Again, id: str, key: str | None) -> Reruns:
        def known(given: Given) -> Simulated | None:
            if key is None or not problem_cache.may_be_kept(given):
                return None
            device = next(iter(block.inputs.values()))[0].device
            return problem_cache.load(key, device)

        assert block.settle is not None
        settle = functools.partial(block.settle, block)
        reruns, texts = rerun_anything(
            block.outputs,
            again,
            id,
            settle,
            runs=self._spread,
            repeat=True,
            inside=self._asked(block),
            known=known,
            codes=self._codes,
        )
        for text in texts:
            self._draft.warn(text)
        for name, elements in reruns.undecided.items():
            oracle = (reruns.oracle or {})[name]
            if oracle[0].is_floating_point():
                block.valid[name] = (~elements.mask, oracle[1])
        if self._valid is not None:
            self._valid.restrict(block, reruns)
        return reruns

    def _asked(self, block: Block) -> Inside:
        """What is asked of simulated kernels; RecordError where no operand has its dtype."""
        operands = [t for t, _ in block.inputs.values()] + list(block.weights.values())
        dtypes = {DTYPES[t.dtype] for t in operands if t.dtype in DTYPES}
        if why := misfit(self._inside, dtypes, f"no operand of {self.name}"):
            raise RecordError(f"[check] {why}")
        return Inside.of(self._inside, operands)

    def _checkpoint(
        self,
        id: str,
        case: str | None,
        call: int,
        block: Block,
        outputs: Mapping[str, Named],
        reruns: Reruns,
    ) -> Checkpoint:
        self._axes.check()
        self._storage = _storage_of([t for t, _ in outputs.values()], self._storage)
        stored = {}
        for name, named in outputs.items():
            stored[name] = self._store.store(id, name, block, named, reruns)
            if self._valid is not None:
                stored[name].left_out = self._valid.left_out(named[0])
            stored[name].labels = self._axes.labels[name]
            drew = sorted(reruns.given.drew) if reruns.given else []
            if (stored[name].unstable or 0) > (0 if drew else RANDOM):
                advice = "; it is in train mode: call .eval() first"
                by = f" ({', '.join(drew)})" if drew else ""
                raise RecordError(
                    f"[check] two runs of {self.name} differ by {stored[name].unstable:.1e} in "
                    f"{name}: it draws random numbers{by}, and nothing can be held to that"
                    + (advice if in_training(self._module) else "")
                )
        return Checkpoint(
            id=id,
            block="module",
            path=self.name,
            function=case,
            call=call,
            step=0,
            contract=self._declare(reruns.words),
            params=plain(block.params, "params"),
            inputs={n: TensorRef(self._draft.tensor(t), a) for n, (t, a) in block.inputs.items()},
            weights={
                n: self._draft.weight(f"{id}.{n}" if self._prefixes else n, t)
                for n, t in block.weights.items()
            },
            outputs=stored,
            trace=None
            if reruns.simulated is None
            else self._draft.trace(reruns.simulated.operations),
        )

    def _declare(self, inside: Collection[str]) -> str:
        name = spelled(f"eager-{self._storage}", inside)
        bits = 53 if self._storage == "f64" else 24
        accumulator = {"bits": bits, "rounding": "nearest"}
        words = tuple(in_order(inside))
        contract = Contract(self._storage, self._storage, accumulator, "eager", words)
        self._draft.contract(name, contract)
        return name


def _explained(draft: Draft, of: Checkpoint, judgement: Judgement) -> Checkpoint:
    """A checkpoint with other ways to round it, and planted bugs."""
    outputs = {
        name: replace(ref, members=member_refs(draft, judgement, name))
        for name, ref in of.outputs.items()
    }
    return replace(of, outputs=outputs, bugs=bug_refs(draft, judgement))


def _again(
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    modules: list[torch.nn.Module],
    run: Runner,
) -> Any:
    return run(call, args, kwargs, modules)


Explained = tuple[Kept, Judgement]
"""A call that was recorded, and its other ways to round and planted bugs."""


@contextmanager
def undisturbed(differentiates: bool = False) -> Iterator[None]:
    """Calls inside are no part of a run that is recorded; they need gradients or have none."""
    with aside(), aliases_kept(), gradients(differentiates), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of the dtypes that reruns have
        yield


def _real(again: Again, codes: Sequence[torch.Tensor] | None = None) -> tuple[Rerun, bool]:
    """The call as it is but for its `codes`, and whether it needs gradients: they are off as in
    inference, since some code fails where parameters have them (flex_attention on the CPU)."""
    if codes is not None:
        with gradients(False):
            return again(run_watched(Given(codes=codes))), False
    try:
        with gradients(False):
            return again(run_as_it_is), False
    except RuntimeError as error:
        if NO_GRADIENT not in str(error):
            raise
    with gradients(True):
        return again(run_as_it_is), True


def _storage_of(outputs: list[torch.Tensor], before: str) -> str:
    """The dtype that a recording is of: that of its floats."""
    floats = [t.dtype for t in outputs if t.is_floating_point()]
    return dtype_name(floats[0]) if floats else before
