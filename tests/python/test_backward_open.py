"""check(backward=True) where the reference's own gradients say little: rows that are open, borders,
no numbers, no elements; and torch's attention in other threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from checked import normal, wrong
from torch.nn import functional

from python_inspector import check, prepare
from python_inspector.recorder.attention_in_parts import attention_in_parts

pytestmark = pytest.mark.usefixtures("harness")
BF16 = torch.bfloat16
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, BF16])
ASKED: dict[str, Any] = {"backward": True, "explain": False}


def padded(x: torch.Tensor, weight: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention, whose rows without a key see all."""
    scores = x @ weight @ x.mT + torch.where(mask, 0.0, torch.finfo(x.dtype).min).to(x.dtype)
    return scores.float().softmax(-1).to(x.dtype) @ x


def zeroed(x: torch.Tensor, weight: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The same, which sees nothing there."""
    scores = (x @ weight @ x.mT).float().masked_fill(~mask, torch.finfo(torch.float32).min)
    return (scores.softmax(-1) * mask.any(-1, keepdim=True)).to(x.dtype) @ x


@DTYPES
def test_one_padded_row_leaves_gradients_of_weights_judged(dtype: torch.dtype) -> None:
    mask = torch.ones(2, 8, 8, dtype=torch.bool).tril()
    mask[0, :, :2] = False
    given = normal(2, 8, 16, dtype=dtype), normal(16, 16, dtype=dtype, seed=1) / 16, mask
    verdict = check(zeroed, like=padded, inputs=given, **ASKED)
    assert any(text.startswith("cotangent.out is 0 in 2 of 16 rows") for text in verdict.doubts)

    def off(x: torch.Tensor, weight: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Whose weight alone has another gradient."""
        return zeroed(x, weight + 0.1 * (weight - weight.detach()), mask)

    assert wrong(off, padded, given, **ASKED).reason.startswith("d_weight: ")


def clamped(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x @ weight).clamp(-1, 1)


def test_a_row_at_a_border_leaves_the_others_judged() -> None:
    x, weight = normal(32, 16), normal(16, 8, seed=1) / 4
    x[3], weight[0] = 0, 1
    x[3, 0] = 1  # its result is 1, which the clamp may leave or not
    verdict = check(clamped, like=clamped, inputs=(x, weight), **ASKED)
    assert any("is 0 in 1 of 32 rows" in text for text in verdict.doubts)
    assert "elements judged" not in verdict.reason


def test_many_borders_at_once_stop_no_gradient() -> None:
    def like(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.relu(x @ weight) + functional.leaky_relu(x, 0.3) @ weight

    x = normal(12, 16)
    x[:6] = 0
    assert check(like, like=like, inputs=(x, normal(16, 16)), **ASKED).doubts == ()

    def stops(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return like(x, weight) * like(x, weight).detach()

    (found,) = check(stops, like=stops, inputs=(x, normal(16, 16)), **ASKED).doubts
    assert "something inside stops gradients" in found


def root(x: torch.Tensor) -> torch.Tensor:
    """Whose gradient is 0 times infinity where x is not above 0."""
    return torch.where(x > 0, x.sqrt(), torch.zeros_like(x))


def root_of_numbers(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x.where(x > 0, 1).sqrt(), torch.zeros_like(x))


@DTYPES
def test_what_is_no_number_judges_no_gradient(dtype: torch.dtype) -> None:
    x = normal(16, 16).abs().add(0.1).to(dtype)
    x[0, :5] *= -1
    x[3, 3] = 0
    judge = prepare(root, inputs=x, **ASKED)
    (found,) = judge(root_of_numbers).doubts
    assert found.startswith("6 of 256 elements of d_x of the reference are no numbers")
    for kernel in (root, lambda x: root_of_numbers(x) * 1.05):
        with pytest.raises(AssertionError, match="d_x: "):
            judge(kernel)


def test_without_elements_there_is_no_gradient() -> None:
    x, weight = torch.zeros(0, 4), normal(4, 3)

    def like(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.relu(x @ weight)

    for given in ((x, weight), (x, torch.zeros(4, 0))):
        assert check(like, like=like, inputs=given, backward=True).passed
    wrong(lambda x, w: like(x, w)[:, :1], like, (x, weight), backward=True)


def test_attention_is_in_parts_for_one_thread_alone() -> None:
    q = normal(1, 2, 8, 16)
    inside, over = threading.Event(), threading.Event()
    seen: list[Any] = []

    def other() -> None:
        inside.wait()
        seen.append(functional.scaled_dot_product_attention)
        leaf = q.clone().requires_grad_()
        seen.append(functional.scaled_dot_product_attention(leaf, leaf, leaf).grad_fn)
        seen.append(torch.backends.cuda.flash_sdp_enabled())
        over.set()

    thread = threading.Thread(target=other)
    thread.start()
    fused, allowed = (
        functional.scaled_dot_product_attention,
        torch.backends.cuda.flash_sdp_enabled(),
    )
    with attention_in_parts():
        inside.set()
        over.wait()
        leaf = q.clone().requires_grad_()
        mine = fused(leaf, leaf, leaf).grad_fn  # by any name
    thread.join()
    assert seen[0] is fused and "ScaledDotProduct" in seen[1].name() and seen[2] == allowed
    assert mine is not None and "ScaledDotProduct" not in mine.name()


@DTYPES
def test_attention_inside_of_torchs_own_code(dtype: torch.dtype) -> None:
    """multi_head_attention_forward calls it where no mode looks."""
    module = torch.nn.MultiheadAttention(16, 2, batch_first=True).to(dtype)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.inner(x, x, x, need_weights=False)[0]
            return made

    x = normal(2, 12, 16, dtype=dtype)
    judge = prepare(Layer(), inputs=x, **ASKED)
    assert judge(Layer()).passed
    with pytest.raises(AssertionError):
        judge(lambda x: Layer()(x) + 0.02 * (x - x.detach()))
    leaf = x.clone().requires_grad_()
    with attention_in_parts():
        left = [Layer()(leaf).grad_fn]
    names = set()
    while left:
        node = left.pop()
        names.add(node.name())
        left += [it for it, _ in node.next_functions if it is not None]
    assert not any("ScaledDotProduct" in name for name in names)
