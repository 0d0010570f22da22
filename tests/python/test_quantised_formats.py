"""Linear layers of every format of quantised weights: right kernels pass, wrong ports of the format
fail. ci/engines --quantised compares the formats themselves with the libraries that write them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from plumbline import Prepared, UsageError, Verdict, WrongError, prepare, quantised

from python_inspector.quantised import bits, ggml
from python_inspector.quantised.layouts import LAYOUTS
from python_inspector.quantised.weights import of_groups

OUT, IN, GROUP = 48, 256, 32
Tensors = tuple[torch.Tensor, ...]
DTYPES = [torch.float32, torch.bfloat16]
ONE = "one code of all"
"""16 bits hide it where codes are of many bits."""
G = torch.Generator()


def integers(low: int, high: int, *shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=G, dtype=dtype)


def scales(*shape: int) -> torch.Tensor:
    return (torch.rand(shape, generator=G) + 0.5) * 0.01


def words(*shape: int) -> torch.Tensor:
    return integers(-(2**31), 2**31, *shape, dtype=torch.int64).int()


def blocks(layout: str) -> torch.Tensor:
    """Random codes, and scales in f16 that are numbers."""
    sizes, count = ggml.BLOCKS[layout].sizes, 2
    parts = [
        scales(OUT, count, 1).half().view(torch.uint8)
        if size == 2
        else integers(0, 256, OUT, count, size)
        for size in sizes
    ]
    return torch.cat(parts, -1).flatten(1)


def tensors(layout: str) -> Tensors:
    """A weight of the layout, drawn bit by bit."""
    G.manual_seed(len(layout))
    groups = IN // GROUP
    by_input = words(IN // 8, OUT), scales(groups, OUT).half(), words(groups, OUT // 8)
    drawn = {
        "int8": lambda: (integers(-127, 128, OUT, IN, dtype=torch.int8), scales(OUT, 1)),
        "int8-zero": lambda: (
            integers(-127, 128, OUT, IN, dtype=torch.int8),
            scales(OUT, groups),
            integers(-9, 10, OUT, groups, dtype=torch.int8),
        ),
        "fp8": lambda: (
            torch.randn(OUT, IN, generator=G).to(torch.float8_e4m3fn),
            scales(OUT // 16, IN // 64),
        ),
        "mxfp8": lambda: (
            torch.randn(OUT, IN, generator=G).to(torch.float8_e5m2),
            integers(120, 126, OUT, groups),
        ),
        "mxfp4": lambda: (integers(0, 256, OUT, IN // 2), integers(120, 126, OUT, groups)),
        "nvfp4": lambda: (
            integers(0, 256, OUT, IN // 2),
            (scales(OUT, IN // 16) * 3e4).to(torch.float8_e4m3fn),
            torch.tensor([3e4]),
        ),
        "nf4": lambda: (integers(0, 256, OUT, IN // 2), scales(OUT * IN // 64)),
        "int4": lambda: (words(OUT, IN // 8), scales(OUT, groups).bfloat16()),
        "int4-zero": lambda: (words(OUT, IN // 8), scales(OUT, groups), words(OUT // 8, groups)),
        "gptq": lambda: (*by_input, torch.arange(groups).repeat(GROUP).int()),
        "gptq-v2": lambda: by_input,
        "awq": lambda: (words(IN, OUT // 8), *by_input[1:]),
    }
    return drawn[layout]() if layout in drawn else (blocks(layout),)


def operands(layout: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    weight = tensors(layout)
    columns = quantised.dequantize(layout, *weight).shape[-1]
    return torch.randn(24, columns, generator=G).to(dtype), *weight


def product(x: torch.Tensor, weight: torch.Tensor, wide: Any = torch.float32) -> torch.Tensor:
    return (x.to(wide) @ weight.to(wide).mT).to(x.dtype)


def status(judge: Prepared, x: torch.Tensor, y: torch.Tensor) -> str:
    try:
        verdict: Verdict = judge(lambda *_: y.clone())
    except WrongError as error:
        return error.verdict.status
    return verdict.status


def exact(layout: str, weight: Tensors) -> torch.Tensor:
    return quantised.dequantize(layout, *weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", quantised.FORMATS)
def test_right_kernels(layout: str, dtype: torch.dtype) -> None:
    x, *weight = operands(layout, dtype)
    w = exact(layout, tuple(weight))
    judge = prepare(quantised.linear(layout), (x, *weight), explain=False)
    halves = zip(x.float().chunk(2, 1), w.chunk(2, 1), strict=True)
    kernels = {
        "float32": product(x, w),
        "float64": product(x, w, torch.float64),
        "rounded weight": product(x, w.to(dtype)),
        "two parts, the last first": sum(a @ b.mT for a, b in [*halves][::-1]).to(dtype),
    }
    assert {name: status(judge, x, y) for name, y in kernels.items()} == dict.fromkeys(
        kernels, "pass"
    )


def of_fields(layout: str, weight: Tensors, **other: Any) -> torch.Tensor:
    """As a port reads the bytes that takes another layout for this one."""
    of = LAYOUTS[layout]
    return of_groups(replace(of, **other), dict(zip(of.names, [*weight, None], strict=False)))


def _rolled(scales: torch.Tensor, axis: int) -> torch.Tensor:
    """As bytes where they are of 8 bits: CUDA has no roll of these."""
    if scales.itemsize > 1:
        return scales.roll(1, axis)
    return scales.view(torch.uint8).roll(1, axis).view(scales.dtype)


def faults(layout: str, weight: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    right = exact(layout, weight)
    columns = right.clone()
    columns[:, -1] = 0
    yield "the last column dropped", columns
    one = right.clone()
    at = int((right[3] != right[3, 0]).nonzero()[0])
    one[3, at] = right[3, 0]
    yield ONE, one
    if layout in ggml.BLOCKS:
        yield from faults_of_blocks(layout, weight[0])
        return
    of, at = LAYOUTS[layout], 1
    axis = 0 if of.by_input else -1
    rest = weight[2:]
    if weight[1].ndim == 2 and weight[1].shape[axis] > 1:
        yield (
            "the scale of the next group",
            exact(layout, (weight[0], _rolled(weight[at], axis), *rest)),
        )
    if weight[1].ndim == 2:
        next_channel = _rolled(weight[1], -1 if of.by_input else 0)
        yield "the scale of the next channel", exact(layout, (weight[0], next_channel, *rest))
    if of.word == 8:
        yield "nibbles exchanged", of_fields(layout, weight, high_first=not of.high_first)
    if of.word == 32:
        yield "codes from the other end", of_fields(layout, weight, order=of.order[::-1])
    if of.order != bits.LOW_FIRST:
        yield "not interleaved", of_fields(layout, weight, order=bits.LOW_FIRST)
    if of.offset:
        yield "7 for 8", of_fields(layout, weight, offset=7)
    if of.zeros is not None:
        yield (
            "zeros of the next group",
            exact(layout, (*weight[:2], weight[2].roll(1, axis), *rest[1:])),
        )
        other = not of.zeros_less_one
        yield "the other version's zeros", of_fields(layout, weight, zeros_less_one=other)
    if of.exponents:
        yield "an exponent off by one", exact(layout, (weight[0], weight[1] + 1))
    if of.global_scale is not None:
        yield "no global scale", exact(layout, (*weight[:2], torch.ones(1)))
    if layout == "gptq":
        yield "g_idx ignored", exact(layout, weight[:3])
    if layout == "fp8":
        other = weight[0].view(torch.float8_e4m3fnuz), weight[1]
        yield "e4m3fnuz", exact(layout, other)


def faults_of_blocks(layout: str, stored: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    sizes = ggml.BLOCKS[layout].sizes
    parts = list(stored.reshape(OUT, -1, sum(sizes)).split(sizes, -1))

    def of(changed: list[torch.Tensor]) -> torch.Tensor:
        return exact(layout, (torch.cat(changed, -1).flatten(1),))

    for i, size in enumerate(sizes):
        what = "scales" if size == 2 else "bytes"
        yield (
            f"{what} {i} of the next block",
            of([*parts[:i], parts[i].roll(1, 1), *parts[i + 1 :]]),
        )
        if size > 2:
            turned = (parts[i] >> 4) | (parts[i] << 4)
            yield f"nibbles of {i} exchanged", of([*parts[:i], turned, *parts[i + 1 :]])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", quantised.FORMATS)
def test_wrong_ports(layout: str, dtype: torch.dtype) -> None:
    x, *weight = operands(layout, dtype)
    judge = prepare(quantised.linear(layout), (x, *weight), explain=False)
    passed = [
        what
        for what, w in faults(layout, tuple(weight))
        if status(judge, x, product(x, w)) != "fail"
    ]
    assert passed in ([], [ONE] if dtype == torch.bfloat16 else [])


def test_there_are_faults_of_every_format() -> None:
    count = [len(list(faults(it, tensors(it)))) for it in quantised.FORMATS]
    assert min(count) >= 3 and sum(count) > 100


@pytest.mark.parametrize("layout", [it for it in LAYOUTS if LAYOUTS[it].zeros])
def test_zeros_rounded_by_themselves_are_a_recipe(layout: str) -> None:
    """tinygemm's."""
    x, *weight = operands(layout, torch.bfloat16)
    like = quantised.linear(layout, "zero")
    judge = prepare(like, (x, *weight), explain=False)
    assert status(judge, x, like(x, *weight)) == "pass"
    assert status(judge, x, product(x, exact(layout, tuple(weight)))) == "pass"


@pytest.mark.parametrize("seed", range(4))
def test_zeros_that_are_taken_off_at_the_end_are_a_recipe(seed: int) -> None:
    """They cancel where x has a mean: in float32, too."""
    _, *weight = operands("awq", torch.float32)
    G.manual_seed(seed)
    x = torch.randn(3, 256, generator=G) + 3
    given = dict(zip(LAYOUTS["awq"].names, weight, strict=True))
    codes = bits.of_words(given["qweight"], 1, LAYOUTS["awq"].order).float()
    zeros = bits.of_words(given["qzeros"], 1, LAYOUTS["awq"].order).float()
    s = given["scales"].float()
    y = taken = torch.zeros(())
    for i, part in enumerate(x.split(GROUP, 1)):
        y = y + (part @ codes[i * GROUP :][:GROUP]) * s[i]
        taken = taken + part.sum(1, keepdim=True) * (zeros[i] * s[i])
    judge = prepare(quantised.linear("awq", "factored"), (x, *weight), explain=False)
    assert status(judge, x, y - taken) == "pass"
    assert status(judge, x, y - taken * 1.001) == "fail"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layout", ["int4", "awq", "q4_k"])
def test_sums_in_16_bits_are_wrong(layout: str, dtype: torch.dtype) -> None:
    """A weight that is rounded leaves bits free; its error says how far off the right ways are."""
    x, *weight = operands(layout, dtype)
    w = exact(layout, tuple(weight))
    parts = zip(x.float().split(32, 1), w.split(32, 1), strict=True)
    y = torch.zeros(len(x), len(w), dtype=dtype)
    for a, b in parts:
        y = y + (a @ b.mT).to(dtype)
    judge = prepare(quantised.linear(layout), (x, *weight), explain=False)
    assert status(judge, x, y) == "fail"


