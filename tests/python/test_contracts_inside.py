"""What happens inside of a kernel: judged by it where it is asked for, wrong where it is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from checked import normal, wrong
from torch.nn import functional

from python_inspector import check
from python_inspector.errors import RecordError
from python_inspector.format.contract_words import INSIDE, asked
from python_inspector.trace import products

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

BF16 = torch.bfloat16
Kernel = Callable[..., torch.Tensor]


def reduced(x: torch.Tensor, w: torch.Tensor, gain: float = 1.0) -> torch.Tensor:
    """A row-parallel linear of eight devices, all-reduced in bf16."""
    parts = zip(x.chunk(8, -1), w.chunk(8, -1), strict=True)
    total = torch.zeros(*x.shape[:-1], len(w), dtype=BF16)
    for a, b in parts:
        total = total + a @ b.T
    return (total * gain).to(BF16)


def accumulated(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float = 16**-0.5
) -> torch.Tensor:
    """Attention whose output accumulates in bf16, key by key."""
    weights = torch.softmax(q.float() @ k.float().mT * scale, -1)
    out = torch.zeros_like(v[..., : q.shape[-2], :])
    for i in range(k.shape[-2]):
        out = (out.float() + weights[..., i : i + 1] * v[..., i : i + 1, :].float()).to(BF16)
    return out


def delta(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, rounds: bool = False
) -> torch.Tensor:
    """A linear attention that the code keeps in float32, a kernel in blocks of 16 bits."""

    def narrow(t: torch.Tensor) -> torch.Tensor:
        return t.to(BF16).float() if rounds else t

    q, k, v = (t.float() for t in (q, k, v))
    scores = torch.tril(torch.bmm(q, k.mT)) * torch.linspace(1, 0.5, k.shape[-2], device=q.device)
    solved = torch.bmm(narrow(scores), narrow(v))
    return torch.bmm(narrow(scores.mT), narrow(solved)).to(BF16)


def operands(name: str) -> tuple[torch.Tensor, ...]:
    if name == "products-tf32":
        return normal(24, 64), normal(64, 40, seed=6)
    if name == "reduce-16":
        return normal(6, 512, dtype=BF16), normal(64, 512, dtype=BF16, seed=2) / 16
    shape = (2, 24, 16) if name == "p-16" else (1, 2, 24, 16)
    return tuple(normal(*shape, dtype=BF16, seed=s) for s in (1, 2, 3))


CASES: dict[str, tuple[Kernel, Kernel, Kernel]] = {
    "reduce-16": (functional.linear, reduced, lambda x, w: reduced(x, w, 1.02)),
    "sums-16": (
        functional.scaled_dot_product_attention,
        accumulated,
        lambda q, k, v: accumulated(q, k, v, 0.35),
    ),
    "p-16": (
        delta,
        lambda q, k, v: delta(q, k, v, rounds=True),
        lambda q, k, v: delta(q, k, v.roll(1, 1), rounds=True),
    ),
    "products-tf32": (
        torch.matmul,
        lambda a, b: products.cut_to_tf32(a) @ products.cut_to_tf32(b),
        lambda a, b: 1.02 * (products.rounded_to_tf32(a) @ products.rounded_to_tf32(b)),
    ),
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_is_asked_for_is_right_and_nothing_else(name: str) -> None:
    like, kernel, bad = CASES[name]
    inputs = operands(name)
    wrong(kernel, like, inputs)
    check(kernel, like=like, inputs=inputs, contract=name)
    check(like, like=like, inputs=inputs, contract=f"inferred+{name}")
    wrong(bad, like, inputs, contract=name)


def test_how_a_contract_is_spelled() -> None:
    assert asked(None).inside == frozenset()
    assert asked("inferred").rounding is None
    both = asked("eager+sums-16+p-16")
    assert (both.rounding, both.inside) == ("eager", {"sums-16", "p-16"})
    for text in ("sums16", "eager+fused", "", "eager,p-16"):
        with pytest.raises(ValueError, match="one of inferred, eager, fused, and any of sums-16"):
            asked(text)
    with pytest.raises(RecordError, match="no operand of linear is bfloat16 or float16"):
        x, w = (t.float() for t in operands("reduce-16"))
        check(functional.linear, like=functional.linear, inputs=(x, w), contract="reduce-16")


def test_rows_that_are_left_out() -> None:
    x, valid = normal(3, 4, 32), torch.ones(3, 4, dtype=torch.bool)
    valid[1, :3] = valid[2] = False

    def off(x: torch.Tensor, row: int) -> torch.Tensor:
        y = x.tanh()
        y[row, 0] = 7.0
        return y

    verdict = check(lambda x: off(x, 2), like=torch.tanh, inputs=x, valid=valid)
    assert "160 of 160 elements judged" in "\n".join(verdict.figures["details"])
    wrong(lambda x: off(x, 0), torch.tanh, x, valid=valid)
    wrong(lambda x: off(x, 2), torch.tanh, x)
    few = torch.zeros(3, 4, dtype=torch.bool)
    few[0, 0] = True
    assert check(torch.tanh, like=torch.tanh, inputs=x, valid=few).passed
    with pytest.raises(RecordError, match=r"valid is \[4, 3\], which no output begins with"):
        check(torch.tanh, like=torch.tanh, inputs=x, valid=valid.T)
    with pytest.raises(RecordError, match=r"valid is torch.float32 \[2\], expected bools"):
        check(torch.tanh, like=torch.tanh, inputs=x, valid=torch.ones(2))
