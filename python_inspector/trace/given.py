"""What the reference run fixed: discrete choices, and results of opaque operations.

A block with a router is a different function once another expert is chosen, so its float64 oracle
and its simulated kernels follow the choices of the reference. Where an operation cannot be done in
float64 (a custom kernel, a cast to 8 bits, bits reinterpreted), its result is taken as the
reference had it, and what surrounds it is still computed. watched() notes both in one run of the
reference; a Replay hands them out in the same order to another run of the same code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from ..arrays import not_dense
from .contracts import Inside
from .decomposing import can_decompose, check_result, decomposed, registered
from .dispatch import DispatchMode, FunctionMode
from .feeding import Feeding
from .grouped import is_grouped
from .keyless import filled, may_lack_keys, rows_without_key
from .operations import MAKERS, draws, leaves, operands_of
from .products import RECURRENT
from .quantising import QUANTISED, moves_codes, quantises, reads_bits_of_codes
from .reads import (
    Reader,
    Reads,
    asked,
    lacks_eps,
    norm_input,
    stores_numbers,
    with_stored_numbers,
)
from .storages import Storages
from .unseen import Unseen
from .wrapped import is_wrapper

aten = torch.ops.aten

SEEN = ("aten", "prims", "prim")
"""Namespaces of operations that torch itself computes."""
SELECTIONS = {"topk", "sort", "max", "min", "kthvalue", "median", "mode", "cummax", "cummin"}
"""Give values and indices."""


READING = {
    "numpy", "tolist", "data_ptr", "untyped_storage", "storage", "_typed_storage", "share_memory_",
    "__array__", "__dlpack__",
}  # fmt: skip
"""What gives code the values of a tensor, or the memory they are in, without an operation."""


class GivenError(RuntimeError):
    """A rerun came to another operation than the reference: nothing fits it."""


class UnliftableError(RuntimeError):
    """An operation that has no float64 kernel: `func`."""

    def __init__(self, func: OpOverload, error: Exception) -> None:
        super().__init__(f"[given] {func} cannot be done in float64: {error}")
        self.func = func


@dataclass
class Choice:
    """Integers or bools that an operation made of floats, as the reference had them."""

    func: OpOverload
    held: tuple[torch.Tensor, ...]
    operands: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    """Those of the float64 run."""
    free: Any = None
    """What the float64 run would have chosen."""
    doubtful: torch.Tensor | None = None
    """Where correct kernels may choose otherwise; see choices.py for what its elements are."""
    tolerance: torch.Tensor | None = None
    """Of an order, how far each value may be off."""
    others: list[torch.Tensor] = field(default_factory=list)
    """What else is right, in the form of what is held."""
    complete: bool = True
    """There is no other one, element by element."""
    quantised: bool = False
    """It is numbers of few values; see quantising.py."""


@dataclass
class Opaque:
    """An operation taken as given: its result, and the arguments that it wrote to."""

    func: Any
    result: Any
    written: dict[int, torch.Tensor] = field(default_factory=dict)
    """By the position among the arguments' leaves."""


@dataclass
class Given:
    """All of one call, in order. `unliftable` are operations found to have no float64 kernel."""

    unliftable: set[Any] = field(default_factory=set)
    inside: Inside = field(default_factory=Inside)
    """How simulated kernels depart from float32 arithmetic."""
    codes: Sequence[torch.Tensor] | None = None
    """What is rounded to few values becomes these, one after the other, in the watched run and for
    all simulated kernels; None: what each of them makes of it."""
    events: list[Choice | Opaque] = field(default_factory=list)
    used: Storages = field(default_factory=Storages)
    """Those that any operation of the watched run read."""
    kept: dict[int, tuple[torch.Tensor, torch.UntypedStorage]] = field(default_factory=dict)
    """Weights and buffers that the code writes to, and what they held before, by storage."""
    keyless: list[torch.Tensor | None] = field(default_factory=list)
    """Of every softmax and fused attention the rows without a key; None for none."""
    stored: Reads = field(default_factory=Reads)
    """The dtypes to which operations cast their numbers (stores_numbers)."""
    reads: Reads = field(default_factory=Reads)
    """The dtypes that its code read."""
    drew: set[str] = field(default_factory=set)
    """Operations that drew random numbers."""
    registered: set[str] = field(default_factory=set)
    """Operations that were computed by what is said of them."""
    leaves_torch: bool = False
    """NumPy computes some of it."""
    reads_values: bool = False
    """Its code read values, or the memory they are in, without an operation."""
    recurrent: bool = False
    """It has a layer whose products an accelerator's library makes on its own."""
    wrapped: bool = False
    """Some of its operands are made of other tensors."""
    unseen: Unseen = field(default_factory=Unseen)
    """Of the float64 run."""

    @property
    def choices(self) -> list[Choice]:
        return [event for event in self.events if isinstance(event, Choice)]

    @property
    def lacks_keys(self) -> bool:
        return any(rows is not None for rows in self.keyless)

    @property
    def quantises(self) -> bool:
        return any(choice.quantised for choice in self.choices)

    @property
    def opaque(self) -> list[str]:
        """What was taken as given, each once."""
        found = {it.func._schema.name for it in self.events if isinstance(it, Opaque)}
        return sorted(found | ({"NumPy"} if self.leaves_torch else set()))


