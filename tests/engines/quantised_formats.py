"""dequantize() against the libraries that write the formats, bit for bit.

ci/engines --quantised runs it. Exit code 1 where a weight differs.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import numpy as np
import torch

from python_inspector import quantised
from python_inspector.quantised.ggml import BLOCKS

OUT, IN, GROUP = 64, 256, 32
Weights = tuple[str, torch.Tensor, torch.Tensor]


def random(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(len(shape))) + 0.1


def codes(low: int, high: int, *shape: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(shape[-1])
    return torch.randint(low, high, shape, generator=g, dtype=torch.int8)


def ggml() -> Iterator[Weights]:
    from gguf import GGMLQuantizationType as Kinds
    from gguf.constants import GGML_QUANT_SIZES
    from gguf.quants import dequantize

    for name in BLOCKS:
        kind = Kinds[name.upper()]
        size = GGML_QUANT_SIZES[kind][1]
        stored = np.random.default_rng(7).integers(0, 256, (OUT, 3 * size), dtype=np.uint8)
        mine = quantised.dequantize(name, torch.from_numpy(stored))
        yield name, mine, torch.from_numpy(dequantize(stored, kind))


def compressed_tensors() -> Iterator[Weights]:
    from compressed_tensors.compressors.nvfp4 import unpack_fp4_from_uint8
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    weight, zeros = codes(-8, 8, OUT, IN), codes(-8, 8, OUT, IN // GROUP)
    scale, packed = random(OUT, IN // GROUP), pack_to_int32(weight, 4)
    args = QuantizationArgs(num_bits=4, strategy="group", group_size=GROUP)
    mine = quantised.dequantize("int4", packed, scale)
    yield "int4", mine, dequantize(weight, scale, args=args, dtype=torch.float32)
    mine = quantised.dequantize("int4-zero", packed, scale, pack_to_int32(zeros, 4, packed_dim=0))
    yield "int4-zero", mine, dequantize(weight, scale, zeros, args=args, dtype=torch.float32)
    pairs = torch.randint(0, 256, (OUT, IN // 2), dtype=torch.uint8)
    values = unpack_fp4_from_uint8(pairs, OUT, IN, torch.float32)
    scale, whole = (random(OUT, IN // 16) * 400).to(torch.float8_e4m3fn), torch.tensor([1500.0])
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16)
    right = dequantize(values, scale.float(), args=args, dtype=torch.float32, global_scale=whole)
    yield "nvfp4", quantised.dequantize("nvfp4", pairs, scale, whole), right
    exponents = torch.randint(110, 130, (OUT, IN // 32), dtype=torch.uint8)
    scale = torch.exp2(exponents.float() - 127)
    args = QuantizationArgs(num_bits=4, type="float", strategy="group", group_size=32)
    right = dequantize(values, scale, args=args, dtype=torch.float32)
    yield "mxfp4", quantised.dequantize("mxfp4", pairs, exponents), right
    small = codes(-127, 128, OUT, IN).to(torch.float8_e4m3fn)
    right = dequantize(small, scale, args=args, dtype=torch.float32)
    yield "mxfp8", quantised.dequantize("mxfp8", small, exponents), right
    scale = random(OUT // 16, IN // 64)
    args = QuantizationArgs(type="float", strategy="block", block_structure=[16, 64])
    right = dequantize(small, scale, args=args, dtype=torch.float32)
    yield "fp8", quantised.dequantize("fp8", small, scale), right
    weight, scale = codes(-128, 128, OUT, IN), random(OUT, 1)
    args = QuantizationArgs(strategy="channel")
    right = dequantize(weight, scale, args=args, dtype=torch.float32)
    yield "int8", quantised.dequantize("int8", weight, scale), right
    scale = random(OUT, IN // GROUP)
    args = QuantizationArgs(strategy="group", group_size=GROUP, symmetric=False)
    right = dequantize(weight, scale, zeros, args=args, dtype=torch.float32)
    yield "int8-zero", quantised.dequantize("int8-zero", weight, scale, zeros), right


def bitsandbytes() -> Iterator[Weights]:
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    packed, state = quantize_4bit(random(OUT, IN) - 0.6, quant_type="nf4")
    mine = quantised.dequantize("nf4", packed, state.absmax)
    yield "nf4", mine.reshape(OUT, IN), dequantize_4bit(packed, state)


def module_of(library: str, path: str) -> Any:
    """One file of a library, whose package imports what is not installed."""
    file = str(metadata.distribution(library).locate_file(path))
    spec = importlib.util.spec_from_file_location(library.replace("-", "_"), file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def autoawq() -> Iterator[Weights]:
    dequantize_gemm = module_of("autoawq", "awq/utils/packing_utils.py").dequantize_gemm
    words = torch.randint(-(2**31), 2**31, (IN, OUT // 8)).int()
    zeros = torch.randint(-(2**31), 2**31, (IN // GROUP, OUT // 8)).int()
    scales = random(IN // GROUP, OUT)
    right = dequantize_gemm(words, zeros, scales, 4, GROUP)
    yield "awq", quantised.dequantize("awq", words, scales, zeros), right.mT


def auto_gptq() -> Iterator[Weights]:
    kernels = module_of("auto-gptq", "auto_gptq/nn_modules/qlinear/qlinear_cuda.py")
    layer = kernels.QuantLinear(4, GROUP, IN, OUT, bias=False)
    linear = torch.nn.Linear(IN, OUT, bias=False)
    zeros = torch.randint(1, 16, (OUT, IN // GROUP)).float()
    index = torch.arange(IN // GROUP).repeat(GROUP).int()  # as after an act-order
    layer.pack(linear, random(OUT, IN // GROUP) * 0.02, zeros, index)
    layer.kernel_switch_threshold = 0
    with torch.no_grad():
        right = layer(torch.eye(IN))
    mine = quantised.dequantize("gptq", layer.qweight, layer.scales, layer.qzeros, layer.g_idx)
    yield "gptq", mine, right.mT


def main() -> int:
    warnings.filterwarnings("ignore")
    wrong = 0
    for library in (ggml, compressed_tensors, bitsandbytes, autoawq, auto_gptq):
        for name, mine, right in library():
            same = (mine == right) | (mine.isnan() & right.isnan())
            off = int((~same).sum()) if mine.shape == right.shape else mine.numel()
            wrong += off > 0
            print(f"{library.__name__:20}{name:12}{off} of {mine.numel()} values differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
