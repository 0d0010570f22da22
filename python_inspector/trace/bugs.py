"""Bugs of one operation: what a port of torch code gets wrong, as a changed call of it.

bugs_of() lists those that an operation can have. A bug is a function from the operation as it is
called to another result, so the same bug can be planted in the rounded model and in float64.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..format.axes import broadcast_shape
from .arithmetic import terms
from .attention_model import is_attention
from .bounds import INDEX_AT, is_whole
from .products import ANYWHERE, cut_to_tf32, in_tf32, rounded_to_tf32
from .sites import ACTIVATIONS, Seen, Site, floats

KINDS = ("skip", "constant", "shift", "last term", "rounding", "swap", "index", "sign")

_ROUNDED, _IN_TF32 = "is rounded to", "multiplies in TF32"
_CASTS = {"_to_copy", "copy", "full", "zeros", "ones", "full_like", "zeros_like", "ones_like"}
_UNSIGNED = _CASTS | {"cat", "stack", "index", "index_select", "gather", "embedding", "fill"}
"""Moves: a sign that is wrong there is wrong where the value was made."""
_LARGE = 1e30
"""Constants beyond are used as infinity: a hundredth more is the same."""


@dataclass(frozen=True)
class Bug:
    site: Site
    kind: str
    name: str
    change: Callable[[Seen], Any]
    pattern: tuple[Any, ...]
    """Equal for bugs that differ in their place alone."""
    place: str = ""
    """File and line of the code that calls the operation."""

    @property
    def told(self) -> str:
        """The name for people, who cannot count operations."""
        return f"{self.name} ({self.place})" if self.place else self.name


Rule = Callable[["Seen"], "Found"]
"""From an operation to its bugs of one kind."""


def bugs_of(seen: Seen, rules: Iterable[tuple[str, Rule]]) -> Iterator[Bug]:
    """The bugs by these rules that this operation can have; `seen.result` is what it gives."""
    for kind, rule in rules:
        for detail, name, change in rule(seen):
            shapes = tuple(tuple(t.shape) for t in seen.args if isinstance(t, torch.Tensor))
            pattern = (kind, detail, seen.site.op, shapes)
            yield Bug(seen.site, kind, name, change, pattern, seen.place)


Change = Callable[[Seen], Any]
Found = Iterator[tuple[str, str, Change]]
"""What tells the bug from others of its kind and operation, its name, and what it does."""


def out_of(seen: Seen) -> torch.Tensor | None:
    """The first result, if it is a floating tensor."""
    result = seen.result[0] if isinstance(seen.result, (tuple, list)) else seen.result
    floating = isinstance(result, torch.Tensor) and result.is_floating_point()
    return result if floating and not seen.func.is_view else None


def instead(seen: Seen, i: int, value: Any) -> list[Any]:
    return [*seen.args[:i], value, *seen.args[i + 1 :]]


def _result_as(seen: Seen, value: torch.Tensor) -> Any:
    """What the operation gives, with `value` in place of its first result; a number that is added
    may be on the host."""
    result = seen.run()
    if seen.writes:
        result.copy_(value)
        return result
    if isinstance(result, (tuple, list)):
        return (value.to(result[0]).expand_as(result[0]).clone(), *result[1:])
    return value.to(result).expand_as(result).clone()


def broadcasts(a: torch.Tensor, out: torch.Tensor) -> bool:
    return broadcast_shape(a, out) == tuple(out.shape)


def _skips(seen: Seen) -> Found:
    """The result is an operand."""
    out = out_of(seen)
    if out is None or seen.site.op in _CASTS:
        return
    if seen.writes:
        yield "target", f"{seen.site} is skipped", lambda s: s.args[0]
        return
    found = [i for i in floats(seen.args) if broadcasts(seen.args[i], out)]
    for i in found[:3]:
        alone = f", its {seen.argument(i)} is the result" if len(found) > 1 else ""
        yield str(i), f"{seen.site} is skipped{alone}", _operand_as_result(i)


def _operand_as_result(i: int) -> Change:
    return lambda seen: _result_as(seen, seen.args[i])


def _constants(seen: Seen) -> Found:
    """A number is a hundredth larger."""
    yield from constants_of(seen, 1.01)


def constants_of(seen: Seen, factor: float) -> Found:
    """A number is so many times as large."""
    kinds = [str(a.type) for a in seen.func._schema.arguments]
    for i, value in enumerate(seen.args):
        if _is_constant(value, kinds[i]):
            more = value * factor
            yield (
                f"{i} {value}",
                f"{seen.site} {seen.argument(i)} {value:.5g} -> {more:.5g}",
                _with_constant(i, more),
            )
        elif _is_scalar(value):
            yield (
                str(i),
                f"{seen.site} {seen.argument(i)} x {factor:g}",
                _with_scalar(i, factor),
            )
    for key, value in seen.kwargs.items():
        if isinstance(value, float) and 0 < abs(value) < _LARGE:
            yield (
                key,
                f"{seen.site} {key} {value:.5g} -> {value * factor:.5g}",
                _with_keyword(key, value * factor),
            )


def _is_constant(value: Any, kind: str) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    scalar = kind in ("float", "number", "Tensor", "Optional[float]")  # x + eps has a Tensor there
    return number and scalar and 0 < abs(value) < _LARGE


def _is_scalar(value: Any) -> bool:
    tensor = isinstance(value, torch.Tensor) and value.is_floating_point()
    return tensor and value.ndim == 0


def _with_constant(i: int, more: float) -> Change:
    def change(seen: Seen) -> Any:
        args = instead(seen, i, more)
        if seen.site.op == "pow" and i == 1 and isinstance(args[0], torch.Tensor):
            args[0] = args[0].abs()  # a power that is not whole has no value below zero
        return seen.run(args)

    return change


def _with_scalar(i: int, factor: float) -> Change:
    return lambda seen: seen.run(instead(seen, i, seen.args[i] * factor))


def _with_keyword(key: str, more: float) -> Change:
    return lambda seen: seen.run(None, {**seen.kwargs, key: more})


def _shifts(seen: Seen) -> Found:
    """An operand is shifted by one along an axis."""
    if out_of(seen) is None or seen.site.op in _CASTS or seen.writes:
        return
    for i in list(floats(seen.args))[:3]:
        sizes = seen.args[i].shape
        axes = [axis for axis, size in enumerate(sizes) if size > 1]
        for axis in {axes[-1], axes[0]} if axes else ():
            yield (
                f"{i} {axis - len(sizes)}",
                f"{seen.site} {seen.argument(i)} is shifted by one along axis {axis}",
                _rolled(i, axis),
            )


def _rolled(i: int, axis: int) -> Change:
    return lambda seen: seen.run(instead(seen, i, seen.args[i].roll(1, axis)))


_SUMMED = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "_grouped_mm": 0, "addmm": 1, "baddbmm": 1}
_OVER_AXES = {"sum", "mean", "amax", "amin", "logsumexp", "var", "linalg_vector_norm", "prod"}
_OVER_ONE = {"_softmax", "_log_softmax", "cumsum", "logcumsumexp"}


def _last_terms(seen: Seen) -> Found:
    """A sum's last term is dropped."""
    op, out = seen.site.op, out_of(seen)
    if out is None or not seen.args or not isinstance(seen.args[0], torch.Tensor):
        return
    change: Change | None = None
    if op in _SUMMED and seen.args[_SUMMED[op]].shape[-1] > 1:
        change = _without_last(_SUMMED[op], -1, 0.0)
    elif op in _OVER_AXES | _OVER_ONE and (axis := _axis(seen)) is not None:
        other = {"prod": 1.0, "amin": float("inf")}.get(op, 0.0)
        if op in ("_softmax", "_log_softmax", "amax", "logsumexp", "logcumsumexp"):
            other = float("-inf")
        if seen.args[0].shape[axis] > 1:
            change = _without_last(0, axis, other)
    elif op == "convolution" and seen.args[1][0].numel() > 1:
        change = _without_last(1, -1, 0.0)
    elif is_attention(op) and seen.args[1].shape[-2] > 1:
        change = _without_last_key
    if change is not None:
        count = terms(op, seen.args, out)
        if op in ("amax", "amin"):  # whose arithmetic has no terms
            count = seen.args[0].shape[_axis(seen) or 0]
        yield "", f"the last of {count} terms of {seen.site} is dropped", change