Follow = Callable[[Choice, tuple[tuple[Any, ...], dict[str, Any]]], tuple[torch.Tensor, ...]]
"""From a choice and the operands of the run at hand to what that run follows."""


class Replay:
    """Hands out what was given, event by event, to one rerun.

    `follow` decides what a rerun uses in place of its own choice; by default what is held. `keeps`:
    the operands of this rerun's choices are kept with them. `feeding` notes what they feed.
    `fills`: rows without a key hold other numbers.
    """

    def __init__(
        self,
        given: Given,
        follow: Follow | None = None,
        *,
        keeps: bool = False,
        feeding: Feeding | None = None,
        fills: bool = False,
    ) -> None:
        self.given = given
        self._keyless = iter(given.keyless if fills else ())
        self.keeps = keeps
        self.feeding = feeding
        self._follow = follow
        self._at = 0
        self._lost = False
        """An own choice led elsewhere: what is given fits no more."""
        self._reader, self._stored = Reader(given.reads), Reader(given.stored)

    def dtype(self, own: torch.dtype, of: Any) -> torch.dtype:
        """What the reference's code read where this rerun's reads its `own`, of a tensor."""
        return self._reader.next(own, of)

    def choice(self, func: OpOverload, result: Any) -> Choice | None:
        """The choice that the reference made here; `result` is the rerun's own.

        None where a run that follows own choices has left the reference's way.
        """
        try:
            event = self._next(func)
            picked = [result] if getattr(event, "quantised", False) else _discrete(result)
            shapes = [t.shape for t in picked]
            if isinstance(event, Choice) and [t.shape for t in event.held] == shapes:
                return event
        except GivenError:
            if self._follow is None:
                raise
        if self._follow is None:
            raise GivenError(f"[given] {func} chooses other shapes than the reference did")
        self._lost = True
        return None

    def numbers(self, func: OpOverload, args: Any) -> Any:
        """The arguments with numbers as the reference's operation stored them."""
        if not stores_numbers(func):
            return args
        return with_stored_numbers(args, self._stored.next(args[0].dtype, args[0]))

    def filled(self, func: OpOverload, result: Any) -> Any:
        """The result of an operation of this rerun, rows without a key filled if that is asked."""
        rows = next(self._keyless, None) if may_lack_keys(func) else None
        return result if rows is None else filled(result, rows)

    def held(self, event: Choice, operands: tuple[Any, Any]) -> tuple[torch.Tensor, ...]:
        """What this rerun follows; copies, which it may write to."""
        if self._follow is not None:
            return self._follow(event, operands)
        return tuple(t.clone() for t in event.held)

    def opaque(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        change: Callable[[Any], Any],
        write: Callable[[Any, Any], Any] = torch.Tensor.copy_,
    ) -> Any:
        """The result of an opaque operation, `change` applied to each tensor of it and to what it
        writes."""
        event = self._next(func)
        if not isinstance(event, Opaque):
            raise GivenError(f"[given] {func} is opaque here, it was not in the reference")
        operands = list(operands_of(args, kwargs))
        for position, value in event.written.items():
            write(operands[position], change(value.clone()))
        written = [operands[position] for position in event.written]
        returns = func._schema.returns
        if written and returns and returns[0].alias_info is not None:
            result = written[0]
        else:
            result = tree_map(lambda v: change(v.clone()) if _is_tensor(v) else v, event.result)
        if self.keeps:
            self.given.unseen.given(func, [*written, result])
        return result

    def _next(self, func: Any) -> Choice | Opaque:
        if self._lost or self._at == len(self.given.events):
            raise GivenError(f"[given] {func} comes after all that the reference did")
        event = self.given.events[self._at]
        if event.func is not func:
            raise GivenError(f"[given] {func} where the reference had {event.func}")
        self._at += 1
        return event


