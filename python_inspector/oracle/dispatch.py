"""What every mode of the oracle that sees torch's operations has in common."""

from __future__ import annotations

from typing import Any

from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode


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
