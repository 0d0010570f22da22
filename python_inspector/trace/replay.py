"""Runs one call of a block again on copies of its recorded inputs, and leaves no trace.

In float64 (the oracle), as the rounded model with simulated kernels, or as it is. Inputs are copied
first, for the oracle to float64, a cache's layers only when they are touched; weights are not: the
modes upcast them where they are used. Module state is put back, transformers' output collectors are
switched off, and `is_aside()` is true meanwhile, so that every hook and patch stays passive.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..foreign import collectors_off
from ..models.dispatch import resident
from .contracts import Inside
from .copies import Copies, Memo
from .dispatch import tracks_gradients, unwatched, without_functions
from .given import Given, Replay, watched
from .keyless import is_mask
from .lift import WIDE, float64_lift, is_low, widen
from .rounded import rounded_run
from .simulation import Simulation
from .wrapped import parts

_aside: ContextVar[bool] = ContextVar("python_inspector_aside", default=False)


def is_aside() -> bool:
    """Whether what happens now is no part of the run: an oracle, or a recorder's own arithmetic."""
    return _aside.get()


@contextmanager
def aside() -> Iterator[None]:
    """No recorder listens to what happens inside."""
    token = _aside.set(True)
    try:
        yield
    finally:
        _aside.reset(token)


Twin = Callable[[Any], Any]
"""From an input object to the one that the run at hand used: itself, or its float64 copy."""


class Rerun:
    """What a run on copies gave: its result, and the copy of each input."""

    def __init__(self, result: Any, memo: Memo) -> None:
        self.result = result
        self._memo = memo

    def twin(self, original: Any) -> Any:
        """The copy of an input object, mutated as the run mutated it."""
        return self._memo[id(original)][1]


class Runner(Protocol):
    """One way to run a call again; `modules` are those whose parameters and buffers it may use."""

    def __call__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        modules: Iterable[torch.nn.Module] = (),
    ) -> Rerun: ...


Again = Callable[[Runner], Rerun]
"""A call that can be run again: what taps hand to the recorder."""


def run_lifted(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    modules: Iterable[torch.nn.Module] = (),
    known: Memo | None = None,
    replay: Replay | None = None,
) -> Rerun:
    """Calls `function` in float64, following the choices of `replay` where there is one.

    An input that is in `known` is replaced by its copy there instead of by a fresh one.
    """
    modules = list(modules)
    dtypes = WIDE if replay is None else {}  # a watched run's are given as its code read them
    copies = Copies(_widened, dtypes, dict(known or {}))
    given = None if replay is None else replay.given

    def lift() -> AbstractContextManager[None]:
        return float64_lift(_leaves(modules), replay=replay)

    return _run(function, args, kwargs, modules, copies, lift, given, wide=True)


def run_rounded(
    simulation: Simulation,
    given: Given | None = None,
    inside: Inside | None = None,
    wrapped: bool = False,
) -> Runner:
    """Runs calls as the rounded model and simulated kernels, with the reference's choices.

    `inside` is how these depart from float32 arithmetic, where nothing is given; `wrapped` is as in
    Given.
    """

    @contextmanager
    def mode() -> Iterator[None]:
        replay = None if given is None else Replay(given)
        how = inside if given is None else given.inside
        subclasses = wrapped if given is None else given.wrapped
        # No mode of a recorder's own is asked.
        with without_functions(subclasses), rounded_run(simulation, replay, how):
            yield

    def run(
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        modules: Iterable[torch.nn.Module] = (),
    ) -> Rerun:
        copies = Copies(_as_stored, {}, {})
        return _run(function, args, kwargs, list(modules), copies, mode, given)

    return run


def run_following(replay: Replay) -> Runner:
    """Runs calls in float64 with what `replay` hands out."""
    return functools.partial(run_lifted, replay=replay)


def run_watched(given: Given) -> Runner:
    """Runs calls as the model does, noting in `given` what other runs are to follow."""

    def run(
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        modules: Iterable[torch.nn.Module] = (),
    ) -> Rerun:
        modules = list(modules)

        @contextmanager
        def mode() -> Iterator[None]:
            own = {t.untyped_storage()._cdata: t for t in own_tensors(modules)}
            with torch.set_grad_enabled(tracks_gradients()), watched(given, own):
                yield

        copies = Copies(_as_stored, {}, {})
        return _run(function, args, kwargs, list(modules), copies, mode)

    return run


def run_as_it_is(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    modules: Iterable[torch.nn.Module] = (),
) -> Rerun:
    """Calls `function` as the model does."""
    copies = Copies(_as_stored, {}, {})

    def mode() -> AbstractContextManager[Any]:
        return torch.set_grad_enabled(tracks_gradients())

    return _run(function, args, kwargs, list(modules), copies, mode)


