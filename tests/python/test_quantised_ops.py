"""What plumbline.quantised and torch give for codes and for quantisers, bit for bit:
tests/kernels/quantised_weights.inc and quantisers.inc say it, to which
tests/kernels/quantised_test.cpp holds every device. Run as a program it writes these files.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from python_inspector.cases.op_recordings import OpRecording
from python_inspector.cases.quantised_ops import (
    OPERANDS,
    OpCall,
    Size,
    named,
    quantised_calls,
    weight,
)
from python_inspector.quantised import FORMATS, dequantize
from python_inspector.quantised.layouts import LAYOUTS, ROWS

KERNELS = Path(__file__).parents[1] / "kernels"
_NAMES = {
    torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int8: "i8",
    torch.uint8: "u8", torch.int32: "i32", torch.float8_e4m3fn: "f8_e4m3",
    torch.float8_e5m2: "f8_e5m2",
}  # fmt: skip


def stored(t: torch.Tensor | None) -> str:
    """A tensor as the table has it: dtype, shape, bytes."""
    if t is None:
        return "{}"
    shape = ", ".join(map(str, t.shape))
    bytes_ = t.contiguous().view(-1).view(torch.uint8).numpy().tobytes().hex()
    return f'{{"{_NAMES[t.dtype]}", {{{shape}}}, "{bytes_}"}}'


def weights() -> Iterator[tuple[str, tuple[int, int] | None, dict[str, torch.Tensor]]]:
    """A layout, how many rows and columns share a scale, and its tensors, small ones."""
    for number, name in enumerate(FORMATS):
        engine = torch.Generator().manual_seed(number)
        for scales in (torch.float32, torch.float16, torch.bfloat16):
            size = Size(3, 24, (2 if scales != torch.bfloat16 else 1, 16), 1)
            given, group = weight(name, scales, engine, size)
            of = LAYOUTS.get(name)
            if of and of.exponents:
                given["scales"][0, 0], given["scales"][-1, -1] = 255, 0  # NaN, the least
            if of and of.global_scale:
                given["scales"] = given["scales"].to(torch.float8_e4m3fn)
                given["global_scale"] = torch.tensor([2.7])
            if scales == torch.float16:
                given.pop("group_index", None)
            yield name, group, given
            if not of or of.flat or of.global_scale:
                break


def quantisers() -> Iterator[str]:
    """Rows of the table: a rule, and what torch makes of values."""
    engine = torch.Generator().manual_seed(42)
    for number, dtype in enumerate((torch.float32, torch.bfloat16, torch.float16)):
        x = torch.randn(2, 12, generator=engine) * torch.tensor([[1.0], [0.01]])
        x[0, :5] = torch.tensor([0.0, -0.0, 0.5, 1.5, -2.5])
        x[1, 8:] = 0
        x = x.to(dtype)
        for group in ((0, 0), (1, 8)):
            parts = [p.split(group[1] or 12, 1) for p in x.float().split(group[0] or 2)]
            for codes, divisor in (
                (torch.int8, 127.0), (torch.int8, 127.5), (torch.float8_e4m3fn, 448.0),
                (torch.float8_e5m2, 57344.0),
            ):  # fmt: skip
                stored_as = (torch.float32, torch.bfloat16, torch.float16)[number]
                if stored_as is torch.float16 and divisor > 448:
                    continue  # scales would be subnormal
                yield _quantiser("symmetric", x, group, divisor, parts, codes, stored_as)
            for codes in (torch.int8, torch.uint8):
                yield _quantiser("asymmetric", x, group, 255.0, parts, codes, torch.float32)
            for codes in (torch.float8_e4m3fn, torch.float8_e5m2):
                yield _quantiser("shared_exponent", x, group, 1.0, parts, codes, torch.uint8)


def _codes(
    rule: str, v: torch.Tensor, divisor: float, codes: torch.dtype, scales: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of one group: codes, scale, zero, as formulas say them."""
    limits = torch.finfo(codes) if codes.is_floating_point else torch.iinfo(codes)
    zero = torch.zeros(())
    if rule == "shared_exponent":
        most = {torch.float8_e4m3fn: 8, torch.float8_e5m2: 15}[codes]
        exponent = torch.frexp(v.abs().amax())[1] - 1 - most
        if v.abs().amax() == 0:
            exponent = torch.tensor(-127)
        code = (v / torch.exp2(exponent.float())).clamp(limits.min, limits.max).to(codes)
        return code, (exponent + 127).to(torch.uint8), zero
    low, high = v.amin().clamp(max=0), v.amax().clamp(min=0)
    scale = ((high - low) if rule == "asymmetric" else v.abs().amax()) / divisor
    scale = scale.to(scales)
    if scale == 0:
        zero = torch.tensor(float(limits.min if rule == "asymmetric" else 0))
        return zero.expand(v.shape).to(codes), scale, zero
    over = v / scale.float()
    if rule == "asymmetric":
        zero = (limits.min - low / scale).round().clamp(limits.min, limits.max)
    whole = over if codes.is_floating_point else over.round() + zero
    return whole.clamp(limits.min, limits.max).to(codes), scale, zero


