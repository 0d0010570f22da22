"""invariant(), and check(relations=): rows compared with themselves in other calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plumbline
import pytest
import torch
from batch_variance import norm_in_one_block, normal, operands, persistent, product_by_rows
from torch import Tensor
from transformers import DynamicCache
from verdict_schemas import valid

from python_inspector import UsageError, Verdict, WrongError, check, draw, invariant
from python_inspector.api.relations import RELATIONS, variations
from python_inspector.api.rows import rows_of, varied
from python_inspector.cli import inspector as command

Kernel = Callable[..., Any]
X, WEIGHT = normal(5, 256), normal(256)


def found(kernel: Kernel, inputs: Any, *vary: str, **options: Any) -> Verdict:
    with pytest.raises(WrongError) as raised:
        invariant(kernel, inputs, vary or RELATIONS, **options)
    return raised.value.verdict


def broken(verdict: Verdict) -> set[str]:
    outputs = verdict.figures["outputs"]
    return {gate["name"] for it in outputs for gate in it["gates"] if not gate["passed"]}


def test_it_is_where_a_user_looks() -> None:
    assert "invariant" in dir(plumbline)
    assert plumbline.invariant is invariant


def test_a_pass_says_how_many_calls_agreed_and_which_operands_have_rows() -> None:
    verdict = invariant(norm_in_one_block, (X, WEIGHT))
    assert verdict.passed and verdict.block == "relations"
    assert "rows of x (axis 0)" in verdict.reason
    tried = set(RELATIONS) - {"stream", "ragged"}
    assert all(f"{name} " in verdict.reason for name in tried)


def test_a_failure_names_relation_place_both_values_and_rows() -> None:
    verdict = found(product_by_rows, operands(4)())
    assert verdict.status == "fail" and broken(verdict) == {"batch", "chunks"}
    for words in ("batch: out [0, ", "in the whole call", "with row 0 of 4 alone", "x (axis 0)"):
        assert words in str(verdict)
    told = valid(verdict.to_json(), "verdict")
    assert told["worst"]["gate"] == "batch" and told["worst"]["where"].endswith("row 0 of 4 alone")


# --- One relation each


def shifted_by_the_first(x: Tensor) -> Tensor:
    return x + 0 * x[:1]


def numbered(x: Tensor) -> Tensor:
    return x + torch.arange(len(x), device=x.device)[:, None]


def largest_of_all(x: Tensor) -> Tensor:
    return x / x.abs().amax()


def last_row_otherwise(x: Tensor) -> Tensor:
    out = x * 2
    out[-1] += 1
    return out


class Counts:
    """Adds one more at each call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + self.calls


@pytest.mark.parametrize(
    ("kernel", "relation"),
    [
        (shifted_by_the_first, "neighbours"),
        (numbered, "position"),
        (largest_of_all, "batch"),
        (last_row_otherwise, "padding"),
        (last_row_otherwise, "chunks"),
    ],
)
def test_each_relation_finds_a_fault(kernel: Kernel, relation: str) -> None:
    assert broken(found(kernel, X, relation)) == {relation}


def test_equal_calls_that_differ_are_nondeterminism_whatever_else_is_asked() -> None:
    assert found(Counts(), X, "batch").status == "nondeterministic"
    assert "repeat: out [0, 0]" in found(Counts(), X).reason


def test_only_the_rows_that_are_left_alone_have_to_agree() -> None:
    """NaN stays where it was put."""
    assert invariant(lambda x: x * 2, X, "neighbours").passed


def test_nan_equals_nan_and_zeros_have_signs() -> None:
    other_nan = lambda x: -x if len(x) == 1 else x.clone()  # noqa: E731
    assert invariant(other_nan, torch.full((3, 4), torch.nan)).passed
    assert broken(found(lambda x: x * 0.0 * (1 if len(x) > 1 else -1), X, "batch")) == {"batch"}


# --- All that a kernel makes


def writes_by_rows(x: Tensor) -> None:
    x.mul_(2 if len(x) > 2 else 2.5)


