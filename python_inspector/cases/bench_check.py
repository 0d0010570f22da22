"""What check() costs beside its function: `inspector bench check`.

Right kernels and wrong ones of a norm and a linear layer, by the processor's time of one thread.
The ratio is to a right case without its bugs (explain=False): what recording and judging cost.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..api.checking import check
from ..api.verdict import WrongError

Kernel = Callable[..., torch.Tensor]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
SMALL_MS = 25.0
"""That a case of a few hundred elements may take."""


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def without_the_last(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    mean = wide[:, :-1].pow(2).sum(-1, keepdim=True) / x.shape[-1]
    return weight * (wide * torch.rsqrt(mean + 1e-5)).to(x.dtype)


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight.T


def without_the_last_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x[:, :-1] @ weight[:, :-1].T


@dataclass(frozen=True)
class Case:
    name: str
    like: Kernel
    wrong: Kernel
    shapes: tuple[tuple[int, ...], ...]
    dtype: str

    def inputs(self) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(1)
        return tuple(
            torch.randn(shape, generator=generator).to(DTYPES[self.dtype]) for shape in self.shapes
        )


def cases() -> Iterator[Case]:
    for rows, width in ((4, 64), (256, 4096), (512, 4096)):
        for dtype in DTYPES:
            shapes = ((rows, width), (width,))
            yield Case(f"rms_norm {rows}x{width}", norm, without_the_last, shapes, dtype)
    square = ((1024, 1024), (1024, 1024))
    yield Case("linear 1024^3", linear, without_the_last_product, square, "bf16")


def seconds(case: Case, kernel: Kernel, rounds: int, **options: Any) -> float:
    """The fastest round's."""
    inputs, best = case.inputs(), float("inf")
    for _ in range(rounds):
        start = time.process_time()
        with contextlib.suppress(WrongError):
            check(kernel, like=case.like, inputs=inputs, **options)
        best = min(best, time.process_time() - start)
    return best


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="inspector bench check", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(
        f"{'case':19}{'dtype':6}{'no bugs':>10}{'right':>10}{'wrong':>10}{'right':>8}{'wrong':>8}"
    )
    slow = False
    for case in cases():
        if options.only not in case.name:
            continue
        rounds = options.rounds * (5 if case.shapes[0][0] < 16 else 1)
        bare = seconds(case, case.like, rounds, explain=False)
        right, wrong = (seconds(case, it, rounds) for it in (case.like, case.wrong))
        slow |= case.shapes[0][0] < 16 and right * 1e3 > SMALL_MS
        times = "".join(f"{it * 1e3:7.0f} ms" for it in (bare, right, wrong))
        print(f"{case.name:19}{case.dtype:6}{times}{right / bare:7.1f}x{wrong / bare:7.1f}x")
    return int(slow)


if __name__ == "__main__":
    raise SystemExit(main())