def _quantiser(
    rule: str,
    x: torch.Tensor,
    group: tuple[int, int],
    divisor: float,
    parts: list[tuple[torch.Tensor, ...]],
    codes: torch.dtype,
    scales: torch.dtype,
) -> str:
    made = [[_codes(rule, v, divisor, codes, scales) for v in row] for row in parts]
    all_codes = torch.cat([torch.cat([it[0].float() for it in row], 1) for row in made]).to(codes)
    of_groups = [torch.stack([torch.stack([it[i] for it in row]) for row in made]) for i in (1, 2)]
    zeros = of_groups[1].to(codes) if rule == "asymmetric" else None
    given = ", ".join(stored(t) for t in (x, all_codes, of_groups[0], zeros))
    return f"{{ScaleRule::{rule}, {{{group[0]}, {group[1]}}}, {divisor}, {given}}},"


def tables() -> dict[str, str]:
    """By file."""
    of_weights = ["// Codes, and what plumbline.quantised makes of them."]
    for name, group, given in weights():
        out = dequantize(name, *given.values(), group=group)
        operands = ", ".join(map(stored, [out, *map(given.get, OPERANDS)]))
        rows, columns = group or (0, 0)
        of_weights.append(f'{{"{name}", {{{rows}, {columns}}}, {operands}}},')
    of_values = [
        "// Values, and the codes, scales and zeros that torch makes of them.",
        *quantisers(),
    ]
    written = "// Cases of tests/python/test_quantised_ops.py, which wrote it."
    return {
        "quantised_weights.inc": "\n".join([written, *of_weights]) + "\n",
        "quantisers.inc": "\n".join([written, *of_values]) + "\n",
    }


def test_the_tables_say_what_the_decoders_and_torch_give() -> None:
    for file, text in tables().items():
        assert (KERNELS / file).read_text() == text


def test_every_layout_is_in_the_table() -> None:
    text = (KERNELS / "quantised_weights.inc").read_text()
    assert [name for name in FORMATS if f'"{name}"' not in text] == []


def test_every_row_of_the_table_of_devices_is_read() -> None:
    """With all its fields: of those that a layout gained here nothing is known."""
    text = (KERNELS.parents[1] / "kernels" / "ops" / "layout_list.h").read_text()
    names = re.findall(r'^PLUMB_LAYOUT\(\w+, "(.*?)"', text, re.MULTILINE)
    assert list(FORMATS) == names and len(names) == text.count("\nPLUMB_LAYOUT(")
    known = {"codes", "places", "packed_axis", "by_input", "offset", "grid", "zeros", "zeros_axis",
             "zeros_less_one", "exponents", "has_global_scale", "has_group_index",
             "of_several_rows", "flat", "block"}  # fmt: skip
    of_blocks = {"bytes", "codes", "group", "low", "high", "scale", "least", "parts", "parts_at"}
    assert {field for row in ROWS.values() for field in row} == known
    assert {field for row in ROWS.values() for field in row.get("block", ())} == of_blocks


