"""check(backward=True): what is differentiated, whose gradients count, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checked import normal, wrong
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from python_inspector import RecordError, UsageError, check, draw, prepare
from python_inspector.recorder.gradients import Gradients
from python_inspector.trace.arithmetic import name_of

pytestmark = pytest.mark.usefixtures("harness")
BF16 = torch.bfloat16
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, BF16])


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Norm(torch.autograd.Function):
    """norm() with its backward written by hand."""

    factor = 1.0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return norm(x.float(), weight.float()).to(x.dtype)

    @classmethod
    def backward(cls, ctx: Any, g: torch.Tensor) -> Any:
        x, weight = (t.float() for t in ctx.saved_tensors)
        r = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        n, gw = x * r, g.float() * weight
        dx = r * (gw - cls.factor * n * (gw * n).mean(-1, keepdim=True))
        dw = (g.float() * n).flatten(0, -2).sum(0)
        return dx.to(g.dtype), dw.to(g.dtype)


class Wrong(Norm):
    factor = 0.0


def operands(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return normal(4, 6, 64, dtype=dtype), normal(64, dtype=dtype, seed=1)


def module(dtype: torch.dtype = torch.float32) -> torch.nn.RMSNorm:
    made = torch.nn.RMSNorm(64, eps=1e-6).to(dtype)
    made.weight.data.copy_(operands(dtype)[1])
    return made


@DTYPES
def test_an_autograd_function_is_held_to_the_gradients_of_a_function(dtype: torch.dtype) -> None:
    verdict = check(Norm, like=norm, inputs=operands(dtype), backward=True)
    assert [it["name"] for it in verdict.figures["outputs"]] == ["d_weight", "d_x", "out"]
    failed = wrong(Wrong, norm, operands(dtype), backward=True)
    assert failed.reason.startswith("d_x: ")
    check(Wrong.apply, like=norm, inputs=operands(dtype))  # whose forward is right


@DTYPES
def test_parameters_are_those_of_the_module(dtype: torch.dtype) -> None:
    like, (x, _) = module(dtype), operands(dtype)
    like.requires_grad_(False)
    for kernel in (like, module(dtype), lambda x: Norm.apply(x, like.weight)):
        verdict = check(kernel, like=like, inputs=x, backward=True, explain=False)
        names = {it["name"] for it in verdict.figures["outputs"]}
        assert len(names) == 3 and "d_weight" in names
    wrong(lambda x: Wrong.apply(x, like.weight), like, x, backward=True)
    wrong(lambda x: Norm.apply(x, like.weight.detach()), like, x, backward=True)
    assert not like.weight.requires_grad and like.weight.grad is None


def test_weights_by_name_are_handed_to_the_kernel() -> None:
    (x, weight), like = operands(), module()
    weights = {"weight": draw((64,), seeds=range(2), scale=2.0, device=str(x.device))}
    assert check(Norm, like=like, inputs=x, weights=weights, backward=True).passed
    failed = wrong(Wrong, like, x, weights=weights, backward=True)
    assert failed.reason.startswith("0 of 2 cases pass")
    check(Norm, like=norm, inputs=x, weights={"weight": weight}, backward=True)


def test_one_preparation_judges_many() -> None:
    judge = prepare(norm, inputs=operands(), backward=True)
    assert judge(Norm).passed and judge(norm).passed
    with pytest.raises(AssertionError, match="d_x: "):
        judge(Wrong)


def test_drawn_and_hard_operands() -> None:
    weight = normal(64)
    x = draw((4, 64), seeds=range(3), device=str(weight.device))
    assert len(check(Norm, like=norm, inputs=(x, weight), backward=True).cases) == 3
    plain = normal(4, 64), weight
    assert check(Norm, like=norm, inputs=plain, backward=True, hard=["signed", "zeros"]).cases


def attention(
    x: torch.Tensor, cos: torch.Tensor, bias: torch.Tensor, unused: torch.Tensor
) -> torch.Tensor:
    x = x * cos
    return ((x @ x.mT).float() + bias).softmax(-1).to(x.dtype) @ x


@DTYPES
def test_masks_tables_and_what_has_no_gradient_are_listed(dtype: torch.dtype) -> None:
    lowest = torch.finfo(dtype).min
    mask = torch.full((8, 8), lowest, dtype=dtype).triu(1)
    cos = normal(16, dtype=dtype).cos()
    given = normal(2, 8, 16, dtype=dtype), cos, mask, normal(3, dtype=dtype)
    verdict = check(attention, like=attention, inputs=given, backward=True, explain=False)
    assert verdict.not_judged == ("d_cos (a table)", "d_bias (a mask)", "d_unused (no gradient)")
    assert "not judged: d_cos (a table), d_bias (a mask)" in str(verdict)


def test_the_same_tensor_in_two_places_has_one_gradient() -> None:
    x = normal(4, 16)

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * b

    check(lambda a, b: a * b, like=product, inputs=(x, x), backward=True)

    def half(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * b.detach()

    wrong(half, product, (x, x), backward=True)


def test_outputs_are_paired_and_each_has_a_cotangent() -> None:
    def both(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sine": x.sin(), "cosine": x.cos(), "sign": (x > 0).long()}

    def exchanged(x: torch.Tensor) -> dict[str, torch.Tensor]:
        made = both(x)
        made["sine"] = made["sine"].detach()
        return made

    x = normal(4, 16)
    assert check(both, like=both, inputs=x, backward=True, explain=False).passed
    assert wrong(exchanged, both, x, backward=True).reason.startswith("d_x: ")
    assert "returned a tuple of 1" in wrong(lambda x: (x,), both, x, backward=True).reason


def test_a_kernel_without_a_backward_has_no_gradient() -> None:
    """None is a gradient of 0."""
    failed = wrong(lambda *xs: norm(*xs).detach(), norm, operands(), backward=True)
    assert failed.reason.startswith("d_")
    assert wrong(
        lambda x, w: norm(x, w.detach()), norm, operands(), backward=True
    ).reason.startswith("d_weight: ")


def test_a_backward_that_raises_has_a_verdict() -> None:
    class Raises(Norm):
        @classmethod
        def backward(cls, ctx: Any, g: torch.Tensor) -> Any:
            raise NotImplementedError("no gradient yet")

    failed = wrong(Raises, norm, operands(), backward=True)
    assert failed.status == "error"
    assert failed.reason == "the kernel's backward raised NotImplementedError: no gradient yet"


def test_a_backward_that_writes_to_its_cotangent_is_found() -> None:
    class Writes(Norm):
        @classmethod
        def backward(cls, ctx: Any, g: torch.Tensor) -> Any:
            made = super().backward(ctx, g)
            g.zero_()
            return made

    assert "cotangent.out" in wrong(Writes, norm, operands(), backward=True).reason


@DTYPES
def test_an_oracle_that_is_no_derivative_is_no_oracle(dtype: torch.dtype) -> None:
    """A function whose backward lacks a term would be its own judge."""

    def like(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = Wrong.apply(x, weight)
        return made

    verdict = wrong(norm, like, operands(dtype), backward=True)
    assert verdict.status == "unsupported"
    assert verdict.reason.startswith("bad oracle: along a random direction of x the outputs")
    assert "the backward of Wrong is not that of its forward" in verdict.reason

    def right(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = Norm.apply(x, weight)
        return made

    assert not check(Norm, like=right, inputs=operands(dtype), backward=True).doubts


def test_what_stops_gradients_is_said() -> None:
    def stops(x: torch.Tensor) -> torch.Tensor:
        return x * x.sigmoid().detach()

    verdict = check(stops, like=stops, inputs=normal(4, 16), backward=True)
    assert "something inside stops gradients" in str(verdict)


def bent(x: torch.Tensor) -> torch.Tensor:
    return functional.relu(x) + x.clamp(-1, 1).abs()


def test_a_bend_is_no_bad_oracle() -> None:
    """Where an operand is on a border, either side has a slope of its own."""
    x = normal(64, 64)
    x[:8] = 1
    assert check(bent, like=bent, inputs=x, backward=True, explain=False).doubts == ()


def test_a_padding_row_is_no_bad_oracle() -> None:
    """It changes the outputs, and has no gradient by definition."""

    def like(table: torch.Tensor) -> torch.Tensor:
        ids = torch.arange(24, device=table.device).reshape(2, 12) % 7
        return functional.embedding(ids, table, padding_idx=0)

    assert check(like, like=like, inputs=normal(8, 16), backward=True, explain=False).doubts == ()


@pytest.mark.host  # a GPU adds them up in float32
def test_what_is_read_by_index_is_added_up() -> None:
    ids = torch.arange(512) % 5
    x = normal(8, 16, dtype=BF16)

    def like(x: torch.Tensor) -> torch.Tensor:
        return x[ids]

    def kernel(x: torch.Tensor) -> torch.Tensor:
        return x.float()[ids].to(BF16)

    judge = prepare(like, inputs=x, backward=True, explain=False)
    assert judge(kernel).doubts[0].startswith("golden suspect: d_x of the reference has")
    with pytest.raises(AssertionError):
        judge(like)  # which adds them up in bf16
    assert check(like, like=like, inputs=x.float(), backward=True, explain=False).passed


@pytest.mark.host
def test_sums_in_storage_of_the_reference_lend_no_limit() -> None:
    """torch adds up a layer norm's weight gradient in bf16 on a CPU: 13 roundings of 512 tokens."""
    x, weight, bias = normal(512, 64, dtype=BF16), normal(64, dtype=BF16), normal(64, dtype=BF16)

    def like(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (64,), weight, bias)

    def kernel(*xs: torch.Tensor) -> torch.Tensor:
        return like(*(t.float() for t in xs)).to(BF16)

    verdict = check(kernel, like=like, inputs=(x, weight, bias), backward=True, explain=False)
    assert "golden suspect: d_weight of the reference has" in str(verdict)
    assert "accumulates in storage" in wrong(like, like, (x, weight, bias), backward=True).doubts[0]


class Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(name_of(func))
        return func(*args, **(kwargs or {}))


def test_attention_of_torch_is_differentiated_in_parts() -> None:
    """Fused kernels are right by it, though they round elsewhere; a wrong term is not. Of a fused
    backward no float64 kernel is there on a GPU."""
    q, k, v = (normal(2, h, 24, 16, dtype=BF16, seed=h) for h in (4, 2, 2))

    def like(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    given = (q, k, v), {}
    gradients = Gradients(like, given, {})
    args, kwargs = gradients.arguments(given, {}, 0)
    with Names() as seen:
        gradients.function(*args, **kwargs)
    assert "_softmax_backward_data" in seen.names
    assert not any(name.startswith("_scaled_dot_product") for name in seen.names)
    judge = prepare(like, inputs=(q, k, v), backward=True, explain=False)
    assert judge(like).passed
    with pytest.raises(AssertionError):
        judge(lambda q, k, v: like(q, k, v) + 0.01 * (q - q.detach()))


@DTYPES
def test_one_key_leaves_nothing_to_judge(dtype: torch.dtype) -> None:
    """Its weight is 1, so scores have no gradient; fused kernels have what rounding leaves."""
    q, k, v = (normal(2, h, 1, 16, dtype=dtype, seed=h) for h in (4, 2, 2))

    def like(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    assert wrong(like, like, (q, k, v), backward=True).status == "blind"


def test_the_cotangent_is_drawn_and_no_operand() -> None:
    seen: list[torch.Tensor] = []

    class Seen(Norm):
        @classmethod
        def backward(cls, ctx: Any, g: torch.Tensor) -> Any:
            seen.append(g.clone())
            return super().backward(ctx, g)

    torch.manual_seed(0)
    x = torch.randn(4, 6, 64, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        check(Seen, like=norm, inputs=(x, normal(64)), backward=True, explain=False)
    assert all(torch.equal(g, seen[0]) for g in seen)
    assert not torch.equal(seen[0], x) and 0.9 < float(seen[0].std()) < 1.1


def test_a_case_is_kept(tmp_path: Path) -> None:
    failed = wrong(Wrong, norm, operands(), backward=True, keep=tmp_path / "case", shrink=2)
    assert "d_x" in failed.reason and failed.replay


def test_what_does_not_go_together_is_refused() -> None:
    x, weight = operands()
    refused = {"arrays": "numpy", "relations": ["batch"], "valid": x[:, 0, 0] > 0}
    for name, value in refused.items():
        with pytest.raises(UsageError, match=f"backward=True and {name}="):
            check(Norm, like=norm, inputs=(x, weight), backward=True, **{name: value})
    with pytest.raises(RecordError, match="no output of lambda depends on"):
        check(torch.sign, like=lambda x: x > 0, inputs=(x,), backward=True)
    with pytest.raises(UsageError, match="called 'cotangent'"):
        check(Norm, like=lambda x, cotangent: x, inputs=(x, x), backward=True)
    with pytest.raises(UsageError, match="has no parameter 'weight'"):
        check(torch.nn.Identity(), like=module(), inputs=x, backward=True)
