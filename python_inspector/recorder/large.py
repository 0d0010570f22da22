"""Calls with large outputs: some of their rows are recorded, and all elements are compared.

Where `like` makes each row of its outputs of the same row of its operands (which is tried), the
call of chosen rows is recorded: simulated kernels, limits and planted bugs are its own. A kernel's
outputs are judged by that, and compared with the float64 run of all rows, which is made in pieces.
Rows that are further from it than the limits of the chosen ones allow are judged as well, as a call
of their own: limits depend on the values. So no element is wrong and not seen, and what is not
chosen is not failed by others' limits.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.utils._pytree import tree_leaves

from ..format.host_copy import is_host, same_bits
from ..format.operands import Output
from ..format.recording import DTYPES
from ..taps.generic import numbers_of, storable, tensors_of
from ..trace.given import Given
from ..trace.replay import Again, run_as_it_is
from ..trace.reruns import exactly
from ..trace.room import bounded
from .explanation import judgement_without_members
from .furthest import Limits, limits_of, shares
from .measured import fails
from .one_call import Arguments, Kept, Observed, OneCallRecording, Ran, undisturbed
from .pieces import Rows, rows_of
from .results import template_of, tensors_by_name
from .rows import chosen_tokens

ELEMENTS, ELEMENTS_ON_DEVICE = 1 << 19, 1 << 24
"""Of outputs, above which rows are chosen: on a host, which takes a second for a million in each of
the simulated kernels, and on an accelerator."""
CHOSEN, CHOSEN_ON_DEVICE = 1 << 17, 1 << 22
"""Elements of the rows that are judged at once."""
MOST_ROWS = 1 << 14
PIECE, PIECE_ON_DEVICE = 1 << 22, 1 << 26
"""Elements of outputs whose float64 run is made at once."""
SHARE, BESIDE = 4, 1 << 30
"""An accelerator's memory that is used: so many times what operands and results take, and so many
bytes more."""
BYTES_WHOLE, BYTES_CHOSEN, BYTES_COMPARED = 256, 1280, 320
"""An element of an output takes about so many where one simulated kernel runs after the other,
where several do, and where it is compared with a float64 run."""
ROOM_ON_HOST: int | None = None
NEAR = 0.05
"""Relative difference of what `like` makes of some rows, above which it does not work by rows."""

Tensors = Mapping[str, torch.Tensor]


@dataclass
class InRows:
    """A call of which some rows are recorded."""

    recording: OneCallRecording
    rows: Rows
    at: Sequence[int]
    """The chosen ones."""
    kept: Kept
    """The call of these."""
    shapes: Mapping[str, tuple[int, ...]]
    """Of whole outputs."""
    room: int | None
    on_host: bool
    differs: bool = False
    """Whether some rows had other bits than all together."""
    limits: dict[str, Limits] = field(default_factory=dict)
    finite: bool = True
    """Whether all that `like` makes are numbers."""

    @property
    def size(self) -> int:
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())

    @property
    def at_once(self) -> int:
        """Rows that may be judged at once."""
        return _rows_at_once(self.size // self.rows.count, self.room, self.on_host)

    def beyond(self, arguments: Arguments, outputs: Tensors) -> list[int]:
        """The rows of a kernel's outputs that have to be judged, too: the furthest off first."""
        found = [self._shares(arguments, outputs, at) for at in self._pieces()]
        every = torch.cat(found)
        at = (every > 1).nonzero()[:, 0]
        order = every[at].argsort(descending=True)
        chosen = set(self.at)
        return [row for row in at[order].tolist() if row not in chosen]

    def agrees(self, arguments: Arguments, outputs: Tensors) -> bool:
        """Whether `like` makes of all rows together what it makes of some of them: the same bits,
        or what is as right."""
        if fails(self.kept, self.of(outputs, self.at)):
            return False
        with undisturbed(self.kept.differentiates):
            others = [at for at in self._pieces() if not self._is_same(arguments, outputs, at)]
            self.differs = bool(others)
            rows = [
                at.start + int(i)
                for at in others
                for i in (self._shares(arguments, outputs, at) > 1).nonzero()[:, 0]
            ]
        for begin in range(0, len(rows), self.at_once):
            some = sorted(rows[begin : begin + self.at_once])
            own = self.recording.add(self.rows.of(arguments, some), self.kept.checkpoint.function)
            self.recording.drop(own)
            if fails(own, self.of(outputs, some)):
                return False
        return True

    def of(self, outputs: Tensors, at: Sequence[int]) -> dict[str, Output]:
        """These rows of outputs."""
        return {
            name: Output(DTYPES[t.dtype], tuple(t.shape), tensor=t)
            for name, t in ((name, self.rows.taken(t, at)) for name, t in outputs.items())
        }

    def _pieces(self) -> Iterator[range]:
        per_row = max(1, self.size // self.rows.count)
        most = PIECE if self.on_host else PIECE_ON_DEVICE
        if self.room is not None:
            most = min(most, self.room // BYTES_COMPARED)
        step = max(1, most // per_row)
        for start in range(0, self.rows.count, step):
            yield range(start, min(start + step, self.rows.count))

    def _is_same(self, arguments: Arguments, outputs: Tensors, at: range) -> bool:
        made = _outputs_of(self.recording.run(self.rows.of(arguments, at)))
        return all(same_bits(made[name], self.rows.taken(t, at)) for name, t in outputs.items())

    def _shares(self, arguments: Arguments, outputs: Tensors, at: range) -> torch.Tensor:
        """Of each of these rows how far it is off, in what the chosen ones may be."""
        cut = self.rows.of(arguments, at)
        with undisturbed(self.kept.differentiates):
            block = self.recording.described(cut)
            assert block is not None and block.settle is not None
            given = Given(inside=self.kept.reruns.inside)
            settle = functools.partial(block.settle, block)
            plain, exact = exactly(block.outputs, self.recording.again(cut), settle, given)
            worst = torch.zeros(len(at))
            for name, t in outputs.items():
                y = t.detach().narrow(self.rows.axis, at.start, len(at))
                limits = self.limits.get(name)
                off = shares(y, *exact[name], plain[name][0], limits, self.rows.axis)
                worst = torch.maximum(worst, off.cpu())
        return worst


def add(
    recording: OneCallRecording, arguments: Arguments, case: str | None, *, whole: bool
) -> tuple[Kept, InRows | None, int | None]:
    """As recording.add(), by some rows where outputs are large and not asked for as a `whole`; and
    the memory in bytes that judging them may take."""
    ran = recording.run(arguments)
    outputs = _outputs_of(ran)
    room = _room_of(recording, ran, outputs)
    with bounded(room):
        if whole or not _is_large(outputs, room) or _changes(ran):
            del outputs
            return recording.add(arguments, case, ran), None, room
        seen = Observed(
            template_of(ran.real.result), ran.bound, numbers=numbers_of(ran.bound, ran.real.twin)
        )
        again = ran.again
        del ran  # and its copies of the operands
        found = _in_rows(recording, arguments, case, outputs, room)
        if found is not None:
            unstable = _unstable(again, outputs) if found.differs else frozenset()
            names = found.kept.observed.outputs
            found.kept.observed = replace(seen, outputs=names, unstable=unstable)
            found.finite = all(bool(t.isfinite().all()) for t in outputs.values())
            return found.kept, found, room
        del outputs
        return recording.add(arguments, case), None, room


def _in_rows(
    recording: OneCallRecording,
    arguments: Arguments,
    case: str | None,
    outputs: Tensors,
    room: int | None,
) -> InRows | None:
    """None where `like` does not work by rows."""
    shapes = {name: tuple(t.shape) for name, t in outputs.items()}
    on_host = _on_host(outputs)
    size = sum(t.numel() for t in outputs.values())
    count = max((t.shape[0] for t in outputs.values() if t.ndim), default=0)
    most = _rows_at_once(size // max(1, count), room, on_host)
    for rows in rows_of(arguments, outputs, most):
        at = chosen_tokens(rows.count, _rows_at_once(size // rows.count, room, on_host))
        ran = _near(recording, rows.of(arguments, at), rows, at, outputs)
        if ran is None:
            continue
        kept = recording.add(rows.of(arguments, at), case, ran)
        found = InRows(recording, rows, at, kept, shapes, room, on_host)
        judgement = judgement_without_members(kept)
        if judgement is not None:
            found.limits = {
                name: limits_of(gates, name, kept.checkpoint.outputs[name].labels)
                for name, gates in judgement.gates.items()
            }
            if _is_judged(outputs, found.limits) and found.agrees(arguments, outputs):
                return found
        recording.drop(kept)
    return None


def _near(
    recording: OneCallRecording, cut: Arguments, rows: Rows, at: Sequence[int], outputs: Tensors
) -> Ran | None:
    """The call of some rows as it is; None where it is another function of them, or none."""
    try:
        ran = recording.run(cut)
        made = _outputs_of(ran)
    except Exception:  # whatever the code says of other shapes
        return None
    if made.keys() != outputs.keys():
        return None
    for name, t in outputs.items():
        expected = rows.taken(t, at)
        if (made[name].dtype, made[name].shape) != (expected.dtype, expected.shape):
            return None
        if not same_bits(made[name], expected) and _distance(made[name], expected) > NEAR:
            return None
    return ran


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Of numbers, relative; of others the share that differs."""
    if not b.is_floating_point():
        return float((a != b).double().mean())
    wide = b.double().nan_to_num(0.0, 0.0, 0.0)
    off = a.double().nan_to_num(0.0, 0.0, 0.0) - wide
    return float(off.norm() / wide.norm().clamp_min(torch.finfo(torch.float32).tiny))


def _unstable(again: Again, outputs: Tensors) -> frozenset[str]:
    """Outputs with other bits when the whole call is made again."""
    with undisturbed():
        made = again(run_as_it_is)
    repeated = {name: storable(t)[0] for name, t in tensors_by_name(made.result).items()}
    return frozenset(name for name, t in outputs.items() if not same_bits(t, repeated[name]))


def _outputs_of(ran: Ran) -> dict[str, torch.Tensor]:
    """As a recording has them; without arguments that were changed."""
    return {name: storable(t)[0] for name, t in tensors_by_name(ran.real.result).items()}


def _changes(ran: Ran) -> bool:
    """Whether the call writes to its arguments."""
    before = tensors_of(ran.bound, lambda t: t)
    after = tensors_of(ran.bound, ran.real.twin)
    return before.keys() != after.keys() or not all(
        before[name].shape == t.shape and same_bits(before[name], t) for name, t in after.items()
    )


def _is_judged(outputs: Tensors, limits: Mapping[str, Limits]) -> bool:
    """Whether all numbers have limits."""
    return all(
        name in limits or not (t.is_floating_point() or t.is_complex())
        for name, t in outputs.items()
    )


def _is_large(outputs: Tensors, room: int | None) -> bool:
    size = sum(t.numel() for t in outputs.values())
    most = ELEMENTS if _on_host(outputs) else ELEMENTS_ON_DEVICE
    return size > most or (room is not None and size * BYTES_WHOLE > room)


def _on_host(outputs: Tensors) -> bool:
    return all(is_host(t.device) for t in outputs.values())


def _rows_at_once(per_row: int, room: int | None, on_host: bool) -> int:
    most = CHOSEN if on_host else CHOSEN_ON_DEVICE
    most = most if room is None else min(most, room // BYTES_CHOSEN)
    return max(1, min(MOST_ROWS, most // max(1, per_row)))


def _room_of(recording: OneCallRecording, ran: Ran, outputs: Tensors) -> int | None:
    """Of an accelerator that has results; a host's memory is not counted."""
    if _on_host(outputs):
        return ROOM_ON_HOST
    operands = [t for t in tree_leaves(list(ran.bound.values())) if isinstance(t, torch.Tensor)]
    tensors = {id(t): t for t in (*operands, *recording.tensors(), *outputs.values())}
    return BESIDE + SHARE * sum(t.numel() * t.element_size() for t in tensors.values())
