"""Faults of quantised kernels that public reports name: a wrong kernel each, and the right one.

python tests/python/quantised_reports.py prints them, with what no test of one call shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from quantised_layers import QuantLinear
from test_quantised_caches import attend, operands

from python_inspector.quantised import dequantize, linear

Kernel = Callable[..., Any]
COLUMNS, ROWS_OF_X = 64, 12


@dataclass(frozen=True)
class Row:
    report: str
    fault: str
    wrong: Kernel
    right: Kernel
    like: Kernel
    inputs: Callable[[], tuple[torch.Tensor, ...]]


def _x(rows: int = ROWS_OF_X) -> torch.Tensor:
    x = torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(2))
    return x * torch.tensor([30.0] + [1.0] * (COLUMNS - 1))  # one channel is much larger


def of_layout(layout: str) -> Callable[[], tuple[torch.Tensor, ...]]:
    """A call of a quantised linear layer."""

    def inputs() -> tuple[torch.Tensor, ...]:
        layer = QuantLinear(layout, torch.float32)
        return (_x(), *(getattr(layer, name) for name in layer.tensors))

    return inputs


def product(layout: str, x: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
    return x @ dequantize(layout, *tensors).mT


def split(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, end: int) -> torch.Tensor:
    """In parts of 24 columns, as far as `end`."""
    weight = dequantize("int8", codes, scales)
    parts = [(x[:, i : i + 24], weight[:, i : i + 24]) for i in range(0, end, 24)]
    return sum((a @ b.mT for a, b in parts), torch.zeros(()))


def zero_of_the_next_group(x: Any, codes: Any, scales: Any, zeros: Any) -> torch.Tensor:
    return product("int4-zero", x, codes, scales, zeros.roll(1, 1))


def _in_blocks(x: torch.Tensor, size: int) -> torch.Tensor:
    """Activations as codes of 8 bits, a scale of so many neighbours each."""
    of = x.unflatten(-1, (-1, size))
    scale = of.abs().amax(-1, keepdim=True) / 127
    return ((of / scale).round() * scale).flatten(-2)


def by_blocks(x: torch.Tensor, *weight: torch.Tensor) -> torch.Tensor:
    return product("q8_0", _in_blocks(x[:, :COLUMNS], 32), *weight)


def by_rows(x: torch.Tensor, *weight: torch.Tensor) -> torch.Tensor:
    """A scale of the whole row: one large value leaves the others no codes."""
    return product("q8_0", _in_blocks(x[:, :COLUMNS], COLUMNS), *weight)


def cache(codes: torch.dtype) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: operands(codes, torch.float32, 5)


def over_cache(q: Any, k: Any, k_scale: Any, v: Any, v_scale: Any) -> torch.Tensor:
    return attend(q, k.float() * k_scale, v.float() * v_scale)


def values_without_scale(q: Any, k: Any, k_scale: Any, v: Any, v_scale: Any) -> torch.Tensor:
    return over_cache(q, k, k_scale, v, torch.ones_like(v_scale))


def values_by_keys(q: Any, k: Any, k_scale: Any, v: Any, v_scale: Any) -> torch.Tensor:
    return over_cache(q, k, k_scale, v, k_scale)


def other_format(q: Any, k: Any, k_scale: Any, v: Any, v_scale: Any) -> torch.Tensor:
    k, v = (t.view(torch.float8_e5m2) for t in (k, v))
    return over_cache(q, k, k_scale, v, v_scale)


def scales_of_the_first_shard(q: Any, k: Any, k_scale: Any, v: Any, v_scale: Any) -> torch.Tensor:
    """Each of two devices has a half of the heads, and takes the scales from the first on."""
    first = [t[:, :1].expand_as(t) for t in (k_scale, v_scale)]
    return over_cache(q, k, first[0], v, first[1])


def rejected_tokens_stay(q: Any, k: Any, k_scale: Any, v: Any, v_scale: Any) -> torch.Tensor:
    """The scales of two drafted tokens that were not taken are left for those that follow."""
    k_scale, v_scale = k_scale.clone(), v_scale.clone()
    for scale in (k_scale, v_scale):
        scale[:, :, -2:] = scale[:, :, -4:-2]
    return over_cache(q, k, k_scale, v, v_scale)


def _experts() -> tuple[torch.Tensor, ...]:
    engine = torch.Generator().manual_seed(6)
    codes = torch.randn(4, 16, COLUMNS, generator=engine).mul(60).to(torch.float8_e4m3fn)
    scales = torch.rand(4, 1, 1, generator=engine) * 0.01 + 0.002
    logits = torch.randn(ROWS_OF_X, 4, generator=engine) * 2
    return _x(), codes, scales, logits


def experts(x: Any, codes: Any, scales: Any, logits: Any) -> torch.Tensor:
    """The two likeliest of four, their weights normalised."""
    weights, chosen = logits.softmax(-1).topk(2)
    return _mixed(x, codes, scales, weights / weights.sum(-1, keepdim=True), chosen)


def _mixed(x: Any, codes: Any, scales: Any, weights: Any, chosen: Any) -> torch.Tensor:
    each = torch.einsum("tk,enk->ten", x, codes.float() * scales)
    of = each.gather(1, chosen.unsqueeze(-1).expand(-1, -1, each.shape[-1]))
    return (of * weights.unsqueeze(-1)).sum(1)


def weights_as_they_are(x: Any, codes: Any, scales: Any, logits: Any) -> torch.Tensor:
    return _mixed(x, codes, scales, *logits.softmax(-1).topk(2))


def one_scale_of_all(x: Any, codes: Any, scales: Any, logits: Any) -> torch.Tensor:
    return experts(x, codes, scales.amax().expand_as(scales), logits)


def without_weight(x: Any, codes: Any, scales: Any) -> torch.Tensor:
    """As if the file's weight had not been found."""
    return product("int8", x, torch.zeros_like(codes), scales)


