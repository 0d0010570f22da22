"""Arrays of any library: what a function under check() is given, and what it gives back."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from .errors import RecordError

Convert = Callable[[Any], Any]


def converter(arrays: str | Convert) -> Convert | None:
    """What makes the arrays that were asked for of a torch tensor; None where it is wanted itself.

    They share its memory where their library can.
    """
    if arrays == "torch":
        return None
    if arrays == "numpy":
        return _to_numpy
    if isinstance(arrays, str):
        module = importlib.import_module({"jax": "jax.numpy"}.get(arrays, arrays))
        from_dlpack: Convert = module.from_dlpack
        return from_dlpack
    return arrays


def converted(value: Any, convert: Convert) -> Any:
    """Arguments with arrays in place of tensors."""
    import torch

    if isinstance(value, torch.Tensor):
        return convert(value)
    if isinstance(value, dict):
        return {name: converted(item, convert) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(converted(item, convert) for item in value)
    return value


def _to_numpy(tensor: Any) -> Any:
    wide = tensor.is_floating_point() and tensor.itemsize < 4
    return (tensor.float() if wide else tensor).cpu().numpy()


def not_plain(value: Any) -> str:
    """Why a tensor is refused that is in several processes, or in parts, or holds some of its
    elements alone; "" of any other."""
    if getattr(value, "is_nested", False):
        return (
            "is a nested tensor: take .values() and .offsets(), and make it of them inside, by "
            "torch.nested.nested_tensor_from_jagged"
        )
    if why := not_dense(value):
        return why
    if type(value).__name__ != "DTensor":
        return ""
    return (
        "is a DTensor, of which this process has a part: take .full_tensor(), or .to_local() to "
        "judge what one rank computes"
    )


def not_dense(value: Any) -> str:
    """Why a sparse tensor is refused; "" of any other."""
    layout = str(getattr(value, "layout", ""))
    if not layout.startswith("torch.") or layout in ("torch.strided", "torch.jagged"):
        return ""
    return (
        f"is of layout {layout}, not torch.strided: take .to_dense(), or its values and indices as "
        "dense tensors, of which `like` makes a dense one, by torch.zeros(...).index_put"
    )


def require_plain(what: str, tensors: Iterable[tuple[str, Any]]) -> None:
    """RecordError where a named tensor is none that can be read as one."""
    for name, tensor in tensors:
        if why := not_plain(tensor):
            raise RecordError(f"[{what}] {name} {why}")


def as_array(value: Any) -> Any:
    """A torch tensor or NumPy array of anything that offers itself as one."""
    import numpy as np
    import torch

    if why := not_plain(value):
        raise TypeError(why)
    if isinstance(value, torch.Tensor | np.ndarray | np.generic | float | int):
        return np.asarray(value) if isinstance(value, float | int) else value
    if hasattr(value, "__dlpack__"):
        try:
            return torch.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError):
            pass  # a dtype or device that it does not hand over that way
    return np.asarray(value) if hasattr(value, "__array__") else value
