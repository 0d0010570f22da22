"""Models larger than one device: accelerate's device_map.

accelerate moves what comes to a module to the module's device, and fetches offloaded weights when
its forward begins. Whoever looks at a block before that would see no weights, so a recorder fetches
those of a whole block itself, through the same hooks, and hands them back when the call is over.
"""

from __future__ import annotations

import json
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import needs

DeviceMap = str | dict[str, str | int]
STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")

Loaded = list[tuple[torch.nn.Module, Any, bool]]
"""Modules whose weights stay, accelerate's hook of each, and whether they were fetched for it."""


def parse_map(text: str) -> DeviceMap:
    """One of STRATEGIES, or a JSON object from module paths to devices. ValueError."""
    if text in STRATEGIES:
        return text
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"device map {text!r} is none of {', '.join(STRATEGIES)} and no JSON ({error})"
        ) from error
    good = isinstance(value, dict) and all(
        isinstance(device, str) or type(device) is int for device in value.values()
    )
    if not good:
        raise ValueError(
            f'device map {text!r}: expected module paths and devices such as {{"model.embed_tokens"'
            ': 0, "model.layers.0": "cpu", "lm_head": "disk"}'
        )
    return dict(value)


def require_accelerate() -> None:
    """ValueError that says how to install it."""
    try:
        import accelerate  # noqa: F401
    except ImportError as error:
        raise ValueError(
            "a device map needs accelerate, which is not installed: "
            f"pip install {needs.extra('device-map')}"
        ) from error


def offload_folder() -> tempfile.TemporaryDirectory[str]:
    """For weights on "disk"; see keep_with."""
    return tempfile.TemporaryDirectory(prefix="inspector-offload-")


def keep_with(model: torch.nn.Module, folder: tempfile.TemporaryDirectory[str]) -> None:
    """The folder goes when the model does."""
    weakref.finalize(model, folder.cleanup)


def split(model: torch.nn.Module, device_map: DeviceMap) -> torch.nn.Module:
    """Spreads a model that is in memory. ValueError for a map that does not fit it."""
    from accelerate import dispatch_model, infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    if isinstance(device_map, str):
        whole = list(getattr(model, "_no_split_modules", None) or [])
        low = device_map == "balanced_low_0"
        memory = (
            None
            if device_map == "sequential"
            else get_balanced_memory(model, no_split_module_classes=whole, low_zero=low)
        )
        device_map = dict(infer_auto_device_map(model, memory, no_split_module_classes=whole))
    folder = offload_folder()
    dispatched: torch.nn.Module = dispatch_model(model, device_map, offload_dir=folder.name)
    keep_with(dispatched, folder)
    return dispatched


def input_device(model: torch.nn.Module) -> torch.device:
    """Where ids have to be; accelerate moves them on by itself."""
    device = next(model.parameters()).device
    return torch.device("cpu") if hasattr(model, "_hf_hook") else device


def is_placed(module: torch.nn.Module) -> bool:
    """Whether a module's forward was replaced by accelerate alone, to place what it works on."""
    hook = getattr(module, "_hf_hook", None)
    hooks = getattr(hook, "hooks", (hook,))
    own: Any = vars(module).get("_old_forward")
    return getattr(own, "__func__", None) is type(module).forward and all(
        type(single).__name__ == "AlignDevicesHook" for single in hooks
    )


def offloads(model: torch.nn.Module) -> bool:
    """Whether some weights are fetched only while they are used."""
    return any(hook for module in model.modules() for hook in _hooks(module))


def load(module: torch.nn.Module) -> Loaded:
    """Fetches all offloaded weights of a module and its parts; those that are there stay."""
    loaded: Loaded = []
    for part in module.modules():
        for hook in _hooks(part):
            absent = any(p is not None and p.is_meta for p in part._parameters.values())
            if absent:
                hook.pre_forward(part)
            hook.offload = False  # a part's own call leaves them alone
            loaded.append((part, hook, absent))
    return loaded


def unload(loaded: Loaded) -> None:
    """Hands back what load() fetched."""
    for part, hook, fetched in loaded:
        hook.offload = True
        if fetched:
            hook.post_forward(part, None)
    loaded.clear()


@contextmanager
def resident(modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """The weights of modules and their parts are there inside."""
    loaded = [entry for module in modules for entry in load(module)]
    try:
        yield
    finally:
        unload(loaded)


def parameters(model: torch.nn.Module, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters of these names, each there until the next one is asked for."""
    for name in names:
        path, _, own = name.rpartition(".")
        module = model.get_submodule(path)
        with resident([module] if any(_hooks(module)) else []):
            yield name, module.get_parameter(own)


def _hooks(module: torch.nn.Module) -> Iterator[Any]:
    """accelerate's hooks that offload this module's own weights."""
    hook = getattr(module, "_hf_hook", None)
    for single in getattr(hook, "hooks", (hook,)):
        if getattr(single, "offload", False):
            yield single
