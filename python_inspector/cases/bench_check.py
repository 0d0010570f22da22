"""How long check() takes, and its memory, against what is allowed: `inspector bench check`.

Each case is judged with a kernel that is right, one that leaves out the last summand, and one that
is right but for an element. The figures are of the second call in a process, by the wall clock, on
a machine that does nothing else; of an accelerator also the most memory that torch had in use, and
what is allowed: four times what `like` has itself, and 1 GiB. Then a sealed verdict of the first
case: in a process that begins with it, and the next one in a process, once a worker waits.
"""

from __future__ import annotations

import argparse
import functools
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from ..api.checking import check
from ..api.hardware import device_name
from ..api.verdict import Verdict, WrongError
from ..api.worker_process import await_ahead
from ..recorder.large import BESIDE, SHARE

Kernel = Callable[..., torch.Tensor]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
GIB = 1 << 30
SEALED = (10.0, 1.5)
"""Seconds that a sealed verdict may take: of a process that begins, and the next one."""


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def other_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    mean = torch.linalg.vecdot(wide, wide)[:, None] / x.shape[-1]
    return weight * (wide / (mean + 1e-5).sqrt()).to(x.dtype)


def without_the_last(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    mean = wide[:, :-1].pow(2).sum(-1, keepdim=True) / x.shape[-1]
    return weight * (wide * torch.rsqrt(mean + 1e-5)).to(x.dtype)


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight.T


def other_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, weight)


def without_the_last_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x[:, :-1] @ weight[:, :-1].T


def batched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def in_halves(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.bmm(x, y) for x, y in zip(a.chunk(2), b.chunk(2), strict=True)])