@contextmanager
def watched(given: Given, own: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Notes in `given` what the run inside chooses, and what cannot be seen into.

    `own` are tensors of the modules by storage: what the run writes to them is taken back.
    """
    given.events.clear()
    given.reads.found.clear()
    given.keyless.clear()
    given.stored.found.clear()
    try:
        with _WatchFunctions(given), _Watch(given, own):
            yield
    finally:
        for t, before in given.kept.values():
            t.untyped_storage().copy_(before)


def is_opaque(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], unliftable: set[Any]
) -> bool:
    """Whether nothing is known of how the operation computes."""
    if unliftable and func in unliftable:
        return True
    if is_grouped(func):
        return False
    if func.namespace not in SEEN:
        return not can_decompose(func)
    if func is aten.view.dtype:
        return args[0].dtype.is_floating_point and not reads_bits_of_codes(func, args)
    if not _takes_a_dtype(func):
        return False
    operands = list(operands_of(args, kwargs))
    if not any(isinstance(v, torch.dtype) and v in QUANTISED for v in operands):
        return False
    if quantises(func, args, kwargs) or moves_codes(func, args, kwargs):
        return False
    return any(_is_tensor(v) and v.dtype not in QUANTISED for v in operands)


@functools.cache
def _takes_a_dtype(func: OpOverload) -> bool:
    """Whether it may make codes: what is given no dtype has a float's, or that of its operands."""
    return any("ScalarType" in str(argument.real_type) for argument in func._schema.arguments)


def is_choice(func: OpOverload, args: Any, kwargs: Any, result: Any) -> bool:
    """Whether integers or bools were made of floats."""
    if quantises(func, args, kwargs):
        return True
    if func._schema.is_mutable or func.is_view or not _discrete(result):
        return False
    name = func._schema.name.partition("::")[2]
    if name in MAKERS:  # of a tensor's form, whatever it holds
        return False
    first = next((v for v in leaves(result) if _is_tensor(v)), None)
    if name not in SELECTIONS and first is not None and _is_inexact(first):
        return False  # pivots, seeds of dropout, flags: they go with the numbers
    return any(_is_tensor(v) and _is_inexact(v) for v in operands_of(args, kwargs))


def follow(
    func: OpOverload, operands: tuple[Any, Any], result: Any, held: tuple[torch.Tensor, ...]
) -> Any:
    """`result` with the held choices, and where they are indices with the values at these."""
    if not isinstance(result, (tuple, list)):
        return held[0]
    if func._schema.name.partition("::")[2] in SELECTIONS and len(result) == 2:
        return at_indices(func, operands, result[0], held[0], operands[0][0]), held[0]
    left = iter(held)
    return tuple(next(left) if _is_discrete(v) else v for v in result)


def at_indices(
    func: OpOverload, operands: tuple[Any, Any], values: Any, index: torch.Tensor, x: torch.Tensor
) -> torch.Tensor:
    """Of x, which may have rows of samples in front, the elements that a selection returned."""
    axis = selection_axis(func, *operands)
    keep = values.ndim == operands[0][0].ndim
    index = index if keep else index.unsqueeze(axis)
    rows = x.ndim - index.ndim
    axis = axis + rows if axis >= 0 else axis
    taken = x.gather(axis, index.expand(x.shape[:rows] + index.shape))
    return taken if keep else taken.squeeze(axis)


def selection_axis(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    names = [argument.name for argument in func._schema.arguments]
    at = names.index("dim") if "dim" in names else len(args)
    return int(args[at] if len(args) > at else kwargs.get("dim", -1))


class _Watch(DispatchMode):
    """One run of the reference, changed in nothing."""

    def __init__(self, given: Given, own: Mapping[int, torch.Tensor]) -> None:
        super().__init__()
        self._given = given
        self._own = own

    def operation(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for t in filter(_is_tensor, operands_of(args, kwargs)):
            if why := not_dense(t):
                raise GivenError(f"[given] {func} takes a tensor that {why}")
            self._given.used.add(t)
        if draws(func):
            self._given.drew.add(func._schema.name)
        opaque = is_opaque(func, args, kwargs, self._given.unliftable)
        if not opaque:
            own = registered(func) is not None
            given = _apart(func, args, kwargs) if own else (args, kwargs)
            result = decomposed(self, func, *given)
            if own:
                self._given.registered.add(func._schema.name)
                self._keep_own(func, args, kwargs)
                gives = func(*args, **kwargs)
                check_result(func, result, gives)
                return gives
            if result is not NotImplemented:
                return result
        if func._schema.is_mutable:
            self._keep_own(func, args, kwargs)
        if stores_numbers(func):
            self._given.stored.note(args[0].dtype, args[0])
        if may_lack_keys(func):
            self._given.keyless.append(rows_without_key(func, args, kwargs))
        result = func(*args, **kwargs)
        if opaque:
            written = _written(func, args, kwargs)
            self._given.events.append(Opaque(func, tree_map(_kept, result), written))
        elif is_choice(func, args, kwargs, result):
            few = quantises(func, args, kwargs)
            if few:
                result = self._as_asked(result)
            held = tuple(t.clone() for t in ([result] if few else _discrete(result)))
            self._given.events.append(Choice(func, held, quantised=few))
        return result

    def _as_asked(self, result: torch.Tensor) -> torch.Tensor:
        """Values that were rounded, or those that are asked for in their place."""
        codes = self._given.codes
        at = sum(choice.quantised for choice in self._given.choices)
        if codes is None or at >= len(codes) or _form(codes[at]) != _form(result):
            return result
        return codes[at].clone()

    def _keep_own(self, func: OpOverload, args: Any, kwargs: Any) -> None:
        for t in _targets(func, args, kwargs):
            storage = t.untyped_storage()
            own = self._own.get(storage._cdata)
            if own is not None and storage._cdata not in self._given.kept:
                self._given.kept[storage._cdata] = (own, storage.clone())


class _WatchFunctions(FunctionMode):
    """Notes the dtypes that the code reads, and that tensors leave torch: what comes back is taken
    as NumPy computes it, which is in float64 where it is handed float64 and names no other dtype.
    """

    def __init__(self, given: Given) -> None:
        super().__init__()
        self._given = given

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.numpy:
            self._given.leaves_torch = True
        name = getattr(func, "__name__", "")
        if name in READING:
            self._given.reads_values = True
        if name in RECURRENT:
            self._given.recurrent = True
        if any(map(is_wrapper, types)):
            self._given.wrapped = True
        result = self.call(func, types, args, kwargs)
        if isinstance(result, torch.dtype):
            self._given.reads.note(result, asked(args))
        elif lacks_eps(func, args, kwargs):
            x = norm_input(args, kwargs)
            self._given.reads.note(x.dtype, x)
        return result


def _written(func: OpOverload, args: Any, kwargs: Any) -> dict[int, torch.Tensor]:
    """The arguments that the operation wrote to, as they are now."""
    found = {id(t) for t in _targets(func, args, kwargs)}
    operands = enumerate(operands_of(args, kwargs))
    return {i: operand.clone() for i, operand in operands if id(operand) in found}


def _apart(func: OpOverload, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments with copies of what the operation writes to: it is still to run itself."""
    copies = {id(t): t.clone() for t in _targets(func, args, kwargs)}
    apart: tuple[Any, Any] = tree_map(lambda v: copies.get(id(v), v), (args, kwargs))
    return apart


def _targets(func: OpOverload, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            yield from (leaf for leaf in leaves(value) if _is_tensor(leaf))


def _kept(value: Any) -> Any:
    return value.clone() if _is_tensor(value) else value


def _form(t: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return t.shape, t.dtype


def _discrete(result: Any) -> list[torch.Tensor]:
    return [value for value in leaves(result) if _is_discrete(value)]


def _is_discrete(value: Any) -> bool:
    return _is_tensor(value) and not _is_inexact(value)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_inexact(t: torch.Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()
