"""Backward kernels with gradients that are sums over tokens: norms, products, tables, losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from backward_tables import Backward, Dice, Function, Sizes, Table, in_chunks, kernel
from torch.nn import functional

Tensor = torch.Tensor


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return weight * wide.to(x.dtype)


def _rms_backward(
    *,
    eps: float = 1e-5,
    mean: bool = True,
    weighted: bool = True,
    weight_sum: Callable[[Tensor], Tensor] = lambda terms: terms.flatten(0, -2).sum(0),
    factor: float = 1.0,
    normed: bool = True,
) -> Backward:
    def backward(xs: Sequence[Tensor], g: Tensor) -> Sequence[Tensor]:
        x, weight = (t.float() for t in xs)
        g = g.float()
        r = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        n, gw = x * r, g * weight
        term = n * ((gw if weighted else g) * n).mean(-1, keepdim=True)
        return r * (gw - factor * term if mean else gw), weight_sum(g * (n if normed else x))

    return backward


def _in_storage(dtype: torch.dtype, chunks: int) -> Callable[[Tensor], Tensor]:
    def total(terms: Tensor) -> Tensor:
        rows = terms.flatten(0, -2)
        return in_chunks(lambda at: rows[at].sum(0), len(rows), chunks, dtype)

    return total


def norms(sizes: Sizes, dtype: torch.dtype) -> Table:
    dice = Dice(sizes, dtype)
    operands = dice(4, sizes.tokens, sizes.width), dice(sizes.width, scale=0.3, shift=1.0)

    def of(**options: Any) -> Function:
        return kernel(rms_norm, _rms_backward(**options))

    return Table(
        rms_norm,
        operands,
        {
            "closed form": of(),
            "dw in blocks": of(weight_sum=_in_storage(torch.float32, 8)),
            "eager": rms_norm,
            "float32 inside": lambda x, w: rms_norm(x.float(), w.float()).to(x.dtype),
            "torch": lambda x, w: functional.rms_norm(x, (x.shape[-1],), w, 1e-5),
        },
        {
            "no mean term": of(mean=False),
            "mean term without weight": of(weighted=False),
            "mean term x 1.01": of(factor=1.01),
            "dw of operands that are not normed": of(normed=False),
            "eps x 100": of(eps=1e-3),
            "no eps": of(eps=0.0),
            "dw in bf16": of(weight_sum=_in_storage(torch.bfloat16, 1 << 20)),
            "dw without the last token": of(weight_sum=lambda t: t.flatten(0, -2)[:-1].sum(0)),
            "dw of the first batch entry": of(weight_sum=lambda t: t[0].sum(0)),
        },
        frozenset(["mean term x 1.01", "eps x 100", "no eps"]),
    )


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    wide = x.float()
    wide = wide - wide.mean(-1, keepdim=True)
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
    return (normed * weight.float() + bias.float()).to(x.dtype)


def _layer_backward(
    *,
    first: bool = True,
    second: bool = True,
    swapped: bool = False,
    weight_sum: Callable[[Tensor], Tensor] = lambda terms: terms.flatten(0, -2).sum(0),
) -> Backward:
    def backward(xs: Sequence[Tensor], g: Tensor) -> Sequence[Tensor]:
        x, weight, _ = (t.float() for t in xs)
        g = g.float()
        centred = x - x.mean(-1, keepdim=True)
        r = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
        n, gw = centred * r, g * weight
        dx = gw
        dx = dx - gw.mean(-1, keepdim=True) if first else dx
        dx = dx - n * (gw * n).mean(-1, keepdim=True) if second else dx
        sums = [weight_sum(g * n), weight_sum(g)]
        return r * dx, *(sums[::-1] if swapped else sums)

    return backward


def layer_norms(sizes: Sizes, dtype: torch.dtype) -> Table:
    dice, width = Dice(sizes, dtype), sizes.width
    operands = (
        dice(2, sizes.tokens, width), dice(width, scale=0.3, shift=1.0), dice(width, scale=0.3)
    )  # fmt: skip

    def of(**options: Any) -> Function:
        return kernel(layer_norm, _layer_backward(**options))

    return Table(
        layer_norm,
        operands,
        {
            "closed form": of(),
            "eager": layer_norm,
            "dw in blocks": of(weight_sum=_in_storage(torch.float32, 8)),
        },
        {
            "dw and db in bf16": of(weight_sum=_in_storage(torch.bfloat16, 1 << 20)),
            "db without the last token": of(weight_sum=lambda t: t.flatten(0, -2)[:-1].sum(0)),
            "without the first mean": of(first=False),
            "without the second mean": of(second=False),
            "dw and db exchanged": of(swapped=True),
        },
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.linear(x, weight, bias)


def _linear_backward(
    *,
    dtype: torch.dtype = torch.float32,
    chunks: int = 1,
    tokens: int | None = None,
    bias_tokens: int | None = None,
    transposed: bool = False,
    ones: bool = False,
    mean: bool = False,
    other_way: bool = False,
) -> Backward:
    def backward(xs: Sequence[Tensor], g: Tensor) -> Sequence[Tensor]:
        x, weight, _ = (t.float() for t in xs)
        g = (torch.ones_like(g) if ones else g).float()
        dw = in_chunks(lambda at: g[at].T @ x[at], tokens or len(x), chunks, dtype)
        db = g[:bias_tokens].mean(0) if mean else g[:bias_tokens].sum(0)
        return g @ (weight.T if other_way else weight), dw.T if transposed else dw, db

    return backward


def linears(sizes: Sizes, dtype: torch.dtype) -> Table:
    dice, width, rows = Dice(sizes, dtype), sizes.width, 512
    operands = dice(rows, width), dice(width, width, scale=0.2), dice(width)

    def of(**options: Any) -> Function:
        return kernel(linear, _linear_backward(**options))

    bf16 = torch.bfloat16
    return Table(
        linear,
        operands,
        {
            "closed form": of(),
            "dw in 8 blocks": of(chunks=8),
            "dw of each token": of(chunks=rows),
            "eager": linear,
            "products and sums": lambda x, w, b: (
                x @ w.T + b if x.dtype != bf16 else linear(x, w, b)
            ),
        },
        {
            "dw in bf16, each token": of(dtype=bf16, chunks=rows),
            "dw in bf16, 32 chunks": of(dtype=bf16, chunks=32),
            "dw in bf16, 8 chunks": of(dtype=bf16, chunks=8),
            "dw in bf16, 2 chunks": of(dtype=bf16, chunks=2),
            "dw transposed": of(transposed=True),
            "dw without the last token": of(tokens=rows - 1),
            "db without the last token": of(bias_tokens=rows - 1),
            "db is a mean": of(mean=True),
            "dx by the weight transposed": of(other_way=True),
            "cotangent taken as 1": of(ones=True),
        },
    )


def embedding(table: Tensor, ids: Tensor) -> Tensor:
    return functional.embedding(ids, table, padding_idx=0)


def embeddings(sizes: Sizes, dtype: torch.dtype) -> Table:
    dice = Dice(sizes, dtype)

    def backward(
        *, sums: bool = True, padding: bool = False, storage: torch.dtype = torch.float32
    ) -> Function:
        def of(xs: Sequence[Tensor], g: Tensor) -> Sequence[Tensor]:
            table, ids = xs
            made = torch.zeros_like(table, dtype=storage)
            flat, rows = ids.flatten(), g.flatten(0, -2).to(storage)
            for at, row in zip(flat.tolist(), rows, strict=True):
                made[at] = made[at] + row if sums else row
            if not padding:
                made[0] = 0
            return (made,)

        return kernel(embedding, of)

    def added(xs: Sequence[Tensor], g: Tensor) -> Sequence[Tensor]:
        made = torch.zeros_like(xs[0], dtype=torch.float32)
        rows = g.flatten(0, -2).float()
        made.index_put_((xs[1].flatten(),), rows, accumulate=True)  # in one order, also on a GPU
        made[0] = 0
        return (made,)

    return Table(
        embedding,
        (dice(16, sizes.width), dice.ids(16, 8, sizes.tokens)),
        {"index_put": kernel(embedding, added), "one by one": backward()},
        {
            "last write wins": backward(sums=False),
            "padding row": backward(padding=True),
            "sums in bf16": backward(storage=torch.bfloat16),
        },
    )


def head_loss(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy((x @ weight.T).float(), labels, ignore_index=-100)


def losses(sizes: Sizes, dtype: torch.dtype) -> Table:
    dice, vocab, rows = Dice(sizes, dtype), 96, 4 * sizes.tokens
    labels = dice.ids(vocab, rows)
    labels[::5] = -100

    def of(
        *, chunks: int = 4, divides: str = "valid", ignored: bool = True, cotangent: bool = True,
        storage: torch.dtype = torch.float32, target: bool = True,
    ) -> Function:  # fmt: skip
        def backward(xs: Sequence[Tensor], g: Tensor) -> Sequence[Tensor]:
            x, weight, labels = xs
            wide, valid = weight.float(), labels != -100
            scores = (x @ weight.T).float()
            d = scores.softmax(-1)
            if target:
                d[valid] -= functional.one_hot(labels[valid], scores.shape[-1]).float()
            if ignored:
                d[~valid] = 0
            d = d / (valid.sum() if divides == "valid" else len(labels))
            d = d * g.float() if cotangent else d
            d = d.to(x.dtype).float()
            dw = in_chunks(lambda at: d[at].T @ x[at].float(), len(x), chunks, storage)
            return d @ wide, dw

        return kernel(head_loss, backward)

    bf16 = torch.bfloat16
    return Table(
        head_loss,
        (dice(rows, sizes.width), dice(vocab, sizes.width, scale=0.3), labels),
        {"fused in chunks": of(), "one chunk": of(chunks=1), "eager": head_loss},
        {
            "ignored tokens in the mean": of(divides="all"),
            "ignored tokens have a gradient": of(ignored=False),
            "cotangent taken as 1": of(cotangent=False),
            "without the label's term": of(target=False),
            "dw in bf16, 4 chunks": of(storage=bf16),
            "dw in bf16, 32 chunks": of(storage=bf16, chunks=32),
        },
        frozenset(["dw in bf16, 4 chunks", "dw in bf16, 32 chunks"]),
    )