def test_a_product_that_is_scaled_is_a_recipe() -> None:
    x, *weight = operands("int8", torch.bfloat16)
    y = (product(x, weight[0]).float() * weight[1].mT.bfloat16()).bfloat16()
    like = quantised.linear("int8", "product")
    assert status(prepare(like, (x, *weight), explain=False), x, y) == "pass"


WRONG = {
    "layout is 'q4'; known are int8, ": lambda: quantised.linear("q4"),
    "recipe is 'f32'; known are weight, ": lambda: quantised.linear("gptq", "f32"),
    "'product' is for scales of channels, not of q4_0": lambda: quantised.linear("q4_0", "product"),
    "'zero' is for layouts with zeros; int4 has none": lambda: quantised.linear("int4", "zero"),
    "gptq has the tensors qweight, scales, qzeros, g_idx: missing": lambda: quantised.dequantize(
        "gptq", torch.zeros(1, 8)
    ),
    "scale has 3 groups along axis 1 of a weight of 8: say how many rows and": (
        lambda: quantised.dequantize("int8", torch.zeros(4, 8), torch.ones(4, 3))
    ),
    "scale has 2 groups along axis 0 of a weight of 200: say how many rows and": (
        lambda: quantised.dequantize("fp8", torch.zeros(200, 256), torch.ones(2, 2))
    ),
    "scale has 2 groups along axis 0 of a weight of 8: they are of one row each": (
        lambda: quantised.dequantize("mxfp8", torch.zeros(8, 64), torch.ones(2, 8))
    ),
    "x has 9 columns, the weight of int8 has 8": lambda: quantised.linear("int8")(
        torch.zeros(3, 9), torch.zeros(4, 8), torch.ones(4, 1)
    ),
    "x is torch.int64, it is of floats": lambda: quantised.linear("int8")(
        torch.zeros(3, 8).long(), torch.zeros(4, 8), torch.ones(4, 1)
    ),
    "qweight is torch.float32; eight codes are in a torch.int32": lambda: quantised.dequantize(
        "gptq", torch.zeros(1, 8), torch.ones(1, 8), torch.zeros(1, 1).int()
    ),
    "weight_packed is torch.int8; two codes are in a torch.uint8": lambda: quantised.dequantize(
        "mxfp4", torch.zeros(1, 8, dtype=torch.int8), torch.ones(1, 1)
    ),
    "weight_global_scale has 2 elements, it is one number": lambda: quantised.dequantize(
        "nvfp4", torch.zeros(1, 8, dtype=torch.uint8), torch.ones(1, 1), torch.ones(2)
    ),
    "g_idx has 3 entries, the weight has 8 columns": lambda: quantised.dequantize(
        "gptq",
        torch.zeros(1, 8).int(),
        torch.ones(1, 8),
        torch.zeros(1, 1).int(),
        torch.zeros(3).int(),
    ),
    r"weight is torch.float32 \(2, 18\); blocks of q4_0 are torch.uint8": (
        lambda: quantised.dequantize("q4_0", torch.zeros(2, 18))
    ),
    "weight has 20 bytes a row; a block of q4_0 has 18": lambda: quantised.dequantize(
        "q4_0", torch.zeros(2, 20, dtype=torch.uint8)
    ),
    "absmax has 2 scales of 64 codes, the weight has 64 codes": lambda: quantised.dequantize(
        "nf4", torch.zeros(32, dtype=torch.uint8), torch.ones(2)
    ),
    "'product' is for scales of channels; scale has 2 groups": lambda: quantised.linear(
        "int8", "product"
    )(torch.zeros(1, 8), torch.zeros(4, 8), torch.ones(4, 2)),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_does_not_fit_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=text):
        WRONG[text]()