def _run(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    modules: list[torch.nn.Module],
    copies: Copies,
    mode: Callable[[], AbstractContextManager[Any]],
    given: Given | None = None,
    *,
    wide: bool = False,
) -> Rerun:
    with ExitStack() as stack:
        stack.enter_context(collectors_off())
        stack.enter_context(aside())
        stack.enter_context(unwatched())
        stack.enter_context(resident(modules))
        for module in modules:
            stack.enter_context(_state_restored(module))
        own = [t for t in own_tensors(modules) if t.requires_grad] if tracks_gradients() else []
        with torch.inference_mode(False), torch.no_grad():
            args, kwargs = copies.of_call(function, args, kwargs)
            if given is not None and given.kept:
                kept = given.kept
                _replace(modules, lambda t: t.untyped_storage()._cdata in kept, copies)
            if tracks_gradients():
                _replace(modules, lambda t: t.requires_grad, copies)
        if tracks_gradients():
            stack.enter_context(_fresh_gradients(own, copies, wide=wide))
        with mode():
            return Rerun(_resolved(function(*args, **kwargs)), copies.memo)


def _resolved(result: Any) -> Any:
    """What ends as a conjugate is made one where the mode sees it."""

    def is_lazy(t: Any) -> bool:
        return isinstance(t, torch.Tensor) and t.is_conj()

    if not any(map(is_lazy, tree_leaves(result))):
        return result
    return tree_map(lambda t: t.resolve_conj() if is_lazy(t) else t, result)


@contextmanager
def stubbed(module: torch.nn.Module, children: Mapping[str, Any]) -> Iterator[None]:
    """Replaces children of `module` by constants: each returns its value whatever it is given.

    A callable value is called instead. So a parent's own unedited code runs on recorded tensors.
    """
    old = {name: module._modules[name] for name in children}
    try:
        for name, value in children.items():
            module._modules[name] = _Stub(value)
        yield
    finally:
        module._modules.update(old)


class _Stub(torch.nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.value(*args, **kwargs) if callable(self.value) else self.value


def _widened(value: torch.Tensor, name: str) -> torch.Tensor:
    """Exactly, in float64. An additive mask's finfo(dtype).min becomes float64's: -65504 would not
    absorb a score."""
    if not is_low(value):
        return value.clone()
    new: torch.Tensor = widen(value)
    if "mask" in name or is_mask(value):
        lowest = value == torch.finfo(value.dtype).min
        new = torch.where(lowest, torch.finfo(new.dtype).min, new)
    return new


def _as_stored(value: torch.Tensor, name: str) -> torch.Tensor:
    """With the same strides: torch adds a bias otherwise where its input is not contiguous."""
    if torch.ops.aten.is_non_overlapping_and_dense(value):
        return value.clone()
    storage = value.untyped_storage().clone()
    new = torch.empty(0, dtype=value.dtype, device=value.device)
    return new.set_(storage, value.storage_offset(), value.shape, value.stride())


@contextmanager
def _fresh_gradients(own: list[torch.Tensor], copies: Copies, *, wide: bool) -> Iterator[None]:
    """Copies require gradients where the originals do; what parameters have is put aside.

    In a `wide` run parameters of which there is no copy have none: torch refuses float64 ones.
    """
    for original, made in list(copies.memo.values()):
        if isinstance(original, torch.Tensor) and original.requires_grad and made.is_leaf:
            made.requires_grad_()
    own = [t for t in own if t.is_leaf]
    old = [t.grad for t in own]
    try:
        for t in own:
            t.grad = None
            t.requires_grad_(not wide)
        yield
    finally:
        for t, grad in zip(own, old, strict=True):
            t.requires_grad_()
            t.grad = grad


def _leaves(modules: Iterable[torch.nn.Module]) -> set[int]:
    """Storage addresses of all parameters, buffers and plain tensor attributes."""
    return {t.untyped_storage().data_ptr() for t in own_tensors(modules)}


def own_tensors(modules: Iterable[torch.nn.Module]) -> Iterator[torch.Tensor]:
    """All parameters, buffers and plain tensor attributes, or what they are made of."""
    for root in modules:
        for module in root.modules():
            plain = [v for v in vars(module).values() if isinstance(v, (torch.Tensor, list, tuple))]
            for value in tree_leaves([module._parameters, module._buffers, plain]):
                if isinstance(value, torch.Tensor):
                    yield from (t for _, t in parts([("", value)]))


def _replace(
    modules: Iterable[torch.nn.Module], wanted: Callable[[torch.Tensor], bool], copies: Copies
) -> None:
    """Copies in place of weights and buffers: of those that the code writes to, or whose gradients
    it may ask for."""
    for module in (m for root in modules for m in root.modules()):
        for table in (module._parameters, module._buffers, vars(module)):
            for name, value in list(table.items()):
                if isinstance(value, torch.Tensor) and wanted(value):
                    table[name] = copies.of(value, name)


@contextmanager
def _state_restored(module: torch.nn.Module) -> Iterator[None]:
    """Puts back attributes, buffers, parameters: a forward may re-register them (dynamic rope)."""
    old = [(m, dict(vars(m)), dict(m._buffers), dict(m._parameters)) for m in module.modules()]
    try:
        yield
    finally:
        for m, attributes, buffers, parameters in old:
            vars(m).clear()
            vars(m).update(attributes)
            m._buffers.clear()
            m._buffers.update(buffers)
            m._parameters.clear()
            m._parameters.update(parameters)
