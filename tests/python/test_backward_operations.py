"""Operations of a backward in the trace: what is one kernel, what is attention, what may be off."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from checked import normal, wrong
from torch.nn import functional

from python_inspector import check
from python_inspector.trace import contraction, gradient_arithmetic
from python_inspector.trace.arithmetic import FUNCTIONS, name_of
from python_inspector.trace.attention_gradients import gradients_of
from python_inspector.trace.decomposing import can_decompose
from python_inspector.trace.given import Given
from python_inspector.trace.replay import run_as_it_is, run_lifted, run_rounded, run_watched
from python_inspector.trace.simulation import Normals, Simulation

aten = torch.ops.aten
BF16 = torch.bfloat16
Function = Callable[..., Any]


def gradient_of(function: Function) -> Function:
    """Of all arguments but the last, which is the cotangent."""

    def gradients(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            xs = [t.detach().requires_grad_() for t in args[:-1]]
            return torch.autograd.grad(function(*xs), xs, args[-1])

    return gradients


@pytest.mark.parametrize("function", [functional.silu, functional.mish])
def test_what_a_device_has_a_kernel_for_is_no_composite(function: Function) -> None:
    """Taken apart the model rounds five times, and so did the run that is watched."""
    x, g = normal(64, 64, dtype=BF16), normal(64, 64, dtype=BF16, seed=1)
    backward = gradient_of(function)
    with torch.no_grad():
        (real,) = run_as_it_is(backward, (x, g), {}).result
        (seen,) = run_watched(Given())(backward, (x, g), {}).result
        (model,) = run_rounded(Simulation(0, Normals("x")))(backward, (x, g), {}).result
    assert torch.equal(seen, real)
    assert float((model != real).float().mean()) < 0.01  # 0.4 and more of one that is taken apart


def test_moves_of_channels_are_one_operation() -> None:
    assert not can_decompose(aten.native_channel_shuffle.default)
    assert can_decompose(aten.matmul.default)


def attention(q: Any, k: Any, v: Any, mask: torch.Tensor | None = None) -> torch.Tensor:
    return functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_the_backward_of_fused_attention_is_not_its_forward(dtype: torch.dtype) -> None:
    """Simulated as one, its kernels would be nowhere near it, and allow anything."""
    q, k, v = (normal(2, heads, 10, 16, dtype=dtype, seed=heads) for heads in (4, 2, 2))
    backward = gradient_of(attention)
    operands = (q, k, v, normal(2, 4, 10, 16, dtype=dtype, seed=9))
    check(backward, like=backward, inputs=operands, explain=False)
    masked = gradient_of(partial(attention, mask=normal(10, 10) > 0))
    check(masked, like=masked, inputs=operands, explain=False)

    def too_large(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(t * 1.1 for t in backward(*args))

    wrong(too_large, backward, operands, explain=False)


FUSED = [
    getattr(aten, name).default
    for name in dir(aten)
    if name.startswith("_scaled_dot_product") and name.endswith("attention_backward")
] + [aten._scaled_dot_product_flash_attention_for_cpu_backward.default]


@pytest.mark.parametrize("func", FUSED, ids=str)
@pytest.mark.parametrize(("heads", "causal", "masked"), [(4, True, 0), (2, False, 0), (4, 0, 1)])
def test_gradients_of_fused_attention(func: Any, heads: int, causal: bool, masked: bool) -> None:
    """Of every device, by names of their arguments; a row without a key has none."""
    q, k, v = (normal(2, it, 10, 16, seed=it).requires_grad_() for it in (4, heads, heads))
    g, bias = (
        normal(2, 4, 10, 16, seed=9),
        normal(2, 1, 10, 10).masked_fill(torch.arange(10)[:, None] == 3, -torch.inf),
    )
    bias = bias.requires_grad_() if masked else None
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, is_causal=bool(causal), enable_gqa=True
        )
    operands = [q, k, v, *([bias] if masked else [])]
    expected = [*torch.autograd.grad(out, operands, g), None][:4]
    given = {"query": q, "key": k, "value": v, "out": out, "is_causal": causal}
    given |= {"grad_out": g, "grad_out_": g, "attn_bias": bias, "attn_mask": bias}
    names = [(argument.name, argument.kwarg_only) for argument in func._schema.arguments]
    args = [given.get(name) for name, word in names if not word]
    words = {name: given.get(name) for name, word in names if word}
    for i, (name, _) in enumerate(names):
        if name == "grad_input_mask":
            args[i] = [True] * 4
    made = gradients_of(func)(*args, **words)
    assert len(made) == len(func._schema.returns)
    if masked and not any(name in ("attn_bias", "attn_mask") for name, _ in names):
        return
    for a, b in zip(made, expected, strict=False):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def scan(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a[:, :, None] * b[:, None]).sum(-1)


def test_the_gradient_of_a_sum_is_no_larger_than_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is expanded to the shape of the terms is stored once."""
    monkeypatch.setattr(contraction, "LARGE", 1 << 12)
    a, b, g = normal(2, 32, 32), normal(2, 32, 32, seed=1), normal(2, 32, 32, seed=2)
    waited: list[bool] = []
    wait = contraction.Products.wait

    def noted(self: contraction.Products, func: Any, args: Any, *rest: Any) -> Any:
        made = wait(self, func, args, *rest)
        large = func is aten.mul.Tensor and args[0].numel() == 2 * 32**3
        waited.extend([made is not None] * large)
        return made

    monkeypatch.setattr(contraction.Products, "wait", noted)
    with torch.no_grad():
        exact = run_lifted(gradient_of(scan), (a, b, g), {}).result
        run_rounded(Simulation(2, Normals("x")))(gradient_of(scan), (a, b, g), {})
    assert waited == [True] * len(waited) and len(waited) >= 2
    wide = [t.double() for t in (a, b, g)]
    for found, right in zip(exact, gradient_of(scan)(*wide), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)


