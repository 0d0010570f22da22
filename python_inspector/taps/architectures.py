"""Which class or function of a model is which block, by its architecture."""

from __future__ import annotations

import functools
import inspect
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch

from ..trace.lift import WIDE
from ..trace.wrapped import is_quantised, is_wrapper
from . import blocks, decoders, zamba2
from .common import GENERIC, Architecture, FunctionTap, ModuleTap, linear
from .generic import any_call, any_function, or_any_call
from .quantised import QuantisedLinear, described, quantised_linears, recognised

ARCHITECTURES: dict[str, Architecture] = {
    **decoders.TAPS,
    "zamba2": zamba2.TAPS,
    "blocks": blocks.TAPS,
    "components": Architecture({}),
}
"""By config.model_type."""


@dataclass
class Taps:
    """The taps that hold for one model."""

    architecture: Architecture | None
    base_path: str
    """Module path of the decoder without its head; calling it alone is a forward call too."""
    model: torch.nn.Module
    dtype: torch.dtype = torch.float32
    """Of its activations."""
    _of_quantised: dict[int, ModuleTap | None] = field(default_factory=dict)
    """Of its modules, by id; None for one without quantised weights."""
    _linears: dict[int, QuantisedLinear | None] = field(default_factory=dict)
    """Of modules that have such themselves, by id."""
    _by_class: dict[type[torch.nn.Module], ModuleTap | None] = field(default_factory=dict)

    def module(self, module: torch.nn.Module) -> ModuleTap | None:
        """Its tap; what has quantised weights that no native block has is any call."""
        if id(module) not in self._of_quantised:
            quantised = is_quantised(module)
            self._of_quantised[id(module)] = self._quantised_tap(module) if quantised else None
        return self._of_quantised[id(module)] or self._usual_tap(module)

    def linears(self, module: torch.nn.Module) -> dict[str, QuantisedLinear] | None:
        """The layers of quantised weights in it, by path; None where some are anything else."""
        return quantised_linears(module, self._linear)

    def _linear(self, module: torch.nn.Module) -> QuantisedLinear | None:
        if id(module) not in self._linears:
            self._linears[id(module)] = recognised(module, self.dtype)
        return self._linears[id(module)]

    def _quantised_tap(self, module: torch.nn.Module) -> ModuleTap:
        layers = self.linears(module)
        if layers is None:
            return ModuleTap(any_call)
        if "" in layers:
            return ModuleTap(described(linear, layers))
        usual = self._usual_tap(module) or ModuleTap()
        if usual.describe is None:
            return usual
        return replace(usual, describe=described(usual.describe, layers))

    def _usual_tap(self, module: torch.nn.Module) -> ModuleTap | None:
        kind = type(module)
        if kind not in self._by_class:
            self._by_class[kind] = self._find(module)
        return self._by_class[kind]

    def files(self) -> list[ModuleType]:
        """The modeling files that define the model and its tapped classes."""
        if self.architecture is None:
            return []
        names = {
            kind.__module__
            for module in self.model.modules()
            for kind in type(module).__mro__
            if kind.__name__ in self.architecture.modules
        } | {type(self.model).__module__}
        return [
            sys.modules[name]
            for name in sorted(names)
            if not name.startswith("torch.") and name in sys.modules
        ]

    @functools.cached_property
    def missing(self) -> list[str]:
        """Classes and functions that the architecture's table names and its files do not have."""
        table = self.architecture
        if table is None:
            return []
        known = {name for file in self.files() for name in vars(file)} | set(dir(torch.nn))
        named = [*table.modules, *table.functions, *table.masks]
        return [name for name in named if name not in known | table.optional]

    def untapped_functions(self) -> dict[tuple[ModuleType, str], FunctionTap]:
        """Where the architecture is not described here, or no more: the other functions of its
        modeling files."""
        table = self.architecture
        if table is not None and not self.missing:
            return {}
        tapped = set() if table is None else {*table.functions, *table.masks}
        names = {type(m).__module__ for m in self.model.modules()}
        return {
            (sys.modules[name], function): FunctionTap(function, any_function, decorated=True)
            for name in sorted(names)
            if not name.startswith("torch.") and name in sys.modules
            for function, value in inspect.getmembers(sys.modules[name], inspect.isfunction)
            if inspect.unwrap(value).__module__ == name and function not in tapped
        }

    def _find(self, module: torch.nn.Module) -> ModuleTap | None:
        if self.architecture is not None:
            for kind in type(module).__mro__:
                if kind.__name__ in self.architecture.modules:
                    return self.architecture.modules[kind.__name__]
        known = GENERIC.get(type(module))
        if self.architecture is not None and not self.missing:
            return known
        if known is not None and known.describe is not None:
            return replace(known, describe=or_any_call(known.describe))
        return ModuleTap(any_call)


def taps_for(model: torch.nn.Module) -> Taps:
    """The table of the model's architecture, or none."""
    config: Any = getattr(model, "config", None)
    architecture = ARCHITECTURES.get(getattr(config, "model_type", ""))
    paths = {id(m): path for path, m in model.named_modules()}
    base = paths.get(id(_decoder_of(model)), "")
    return Taps(architecture, base, model, _dtype_of(model))


def _dtype_of(model: torch.nn.Module) -> torch.dtype:
    """The dtype of floats that most of its parameters have."""
    sizes: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        if parameter.dtype in WIDE and not is_wrapper(type(parameter)):
            sizes[parameter.dtype] += parameter.numel()
    return sizes.most_common(1)[0][0] if sizes else torch.float32


def _decoder_of(model: Any) -> Any:
    """The decoder without its head; by name, too, where the base of a class of text models is that
    of the larger model which it is a part of."""
    base = getattr(model, "base_model", model)
    if base is model and hasattr(model, "get_decoder"):
        return model.get_decoder()
    return base
