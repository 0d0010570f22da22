"""What the operations of quantisation libraries compute, written in torch's own.

Their inside is not seen, and what they return would be its own oracle. Codes and scales are used as
they are stored; a weight is rounded to the dtype of the activations, as the libraries do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..quantised.bits import of_bytes
from ..quantised.layouts import NF4

Optional = torch.Tensor | None

# bitsandbytes 0.50: get_4bit_type() in bitsandbytes/functional.py.
_FP4 = [sign * it / 12 for sign in (1, -1) for it in (0, 0.0625, 8, 12, 4, 6, 2, 3)]
_LARGEST = 127
_OF_BLOCKS = 256
"""Scales that have a scale of their own."""


def _by_blocks(values: torch.Tensor, scales: torch.Tensor, size: int) -> torch.Tensor:
    """Each of `size` neighbours times its scale; the last block may be shorter."""
    return values * scales.reshape(-1).repeat_interleave(size)[: values.numel()]


def _dequantize_blockwise(
    codes: torch.Tensor, scales: torch.Tensor, table: torch.Tensor, size: int, dtype: torch.dtype
) -> torch.Tensor:
    values = table[codes.reshape(-1).long()]
    return _by_blocks(values, scales, size).to(dtype).reshape(codes.shape)


def _dequantize_4bit(
    packed: torch.Tensor,
    scales: torch.Tensor,
    size: int,
    kind: str,
    shape: Sequence[int],
    dtype: torch.dtype,
) -> torch.Tensor:
    """Two codes in a byte, the first one high."""
    packed = packed if packed.dtype == torch.uint8 else packed.view(torch.uint8)
    codes = of_bytes(packed.reshape(-1), high_first=True)[: torch.Size(shape).numel()]
    table = torch.tensor(NF4 if kind == "nf4" else _FP4, device=packed.device)
    return _by_blocks(table[codes.long()], scales, size).to(dtype).reshape(shape)


def _gemv_4bit(
    x: torch.Tensor,
    packed: torch.Tensor,
    shape: Sequence[int],
    scales: torch.Tensor,
    table: torch.Tensor,
    size: int,
) -> torch.Tensor:
    kind = "fp4" if table[1] > 0 else "nf4"
    if scales.ndim == 1:
        return _linear_4bit(x, packed, shape, scales, size, kind)
    values = torch.tensor(NF4 if kind == "nf4" else _FP4, device=packed.device)
    weight = values[_packed_for_cpu(packed)] * scales.mT.repeat_interleave(size, 1)
    return torch.nn.functional.linear(x, weight.to(x.dtype))


def _packed_for_cpu(packed: torch.Tensor) -> torch.Tensor:
    """Codes [out, in] of a weight that bitsandbytes 0.50 packed for AVX-512, scales [in, out]: of
    32 rows, pairs of neighbouring columns one row after the other: 32 codes in the low halves of 32
    bytes, and the next 32 in the high ones."""
    rows, half = packed.shape
    runs = packed.reshape(-1, 32)
    codes = torch.cat([runs & 15, runs >> 4], 1).reshape(rows // 32, half, 32, 2)
    return codes.transpose(1, 2).reshape(rows, 2 * half).long()


def _linear_4bit(
    x: torch.Tensor,
    packed: torch.Tensor,
    shape: Sequence[int],
    scales: torch.Tensor,
    size: int,
    kind: str,
    bias: Optional = None,
    scale_codes: Optional = None,
    scale_table: Optional = None,
    scale_offset: Optional = None,
) -> torch.Tensor:
    if scale_codes is not None:
        assert scale_table is not None and scale_offset is not None
        of_scales = (scale_codes, scales, scale_table, _OF_BLOCKS, torch.float32)
        scales = _dequantize_blockwise(*of_scales) + scale_offset
    weight = _dequantize_4bit(packed, scales, size, kind, shape, x.dtype)
    return torch.nn.functional.linear(x, weight, bias)


def _int8_dequantize(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return codes * (scales.reshape(-1, 1) * (1 / _LARGEST))


def _int8_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Exact: sums of whole numbers."""
    return (a.double() @ b.double().mT).to(torch.int32)


def _int8_scale(
    sums: torch.Tensor,
    row_scales: torch.Tensor,
    column_scales: torch.Tensor,
    dtype: torch.dtype | None = None,
    bias: Optional = None,
) -> torch.Tensor:
    scales = row_scales.reshape(-1, 1) * column_scales.reshape(1, -1)
    out = sums.reshape(-1, sums.shape[-1]) * scales * (1 / _LARGEST**2)
    return (out if bias is None else out + bias).to(dtype or torch.float16)


def _int8_scaled_product(
    a: torch.Tensor,
    b: torch.Tensor,
    row_scales: torch.Tensor,
    column_scales: torch.Tensor,
    bias: Optional = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    return _int8_scale(_int8_product(a, b), row_scales, column_scales, dtype, bias)


def _quanto_linear(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    if x.dtype == weight.dtype == torch.int8:
        return (_int8_product(x, weight) * scales.float().mT).to(scales.dtype)
    if weight.dtype == torch.int8 and x.dtype == torch.bfloat16 and x.shape[-1] % 4 == 0:
        return (x.float() @ weight.float().mT * scales.float().reshape(-1)).to(x.dtype)
    return x.to(scales.dtype) @ (scales * weight.to(scales.dtype)).mT


def _int8_packed_linear(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    return (x.float() @ weight.float().mT * scales.float()).to(x.dtype)


def _quantize_affine(
    x: torch.Tensor,
    block: Sequence[int],
    scale: torch.Tensor,
    zero_point: Optional,
    dtype: torch.dtype,
    lowest: float | None = None,
    largest: float | None = None,
) -> torch.Tensor:
    """torchao 0.18: blocks of an extent along each axis have a scale. An axis that is one block, or
    has blocks of one, is not divided."""
    limits = torch.iinfo(dtype)
    blocks, scales = [], []
    for n, of in zip(x.shape, block, strict=True):
        blocks += [n] if of in (1, n) else [n // of, of]
        scales += [n if of == 1 else 1] if of in (1, n) else [n // of, 1]
    codes = torch.round(x.reshape(blocks) * (1.0 / scale.reshape(scales)))
    if zero_point is not None and zero_point.numel():
        codes = codes + zero_point.reshape(scales)
    lowest = limits.min if lowest is None else lowest
    largest = limits.max if largest is None else largest
    return torch.clamp(codes, lowest, largest).reshape(x.shape).to(dtype)


DECODERS: dict[str, Callable[..., Any]] = {
    "aten::_weight_int8pack_mm": _int8_packed_linear,
    "bitsandbytes::dequantize_4bit": _dequantize_4bit,
    "bitsandbytes::dequantize_blockwise": _dequantize_blockwise,
    "bitsandbytes::gemm_4bit": _linear_4bit,
    "bitsandbytes::gemv_4bit": _gemv_4bit,
    "bitsandbytes::int8_linear_matmul": _int8_product,
    "bitsandbytes::int8_mm_dequant": _int8_scale,
    "bitsandbytes::int8_scaled_mm": _int8_scaled_product,
    "bitsandbytes::int8_vectorwise_dequant": _int8_dequantize,
    "quanto::qbytes_mm": _quanto_linear,
    "torchao::quantize_affine": _quantize_affine,
}
"""By the operation's name."""