def _axis(seen: Seen) -> int | None:
    """The last of the axes that are summed over."""
    axes = seen.value("dim")
    if seen.args[0].ndim == 0:
        return None
    if isinstance(axes, int):
        return axes
    return -1 if not isinstance(axes, (list, tuple)) or not axes else axes[-1]


def _without_last(i: int, axis: int, other: float) -> Change:
    def change(seen: Seen) -> Any:
        x = seen.args[i].clone()
        x.select(axis, -1).fill_(other)
        return seen.run(instead(seen, i, x))

    return change


def _without_last_key(seen: Seen) -> Any:
    names = [a.name for a in seen.func._schema.arguments]
    args, kwargs = list(seen.args), dict(seen.kwargs)
    for name in ("key", "value"):
        at = names.index(name)
        args[at] = args[at][..., :-1, :]
    for name in ("attn_mask", "attn_bias"):
        if name in names and names.index(name) < len(args):
            at = names.index(name)
            args[at] = None if args[at] is None else args[at][..., :-1]
        elif kwargs.get(name) is not None:
            kwargs[name] = kwargs[name][..., :-1]
    return seen.run(args, kwargs)


def is_rounding(name: str) -> bool:
    """Whether the bug of this name is a loss of precision, which a contract may allow."""
    return _ROUNDED in name or _IN_TF32 in name


