"""Right kernels of engines pass without a word from the user; the same with a mistake fail.

An engine that is not installed is skipped by name. `python -m tests.engines.table` prints what is
asserted here, with figures.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import python_inspector

from . import engines, measured, wrong_rounding
from .kernel import Kernel
from .recordings import ROOT

DTYPES = ("bf16", "f16", "f32")  # of the outermost loop: recordings of a dtype stay in memory
LOADED = {module: engines.load(module) for module in engines.MODULES}
KERNELS = [kernel for kernels, _ in LOADED.values() for kernel in kernels if kernel.of_inputs]


def name(kernel: Kernel) -> str:
    return f"{kernel.engine}-{kernel.block}-{kernel.name}".replace(" ", "_")


def of_kernels(kernels: list[Kernel]) -> Any:
    pairs = [(dtype, kernel) for dtype in DTYPES for kernel in kernels]
    ids = [f"{dtype}-{name(kernel)}" for dtype, kernel in pairs]
    return pytest.mark.parametrize(("dtype", "kernel"), pairs, ids=ids)


@pytest.mark.parametrize("module", engines.MODULES)
def test_the_engine_is_here(module: str) -> None:
    kernels, reason = LOADED[module]
    if reason:
        pytest.skip(reason)
    assert kernels


def judged(kernel: Kernel, dtype: str) -> dict[str, measured.Right]:
    found, unsupported = measured.right(kernel, dtype)
    if not found:
        pytest.skip("; ".join(unsupported) or f"no {kernel.block} in {dtype}")
    return found


@of_kernels(KERNELS)
def test_right_kernels_pass(dtype: str, kernel: Kernel) -> None:
    """Every checkpoint of recordings in which the kernel is no less accurate than the reference."""
    alarms = [
        f"{recording}: {each.failed} of {each.judged} fail at {each.ratio:.2f} of the reference's "
        f"error: {next(iter(each.reasons))}; {next(iter(each.diagnoses))}"
        for recording, each in judged(kernel, dtype).items()
        if each.as_accurate and each.failed
    ]
    assert not alarms, "\n".join(alarms)


@of_kernels(KERNELS)
def test_a_kernel_that_rounds_more_is_told_where(dtype: str, kernel: Kernel) -> None:
    """It may fail; then the verdict names the rounding points that its bits follow."""
    for recording, each in judged(kernel, dtype).items():
        if not each.as_accurate and each.failed and dtype != "f32":
            told = [words for words in each.diagnoses if words and "like none" not in words]
            assert told, f"{recording}: {next(iter(each.reasons))}; {next(iter(each.diagnoses))}"


@of_kernels(KERNELS)
def test_mistakes_are_seen(dtype: str, kernel: Kernel) -> None:
    """Each mistake fails where it changes bits: of checkpoints that show it, in one at least."""
    judged(kernel, dtype)
    unseen = [
        f"{mistake}: {count.judged} checkpoints pass ({count.bit_equal} more are bit-equal)"
        for mistake, count in measured.mistakes(kernel, dtype).items()
        if count.judged and not count.failed
    ]
    assert not unseen, "\n".join(unseen)


@of_kernels(wrong_rounding.kernels())
def test_less_accurate_kernels_fail(dtype: str, kernel: Kernel) -> None:
    """In one recording at least, and in each of the long ones that has the block."""
    found = judged(kernel, dtype)
    assert any(each.failed for each in found.values())
    for recording, each in found.items():
        if "-long-" in recording:
            assert each.failed, f"{recording}: all {each.judged} pass at {each.ratio:.2f}"


def test_through_verify() -> None:
    """What a user writes: a function, a recording, a block."""

    def rms_norm(inputs: Any, weights: Any, params: Any) -> torch.Tensor:
        x = inputs["x"].float()
        root = torch.rsqrt(x.square().mean(-1, keepdim=True) + params["eps"])
        weight = params["weight_offset"] + weights["weight"].float()
        return (x * root * weight).to(inputs["x"].dtype)

    for model in ("llama-a1", "gemma2-a4"):
        folder = ROOT / "fixtures" / model / "decode-bf16"
        verdicts = python_inspector.verify(rms_norm, folder, block="rms_norm")
        failed = [verdict for verdict in verdicts if not verdict.passed]
        assert not failed, f"{len(failed)} of {len(verdicts)}: {failed[0].reason}"