def tile_not_written(x: Any, codes: Any, scales: Any) -> torch.Tensor:
    """Of codes that are all zero it skips the product, and what the memory holds stays."""
    out = torch.full((len(x), len(codes)), float("nan"))
    out[:, 8:] = product("int8", x, codes[8:], scales[8:])
    return out


def nibbles(x: Any, codes: Any, scales: Any, whole: Any) -> torch.Tensor:
    return product("nvfp4", x, (codes << 4) | (codes >> 4), scales, whole)


def scale_for_its_reciprocal(x: Any, codes: Any, scales: Any, whole: Any) -> torch.Tensor:
    return product("nvfp4", x, codes, scales, 1 / whole)


def _of(layout: str) -> tuple[Kernel, Kernel]:
    return lambda *given: product(layout, *given), linear(layout, "float32")


def of_all_columns(*given: torch.Tensor) -> torch.Tensor:
    return split(*given, end=COLUMNS)  # type: ignore[misc]


def of_whole_parts(*given: torch.Tensor) -> torch.Tensor:
    return split(*given, end=COLUMNS // 24 * 24)  # type: ignore[misc]


_FP8 = torch.float8_e4m3fn
REPORTS = [
    Row("ml-explore/mlx#3854", "split over K: the last part is short, and left out",
        of_whole_parts, of_all_columns, _of("int8")[1], of_layout("int8")),
    Row("openvinotoolkit/openvino#37419", "int4: zero points of another group",
        zero_of_the_next_group, *_of("int4-zero"), of_layout("int4-zero")),
    Row("paiml/aprender#2091", "one massive activation: a scale of the row, not of each block",
        by_rows, by_blocks, by_blocks, of_layout("q8_0")),
    Row("ggml-org/llama.cpp#23689", "values in 8 bits: the scales of keys",
        values_by_keys, over_cache, over_cache, cache(torch.int8)),
    Row("sgl-project/sglang#23625", "order of nibbles",
        nibbles, *_of("nvfp4"), of_layout("nvfp4")),
    Row("sgl-project/sglang#23625", "global scale multiplied, not divided by",
        scale_for_its_reciprocal, *_of("nvfp4"), of_layout("nvfp4")),
    Row("sgl-project/sglang#22671", "fp8 cache: values without their scale",
        values_without_scale, over_cache, over_cache, cache(_FP8)),
    Row("vllm-project/vllm#33638", "fp8 cache: codes of another format",
        other_format, over_cache, over_cache, cache(_FP8)),
    Row("vllm-project/vllm#23813", "fp8 attention on two devices: scales of the first one's heads",
        scales_of_the_first_shard, over_cache, over_cache, cache(_FP8)),
    Row("vllm-project/vllm#40831", "drafted tokens that were not taken leave their scales",
        rejected_tokens_stay, over_cache, over_cache, cache(torch.int8)),
    Row("vllm-project/vllm#43223", "router: weights of the chosen experts not normalised",
        weights_as_they_are, experts, experts, _experts),
    Row("vllm-project/vllm#57092", "fp8 experts: one scale for all of them",
        one_scale_of_all, experts, experts, _experts),
    Row("sgl-project/sglang#33245", "quantised weights dropped without a word",
        without_weight, *_of("int8"), of_layout("int8")),
    Row("NVIDIA/cudnn-frontend#1040", "a tile that is not written",
        tile_not_written, *_of("int8"), of_layout("int8")),
]  # fmt: skip
"""Of demand for verification: rows of quantised values that one call shows."""
ELSEWHERE = {
    "vllm-project/vllm#39912": "rows that depend on the batch: test_batch_variance.py, invariant()",
}
UNSHOWN = {
    "microsoft/foundry-local#873": "int4 wrong on one type of GPU, of unknown cause: on that GPU "
    "`harness --device` and check() of its kernel judge it",
}
"""What no test of ours shows, and why."""


def main() -> None:
    """A line for each: the report, and the fault."""
    rows = [*((it.report, it.fault) for it in REPORTS), *ELSEWHERE.items()]
    for report, fault in rows:
        print(f"{report:33}{fault}")
    for report, why in UNSHOWN.items():
        print(f"{report:33}not shown: {why}")


if __name__ == "__main__":
    main()
