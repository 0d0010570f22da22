"""What every mode of the oracle that sees torch's operations has in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._ops import OpOverload
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode,
    _pop_mode_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode


class WatchingMode(TorchFunctionMode):
    """A mode that looks at what a model's run calls, and at nothing that reruns call."""


@contextmanager
def unwatched() -> Iterator[None]:
    """Takes such a mode away, where it is the innermost: its Python is a tenth of a rerun."""
    mode = _get_current_function_mode()
    if not isinstance(mode, WatchingMode):
        yield
        return
    with _pop_mode_temporarily():
        yield


@contextmanager
def plain_arithmetic() -> Iterator[None]:
    """Without gradients, inference tensors and autocast."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


class DispatchMode(TorchDispatchMode):
    """A mode whose operation() stands for each operation below it."""

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return self.operation(func, args, kwargs or {})

    def operation(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError
