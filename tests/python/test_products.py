"""Products of float32 in TF32: inferred from the result, modelled, and named as a fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from checked import normal, wrong
from torch.nn import functional

from python_inspector import check
from python_inspector.trace import products

pytestmark = pytest.mark.usefixtures("harness")

Change = Callable[[torch.Tensor], torch.Tensor]


def in_tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return products.rounded_to_tf32(a) @ products.rounded_to_tf32(b)


def cut_off(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return products.cut_to_tf32(a) @ products.cut_to_tf32(b)


def test_tf32_keeps_eleven_bits() -> None:
    values = torch.tensor([1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-12, -3.0, 0.0, torch.inf])
    expected = torch.tensor([1.0, 1 + 2.0**-9, 1.0, -3.0, 0.0, torch.inf])
    assert torch.equal(products.rounded_to_tf32(values), expected)
    assert torch.equal(products.rounded_to_tf32(values.double()), expected.double())
    x = normal(1000)
    assert float(((products.rounded_to_tf32(x) - x) / x).abs().max()) <= 2.0**-11


@pytest.mark.parametrize("kernel", [in_tf32, cut_off])
def test_where_the_run_has_no_tf32_it_is_wrong_and_named(kernel: object) -> None:
    verdict = wrong(kernel, torch.matmul, (normal(24, 64), normal(64, 40, seed=6)))
    assert "TF32" in str(verdict)


@pytest.fixture
def run_in_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU where torch allows it."""
    monkeypatch.setattr(products, "may_be_tf32", lambda t: True)
    monkeypatch.setattr(products, "allowed", lambda: frozenset({"matmul"}))
    monkeypatch.setattr(products, "way_of_the_run", lambda *figures: frozenset({"matmul"}))


@pytest.mark.usefixtures("run_in_tf32")
@pytest.mark.parametrize("kernel", [in_tf32, cut_off, torch.matmul])
def test_where_the_run_has_tf32_kernels_may_have_it(kernel: object) -> None:
    verdict = check(kernel, like=torch.matmul, inputs=(normal(24, 64), normal(64, 40, seed=6)))
    assert verdict.passed
    assert verdict.figures["contract"] == "f32 acc24 eager+products-tf32"
    assert verdict.looser == ("products-tf32",)


@pytest.mark.parametrize("change", [products.rounded_to_tf32, products.cut_to_tf32])
def test_fused_attention_whose_products_are_in_tf32(change: Change) -> None:
    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(change(q) @ change(k).mT / 8, -1)
        return change(p) @ change(v)

    like = functional.scaled_dot_product_attention
    inputs = tuple(normal(1, 2, 48, 64, seed=seed) for seed in (1, 2, 3))
    wrong(kernel, like, inputs)
    assert check(kernel, like=like, inputs=inputs, contract="products-tf32").passed
    wrong(lambda q, k, v: kernel(q, k.flip(1), v), like, inputs, contract="products-tf32")


@pytest.mark.usefixtures("run_in_tf32")
def test_where_the_run_has_tf32_bf16_is_wrong_all_the_same() -> None:
    def narrow(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.bfloat16().float() @ b.bfloat16().float()).float()

    wrong(narrow, torch.matmul, (normal(24, 64), normal(64, 40, seed=6)))


def test_what_a_run_had_is_nearest_to_it() -> None:
    a, b = normal(24, 64), normal(64, 40, seed=6)
    exact, cut = a.double() @ b.double(), in_tf32(a, b)
    assert products.distance(a @ b, exact.float()) < products.distance(a @ b, cut)
    assert products.distance(cut, cut) == 0 < products.distance(cut, exact.float())
    assert products.distance(a.bfloat16(), a.bfloat16() + 1) == 0
    assert products.ways(frozenset({"cudnn"}), False) == [frozenset(), {"cudnn"}]
    assert products.ways(frozenset({"cudnn"}), True) == [
        frozenset(), {"cudnn"}, products.ANYWHERE
    ]  # fmt: skip
    assert products.ways(frozenset({"matmul"}), True) == [frozenset(), {"matmul"}]


class Deep(torch.nn.Module):
    """Products between norms: the share that a cut takes from each of them is lost again."""

    def __init__(self, layers: int, change: Change | None = None) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(normal(48, 48, seed=i) for i in range(layers))
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for w in self.weights:
            a, b = (x, w) if self.change is None else (self.change(x), self.change(w))
            x = functional.layer_norm(a @ b, (48,))
        return x


@pytest.mark.parametrize("change", [products.rounded_to_tf32, products.cut_to_tf32])
def test_a_deep_run_that_cut_off_is_one_in_tf32(
    change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result is no nearer to one that is rounded than to float32."""
    monkeypatch.setattr(products, "may_be_tf32", lambda t: True)
    monkeypatch.setattr(products, "allowed", lambda: frozenset({"matmul"}))
    real = Deep(6, change)

    class Like(Deep):
        """As torch on a GPU: in TF32 if it is not watched, and plain to those who watch."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            watched = torch._C._len_torch_dispatch_stack() > 0
            return super().forward(x) if watched or x.dtype != torch.float32 else real(x)

    verdict = check(real, like=Like(6), inputs=(normal(10, 48, seed=3),))
    assert verdict.passed, str(verdict)
    assert verdict.looser == ("products-tf32",)


def test_outputs_that_nothing_decides_hide_no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cancels is as far off in float32 as in TF32."""
    monkeypatch.setattr(products, "may_be_tf32", lambda t: True)
    monkeypatch.setattr(products, "allowed", lambda: frozenset({"matmul"}))
    deep, real = Deep(6), Deep(6, products.cut_to_tf32)

    def outputs(made: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": made, "z": made * 2, "cancels": (made / 40_000 + 3) - 3}

    def like(x: torch.Tensor) -> dict[str, torch.Tensor]:
        watched = torch._C._len_torch_dispatch_stack() > 0
        return outputs((deep if watched or x.dtype != torch.float32 else real)(x))

    verdict = check(lambda x: outputs(real(x)), like=like, inputs=(normal(10, 48, seed=3),))
    assert verdict.looser == ("products-tf32",), str(verdict)


NONE, SOME = frozenset[str](), frozenset({"matmul"})


@pytest.mark.parametrize(
    ("run", "plain", "tf32", "way"),
    [
        ([3e-4], [1e-6], [4e-4], SOME),
        ([3e-6], [1e-6], [4e-4], NONE),  # as float32
        ([3e-4], [1e-6], [1e-6], NONE),  # nothing was in TF32
        ([3e-1], [1e-6], [4e-4], NONE),  # nor was it that
        # what is a mean of 0, and the end of a deep model, tell nothing
        ([3e-4, 1.0, 0.1], [1e-6, 1e285, 0.1], [2e-4, 1e285, 0.1], SOME),
        ([3e-6, 1.0, 0.1], [1e-6, 1e285, 0.1], [2e-4, 1e285, 0.1], NONE),
    ],
)
def test_the_way_of_a_run(
    run: list[float], plain: list[float], tf32: list[float], way: frozenset[str]
) -> None:
    """One that cut operands off: as far from what rounds them as from float32."""
    assert products.way_of_the_run({NONE: run, SOME: run}, {NONE: plain, SOME: tf32}, run) == way


def test_the_way_of_a_run_is_the_nearest() -> None:
    errors = {NONE: [1e-6], SOME: [4e-4]}
    assert products.way_of_the_run({NONE: [4e-4], SOME: [1e-6]}, errors, [4e-4]) == SOME
    assert products.way_of_the_run({NONE: [1e-6], SOME: [4e-4]}, errors, [1e-6]) == NONE
