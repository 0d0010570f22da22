"""Kernels whose rows depend on the rest of the batch, each as a public report tells it, next to one
whose rows do not. Sums are of fixed orders, written out: torch's own depend on shapes, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Kernel = Callable[..., Tensor]


@dataclass(frozen=True)
class Row:
    """A report, what it says is wrong, both kernels and the call that shows it."""

    report: str
    fault: str
    wrong: Kernel
    right: Kernel
    inputs: Callable[[], tuple[Any, ...]]
    shows: str
    """The relation that is broken."""


def total(x: Tensor, lanes: int) -> Tensor:
    """The sum over the last axis by so many threads: each strides, and halves are added."""
    parts = x.unflatten(-1, (-1, lanes)).unbind(-2)
    out = parts[0].clone()
    for part in parts[1:]:
        out = out + part
    while out.shape[-1] > 1:
        half = out.shape[-1] // 2
        out = out[..., :half] + out[..., half:]
    return out[..., 0]


def product(x: Tensor, weight: Tensor, lanes: int) -> Tensor:
    return total(x[:, None, :] * weight, lanes)


def norm(x: Tensor, weight: Tensor, lanes: int) -> Tensor:
    return x * torch.rsqrt(total(x * x, lanes)[:, None] / x.shape[-1] + 1e-6) * weight


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def operands(rows: int, k: int = 256, n: int = 24) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (normal(rows, k), normal(n, k))


# --- vllm-project/vllm#57092: one scale of eight bits for all tokens of all requests


def codes(x: Tensor, largest: Tensor) -> Tensor:
    scale = largest / 127
    return (x / scale).round().clamp(-127, 127) * scale


def expert(x: Tensor, weight: Tensor) -> Tensor:
    return product(codes(x, x.abs().amax(-1, keepdim=True)), weight, 32)


def expert_of_a_tensor(x: Tensor, weight: Tensor) -> Tensor:
    return product(codes(x, x.abs().amax()), weight, 32)


# --- vllm-project/vllm#55131: the persistent product takes other tiles where K is a power of two


def persistent(x: Tensor, weight: Tensor) -> Tensor:
    return product(x, weight, 32)


def persistent_but_for_powers(x: Tensor, weight: Tensor) -> Tensor:
    is_power = x.shape[-1] & (x.shape[-1] - 1) == 0
    return product(x, weight, 64 if is_power and len(x) < 8 else 32)


# --- vllm-project/vllm#51902: the longest request of a batch chooses the tile of all


def attention(keys: Tensor, lengths: Tensor, tiles: list[int]) -> Tensor:
    weights = keys[..., 0].exp()
    weights = weights * (torch.arange(keys.shape[1], device=keys.device) < lengths[:, None])
    sums = [total((weights[..., None] * keys).mT, tile) for tile in tiles]
    means = [it / total(weights, tile)[:, None] for it, tile in zip(sums, tiles, strict=True)]
    return torch.stack([mean[i] for i, mean in enumerate(means)])


def tile_of(length: int) -> int:
    return 16 if length <= 64 else 64


def attention_by_own_length(keys: Tensor, lengths: Tensor) -> Tensor:
    return attention(keys, lengths, [tile_of(n) for n in lengths.tolist()])


def attention_by_longest(keys: Tensor, lengths: Tensor) -> Tensor:
    return attention(keys, lengths, [tile_of(int(lengths.max()))] * len(keys))


def requests() -> tuple[Tensor, Tensor]:
    return normal(5, 128, 8), torch.tensor([30, 128, 17, 64, 50])


# --- vllm-project/vllm#48391: blocks of 1024 threads below 256 tokens, of 256 from there on


def norm_in_one_block(x: Tensor, weight: Tensor) -> Tensor:
    return norm(x, weight, 256)


def norm_by_tokens(x: Tensor, weight: Tensor) -> Tensor:
    return norm(x, weight, 1024 if len(x) < 256 else 256)


# --- pegainfer-project/pegainfer#414: four causes


def product_by_rows(x: Tensor, weight: Tensor) -> Tensor:
    return product(x, weight, 128 if len(x) == 1 else 32)


def splits_by_rows(x: Tensor, weight: Tensor) -> Tensor:
    splits = 8 if len(x) <= 2 else 4 if len(x) <= 8 else 1
    parts = zip(x.chunk(splits, -1), weight.chunk(splits, -1), strict=True)
    return torch.stack([product(a, b, 16) for a, b in parts]).cumsum(0)[-1]


def splits_fixed(x: Tensor, weight: Tensor) -> Tensor:
    return torch.stack(
        [product(a, b, 16) for a, b in zip(x.chunk(4, -1), weight.chunk(4, -1), strict=True)]
    ).cumsum(0)[-1]


def path_of_the_tail(x: Tensor, weight: Tensor) -> Tensor:
    whole = len(x) // 4 * 4
    return torch.cat([product(x[:whole], weight, 32), product(x[whole:], weight, 8)])


def unified_step(x: Tensor, tokens: Tensor, weight: Tensor) -> Tensor:
    """As soon as one request is in its prefill all take its path."""
    return product(x, weight, 64 if int(tokens.max()) > 1 else 16)


def own_step(x: Tensor, tokens: Tensor, weight: Tensor) -> Tensor:
    decoded, filled = product(x, weight, 16), product(x, weight, 64)
    return torch.where(tokens[:, None] > 1, filled, decoded)


def steps() -> tuple[Tensor, Tensor, Tensor]:
    return normal(5, 256), torch.tensor([1, 1, 7, 1, 1]), normal(24, 256)


# --- vllm-project/vllm#39912: right end to end; groups of eight rows share a scale of four bits


def grouped_scale(x: Tensor, weight: Tensor) -> Tensor:
    largest = [part.abs().amax().expand(len(part)) for part in x.split(8)]
    return product(codes(x, torch.cat(largest)[:, None]), weight, 32)


# --- vllm-project/vllm#32480: logarithms of probabilities 5e-7 apart


def log_probabilities(x: Tensor, lanes: int) -> Tensor:
    shifted = x - x.amax(-1, keepdim=True)
    return shifted - total(shifted.exp(), lanes).log()[:, None]


def log_probabilities_by_rows(x: Tensor) -> Tensor:
    return log_probabilities(x, 512 if len(x) < 4 else 8)


# --- vllm-project/vllm#49603: a test that compares a kernel with itself in the same batch. The
# kernel below passes it.


def odd_batches(x: Tensor, weight: Tensor) -> Tensor:
    return product(x, weight, 32 if len(x) % 2 else 64)


# --- deepseek-ai/FlashMLA#212: how many splits a row has depends on its batchmates


def decode(scores: Tensor, values: Tensor, splits: int) -> Tensor:
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    parts = zip(weights.chunk(splits, -1), values.chunk(splits, 1), strict=True)
    both = [(total((w[..., None] * v).mT, 8), total(w, 8)) for w, v in parts]
    above, below = (torch.stack(it).cumsum(0)[-1] for it in zip(*both, strict=True))
    return above / below[:, None]


def decode_by_batchmates(scores: Tensor, values: Tensor) -> Tensor:
    return decode(scores, values, 8 if len(scores) < 3 else 2)


# --- NVIDIA/TransformerEngine#2986: the library chooses by the whole shape, not by the position


def library_product(x: Tensor, weight: Tensor) -> Tensor:
    return product(x, weight, 32 if len(x) in (1, 33) else 128)


# --- vllm-project/vllm#45683: experts are added in the order of their load


def combine(x: Tensor, experts: Tensor, chosen: Tensor, order: list[int]) -> Tensor:
    out = torch.zeros_like(x)
    for expert in order:
        takes = (chosen == expert).any(-1, keepdim=True)
        out = out + torch.where(takes, x * experts[expert], 0)
    return out


def combine_in_order(x: Tensor, experts: Tensor, chosen: Tensor) -> Tensor:
    return combine(x, experts, chosen, list(range(len(experts))))


def combine_by_load(x: Tensor, experts: Tensor, chosen: Tensor) -> Tensor:
    load = [int((chosen == expert).sum()) for expert in range(len(experts))]
    return combine(x, experts, chosen, sorted(range(len(experts)), key=lambda it: load[it]))


def routed() -> tuple[Tensor, Tensor, Tensor]:
    chosen = [[0, 1, 2], [2, 3, 1], [3, 2, 0], [1, 3, 2], [0, 2, 3], [1, 0, 3]]
    return normal(6, 128), normal(4, 128), torch.tensor(chosen)


ROWS = (
    Row("vllm-project/vllm#57092", "one scale for all requests", expert_of_a_tensor, expert,
        operands(6), "neighbours"),
    Row("vllm-project/vllm#55131", "K is a power of two", persistent_but_for_powers, persistent,
        operands(9), "batch"),
    Row("vllm-project/vllm#51902", "tiling of another request", attention_by_longest,
        attention_by_own_length, requests, "batch"),
    Row("vllm-project/vllm#48391", "block by tokens", norm_by_tokens, norm_in_one_block,
        lambda: (normal(32, 2048), normal(2048)), "padding"),
    Row("pegainfer-project/pegainfer#414", "product choice", product_by_rows, persistent,
        operands(4), "batch"),
    Row("pegainfer-project/pegainfer#414", "split count", splits_by_rows, splits_fixed,
        operands(9), "chunks"),
    Row("pegainfer-project/pegainfer#414", "path", path_of_the_tail, persistent, operands(6),
        "position"),
    Row("pegainfer-project/pegainfer#414", "unified step", unified_step, own_step, steps, "batch"),
    Row("vllm-project/vllm#39912", "right end to end", grouped_scale, expert, operands(16),
        "neighbours"),
    Row("vllm-project/vllm#32480", "differences of 5e-7", log_probabilities_by_rows,
        lambda x: log_probabilities(x, 8), lambda: (normal(24, 512),), "chunks"),
    Row("vllm-project/vllm#49603", "the same in the same batch", odd_batches, persistent,
        operands(6), "batch"),
    Row("deepseek-ai/FlashMLA#212", "splits by batchmates", decode_by_batchmates,
        lambda scores, values: decode(scores, values, 2),
        lambda: (normal(5, 128), normal(5, 128, 16)), "batch"),
    Row("NVIDIA/TransformerEngine#2986", "library's heuristic", library_product, persistent,
        operands(17), "batch"),
    Row("vllm-project/vllm#45683", "experts in order of load", combine_by_load, combine_in_order,
        routed, "batch"),
)  # fmt: skip
