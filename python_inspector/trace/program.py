"""What a call computes, as torch sees it: a digest of its operations and of all their operands.

Simulated kernels compute the same operations from the same operands. So calls of one digest have
the same ones, whatever the code looks like, and a change of the code that changes any of them
changes the digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from ..format.host_copy import bytes_of
from .dispatch import UncompiledMode, uncompiled
from .given import SEEN
from .replay import Again, run_as_it_is
from .sites import under

MOST_BYTES = 1 << 28
"""Of operands, above which they are not read."""
_PLAIN = (
    bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout,
    torch.memory_format,
)  # fmt: skip


def digest_of(again: Again) -> str | None:
    """Of a call; None where torch does not see all that it computes, or it is too much to read."""
    program = _Program()
    rerun = again(under(run_as_it_is, lambda: program))
    program.value(rerun.result)
    return program.digest()


class _Program(UncompiledMode):
    def __init__(self) -> None:
        super().__init__()
        self._hash = hashlib.sha256()
        self._read = 0
        self._is_whole = True
        self._known: dict[int, tuple[int, torch.UntypedStorage]] = {}
        """Storages by address, kept alive, so that it stays their own."""

    def digest(self) -> str | None:
        return self._hash.hexdigest() if self._is_whole else None

    @uncompiled
    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func.namespace not in SEEN or torch.Tag.nondeterministic_seeded in func.tags:
            self._is_whole = False
        self._say(str(func))
        self.value(args)
        self.value(kwargs or {})
        result = func(*args, **(kwargs or {}))
        if isinstance(result, (bool, int, float, complex)):
            self._is_whole = False  # Python may compute with it, unseen
        self._made(result)
        return result

    def value(self, value: Any) -> None:
        """Adds an operand, or a result at the end."""
        if isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, (tuple, list)):
            self._say(f"{len(value)} items")
            for item in value:
                self.value(item)
        elif isinstance(value, Mapping):
            self._say(f"{len(value)} named")
            for name, item in value.items():
                self._say(repr(name))
                self.value(item)
        elif type(value) in _PLAIN:
            self._say(f"{type(value).__name__} {value!r}")
        else:
            self._is_whole = False

    def _tensor(self, t: torch.Tensor) -> None:
        if t.layout is not torch.strided or type(t) not in (torch.Tensor, torch.nn.Parameter):
            self._is_whole = False
            return
        storage = t.untyped_storage()
        number, _ = self._known.get(storage._cdata, (None, None))
        flags = (t.is_conj(), t.is_neg(), t.requires_grad)
        place = (t.dtype, t.device, tuple(t.shape), t.stride(), t.storage_offset(), flags)
        self._say(f"{number} {place}")
        if number is None:
            self._content(storage, t.device)
            self._enter(storage)

    def _content(self, storage: torch.UntypedStorage, device: torch.device) -> None:
        self._read += storage.nbytes()
        if self._read > MOST_BYTES:
            self._is_whole = False
        if self._is_whole:
            with _disable_current_modes():
                flat = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
                self._hash.update(bytes_of(flat.cpu()).numpy().data)

    def _made(self, result: Any) -> None:
        for item in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(item, torch.Tensor) and item.layout is torch.strided:
                self._enter(item.untyped_storage())

    def _enter(self, storage: torch.UntypedStorage) -> None:
        self._known.setdefault(storage._cdata, (len(self._known), storage))

    def _say(self, words: str) -> None:
        self._hash.update(words.encode() + b"\n")
