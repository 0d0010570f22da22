"""float64_lift and run_lifted: exact, guarded, and without a trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import DynamicCache
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm, Gemma2TextScaledWordEmbedding
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from python_inspector.trace.lift import LiftError, float64_lift, looks_float32, widen
from python_inspector.trace.replay import is_aside, run_lifted, stubbed

LOW = [torch.float32, torch.float16, torch.bfloat16]


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def leaf(tensor: torch.Tensor) -> set[int]:
    return {tensor.untyped_storage().data_ptr()}


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("kind", [LlamaRMSNorm, Gemma2RMSNorm])
def test_norm_casts_to_float32_vanish(kind: type[torch.nn.Module], dtype: torch.dtype) -> None:
    module = kind(24, eps=1e-5).to(dtype)
    with torch.no_grad():
        module.weight.copy_(randn(24, dtype=dtype))
    x = randn(5, 24, dtype=dtype)
    o = run_lifted(module.forward, (x,), {}, [module]).result
    w = module.weight.double() + (kind is Gemma2RMSNorm)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * w
    assert o.dtype == torch.float64
    assert (o - exact).abs().max() <= 1e-15 * exact.abs().max()
    assert (module(x).double() - exact).abs().max() > 1e-9  # what the lift removes


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_sdpa_in_every_mode(inference: bool, masked: bool) -> None:
    with torch.inference_mode(inference):
        q, k, v = (randn(2, 3, 4, 8).roll(i) for i in range(3))
        mask = torch.ones(4, 4, dtype=torch.bool).tril() if masked else None
        call = {"attn_mask": mask, "is_causal": not masked, "scale": 0.3}
        o = run_lifted(functional.scaled_dot_product_attention, (q, k, v), call).result
    scores = (q.double() @ k.double().mT * 0.3).masked_fill(~torch.ones(4, 4).tril().bool(), -1e300)
    exact = scores.softmax(-1) @ v.double()
    assert (o - exact).abs().max() <= 1e-14


def test_constant_keeps_the_rounding_of_its_cast() -> None:
    module = Gemma2TextScaledWordEmbedding(7, 48, 0, embed_scale=48**0.5).to(torch.bfloat16)
    module.embed_scale = torch.tensor(48**0.5)
    o = run_lifted(module.forward, (torch.tensor([[3]]),), {}, [module]).result
    assert torch.equal(o[0, 0], module.weight[3].double() * 6.9375)


def test_low_operand_that_is_no_leaf_is_refused() -> None:
    stray = randn(4)
    with float64_lift(leaf(randn(1))), pytest.raises(LiftError, match="no parameter"):
        stray + 1
    with float64_lift(leaf(stray)):
        assert (stray + 1).dtype == torch.float64


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (lambda x: x.detach().numpy(), r"\.numpy\(\)"),
        (lambda x: x.view(torch.int16), "bits of a float"),
        (lambda x: x.to(torch.float8_e4m3fn), "quantisation"),
        (lambda x: x.add_(1), "writes a low-precision tensor"),
        (lambda x: torch.add(x, x, out=torch.empty_like(x, dtype=torch.bfloat16)), "writes"),
    ],
)
def test_what_cannot_be_lifted_raises(code: object, text: str) -> None:
    x = randn(4, 4)
    out = torch.empty(4, 4, dtype=torch.bfloat16)
    with float64_lift(), pytest.raises(LiftError, match=text):
        torch.add(x, x, out=out) if text == "writes" else code(x)  # type: ignore[operator]


def test_custom_operation_is_refused() -> None:
    @torch.library.custom_op("plumbline_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x.clone() * 2

    with float64_lift(), pytest.raises(LiftError, match="custom operation"):
        twice(randn(3))


def test_constructors() -> None:
    with float64_lift():
        constant = torch.tensor(0.1, dtype=torch.bfloat16)
        assert (constant.dtype, constant.item()) == (torch.float64, 0.10009765625)
        assert torch.arange(3.0).dtype == torch.zeros(2, dtype=torch.float16).dtype == torch.float64


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (functional.linear, [(2, 3), (5, 3), (5,)]),
        (functional.conv1d, [(1, 2, 5), (3, 2, 2), (3,)]),
        (functional.scaled_dot_product_attention, [(1, 2, 3, 4)] * 3),
        (lambda x, w: functional.layer_norm(x, (4,), w), [(2, 4), (4,)]),
        (lambda x, w: functional.rms_norm(x, (4,), w), [(2, 4), (4,)]),
        (functional.bilinear, [(2, 3), (2, 4), (5, 3, 4)]),
    ],
)
def test_low_weights_meet_float64_activations(function: Any, shapes: list[Any]) -> None:
    x, *weights = (randn(*shape) for shape in shapes)
    exact = function(x.double(), *(w.double() for w in weights))
    with float64_lift():
        assert torch.equal(function(widen(x), *weights), exact)


def test_large_products_are_upcast_in_pieces() -> None:
    x, w = randn(3, 16), randn(16, 40)
    with float64_lift(chunk=64):
        o = x @ w
    assert (o - x.double() @ w.double()).abs().max() < 1e-13


def test_everything_is_put_back_after_an_exception() -> None:
    module = LlamaRMSNorm(8)
    module.flag = 1

    def fails(x: torch.Tensor) -> None:
        module.flag = 2
        module.register_buffer("late", x)
        assert is_aside()
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        run_lifted(fails, (randn(2),), {}, [module])
    assert torch.get_default_dtype() == torch.float32
    assert (module.flag, hasattr(module, "late"), is_aside()) == (1, False, False)
    assert (randn(2) + 1).dtype == torch.bfloat16


def test_masks_absorb_scores_in_float64() -> None:
    def add(scores: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return (scores + attention_mask).softmax(-1)

    mask = torch.full((1, 4), torch.finfo(torch.float16).min, dtype=torch.float16)
    o = run_lifted(add, (torch.tensor([[5.0, -3, 2, 9]]).half(), mask), {}).result
    assert torch.equal(o, torch.full((1, 4), 0.25, dtype=torch.float64))


def test_cache_layers_are_lifted_when_touched_and_never_written() -> None:
    cache = DynamicCache()
    for layer in range(3):
        cache.update(randn(1, 2, 3, 4), randn(1, 2, 3, 4), layer)
    before = cache.layers[1].keys
    lifted = run_lifted(DynamicCache.update, (cache, randn(1, 2, 1, 4), randn(1, 2, 1, 4), 1), {})
    twin = lifted.twin(cache)
    assert twin.layers._done.keys() == {1}
    assert twin.layers[1].keys.dtype == torch.float64
    assert twin.layers[1].keys.shape[2] == 4
    assert cache.layers[1].keys is before


def test_stubs_stand_for_children_and_go_away() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    first = module[0]
    with stubbed(module, {"0": torch.tensor([-1.0, 2.0])}):
        assert torch.equal(module(None), torch.tensor([0.0, 2.0]))
    assert module[0] is first


def test_looks_float32() -> None:
    exact = randn(32, dtype=torch.float64) / 3
    assert not looks_float32(exact)
    assert looks_float32(exact.float().double())
    assert not looks_float32(exact.float())
    assert not looks_float32(torch.arange(32.0).double())
    assert not looks_float32(exact[:4].float().double())