def _norm_operands() -> tuple[Any, ...]:
    x, g = 3 + 0.1 * normal(512, 64), normal(512, 64, seed=1)
    _, mean, rstd = torch.native_layer_norm(x, [64], None, None, 1e-5)
    return g, x, [64], mean, rstd, normal(64, seed=2), normal(64, seed=3), [True] * 3


ROWS = torch.softmax(4 * normal(64, 256), -1)
VANISHING: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "softmax": (
        aten._softmax_backward_data.default,
        (5 + 0.01 * normal(64, 256, seed=1), ROWS, -1, torch.float32),
    ),
    "log_softmax": (
        aten._log_softmax_backward_data.default,
        (ROWS * 5 + 0.001 * normal(64, 256, seed=1), ROWS.log(), -1, torch.float32),
    ),
    "layer_norm": (aten.native_layer_norm_backward.default, _norm_operands()),
    "embedding": (
        aten.embedding_dense_backward.default,
        (normal(4096, 64), torch.arange(4096) % 4, 4, -1, False),
    ),
    "convolution": (
        aten.convolution_backward.default,
        (
            normal(4, 8, 64),
            normal(4, 8, 64, seed=1),
            normal(8, 8, 3, seed=2),
            [8],
            [1],
            [1],
            [1],
            False,
            [0],
            1,
            [True] * 3,
        ),
    ),
    "silu": (aten.silu_backward.default, (normal(4096), -1.278 + 1e-4 * normal(4096, seed=1))),
    "tanh": (aten.tanh_backward.default, (normal(4096), 1 - 1e-6 * normal(4096, seed=1).abs())),
    "gelu": (
        aten.gelu_backward.default,
        (normal(4096), -0.7518 + 1e-4 * normal(4096, seed=1)),
    ),
}


@pytest.mark.parametrize("kind", VANISHING)
def test_gradients_that_vanish_are_off_by_their_terms(kind: str) -> None:
    """A share of the result is too little: right kernels are off by many times that."""
    func, args = VANISHING[kind]
    wide = [
        a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args
    ]
    if kind.endswith("softmax"):
        wide[3] = torch.float64
    real, exact = func(*args), func(*wide)
    if kind == "tanh":  # torch's own rounds once
        real = args[0] * (1 - args[1] * args[1])
    pairs = zip(*((it if isinstance(it, tuple) else (it,)) for it in (real, exact)), strict=True)
    beyond = 0.0
    for r, o in pairs:
        parts = gradient_arithmetic.noise(name_of(func), func, wide, {}, o)
        allowed = sum((p.scale * (1.0 if p.times is None else p.times)).abs() for p in parts)
        off = (r.double() - o).abs()
        assert bool((off <= 6 * allowed).all()), float((off / allowed).max())
        beyond = max(beyond, float((off / (6 * FUNCTIONS * o.abs())).nan_to_num(0.0).max()))
    assert beyond > 2, beyond


@pytest.mark.parametrize("place", ["bias", "attn_mask"])
def test_a_mask_is_known_by_what_it_holds(place: str) -> None:
    """-3.4e38 of a float32 mask must absorb a score in float64, too, whatever it is called."""
    lowest = torch.finfo(torch.float32).min
    mask = torch.zeros(8, 8).masked_fill(torch.ones(8, 8, dtype=torch.bool).triu(1), lowest)

    def masked(x: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        return more[place]

    lifted = run_lifted(masked, (normal(8, 8),), {place: mask}).result
    assert float(lifted.min()) == torch.finfo(torch.float64).min
    signed = normal(8, 8)
    signed[0, 0] = lowest
    if place == "bias":
        assert float(run_lifted(masked, (signed,), {place: signed}).result.min()) == lowest
