"""The arguments of a function under test: copies that it may write to, and what became of them.

A copy is of the whole storage that a tensor is a view of, and views of one storage stay views of
one: what a function writes outside the view that it was given is seen, too.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..arrays import Convert, as_array
from ..format.host_copy import bytes_of
from ..taps.generic import numbers_of, tensors_of
from ..trace.copies import Copies


@dataclass(frozen=True)
class Expected:
    """What `like` made of its arguments: which it changed, and the plain values in them after."""

    arguments: Mapping[str, Any]
    """As they were given, by name."""
    changed: frozenset[str] = frozenset()
    """Tensors, by the names of tensors_of."""
    numbers: Mapping[str, Any] | None = None
    scratch: frozenset[str] = frozenset()
    """Tensors that `like` leaves as they were, and the function need not."""

    @property
    def open(self) -> frozenset[str]:
        """What the function may change."""
        return self.changed | self.scratch


class Given(Copies):
    """Copies of all arguments of one call, as the function gets them.

    `convert` makes the function's own arrays of tensors, None hands them over as they are; `grad`
    says whether copies require gradients where the originals do.
    """

    def __init__(self, convert: Convert | None, *, grad: bool) -> None:
        super().__init__(None, {}, {}, lazy=False)
        self._convert = convert
        self._grad = grad
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def tensor(self, value: torch.Tensor, name: str) -> Any:
        made = self._viewed(value)
        return made if self._convert is None else self._convert(made)

    def of(self, value: Any, name: str = "") -> Any:
        made = super().of(value, name)
        if self._grad and isinstance(value, torch.Tensor) and value.requires_grad:
            made.requires_grad_()
        return made

    def other(self, value: Any) -> Any:
        try:
            return copy.deepcopy(value)
        except Exception:  # a lock, a generator, a handle: the function gets the very same
            return value

    def _viewed(self, value: torch.Tensor) -> torch.Tensor:
        if not _is_plain(value):
            return value.clone()
        storage = value.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = (storage, storage.clone())
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        kept = self._storages[storage._cdata][1]
        return made.set_(kept, value.storage_offset(), value.shape, value.stride())

    def twin(self, original: Any) -> Any:
        """What the function was given in place of an argument."""
        return self.memo[id(original)][1]

    def after(self, expected: Expected) -> dict[str, Any]:
        """The arguments that `like` changed, as the function left them; None where one is gone."""
        found = self._now(expected)
        return {name: found.get(name) for name in sorted(expected.changed)}

    def changed(self, arguments: Mapping[str, Any]) -> frozenset[str]:
        """The names of tensors that the function wrote, or added."""
        before = tensors_of(arguments, _same)
        now = self._now(Expected(arguments))
        return frozenset(
            name
            for name, value in now.items()
            if name not in before or not self._holds(before[name], value)
        )

    def faults(self, expected: Expected) -> list[str]:
        """What the function changed of that which `like` leaves as it is, and the like."""
        before = tensors_of(expected.arguments, _same)
        return [
            *self._written(before, expected.open),
            *self._replaced(before, expected),
            *self._miscounted(expected),
            *self._of_modules(),
        ]

    def _now(self, expected: Expected) -> dict[str, Any]:
        if self._convert is None:
            return tensors_of(expected.arguments, self.twin)
        before = tensors_of(expected.arguments, _same)
        return {name: self.twin(t) for name, t in before.items() if id(t) in self.memo}

    def _written(
        self, before: Mapping[str, torch.Tensor], changed: Collection[str]
    ) -> Iterator[str]:
        """Of storages, what is other bytes and no tensor that `like` changed."""
        for storage, kept in self._storages.values():
            old, new = _bytes(storage), _bytes(kept)
            if old.shape == new.shape and torch.equal(old, new):
                continue
            if old.shape != new.shape:
                yield f"a storage of {len(old)} bytes was resized to {len(new)}"
                continue
            views = {n: t for n, t in before.items() if _storage_of(t) == storage._cdata}
            differs = old != new
            for name in changed & views.keys():
                differs &= ~_covered(views[name])
            if bool(differs.any()):
                yield _words_of_writing(differs, views, changed, kept)

    def _replaced(self, before: Mapping[str, torch.Tensor], expected: Expected) -> Iterator[str]:
        """Tensors that are not the given ones any more, or had no copy in a storage."""
        now = self._now(expected)
        for name in sorted(now.keys() - before.keys() - expected.open):
            yield f"argument {name} was added, which `like` does not do"
        for name, old in before.items():
            if name in expected.open:
                continue
            if name not in now:
                yield f"argument {name} is gone after the call, which `like` leaves as it was"
            elif not self._is_where_it_was(old, now[name]) and not self._holds(old, now[name]):
                yield f"argument {name} was replaced, which `like` leaves as it was"

    def _is_where_it_was(self, old: torch.Tensor, new: Any) -> bool:
        """Whether nothing but its storage, which is looked at elsewhere, can have changed."""
        kept = self._storages.get(_storage_of(old)) if _is_plain(old) else None
        return (
            kept is not None
            and isinstance(new, torch.Tensor)
            and new.untyped_storage()._cdata == kept[1]._cdata
            and _geometry(new) == _geometry(old)
        )

    def _holds(self, old: torch.Tensor, new: Any) -> bool:
        """Whether an array has a tensor's values; assumed of one that cannot be read."""
        array = as_array(new)
        if not isinstance(array, torch.Tensor):
            try:
                array = torch.as_tensor(array)
            except (TypeError, ValueError, RuntimeError):
                return True
        if array.shape != old.shape:
            return False
        array = array.detach().to(old.device, old.dtype)
        return torch.equal(_own_bytes(array), _own_bytes(old))

    def _of_modules(self) -> Iterator[str]:
        """Weights and buffers of modules that are arguments themselves."""
        for original, made in self.memo.values():
            if not isinstance(original, torch.nn.Module) or made is original:
                continue
            now = dict(made.state_dict(keep_vars=True))
            for name, old in original.state_dict(keep_vars=True).items():
                if name not in now or not self._holds(old, now[name]):
                    kind = type(original).__name__
                    yield f"{name} of the argument {kind} was changed, which `like` does not do"

    def _miscounted(self, expected: Expected) -> Iterator[str]:
        if expected.numbers is None or self._convert is not None:
            return
        now = numbers_of(expected.arguments, self.twin)
        for name, value in expected.numbers.items():
            same = (
                name not in now or now[name] == value or (value != value and now[name] != now[name])
            )
            if not same:
                yield f"argument {name} is {now[name]!r} after the call, after `like` {value!r}"