def second_output(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x * (3 if len(x) > 1 else 4)


def append(k: Tensor, cache: DynamicCache) -> None:
    cache.update(k, k * (1 if len(k) > 1 else 2), 0)


def test_all_outputs_and_written_arguments_are_compared() -> None:
    assert "x_after [0, 0]" in found(writes_by_rows, X, "batch").reason
    assert "out.1 [0, 0]" in found(second_output, X, "batch").reason
    cache = DynamicCache()
    cache.update(normal(3, 2, 4, 8), normal(3, 2, 4, 8), 0)
    reason = found(append, (normal(3, 2, 1, 8), cache), "batch").reason
    assert "cache.0.values_after [0, 0, 4, 0]" in reason
    assert "cache.0.keys" in reason  # has rows, too


def test_what_a_call_adds_to_a_cache_has_rows() -> None:
    verdict = invariant(
        lambda k, cache: cache.update(k, k, 0), (normal(3, 2, 1, 8), DynamicCache())
    )
    assert not [it for it in verdict.not_judged if "no rows" in it]
    assert (
        "cache.0.values_after [0, 0" in found(append, (normal(3, 2, 1, 8), DynamicCache())).reason
    )


def test_a_table_of_all_rows_that_is_written_has_none() -> None:
    def kernel(x: Tensor, count: Tensor) -> Tensor:
        count += len(x)
        return x * 2

    verdict = invariant(kernel, (X, torch.zeros(2)), "batch")
    assert verdict.not_judged == ("count_after: it has no rows",)


def test_an_argument_that_is_written_in_a_small_batch_alone_fails() -> None:
    def kernel(x: Tensor, table: Tensor) -> Tensor:
        if len(x) == 2:
            table[0] = 1
        return x + table

    assert "argument table was changed" in found(kernel, (normal(5, 256), normal(256))).reason


def test_what_a_kernel_raises_in_another_call_is_a_verdict() -> None:
    def kernel(x: Tensor) -> Tensor:
        if len(x) % 2 == 0:
            raise RuntimeError("not a multiple")
        return x * 2

    reason = found(kernel, X, "padding").reason
    assert reason.startswith("padding: the function raised RuntimeError: not a multiple, with 1 ")


def test_another_shape_is_told_with_the_operands_that_were_cut() -> None:
    reason = found(lambda x, w: x @ w.T, (normal(4, 64), normal(4, 64)), "batch").reason
    assert "is [1, 1] torch.float32, expected [1, 4]" in reason
    assert "rows are those of x (axis 0), w (axis 0)" in reason


# --- Where rows are


def test_the_rows_are_those_of_the_first_floating_tensor() -> None:
    given = {"ids": torch.arange(4), "x": X[:4], "w": WEIGHT, "valid": torch.ones(4).bool()}
    rows = rows_of(given, None)
    assert rows.axes == {"ids": 0, "x": 0, "valid": 0} and rows.count == 4


def test_operands_of_a_module_have_the_names_of_its_forward() -> None:
    assert "rows of input (axis 0)" in invariant(torch.nn.LayerNorm(256), normal(5, 256)).reason


def test_batch_names_an_axis_or_operands() -> None:
    x = normal(3, 5, 256)
    assert rows_of({"x": x, "y": normal(7, 5)}, 1).axes == {"x": 1, "y": 1}
    assert rows_of({"x": x, "y": normal(3, 2)}, {"x": -2, "out": 1}).axes == {"x": 1}

    def kernel(x: Tensor) -> Tensor:
        return (x * 2 + 0 * x.sum(1, keepdim=True)).movedim(0, 1)

    assert broken(found(kernel, x, batch={"x": 1, "out": 0})) >= {"neighbours"}
    assert invariant(lambda x: x + 0 * x.sum(1, keepdim=True), x).passed


@pytest.mark.parametrize(
    ("inputs", "batch", "words"),
    [
        ((normal(64, 64), normal(64, 64)), None, "sizes do not show which of them have rows"),
        ((X, WEIGHT), {"y": 0}, "y is named, which is no operand; operands are x, w"),
        ((X, WEIGHT), {"x": 2}, r"x is \[5, 256\]: it has no axis 2"),
        ((X, WEIGHT), {"x": 0, "w": 0}, "w has 256 rows along axis 0, x has 5"),
        ((X, WEIGHT), -1, "the axis is -1, expected 0 or more"),
    ],
)
def test_what_cannot_be_told_is_an_error(inputs: Any, batch: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        invariant(lambda x, w: x @ w.T if w.ndim == 2 else x * w, inputs, batch=batch)


def test_what_cannot_be_tried_is_named() -> None:
    one = invariant(lambda x: x * 2, X[:1])
    assert one.passed
    named = [it for it in one.not_judged if it.endswith(": x (axis 0) has one row")]
    assert [it.split(":")[0] for it in named] == ["batch", "position", "neighbours", "chunks"]
    whole = invariant(lambda x: {"rows": x * 2, "sum": x.sum()}, X, "batch")
    assert whole.not_judged == ("out.sum: it has no rows",)
    assert whole.passed


@pytest.mark.parametrize(
    ("kernel", "inputs", "why"),
    [
        (lambda x: x * 2, torch.tensor(2.0), "no operand has an axis 0; batch= names one"),
        (lambda x: x.sum(), X, r"no output has the 5 rows of x \(axis 0\)"),
        (lambda x: x * 2, X[:1], r"x \(axis 0\) has one row"),
    ],
)
def test_where_nothing_can_be_tried_nothing_is_proved(
    kernel: Kernel, inputs: Any, why: str
) -> None:
    verdict = found(kernel, inputs, "batch")
    assert verdict.status == "blind" and verdict.reason == "no relation could be tried"
    with pytest.raises(WrongError, match=why):
        invariant(kernel, inputs, "batch")


@pytest.mark.parametrize(
    ("vary", "words"),
    [
        ("bach", "relation 'bach' is unknown; known are batch, position"),
        ({"batch": "nearly"}, "demands 'nearly', expected bits or limits"),
        ({"batch": "limits"}, "limits come of a reference"),
    ],
)
def test_unknown_words_are_refused(vary: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        invariant(lambda x: x, X, vary)


def test_a_kernel_that_makes_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="returns no tensor and writes to no argument"):
        invariant(lambda x: None, X)


# --- Other arrays, dtypes and layouts


def test_kernels_of_numpy_are_tried_as_well() -> None:
    def in_numpy(x: Any) -> Any:
        return x * np.float32(2 if len(x) > 1 else 3)

    assert invariant(lambda x: x * np.float32(2), X, arrays="numpy").passed
    assert broken(found(in_numpy, X, arrays="numpy")) == {"batch", "chunks"}


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64,
     torch.int32, torch.bool],
    ids=str,
)  # fmt: skip
def test_every_dtype_has_rows(dtype: torch.dtype) -> None:
    x = X > 0 if dtype == torch.bool else (X * 3).to(dtype)
    assert invariant(lambda x: x.clone(), x).passed
    assert broken(found(lambda x: x.roll(1, 0), x, "position", "batch"))


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_keep_strides_and_alignment(axis: int) -> None:
    """Of a part of a larger tensor, and of one whose axes were exchanged."""
    whole = normal(5, 6, 67)
    x = whole[:, :, 3:35] if axis == 0 else whole.movedim(0, 1)
    rows = rows_of({"x": x}, axis)
    for it in variations("batch", rows.count):
        ((made,), _), _ = varied(((x,), {}), {"x": x}, rows, it)
        assert made.stride()[2] == 1
        order = sorted(range(3), key=lambda i: -x.stride()[i])
        assert sorted(range(3), key=lambda i: -made.stride()[i]) == order
        assert torch.equal(made, x.index_select(axis, torch.tensor(it.source, device=x.device)))
        if axis == 0:
            assert made.stride() == x.stride()
            assert made.data_ptr() % 64 == x.data_ptr() % 64