def _roundings(seen: Seen) -> Found:
    """A float32 value is rounded to 16 bits; a float64 run has none."""
    out = out_of(seen)
    if out is None or out.dtype != torch.float32 or seen.site.op in ("fill", "full", "arange"):
        return
    given = [a.dtype for a in seen.args if isinstance(a, torch.Tensor)]
    narrow = torch.float16 if torch.float16 in given else torch.bfloat16
    text = "f16" if narrow == torch.float16 else "bf16"

    def change(s: Seen) -> Any:
        result = s.run()
        first = result[0] if isinstance(result, (tuple, list)) else result
        with _disable_current_modes():  # also in float64, where no mode lets a cast round
            rounded = first.to(narrow).to(first.dtype)
        if s.writes:
            return first.copy_(rounded)
        return (rounded, *result[1:]) if isinstance(result, (tuple, list)) else rounded

    yield "", f"the result of {seen.site} {_ROUNDED} {text}", change
    at = in_tf32(seen.site.op, torch.float32, ANYWHERE)
    if at and all(seen.args[i].dtype == torch.float32 for i in at):
        yield "tf32", f"{seen.site} {_IN_TF32}", _with_operands(at, rounded_to_tf32)
        yield "cut", f"{seen.site} {_IN_TF32}, cut off", _with_operands(at, cut_to_tf32)


