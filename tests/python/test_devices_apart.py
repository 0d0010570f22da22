"""A failing check() of tensors on a GPU mixes no devices: seen on a machine that has none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checked import normal, wrong
from on_device import PRODUCT, MadeOn

from python_inspector import check
from python_inspector.trace.blunders import of_a_pass
from python_inspector.trace.given import Given
from python_inspector.trace.replay import run_as_it_is, run_lifted, run_watched
from python_inspector.trace.sites import Seen, Site

pytestmark = pytest.mark.usefixtures("harness")


def attention(q: Any, k: Any, v: Any, border: int = 0) -> Any:
    scores = q @ k.transpose(-1, -2)
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(border)
    return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v


CALLS: dict[str, tuple[Any, Any, int]] = {
    "linear": (lambda x: x @ x.T, lambda x: x @ x.T * 1.01, 1),
    "activation": (torch.nn.functional.silu, torch.nn.functional.gelu, 1),
    "norm": (lambda x: x / (x.square().mean(-1, True) + 1e-5).sqrt(), torch.nn.functional.relu, 1),
    "attention": (attention, lambda q, k, v: attention(q, k, v, 1), 3),
    "argmax": (lambda x: x.argmax(-1), lambda x: x.argmin(-1), 1),
    "top-k": (lambda x: x.topk(3, -1), lambda x: (x.topk(3, -1)[0], x.topk(4, -1)[1][..., 1:]), 1),
    "index": (lambda x: x[[2, 0, 1]], lambda x: x[[1, 0, 2]], 1),
    "cast": (lambda x: (x * 3).round().to(torch.int32), lambda x: (x * 3).to(torch.int32), 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_what_a_failure_needs_is_made_where_the_tensors_are(name: str, dtype: torch.dtype) -> None:
    like, kernel, operands = CALLS[name]
    inputs = tuple(normal(24, 24, dtype=dtype, seed=seed) for seed in range(operands))
    with MadeOn("meta", PRODUCT):
        assert wrong(kernel, like, inputs, bugs=True).status == "fail"


def coded(x: Any, most: float = 448.0) -> Any:
    scale = x.float().abs().amax(-1, keepdim=True) / most
    return (x.float() / scale).to(torch.float8_e4m3fn).float() @ x.float().T * scale


def masked(q: Any, k: Any, v: Any) -> Any:
    seen = torch.ones(24, 24, dtype=torch.bool, device=q.device).tril()
    seen[:3] = False
    parts = [t[None, None] for t in (q, k, v)]
    return torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=seen)


def tied(x: Any) -> Any:
    y = x.clone()
    y[:5, 3] = y[:5, 7] = 9.0
    return y.argmax(-1), y.topk(2, -1).indices


INSIDE: dict[str, tuple[Any, int]] = {
    "group norm": (lambda x: torch.nn.functional.group_norm(x[None] + 8, 4), 1),
    "batch norm": (lambda x: torch.nn.functional.batch_norm(x, None, None, training=True), 1),
    "rms norm": (lambda x: torch.nn.functional.rms_norm(x * 1e-4, (24,)), 1),
    "transform": (lambda x: torch.view_as_real(torch.fft.rfft(x.float())), 1),
    "determinant": (lambda x: torch.linalg.inv(x.float()), 1),
    "8 bits": (coded, 1),
    "rows without a key": (masked, 3),
    "cross product": (lambda x: torch.linalg.cross(x[:, :3], x[:, 3:6] + 1), 1),
    "ties": (tied, 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", INSIDE)
def test_what_is_simulated_inside_lies_where_the_tensors_are(name: str, dtype: torch.dtype) -> None:
    like, operands = INSIDE[name]
    inputs = tuple(normal(24, 24, dtype=dtype, seed=seed) for seed in range(operands))
    options = {"contract": "p-16+sums-16"} if dtype == torch.bfloat16 else {}
    with MadeOn("meta", PRODUCT):
        assert check(like, like, inputs, explain=False, **options).status == "pass"


def attention_of_torch(q: Any, k: Any, v: Any) -> Any:
    parts = [t[None, None] for t in (q, k, v)]
    return torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)


DIFFERENTIATED: dict[str, tuple[Any, int]] = {
    "attention": (attention_of_torch, 3),
    "masked attention": (masked, 3),
    "embedding": (lambda w: torch.nn.functional.embedding(w.new_ones(4).long(), w), 1),
    "layer norm": (lambda x: torch.nn.functional.layer_norm(x, (24,)), 1),
    "gelu": (torch.nn.functional.gelu, 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients_are_made_where_the_tensors_are(name: str, dtype: torch.dtype) -> None:
    like, operands = DIFFERENTIATED[name]
    inputs = tuple(normal(24, 24, dtype=dtype, seed=seed) for seed in range(operands))
    with MadeOn("meta", PRODUCT):
        failed = wrong(lambda *xs: like(*xs) * 1.02, like, inputs, backward=True)
    assert failed.status == "fail"


@pytest.mark.parametrize("run", [run_as_it_is, run_watched(Given()), run_lifted])
def test_what_the_tests_make_is_theirs_in_every_run(run: Any) -> None:
    """Also below the product's modes."""
    with MadeOn("meta"):
        assert run(lambda: torch.ones(3, 3), (), {}).result.device.type == "meta"


def test_a_number_of_the_host_that_is_a_result_is_moved() -> None:
    """As `x * torch.tensor(0.02)` has it, where the product is skipped."""
    func, x = torch.ops.aten.mul.Tensor, torch.ones(3, 4, device="meta")
    seen = Seen(Site("mul", 0), func, (x, torch.tensor(0.02)), {}, {})
    seen.result = seen.run()
    changes = [it for _, rule in of_a_pass() for it in rule(seen)]
    assert len(changes) > 3
    assert {change(seen).device.type for _, _, change in changes} == {"meta"}
