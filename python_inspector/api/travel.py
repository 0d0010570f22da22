"""Arguments and results on their way between processes: JSON for their structure, a safetensors
file for the bytes of their storages.

Views of one storage stay views of one, with their strides; nothing is executed to read them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from ..errors import FormatError
from ..format.safetensors_file import read_header

PLAIN = (torch.Tensor, torch.nn.Parameter)
UNFIT = (
    ValueError, TypeError, KeyError, AttributeError, RecursionError, RuntimeError, AssertionError,
)  # fmt: skip
"""What torch raises of a structure that does not fit, or of a device that it has not."""
MOST_TEXT = 1 << 24
"""Bytes of a structure, without what is in its tensors."""
_KINDS: dict[str, Any] = {"tuple": tuple, "list": list}


class TravelError(TypeError):
    """A value that does not travel; the text says what it is and where."""


class Packed:
    """Values as JSON, and the storages that their tensors are views of. `gradients`: which tensors
    require them travels, too."""

    def __init__(self, value: Any, name: str, *, gradients: bool = True) -> None:
        self._gradients = gradients
        self.storages: list[torch.UntypedStorage] = []
        self.floats: dict[int, torch.dtype] = {}
        """Storages of floats, and what they are."""
        self._known: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no address is used again
        self.text = json.dumps(self._of(value, name))

    def bytes_of(self, i: int) -> torch.Tensor:
        storage = self.storages[i]
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)

    def save(self, stem: Path) -> None:
        """STEM.safetensors and then STEM.json, whole or not at all."""
        tensors = {str(i): self.bytes_of(i).cpu() for i in range(len(self.storages))}
        save_file(tensors, f"{stem}.safetensors")
        draft = Path(f"{stem}.draft")
        draft.write_text(self.text)
        draft.replace(f"{stem}.json")

    def _of(self, value: Any, name: str) -> Any:
        if value is None or isinstance(value, (bool, int, str)):
            return {"value": value}
        if isinstance(value, float):
            return {"float": value.hex()}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.Tensor):
            return self._tensor(value, name)
        if isinstance(value, Mapping):
            if not all(isinstance(key, str) for key in value):
                raise TravelError(f"{name} is a dict with keys that are no words")
            return {"dict": [[key, self._of(item, f"{name}.{key}")] for key, item in value.items()]}
        if isinstance(value, (tuple, list)):
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [self._of(item, f"{name}.{i}") for i, item in enumerate(value)]}
        return self._array(value, name)

    def _array(self, value: Any, name: str) -> Any:
        from ..arrays import as_array

        array = as_array(value)
        if isinstance(array, np.ndarray | np.generic) and np.asarray(array).dtype.kind in "biufc":
            return self._tensor(torch.from_numpy(np.array(array)), name)
        if isinstance(array, torch.Tensor):
            return self._tensor(array, name)
        raise TravelError(
            f"{name} is a {type(value).__name__}: tensors, arrays, numbers, words and tuples, "
            "lists and dicts of them travel between processes"
        )

    def _tensor(self, t: torch.Tensor, name: str) -> Any:
        if type(t) not in PLAIN:
            raise TravelError(f"{name} is a {type(t).__name__}, which is more than a tensor")
        if t.layout is not torch.strided or t.is_quantized:
            raise TravelError(f"{name} is a {t.layout} tensor, expected a dense one")
        self._kept.append(t)
        wanted, t = t.requires_grad and self._gradients, t.detach().resolve_conj().resolve_neg()
        storage = t.untyped_storage()
        at = self._known.setdefault(storage._cdata, len(self.storages))
        if at == len(self.storages):
            self.storages.append(storage)
        if t.is_floating_point():
            self.floats.setdefault(at, t.dtype)
        return {
            "storage": at,
            "dtype": str(t.dtype).removeprefix("torch."),
            "device": str(t.device),
            "shape": list(t.shape),
            "strides": list(t.stride()),
            "offset": t.storage_offset(),
            "grad": wanted,
        }


def leave(returned: Any, arguments: Any, out: Path) -> None:
    """What there is to read of a call: its result, and its arguments afterwards."""
    Packed(returned, "the result").save(out)
    Packed(arguments, "the arguments").save(Path(f"{out}-after"))


def load(stem: Path) -> Any:
    """What was saved, in storages of its own; FormatError where the files do not fit together."""
    path = Path(f"{stem}.json")
    try:
        if (size := path.stat().st_size) > MOST_TEXT:
            raise ValueError(f"{size} bytes, expected at most {MOST_TEXT}")
        structure = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{path}: {error}") from None
    file = read_header(Path(f"{stem}.safetensors"))
    held: dict[tuple[int, str], torch.UntypedStorage] = {}

    def storage(at: int, device: str) -> torch.UntypedStorage:
        if (at, device) not in held:
            if device == "meta":
                raise ValueError("a tensor is on the device meta, which has no values")
            held[at, device] = file.read(str(at)).to(device).untyped_storage()
        return held[at, device]

    try:
        return restored(structure, storage)
    except UNFIT as error:
        raise FormatError(f"{path}: {error}") from None


def restored(structure: Any, storage: Callable[[int, str], torch.UntypedStorage]) -> Any:
    """The value of that structure, whose tensors are views of such storages."""

    def of(item: Any) -> Any:
        (kind, value), *more = item.items()
        if kind == "storage":
            return view(item)
        if more:
            raise ValueError(f"{kind} has also {more[0][0]}")
        if kind == "value":
            return value
        if kind == "float":
            return float.fromhex(value)
        if kind == "dtype":
            return dtype_of(value)
        if kind == "dict":
            return {str(key): of(inner) for key, inner in value}
        return _KINDS[kind](map(of, value))

    def dtype_of(name: Any) -> torch.dtype:
        dtype = getattr(torch, str(name), None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{name} is no dtype")
        return dtype

    def view(item: Any) -> torch.Tensor:
        dtype, bytes_ = dtype_of(item["dtype"]), storage(item["storage"], item["device"])
        shape, strides, offset = item["shape"], item["strides"], item["offset"]
        if not all(type(n) is int and n >= 0 for n in (*shape, *strides, offset)):
            raise ValueError("a view's shape, strides and offset are whole numbers")
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        if math.prod(shape) and (last + 1) * dtype.itemsize > bytes_.nbytes():
            raise ValueError(f"a view ends at element {last} of {bytes_.nbytes()} bytes")
        made = torch.empty(0, dtype=dtype, device=item["device"]).set_(
            bytes_, offset, tuple(shape), tuple(strides)
        )
        return made.requires_grad_() if item["grad"] is True else made

    return of(structure)