def _with_operands(at: tuple[int, ...], rounded: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def change(seen: Seen) -> Any:
        args = list(seen.args)
        for i in at:
            with _disable_current_modes():
                args[i] = rounded(args[i])
        return seen.run(args)

    return change


_ORDERED = {"sub", "rsub", "div", "mm", "bmm", "floor_divide", "remainder", "pow", "atan2"}


def _swaps(seen: Seen) -> Found:
    """Two operands, or two parts, are exchanged."""
    op, args = seen.site.op, seen.args
    if op in _ORDERED and len(args) > 1 and _alike(args[0], args[1]):
        yield "", f"{seen.site} with its operands exchanged", lambda s: s.run(_exchanged(s.args))
    elif op == "where" and len(args) > 2 and _alike(args[1], args[2]):
        yield (
            "",
            f"{seen.site} with its operands exchanged",
            lambda s: s.run([s.args[0], s.args[2], s.args[1]]),
        )
    elif op in ("cat", "stack") and len(args[0]) > 1 and _alike(*args[0][:2]):
        yield (
            "",
            f"{seen.site} with its first two parts exchanged",
            lambda s: s.run([_exchanged(s.args[0]), *s.args[1:]]),
        )
    elif op in ("split", "split_with_sizes", "chunk", "unbind") and _alike(*seen.result[:2]):
        yield "", f"{seen.site} with its first two parts exchanged", lambda s: _exchanged(s.run())
    elif is_attention(op) and _alike(args[1], args[2]):
        yield (
            "",
            f"{seen.site} with key and value exchanged",
            lambda s: s.run([s.args[0], s.args[2], s.args[1], *s.args[3:]]),
        )
    elif op == "mul" and _gates(seen):
        yield "", f"{seen.site} with gate and up exchanged", _activation_of_other


def _alike(*values: Any) -> bool:
    if len(values) < 2 or not all(isinstance(v, torch.Tensor) for v in values):
        return False
    return values[0].shape == values[1].shape and values[0].dtype == values[1].dtype


def _exchanged(values: Sequence[Any]) -> list[Any]:
    return [values[1], values[0], *values[2:]]


def _gates(seen: Seen) -> list[int]:
    """Which of two operands is the result of an activation."""
    if len(seen.args) < 2 or not _alike(seen.args[0], seen.args[1]):
        return []
    made = [i for i in (0, 1) if _source(seen, i) is not None]
    return made if len(made) == 1 else []


def _source(seen: Seen, i: int) -> Seen | None:
    found = seen.sources.get(seen.args[i].untyped_storage()._cdata)
    same = found is not None and found.result.shape == seen.args[i].shape
    return found if same and found is not None and found.site.op in ACTIVATIONS else None


def _activation_of_other(seen: Seen) -> Any:
    at = _gates(seen)[0]
    source = _source(seen, at)
    assert source is not None
    other = source.run([seen.args[1 - at], *source.args[1:]])
    return seen.run([other, source.args[0], *seen.args[2:]])


_BORDERS = {"le": operator.lt, "lt": operator.le, "ge": operator.gt, "gt": operator.ge}


def _indices(seen: Seen) -> Found:
    """An index, a border or the start of a range is off by one."""
    op, args = seen.site.op, seen.args
    if op == "slice" and (start := _other_start(seen)) is not None:
        later = "later" if start[0] > args[2] else "earlier"
        yield later, f"{seen.site} starts one {later}", _from(start)
    elif op == "select" and args[0].shape[args[1]] > 1:
        size = args[0].shape[args[1]]
        yield (
            "",
            f"{seen.site} index off by one",
            _from(((args[2] + 1) % size,)),
        )
    elif op == "arange":
        yield "", f"{seen.site} starts one later", lambda s: s.run() + 1
    elif op in ("tril", "triu"):
        yield (
            "",
            f"{seen.site} diagonal off by one",
            lambda s: s.run([s.args[0], (s.args[1] if len(s.args) > 1 else 0) + 1]),
        )
    elif op in _BORDERS and isinstance(seen.result, torch.Tensor):
        yield (
            "",
            f"{seen.site} without its border (<= for <)",
            lambda s: _BORDERS[op](s.args[0], s.args[1]),
        )
    elif op in ("index", "index_put") and any(is_whole(t) for t in args[1]):
        yield "", f"{seen.site} index off by one", _next_of_index
    elif op in INDEX_AT and is_whole(args[INDEX_AT[op]]) and args[0].ndim:
        yield "", f"{seen.site} index off by one", _next_of_other


def _from(place: tuple[int, ...]) -> Change:
    return lambda seen: seen.run([*seen.args[:2], *place])


def _other_start(seen: Seen) -> tuple[int, int] | None:
    """Start and end of a slice of the same length one further, or one before."""
    args = seen.args
    if len(args) < 4 or (len(args) > 4 and args[4] != 1):
        return None
    size = args[0].shape[args[1]]
    start, end, _ = slice(args[2], args[3]).indices(size)
    if end < size:
        return start + 1, end + 1
    return (start - 1, end - 1) if start > 0 else None


def _next_of_index(seen: Seen) -> Any:
    at = next(i for i, t in enumerate(seen.args[1]) if is_whole(t))
    moved = [(t + 1) % seen.args[0].shape[i] if i == at else t for i, t in enumerate(seen.args[1])]
    return seen.run([seen.args[0], moved, *seen.args[2:]])


def _next_of_other(seen: Seen) -> Any:
    at = INDEX_AT[seen.site.op]
    axis = seen.args[1] if isinstance(seen.args[1], int) else 0
    size = seen.args[0].shape[axis] if seen.site.op != "take" else seen.args[0].numel()
    return seen.run(instead(seen, at, (seen.args[at] + 1) % size))


def _signs(seen: Seen) -> Found:
    out = out_of(seen)
    if out is None or seen.site.op in _UNSIGNED or seen.writes:
        return

    def change(s: Seen) -> Any:
        result = s.run()
        several = isinstance(result, (tuple, list))
        return (-result[0], *result[1:]) if several else -result

    yield "", f"the sign of {seen.site} is flipped", change


RULES: dict[str, Rule] = {
    "skip": _skips,
    "constant": _constants,
    "shift": _shifts,
    "last term": _last_terms,
    "rounding": _roundings,
    "swap": _swaps,
    "index": _indices,
    "sign": _signs,
}