def test_drawn_inputs_are_tried_one_after_another() -> None:
    verdict = invariant(norm_in_one_block, (draw((4, 256)), WEIGHT), "batch")
    assert verdict.passed and len(verdict.cases) > 5


# --- In check()


def like(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.T


def far_off_alone(x: Tensor, weight: Tensor) -> Tensor:
    return persistent(x, weight) * (1 if len(x) > 1 else 1.001)


@pytest.mark.usefixtures("harness")
def test_check_demands_bits_or_limits() -> None:
    inputs = operands(4)()
    verdict = check(product_by_rows, like, inputs, relations={"batch": "limits"}, explain=False)
    assert verdict.passed and "other bits, within limits: batch 3 of 5" in verdict.reason
    with pytest.raises(WrongError, match=r"batch: out .* with row 0 of 4 alone"):
        check(product_by_rows, like, inputs, relations="batch", explain=False)
    with pytest.raises(
        WrongError, match=r"batch: gain .* allowed .* with row 0 of 4 alone"
    ) as raised:
        check(far_off_alone, like, inputs, relations={"batch": "limits"}, explain=False)
    assert raised.value.verdict.to_json()["worst"]["gate"] == "batch"
    assert check(persistent, like, inputs, relations=RELATIONS, explain=False).passed


@pytest.mark.usefixtures("harness")
def test_relations_of_a_wrong_kernel_are_named_as_not_tried() -> None:
    with pytest.raises(WrongError, match="batch: the first call does not pass"):
        check(lambda x, w: persistent(x, w) * 1.1, like, operands(4)(), relations="batch")


@pytest.mark.usefixtures("harness")
def test_a_sealed_kernel_is_tried_too(tmp_path: Path) -> None:
    text = (
        "import torch\n"
        "def by_rows(x, weight): return x * weight * (1 if len(x) > 2 else 1 + 2**-20)\n"
        "def right(x, weight): return x * weight\n"
    )
    (tmp_path / "kernels.py").write_text(text)
    options = {"sealed": True, "explain": False, "relations": ["batch", "padding", "stream"]}
    inputs = (X, WEIGHT)
    right = check(f"{tmp_path}/kernels.py:right", torch.mul, inputs, **options)  # type: ignore[arg-type]
    assert right.passed and "batch 6, padding" in right.reason
    with pytest.raises(WrongError, match=r"batch: out .* with row 0 of 5 alone"):
        check(f"{tmp_path}/kernels.py:by_rows", torch.mul, inputs, **options)  # type: ignore[arg-type]


# --- From a shell


KERNELS = """
import torch

def by_rows(x): return x * (2 if len(x) > 1 else 3)
def twice(x): return x * 2
def inputs(): return (torch.arange(32.0).reshape(4, 8) - 9,)
"""


@pytest.mark.usefixtures("harness")
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("twice", "--relations", "all"), 0, "further calls of rows of x"),
        (("by_rows", "--relations", "position,batch"), 1, "batch: out [0, 0] is -18"),
        (("by_rows", "--relations", "position"), 0, "the same bits: position 4"),
        (("by_rows", "--relations", "batch", "--batch", "1"), 0, "rows of x (axis 1)"),
        (("by_rows", "--relations", "batch", "--batch", "x=1"), 0, "rows of x (axis 1)"),
        (("by_rows", "--like", "twice", "--relations", "batch=limits"), 1, "allowed"),
        (("twice", "--like", "twice", "--relations", "all"), 0, "the same bits"),
        (("twice",), 2, "name what the kernel is held to, or --relations"),
        (("twice", "--relations", "bach"), 2, "relation 'bach' is unknown"),
        (("twice", "--relations", "all", "--batch", "x=a"), 2, "expected an axis, or x=0,k=1"),
        (
            ("twice", "--relations", "all", "--sealed"),
            2,
            "--sealed, --contract, --hard, --keep, --backward: only with --like",
        ),
    ],
)
def test_the_command(
    words: tuple[str, ...], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kernels.py"
    file.write_text(KERNELS)
    name, *rest = (f"{file}:{it}" if it in ("twice", "by_rows") else it for it in words)
    try:
        got = command.main(["check", name, "--inputs", f"{file}:inputs", *rest])
    except SystemExit as error:
        got = int(error.code or 0)
    said_so = capsys.readouterr()
    assert (got, said in said_so.out + said_so.err) == (code, True), said_so