def batched_without_the_last(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a[..., :-1] @ b[:, :-1]


def softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


def other_softmax(x: torch.Tensor) -> torch.Tensor:
    y = (x - x.amax(-1, keepdim=True)).exp_()
    return y.div_(y.sum(-1, keepdim=True))


def softmax_without_the_last(x: torch.Tensor) -> torch.Tensor:
    y = (x - x.amax(-1, keepdim=True)).exp_()
    return y.div_(y[..., :-1].sum(-1, keepdim=True))


def but_for_an_element(right: Kernel, *inputs: torch.Tensor) -> torch.Tensor:
    """Two thirds on its way, where a large value of another place is."""
    y = right(*inputs)
    flat = y.view(-1)
    flat[2 * flat.numel() // 3] = 1.5 * flat[:4096].abs().amax()
    return y


@dataclass(frozen=True)
class Case:
    """`floors` are the seconds that a right kernel may take and a wrong one."""

    name: str
    like: Kernel
    right: Kernel
    wrong: Kernel
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    floors: tuple[float, float | None] = (math.inf, None)

    def inputs(self, device: str) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator(device).manual_seed(1)
        return tuple(
            torch.randn(shape, generator=generator, device=device).to(DTYPES[self.dtype])
            for shape in self.shapes
        )


def cases(device: str) -> Iterator[Case]:
    """Those whose floors are of such a device."""
    norms = functools.partial(Case, like=norm, right=other_norm, wrong=without_the_last)
    linears = functools.partial(
        Case, like=linear, right=other_linear, wrong=without_the_last_product
    )
    if device == "cpu":
        for dtype in DTYPES:
            shapes = ((4, 64), (64,))
            yield norms("rms_norm 4x64", shapes=shapes, dtype=dtype, floors=(0.01, None))
        for rows, dtype, floors in (
            (256, "bf16", (0.3, 1.0)),
            (512, "bf16", (0.6, 1.5)),
            (512, "f32", (0.6, 1.5)),
        ):
            shapes = ((rows, 4096), (4096,))
            yield norms(f"rms_norm {rows}x4096", shapes=shapes, dtype=dtype, floors=floors)
        square = ((1024, 1024), (1024, 1024))
        yield linears("linear 1024^3", shapes=square, dtype="bf16", floors=(0.6, 1.5))
        return
    shapes = ((4096, 4096), (4096,))
    yield norms("rms_norm 4096x4096", shapes=shapes, dtype="bf16", floors=(0.15, 1.0))
    square = ((4096, 4096), (4096, 4096))
    yield linears("linear 4096^3", shapes=square, dtype="f32", floors=(0.3, None))
    products = ((128, 512, 1024), (128, 1024, 2048))
    kernels: tuple[Kernel, Kernel, Kernel] = (batched, in_halves, batched_without_the_last)
    yield Case("bmm 128x512x1024x2048", *kernels, products, "f32", (0.6, None))
    kernels = (softmax, other_softmax, softmax_without_the_last)
    yield Case("softmax 4096x393216", *kernels, ((4096, 393216),), "f32", (2.5, None))


@dataclass(frozen=True)
class Measured:
    """One kernel of a case."""

    status: str
    seconds: float
    peak: int
    """Bytes; 0 where they are not counted."""


def measured(case: Case, kernel: Kernel, inputs: Sequence[torch.Tensor], rounds: int) -> Measured:
    """The fastest of so many calls after the first."""
    best, status = math.inf, ""
    _forget_peak()
    for again in range(rounds + 1):
        start = time.perf_counter()
        status = _verdict(case, kernel, inputs).status
        if again:
            best = min(best, time.perf_counter() - start)
    return Measured(status, best, _peak())


def own_peak(case: Case, inputs: Sequence[torch.Tensor]) -> int:
    """Bytes that `like` alone has in use at most, its operands among them."""
    _forget_peak()
    with torch.no_grad():
        case.like(*inputs)
    return _peak()


def _verdict(case: Case, kernel: Kernel, inputs: Sequence[torch.Tensor]) -> Verdict:
    try:
        return check(kernel, like=case.like, inputs=tuple(inputs))
    except WrongError as error:
        return error.verdict


def sealed_verdict(device: str) -> None:
    case = next(cases(torch.device(device).type))
    check(case.right, case.like, case.inputs(device), sealed=True)


def _sealed(device: str, rounds: int) -> bool:
    """Prints the seconds of sealed verdicts; whether they are beyond what is allowed."""
    begins = f"from {__package__}.bench_check import sealed_verdict; sealed_verdict({device!r})"
    seconds = [_timed(lambda: subprocess.run([sys.executable, "-c", begins], check=True))]
    sealed_verdict(device)
    following = []
    for _ in range(rounds):
        await_ahead()
        following.append(_timed(lambda: sealed_verdict(device)))
    seconds.append(min(following))
    for what, took, floor in zip(("a process", "the next"), seconds, SEALED, strict=True):
        print(f"sealed, {what:15}{took:14.3f} s{floor:35g}")
    return any(took > floor for took, floor in zip(seconds, SEALED, strict=True))


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _forget_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()


def _peak() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code is 1 where a verdict is wrong, or something takes more than is allowed."""
    parser = argparse.ArgumentParser(prog="inspector bench check", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu (the default) or cuda")
    parser.add_argument("--rounds", type=int, default=2, help="calls after the first (2)")
    parser.add_argument("--only", default="", help="cases whose name has this in it (or: sealed)")
    options = parser.parse_args(arguments)
    print(f"{device_name(options.device)}, torch {torch.__version__}\n")
    print(_line("case", "dtype", "right", "wrong", "one element", "floors", "peak", "allowed"))
    beyond = False
    for case in cases(torch.device(options.device).type):
        if options.only in case.name:
            beyond |= _row(case, options.device, options.rounds)
    if options.only in "sealed":
        beyond |= _sealed(options.device, options.rounds)
    return int(beyond)


def _row(case: Case, device: str, rounds: int) -> bool:
    """Prints a case; whether it is beyond what is allowed, or has a wrong verdict."""
    inputs = case.inputs(device)
    allowed = SHARE * own_peak(case, inputs) + BESIDE
    one = functools.partial(but_for_an_element, case.right)
    found = [measured(case, kernel, inputs, rounds) for kernel in (case.right, case.wrong, one)]
    said = [it.status for it in found] == ["pass", "fail", "fail"]
    peak = max(it.peak for it in found)
    floors = [case.floors[0], case.floors[1] or math.inf, case.floors[1] or math.inf]
    slow = any(it.seconds > floor for it, floor in zip(found, floors, strict=True))
    limits = " / ".join("-" if it is None else f"{it:g}" for it in case.floors)
    memory = [f"{it / GIB:.2f} GiB" if peak else "-" for it in (peak, allowed)]
    print(_line(case.name, case.dtype, *(_seconds(it) for it in found), limits, *memory))
    if not said:
        print(f"  verdicts: {', '.join(it.status for it in found)}")
    return slow or not said or (peak > allowed > BESIDE)


def _seconds(found: Measured) -> str:
    return f"{found.seconds:.3f} s"


def _line(*columns: str) -> str:
    name, dtype, *others = columns
    return f"{name:23}{dtype:6}" + "".join(f"{it:>13}" for it in others)


if __name__ == "__main__":
    raise SystemExit(main())
