"""A run that goes on where one before it was killed.

The model runs again from the start, which is cheap, and its caches and masks are needed. Calls that
become checkpoints are counted; one that the run before had finished is described again, to know its
tensors when other calls use them, but neither repeated, nor lifted, nor simulated, nor stored. For
that, the tensors of both runs must have the same bits: small inputs are compared in every call, all
inputs in the first call of each layer, and every weight.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from .. import interrupts
from ..errors import FormatError, ResumeError
from ..format.axes import Named
from ..format.journal import Additions, Finished
from ..format.payload import Payload, tensor_bytes
from ..format.recording import dtype_name
from ..format.spool import BESIDE
from ..format.tensor_table import Weight
from ..format.writer import RecordingWriter
from ..taps.calls import Block
from ..taps.options import Options, layer_of
from ..trace.given import Given
from ..trace.replay import Again, run_watched
from .operands import Operands

_ADVICE = (
    "run it with the same weights and input, on the same machine and device; if the device does "
    "not give the same bits twice, leave out --resume to record anew"
)


@dataclass
class Event:
    """A call that becomes a checkpoint: its number, and how the run before had it, if it did."""

    number: int
    finished: Finished | None = None
    left_out: bool = False
    """It becomes none, and is only counted."""
    opened: Additions = field(default_factory=Additions)
    """What came into the recording when it began."""

    @property
    def is_made(self) -> bool:
        """Whether this run makes the checkpoint."""
        return self.finished is None and not self.left_out


class StretchIsOver(Exception):  # noqa: N818  (nothing went wrong)
    """All that is to be recorded has been."""


class Resume:
    """The calls of a run, of which the first ones may be finished; and the writer's journal."""

    def __init__(
        self, writer: RecordingWriter, operands: Operands, options: Options, layers: int
    ) -> None:
        self._writer = writer
        self._operands = operands
        self._settles = options.oracle is not False
        """Whether calls that no tap describes are watched."""
        self._calls = options.calls
        self._stretch = options.stretch
        self._layers = layers
        self.place = (0, 0)
        """Where the run is."""
        self._layer: int | None = None
        """That was entered last in this call, or what stands behind all."""
        self._events = 0
        self._payloads: dict[str, Payload] = {
            taken.key: taken.payload for f in writer.finished.values() for taken in f.tensors
        }
        self._seen: set[tuple[int, int | str]] = set()
        self._weights: list[tuple[Weight, str]] = []
        """Those that are still to be compared, and their SHA-256 in the run before."""

    def enter(self, path: str, call: int) -> None:
        """A module is called. StretchIsOver where nothing is recorded any more.

        A module that several layers share has the first one's path: places only go on. What stands
        in no layer is behind them all once the last one has been entered, else where the run was.
        """
        if call != self.place[0]:
            self._layer = None
        layer = layer_of(path)
        if layer is None and self._layer == self._layers - 1:
            layer = self._layers
        if layer is not None:
            self._layer = max(layer, self._layer or 0)
        self.place = (call, self._layer or 0)
        if self._stretch is not None and self.place >= self._stretch[1]:
            raise StretchIsOver

    def begin(self, path: str, block: Block, again: Again | None, call: int) -> Event:
        """A block's call begins, in forward call `call` of the model."""
        interrupts.check()
        if not self._is_own():
            self._settle(block, again)
            return Event(-1, left_out=True)
        self._writer.additions()  # what came before it will come again
        event = Event(self._events, self._writer.finished.pop(self._events, None))
        self._events += 1
        if event.finished is None:
            return event
        entry = event.finished.checkpoint
        if (entry["path"], entry["block"]) != (path or "model", block.kind):
            raise self._error(
                f"call {event.number} of this run is of {path or 'the model'} ({block.kind}), in "
                f"the run before it was {entry['id']} ({entry['block']})"
            )
        self._settle(block, again)
        layer = layer_of(path)
        place = (call, path if layer is None else layer)
        self._compare(event.finished, block.inputs, every=place not in self._seen)
        self._seen.add(place)
        self._take_over(event.finished, event.finished.opened)
        self.remember(event, block.inputs)
        return event

    def _is_own(self) -> bool:
        """Whether this process records what begins now, not one beside it."""
        if self._calls is not None and self.place[0] not in self._calls:
            return False
        if self._stretch is None:
            return True
        begin, end = self._stretch
        return begin <= self.place < end

    def begun(self, event: Event) -> None:
        """What is stored from now on, until the call is over, is not the block's."""
        event.opened = self._writer.additions()

    def ends(self) -> None:
        """The call is over; what is stored from now on is the block's."""
        self._writer.additions()

    def remember(self, event: Event, inputs: dict[str, Named]) -> None:
        """These inputs of a finished checkpoint are stored."""
        if event.finished is None:
            return
        refs = event.finished.checkpoint["inputs"]
        for name, (tensor, _) in inputs.items():
            self._operands.remember(tensor, refs[name]["tensor"])

    def take_over(
        self, event: Event, id: str, block: Block, results: dict[str, Named], weights: Any
    ) -> None:
        """A finished checkpoint, instead of making it."""
        finished = event.finished
        assert finished is not None
        entry = finished.checkpoint
        if (entry["id"], entry["weights"]) != (id, weights):
            raise self._error(
                f"call {event.number} of this run is {id} with the weights {weights}, in the run "
                f"before it was {entry['id']} with {entry['weights']}"
            )
        self._take_over(finished, finished.closed)
        for name, (tensor, _) in results.items():
            output = entry["outputs"].get(name)
            if output is None or "rows" in output:
                continue
            self._operands.remember(tensor, output["tensor"])
            if "valid" in output and name in block.valid:
                self._operands.remember(block.valid[name][0], output["valid"]["tensor"])
        self._writer.take_over_checkpoint(entry)
        new = finished.weights.items()
        self._weights += [(self._writer.stored_weight(key), sha256) for key, sha256 in new]
        self._compare_weights(wait=False)

    def finish(self, event: Event, id: str) -> Callable[[], None]:
        """A checkpoint of this run has all its tensors; what is to be called when it is filled in,
        too. KeyboardInterrupt where one got lost meanwhile: something may be missing."""
        interrupts.check()
        self._compare_weights(wait=True)
        keep, closed = self._writer.keep, self._writer.additions()
        return partial(keep, event.number, id, event.opened, closed)

    def _settle(self, block: Block, again: Again | None) -> None:
        """Of a call that no tap describes, what it uses and changes."""
        if block.settle is None or again is None or not self._settles:
            return
        given = Given()
        with suppress(Exception):  # it has no oracle, as the run before said
            block.settle(block, again(run_watched(given)), given)

    def _compare(self, finished: Finished, inputs: dict[str, Named], *, every: bool) -> None:
        entry = finished.checkpoint
        for name, (tensor, _) in inputs.items():
            where = f"{entry['id']}: input {name}"
            if name not in entry["inputs"]:
                raise self._error(f"{where} is not there in the run before")
            key = entry["inputs"][name]["tensor"]
            known, there = self._operands.known(tensor), self._payloads.get(key)
            if known is not None and known != key:
                raise self._error(f"{where} is the tensor {known}, in the run before it was {key}")
            if known is None and there is not None:
                self._require_same(where, tensor, there, every=every)

    def _take_over(self, finished: Finished, part: dict[str, Any]) -> None:
        try:
            self._writer.take_over(part)
        except FormatError as error:
            raise self._error(f"{finished.checkpoint['id']}: {error}") from error

    def _compare_weights(self, *, wait: bool) -> None:
        """Those that are hashed, or all."""
        waiting = []
        for weight, sha256 in self._weights:
            if not wait and not weight.promised.is_made:
                waiting.append((weight, sha256))
            elif weight.payload.sha256 != sha256:
                raise self._error(
                    f"weight {weight.name} has SHA-256 {weight.payload.sha256[:12]}, in the run "
                    f"before it was {sha256[:12]}"
                )
        self._weights = waiting

    def _require_same(
        self, where: str, tensor: torch.Tensor, there: Payload, *, every: bool
    ) -> None:
        """Its dtype and shape; its bits where it is small, or every tensor is to be compared."""
        kind, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
        if (kind, shape) != (there.dtype, there.shape):
            raise self._error(
                f"{where} is {kind} {list(shape)}, in the run before it was {there.dtype} "
                f"{list(there.shape)}"
            )
        if every or there.bytes < BESIDE:
            sha256 = hashlib.sha256(tensor_bytes(tensor)).hexdigest()
            if sha256 != there.sha256:
                raise self._error(
                    f"{where} has SHA-256 {sha256[:12]}, in the run before it was "
                    f"{there.sha256[:12]}"
                )

    def _error(self, text: str) -> ResumeError:
        return ResumeError(f"{self._writer.journal_path}: {text}: {_ADVICE}")
