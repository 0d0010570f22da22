"""rounded_run(): torch code as a correct kernel with the same rounding points computes it.

Every aten operation is computed in float64 from its stored operands and rounded once, to the dtype
that the operation stores in eager torch. That is the rounded model m: what every correct kernel
gives in all but a small share of its bits. In the same pass run simulated correct kernels: before
each rounding they are off by what another order of float32 sums and another library's functions
are off (arithmetic.py). What they show of a gate's statistic, a correct kernel may show.

Discrete choices (comparisons, top-k, indices, branches) are those of m in every simulated run, or
those of the reference where they are given (given.py).
Moves, views and selections are done as they are. A list of the operations is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload

from ..format.recording import CODES, DTYPES
from . import truncation
from .arithmetic import (
    FUNCTIONS,
    if_rounded,
    is_rounded,
    name_of,
    of_sum,
    terms,
)
from .attention_model import all_results, attend, is_attention
from .backward_error import is_stable, solved
from .batched import batched
from .choices import doubt
from .codes import codes_of_rows
from .composites import composition
from .contraction import Contraction, Products
from .contracts import Inside
from .correctly_rounded import is_correctly_rounded
from .decomposing import can_decompose, decomposed
from .delta import Delta
from .dispatch import DispatchMode, plain_arithmetic, without_fused_layers
from .flow import Flow
from .given import (
    SELECTIONS,
    Replay,
    at_indices,
    is_choice,
    is_opaque,
)
from .given import follow as followed
from .gradient_arithmetic import noise
from .grouped import grouped, is_grouped
from .interpolation import interpolates, of_positions
from .multiplied import Multiplied, summed
from .narrow_prod import of_factors, rounds_factors
from .narrow_product import is_narrow
from .norm_model import is_norm, normalise
from .operations import (
    IN_PLACE_VIEWS,
    MAKERS,
    MOVES,
    is_inexact,
    is_number,
    moves,
    narrows,
    tensors,
)
from .products import cut_off, rounded_to_tf32
from .quantising import SCALES, quantises, scaled_inexactly
from .reads import stores_numbers, with_stored_numbers
from .simulation import LOW, NARROW, Noise, Operands, Simulation, product, widened
from .stored import Dtypes, of_integers, stored_dtypes
from .writes import RoundedRunError, target_of, written

aten = torch.ops.aten

_PRODUCTS = {"mm": (0, 1), "addmm": (1, 2)}
_SOFTMAX = (aten._softmax.default, aten._log_softmax.default)


@contextmanager
def rounded_run(
    simulation: Simulation, replay: Replay | None = None, inside: Inside | None = None
) -> Iterator[None]:
    """What torch computes inside is the rounded model; its samples are in simulation.stacks.

    With a `replay` it follows the choices of the reference, and notes which are in doubt. `inside`
    is how simulated kernels depart from float32 arithmetic.
    """
    rounded = _Rounded(simulation, replay, inside or Inside())
    with plain_arithmetic(), without_fused_layers(), rounded:
        yield
        rounded.products.finish()


class _Rounded(DispatchMode):
    def __init__(self, simulation: Simulation, replay: Replay | None, inside: Inside) -> None:
        super().__init__()
        self._simulation = simulation
        self._stacks = simulation.stacks
        self._flow = Flow(simulation.operations, replay) if simulation.samples() else None
        if self._flow:  # a run of the model alone need not know, and there are many
            simulation.makers = self._flow.makers
        self._replay = replay
        self._inside = inside
        self.products = Products()
        self._multiplied, self._delta = Multiplied(inside.sees_factors), Delta(inside.narrow)
        self._quantises = replay is not None and replay.given.quantises
        """So a scale may be applied as a reciprocal, and codes are integers with samples."""

    def operation(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        begun = self._flow.begin() if self._flow else None
        self._delta.before(func, args)
        result = self._result(func, args, kwargs)
        if self._flow and begun:
            self._flow.after(begun, func, args, kwargs, result)
        self._multiplied.after(func, args, result)
        self._delta.after(func, args, result)
        return result

    def _result(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        contraction = self.products.summed(func, args, kwargs)
        if contraction is not None:
            return self._contracted(contraction, args, kwargs)
        replay = self._replay
        if replay is not None and is_opaque(func, args, kwargs, replay.given.unliftable):
            return self._taken(replay, func, args, kwargs)
        if func.is_view and not can_decompose(func):
            return func(*args, **kwargs)
        result = decomposed(self, func, args, kwargs)
        if result is not NotImplemented:
            return result
        if func.namespace not in ("aten", "prims", "prim") and not is_grouped(func):
            raise RoundedRunError(f"[rounded] {func} is a custom operation: its inside is unseen")
        composed = composition(func, args, kwargs)
        if composed is not None:
            with self:
                return composed(*args, **kwargs)
        name, given = name_of(func), tensors((args, kwargs))
        if not self._quantises and not any(map(is_inexact, given)):
            args = of_integers(func, name, args, kwargs)
            given = tensors((args, kwargs))
        if name in MAKERS or not any(map(self._varies, given)):
            return func(*args, **kwargs)
        if replay is not None and quantises(func, args, kwargs):
            return self._quantised(replay, func, name, args, kwargs)
        if func._schema.is_mutable:
            if name in IN_PLACE_VIEWS:
                return func(*args, **kwargs)
            return self._in_place(func, name, args, kwargs)
        if moves(func, name, args):
            return self._moved(func, name, args, kwargs)
        waiting = self._waiting(func, name, args, kwargs)
        if waiting is not None:
            return waiting
        dtypes = stored_dtypes(func, args, kwargs)
        if not any(is_number(dtype) for dtype in dtypes):
            return self._chosen(func, args, kwargs)
        stores = dtypes[0]
        if stores_numbers(func) and stores is not None:
            args = with_stored_numbers(args, stores)
        scales = self._quantises and name in SCALES
        if stores is not None and not scales and is_correctly_rounded(name, args, kwargs, stores):
            operands = Operands(self._stacks, args, kwargs, wide=False)
            exact = not operands.mixed and not self._multiplied.added(func, args, kwargs)
            if exact and not self._simulation.keeps(stores):
                return self._as_it_is(func, name, operands)
        operands = self._operands(func, name, args, kwargs)
        if name in SELECTIONS and len(dtypes) == 2:
            return self._selected(func, args, kwargs, operands)
        return self._computed(func, name, operands, dtypes)

    def _waiting(self, func: OpOverload, name: str, args: Any, kwargs: Any) -> torch.Tensor | None:
        """A placeholder for a large product that the code most likely sums; not of 16-bit ones,
        which are rounded to bits that count."""
        if func is not aten.mul.Tensor or (dtype := torch.result_type(*args)) in NARROW:
            return None

        def make() -> torch.Tensor:
            operands = Operands(self._stacks, args, kwargs, wide=True)
            exact = self._exact(func, name, operands)
            result: torch.Tensor = self._kept(exact, dtype, operands.stacked)
            self._multiplied.hold(result, *args)
            return result

        stand_in = self.products.wait(func, args, dtype, make)
        if stand_in is not None:
            self._note(name, args, stand_in)
        return stand_in

    def _contracted(self, contraction: Contraction, args: Any, kwargs: Any) -> torch.Tensor:
        """The sum of a product that was never made: with the noise of sums."""
        given = [contraction.a, contraction.b]
        operands = Operands(self._stacks, given, {}, wide=True)
        a, b = operands.args = widened(operands.args)
        exact = contraction.of(a, b, (operands.has_rows(a), operands.has_rows(b)))
        first = exact[0] if operands.stacked else exact
        stacked = operands.stacked
        self._simulation.check(first.numel(), exact.device)
        rounds = bool(self._simulation.samples()) and is_rounded(first)
        if rounds is not False:
            (a, b), _ = operands.first_row()
            magnitudes = contraction.of(a.abs(), b.abs(), (False, False))
            scale = if_rounded(rounds, of_sum(magnitudes, first, contraction.terms))
            more = self._inside.of_factors(
                lambda change: contraction.of(change(a), change(b), (False, False)), args[0].dtype
            )
            exact, stacked = self._simulation.perturb(exact, scale, stacked, more), True
        result: torch.Tensor = self._kept(exact, args[0].dtype, stacked)
        self._note("sum", args, result)
        return result

    def _taken(self, replay: Replay, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """What an opaque operation gave the reference; another kernel of it is off by as much as
        one function is, at least."""

        def each(t: torch.Tensor) -> torch.Tensor:
            if not is_inexact(t) or t.dtype not in LOW:
                return t
            self._note(name_of(func), args, t)
            if not self._simulation.samples():
                return t
            exact = t.to(LOW[t.dtype])
            off = self._simulation.perturb(exact, FUNCTIONS * exact.abs(), stacked=False)
            return self._stacks.adopt(off.to(t.dtype))

        return replay.opaque(func, args, kwargs, each, self.write)

    def _varies(self, t: torch.Tensor) -> bool:
        """Whether a tensor holds rounded numbers, or codes that simulated kernels do not share."""
        return is_inexact(t) or (self._quantises and self._stacks.of(t) is not None)

    def _quantised(
        self, replay: Replay, func: OpOverload, name: str, args: Any, kwargs: Any
    ) -> torch.Tensor:
        """The reference's values, where simulated kernels do not round to others."""
        operands = Operands(self._stacks, args, kwargs, wide=False)
        choice = replay.choice(func, func(*args, **kwargs))
        assert choice is not None
        held = replay.given.codes is not None
        codes = codes_of_rows(func, operands, None if held else self._simulation, choice)
        alone = codes is choice.held[0]
        result = codes.clone() if alone else self._stacks.adopt(codes)
        self._note(name, args, result)
        return result

    def _chosen(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A choice: m's, or the reference's where that is given."""
        result = func(*args, **kwargs)
        if self._quantises and not is_choice(func, args, kwargs, result):
            codes = Operands(self._stacks, args, kwargs, wide=False)
            return self._as_it_is(func, name_of(func), codes) if codes.stacked else result
        if self._replay is None or not is_choice(func, args, kwargs, result):
            return result
        operands = Operands(self._stacks, args, kwargs, wide=True)
        return self._held(self._replay, func, operands, (args, kwargs), result)

    def _held(
        self, replay: Replay, func: OpOverload, operands: Operands, given: Any, result: Any
    ) -> Any:
        """The reference's choice; what simulated kernels would choose tells if it is in doubt."""
        choice = replay.choice(func, result)
        assert choice is not None
        doubt(choice, operands)
        return followed(func, given, result, replay.held(choice, given))

    def _computed(self, func: OpOverload, name: str, operands: Operands, dtypes: Dtypes) -> Any:
        multiplied = self._inside.rounded_operands(name, operands.stores)
        operands.change(multiplied, rounded_to_tf32)
        whole = self._whole(func, name, operands, dtypes)
        if whole is not None:
            return whole
        exact = self._exact(func, name, operands)
        stacked = operands.stacked
        if not isinstance(exact, (tuple, list)):
            result = self._stored(func, name, operands, exact, dtypes[0], stacked)
            self._note(name, operands.given, result)
            return result
        values = zip(exact, dtypes, strict=False)
        results = [self._stored(func, name, operands, v, dtype, stacked) for v, dtype in values]
        self._note(name, operands.given, results[0])
        return tuple(results)

    def _whole(self, func: OpOverload, name: str, operands: Operands, dtypes: Dtypes) -> Any:
        """An operation of which more is known than that it is a function or a sum; its kernels are
        simulated inside of it. None for any other."""
        simulation = self._simulation
        if is_attention(name):
            made: Sequence[Any] = attend(func, operands, simulation, self._inside)
        elif is_norm(name):
            operands.args = widened(operands.args)
            made = normalise(name, func, operands, simulation, dtypes)
        elif is_stable(name):
            operands.args = widened(operands.args)
            made = solved(func, operands, simulation)
        else:
            return None
        results = []
        for value, dtype in zip(made, dtypes, strict=False):
            if dtype is not None and is_number(dtype):
                value = self._kept(value, dtype, True)
            elif isinstance(value, torch.Tensor):
                value = value[0]
            results.append(value)
        self._note(name, operands.given, results[0])
        return results[0] if len(dtypes) == 1 else all_results(func, results)

    def _operands(self, func: OpOverload, name: str, args: Any, kwargs: Any) -> Operands:
        """In float64, unless an accelerator multiplies them as they are."""
        if name in _PRODUCTS and not kwargs:
            operands = Operands(self._stacks, args, kwargs, wide=False)
            a, b = (operands.args[i] for i in _PRODUCTS[name])
            if is_narrow(a, b) and not operands.mixed and not operands.has_rows(b):
                return operands
        products = self._multiplied.added(func, args, kwargs)
        return Operands(self._stacks, args, kwargs, wide=True, products=products)

    def _as_it_is(self, func: OpOverload, name: str, operands: Operands) -> Any:
        """As torch computes it: every kernel has the same."""
        if operands.stacked:
            rows = self._simulation.rows
            stack = batched(func, operands.args, operands.kwargs, operands.has_rows, rows)
            self._simulation.check(stack[0].numel(), stack.device)
            result = self._stacks.adopt(stack)
        else:
            result = func(*operands.args, **operands.kwargs)
        self._note(name, operands.given, result)
        return result

    def _exact(self, func: OpOverload, name: str, operands: Operands) -> Any:
        """The float64 result, [rows, ...] if any operand has rows."""
        if name not in _PRODUCTS:
            operands.args = widened(operands.args)
        if func in _SOFTMAX:
            operands.args[2] = False  # half_to_float, as CUDA has it, of a float64 already
        if is_grouped(func):
            return grouped(operands)
        if operands.stacked:
            rows = self._simulation.rows
            return batched(func, operands.args, operands.kwargs, operands.has_rows, rows)
        if func is aten.mm.default:
            return product(*operands.args)
        if func is aten.addmm.default:
            return batched(func, operands.args, operands.kwargs, operands.has_rows, 1)
        return func(*operands.args, **operands.kwargs)

    def _stored(
        self,
        func: OpOverload,
        name: str,
        operands: Operands,
        exact: Any,
        dtype: torch.dtype | None,
        stacked: bool,
    ) -> Any:
        """Perturbed, rounded to what is stored, and entered as a stack if it is one."""
        if not isinstance(exact, torch.Tensor) or dtype is None:
            return exact
        if not is_number(dtype):
            return exact[0] if stacked else exact
        if stacked:
            self._simulation.check(exact[0].numel(), exact.device)
        into = torch.float32 if self._simulation.keeps(dtype) else dtype
        perturbed = self._perturbed(func, name, operands, exact, stacked, into)
        stacked = stacked or perturbed is not exact
        exact = perturbed
        return self._kept(exact, dtype, stacked)

    def _kept(self, exact: torch.Tensor, dtype: torch.dtype, stacked: bool) -> torch.Tensor:
        """Rounded to what is stored, and entered as a stack if it is one."""
        if self._simulation.keeps(dtype):
            return self._stacks.adopt_wide(self._simulation.kept_wide(exact, dtype, stacked), dtype)
        rounded = exact.to(dtype)
        return self._stacks.adopt(rounded) if stacked else rounded

    def _perturbed(
        self,
        func: OpOverload,
        name: str,
        operands: Operands,
        exact: torch.Tensor,
        stacked: bool,
        into: torch.dtype,
    ) -> torch.Tensor:
        """A stack in `into`, `exact` itself where every kernel has the same."""
        simulation = self._simulation
        if not simulation.samples():
            return exact
        cuts = simulation.truncating > 0 and truncation.applies(name)
        if cuts and not stacked:
            simulation.check(exact.numel(), exact.device)  # before the work
        args, kwargs = operands.first_row()
        first = exact[0] if stacked else exact
        if interpolates(name):
            parts = of_positions(name, func, args, first)
        else:
            parts = noise(name, func, args, kwargs, first) + self._delta.noise(args)
        if self._quantises and name in SCALES and not first.is_complex():
            parts = [Noise(FUNCTIONS * first.abs() * scaled_inexactly(name, args, first))]
        if rounds_factors(name, into, first.device):
            parts.append(of_factors(args, first, into))
        if parts:
            parts += self._inside.noise(name, args, kwargs, first, into, parts)
        if products := operands.products:
            parts += self._inside.of_factors(
                lambda change: summed(func, args, kwargs, products, change), into
            )
        if parts and self._inside.rounded_operands(name, operands.stores):
            parts.append(cut_off(first))
        if not cuts and not parts:
            return exact
        if not stacked:
            simulation.check(exact.numel(), exact.device)
        out = exact.new_empty((simulation.rows, *first.shape), dtype=into)
        out[0] = first
        for samples in simulation.samples(truncating=False if cuts else None):
            rows = exact[samples.rows] if stacked else exact
            samples.perturb(rows, parts, out[samples.rows])
        if cuts:
            (cutting,) = simulation.samples(truncating=True)
            rows = out[cutting.rows]
            truncation.cut_off(name, operands, exact, stacked, simulation, rows)
        return out

    def _moved(
        self, func: OpOverload, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        operands = Operands(self._stacks, args, kwargs, wide=False)
        dtype = kwargs.get("dtype")
        if name == "_to_copy" and dtype is not None and self._simulation.keeps(dtype):
            stack = self._simulation.kept_wide(operands.args[0], dtype, operands.stacked)
            result = self._stacks.adopt_wide(stack, dtype)
        elif dtype is not None and not is_number(dtype):
            result = self._chosen(func, args, kwargs)
        elif not operands.stacked:
            result = func(*args, **kwargs)
        else:
            rows = self._simulation.rows
            stack = batched(func, operands.args, operands.kwargs, operands.has_rows, rows)
            (nominal,) = stored_dtypes(func, args, kwargs)
            if nominal is None or nominal == stack.dtype:
                result = self._stacks.adopt(stack)
            else:
                result = self._stacks.adopt_wide(stack, nominal)
        if name == "_to_copy" and narrows(args[0], result):
            self._note(name, args, result)
        return result

    def _selected(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], operands: Operands
    ) -> Any:
        result = func(*args, **kwargs)
        if self._replay is not None and is_choice(func, args, kwargs, result):
            result = self._held(self._replay, func, operands, (args, kwargs), result)
        values, indices = result
        x = operands.args[0]
        if not operands.has_rows(x):
            return values, indices
        taken = at_indices(func, (args, kwargs), values, indices, x)
        return self._stacks.adopt(taken.to(values.dtype)), indices

    def _in_place(
        self, func: OpOverload, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Writes the rounded result back to the first argument."""
        target = target_of(func, args)
        if not is_inexact(target):
            return func(*args, **kwargs)
        is_move = name in MOVES
        products = self._multiplied.added(func, args, kwargs)
        operands = Operands(self._stacks, args, kwargs, wide=not is_move, products=products)
        if not operands.stacked and is_move:
            func(*args, **kwargs)
        else:
            given = operands.args if is_move else widened(operands.args)
            exact, stacked = written(func, given, operands, self._simulation)
            if not is_move:
                exact = self._perturbed(func, name, operands, exact, stacked, target.dtype)
            if stacked or exact.shape != target.shape:
                self._stacks.write(target, exact.to(target.dtype))
            else:
                target.copy_(exact)
        source = args[1] if name == "copy" else target
        if not is_move or narrows(source, target):
            self._note(name, args, target)
        return target

    def _note(self, name: str, args: Sequence[Any], result: Any) -> None:
        if not isinstance(result, torch.Tensor):
            return
        stores = result.real if result.is_complex() else result
        if DTYPES.get(stores.dtype) in (None, *CODES) or not is_inexact(result):
            return
        entry: dict[str, Any] = {"op": name, "stores": DTYPES[stores.dtype]}
        if (n := terms(name, args, result)) > 1:
            entry["terms"] = int(n)
        self._simulation.operations.append(entry)
