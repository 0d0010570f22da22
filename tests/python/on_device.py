"""Puts what the code of one folder makes on another device, and leaves alone what others make.

PLUMB_TEST_DEVICE=cuda:0 has the tests make their tensors and modules on the GPU, as a user does.
What the product makes without naming a device stays on the host, so that operands of two devices
meet where it forgot one. Without a GPU the same is seen the other way round: what the product makes
without naming a device is put on "meta", and meets the tests' tensors on the host.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

import python_inspector
from python_inspector.trace.dispatch import FunctionMode

TESTS = Path(__file__).parent
PRODUCT = Path(python_inspector.__file__).parent
_OURS = (str(TESTS), str(PRODUCT))
_OF_MODES = ("__torch_function__", FunctionMode.call.__name__)


class MadeOn(TorchFunctionMode):
    """Puts tensors that code below `folder` makes on `device`, also what torch's and
    transformers' modules make for it."""

    def __init__(self, device: str, folder: Path = TESTS) -> None:
        super().__init__()
        self._device = device
        self._folder = str(folder)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in _device_constructors() or (kwargs or {}).get("device") is not None:
            return result
        if result.ndim == 0 or (args and isinstance(args[0], torch.Tensor)) or not self._asked():
            return result  # numbers mix with any device; as_tensor(t) makes none
        # Made on the host, where a seeded generator is, and with the same values everywhere.
        with torch._C.DisableTorchFunction():
            return result.to(self._device)

    def _asked(self) -> bool:
        frame = sys._getframe(2)
        while frame.f_back is not None and not _counts(frame.f_code):
            frame = frame.f_back
        return frame.f_code.co_filename.startswith(self._folder)


def _counts(code: CodeType) -> bool:
    """Not the product's modes, which are between a test's function and torch."""
    return code.co_filename.startswith(_OURS) and code.co_name not in _OF_MODES
