"""Names and places of parameters: tied ones have several names, offloaded ones are elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from . import dispatch


def first_names(model: torch.nn.Module) -> dict[str, str]:
    """From each parameter's name to the first name of the same tensor.

    Tied parameters are one object; offloaded ones are not, so there transformers' list decides.
    """
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[name] = first.setdefault(id(parameter), name)
        if parameter.is_meta and tied.get(name) in names:
            names[name] = names[tied[name]]
    return names


class Parameters:
    """What blocks find in their modules, as a checkpoint stores it."""

    def __init__(self, model: torch.nn.Module) -> None:
        """The model as it is loaded, before any call."""
        self._model = model
        self._first = first_names(model)
        # By the parameter itself, where it stays: offloaded ones are made again.
        self._owners = {id(p): name for name, p in model.named_parameters() if not p.is_meta}

    @contextmanager
    def stored(self, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """The name that a parameter is stored under, and its values, which are there inside.

        name: where a block found the tensor.
        """
        name = self._owners.get(id(tensor)) or self._first.get(name, name)
        if tensor.is_meta:
            yield from dispatch.parameters(self._model, [name])
        else:
            yield name, tensor
