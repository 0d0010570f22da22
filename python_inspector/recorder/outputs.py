"""From a result and its reruns to what a recording says of one output."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import RecordError
from ..format.axes import Named
from ..format.delta import delta_of, oracle_of
from ..format.host_copy import near
from ..format.recording import (
    LegalRef,
    OutputRef,
    SampledRef,
    SimulatedRef,
    TensorRef,
)
from ..format.sampled import choose_tokens, is_sampled, sketch, take, token_axis
from ..format.writer import TakesTensors
from ..taps.calls import Block
from ..taps.options import Options
from ..trace.lift import looks_float32
from ..trace.open_choices import Open
from ..trace.reruns import Reruns, instability
from ..trace.simulation import NARROW
from ..trace.spread import Simulated, judged, model_of, sketch_of_rows, spreads_of_kinds
from .difference import difference
from .spreads import Spreads

# Kinds whose float64 output fits float32 only if something below the lift computed in float32.
_NEVER_FLOAT32 = {
    "rms_norm", "layer_norm", "attention", "glu_mlp", "softcap", "glu_activation",
    "gated_rms_norm", "ssd_scan", "mamba2_mixer",
}  # fmt: skip


class OutputStore:
    """Stores the outputs of one recording."""

    def __init__(
        self,
        writer: TakesTensors,
        options: Options,
        key: Callable[[torch.Tensor, torch.Tensor], str],
        warn: Callable[[str], None],
    ) -> None:
        """`key` stores a tensor, or finds it stored: it gets the tensor on its own device, and its
        values, which may be on the host."""
        self._writer = writer
        self._options = options
        self._key = key
        self._warn = warn
        self.spreads = Spreads()
        """What the entries of stored outputs still lack."""

    def store(self, where: str, name: str, block: Block, named: Named, reruns: Reruns) -> OutputRef:
        """The entry of output `name` of the checkpoint `where`."""
        with torch._C.DisableTorchFunction():  # the recorder's mode need not see its arithmetic
            return self._store(where, name, block, named, reruns)

    def _store(
        self, where: str, name: str, block: Block, named: Named, reruns: Reruns
    ) -> OutputRef:
        r, axes = named
        sampled = not block.of_rows and is_sampled(r, axes, self._options.what.sampling)
        if (
            self._options.what.rows is not None
        ):  # of a whole model some outputs are always like that
            sampled = sampled and name not in block.valid and bool(r.isfinite().all())
        if reruns.oracle is not None and sampled:
            output = self._sampled(where, name, block, named, reruns)
        else:
            output = self._whole(where, name, block, named, reruns)
        simulated = reruns.simulated
        if output.simulated is not None and simulated is not None:
            made_by = simulated.operations_of(name)
            if len(made_by) < len(simulated.operations):
                output.trace = self._writer.trace(made_by)
        if reruns.repeated is not None:
            error = instability(r, reruns.repeated[name][0])
            if error > 0:
                output.unstable = error
                self._warn(
                    f"{where}: {name} has other bits when the call is run again (relative error "
                    f"{error:.1e}): the reference itself is not stable"
                )
        return output

    def _whole(
        self, where: str, name: str, block: Block, named: Named, reruns: Reruns
    ) -> OutputRef:
        r, axes = named
        valid = block.valid.get(name)
        mask = None if valid is None else aligned(valid, axes)
        simulated = self._usable(where, name, r, reruns.simulated)
        oracle = None if reruns.oracle is None else reruns.oracle[name][0]
        values, o, near_mask, m = near([r, oracle, mask, _model(r, simulated, name)])
        assert values is not None
        delta, error = None, 0.0
        off = None
        if o is not None:
            result = difference(values, o, near_mask, where)
            off, error = result.delta, result.error
            delta = None if off is None else self._writer.tensor(off)
            if error != error:
                self._warn(f"{where}: {name} is NaN in the run or in the oracle, not in both")
            if block.kind in _NEVER_FLOAT32 and delta is not None and looks_float32(o):
                self._warn(f"{where}: the oracle's values all fit float32; was it computed there?")
        reference = None if valid is None else TensorRef(self._key(valid[0], valid[0]), valid[1])
        output = OutputRef(self._key(r, values), axes, delta, error, reference)
        if name in reruns.undecided and not r.is_floating_point():
            self._open(output, reruns.undecided[name])
        if simulated is not None:
            recorded = _recorded_oracle(r, oracle, off)

            def set_aside(rows: torch.Tensor) -> None:
                simulated.ill[name] = rows
                output.set_aside(self._writer.tensor(rows.contiguous()))

            def spread(stack: torch.Tensor, kinds: int) -> Sequence[dict[str, Any]]:
                stack = stack if math.isfinite(error) else _as_right_as(r, recorded, stack)
                known = simulated.spreads.get(name)
                if known and name in simulated.ill:
                    set_aside(simulated.ill[name])
                keep = functools.partial(simulated.against.__setitem__, name)
                return known or self.spreads.of(recorded, axes, mask, stack, kinds, set_aside, keep)

            output.simulated = self._simulated(name, values, m, simulated, spread)
        return output

    def _open(self, output: OutputRef, elements: Open) -> None:
        output.undecidable = self._writer.tensor(elements.mask)
        if elements.at is not None and elements.values is not None:
            at, values = (self._writer.tensor(t) for t in (elements.at, elements.values))
            output.legal = LegalRef(at, values, elements.distinct)

    def _sampled(
        self, where: str, name: str, block: Block, named: Named, reruns: Reruns
    ) -> OutputRef:
        """Chosen rows of the output with their deltas, and a sketch of all rows."""
        r, axes = named
        assert reruns.oracle is not None
        o = reruns.oracle[name][0]
        sampling, axis = self._options.what.sampling, token_axis(axes)
        assert sampling is not None and axis is not None
        if name in block.valid:
            raise RecordError(f"[{where}] {name} has excluded rows; such an output is stored whole")
        whole = sketch(r, o, axes, f"{where}: {name}")
        window = (block.params.get("attention") or block.params).get("window")
        tokens = choose_tokens(o, axes, sampling, window)
        r, o = take(r, axes, tokens), take(o, axes, tokens)
        result = difference(r, o, None, where)
        tables = (torch.tensor(tokens), whole.reference, whole.oracle, whole.rms)
        indices, *sketches = (self._writer.tensor(table) for table in tables)
        output = OutputRef(
            self._writer.tensor(r),
            axes,
            None if result.delta is None else self._writer.tensor(result.delta),
            result.error,
            sampled=SampledRef(indices, named[0].shape[axis], *sketches),
        )
        simulated = self._usable(where, name, named[0], reruns.simulated)
        if simulated is not None:
            known = _recorded_oracle(r, o, result.delta)
            against = judged(known, axes, None, tokens, r.dtype)
            against.sketch = sketch_of_rows(axes, named[0].shape, whole.oracle, whole.rms)

            def chosen(stack: torch.Tensor) -> torch.Tensor:
                return take(stack, ("run", *axes), tokens)

            def spread(stack: torch.Tensor, kinds: int) -> Sequence[dict[str, Any]]:
                some = chosen(stack)
                some = some if math.isfinite(result.error) else _as_right_as(r, known, some)
                return spreads_of_kinds(against, some, stack, kinds=kinds)

            m = _model(r, simulated, name, chosen)
            output.simulated = self._simulated(name, r, m, simulated, spread)
        return output

    def _usable(
        self, where: str, name: str, r: torch.Tensor, simulated: Simulated | None
    ) -> Simulated | None:
        """None where there is nothing to say of the output."""
        if simulated is None or not r.is_floating_point() or r.dtype == torch.float64:
            return None
        stack = simulated.stacks.get(name)
        if stack is None:
            self._warn(f"{where}: its rounded model has no {name}: left out")
            return None
        if (stack.dtype, stack.shape[1:]) != (r.dtype, r.shape):
            self._warn(
                f"{where}: {name} is {r.dtype} {tuple(r.shape)}, its rounded model {stack.dtype} "
                f"{tuple(stack.shape[1:])}: left out"
            )
            return None
        return simulated

    def _simulated(
        self,
        name: str,
        r: torch.Tensor,
        m: torch.Tensor | None,
        simulated: Simulated,
        spread: Callable[[torch.Tensor, int], Sequence[dict[str, Any]]],
    ) -> SimulatedRef:
        kinds = 2 if simulated.truncates and m is not None else 1
        samples = simulated.stacks[name][: 1 + kinds * simulated.runs]
        first, *truncated = spread(samples, kinds)
        result = SimulatedRef(first, narrow=m is not None)
        if m is not None:
            other = model_of(r, m)
            if other is not None:
                at, values = (self._writer.tensor(t) for t in other)
                result.model = (at, values)
            if truncated:
                result.truncated = truncated[0]
        return result


def _model(
    r: torch.Tensor,
    simulated: Simulated | None,
    name: str,
    chosen: Callable[[torch.Tensor], torch.Tensor] = lambda stack: stack,
) -> torch.Tensor | None:
    """What the rounded model has in place of a 16-bit output `r`, or of `chosen` rows of it."""
    if simulated is None or r.dtype not in NARROW:
        return None
    return chosen(simulated.stacks[name][:1])[0]


def _recorded_oracle(
    r: torch.Tensor, o: torch.Tensor | None, delta: torch.Tensor | None
) -> torch.Tensor:
    """As a reader of the recording has it. A delta that was made on the host is made again on the
    device of r: a copy would keep the host waiting."""
    if delta is None or o is None:
        return r.double()
    return oracle_of(r, delta if delta.device == r.device else delta_of(r, o))


def _as_right_as(r: torch.Tensor, o: torch.Tensor, stack: torch.Tensor) -> torch.Tensor:
    """Samples [k, *shape]: what overflows as it does in the reference is not off."""
    as_there = ~r.isfinite() & ((stack == r) | (stack.isnan() & r.isnan()))
    return torch.where(as_there, o.to(stack.dtype), stack)


def aligned(valid: Named, axes: tuple[str, ...]) -> torch.Tensor:
    """`valid` with a dimension of size 1 for every axis of the output that it lacks."""
    mask, names = valid
    sizes = dict(zip(names, mask.shape, strict=True))
    return mask.reshape([sizes.get(axis, 1) for axis in axes])
