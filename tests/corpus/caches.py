"""Attention over a cache: one new token, chunks of a prompt, pages, ragged batches, latents."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from .attention import attend
from .rows import Kernel, Problem, Tensor, Values, positions, wide, zeroed


def _decode_like(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return wide(scores).softmax(-1).to(q.dtype) @ v


def _seen(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    return attend(q, k, v, seen)


def split(q: Tensor, k: Tensor, v: Tensor, parts: int = 4, merge: str = "right") -> Tensor:
    """Keys in parts that are merged by their log-sum-exp."""
    outs, sums = [], []
    for keys, values in zip(k.chunk(parts, -2), v.chunk(parts, -2), strict=True):
        scores = wide(q) @ wide(keys).transpose(-1, -2) * q.shape[-1] ** -0.5
        outs.append(scores.softmax(-1) @ wide(values))
        sums.append(scores.logsumexp(-1, keepdim=True))
    lse = torch.stack(sums) * (math.log2(math.e) if merge == "base 2" else 1)
    weights = torch.ones_like(lse) / parts if merge == "mean" else lse.softmax(0)
    if merge == "maximum":
        weights = torch.nn.functional.one_hot(lse.argmax(0), parts).movedim(-1, 0).to(lse.dtype)
    out = torch.stack(outs)
    out = out.bfloat16().to(out.dtype) if merge == "16 bits" else out
    return (weights * out).sum(0).to(q.dtype)


def _decode_rows() -> Iterator[Kernel]:
    keys = 1024

    def operands(v: Values) -> tuple[Tensor, ...]:
        return v(1, 4, 1, 64), v(1, 4, keys, 64), v(1, 4, keys, 64)

    problem = Problem("attention of one token", _decode_like, operands)
    yield from problem.wrong(
        ("mask", "newest key ignored",
         lambda q, k, v: _seen(q, k, v, positions(k) < keys - 1)),
        ("mask", "last page of 64 ignored",
         lambda q, k, v: _seen(q, k, v, positions(k) < keys - 64)),
        ("mask", "a window of 512", lambda q, k, v: _seen(q, k, v, positions(k) >= keys - 512)),
        ("mask", "first key ignored", lambda q, k, v: _seen(q, k, v, positions(k) > 0)),
        ("index", "newest key twice", lambda q, k, v: attend(
            q, torch.cat([k, k[:, :, -1:]], 2), torch.cat([v, v[:, :, -1:]], 2), border=keys)),
        ("scale", "1 / sqrt(120) for 128",
         lambda q, k, v: attend(q, k, v, scale=60**-0.5, border=keys)),
        ("stale", "newest value not yet written", lambda q, k, v: _decode_like(
            q, k, zeroed(v, ..., -1, slice(None))), "flagos-ai/vllm-plugin-FL#353"),
        ("stale", "newest key not yet written", lambda q, k, v: _decode_like(
            q, zeroed(k, ..., -1, slice(None)), v)),
        ("index", "a page reads zeros", lambda q, k, v: _decode_like(
            q, zeroed(k, ..., slice(256, 320), slice(None)),
            zeroed(v, ..., slice(256, 320), slice(None))), "flashinfer-ai/flashinfer#3219"),
        ("index", "values one slot late", lambda q, k, v: _decode_like(q, k, v.roll(1, 2))),
        ("index", "two pages of values exchanged", lambda q, k, v: _decode_like(q, k, torch.cat(
            [v[:, :, 64:128], v[:, :, :64], v[:, :, 128:]], 2))),
        ("tail", "16 keys of padding counted", lambda q, k, v: attend(
            q, torch.nn.functional.pad(k, (0, 0, 0, 16)),
            torch.nn.functional.pad(v, (0, 0, 0, 16)), border=keys + 16)),
        ("formula", "parts merged by their mean", lambda q, k, v: split(q, k, v, merge="mean")),
        ("formula", "base-2 log-sum-exp merged as base e",
         lambda q, k, v: split(q, k, v, merge="base 2"), "sgl-project/sglang#35045"),
        ("race", "part of the largest sum alone",
         lambda q, k, v: split(q, k, v, merge="maximum")),
        ("precision", "parts kept in bfloat16",
         lambda q, k, v: split(q, k, v, merge="16 bits"), "", "f32"),
        ("precision", "values in 8 bits", lambda q, k, v: attend(
            q, k, v.to(torch.float8_e4m3fn).to(v.dtype), border=keys), "vllm-project/vllm#33638"),
        ("cheat", "mean of the values", lambda q, k, v: wide(v).mean(2, keepdim=True).to(q.dtype)),
        ("stale", "heads of the batch before", lambda q, k, v: _decode_like(q.roll(1, 1), k, v)),
    )  # fmt: skip
    yield from problem.right(
        ("4 parts merged by log-sum-exp", split),
        ("16 parts", lambda q, k, v: split(q, k, v, 16)),
        ("float32 throughout", lambda q, k, v: attend(q, k, v, border=keys)),
    )


def _chunk_like(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v, border=k.shape[-2] - q.shape[-2])


def _chunk_rows() -> Iterator[Kernel]:
    def operands(v: Values) -> tuple[Tensor, ...]:
        return v(2, 3, 6, 16), v(2, 3, 21, 16), v(2, 3, 21, 16)

    problem = Problem("attention of a chunk of 6 after 15", _chunk_like, operands)
    yield from problem.wrong(
        ("mask", "mask from the first key", attend, "NVIDIA/TensorRT-LLM#10102"),
        ("mask", "offset one short", lambda q, k, v: attend(q, k, v, border=14),
         "thu-nics/C2C#19"),
        ("mask", "offset one long", lambda q, k, v: attend(q, k, v, border=16)),
        ("mask", "no mask in the chunk", lambda q, k, v: attend(q, k, v, border=21)),
        ("mask", "the chunk alone", lambda q, k, v: attend(q, k[:, :, 15:], v[:, :, 15:])),
        ("stale", "the cache of the chunk before alone", lambda q, k, v: attend(
            q, k[:, :, :15], v[:, :, :15], border=21), "ggml-org/llama.cpp#28211"),
    )  # fmt: skip
    yield from problem.right(
        ("cache and chunk merged", lambda q, k, v: _merged(q, k, v)),
        ("token by token", lambda q, k, v: torch.cat([
            attend(q[:, :, i : i + 1], k[:, :, : 16 + i], v[:, :, : 16 + i], border=99)
            for i in range(6)], 2)),
    )  # fmt: skip


def _merged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = wide(q) @ wide(k).mT * 0.25
    old, new = scores[..., :15], scores[..., 15:]
    new = new.masked_fill(positions(q) > positions(q)[:, None], -torch.inf)
    sums = torch.stack([old.logsumexp(-1), new.logsumexp(-1)]).softmax(0)[..., None]
    both = old.softmax(-1) @ wide(v)[:, :, :15], new.softmax(-1) @ wide(v)[:, :, 15:]
    return (sums[0] * both[0] + sums[1] * both[1]).to(q.dtype)


def _paged_like(q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    """Pages of 8 tokens; a row of `table` has the pages of a sequence."""
    keys, values = k[table].flatten(1, 2).movedim(1, 2), v[table].flatten(1, 2).movedim(1, 2)
    return attend(q, keys, values, positions(keys) < lengths[:, None, None, None])


def _paged_rows() -> Iterator[Kernel]:
    def operands(v: Values) -> tuple[Tensor, ...]:
        q, k, x = v(2, 3, 1, 16), v(7, 8, 3, 16), v(7, 8, 3, 16)
        table = torch.tensor([[5, 0, 3], [1, 6, 2]], device=q.device)
        return q, k, x, table, torch.tensor([21, 13], device=q.device)

    problem = Problem("attention over pages", _paged_like, operands)
    like = _paged_like
    yield from problem.wrong(
        ("index", "pages in the order of memory", lambda q, k, v, t, n: like(
            q, k, v, t.sort(-1)[0], n)),
        ("index", "the first sequence's pages for all", lambda q, k, v, t, n: like(
            q, k, v, t[:1].expand(2, 3), n)),
        ("index", "next page", lambda q, k, v, t, n: like(q, k, v, (t + 1) % 7, n)),
        ("mask", "the last page is full", lambda q, k, v, t, n: like(q, k, v, t, (n + 7) // 8 * 8),
         "flashinfer-ai/flashinfer#942"),
        ("mask", "only whole pages", lambda q, k, v, t, n: like(q, k, v, t, n // 8 * 8)),
        ("mask", "one token short", lambda q, k, v, t, n: like(q, k, v, t, n - 1)),
        ("index", "values of page 0 for the last", lambda q, k, v, t, n: like(
            q, k, v.index_copy(0, t[:, -1], v[[0, 0]]), t, n)),
        ("index", "heads before tokens in a page", lambda q, k, v, t, n: like(
            q, k, v.mT.reshape(7, 8, 3, 16), t, n), "flashinfer-ai/flashinfer#4347"),
    )  # fmt: skip
    yield from problem.right(
        ("page by page", lambda q, k, v, t, n: torch.cat([
            split(q[i : i + 1], k[t[i]].flatten(0, 1)[:m].movedim(0, 1)[None],
                  v[t[i]].flatten(0, 1)[:m].movedim(0, 1)[None], parts=3)
            for i, m in enumerate(n.tolist())])),
    )  # fmt: skip


def _ragged_like(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
    """Sequences one after the other; a token sees its own sequence up to itself."""
    own = torch.bucketize(positions(q), starts[1:-1], right=True)
    seen = (own[:, None] == own) & (positions(k) <= positions(q)[:, None])
    return attend(q, k, v, seen)


def _ragged_rows() -> Iterator[Kernel]:
    def operands(v: Values) -> tuple[Tensor, ...]:
        q, k, x = (v(3, 20, 16) for _ in range(3))
        return q, k, x, torch.tensor([0, 5, 12, 20], device=q.device)

    problem = Problem("attention of packed sequences", _ragged_like, operands)
    like = _ragged_like
    yield from problem.wrong(
        ("mask", "sequences see each other", lambda q, k, v, s: attend(q, k, v)),
        ("mask", "sequences begin one late", lambda q, k, v, s: like(
            q, k, v, s + (positions(s, 0) % 3 != 0))),
        ("constant", "sequences of equal length", lambda q, k, v, s: like(
            q, k, v, torch.tensor([0, 7, 14, 20], device=q.device))),
        ("unwritten", "last sequence", lambda q, k, v, s: zeroed(
            like(q, k, v, s), slice(None), slice(12, None))),
        ("mask", "no mask in a sequence", lambda q, k, v, s: torch.cat([
            attend(q[:, a:b], k[:, a:b], v[:, a:b], border=99)
            for a, b in zip(s[:-1].tolist(), s[1:].tolist(), strict=True)], 1)),
        ("tail", "reads past the end", lambda q, k, v, s: torch.cat([
            attend(q[:, a:b], k[:, a : (b + 3) // 4 * 4], v[:, a : (b + 3) // 4 * 4], border=3)
            for a, b in zip(s[:-1].tolist(), s[1:].tolist(), strict=True)], 1),
         "flagos-ai/FlagGems#3607"),
    )  # fmt: skip
    yield from problem.right(
        ("each sequence alone", lambda q, k, v, s: torch.cat([
            attend(q[:, a:b], k[:, a:b], v[:, a:b])
            for a, b in zip(s[:-1].tolist(), s[1:].tolist(), strict=True)], 1)),
    )  # fmt: skip


def _latent_like(q: Tensor, rope: Tensor, latent: Tensor, k_rope: Tensor) -> Tensor:
    """Queries in the latent space; the last part of a score is that of rotated dimensions."""
    scores = (wide(q) @ wide(latent).mT + wide(rope) @ wide(k_rope).mT) * 24**-0.5
    seen = positions(latent) <= positions(q)[:, None]
    return (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ wide(latent)).to(q.dtype)


def _latent_rows() -> Iterator[Kernel]:
    def operands(v: Values) -> tuple[Tensor, ...]:
        return v(4, 12, 32), v(4, 12, 8), v(12, 32), v(12, 8)

    problem = Problem("latent attention", _latent_like, operands)
    like = _latent_like
    yield from problem.wrong(
        ("scale", "of the part without rotation", lambda q, r, c, k: like(
            q * 1.5**0.5, r * 1.5**0.5, c, k)),
        ("scale", "of the latent", lambda q, r, c, k: like(
            q * (24 / 40) ** 0.5, r * (24 / 40) ** 0.5, c, k)),
        ("left out", "no rotated part", lambda q, r, c, k: like(q, torch.zeros_like(r), c, k)),
        ("index", "rotated keys of the token before",
         lambda q, r, c, k: like(q, r, c, k.roll(1, 0))),
        ("index", "rotated part of the first head for all", lambda q, r, c, k: like(
            q, r[:1].expand(4, 12, 8), c, k)),
        ("left out", "scale of the rotated part", lambda q, r, c, k: like(q, r * 24**0.5, c, k)),
    )  # fmt: skip
    yield from problem.right(
        ("both parts in one product", lambda q, r, c, k: _latent_at_once(q, r, c, k)),
    )


def _latent_at_once(q: Tensor, rope: Tensor, latent: Tensor, k_rope: Tensor) -> Tensor:
    queries, keys = torch.cat([q, rope], -1), torch.cat([latent, k_rope], -1)
    scores = wide(queries) @ wide(keys).mT * 24**-0.5
    seen = positions(latent) <= positions(q)[:, None]
    return (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ wide(latent)).to(q.dtype)


def rows() -> Iterator[Kernel]:
    yield from _decode_rows()
    yield from _chunk_rows()
    yield from _paged_rows()
    yield from _ragged_rows()
    yield from _latent_rows()
