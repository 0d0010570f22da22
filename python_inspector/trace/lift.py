"""float64_lift(): runs unedited torch and transformers code in float64, whatever dtypes it names.

`model.double()` is not enough: the code casts to float32 inside (norms, softmax, rotary angles).
Here every dtype argument below float64 becomes float64 and every low-precision operand is upcast by
the operation that first uses it, so nothing computed is ever rounded below float64.

Values that come in at low precision must be *leaves*: recorded parameters, buffers or constants. A
leaf that the code casts (Gemma's embedding scale to the weight dtype) is cast as the code says and
then upcast: what depends only on weights keeps the rounding of the real run, what depends on
activations loses it.

Where the choices of a reference and the results of opaque operations are given (given.py), the lift
follows them instead of refusing, and its code reads the dtypes that the reference's read
(reads.py): it takes the same branches, the same finfo, the same constants.

A TorchDispatchMode does the work. A small TorchFunctionMode around it covers what never reaches the
dispatcher at low precision: tensor constructors, and C++ front ends that compare dtypes first.
The modes are per thread, the default dtype is global: lift in one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from .contraction import Products
from .decomposing import decomposed
from .dispatch import DispatchMode, FunctionMode, plain_arithmetic
from .given import (
    Replay,
    UnliftableError,
    follow,
    is_choice,
    is_opaque,
)
from .grouped import grouped_product, is_grouped
from .operations import leaves
from .quantising import QUANTISED, moves_codes, quantises, reads_bits_of_codes
from .reads import asked, eps_of, lacks_eps, norm_input, with_eps
from .simulation import large
from .storages import Storages

aten = torch.ops.aten

WIDE: dict[Any, torch.dtype] = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}
# Only move or cast a leaf: done as the code says, then upcast.
_MOVES = {
    aten.embedding.default,
    aten.index_select.default,
    aten.index.Tensor,
    aten.gather.default,
    aten.clone.default,
    aten._to_copy.default,
}
_CONSTRUCTORS = {
    torch.tensor,
    torch.as_tensor,
    torch.asarray,
    torch.from_numpy,
    torch.frombuffer,
    torch.Tensor.new_tensor,
}
_DTYPE_CHECKED = {
    getattr(torch, name) for name in dir(torch) if name.startswith("conv") or name.endswith("_norm")
} | {
    torch.nn.functional.scaled_dot_product_attention,
    torch.lstm,
    torch.gru,
    torch.bilinear,
}


class LiftError(RuntimeError):
    """Code that cannot be lifted: something below float64 would be computed unseen."""


def is_low(value: Any) -> bool:
    """Whether `value` is a floating tensor below float64."""
    return isinstance(value, torch.Tensor) and value.dtype in WIDE


def widen(value: Any) -> Any:
    """A float64 (complex128) copy of a low-precision tensor; anything else as it is."""
    return value.to(WIDE[value.dtype]) if is_low(value) else value


def _wide(operand: Any) -> Any:
    """An operation's argument: tensors and dtypes in float64."""
    if isinstance(operand, torch.dtype):
        return WIDE.get(operand, operand)
    if isinstance(operand, (list, tuple)):
        return [_wide(item) for item in operand]
    return widen(operand)


