"""From how many tokens on check() sees that one channel of a call, or one head, is a little high.

usage: python -m tests.engines.small_parts_of_calls [--dtype bf16] [--seeds 4]

Calls without a native block, of a gated MLP and of attention. Of each three right kernels: like the
call, one that keeps float32 inside, and one that rounds at random inside, so that its bits are
unique. A row says in how many of the seeds a damage is seen. Without it all must pass.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import torch
from torch.nn.functional import silu

from python_inspector import check
from python_inspector.api.verdict import WrongError

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
TOKENS = (8, 16, 32, 64, 256)
FACTORS = (1.003, 1.005, 1.01, 1.02, 1.05)
HIDDEN, INNER, HEADS = 64, 96, 4

Inputs = tuple[torch.Tensor, ...]
Kernel = Callable[..., torch.Tensor]
Store = Callable[[torch.Tensor], torch.Tensor]


def at_random(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounded up or down by chance, in the mean to x."""
    step = torch.exp2(x.abs().clamp_min(torch.finfo(dtype).smallest_normal).log2().floor())
    step *= torch.finfo(dtype).eps
    chance = torch.rand(x.shape, generator=torch.Generator().manual_seed(1))
    return (x / step + chance).floor() * step


def mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """[1, tokens, heads, 16]"""
    scores = (q.transpose(1, 2) @ k.permute(0, 2, 3, 1)) * 0.25
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    weights = torch.softmax(scores.masked_fill(~mask, -1e4).float(), -1).to(q.dtype)
    return (weights @ v.transpose(1, 2)).transpose(1, 2)


def wide_mlp(store: Store) -> Kernel:
    def kernel(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        gate, up, down = (w.float() for w in weights)
        return (store(silu(x.float() @ gate.T) * (x.float() @ up.T)) @ down.T).to(x.dtype)

    return kernel


def wide_attention(store: Store) -> Kernel:
    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q.float().transpose(1, 2) @ k.float().permute(0, 2, 3, 1)) * 0.25
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        weights = store(torch.softmax(scores.masked_fill(~mask, -1e4), -1))
        return (weights @ v.float().transpose(1, 2)).transpose(1, 2).to(q.dtype)

    return kernel


def inputs_of(call: str, tokens: int, dtype: torch.dtype, seed: int) -> Inputs:
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1) -> torch.Tensor:
        return (torch.randn(shape, generator=random) * scale).to(dtype)

    if call == "attention":
        q, k, v = (normal(1, tokens, HEADS, HIDDEN // HEADS) for _ in range(3))
        return q, k, v
    return (
        normal(tokens, HIDDEN),
        normal(INNER, HIDDEN, scale=HIDDEN**-0.5),
        normal(INNER, HIDDEN, scale=HIDDEN**-0.5),
        normal(HIDDEN, INNER, scale=INNER**-0.5),
    )


def kernels(call: str, dtype: torch.dtype) -> Iterator[tuple[str, Kernel]]:
    wide = wide_attention if call == "attention" else wide_mlp
    yield "as recorded", attention if call == "attention" else mlp
    yield "float32 inside", wide(lambda x: x)
    if dtype != torch.float32:
        yield "rounds at random", wide(lambda x: at_random(x, dtype))


def high(kernel: Kernel, factor: float, part: str) -> Kernel:
    def damaged(*inputs: torch.Tensor) -> torch.Tensor:
        y = kernel(*inputs).clone()
        of = y[..., 2, :] if part == "a head" else y[..., 5]
        of.copy_(of.double() * factor)
        return y

    return damaged


def passes(kernel: Kernel, call: str, inputs: Inputs) -> bool:
    like = attention if call == "attention" else mlp
    try:
        return check(kernel, like=like, inputs=inputs, explain=False).passed
    except WrongError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    alarms = 0
    print(f"{'':49}" + "".join(f"{f'x {f:g}':>9}" for f in FACTORS))
    for name in given.dtype or ("bf16",):
        for call, part in (
            ("mlp", "a channel"),
            ("attention", "a channel"),
            ("attention", "a head"),
        ):
            for tokens in TOKENS:
                cases = [inputs_of(call, tokens, DTYPES[name], s) for s in range(given.seeds)]
                for title, kernel in kernels(call, DTYPES[name]):
                    right = [inputs for inputs in cases if passes(kernel, call, inputs)]
                    alarms += len(cases) - len(right)
                    cells = []
                    for factor in FACTORS:
                        wrong = high(kernel, factor, part)
                        seen = sum(not passes(wrong, call, inputs) for inputs in right)
                        cells.append(f"{f'{seen}/{len(right)}':>9}")
                    row = f"{name} {call:9} {part:9} {tokens:>4} tokens  {title:16}"
                    print(f"{row:49}" + "".join(cells), flush=True)
    print(f"{alarms} alarms")
    return 1 if alarms else 0


if __name__ == "__main__":
    raise SystemExit(main())