def test_blocks_that_the_weight_does_not_fill() -> None:
    """As DeepSeek-V3 has them: 576 rows in blocks of 128."""
    G.manual_seed(3)
    codes = torch.randn(576, 320, generator=G).to(torch.float8_e4m3fn)
    of_blocks = scales(5, 3)
    right = (
        codes.float() * of_blocks.repeat_interleave(128, 0)[:576].repeat_interleave(128, 1)[:, :320]
    )
    assert torch.equal(quantised.dequantize("fp8", codes, of_blocks, group=(128, 128)), right)
    x = torch.randn(3, 320, generator=G)
    like = quantised.linear("fp8", group=(128, 128))
    assert (
        status(prepare(like, (x, codes, of_blocks), explain=False), x, product(x, right)) == "pass"
    )


def test_words_that_codes_do_not_fill() -> None:
    """100 columns, 12 rows; bitsandbytes' weights are one column of bytes, their last block may be
    shorter."""
    G.manual_seed(4)
    codes, of_groups = words(12, 13), scales(12, 1)
    weight = (bits.of_words(codes, 1)[:, :100] - 8) * of_groups
    x = torch.randn(3, 100, generator=G)
    assert torch.equal(quantised.linear("int4", "float32")(x, codes, of_groups), product(x, weight))
    zeros = words(2, 1)
    weight = (bits.of_words(codes, 1)[:, :100] - bits.of_words(zeros, 0)[:12]) * of_groups
    y = quantised.linear("int4-zero", "float32")(x, codes, of_groups, zeros)
    assert torch.equal(y, product(x, weight))
    stored, absmax = integers(0, 256, 5 * 50, 1), scales(8)
    flat = quantised.dequantize("nf4", stored, absmax)
    assert flat.shape == (500,)
    y = quantised.linear("nf4", "float32")(x, stored, absmax)
    assert torch.equal(y, product(x, flat.reshape(5, 100)))


def test_exponents_in_their_own_dtype() -> None:
    x, codes, exponents = operands("mxfp8", torch.float32)
    own = exponents.view(torch.float8_e8m0fnu)
    right = quantised.dequantize("mxfp8", codes, exponents)
    assert torch.equal(quantised.dequantize("mxfp8", codes, own), right)
    judge = prepare(quantised.linear("mxfp8"), (x, codes, own), explain=False)
    assert status(judge, x, product(x, right)) == "pass"


def test_names_are_arguments() -> None:
    x, *weight = operands("gptq", torch.float32)
    by_name = dict(zip(quantised.names_of("gptq"), weight, strict=True))
    like = quantised.linear("gptq")
    assert torch.equal(like(x, **by_name), like(x, *weight))
