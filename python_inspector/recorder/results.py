"""What a call returns, leaf by leaf with its place: how results of two functions are paired.

Names and structure count: a dict's items go by key, a tuple's by position, None is an absent
result that keeps its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..foreign import is_cache, is_model_output
from ..trace.copies import is_state

_KEY = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Leaf:
    """A place of a result that holds nothing further. `name` is the recorded output's, or ""."""

    path: str
    kind: str
    """tensor, empty (a tensor without elements), none, or other: a number, a cache, ..."""
    name: str = ""
    value: Any = None
    """Of `other`, and of an empty tensor."""


@dataclass(frozen=True)
class Node:
    """A dict, tuple or list of a result. `ordered`: a dict whose items have positions, too."""

    path: str
    items: Mapping[str, Node | Leaf]
    named: bool
    ordered: bool


Template = Node | Leaf


class ByName(dict[str, Any]):
    """A result whose keys are the names of its outputs."""


class ResultError(Exception):
    """A result that has not the structure of the other: what is where."""


def leaves_by_path(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What a result holds, dicts by key and tuples by position."""
    if isinstance(value, (Mapping, tuple, list)) and not is_cache(value):
        for key, item in _items(value):
            yield from leaves_by_path(item, _path(value, path, key))
    else:
        yield path, value


def _path(value: Any, path: str, key: str) -> str:
    """Of an item."""
    return key if isinstance(value, ByName) else f"{path}.{key}"


def tensors_by_name(result: Any) -> dict[str, torch.Tensor]:
    """The tensors with elements: "out" where there is one, else by path."""
    return {name: t.detach() for name, t in differentiable_by_name(result).items()}


def differentiable_by_name(result: Any) -> dict[str, torch.Tensor]:
    """The same, which gradients flow back from."""
    found = {
        path: leaf
        for path, leaf in leaves_by_path(result, "out")
        if isinstance(leaf, torch.Tensor) and leaf.numel()
    }
    return dict(zip(["out"], found.values(), strict=True)) if len(found) == 1 else found


def template_of(result: Any) -> Template:
    """The structure of a result, with the names of its tensors."""
    found = tensors_by_name(result)
    alone = "out" if len(found) == 1 else ""

    def of(value: Any, path: str) -> Template:
        if isinstance(value, torch.Tensor):
            if not value.numel():
                return Leaf(path, "empty", value=value)
            return Leaf(path, "tensor", alone or path)
        if isinstance(value, (Mapping, tuple, list)) and not is_cache(value):
            items = {key: of(item, _path(value, path, key)) for key, item in _items(value)}
            named = isinstance(value, Mapping)
            return Node(path, items, named, not named or is_model_output(value))
        return Leaf(path, "none" if value is None else "other", value=value)

    return of(result, "out")


def matched(template: Template, returned: Any) -> Iterator[tuple[Leaf, Any]]:
    """Every leaf of the template with what is in its place: None for what is absent.

    ResultError where `returned` has another structure. A lone array is the first result; of a tuple
    results may be missing at the end, of a dict any.
    """
    if isinstance(template, Leaf):
        if type(returned) in (tuple, list) and len(returned) == 1:
            returned = returned[0]  # as extensions hand over a vector of one
    elif isinstance(returned, Mapping):
        leaves = list(_leaves(template))
        if returned and returned.keys() <= {leaf.name for leaf in leaves if leaf.name}:
            yield from ((leaf, returned.get(leaf.name)) for leaf in leaves)
            return
    elif is_array(returned):
        leaves = list(_leaves(template))
        tensors = [leaf for leaf in leaves if leaf.kind in ("tensor", "empty")]
        if len(tensors) == 1 or (tensors and template.ordered):
            yield from ((leaf, returned if leaf is tensors[0] else None) for leaf in leaves)
            return
    yield from _matched(template, returned)


def _matched(template: Template, returned: Any) -> Iterator[tuple[Leaf, Any]]:
    if isinstance(template, Leaf):
        if template.kind != "other" and isinstance(returned, (Mapping, tuple, list)):
            raise ResultError(_differs(template, returned))
        if template.kind == "none" and returned is not None and not is_state(returned):
            raise ResultError(_differs(template, returned))
        yield template, returned
        return
    if returned is None:
        yield from ((leaf, None) for leaf in _leaves(template))
        return
    if isinstance(returned, Mapping) and template.named:
        given: Mapping[str, Any] = dict(_items(returned))
        if unknown := sorted(given.keys() - template.items.keys()):
            raise ResultError(
                f"the function returned {', '.join(unknown)} at {template.path}, which `like` does "
                f"not; it returns {', '.join(template.items)}"
            )
    elif isinstance(returned, (tuple, list)) and template.ordered:
        if len(returned) > len(template.items):
            raise ResultError(
                f"the function returned {len(returned)} results, `like` {len(template.items)}: "
                f"{', '.join(leaf.name or leaf.path for leaf in _leaves(template))}"
            )
        given = dict(zip(template.items, returned, strict=False))
    else:
        raise ResultError(_differs(template, returned))
    for key, part in template.items.items():
        yield from _matched(part, given.get(key))


def holds_empty_alone(template: Template) -> bool:
    """Whether there are tensors, and none has an element."""
    kinds = {leaf.kind for leaf in _leaves(template)}
    return "empty" in kinds and "tensor" not in kinds


def is_array(value: Any) -> bool:
    return any(hasattr(value, name) for name in ("__dlpack__", "__array__", "__array_interface__"))


def kind_of(value: Any) -> str:
    """A result in words."""
    if value is None:
        return "None"
    if isinstance(value, Mapping):
        return f"a dict with {', '.join(map(str, value)) or 'nothing'}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return "an array" if is_array(value) else f"a {type(value).__name__}"


def _differs(template: Template, returned: Any) -> str:
    if isinstance(template, Leaf):
        like = {"tensor": "a tensor", "empty": "an empty tensor", "none": "None"}[template.kind]
    elif template.named:
        like = f"a dict with {', '.join(template.items)}"
    else:
        like = f"a tuple of {len(template.items)}"
    return f"{template.path}: the function returned {kind_of(returned)}, `like` {like}"


def _leaves(template: Template) -> Iterator[Leaf]:
    if isinstance(template, Leaf):
        yield template
    else:
        for part in template.items.values():
            yield from _leaves(part)


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """A key that no name of a recording can have is its position."""
    if isinstance(value, Mapping):
        keys = [str(key) for key in value]
        for i, (key, item) in enumerate(zip(keys, value.values(), strict=True)):
            yield (key if _KEY.fullmatch(key) else str(i)), item
    else:
        yield from ((str(i), item) for i, item in enumerate(value))


def packed(template: Template) -> Any:
    """As words and containers alone; without what is no part of a place."""
    if isinstance(template, Leaf):
        value = (
            template.value if isinstance(template.value, (torch.Tensor, bool, int, str)) else None
        )
        return ["leaf", template.path, template.kind, template.name, value]
    items = {key: packed(part) for key, part in template.items.items()}
    return ["node", template.path, items, template.named, template.ordered]


def unpacked(it: Any) -> Template:
    kind, *fields = it
    if kind == "leaf":
        return Leaf(*fields)
    path, items, named, ordered = fields
    return Node(path, {key: unpacked(part) for key, part in items.items()}, named, ordered)
