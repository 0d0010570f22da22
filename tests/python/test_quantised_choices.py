"""Casts to 8 bits and roundings to whole numbers: open where another rounding falls otherwise."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checked import normal, wrong

from python_inspector import check
from python_inspector.recorder.own_codes import WORDS

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

FP8 = torch.float8_e4m3fn
Codes = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def divided(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x / scale


def multiplied(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x * (1 / scale)


TIES = {
    448.0: [start * 17 / 16 + k * start / 8 for start in (64, 128, 256) for k in range(6)],
    127.0: [k + 0.5 for k in range(30, 48)],
}


def operands(rows: int, columns: int, most: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations some of whose quotients by the scale of their row are next to a tie; weights."""
    x = normal(rows, columns).clamp(-2, 2)
    for row in range(rows):
        x[row, 0] = 2.9 + row / 7
        x[row, 1:19] = x[row, 0] / most * torch.tensor(TIES[most])
    return x, (normal(24, columns, seed=2) * most / 4).clamp(-most, most).round()


def of_8_bits(
    x: torch.Tensor, w: torch.Tensor, scaled: Codes, most: float, code: Any, gain: float = 1
) -> torch.Tensor:
    scale = x.float().abs().amax(-1, keepdim=True) / most
    codes = code(scaled(x.float(), scale)).float()
    return (codes @ w.T * scale * gain / most).to(x.dtype)


KINDS: dict[str, tuple[float, Any]] = {
    "fp8": (448.0, lambda q: q.to(FP8)),
    "int8": (127.0, lambda q: q.round().clamp(-128, 127).to(torch.int8)),
    "round": (127.0, torch.round),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_scale_may_be_applied_as_a_reciprocal(kind: str, dtype: torch.dtype) -> None:
    most, code = KINDS[kind]
    x, w = operands(4, 640, most)
    x = x.to(dtype)

    def like(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return of_8_bits(x, w, divided, most, code)

    check(like, like, inputs=(x, w))
    check(lambda x, w: of_8_bits(x, w, multiplied, most, code), like, inputs=(x, w))
    wrong(lambda x, w: of_8_bits(x, w, divided, most, code, gain=1.05), like, (x, w))
    if kind == "fp8":
        coarser = torch.float8_e5m2
        wrong(lambda x, w: of_8_bits(x, w, divided, most, lambda q: q.to(coarser)), like, (x, w))
    else:
        wrong(lambda x, w: of_8_bits(x, w, divided, most - 1, code), like, (x, w))
        wrong(lambda x, w: of_8_bits(x, w, divided, most, torch.floor), like, (x, w))


@pytest.mark.parametrize(("kind", "as_stored"), [("fp8", torch.float32), ("int8", torch.int32)])
def test_codes_themselves_are_open_at_ties_and_nowhere_else(kind: str, as_stored: Any) -> None:
    most, code = KINDS[kind]

    def coded(scaled: Codes) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: code(scaled(x, x.abs().amax(-1, keepdim=True) / most)).to(as_stored)

    like, kernel = coded(divided), coded(multiplied)
    x, _ = operands(4, 640, most)
    assert not torch.equal(like(x), kernel(x))
    verdict = check(kernel, like, inputs=x)
    assert "of 2560 elements judged" in "\n".join(verdict.figures["details"])

    def off(x: torch.Tensor, column: int) -> torch.Tensor:
        codes = like(x).clone()
        codes[:, column] += codes[:, column].abs() // 8 + 1
        return codes

    wrong(lambda x: off(x, 30), like, x)
    if kind == "int8":
        wrong(lambda x: off(x, 5), like, x)


def test_what_is_not_computed_is_rounded_one_way() -> None:
    x = torch.tensor([[0.5, 1.5, 2.5, 3.5] * 4]) + torch.arange(16)
    check(torch.round, torch.round, inputs=x)
    wrong(lambda x: (x + 0.5).floor(), torch.round, x)
    wrong(lambda x: (x + 0.5).floor().to(torch.int32), lambda x: x.round().to(torch.int32), x)


def few_ties(rows: int, most: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A small call with two quotients of its first row next to a tie."""
    x, w = operands(rows, 64, most)
    x[:, 1:19] = normal(rows, 18, seed=5).clamp(-2, 2)
    x[0, 1:3] = x[0, 0] / most * torch.tensor(TIES[most][:2])
    return x, w


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_small_call_is_held_to_the_codes_that_it_has(
    kind: str, dtype: torch.dtype, rows: int
) -> None:
    """Its open codes move simulated kernels as far as a whole row that is not rounded is off."""
    most, code = KINDS[kind]
    x, w = few_ties(rows, most)
    x = x.to(dtype)

    def like(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return of_8_bits(x, w, divided, most, code)

    def with_codes(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda x, w: of_8_bits(x, w, divided, most, lambda q: change(code(q).float()))

    check(lambda x, w: of_8_bits(x, w, multiplied, most, code), like, inputs=(x, w))
    wrong(lambda x, w: of_8_bits(x, w, divided, most, lambda q: q), like, (x, w))
    wrong(with_codes(lambda q: q.index_fill(1, torch.tensor([40]), 0)), like, (x, w))
    if dtype == torch.float32:
        for open_codes in ([1], [2], [1, 2]):
            move = torch.zeros(64)
            move[open_codes] = 1

            def moved(q: torch.Tensor, move: torch.Tensor = move) -> torch.Tensor:
                scaled = x / (x.abs().amax(-1, keepdim=True) / most)
                other = code(scaled * (1 + 1e-6)).float() + code(scaled * (1 - 1e-6)).float() - q
                return torch.where(move[None] > 0, other, q)

            assert not torch.equal(with_codes(moved)(x, w), like(x, w))
            check(with_codes(moved), like, inputs=(x, w))


def test_a_case_that_fails_by_its_codes_fails_when_it_is_judged_again(
    harness: Path, tmp_path: Path
) -> None:
    """The folder has the codes that the verdict was by."""
    x, w = few_ties(3, 127)

    def like(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return of_8_bits(x, w, divided, 127, torch.round)

    def unrounded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return of_8_bits(x, w, divided, 127, lambda q: q)

    verdict = wrong(unrounded, like, (x, w), keep=tmp_path / "case")
    assert WORDS in verdict.reason
    words = shlex.split(verdict.replay)[1:]
    done = subprocess.run([harness, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
