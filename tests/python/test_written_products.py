"""`p-16` and `products-tf32` where products are written as multiplications and sums, as in linear
attentions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from checked import normal, wrong

from python_inspector import check
from python_inspector.trace.multiplied import Multiplied
from python_inspector.trace.products import cut_to_tf32, rounded_to_tf32

torch.set_num_threads(1)

BF16 = torch.bfloat16
aten = torch.ops.aten
Kernel = Callable[..., Any]


def narrow(t: torch.Tensor) -> torch.Tensor:
    return t.to(BF16).float()


def scores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (t.float() for t in (q, k, v))
    weights = torch.tril((q[..., :, None, :] * k[..., None, :, :]).sum(-1)) / 8
    return (weights[..., None] * v[..., None, :, :]).sum(-2).to(BF16)


def scores_kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = torch.tril(q.float() @ k.float().mT) / 8
    return (narrow(weights) @ v.float()).to(BF16)


def decays(k: torch.Tensor) -> torch.Tensor:
    return torch.linspace(0.6, 1, k.shape[-2], device=k.device)


def recurrent(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, n: Kernel = lambda t: t) -> Any:
    """The delta rule token by token, and the state that is left; `n` rounds in kernels."""
    q, k, v = (t.float() for t in (q, k, v))
    k = k / 4
    state, out = k.new_zeros(*k.shape[:-2], k.shape[-1], v.shape[-1]), torch.zeros_like(v)
    for i, decay in enumerate(decays(k)):
        state = state * decay
        seen = (n(state) * k[..., i, :, None]).sum(-2)
        state = state + k[..., i, :, None] * n(v[..., i, None, :] - seen[..., None, :])
        out[..., i, :] = (n(state) * q[..., i, :, None]).sum(-2)
    return out.to(BF16), state


def state_in_place(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = k.float(), v.float()
    state = k.new_zeros(*k.shape[:-2], k.shape[-1], v.shape[-1])
    for i, decay in enumerate(decays(k)):
        state *= decay
        state += k[..., i, :, None] * (0.3 * v[..., i, None, :])
    return state


def state_kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """In one product of 16 bits for all tokens."""
    behind = decays(k).flip(0).cumprod(0).flip(0).roll(-1)
    behind[-1] = 1
    return k.float().mT @ narrow(0.3 * v.float() * behind[:, None])


def summed_on_the_way(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    """Linear attention as its definition has it, and the states of all tokens."""
    q, k, v = (t.float() for t in (q, k, v))
    states = (k[..., None] * (v[..., None, :] / 3).tanh()).cumsum(-3)
    return (q[..., None] * states).sum(-2).to(BF16), states


def summed_kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    weights, v = torch.tril(q.float() @ k.float().mT), narrow((v.float() / 3).tanh())
    states = torch.einsum("ts,...sk,...sv->...tkv", k.new_ones(12, 12).float().tril(), k.float(), v)
    return (narrow(weights) @ v).to(BF16), states


def rolled(kernel: Kernel) -> Kernel:
    return lambda q, k, v: kernel(q, k, v.roll(1, -2))


def enlarged(kernel: Kernel) -> Kernel:
    def larger(*inputs: torch.Tensor) -> Any:
        made = kernel(*inputs)
        return tuple(1.02 * t for t in made) if isinstance(made, tuple) else 1.02 * made

    return larger


CASES: dict[str, tuple[Kernel, Kernel, int, int]] = {
    "scores": (scores, scores_kernel, 24, 16),
    "large": (scores, scores_kernel, 130, 32),
    "recurrent": (recurrent, lambda q, k, v: recurrent(q, k, v, narrow), 12, 16),
    "state": (state_in_place, state_kernel, 12, 16),
    "cumsum": (summed_on_the_way, summed_kernel, 12, 16),
}
"""The code, a kernel of it, tokens and channels; products of the large one are never made whole."""


@pytest.mark.usefixtures("harness")
@pytest.mark.parametrize("name", CASES)
def test_their_operands_may_be_rounded_where_that_is_asked_for(name: str) -> None:
    like, kernel, tokens, channels = CASES[name]
    inputs = tuple(normal(2, 2, tokens, channels, dtype=BF16, seed=s) for s in (1, 2, 3))
    wrong(kernel, like, inputs)
    verdict = check(kernel, like=like, inputs=inputs, contract="p-16")
    assert verdict.looser == ("p-16",)
    assert check(like, like=like, inputs=inputs, contract="p-16").passed
    for bad in (rolled(kernel), enlarged(kernel)):
        wrong(bad, like, inputs, contract="p-16")


@pytest.mark.usefixtures("harness")
@pytest.mark.parametrize("seed", [30, 80, 110])
def test_a_factor_is_off_by_as_much_in_all_its_products(seed: int) -> None:
    """Errors of products that are no draws of their own: their mean shows it."""
    like, kernel, tokens, channels = CASES["cumsum"]
    shape = (2, 2, tokens, channels)
    inputs = tuple(normal(*shape, dtype=BF16, seed=seed + s) for s in (1, 2, 3))
    check(kernel, like=like, inputs=inputs, contract="p-16", explain=False)


def written(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a[..., :, None] * b).sum(-2)


def outer_sum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same, term by term."""
    out = a.new_zeros(a.shape[-2], b.shape[-1])
    for i in range(a.shape[-1]):
        out = out + a[..., i : i + 1] * b[..., i, None, :]
    return out


