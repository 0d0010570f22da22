"""Arguments and results on their way between processes: JSON for their structure, a safetensors
file for the bytes of their storages.

Views of one storage stay views of one, with their strides; nothing is executed to read them.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import FormatError
from ..format.host_copy import same_bits
from ..format.safetensors_file import SafetensorsFile, read_header

PLAIN = (torch.Tensor, torch.nn.Parameter)
UNFIT = (
    ValueError, TypeError, KeyError, AttributeError, RecursionError, RuntimeError, AssertionError,
)  # fmt: skip
"""What torch raises of a structure that does not fit, or of a device that it has not."""
MOST_TEXT = 1 << 24
"""Bytes of a structure, without what is in its tensors."""
SAME = "same"
"""Instead of a structure: which call had that result."""
CALL = re.compile(r"out-\d+-\d+")
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

    def save(self, stem: Path, storages: Collection[int] | None = None) -> None:
        """STEM.safetensors, with all storages or these, and then STEM.json, whole or not at all."""
        some = range(len(self.storages)) if storages is None else storages
        _write({str(i): self.bytes_of(i) for i in some}, Path(f"{stem}.safetensors"))
        _put(self.text, stem)

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


def _put(text: str, stem: Path) -> None:
    """STEM.json, whose tensors are there."""
    draft = Path(f"{stem}.draft")
    draft.write_text(text)
    draft.replace(f"{stem}.json")


def _write(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """A safetensors file of bytes: they go from where they are to its pages, without a copy of all
    on the host."""
    header, end = {}, 0
    for name, t in tensors.items():
        offsets = [end, end + len(t)]
        header[name] = {"dtype": "U8", "shape": [len(t)], "data_offsets": offsets}
        end += len(t)
    text = json.dumps(header).encode()
    start = 8 + len(text)
    with path.open("w+b") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        if not end:
            return
        os.posix_fallocate(file.fileno(), start, end)  # an error where a page would have no room
        pages = torch.from_numpy(np.memmap(file, np.uint8, "r+", start, (end,)))
    for name, t in tensors.items():
        begin, after = header[name]["data_offsets"]
        pages[begin:after].copy_(t)


def _read(file: SafetensorsFile, name: str, device: str) -> torch.Tensor:
    """The bytes of a tensor, in memory of their own."""
    entry = file.tensors[name]
    if entry.begin == entry.end:
        return torch.empty(0, dtype=torch.uint8, device=device)
    start = file.payload + entry.begin
    pages = np.memmap(file.path, np.uint8, "c", start, (entry.end - entry.begin,))
    return torch.from_numpy(pages).to(device, copy=True)


def leave(
    returned: Any, arguments: Any, out: Path, given: Path | None = None, first: Path | None = None
) -> None:
    """What there is to read of a call: its result, and its arguments afterwards. What is as in the
    files of what was `given`, or of the `first` call, is not written again."""
    result, after = Packed(returned, "the result"), Packed(arguments, "the arguments")
    if first is not None and not _unlike(result, first):
        _put(json.dumps({SAME: first.name}), out)
    else:
        result.save(out)
    after.save(Path(f"{out}-after"), None if given is None else _unlike(after, given))


def source(stem: Path) -> Path:
    """Where the result of a call is that was saved there: with an earlier call's, if it is the
    same."""
    structure = _structure(stem)
    if not isinstance(structure, dict) or SAME not in structure:
        return stem
    name = structure[SAME]
    if not isinstance(name, str) or not CALL.fullmatch(name):
        raise FormatError(f"{stem}.json: the same as {name!r}, expected an earlier call")
    return stem.with_name(name)


def _unlike(packed: Packed, stem: Path) -> list[int]:
    """The storages with other bytes than the files have; all where the structure is another."""
    structure, file = _opened(stem)
    every = list(range(len(packed.storages)))
    if json.dumps(structure) != packed.text:
        return every
    return [i for i in every if not _is_in(file, i, packed.bytes_of(i))]


def _is_in(file: SafetensorsFile, i: int, t: torch.Tensor) -> bool:
    there = _read(file, str(i), str(t.device))
    return there.shape == t.shape and same_bits(there, t)


def changed(stem: Path) -> tuple[str, Iterator[tuple[int, torch.Tensor]]]:
    """Of values whose unchanged storages were not saved: the structure, as Packed has it without
    gradients, and the others' bytes."""
    structure, file = _opened(stem)
    plain = json.loads(json.dumps(structure), object_hook=_without_gradient)
    return json.dumps(plain), ((int(name), _read(file, name, "cpu")) for name in file.tensors)


def _without_gradient(item: dict[str, Any]) -> dict[str, Any]:
    return item | {"grad": False} if "storage" in item else item


def _opened(stem: Path) -> tuple[Any, SafetensorsFile]:
    return _structure(stem), read_header(Path(f"{stem}.safetensors"))


def _structure(stem: Path) -> Any:
    path = Path(f"{stem}.json")
    try:
        if (size := path.stat().st_size) > MOST_TEXT:
            raise ValueError(f"{size} bytes, expected at most {MOST_TEXT}")
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{path}: {error}") from None


def load(stem: Path) -> Any:
    """What was saved, in storages of its own; FormatError where the files do not fit together."""
    path = Path(f"{stem}.json")
    structure, file = _opened(stem)
    held: dict[tuple[int, str], torch.UntypedStorage] = {}

    def storage(at: int, device: str) -> torch.UntypedStorage:
        if (at, device) not in held:
            if device == "meta":
                raise ValueError("a tensor is on the device meta, which has no values")
            held[at, device] = _read(file, str(at), device).untyped_storage()
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
