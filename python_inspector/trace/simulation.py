"""Simulated correct kernels of one run: how many, their samples, and the noise between them."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ..format.host_copy import is_host
from .room import stack_elements
from .stacks import Stacks

NARROW = {torch.float16, torch.bfloat16}
"""Dtypes whose outputs are judged by their bits."""
LOW = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
}
"""What is computed in float64, and what that is called."""
FLOATS = {*LOW, torch.float64}
"""What is computed with; anything else is codes, or integers."""
LARGE = 1 << 20
"""Elements of a weight beyond which a product upcasts it piece by piece, on a CPU."""
LARGE_ON_DEVICE = 1 << 28
"""The same on an accelerator, whose products want whole matrices."""
LONG = 1 << 18
"""Elements from which a host simulates one kernel after the other."""
LIMIT = 1 << 26
"""Elements of a float64 stack of samples, on a CPU."""
LIMIT_ON_DEVICE = 1 << 29
"""The same on an accelerator with little memory."""
SHARE_OF_DEVICE = 24
"""On others a stack may take one part in so many of it: five or six of its size are there at once,
and other processes may record at the same time."""


class TooLargeError(RuntimeError):
    """A stack of samples would exceed the limit: simulate fewer kernels at once."""


class Way(Protocol):
    """Which operations a kernel keeps in float32, by their place in the list; rounded at a scale,
    if that is not 0."""

    @property
    def kept(self) -> Collection[int]: ...

    @property
    def scale(self) -> float: ...


@dataclass
class Simulation:
    """How a rounded run is made, and what it noted."""

    runs: int
    """Simulated kernels besides the rounded model."""
    normals: Normals
    limit: int | None = None
    """Elements of a float64 stack, by default LIMIT or what an accelerator has room for; ignored
    for one run, which cannot be divided."""
    truncating: int = 0
    """Further ones whose products accumulate as tensor cores do (truncation.py), with normal
    numbers of their own: the same, whether they run with the others or alone."""
    kept: Collection[int] = ()
    """Operations, by their place in the list, whose 16-bit results stay in float32."""
    scale: float = 0.0
    """Those are rounded at this scale; 0: not at all."""
    ways: Sequence[Way] = ()
    """Further rows, without noise, which keep what each of them says."""
    operations: list[dict[str, Any]] = field(default_factory=list)
    """What the run computed, in order, as the recording lists it."""
    plain: bool = True
    """Whether the first kernel is a plain one, whose errors are no chance: it adds one term after
    the other (sequential.py)."""
    losses: dict[int, tuple[torch.Tensor, torch.Tensor]] | None = None
    """What truncation loses in each operation, and how much that varies, by its place in the list:
    to be shared with the runs of further kernels; None where there are none."""
    stacks: Stacks = field(init=False)
    makers: Callable[[torch.Tensor], list[int] | None] = field(init=False)
    """The operations that a tensor of a run with samples is made by, by place; None where that is
    not known."""

    def __post_init__(self) -> None:
        self.stacks = Stacks(self.rows)
        rows = slice(1, 1 + self.runs)
        self._nearest = Samples(rows, self.runs, self.normals, self.plain)
        own = self.normals.again() if self.runs else self.normals
        rows = slice(1 + self.runs, 1 + self.runs + self.truncating)
        self._truncating = Samples(rows, self.truncating, own)

    @property
    def rows(self) -> int:
        """Rows of a stack: the rounded model, then the simulated kernels."""
        return 1 + self.runs + self.truncating + len(self.ways)

    def samples(self, truncating: bool | None = None) -> list[Samples]:
        """The simulated kernels: all, those whose products truncate, or those whose do not."""
        found = []
        if self._nearest.count and truncating is not True:
            found.append(self._nearest)
        if self._truncating.count and truncating is not False:
            found.append(self._truncating)
        return found

    def keeps(self, dtype: torch.dtype) -> bool:
        """Whether the operation at hand does not round to this dtype."""
        if dtype not in NARROW:
            return False
        place = len(self.operations)
        return place in self.kept or any(place in way.kept for way in self.ways)

    def check(self, elements: int, device: torch.device) -> None:
        limit = self.limit or stack_elements(_limit(device))
        if self.rows > 2 and self.rows * elements > limit:
            raise TooLargeError(f"{self.rows} runs of {elements} elements, at most {limit}")

    def kept_wide(self, exact: torch.Tensor, dtype: torch.dtype, stacked: bool) -> torch.Tensor:
        """A stack of a result that stays in float32."""
        wide = self.spread_out(exact if exact.dtype in FLOATS else exact.float(), stacked)
        if self.ways:
            return self._kept_by_ways(wide, dtype)
        return (wide * self.scale).to(dtype).to(wide.dtype) / self.scale if self.scale else wide

    def _kept_by_ways(self, wide: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The same where each row keeps what its way does, and the first one nothing."""
        place, ways = len(self.operations), self.ways
        own = [(place in way.kept, way.scale if place in way.kept else 0.0) for way in ways]
        form = len(own) + 1, *[1] * (wide.ndim - 1)
        kept = wide.new_tensor(
            [0, *(keeps and not scale for keeps, scale in own)], dtype=torch.bool
        )
        scales = wide.new_tensor([1.0, *(scale or 1.0 for _, scale in own)]).view(form)
        rounded = (wide * scales).to(dtype).to(wide.dtype) / scales
        return torch.where(kept.view(form), wide, rounded)

    def spread_out(self, exact: torch.Tensor, stacked: bool) -> torch.Tensor:
        """A stack that may be written to; `exact` itself where it is one."""
        if stacked:
            return exact
        self.check(exact.numel(), exact.device)
        return exact.expand(self.rows, *exact.shape).clone(memory_format=torch.contiguous_format)

    def perturb(
        self,
        exact: torch.Tensor,
        scale: torch.Tensor,
        stacked: bool,
        more: Sequence[Noise] = (),
        alone: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The result as each simulated kernel has it: off by `scale` times a normal number, or by
        `alone` if it is the plain one, and by `more`. In its place, if it is a stack."""
        out = exact
        if not stacked:
            self.check(exact.numel(), exact.device)
            out = exact.new_empty((self.rows, *exact.shape))
            out[0] = exact
        for samples in self.samples():
            rows = out[samples.rows]
            parts = [Noise(scale, alone=alone), *more]
            samples.perturb(rows if stacked else exact, parts, rows)
        return out


Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Noise:
    """A standard deviation for a normal number each; where `scale` is of size 1 along an axis, one
    number for all of it. `times` multiplies both. Or `draw`: what one kernel is off by, from
    normal numbers in the form of tensors. `habit`: the number is the kernel's, the same in all its
    operations, as the loss of what it always cuts off is. `alone`: what the plain kernel is off by,
    in place of `scale` times its number."""

    scale: torch.Tensor
    times: torch.Tensor | None = None
    draw: Callable[[Change], torch.Tensor] | None = None
    habit: bool = False
    alone: torch.Tensor | None = None


@dataclass(frozen=True)
class Samples:
    """Simulated kernels of one kind: their rows in a stack."""

    rows: slice
    count: int
    normals: Normals
    plain: bool = False
    """Whether the first of them is the plain one."""

    def normal(self, like: torch.Tensor) -> torch.Tensor:
        """A normal number for every element of each one's result."""
        return self.normals.draw((self.count, *like.shape), like.device)

    def _habit(self, like: torch.Tensor) -> torch.Tensor:
        """One of each, whichever operation asks."""
        return self.normals.habits().draw((self.count, *[1] * like.ndim), like.device)

    def _once(self, like: torch.Tensor) -> torch.Tensor:
        return self.normals.draw(like.shape, like.device)

    def perturb(self, exact: torch.Tensor, parts: Sequence[Noise], out: torch.Tensor) -> None:
        """Writes results, one for all or a stack, to `out` with all noise, rounded once to its
        dtype: an accelerator rounds as it writes, and moves no float64."""
        if not parts:
            out.copy_(exact)
        if len(parts) == 1 and _is_long(parts[0], exact):
            self._perturb_in_turn(exact, parts[0], out)
            return
        for part in parts:
            into = out if part is parts[-1] else None
            if part.draw is not None:
                off = torch.stack([part.draw(self._once) for _ in range(self.count)])
                exact = torch.add(exact, off, out=into)
                continue
            normal = (self._habit if part.habit else self.normal)(part.scale)
            self._settle_first(part, normal[0])
            if exact.is_complex():
                off = torch.complex(normal * part.scale, self.normal(part.scale) * part.scale)
                exact = torch.add(exact, off if part.times is None else off * part.times, out=into)
            elif part.times is None:
                exact = torch.addcmul(exact, normal, part.scale, out=into)
            else:
                exact = torch.addcmul(exact, normal * part.scale, part.times, out=into)

    def _settle_first(self, part: Noise, normal: torch.Tensor) -> None:
        """Puts what the plain kernel is off by in the place of its numbers."""
        if self.plain and part.alone is not None:
            normal.copy_((part.alone / part.scale).nan_to_num(0.0, 0.0, 0.0))

    def _perturb_in_turn(self, exact: torch.Tensor, part: Noise, out: torch.Tensor) -> None:
        """One after the other, with the same numbers: a host's memory is asked for once."""
        stacked = exact.ndim == out.ndim
        for row in range(self.count):
            off = self.normals.draw(part.scale.shape, exact.device)
            if row == 0:
                self._settle_first(part, off)
            own = exact[row] if stacked else exact
            if part.times is None:
                torch.addcmul(own, off, part.scale, out=out[row])
            else:
                torch.addcmul(own, off.double().mul_(part.scale), part.times, out=out[row])


def _is_long(part: Noise, exact: torch.Tensor) -> bool:
    """Whether one kernel's numbers fill a cache, and are drawn in whole blocks of 16."""
    plain = part.draw is None and not part.habit and not exact.is_complex()
    size = part.scale.numel()
    return plain and is_host(exact.device) and size >= LONG and size % 16 == 0


class Normals:
    """Normal numbers that are the same for the same text, on each kind of device its own: drawn
    where they are used, because a host's cannot keep up with an accelerator."""

    def __init__(self, text: str) -> None:
        self._text = text
        digest = hashlib.sha256(text.encode()).digest()
        self._seed = int.from_bytes(digest[:7], "little")
        self._generators: dict[torch.device, torch.Generator] = {}

    def again(self) -> Normals:
        """The same numbers from the first one."""
        return Normals(self._text)

    def habits(self) -> Normals:
        """Those of the kernels, from the first one."""
        return Normals(f"{self._text} habits")

    def draw(self, shape: Sequence[int], device: torch.device) -> torch.Tensor:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return torch.randn(shape, generator=self._generators[device], device=device)


class Operands:
    """The arguments of one operation with stacks in place of tensors that have samples.

    `wide`: in float64, but for weights that are too large to be upcast as a whole; Python numbers
    keep the rounding to float32 that torch gives them, unless an operand is float64. `products`:
    those that are products, which the operation adds (multiplied.py).
    """

    def __init__(
        self,
        stacks: Stacks,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        wide: bool,
        products: tuple[Any, ...] = (),
    ) -> None:
        self._stacks = stacks
        self.given = args
        """As the run itself has them."""
        self.products = products
        self._wide = wide
        if any(isinstance(a, torch.Tensor) and a.dtype == torch.float64 for a in args):
            self._wide = False
        self.stores = next((a.dtype for a in args if isinstance(a, torch.Tensor)), torch.float32)
        """The dtype of the first tensor, before it was upcast."""
        self._with_rows: set[int] = set()
        self.mixed = False
        """Some samples have another dtype than the tensor of the run."""
        self.args = [self._take(a) for a in args]
        if self.mixed and not wide:
            self.args = [self._not_narrow(a) for a in self.args]
        self.kwargs = {name: self._take(a) for name, a in kwargs.items()}

    def has_rows(self, value: Any) -> bool:
        """Whether this object among the arguments is a stack."""
        return id(value) in self._with_rows

    @property
    def stacked(self) -> bool:
        return bool(self._with_rows)

    def change(self, places: Sequence[int], change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Puts what `change` makes of the arguments at these places in their place."""
        before = [self.args[i] for i in places]  # alive, or a new one may get an old one's id
        stacked = [self.has_rows(value) for value in before]
        for i, value in zip(places, before, strict=True):
            self.args[i] = change(value)
        self._with_rows -= {id(value) for value in before}
        self._with_rows |= {
            id(self.args[i]) for i, rows in zip(places, stacked, strict=True) if rows
        }

    def first_row(self) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of the run itself, as these are."""
        return self.map(lambda t: t[0] if self.has_rows(t) else t)

    def map(self, change: Callable[[torch.Tensor], Any]) -> tuple[list[Any], dict[str, Any]]:
        args = [_mapped(a, change) for a in self.args]
        return args, {name: _mapped(a, change) for name, a in self.kwargs.items()}

    def _take(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            stack = self._stacks.of(value) if len(self._stacks) else None
            taken = value if stack is None else stack
            if self._wide and taken.dtype in LOW and (stack is not None or not _is_large(taken)):
                taken = taken.to(LOW[taken.dtype])
            if stack is not None:
                self._with_rows.add(id(taken))
                self.mixed = self.mixed or stack.dtype != value.dtype
            return taken
        if self._wide and isinstance(value, float):
            return _as_float32(value)
        if isinstance(value, torch.dtype):
            return LOW.get(value, value) if self._wide else value
        return [self._take(v) for v in value] if isinstance(value, (list, tuple)) else value

    def _not_narrow(self, value: Any) -> Any:
        """In float32, like samples that are in float32: moves take operands of one dtype."""
        if isinstance(value, (list, tuple)):
            return [self._not_narrow(v) for v in value]
        if not isinstance(value, torch.Tensor) or value.dtype not in NARROW:
            return value
        taken = value.float()
        if self.has_rows(value):
            self._with_rows.add(id(taken))
        return taken


def _mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Not a closure that calls itself: such a cycle keeps tensors until the next collection."""
    if isinstance(value, torch.Tensor):
        return change(value)
    return [_mapped(v, change) for v in value] if isinstance(value, (list, tuple)) else value


@functools.lru_cache(maxsize=1024)
def _as_float32(number: float) -> float:
    """Factors and epsilons as every kernel is given them: float32 arithmetic has no others."""
    return torch.tensor(number, dtype=torch.float32, device="cpu").item()


@functools.cache
def _limit(device: torch.device) -> int:
    if is_host(device):
        return LIMIT
    if device.type != "cuda":
        return LIMIT_ON_DEVICE
    memory = torch.cuda.get_device_properties(device).total_memory
    return max(LIMIT_ON_DEVICE, memory // SHARE_OF_DEVICE // torch.float64.itemsize)


def _is_large(t: torch.Tensor) -> bool:
    return t.ndim == 2 and t.numel() > large(t.device)


def large(device: torch.device) -> int:
    """Elements of a weight beyond which a product upcasts it piece by piece."""
    return LARGE if is_host(device) else stack_elements(LARGE_ON_DEVICE)


def widened(operands: Sequence[Any]) -> list[Any]:
    """Every low tensor in float64, the large ones, too."""
    return [
        a.to(LOW[a.dtype]) if isinstance(a, torch.Tensor) and a.dtype in LOW else a
        for a in operands
    ]


def product(a: torch.Tensor, b: torch.Tensor, *, magnitudes: bool = False) -> torch.Tensor:
    """a @ b in float64, or |a| @ |b|, without a whole float64 copy of a large weight."""
    if a.dtype in LOW:
        a = a.to(LOW[a.dtype])
    a = a.abs() if magnitudes else a
    if b.dtype not in LOW:
        return torch.matmul(a, b.abs() if magnitudes else b)
    step = max(1, large(b.device) // b.shape[-2])
    wide = LOW[b.dtype]
    parts = [b[..., i : i + step].to(wide) for i in range(0, b.shape[-1], step)]
    made = [torch.matmul(a, p.abs() if magnitudes else p) for p in parts]
    return made[0] if len(made) == 1 else torch.cat(made, -1)
