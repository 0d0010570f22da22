"""Products of matrices: tiles, terms, strides, accumulators."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812

from .rows import Kernel, Problem, Tensor, swapped, wide, zeroed
from .sums import SUMS, sum_in_16_bits

F8 = torch.float8_e4m3fn


def product(total: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Each element's terms added by `total`."""
    return lambda a, b: total(wide(a)[:, None, :] * wide(b).T[None]).to(a.dtype)


def as_tf32(x: Tensor) -> Tensor:
    """10 bits of significand, rounded to nearest."""
    bits = x.float().contiguous().view(torch.int32)
    return ((bits + 0x1000) & -8192).view(torch.float32).to(x.dtype)


def tiled(a: Tensor, b: Tensor, block: int = 16, *, cleared: bool = True) -> Tensor:
    """Column tiles; an accumulator that is not `cleared` begins with the tile before."""
    parts, total = [], torch.zeros_like(wide(a) @ wide(b)[:, :block])
    for columns in wide(b).split(block, 1):
        tile = wide(a) @ columns
        total = tile + (0 if cleared else total[:, : tile.shape[1]])
        parts.append(total)
    return torch.cat(parts, 1).to(a.dtype)


def _matmul_rows() -> Iterator[Kernel]:
    problem = Problem("matmul", torch.matmul, lambda v: (v(9, 70), v(70, 24)))
    yield from problem.wrong(
        ("tail", "k beyond whole blocks of 64", lambda a, b: a[:, :64] @ b[:64]),
        ("tail", "last term dropped", lambda a, b: a[:, :-1] @ b[:-1]),
        ("tail", "first term twice", lambda a, b: a @ b + a[:, :1] @ b[:1]),
        ("unwritten", "tail of rows", lambda a, b: zeroed(a @ b, slice(8, None))),
        ("unwritten", "tail of columns", lambda a, b: zeroed(a @ b, ..., slice(16, None))),
        ("index", "second tile one column early", lambda a, b: torch.cat(
            [(a @ b)[:, :16], (a @ b)[:, 15:-1]], 1)),
        ("index", "a block of b transposed", lambda a, b: a @ torch.cat(
            [b[:24].T.contiguous(), b[24:]])),
        ("index", "columns exchanged", lambda a, b: swapped(a @ b, 3, 4)),
        ("index", "second tile of rows repeats the first", lambda a, b: torch.cat(
            [(a @ b)[:8], (a @ b)[:1]])),
        ("index", "b's rows one late", lambda a, b: a @ b.roll(1, 0)),
        ("stale", "accumulator not cleared", lambda a, b: tiled(a, b, cleared=False)),
        ("scale", "one column 2 % high", lambda a, b: torch.cat(
            [(a @ b)[:, :-1], 1.02 * (a @ b)[:, -1:]], 1)),
        ("cheat", "zeros", lambda a, b: torch.zeros_like(a @ b)),
        ("formula", "absolute values", lambda a, b: (a @ b).abs()),
        ("precision", "operands in 8 bits",
         lambda a, b: a.to(F8).to(a.dtype) @ b.to(F8).to(b.dtype)),
        ("precision", "operands in TF32", lambda a, b: as_tf32(a) @ as_tf32(b), "", "f32"),
        ("precision", "operands in float16", lambda a, b: (
            a.half().float() @ b.half().float()).to(a.dtype), "", "f32"),
        ("precision", "operands in bfloat16", lambda a, b: (
            a.bfloat16().float() @ b.bfloat16().float()).to(a.dtype), "", "f32"),
        ("precision", "accumulator in bfloat16", product(sum_in_16_bits)),
        ("precision", "result by way of float16",
         lambda a, b: (a @ b).half().to(a.dtype), "", "f32"),
        ("race", "one of four partial sums lost", lambda a, b: a[:, :51] @ b[:51]),
        ("race", "one of four partial sums twice",
         lambda a, b: wide(a[:, 51:]).matmul(wide(b[51:])).add(wide(a) @ wide(b)).to(a.dtype)),
    )  # fmt: skip
    for way, total in SUMS.items():
        yield from problem.right((f"sum {way}", product(total)))
    yield from problem.right(
        ("tiles of 16 columns", tiled),
        ("outer products", lambda a, b: sum(
            wide(a)[:, i, None] * wide(b)[i] for i in range(70)).to(a.dtype)),  # type: ignore[union-attr]
        ("two halves of k", lambda a, b: (
            wide(a[:, :32]) @ wide(b[:32]) + wide(a[:, 32:]) @ wide(b[32:])).to(a.dtype)),
        ("transposed", lambda a, b: (wide(b).T @ wide(a).T).T.to(a.dtype)),
    )  # fmt: skip