@pytest.mark.usefixtures("harness")
@pytest.mark.parametrize("tokens", [24, 160])  # of the larger one products are never made whole
@pytest.mark.parametrize("like", [written, outer_sum])
@pytest.mark.parametrize("narrowed", [cut_to_tf32, rounded_to_tf32])
def test_they_may_be_made_in_tf32_where_that_is_asked_for(
    narrowed: Kernel, like: Kernel, tokens: int
) -> None:
    def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = narrowed(a) @ narrowed(b)
        return made

    inputs = normal(tokens, 64), normal(64, tokens, seed=6)
    wrong(kernel, like, inputs)
    verdict = check(kernel, like=like, inputs=inputs, contract="products-tf32")
    assert verdict.looser == ("products-tf32",)
    assert check(like, like=like, inputs=inputs, contract="products-tf32").passed
    for bad in (enlarged(kernel), lambda a, b: kernel(a, b.roll(1, 0))):
        wrong(bad, like, inputs, contract="products-tf32")


def added(known: Multiplied, func: Any, *args: Any) -> tuple[int, ...]:
    return tuple(i for i, _ in known.added(func, args, {}))


def test_what_a_product_is() -> None:
    known, kinds = Multiplied(), aten.sum.dim_IntList
    x, w, row = normal(4, 6), normal(4, 6, seed=1), normal(6, seed=2)

    def mul(a: Any, b: Any) -> torch.Tensor:
        made: torch.Tensor = a * b
        known.after(aten.mul.Tensor, (a, b), made)
        return made

    plain = mul(x, w)
    assert added(known, kinds, plain, [-1]) == (0,)
    assert added(known, kinds, plain.mT[1:], [-1]) == (0,)
    assert added(known, aten.add.Tensor, x, plain) == ()  # a gate: no term of a sum over tokens
    outer = mul(row[:, None], row)
    assert added(known, aten.add.Tensor, outer, outer) == (0, 1)
    assert added(known, aten.sub_.Tensor, normal(6, 6), outer) == (1,)
    [(_, product)] = known.added(kinds, (outer, [-1]), {})
    forms: list[torch.Size] = []

    def noted(factor: torch.Tensor) -> torch.Tensor:
        forms.append(factor.shape)
        return factor

    assert torch.equal(product.changed(outer, noted), outer)
    assert forms == [(6, 1), (6,)]  # one number for each of a factor
    for other in (mul(x, x), mul(x, torch.tensor(2.0)), mul(x.to(BF16), w.to(BF16)), x):
        assert added(known, kinds, other, [-1]) == ()
    known.after(aten.add_.Tensor, (outer, row), outer.add_(row))
    assert added(known, kinds, outer, [-1]) == ()
