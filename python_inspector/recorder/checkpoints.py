"""From a call that is over to its checkpoint: numbered, stored, and written."""

from __future__ import annotations

from collections import Counter

import torch

from .. import interrupts
from ..format.axes import Named
from ..format.contract_words import spelled
from ..format.recording import (
    ChainedRef,
    Checkpoint,
    OutputRef,
    TensorRef,
    backward_id,
    checkpoint_id,
)
from ..format.writer import RecordingWriter
from ..taps.calls import Block
from ..trace.reruns import Reruns
from .alternatives import bug_refs, member_refs
from .backward_calls import Backward
from .chain import Chain
from .difference import difference
from .operands import Operands
from .outputs import OutputStore


class Checkpoints:
    """The checkpoints of one recording, in the order in which their calls end."""

    def __init__(
        self,
        writer: RecordingWriter,
        operands: Operands,
        outputs: OutputStore,
        chain: Chain | None,
    ) -> None:
        self._writer = writer
        self._operands = operands
        self._outputs = outputs
        self._chain = chain
        self._calls: Counter[str] = Counter()

    def next_call(self, path: str, function: str | None) -> int:
        """The number that a call of this module or function will have."""
        return self._calls[_name(path or "model", function)]

    def add(
        self,
        step: int,
        path: str,
        function: str | None,
        block: Block,
        stored: dict[str, TensorRef],
        results: dict[str, Named],
        reruns: Reruns,
        *,
        recorded: bool,
        backward: Backward | None = None,
    ) -> None:
        """A block whose call, in forward call `step` of the model, gave `results`; one that is not
        `recorded` is counted."""
        interrupts.check()
        if not results:
            return
        path = path or "model"
        name = _name(path, function)
        call = self._calls[name]
        self._calls[name] += 1
        if not recorded:
            return
        id = checkpoint_id(path, function, call)
        contract = spelled(block.contract, reruns.words)
        self._operands.declare(contract)
        outputs, amplification = self._store_outputs(id, path, block, results, reruns)
        self._writer.checkpoint(
            Checkpoint(
                id=id,
                block=block.kind,
                path=path,
                function=function,
                call=call,
                step=step,
                contract=contract,
                params=block.params,
                inputs=stored,
                weights=self._operands.weights(path, block.weights),
                outputs=outputs,
                trace=self._trace(reruns),
                amplification=amplification,
                bugs=bug_refs(self._writer, reruns.judgement, outputs),
            )
        )
        self._outputs.spreads.settle_many()
        if backward is not None:
            self._add_backward(step, path, function, call, backward)

    def _add_backward(
        self, step: int, path: str, function: str | None, call: int, made: Backward
    ) -> None:
        """Behind the checkpoint of the forward, with the inputs as the call got them."""
        id, block = backward_id(checkpoint_id(path, function, call)), made.block
        contract = spelled(block.contract, made.reruns.words)
        self._operands.declare(contract)
        outputs = {
            name: self._outputs.store(id, name, block, named, made.reruns)
            for name, named in made.outputs.items()
        }
        for name, output in outputs.items():
            output.members = member_refs(self._writer, made.reruns.judgement, name)
            output.labels = made.labels.get(name)
        checkpoint = Checkpoint(
            id=id,
            block=block.kind,
            path=path,
            function=function,
            call=call,
            step=step,
            contract=contract,
            params=block.params,
            inputs=made.stored,
            weights=self._operands.weights(path, block.weights),
            outputs=outputs,
            trace=self._trace(made.reruns),
            bugs=bug_refs(self._writer, made.reruns.judgement, outputs),
            remarks=made.remarks,
        )
        self._writer.checkpoint(checkpoint)
        self._outputs.spreads.settle_many()

    def _store_outputs(
        self, id: str, path: str, block: Block, results: dict[str, Named], reruns: Reruns
    ) -> tuple[dict[str, OutputRef], float | None]:
        """With what the chained run says of them, and of the block's amplification."""
        outputs = {
            key: self._outputs.store(id, key, block, named, reruns)
            for key, named in results.items()
        }
        for key, output in outputs.items():
            output.members = member_refs(self._writer, reruns.judgement, key)
        if self._chain is None:
            return outputs, None
        for key, o in self._chain.outputs(block, path).items():
            if key in outputs:
                outputs[key].chained = self._chained(id, results[key][0], o)
        if reruns.oracle is None or "out" not in reruns.oracle:
            return outputs, None
        return outputs, self._chain.amplification(block, path, reruns.oracle["out"][0])

    def _trace(self, reruns: Reruns) -> str | None:
        return None if reruns.simulated is None else self._writer.trace(reruns.simulated.operations)

    def _chained(self, where: str, r: torch.Tensor, o: torch.Tensor) -> ChainedRef:
        """Every element counts: nothing is excluded from what is handed on."""
        delta = difference(r, o, None, f"{where}: chained").delta
        return ChainedRef(None if delta is None else self._writer.tensor(delta))


def _name(path: str, function: str | None) -> str:
    return path if function is None else f"{path}:{function}"