class _Functions(FunctionMode):
    """Functions that make or check their tensors before the dispatcher sees them, and what the code
    reads of dtypes."""

    def __init__(self, replay: Replay | None, constants: Storages, default: torch.dtype) -> None:
        super().__init__()
        self._replay = replay
        self._constants = constants
        self._default = default

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.numpy and self._replay is None:
            raise LiftError("[lift] a tensor leaves torch by .numpy(): its arithmetic is not seen")
        if lacks_eps(func, args, kwargs):
            args, kwargs = (), with_eps(args, kwargs, self._eps(args, kwargs))
        if func in _DTYPE_CHECKED:
            args, kwargs = tree_map(widen, (args, kwargs))
        if func in _CONSTRUCTORS:
            return self._constant(func, args, kwargs)
        result = self.call(func, types, args, kwargs)
        if isinstance(result, torch.dtype) and self._replay is not None:
            return self._replay.dtype(result, asked(args))
        return result

    def _eps(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        """That of the dtype which the norm's operand has in the run."""
        x = norm_input(args, kwargs)
        own = x.dtype
        return eps_of(own if self._replay is None else self._replay.dtype(own, x))

    def _constant(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Rounded as the code says, then exact."""
        if self._replay is None:
            result = func(*args, **kwargs)
        else:
            with _default_dtype(self._default):
                result = func(*args, **kwargs)
        if not is_low(result):
            return result
        with _disable_current_modes():
            result = widen(result)
        self._constants.add(result)
        return result


class _Lift(DispatchMode):
    """Rewrites every operation to float64; see the module's text."""

    def __init__(
        self,
        leaves: Collection[int] | None,
        chunk: int | None = None,
        replay: Replay | None = None,
        constants: Storages | None = None,
    ) -> None:
        super().__init__()
        self._leaves = leaves
        self._chunk = chunk
        self._replay = replay
        self._constants = Storages() if constants is None else constants
        self.products = Products()

    def operation(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        contraction = self.products.summed(func, args, kwargs)
        if contraction is not None:
            return contraction.of(widen(contraction.a), widen(contraction.b), (False, False))
        replay = self._replay
        if replay is not None:
            args = replay.numbers(func, args)
        if replay is not None and is_opaque(func, args, kwargs, replay.given.unliftable):
            return replay.opaque(func, args, kwargs, widen)
        result = decomposed(self, func, args, kwargs)
        if result is not NotImplemented:
            return result
        if func.namespace not in ("aten", "prims", "prim") and not is_grouped(func):
            raise LiftError(f"[lift] {func} is a custom operation whose inside is not seen")
        if func is aten.view.dtype and not reads_bits_of_codes(func, args):
            self._refuse_reinterpretation(args)
        if func.is_view or func in (aten._local_scalar_dense.default, aten.lift_fresh.default):
            return func(*args, **kwargs)  # a view of a leaf stays a leaf: no arithmetic yet
        self._check_operands(func, (*args, *kwargs.values()))
        self._refuse_low_writes(func, args, kwargs)
        result = self.products.wait(func, args, torch.float64, lambda: func(*map(widen, args)))
        if result is not None:
            return result
        result = self._apply(func, args, kwargs)
        for tensor in leaves(result):
            if is_low(tensor):
                raise LiftError(f"[lift] {func} produced {tensor.dtype}")
            if getattr(tensor, "dtype", None) not in QUANTISED:
                continue
            few = replay is not None and quantises(func, args, kwargs)
            if not few and not moves_codes(func, args, kwargs):
                raise LiftError(f"[lift] {func} produced {tensor.dtype}")
        if replay is not None and is_choice(func, args, kwargs, result):
            return self._chosen(replay, func, args, kwargs, result)
        if replay is None:
            return result
        if replay.keeps:
            replay.given.unseen.computed(func, args, kwargs, result)
        if replay.feeding is not None:
            replay.feeding.computed(func, args, kwargs, result)
        return replay.filled(func, result)

    @staticmethod
    def _chosen(replay: Replay, func: OpOverload, args: Any, kwargs: Any, result: Any) -> Any:
        """The reference's choice in place of what float64 would have chosen."""
        args, kwargs = tree_map(widen, (args, kwargs))
        choice = replay.choice(func, result)
        if choice is None:
            return result
        held = tuple(map(widen, replay.held(choice, (args, kwargs))))
        if replay.keeps:
            choice.operands, choice.free = (args, kwargs), result
        if replay.feeding is not None:
            for t in held:
                replay.feeding.chosen(choice, (args, kwargs), t)
        return follow(func, (args, kwargs), result, held)

    def _apply(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args and is_low(args[0]) and func in _MOVES:
            return widen(func(*args, **kwargs))
        casts = func is aten._to_copy.default and kwargs.get("dtype") in WIDE
        if casts and self._replay is not None and args[0] in self._constants:
            return widen(func(*args, **kwargs))
        if func is aten.mm.default and is_low(args[1]):
            chunk = self._chunk or large(args[1].device)
            if args[1].numel() > chunk:
                return _chunked_product(args[0], args[1], chunk)
        args = tuple(_wide(a) for a in args)
        kwargs = {name: _wide(a) for name, a in kwargs.items()}
        if is_grouped(func):
            return grouped_product(*args, **kwargs)
        if self._replay is None:
            return func(*args, **kwargs)
        try:
            return func(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            raise UnliftableError(func, error) from error

    def _check_operands(self, func: OpOverload, operands: tuple[Any, ...]) -> None:
        for value in leaves(operands):
            if isinstance(value, torch.dtype) and value in QUANTISED and self._replay is None:
                raise LiftError(f"[lift] {func} casts to {value}, a quantisation")
            if not is_low(value) or self._leaves is None or self._replay is not None:
                continue  # where all is watched, what is low came in as a constant
            if value.untyped_storage().data_ptr() not in self._leaves:
                raise LiftError(
                    f"[lift] {func}: operand {value.dtype} {tuple(value.shape)} is no parameter, "
                    "buffer or lifted input of the block: an un-lifted path made it"
                )

    def _refuse_low_writes(self, func: OpOverload, args: tuple[Any, ...], kwargs: Any) -> None:
        if not func._schema.is_mutable:
            return
        for i, argument in enumerate(func._schema.arguments):
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            written = [t for t in leaves(value) if isinstance(t, torch.Tensor)]
            if any(map(is_low, written)):
                raise LiftError(f"[lift] {func} writes a low-precision tensor: lift it first")
            for t in written:
                self._constants.discard(t)

    def _refuse_reinterpretation(self, args: tuple[Any, ...]) -> None:
        """Integers are read as floats where what made them is followed: a file's scales."""
        if args[0].dtype.is_floating_point or (args[1].is_floating_point and not self._replay):
            raise LiftError("[lift] the bits of a float tensor are reinterpreted (view(dtype))")


def _chunked_product(x: torch.Tensor, weight: torch.Tensor, chunk: int) -> torch.Tensor:
    """x @ weight without a whole float64 copy of a large weight [k, n]."""
    x = widen(x)
    step = max(1, chunk // weight.shape[0])
    parts = [x @ widen(weight[:, i : i + step]) for i in range(0, weight.shape[1], step)]
    return torch.cat(parts, dim=1)


@contextmanager
def float64_lift(
    leaves: Collection[int] | None = None,
    chunk: int | None = None,
    replay: Replay | None = None,
) -> Iterator[None]:
    """Everything torch computes inside is float64.

    `leaves`: storage addresses that may come in at low precision (None: any may). `chunk`: largest
    number of weight elements that are upcast at once in a matrix product, by default what suits the
    device. Raises LiftError where something could be computed below float64 without being seen;
    with a `replay` of the reference that is taken from there, and UnliftableError names an
    operation that should be.
    """
    default, constants = torch.get_default_dtype(), Storages()
    lift = _Lift(leaves, chunk, replay, constants)
    functions = _Functions(replay, constants, default)
    with _default_dtype(torch.float64), plain_arithmetic(), functions, lift:
        yield
        lift.products.finish()


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def looks_float32(tensor: torch.Tensor) -> bool:
    """Whether every element of a float64 result fits float32: float32 code may have made it.

    The guard that dtypes cannot give: a kernel that fills a float64 buffer with float32 values.
    Integers and small tensors prove nothing and give False.
    """
    if tensor.dtype != torch.float64 or tensor.numel() < 16:
        return False
    head = tensor.flatten()[:256]
    for part in (head, tensor):
        if not torch.equal(part.float().double(), part):
            return False
    return bool(torch.isfinite(tensor).all()) and not torch.equal(tensor, tensor.round())