def _long_rows() -> Iterator[Kernel]:
    problem = Problem("matmul of 1024 terms", torch.matmul, lambda v: (v(16, 1024), v(1024, 24)))

    def halves(parts: int, dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
        """Partial products that are rounded before they are added."""

        def kernel(a: Tensor, b: Tensor) -> Tensor:
            pairs = zip(wide(a).chunk(parts, 1), wide(b).chunk(parts, 0), strict=True)
            return sum((x @ y).to(dtype).to(wide(a).dtype) for x, y in pairs).to(a.dtype)  # type: ignore[union-attr]

        return kernel

    yield from problem.wrong(
        ("tail", "last term dropped", lambda a, b: a[:, :-1] @ b[:-1]),
        ("tail", "last block of 16 dropped", lambda a, b: a[:, :-16] @ b[:-16]),
        ("precision", "4 partial sums in bfloat16", halves(4, torch.bfloat16), "", "f32"),
        ("precision", "64 partial sums in bfloat16", halves(64, torch.bfloat16), "", "f32"),
        ("precision", "accumulator in bfloat16", product(sum_in_16_bits)),
        ("precision", "operands in TF32", lambda a, b: as_tf32(a) @ as_tf32(b), "", "f32"),
        ("precision", "truncated, not rounded", lambda a, b: _cut(wide(a) @ wide(b)).to(a.dtype),
         "", "bf16"),
        ("scale", "0.5 % low", lambda a, b: (0.995 * (wide(a) @ wide(b))).to(a.dtype)),
        ("race", "one of 32 partial sums lost", lambda a, b: torch.cat([a[:, :64], a[:, 96:]], 1)
         @ torch.cat([b[:64], b[96:]])),
        ("index", "first block of b for the second", lambda a, b: a @ torch.cat(
            [b[:32], b[:32], b[64:]])),
    )  # fmt: skip
    yield from problem.right(
        ("4 partial sums", halves(4, torch.float64)),
        ("64 partial sums in float32", halves(64, torch.float32)),
        ("sum by pairs", product(SUMS["pairs"])),
        ("three products of bfloat16 parts", _three_parts),
    )


def _cut(x: Tensor) -> Tensor:
    bits = x.float().contiguous().view(torch.int32) & -65536
    return bits.view(torch.float32).to(x.dtype)


def _three_parts(a: Tensor, b: Tensor) -> Tensor:
    """Each operand as three of 8 bits, all nine products of them."""

    def parts(x: Tensor) -> list[Tensor]:
        out, rest = [], wide(x)
        for _ in range(3):
            out.append(rest.bfloat16().to(rest.dtype))
            rest = rest - out[-1]
        return out

    return sum(x @ y for x in parts(a) for y in parts(b)).to(a.dtype)  # type: ignore[union-attr]


def _linear_like(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w, b)


def _linear_rows() -> Iterator[Kernel]:
    problem = Problem("linear", _linear_like, lambda v: (v(9, 48), v.weight(48, 48), v.normal(48)))
    like = _linear_like
    yield from problem.wrong(
        ("left out", "no bias", lambda x, w, b: x @ w.T),
        ("formula", "bias twice", lambda x, w, b: like(x, w, 2 * b)),
        ("index", "weight not transposed", lambda x, w, b: like(x, w.T, b)),
        ("index", "bias of the next column", lambda x, w, b: like(x, w, b.roll(-1))),
        ("tail", "bias in the first tile alone", lambda x, w, b: like(
            x, w, zeroed(b, slice(32, None)))),
        ("formula", "relu where there is none", lambda x, w, b: like(x, w, b).relu()),
        ("index", "last row of the weight is the one before", lambda x, w, b: like(
            x, torch.cat([w[:-1], w[-2:-1]]), b)),
        ("order", "weights of two rows of tiles exchanged", lambda x, w, b: like(
            x, torch.cat([w[16:32], w[:16], w[32:]]), b)),
        ("precision", "product rounded to bfloat16 before the bias", lambda x, w, b: (
            wide((x @ w.T).bfloat16()) + wide(b)).to(x.dtype), "", "f32"),
        ("input", "the bias is changed", lambda x, w, b: (like(x, w, b), b.add_(1))[0]),
    )  # fmt: skip
    yield from problem.right(
        ("bias first", lambda x, w, b: torch.addmm(wide(b), wide(x), wide(w).T).to(x.dtype)),
        ("bias last", lambda x, w, b: (wide(x) @ wide(w).T + wide(b)).to(x.dtype)),
        ("bias in the accumulator", lambda x, w, b: product(lambda t: SUMS["one by one"](
            torch.cat([wide(b).expand(9, 48)[..., None], t], -1)))(x, w.T)),
    )  # fmt: skip


def _batched_rows() -> Iterator[Kernel]:
    problem = Problem("batched matmul", torch.bmm, lambda v: (v(3, 9, 24), v(3, 24, 9)))
    yield from problem.wrong(
        ("index", "first matrix b for all", lambda a, b: a @ b[:1]),
        ("index", "b of the batch before", lambda a, b: a @ b.roll(1, 0)),
        ("unwritten", "last batch", lambda a, b: zeroed(a @ b, -1)),
        ("index", "results transposed", lambda a, b: (a @ b).mT.contiguous()),
        ("axis", "summed over the batch", lambda a, b: (a @ b).sum(0, keepdim=True).expand(
            3, 9, 9).contiguous()),
    )  # fmt: skip
    yield from problem.right(
        ("one at a time", lambda a, b: torch.stack(
            [(wide(x) @ wide(y)).to(a.dtype) for x, y in zip(a, b, strict=True)])),
        ("terms in float32",
         lambda a, b: (wide(a)[..., None] * wide(b)[:, None]).sum(2).to(a.dtype)),
    )  # fmt: skip
    lower = Problem(
        "lower triangle of a product", lambda a, b: (a @ b).tril(), lambda v: (v(24, 24), v(24, 24))
    )
    yield from lower.wrong(
        ("mask", "no triangle", torch.matmul),
        ("mask", "without the diagonal", lambda a, b: (a @ b).tril(-1)),
        ("mask", "one above the diagonal", lambda a, b: (a @ b).tril(1)),
        ("mask", "the upper one", lambda a, b: (a @ b).triu()),
        ("order", "triangle of the operands", lambda a, b: a.tril() @ b.tril()),
        ("mask", "by tiles of 8", lambda a, b: (a @ b) * torch.ones(3, 3, device=a.device).tril()
         .repeat_interleave(8, 0).repeat_interleave(8, 1).to(a.dtype)),
    )  # fmt: skip
    yield from lower.right(("row by row", lambda a, b: torch.stack([
        F.pad((wide(a)[i] @ wide(b)[:, : i + 1]).to(a.dtype), (0, 23 - i)) for i in range(24)])),
    )  # fmt: skip


def _shard_rows() -> Iterator[Kernel]:
    problem = Problem(
        "linear over four shards",
        _linear_like,
        lambda v: (v(9, 64), v.weight(48, 64), v.normal(48)),
    )

    def shards(x: Tensor, w: Tensor) -> list[Tensor]:
        pairs = zip(wide(x).chunk(4, 1), wide(w).chunk(4, 1), strict=True)
        return [a @ b.T for a, b in pairs]

    def narrow(x: Tensor) -> Tensor:
        return x.bfloat16().to(x.dtype)

    yield from problem.wrong(
        ("race", "one shard lost", lambda x, w, b: (
            sum(shards(x, w)[:3]) + wide(b)).to(x.dtype)),
        ("formula", "bias in every shard", lambda x, w, b: (
            sum(shards(x, w)) + 4 * wide(b)).to(x.dtype)),
        ("precision", "shards kept in bfloat16", lambda x, w, b: (
            sum(map(narrow, shards(x, w))) + wide(b)).to(x.dtype), "", "f32"),
        ("formula", "mean of the shards", lambda x, w, b: (
            sum(shards(x, w)) / 4 + wide(b)).to(x.dtype)),
        ("index", "shards of rows for those of columns", lambda x, w, b: torch.cat(
            [F.linear(x, w[:12], b[:12])] * 4, 1), "sgl-project/sglang#24321"),
    )  # fmt: skip
    yield from problem.right(
        ("sums in float32", lambda x, w, b: (sum(shards(x, w)) + wide(b)).to(x.dtype)),
        ("sums in a ring", lambda x, w, b: (
            (shards(x, w)[3] + shards(x, w)[0]) + (shards(x, w)[1] + shards(x, w)[2]) + wide(b)
        ).to(x.dtype)),
    )  # fmt: skip


def rows() -> Iterator[Kernel]:
    yield from _matmul_rows()
    yield from _long_rows()
    yield from _linear_rows()
    yield from _batched_rows()
    yield from _shard_rows()
