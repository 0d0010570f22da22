"""All engines: the modules of this folder, those that cannot be imported with the reason."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from .kernel import Kernel

# Module, and the package whose version is shown.
MODULES = {
    "float32_inside": "torch",
    "torch_functional": "torch",
    "compiled": "torch",
    "jax_engine": "jax",
    "onnx_runtime": "onnxruntime",
    "mlx_engine": "mlx",
    "litgpt_engine": "litgpt",
    "torchtune_engine": "torchtune",
}


@lru_cache
def load(module: str) -> tuple[list[Kernel], str]:
    """The kernels of a module; none, and why, where the engine is absent."""
    try:
        loaded = importlib.import_module(f".{module}", __package__)
        return [*_with_positions(loaded.kernels())], ""
    except (ImportError, OSError, RuntimeError) as error:
        words = " ".join(str(error).split())
        return [], f"{module}: {type(error).__name__}: {words[:200]}"


def _with_positions(kernels: list[Kernel]) -> Iterator[Kernel]:
    """Kernels that make a rotary table of their own also as what they are: of positions."""
    for kernel in kernels:
        yield kernel
        if not kernel.of_inputs:
            yield replace(kernel, block="rotary_positions", of_inputs=True)


def versions() -> str:
    """What was judged: the packages that are there."""
    found = []
    for package in dict.fromkeys(MODULES.values()):
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{package} absent")
    return ", ".join(found)