def _swapped(codes: torch.Tensor) -> torch.Tensor:
    """The halves of each byte."""
    bytes_ = codes.contiguous().view(torch.uint8)
    return ((bytes_ << 4) | (bytes_ >> 4)).view(codes.dtype)


def _one_more(words: torch.Tensor) -> torch.Tensor:
    """Each nibble, around 15."""
    bytes_ = words.contiguous().view(torch.uint8)
    return (((bytes_ + 16) & 0xF0) | ((bytes_ + 1) & 0x0F)).view(words.dtype)


FAULTS: dict[str, tuple[str, str, str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "nibbles swapped": ("int4", "int4", "codes", _swapped),
    "nibbles of bytes swapped": ("mxfp4", "mxfp4", "codes", _swapped),
    "high nibble first": ("nf4", "nf4", "codes", _swapped),
    "zero off by one": ("int4-zero", "int4-zero", "zeros", _one_more),
    "zero off by one, AWQ": ("awq", "awq", "zeros", _one_more),
    "scale of the group before": ("int4", "int4", "scales", lambda t: t.roll(1, 1)),
    "scale of the channel before": ("gptq", "gptq", "scales", lambda t: t.roll(1, 1)),
    "GPTQ v1 read as v2": ("gptq", "gptq-v2", "", lambda t: t),
    "GPTQ v2 read as v1": ("gptq-v2", "gptq", "", lambda t: t),
    "g_idx ignored": ("gptq", "gptq", "group_index", lambda t: torch.arange(len(t)).int() // 32),
    "block scales by columns": ("fp8", "fp8", "scales", lambda t: t.mT.reshape(t.shape)),
    "shared exponent off by one": ("mxfp8", "mxfp8", "scales", lambda t: t + 1),
    "global scale ignored": ("nvfp4", "nvfp4", "global_scale", torch.ones_like),
    "codes as uint8": ("int8", "int8", "codes", lambda t: t.view(torch.uint8)),
    "high bits ignored": ("q5_0", "q5_0", "codes", lambda t: _without(t, 22, 2, 6)),
    "halves of a block swapped": ("q4_k", "q4_k", "codes", lambda t: t.roll(144, 1)),
}
"""The layout, what it is read as, and how one of its tensors is read: what a kernel that is wrong
so gives is recorded as right, and the native ops, which are not, have to fail."""


def _without(blocks: torch.Tensor, size: int, first: int, last: int) -> torch.Tensor:
    out = blocks.clone()
    out.view(len(out), -1, size)[:, :, first:last] = 0
    return out


def _faulty(call: OpCall, fault: str) -> Callable[..., torch.Tensor]:
    _, read_as, name, change = FAULTS[fault]
    at = list(call.operands).index(name) if name else 0
    of = next(
        it for it in quantised_calls(torch.float32, 0) if (it.op, it.case) == (call.op, read_as)
    )

    def like(*tensors: torch.Tensor) -> torch.Tensor:
        read = [change(t) if name and i == at else t for i, t in enumerate(tensors)]
        return of.like(*read)

    return named(call.operands, like)


@pytest.mark.host
@pytest.mark.parametrize("device", ("cpu", "emu:32"))
def test_a_wrong_reading_fails(harness: Path, device: str, tmp_path: Path) -> None:
    recording = OpRecording(lambda x: x, weights={})
    recording.name = "wrong"
    for call in quantised_calls(torch.float32, 0):
        for fault, (layout, *_) in FAULTS.items():
            if layout == call.case:
                params = call.params
                one = recording.of(call.op, _faulty(call, fault), params, call.codes)
                one.add(((), call.operands), fault.replace(" ", "-"))
    recording.save(tmp_path / "wrong")
    out = tmp_path / "results.jsonl"
    subprocess.run(
        [harness, "--fixture", tmp_path / "wrong", "--device", device, "--json", out],
        capture_output=True,
    )
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    found = {row["checkpoint"]: row["status"] for row in rows if "checkpoint" in row}
    assert len(found) == 2 * len(FAULTS)
    assert {id for id, status in found.items() if status != "fail"} == set()


if __name__ == "__main__":
    for file, text in tables().items():
        (KERNELS / file).write_text(text)
