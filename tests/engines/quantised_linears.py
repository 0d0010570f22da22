"""Linear layers of quantisation libraries, and kernels of their weights: right ones, and faults.

ci/engines runs it where the libraries are the only ones of their names. Exit code 1 where a right
kernel fails, a wrong one passes, or a layer is not judged that was.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from python_inspector import WrongError, check

IN, OUT, TOKENS = 256, 128, 40
NOT_SEEN = {("quanto qint4", torch.bfloat16)}
"""Its weight is packed for a kernel of the CPU."""


def linear(dtype: torch.dtype) -> nn.Linear:
    torch.manual_seed(0)
    layer = nn.Linear(IN, OUT, bias=False)
    layer.weight.data *= torch.exp(0.5 * torch.randn(OUT, 1))
    return layer.to(dtype)


def bitsandbytes_layers(dtype: torch.dtype) -> Iterator[tuple[str, nn.Module, torch.Tensor]]:
    import bitsandbytes as bnb

    for kind, nested in (("nf4", False), ("nf4", True), ("fp4", False)):
        layer = bnb.nn.Linear4bit(
            IN, OUT, bias=False, compute_dtype=dtype, quant_type=kind, compress_statistics=nested
        )
        layer.load_state_dict(linear(dtype).state_dict())
        layer = layer.to("cpu")
        state = layer.weight.quant_state
        weight = bnb.functional.dequantize_4bit(layer.weight.data, state)
        yield f"bitsandbytes {kind}{' nested' * nested}", layer, weight
    layer = bnb.nn.Linear8bitLt(IN, OUT, bias=False, has_fp16_weights=False, threshold=0)
    layer.load_state_dict(linear(dtype).state_dict())
    layer = layer.to("cpu")
    weight = layer.weight.data.float() * layer.weight.SCB.view(-1, 1) / 127
    yield "bitsandbytes int8", layer, weight


def torchao_layers(dtype: torch.dtype) -> Iterator[tuple[str, nn.Module, torch.Tensor]]:
    import torchao.quantization as ao

    int4 = {"weight_dtype": torch.int4, "granularity": ao.PerGroup(32)}
    for name, config in (
        ("int8", ao.Int8WeightOnlyConfig()),
        ("fp8", ao.Float8WeightOnlyConfig()),
        ("int4", ao.IntxWeightOnlyConfig(**int4)),
        ("int8 dynamic", ao.Int8DynamicActivationInt8WeightConfig()),
    ):
        model = nn.Sequential(linear(dtype))
        ao.quantize_(model, config)
        weight: Any = model[0].weight
        exact = weight.qdata.float() * weight.scale.float() if "int8" in name else None
        yield f"torchao {name}", model[0], weight.dequantize() if exact is None else exact


def quanto_layers(dtype: torch.dtype) -> Iterator[tuple[str, nn.Module, torch.Tensor]]:
    import optimum.quanto as quanto

    for kind in ("qint8", "qfloat8", "qint4", "qint2"):
        model = nn.Sequential(linear(dtype))
        quanto.quantize(model, weights=getattr(quanto, kind))
        quanto.freeze(model)
        weight: Any = model[0].weight
        exact = weight._data.float() * weight._scale.float() if kind == "qint8" else None
        yield f"quanto {kind}", model[0], weight.dequantize() if exact is None else exact


Kernel = Callable[[torch.Tensor], torch.Tensor]


def dynamic(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """torchao's activations: its scale is of the dtype of x."""
    scale = (x.abs().amax(-1, keepdim=True) / 127.5).float()
    return (x.float() * (1 / scale)).round().clamp(-128, 127), scale


def product(weight: torch.Tensor, name: str, parts: int = 1, wide: Any = torch.float32) -> Kernel:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        codes, scale = dynamic(x) if "dynamic" in name else (x, torch.tensor(1.0))
        pairs = zip(codes.to(wide).chunk(parts, 1), weight.to(wide).chunk(parts, 1), strict=True)
        return (sum(a @ b.mT for a, b in reversed(list(pairs))) * scale).to(x.dtype)

    return kernel


def right(weight: torch.Tensor, name: str) -> Iterator[tuple[str, Kernel]]:
    yield "float32", product(weight, name)
    yield "float32, four parts", product(weight, name, 4)
    yield "float64", product(weight, name, wide=torch.float64)


def wrong(weight: torch.Tensor, name: str) -> Iterator[tuple[str, Kernel]]:
    largest = weight.abs().amax(1)
    edits: dict[str, Callable[[torch.Tensor], Any]] = {
        "the scale of the next channel": lambda w: w[5].mul_(largest[6] / largest[5]),
        "a group 15 % large": lambda w: w[:, 32:64].mul_(1.15),
        "the last column dropped": lambda w: w[:, -1].zero_(),
        "one code": lambda w: w[3, 7].copy_(w[3, 8] if w[3, 8] != w[3, 7] else -w[3, 7]),
        "codes of pairs exchanged": lambda w: w.copy_(w.view(OUT, -1, 2).flip(-1).view(OUT, IN)),
    }
    for what, edit in edits.items():
        edited = weight.float().clone()
        edit(edited)
        yield what, product(edited, name)


def status(kernel: Kernel, layer: nn.Module, x: torch.Tensor) -> str:
    try:
        return check(kernel, layer, (x,), explain=False).status
    except WrongError as error:
        return error.verdict.status


def main() -> int:
    warnings.filterwarnings("ignore")
    bad = 0
    for dtype in (torch.float32, torch.bfloat16):
        for layers in (bitsandbytes_layers, torchao_layers, quanto_layers):
            for name, layer, weight in layers(dtype):
                x = torch.randn(TOKENS, IN, generator=torch.Generator().manual_seed(77)).to(dtype)
                weight = weight.detach().float()
                rights = [status(k, layer, x) for k in (layer, *dict(right(weight, name)).values())]
                found = {what: status(k, layer, x) for what, k in wrong(weight, name)}
                seen = (name, dtype) not in NOT_SEEN
                missed = [
                    what for what, it in found.items() if it != ("fail" if seen else "unsupported")
                ]
                fine = all(it == ("pass" if seen else "unsupported") for it in rights)
                bad += not fine or bool(missed)
                words = f"{rights.count('pass')} of {len(rights)} right pass"
                words += (
                    f", {len(found) - len(missed)} of {len(found)} wrong fail"
                    if seen
                    else ", not seen"
                )
                print(
                    f"{name:24}{str(dtype)[6:]:10}{words}{'   <<<' if not fine or missed else ''}",
                    *missed,
                )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