def _words_of_writing(
    differs: torch.Tensor,
    views: Mapping[str, torch.Tensor],
    changed: Collection[str],
    kept: torch.UntypedStorage,
) -> str:
    """Which argument was changed, or which one the bytes are outside of."""
    for name, view in views.items():
        if name in changed:
            continue
        touched = _elements(differs, view)
        count = int(touched.sum())
        if not count:
            continue
        at = tuple(touched.nonzero()[0].tolist())
        now = torch.empty(0, dtype=view.dtype, device=view.device)
        now.set_(kept, view.storage_offset(), view.shape, view.stride())
        return (
            f"argument {name} was changed, which `like` leaves as it was: {count} of "
            f"{view.numel()} elements, the first at {list(at)}: {view[at].item():.6g} before, "
            f"{now[at].item():.6g} after"
        )
    named = " or ".join(views) or "a tensor"
    first = int(differs.nonzero()[0])
    return (
        f"{int(differs.sum())} bytes outside argument {named} were written, in the storage that it "
        f"is a view of: the first is byte {first} of {len(differs)}"
    )


def _is_plain(t: torch.Tensor) -> bool:
    """Whether a tensor is nothing but a view of a storage."""
    return (
        t.layout is torch.strided
        and not t.is_quantized
        and not t.is_conj()
        and not t.is_neg()
        and type(t) in (torch.Tensor, torch.nn.Parameter)
        and t.device.type != "meta"
    )


def _storage_of(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata if _is_plain(t) else 0


def _geometry(t: torch.Tensor) -> tuple[Any, ...]:
    return t.dtype, t.shape, t.stride(), t.storage_offset()


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _own_bytes(t: torch.Tensor) -> torch.Tensor:
    return bytes_of(t.detach().resolve_conj().resolve_neg())


def _elements(of_bytes: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """Of marked bytes of a storage, which elements of a view of it have one."""
    size = view.element_size()
    strides = (*(stride * size for stride in view.stride()), 1)
    at = view.storage_offset() * size
    return of_bytes.as_strided((*view.shape, size), strides, at).any(-1)


def _covered(view: torch.Tensor) -> torch.Tensor:
    """The bytes of the storage that are elements of a view."""
    mask = torch.zeros(view.untyped_storage().nbytes(), dtype=torch.bool, device=view.device)
    size = view.element_size()
    shape = [n if stride else 1 for n, stride in zip(view.shape, view.stride(), strict=True)]
    strides = (*(stride * size for stride in view.stride()), 1)
    mask.as_strided((*shape, size), strides, view.storage_offset() * size).fill_(True)
    return mask


def _same(value: Any) -> Any:
    return value
