"""Tensors of a run on their way into its recording."""

from __future__ import annotations

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..format.axes import Named
from ..format.recording import Contract, TensorRef
from ..format.writer import RecordingWriter
from ..models.parameters import Parameters
from .provenance import model_dtype


class Operands:
    """Stores what blocks are given and use, each tensor once as long as it lives unchanged."""

    def __init__(self, model: torch.nn.Module, writer: RecordingWriter) -> None:
        self._writer = writer
        self._keys = WeakIdKeyDictionary()
        self._parameters = Parameters(model)
        self._storage = model_dtype(model)

    def key(self, tensor: torch.Tensor, values: torch.Tensor | None = None) -> str:
        """The tensor's key; one that lives on unchanged is not hashed again. `values`: the same
        elsewhere."""
        known = self.known(tensor)
        if known is not None:
            return known
        key = self._writer.tensor(tensor if values is None else values)
        self.remember(tensor, key)
        return key

    def known(self, tensor: torch.Tensor) -> str | None:
        """The key of a tensor that was stored and has not changed since."""
        known = None if tensor.is_inference() else self._keys.get(tensor)
        return known[1] if known is not None and known[0] == tensor._version else None

    def remember(self, tensor: torch.Tensor, key: str) -> None:
        """That the tensor is stored as it is now."""
        if not tensor.is_inference():
            self._keys[tensor] = (tensor._version, key)

    def refs(self, inputs: dict[str, Named]) -> dict[str, TensorRef]:
        return {name: TensorRef(self.key(t), axes) for name, (t, axes) in inputs.items()}

    def weights(self, path: str, weights: dict[str, torch.Tensor]) -> dict[str, str]:
        """The keys of the weights of the module at `path`, by their names in it."""
        keys = {}
        for name, tensor in weights.items():
            with self._parameters.stored(f"{path}.{name}", tensor) as (stored, values):
                keys[name] = self._writer.weight(stored, values)
        return keys

    def declare(self, contract: str) -> None:
        """A contract by its name, which says what happens inside, too."""
        first, *inside = contract.split("+")
        storage = "f32" if first == "float32" else self._storage
        accumulator = {"bits": 53 if storage == "f64" else 24, "rounding": "nearest"}
        points = "fused" if first == "fused" else "eager"
        declared = Contract(storage, storage, accumulator, points, tuple(inside))
        self._writer.contract(contract, declared)
