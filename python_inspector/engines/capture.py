"""capture(): hooks on the modules of any torch model, for what they give to be judged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..format.operands import Output, output_of, save
from .layouts import Transform, identity

Target = str | tuple[str, Transform]
"""A recorded name, "model.layers.3", or that with a transform of theirs into the recorded one."""


class Captured(dict[str, Any]):
    """What each module gave when it was last called, by recorded name: for verify_model().

    `calls` has every call; `save` writes them for `harness judge --mode chained`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Any]] = []

    def add(self, name: str, value: Any) -> None:
        self[name] = value
        self.calls.append((name, value))

    def save(self, path: Path | str) -> None:
        """Calls of one name are numbered from 0, as the recording's are."""
        counts: dict[str, int] = {}
        outputs: dict[str, Output] = {}
        for name, value in self.calls:
            place, _, output = name.partition("/")
            call = counts.get(name, 0)
            counts[name] = call + 1
            outputs[f"{place}#{call}/{output or 'out'}"] = output_of(value)
        save(outputs, Path(path))


@contextmanager
def capture(model: Any, mapping: Mapping[str, Target]) -> Iterator[Captured]:
    """Takes the outputs of the named modules of a torch model while the block runs.

    `mapping` goes from a module of theirs, as `named_modules()` has it, to the recorded name:
    {"transformer.h.{}": "model.layers.{}", "head": ("logits", layouts.first_of(32000))}; `{}`
    is any number. What a module returns is its output, the first of a tuple; with ":input"
    behind its name, what it was given first. Raises KeyError for a name that is no module of it.
    """
    captured = Captured()
    removers: list[Callable[[], None]] = []
    modules = dict(model.named_modules())
    try:
        for theirs, target in mapping.items():
            name, transform = target if isinstance(target, tuple) else (target, identity)
            wanted, _, which = theirs.partition(":")
            for path, numbers in _matching(modules, wanted):
                hook = _hook(captured, name.format(*numbers), transform, which == "input")
                added = modules[path].register_forward_hook(hook, with_kwargs=True)
                removers.append(added.remove)
        yield captured
    finally:
        for remove in removers:
            remove()


def _hook(
    captured: Captured, name: str, transform: Transform, of_input: bool
) -> Callable[..., None]:
    def hook(_module: Any, inputs: Any, named: Mapping[str, Any], output: Any) -> None:
        value: Any = output
        if of_input:
            value = inputs[0] if inputs else next(iter(named.values()))
        elif isinstance(output, tuple | list):
            value = output[0]
        captured.add(name, transform(value.detach()).clone())

    return hook


def _matching(modules: Mapping[str, Any], theirs: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    pattern = re.compile(r"(\d+)".join(map(re.escape, theirs.split("{}"))))
    found = [(path, match) for path in modules if (match := pattern.fullmatch(path))]
    if not found:
        near = [path for path in modules if path.rpartition(".")[2] == theirs.rpartition(".")[2]]
        hint = f"; did you mean {near[0]}?" if near else ""
        raise KeyError(f"the model has no module {theirs}{hint}")
    for path, match in found:
        yield path, match.groups()
