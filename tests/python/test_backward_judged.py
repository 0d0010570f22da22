"""check(backward=True): how much of gradients is judged, and of what there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checked import normal

from python_inspector import UsageError, WrongError, check

pytestmark = pytest.mark.usefixtures("harness")


class Garbage(torch.autograd.Function):
    """Gives back what it is given, and a gradient that is none."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return torch.full_like(g, 777.0)


def largest(x: Any, weight: Any) -> Any:
    return (x @ weight).amax(-1)


def softmax_by_hand(x: Any, weight: Any) -> Any:
    scores = x @ weight
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("like", [largest, softmax_by_hand])
def test_a_maximum_is_where_it_is(like: Any) -> None:
    """That an element is its row's maximum is no choice within rounding."""
    inputs = (normal(8, 16), normal(16, 24, seed=2))
    verdict = check(lambda x, w: like(x.clone(), w), like, inputs, backward=True)
    assert [it["status"] for it in verdict.figures["outputs"]] == ["pass"] * 3
    with pytest.raises(WrongError):
        check(lambda x, w: like(Garbage.apply(x), w), like, inputs, backward=True)


def test_an_output_that_is_not_judged_makes_no_pass() -> None:
    """The bound of the clamp is within rounding of some products of the first row, on which the
    scale depends: with others that row has a cotangent of 0."""

    def clamped(x: Any, weight: Any, scale: Any) -> Any:
        return ((x @ weight) * scale).clamp(-1, 1)

    bf16 = torch.bfloat16
    x, weight = normal(8, 16, dtype=bf16), normal(16, 24, seed=2, dtype=bf16)
    for rows, status, said in (
        (1, "blind", "d_scale: 0 of 1 elements judged"),
        (8, "fail", "d_scale: tensor error"),
    ):
        with pytest.raises(WrongError) as raised:
            check(
                lambda x, w, s: clamped(x, w, Garbage.apply(s)), clamped,
                (x[:rows], weight, torch.tensor(0.3, dtype=bf16)), backward=True,
            )  # fmt: skip
        assert raised.value.verdict.status == status
        assert said in raised.value.verdict.reason


def test_a_result_that_is_missing_is_named() -> None:
    def both(x: Any) -> Any:
        return x * 2, x * 3

    with pytest.raises(UsageError, match=r"the kernel returns no out\.1, through which gradients"):
        check(lambda x: x * 2, both, (normal(4, 8),), backward=True)


@pytest.mark.parametrize("name", ["mask_token", "cos_scale", "position_embeddings"])
def test_what_is_learnt_has_a_gradient_whatever_its_name(name: str) -> None:
    code = (
        f"def like(x, {name}): return x * {name}\ndef wrong(x, {name}): return x * {name}.detach()"
    )
    made: dict[str, Any] = {}
    exec(code, made)
    with pytest.raises(WrongError, match=f"d_{name}"):
        check(made["wrong"], made["like"], (normal(4, 8), normal(8, seed=2)), backward=True)


@pytest.mark.parametrize("shape", [(4, 3, 5, 5), (16, 8)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_batch_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    axes = [0, *range(2, len(shape))]
    row = [1, -1] + [1] * (len(shape) - 2)

    def like(x: Any, weight: Any, bias: Any) -> Any:
        return torch.nn.functional.batch_norm(x, None, None, weight, bias, training=True)

    def by_hand(x: Any, weight: Any, bias: Any) -> Any:
        v = x.float()
        v = v - v.mean(axes, keepdim=True)
        v = v * torch.rsqrt(v.square().mean(axes, keepdim=True) + 1e-5)
        return (v * weight.float().view(row) + bias.float().view(row)).to(x.dtype)

    def without_variance(x: Any, weight: Any, bias: Any) -> Any:
        v = x.float()
        v = v - v.mean(axes, keepdim=True)
        v = v * torch.rsqrt(v.square().mean(axes, keepdim=True) + 1e-5).detach()
        return (v * weight.float().view(row) + bias.float().view(row)).to(x.dtype)

    size = shape[1]
    inputs = (normal(*shape, dtype=dtype), *(normal(size, dtype=dtype, seed=it) for it in (2, 3)))
    assert check(by_hand, like, inputs, backward=True).passed
    with pytest.raises(WrongError, match="d_x"):
        check(without_variance, like, inputs, backward=True)


def test_batch_norm_by_running_statistics() -> None:
    module = torch.nn.BatchNorm2d(3).eval()
    module.running_mean += normal(3)  # type: ignore[operator]
    assert check(module, module, (normal(4, 3, 5, 5),), backward=True).passed


def test_statistics_that_are_arguments_have_no_gradient() -> None:
    def like(x: Any, running_mean: Any, running_var: Any) -> Any:
        return torch.nn.functional.batch_norm(x, running_mean, running_var)

    inputs = (normal(4, 3, 5, 5), normal(3), normal(3, seed=2).abs() + 0.5)
    verdict = check(like, like, inputs, backward=True)
    assert "d_running_mean (a running statistic)" in verdict.not_judged


def _normed(x: Any, weight: Any, bias: Any) -> Any:
    return torch.nn.functional.layer_norm(x, (64,), weight, bias)


def _embedded(table: Any) -> Any:
    return torch.nn.functional.embedding(torch.arange(2048) % 16, table)


def _read(x: Any) -> Any:
    return x[torch.arange(1024) % 8]


BF16 = torch.bfloat16
STORED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "layer norm": (_normed, tuple(normal(*s, dtype=BF16) for s in ((512, 64), (64,), (64,)))),
    "embedding": (_embedded, (normal(16, 32, dtype=BF16),)),
    "index": (_read, (normal(8, 32, dtype=BF16),)),
}


@pytest.mark.host  # a GPU adds them up in float32
@pytest.mark.parametrize("name", STORED)
def test_sums_in_storage_may_be_declared(name: str) -> None:
    """torch's own, on a CPU: the contract allows them, and nothing else."""
    like, inputs = STORED[name]
    asked: dict[str, Any] = {"backward": True, "explain": False}
    with pytest.raises(WrongError):
        check(like, like, inputs, **asked)
    assert check(like, like, inputs, contract="sums-16", **asked).passed

    def off(*xs: Any) -> Any:
        """Half of the last operand's gradient."""
        return like(*xs[:-1], (xs[-1] + xs[-1].detach()) / 2)

    def off_first(x: Any, *xs: Any) -> Any:
        return like(x + 0.05 * (x - x.detach()), *xs)

    for kernel in (off, off_first) if len(inputs) > 1 else (off,):
        with pytest.raises(WrongError, match="d_"):
            check(kernel, like, inputs, contract="sums-16", **asked)
