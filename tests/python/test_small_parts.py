"""Small parts of 16-bit outputs: an element far off, a channel a little off, what looks so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from checked import normal, wrong

from python_inspector import check
from python_inspector.api.verdict import Verdict

Function = Callable[..., torch.Tensor]
NARROW = [torch.bfloat16, torch.float16]


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As transformers has it: rounded before the weight."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
    return weight * y.to(x.dtype)


def norm_in_float32(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    y = x.float()
    return (weight.float() * (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6))).to(
        x.dtype
    )


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight)


def narrow(*shape: int, dtype: torch.dtype, seed: int = 5) -> torch.Tensor:
    return normal(*shape, seed=seed).to(dtype)


def channel_high(like: Function, factor: float) -> Function:
    def kernel(*inputs: torch.Tensor) -> torch.Tensor:
        y = like(*inputs)
        y[..., 3] = (y[..., 3].double() * factor).to(y.dtype)
        return y

    return kernel


def failed_gates(verdict: Verdict) -> set[str]:
    (output,) = verdict.figures["outputs"]
    return {gate["name"] for gate in output["gates"] if not gate["passed"]}


@pytest.mark.parametrize("dtype", NARROW)
def test_small_values_that_are_zeroed_are_seen(dtype: torch.dtype) -> None:
    x, weight = narrow(16, 64, dtype=dtype), 1 + 0.1 * narrow(64, dtype=dtype, seed=6)

    def kernel(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = norm(x, weight)
        return torch.where(y.abs() < 0.004, 0.0, y)

    assert 0 < (norm(x, weight).abs() < 0.004).sum() < 8
    verdict = wrong(kernel, norm, (x, weight))
    assert verdict.status == "fail"
    assert "ulp" in failed_gates(verdict)
    for right in (norm, norm_in_float32):
        assert check(right, like=norm, inputs=(x, weight)).passed


def test_one_channel_that_is_high_is_seen_over_the_tokens() -> None:
    """Where all elements are many, and those of the channel few of them."""
    x, weight = narrow(16, 32, dtype=torch.bfloat16), narrow(1024, 32, dtype=torch.bfloat16, seed=6)
    assert check(linear, like=linear, inputs=(x, weight)).passed
    verdict = wrong(channel_high(linear, 1.005), linear, (x, weight))
    assert verdict.status == "fail"
    assert "channel bits" in failed_gates(verdict)


def test_a_channel_where_roundings_matter_is_no_crowd() -> None:
    """All weights are one but for a channel's: in the others both orders give the same bits."""
    weight = torch.ones(64, dtype=torch.bfloat16)
    weight[3] = 1.7
    x = narrow(64, 64, dtype=torch.bfloat16)
    differ = norm(x, weight) != norm_in_float32(x, weight)
    assert 8 < differ[:, 3].sum() == differ.sum()
    for like, kernel in ((norm, norm_in_float32), (norm_in_float32, norm)):
        assert check(kernel, like=like, inputs=(x, weight)).passed


def test_tokens_that_are_alike_flip_together() -> None:
    """A flip in one of them is a flip in all: no crowd of channels."""
    x = narrow(1, 512, dtype=torch.bfloat16).expand(64, 512).contiguous()
    weight = narrow(512, 512, dtype=torch.bfloat16, seed=6) / 16

    def blocked(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        parts = [x[:, i : i + 8].float() @ weight[:, i : i + 8].float().T for i in range(0, 512, 8)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total.to(x.dtype)

    assert check(blocked, like=linear, inputs=(x, weight)).passed


def test_a_rounding_that_is_amplified_moves_an_element_far() -> None:
    x = narrow(64, 64, dtype=torch.bfloat16) * 20
    steep: Function = lambda x: torch.exp(x * 0.7)  # noqa: E731
    assert check(lambda x: torch.exp(x.float() * 0.7).to(x.dtype), like=steep, inputs=x).passed
    assert check(steep, like=steep, inputs=x).passed


def mlp(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x @ up.T) @ down.T


def mlp_in_float32(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return (torch.nn.functional.silu(x.float() @ up.float().T) @ down.float().T).to(x.dtype)


@pytest.mark.parametrize("kernel", [mlp, mlp_in_float32])
def test_one_channel_of_an_mlp_that_is_high_is_seen(kernel: Function) -> None:
    """Behind rounded sums, where other bits are right, too: by its gain over the tokens."""
    up, down = (narrow(*shape, dtype=torch.bfloat16, seed=6) / 8 for shape in ((96, 64), (64, 96)))
    x = narrow(64, 64, dtype=torch.bfloat16)
    assert check(kernel, like=mlp, inputs=(x, up, down)).passed
    verdict = wrong(channel_high(kernel, 1.01), mlp, (x, up, down), explain=False)
    assert "channel gain" in failed_gates(verdict)
    assert "column gain" in verdict.reason or "of one channel" in verdict.reason


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """[batch, heads, tokens, 16]"""
    scores = (q @ k.mT) * 0.25
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return torch.softmax(scores.masked_fill(~mask, -1e4).float(), -1).to(q.dtype) @ v


@pytest.mark.parametrize(("tokens", "heads"), [(64, 4), (64, 12)])
@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
def test_a_head_a_little_high_is_seen_in_either_layout(
    layout: str, tokens: int, heads: int
) -> None:
    swap = layout == "BTHD"

    def view(t: torch.Tensor) -> torch.Tensor:
        return t.transpose(1, 2).contiguous() if swap else t

    def like(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return view(causal(*(view(t) for t in (q, k, v))))

    def high(of: slice | int, channel: slice | int) -> Function:
        def kernel(*inputs: torch.Tensor) -> torch.Tensor:
            y = causal(*(view(t) for t in inputs))
            y[:, of, :, channel] = (y[:, of, :, channel].double() * 1.01).to(y.dtype)
            return view(y)

        return kernel

    inputs = tuple(
        view(narrow(1, heads, tokens, 16, dtype=torch.bfloat16, seed=s)) for s in (1, 2, 3)
    )
    check(like, like=like, inputs=inputs)
    everything = slice(None)
    for axes in (None, layout):
        head = wrong(high(2, everything), like, inputs, axes=axes, explain=False)
        assert "head gain" in failed_gates(head)
        channel = wrong(high(1, 3), like, inputs, axes=axes, explain=False)
        assert "channel gain" in failed_gates(channel)
