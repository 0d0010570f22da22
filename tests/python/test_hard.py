"""check(hard=...): cases made of a user's own operands, and what they show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checked import normal, wrong

from python_inspector import Sealed, check, draw, prepare
from python_inspector.api.hard import HARD, hard_cases, kinds_of
from python_inspector.api.inputs import Case
from tests.corpus.hidden import by_blocks

pytestmark = pytest.mark.usefixtures("harness")
KERNELS = Path(__file__).parent / "sealed_kernels.py"


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


def softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


def positive(*shape: int) -> torch.Tensor:
    return normal(*shape).abs() + 0.1


def of_kind(kind: str, *operands: Any) -> tuple[Any, ...]:
    return hard_cases(Case(None, (operands, {})), [kind])[kind][0].arguments[0]


def judged_kinds(verdict: Any) -> list[str]:
    return [c.checkpoint.partition(":")[2].partition("#")[0] for c in verdict.cases]


def test_values_are_what_their_kind_says() -> None:
    x = positive(8, 12)
    made = {kind: of_kind(kind, x)[0] for kind in HARD}
    assert bool((made["signed"] < 0).any()) and torch.equal(made["signed"].abs(), x)
    assert made["zeros"].any(1).tolist() == [False, True] * 4
    assert bool((made["equal"][::2] == x[::2, :1]).all()) and torch.equal(
        made["equal"][1::2], x[1::2]
    )
    assert made["huge"][::2].abs().amax(1).min() > 1e15 and torch.equal(made["huge"][1::4], x[1::4])
    assert float(made["huge"][3::4].amin()) > 1e15
    assert float(of_kind("huge", x - 1)[0][3::4].amax()) < -1e15, "where some are negative"
    assert made["inf"].isneginf().sum(1).tolist() == [1, 11, 0, 0] * 2
    smallest = torch.finfo(x.dtype).smallest_normal
    assert bool((made["denormals"][:, 1::2].abs() < smallest).all())
    assert len(made["ties"].unique()) < 20
    assert torch.equal(made["small"], x / 1024) and torch.equal(made["shifted"], x + 32)
    assert float(made["outliers"].amax()) == pytest.approx(100 * float(x[:, ::4].amax()))


def test_what_says_which_and_what_is_equal_stays() -> None:
    ids = torch.arange(6)
    mask = torch.where(torch.ones(4, 4, dtype=torch.bool).tril(), 0.0, -torch.inf)
    half = normal(6, 8, seed=2)
    cosines = torch.cat([half, half], -1)
    ones = torch.ones(16)
    operands = (positive(6, 16), ids, mask, cosines, ones, 3)
    for kind in HARD:
        cases = hard_cases(Case(None, (operands, {})), [kind])
        _, i, m, c, w, number = cases[kind][0].arguments[0]
        assert i is ids and m is mask and w is ones and number == 3
        assert torch.equal(c[:, :8], c[:, 8:])
        if len(cases[kind]) > 1:
            assert cases[kind][1].arguments[0][3] is cosines, "the first operand alone"


def test_shapes_strides_dtypes_and_identity_stay() -> None:
    x = positive(6, 4).T.to(torch.bfloat16).requires_grad_()
    made, again, nested = of_kind("ties", x, x, [x])
    assert (made.shape, made.stride(), made.dtype) == (x.shape, x.stride(), x.dtype)
    assert made.requires_grad and made is again and nested[0] is made
    wide = positive(1, 4).expand(6, 4)
    assert torch.equal(of_kind("small", wide)[0], wide / 1024)


def test_a_kind_that_changes_nothing_is_no_case() -> None:
    assert hard_cases(Case(None, ((normal(4, 8),), {})), ["signed"]) == {}
    assert hard_cases(Case(None, ((torch.ones(4, 8), 2), {})), list(HARD)) == {}


def test_a_right_kernel_passes_on_all_and_the_reference_says_which() -> None:
    verdict = check(softmax, softmax, normal(8, 40), hard=True)
    assert verdict.passed
    assert judged_kinds(verdict) == ["", *(kind for kind in HARD if kind != "signed")]
    roots = check(torch.sqrt, torch.sqrt, positive(8, 40), hard=True)
    assert roots.reason.endswith("cases pass (the reference says nothing of: signed, inf)")
    assert "signed" not in judged_kinds(roots) and "small" in judged_kinds(roots)


def test_the_first_alone_is_hard_where_all_are_too_much() -> None:
    verdict = check(torch.div, torch.div, (positive(6, 8), positive(6, 8)), hard=["zeros"])
    assert verdict.passed and judged_kinds(verdict) == ["", "zeros"]


Kernel = Callable[..., torch.Tensor]


def without_maximum(x: torch.Tensor) -> torch.Tensor:
    return x.exp() / x.exp().sum(-1, keepdim=True)


def last_of_equals(x: torch.Tensor) -> torch.Tensor:
    return x.shape[-1] - 1 - x.flip(-1).argmax(-1)


WRONG: dict[str, tuple[Kernel, Kernel, tuple[Any, ...], str]] = {
    "no maximum": (without_maximum, softmax, (normal(6, 40),), "huge"),
    "a block of -inf": (by_blocks, softmax, (normal(6, 40),), "inf"),
    "absolute values": (lambda x: x, torch.abs, (positive(6, 40),), "signed"),
    "no eps": (
        lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) * w,
        norm, (20 * normal(6, 40), positive(40)), "zeros",
    ),
    "variance by squares": (
        lambda x: (x - x.mean(-1, keepdim=True)) * torch.rsqrt(
            x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True).square() + 1e-5
        ),
        lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]), (normal(6, 40),), "shifted",
    ),
    "denormals flushed": (
        lambda x: torch.where(x.abs() < 1.2e-38, 0.0, x), torch.clone, (normal(6, 40),),
        "denormals",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_passes_on_ordinary_operands_fails_on_hard_ones(name: str) -> None:
    kernel, like, inputs, kind = WRONG[name]
    assert check(kernel, like, inputs, explain=False).passed
    verdict = wrong(kernel, like, inputs, hard=True, explain=False)
    failed = [c.checkpoint for c in verdict.cases if not c.passed]
    assert any(f":{kind}#" in id for id in failed), failed
    assert check(like, like, inputs, hard=True, explain=False).passed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_about_half_of_what_has_one_sign_gets_the_other(dtype: torch.dtype) -> None:
    for made in of_kind("signed", positive(40, 8).to(dtype), 1 + positive(300).to(dtype) / 4):
        assert 0.3 < float((made < 0).float().mean()) < 0.7


def test_weights_by_name_are_hard_too() -> None:
    x, weight = normal(6, 16), positive(16)

    def careless(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return norm(x, weight.abs())

    for like in (norm, torch.nn.RMSNorm(16, eps=1e-5)):
        weights = {"weight": weight}
        assert check(norm, like, (x,), weights=weights, hard=True).passed
        assert check(careless, like, (x,), weights=weights).passed
        assert ":signed#" in str(wrong(careless, like, (x,), weights=weights, hard=True))


def test_weights_may_be_drawn() -> None:
    device = str(normal(1).device)
    for like in (norm, torch.nn.RMSNorm(16, eps=1e-5)):
        weights = {"weight": draw((16,), seeds=3, device=device)}
        verdict = check(norm, like, (draw((6, 16), seeds=3, device=device),), weights=weights)
        assert verdict.reason == "3 of 3 cases pass"
        wrong(
            lambda x, weight: norm(x, weight[:1].expand(16)), like, normal(6, 16), weights=weights
        )


def test_many_kernels_by_one_preparation() -> None:
    judge = prepare(softmax, normal(6, 40), hard=["huge", "ties"])
    assert judged_kinds(judge(softmax)) == ["", "huge", "ties"]
    with pytest.raises(AssertionError, match="2 of 3 cases pass"):
        judge(without_maximum)


def test_an_exception_names_the_operands() -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        if bool((x == 0).any()):
            raise ZeroDivisionError
        return x.tanh()

    with pytest.raises(ZeroDivisionError) as raised:
        check(kernel, torch.tanh, normal(4, 8), hard=True)
    assert raised.value.__notes__ == ["on these operands: tanh:zeros#0"]


def test_unknown_kinds_are_refused() -> None:
    assert kinds_of("zeros") == ("zeros",) and kinds_of(False) == ()
    with pytest.raises(ValueError, match="hard: unknown kind 'odd'; known are signed, zeros"):
        check(softmax, softmax, normal(4, 8), hard=["odd"])


@pytest.mark.host
def test_sealed_kernels_are_called_on_all() -> None:
    options: dict[str, Any] = {"sealed": Sealed(timeout=40), "explain": False, "hard": True}
    root = check(f"{KERNELS}:root", torch.sqrt, positive(4, 8), **options)
    assert root.passed, "it raises where the reference says nothing"
    verdict = wrong(f"{KERNELS}:root", lambda x: x.clamp_min(0).sqrt(), positive(4, 8), **options)
    assert verdict.reason == "the function raised ValueError: a root of a negative number"


@pytest.mark.host
def test_relations_are_tried_on_the_given_operands() -> None:
    root = f"{KERNELS}:root"
    for options in ({}, {"sealed": Sealed(timeout=40)}):
        function = root if options else torch.sqrt
        verdict = check(
            function, torch.sqrt, positive(4, 8), hard=["signed", "small"], relations=["batch"],
            explain=False, **options,
        )  # fmt: skip
        first, small = verdict.cases
        assert "have the same bits: batch" in first.reason and "batch" not in small.reason
