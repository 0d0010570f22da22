"""Convolutions, pools, interpolation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812

from .rows import Kernel, Problem, Tensor, Values, swapped, wide, zeroed

Made = Callable[[Values], tuple[Tensor, ...]]


def _lines() -> Iterator[Kernel]:
    def like(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.conv1d(x, w, b, stride=2, padding=2, dilation=2)

    def other(**changed: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        given = {"stride": 2, "padding": 2, "dilation": 2} | changed
        return lambda x, w, b: F.conv1d(x, w, b, **given)

    problem = Problem("conv1d", like, lambda v: (v(2, 5, 24), v.weight(7, 5, 3), v.normal(7)))
    yield from problem.wrong(
        ("order", "filter flipped", lambda x, w, b: like(x, w.flip(-1), b)),
        ("left out", "dilation ignored", other(dilation=1, padding=1)),
        ("left out", "no bias", lambda x, w, b: like(x, w, torch.zeros_like(b))),
        ("index", "padding on the right alone",
         lambda x, w, b: F.conv1d(F.pad(x, (0, 4)), w, b, stride=2, dilation=2)),
        ("index", "begins at 1", lambda x, w, b: like(x.roll(-1, -1), w, b)),
        ("formula", "padding repeats the border", lambda x, w, b: F.conv1d(
            F.pad(x, (2, 2), mode="replicate"), w, b, stride=2, dilation=2)),
        ("index", "input channels reversed", lambda x, w, b: like(x.flip(1), w, b)),
        ("tail", "last tap left out", lambda x, w, b: like(x, zeroed(w, ..., -1), b)),
        ("tail", "last channel left out", lambda x, w, b: like(x[:, :4], w[:, :4], b)),
        ("unwritten", "last column", lambda x, w, b: zeroed(like(x, w, b), ..., -1)),
    )  # fmt: skip
    yield from problem.right(
        ("by a product", lambda x, w, b: (wide(w).flatten(1) @ F.unfold(
            wide(x)[:, :, None], (1, 3), dilation=(1, 2), padding=(0, 2), stride=(1, 2))
            + wide(b)[:, None]).to(x.dtype)),
        ("tap by tap", lambda x, w, b: (sum(
            torch.einsum("oc,bcs->bos", wide(w)[..., t], F.pad(wide(x), (2, 2))[
                ..., 2 * t : 2 * t + 23 : 2]) for t in range(3)) + wide(b)[:, None]).to(x.dtype)),
    )  # fmt: skip


def _causal_lines() -> Iterator[Kernel]:
    def like(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.silu(F.conv1d(F.pad(x, (3, 0)), w, b, groups=6))

    def padded(left: int, right: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        return lambda x, w, b: F.silu(F.conv1d(F.pad(x, (left, right)), w, b, groups=6))

    problem = Problem(
        "causal conv1d of channels", like,
        lambda v: (v(2, 6, 19), v.weight(6, 1, 4), v.normal(6)),
    )  # fmt: skip
    yield from problem.wrong(
        ("mask", "sees one ahead", padded(2, 1)),
        ("mask", "centred", padded(1, 2)),
        ("order", "filter flipped", lambda x, w, b: like(x, w.flip(-1), b)),
        ("index", "filter of the next channel", lambda x, w, b: like(x, w.roll(-1, 0), b)),
        ("left out", "no silu", lambda x, w, b: F.conv1d(F.pad(x, (3, 0)), w, b, groups=6)),
        ("left out", "bias after silu", lambda x, w, b: F.silu(F.conv1d(
            F.pad(x, (3, 0)), w, groups=6)) + b[:, None]),
        ("stale", "state of the sequence before", lambda x, w, b: torch.cat([
            like(x[:1], w, b), like(torch.cat([x[:1], x[1:]], -1), w, b)[..., 19:]])),
        ("stale", "chunks of 8 begin with zeros", lambda x, w, b: torch.cat(
            [like(part, w, b) for part in x.split(8, -1)], -1)),
    )  # fmt: skip
    yield from problem.right(
        ("tap by tap", lambda x, w, b: F.silu(sum(
            wide(w)[..., t] * F.pad(wide(x), (3, 0))[..., t : t + 19] for t in range(4))
            + wide(b)[:, None]).to(x.dtype)),
    )  # fmt: skip


def _planes() -> Iterator[Kernel]:
    def like(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.conv2d(x, w, b, padding=(1, 1))

    def operands(v: Values) -> tuple[Tensor, ...]:
        return v(2, 4, 9, 9), v.weight(5, 4, 3, 3), v.normal(5)

    problem = Problem("conv2d", like, operands)
    yield from problem.wrong(
        ("index", "height and width of the filter exchanged", lambda x, w, b: like(x, w.mT, b)),
        ("order", "filter turned", lambda x, w, b: like(x, w.flip(-1, -2), b)),
        ("index", "padding above and left alone", lambda x, w, b: F.conv2d(
            F.pad(x, (2, 0, 2, 0)), w, b)),
        ("formula", "padding reflects", lambda x, w, b: F.conv2d(
            F.pad(x, (1, 1, 1, 1), mode="reflect"), w, b)),
        ("unwritten", "border", lambda x, w, b: F.pad(F.conv2d(x, w, b), (1, 1, 1, 1))),
        ("left out", "no bias", lambda x, w, b: like(x, w, torch.zeros_like(b))),
        ("index", "channels of the output exchanged", lambda x, w, b: swapped(
            like(x, w, b), 1, 2, 1)),
        ("formula", "relu of it", lambda x, w, b: like(x, w, b).relu()),
        ("precision", "operands in TF32", lambda x, w, b: like(_tf32(x), _tf32(w), b), "", "f32"),
        ("precision", "operands in float16", lambda x, w, b: like(
            x.half().to(x.dtype), w.half().to(x.dtype), b), "", "f32"),
        ("approximation", "Winograd in float16", lambda x, w, b: _winograd(
            x, w, b, torch.float16), "", "f32"),
    )  # fmt: skip
    yield from problem.right(
        ("by a product", lambda x, w, b: (
            wide(w).flatten(1) @ F.unfold(wide(x), (3, 3), padding=1) + wide(b)[:, None]
        ).unflatten(-1, (9, 9)).to(x.dtype)),
        ("tap by tap", lambda x, w, b: (sum(
            torch.einsum("oc,bchw->bohw", wide(w)[..., i, j], F.pad(wide(x), (1, 1, 1, 1))[
                ..., i : i + 9, j : j + 9]) for i in range(3) for j in range(3))
            + wide(b)[:, None, None]).to(x.dtype)),
    )  # fmt: skip

    def grouped(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, groups=2, stride=2)

    groups = Problem("conv2d in groups", grouped, lambda v: (v(2, 4, 9, 9), v.weight(6, 2, 3, 3)))
    yield from groups.wrong(
        ("index", "groups of every other channel", lambda x, w: grouped(x[:, [0, 2, 1, 3]], w)),
        ("index", "first group for both", lambda x, w: grouped(x[:, [0, 1, 0, 1]], w)),
        ("left out", "a stride of 1, cut", lambda x, w: F.conv2d(x, w, groups=2)[..., :4, :4]),
        ("index", "stride begins at 1", lambda x, w: F.conv2d(x, w, groups=2)[..., 1::2, 1::2]
         .contiguous() if x.shape[-1] % 2 == 0 else F.pad(
             F.conv2d(x, w, groups=2)[..., 1::2, 1::2], (0, 1, 0, 1))),
        ("left out", "groups ignored", lambda x, w: F.conv2d(
            x, torch.cat([w, w], 1) / 2, stride=2)),
    )  # fmt: skip
    yield from groups.right(
        ("each group alone", lambda x, w: torch.cat([
            F.conv2d(wide(x[:, :2]), wide(w[:3]), stride=2),
            F.conv2d(wide(x[:, 2:]), wide(w[3:]), stride=2)], 1).to(x.dtype)),
    )  # fmt: skip


def _tf32(x: Tensor) -> Tensor:
    bits = x.float().contiguous().view(torch.int32)
    return ((bits + 0x1000) & -8192).view(torch.float32).to(x.dtype)


def _winograd(x: Tensor, w: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """F(2, 3) along the width, its transformed operands rounded."""
    y = F.pad(wide(x), (1, 2, 1, 1)).unfold(-1, 4, 2)
    d = torch.stack([y[..., 0] - y[..., 2], y[..., 1] + y[..., 2], y[..., 2] - y[..., 1],
                     y[..., 1] - y[..., 3]], -1).to(dtype).to(y.dtype)  # fmt: skip
    f = wide(w)
    g = torch.stack([f[..., 0], (f[..., 0] + f[..., 1] + f[..., 2]) / 2,
                     (f[..., 0] - f[..., 1] + f[..., 2]) / 2, f[..., 2]], -1)  # fmt: skip
    g = g.to(dtype).to(y.dtype)
    m = sum(torch.einsum("ock,bchwk->bohwk", g[:, :, i], d[:, :, i : i + 9]) for i in range(3))
    assert isinstance(m, torch.Tensor)
    even, odd = m[..., 0] + m[..., 1] + m[..., 2], m[..., 1] - m[..., 2] - m[..., 3]
    out = torch.stack([even, odd], -1).flatten(-2)[..., :9]
    return (out + wide(b)[:, None, None]).to(x.dtype)


def _transposed() -> Iterator[Kernel]:
    def like(x: Tensor, w: Tensor) -> Tensor:
        return F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1)

    problem = Problem(
        "transposed conv2d", like, lambda v: (v(2, 4, 5, 5), v.normal(4, 3, 3, 3, scale=0.3))
    )
    yield from problem.wrong(
        ("order", "filter turned", lambda x, w: like(x, w.flip(-1, -2))),
        ("index", "output begins one late", lambda x, w: like(x, w).roll((1, 1), (-1, -2))),
        ("unwritten", "output padding is zero", lambda x, w: F.pad(
            like(x, w)[..., :-1, :-1], (0, 1, 0, 1))),
        ("formula", "nearest pixels and a conv2d", lambda x, w: F.conv2d(
            F.interpolate(x, scale_factor=2), w.transpose(0, 1).flip(-1, -2), padding=1)),
        ("race", "overlapping taps written, not added", lambda x, w: like(
            x, zeroed(w, ..., 2))),
    )  # fmt: skip
    yield from problem.right(
        ("zeros between pixels and a conv2d", lambda x, w: F.conv2d(F.pad(
            _spread(wide(x)), (1, 2, 1, 2)), wide(w).transpose(0, 1).flip(-1, -2)).to(x.dtype)),
    )  # fmt: skip


def _spread(x: Tensor) -> Tensor:
    out = x.new_zeros(*x.shape[:2], 2 * x.shape[2] - 1, 2 * x.shape[3] - 1)
    out[..., ::2, ::2] = x
    return out


def _pools() -> Iterator[Kernel]:
    def image(v: Values) -> tuple[Tensor]:
        return (v(2, 4, 9, 9),)

    most = Problem("max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), image)
    yield from most.wrong(
        ("formula", "padding of zeros", lambda x: F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)),
        ("constant", "a window of 2", lambda x: F.max_pool2d(x, 2, 2, 1)),
        ("index", "windows begin at 0", lambda x: F.max_pool2d(F.pad(
            x, (0, 2, 0, 2), value=-torch.inf), 3, 2)),
        ("tail", "last tap of a window", lambda x: F.max_pool2d(F.pad(
            x, (1, 0, 1, 0), value=-torch.inf), 2, 2)),
        ("formula", "mean", lambda x: F.avg_pool2d(x, 3, 2, 1)),
        ("stale", "begins at 0, not at -inf", lambda x: F.max_pool2d(x, 3, 2, 1).relu()),
    )  # fmt: skip
    yield from most.right(
        ("one axis after the other", lambda x: F.max_pool2d(
            F.max_pool2d(x, (1, 3), (1, 2), (0, 1)), (3, 1), (2, 1), (1, 0))),
    )  # fmt: skip
    mean = Problem("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1), image)
    yield from mean.wrong(
        ("formula", "padding not counted",
         lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
        ("constant", "over 8", lambda x: F.avg_pool2d(x, 3, 2, 1) * 9 / 8),
        ("index", "windows begin at 0", lambda x: F.avg_pool2d(F.pad(x, (0, 2, 0, 2)), 3, 2)),
        ("left out", "sum", lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=1)),
        ("formula", "largest", lambda x: F.max_pool2d(x, 3, 2, 1)),
    )  # fmt: skip
    yield from mean.right(
        ("one axis after the other", lambda x: F.avg_pool2d(
            F.avg_pool2d(wide(x), (1, 3), (1, 2), (0, 1)), (3, 1), (2, 1), (1, 0)).to(x.dtype)),
    )  # fmt: skip
    whole = Problem("adaptive mean", lambda x: F.adaptive_avg_pool2d(x, (4, 4)), image)
    yield from whole.wrong(
        ("index", "equal windows of 2", lambda x: F.avg_pool2d(x, 2, 2)),
        ("index", "windows of 3 from even places", lambda x: F.avg_pool2d(F.pad(
            x, (0, 1, 0, 1), mode="replicate"), 3, 2)[..., :4, :4].roll(1, -1)),
        ("formula", "largest", lambda x: F.adaptive_max_pool2d(x, (4, 4))),
    )  # fmt: skip
    yield from whole.right(
        ("window by window", lambda x: torch.stack([torch.stack([
            wide(x)[..., i * 9 // 4 : -(-(i + 1) * 9 // 4), j * 9 // 4 : -(-(j + 1) * 9 // 4)]
            .mean((-1, -2)) for j in range(4)], -1) for i in range(4)], -2).to(x.dtype)),
    )  # fmt: skip
    larger = Problem(
        "bilinear interpolation",
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False), image,
    )  # fmt: skip
    yield from larger.wrong(
        ("index", "corners aligned", lambda x: F.interpolate(
            x, scale_factor=2, mode="bilinear", align_corners=True)),
        ("approximation", "nearest", lambda x: F.interpolate(x, scale_factor=2)),
        ("approximation", "bicubic", lambda x: F.interpolate(
            x, scale_factor=2, mode="bicubic", align_corners=False)),
        ("index", "no half pixel", lambda x: torch.stack(
            [torch.stack([x, (x + x.roll(-1, -1)) / 2], -1).flatten(-2)] * 2, -2).flatten(-3, -2)),
    )  # fmt: skip
    yield from larger.right(
        ("one axis after the other", lambda x: F.interpolate(F.interpolate(
            wide(x), scale_factor=(1, 2), mode="bilinear"), scale_factor=(2, 1), mode="bilinear"
        ).to(x.dtype)),
    )  # fmt: skip


def rows() -> Iterator[Kernel]:
    yield from _lines()
    yield from _causal_lines()
    yield from _planes()
    yield from _transposed()
    yield from _pools()
