"""Large outputs: chosen rows are judged with simulated kernels, all elements are compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checked import normal
from torch.nn import functional

from python_inspector import Verdict, WrongError, check, draw, prepare
from python_inspector.api.large_calls import Places
from python_inspector.recorder import large
from python_inspector.recorder.arguments import Given
from python_inspector.recorder.one_call import OneCallRecording
from python_inspector.trace import room

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness", "small")

Kernel = Callable[..., Any]
ROWS, COLUMNS = 200, 48


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is large is so here: outputs of more than 1,000 elements, in pieces of 20 rows."""
    for where in ("", "_ON_DEVICE"):
        monkeypatch.setattr(large, f"ELEMENTS{where}", 1000)
        monkeypatch.setattr(large, f"CHOSEN{where}", 16 * COLUMNS)
        monkeypatch.setattr(large, f"PIECE{where}", 20 * COLUMNS)


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return weight * wide.to(x.dtype)


def other_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    mean = torch.linalg.vecdot(wide, wide)[:, None] / x.shape[-1]
    return weight * (wide / (mean + 1e-5).sqrt()).to(x.dtype)


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return normal(ROWS, COLUMNS, dtype=dtype), normal(COLUMNS, dtype=dtype, seed=6)


def verdict_of(judge: Callable[..., Verdict], *arguments: Any, **options: Any) -> Verdict:
    try:
        return judge(*arguments, **options)
    except WrongError as error:
        return error.verdict


def changed(at: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Kernel:
    def kernel(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = other_norm(x, weight)
        y[at] = change(y[at])
        return y

    return kernel


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_right_kernels_pass_and_the_verdict_says_how(dtype: torch.dtype) -> None:
    judge = prepare(norm, operands(dtype))
    for kernel in (norm, other_norm):
        verdict = judge(kernel)
        assert f"16 of {ROWS} rows" in verdict.reason
        assert f"all {ROWS * COLUMNS} elements compared with float64" in verdict.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("row", [0, 1, 57, 130, 198, 199])
def test_no_wrong_element_and_no_wrong_row_hides(row: int, dtype: torch.dtype) -> None:
    judge = prepare(norm, operands(dtype), explain=False)
    for kernel, place in (
        (changed((row, 17), lambda y: y + 1), f"[{row}, 17] of [{ROWS}, {COLUMNS}]"),
        (changed((row, 47), lambda y: y * torch.nan), f"[{row}, 47] of [{ROWS}, {COLUMNS}]"),
        (changed(row, lambda y: y * 1.05), ""),
        (changed(row, lambda y: y.roll(1)), ""),
    ):
        verdict = verdict_of(judge, kernel)
        assert verdict.status == "fail"
        assert place in str(verdict)
        assert str(row) in verdict.reason


def test_what_operands_cannot_show_is_said_of_the_chosen_rows() -> None:
    x, weight = operands(torch.float32)
    assert not any("values of" in it for it in check(norm, norm, (x, weight)).blind_to)
    alike = check(lambda x, w: x.tanh(), lambda x, w: x.tanh() + w * 0, (x, weight)).blind_to
    assert "the values of w: other ones give the same" in alike


def test_hard_operands_are_judged_by_rows_too() -> None:
    judge = prepare(norm, operands(torch.float32), hard=["zeros", "small", "denormals"])
    verdict = judge(other_norm)
    assert [it.reason.count(f"16 of {ROWS} rows") for it in verdict.cases] == [1] * 4

    def one_of_nothing(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return other_norm(x, weight) + (x == 0).all(-1, keepdim=True)

    assert verdict_of(judge, one_of_nothing).reason.startswith("3 of 4 cases pass\n")


def test_rows_that_are_infinite_where_none_is_chosen_are_no_hard_case() -> None:
    x = normal(ROWS, COLUMNS)
    for size, told in ((1.0, 0), (1e21, 1)):
        x[57] = size  # not chosen
        verdict = check(torch.square, torch.square, x, hard=["ties"], explain=False)
        assert verdict.reason.count("the reference says nothing of: ties") == told, verdict


@pytest.mark.host  # draw() draws there
def test_weights_of_each_case_are_its_own() -> None:
    x = normal(ROWS, COLUMNS)
    weights = {"weight": draw((COLUMNS,), seeds=2)}
    verdict = check(other_norm, norm, (x,), weights=weights, hard=["signed"], explain=False)
    assert all(f"16 of {ROWS} rows" in it.reason for it in verdict.cases)

    def careless(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return norm(x, weight.abs())

    weights = {"weight": draw((COLUMNS,), seeds=1).tensor(0).abs()}
    assert check(careless, norm, (x,), weights=weights, explain=False).passed
    options: dict[str, Any] = {"weights": weights, "hard": ["signed"], "explain": False}
    assert ":signed#" in verdict_of(check, careless, norm, (x,), **options).reason


def test_the_smallest_case_is_cut_from_the_chosen_rows(tmp_path: Path) -> None:
    def tail_lost(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = other_norm(x, weight)
        y[:, x.shape[1] // 16 * 16 :] = 0
        return y

    x, weight = normal(ROWS, 50), normal(50)
    options: dict[str, Any] = {"keep": tmp_path, "explain": False, "shrink": 60}
    verdict = verdict_of(check, tail_lost, norm, (x, weight), **options)
    assert verdict.smallest.startswith("[1, 1], [1]; python ")


def test_what_is_wrong_in_all_rows_is_named_by_its_bug() -> None:
    def without_the_last(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        mean = x[:, :-1].pow(2).sum(-1, keepdim=True) / x.shape[-1]
        return weight * x * torch.rsqrt(mean + 1e-5)

    verdict = verdict_of(check, without_the_last, norm, operands(torch.float32))
    assert verdict.status == "fail"
    assert "the last of 48 terms" in str(verdict.known_bug)
    assert f"of {ROWS}, judged alone" in verdict.reason


def test_limits_of_other_rows_fail_none() -> None:
    """Of a row whose terms cancel correct kernels are further off than of all chosen ones."""

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w

    def in_parts(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return sum(x[:, i : i + 1] * w[i] for i in range(COLUMNS))

    x, w = normal(ROWS, COLUMNS), normal(COLUMNS, COLUMNS, seed=3)
    w[40] = -w[7]
    x[77, 7] = x[77, 40] = 3e3
    verdict = check(in_parts, like=product, inputs=(x, w), explain=False)
    assert "more that are the furthest off" in verdict.reason


@pytest.mark.parametrize(
    ("like", "inputs"),
    [
        (lambda x: x.softmax(0), (normal(ROWS, COLUMNS),)),
        (lambda x: x - x.mean(), (normal(ROWS, COLUMNS),)),
        (lambda x: x.flip(0), (normal(ROWS, COLUMNS),)),
        (lambda x: (x.relu(), x.sum()), (normal(ROWS, COLUMNS),)),
        (lambda x: x.relu_(), (normal(ROWS, COLUMNS),)),
        (lambda x: x.reshape(ROWS, 6, 8), (normal(ROWS, COLUMNS),)),
    ],
)
def test_what_is_no_function_of_rows_is_judged_whole(like: Kernel, inputs: Any) -> None:
    assert "rows" not in check(like, like=like, inputs=inputs, explain=False).reason


def test_rows_that_mix_elsewhere_alone_are_not_believed() -> None:
    """One row that is not chosen takes its values from the first."""
    chosen = set(large.chosen_tokens(ROWS, 16))
    other = next(row for row in range(100, ROWS) if row not in chosen)

    def mixes(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if len(x) == ROWS:
            y[other] = y[0]
        return y

    x = (normal(ROWS, COLUMNS),)
    assert "rows" not in check(mixes, like=mixes, inputs=x, explain=False).reason
    assert verdict_of(check, lambda x: x * 2, mixes, x).status == "fail"


@pytest.mark.parametrize(
    ("like", "shapes"),
    [
        (lambda a, b: a @ b, ((64, 12, 8), (64, 8, 10))),
        (lambda x, w: x @ w.T, ((ROWS, 24), (ROWS, 24))),
        (lambda x, w: functional.conv2d(x, w), ((12, 3, 12, 12), (8, 3, 3, 3))),
        (lambda x, y: x + y, ((1, ROWS, 24), (1, ROWS, 24))),
        (lambda q, k: functional.scaled_dot_product_attention(q, k, k), ((1, 8, 40, 16),) * 2),
        (lambda x, y: (x.argmax(-1), x * y), ((ROWS, COLUMNS),) * 2),
        (lambda x, y: torch.complex(x, y), ((ROWS, 24),) * 2),
    ],
)
def test_operands_with_and_without_rows(like: Kernel, shapes: tuple[tuple[int, ...], ...]) -> None:
    inputs = tuple(normal(*shape, seed=i) for i, shape in enumerate(shapes))
    judge = prepare(like, inputs, explain=False)
    assert "elements compared" in judge(like).reason

    def wrong(*given: torch.Tensor) -> Any:
        made = like(*given)
        last = made[-1] if isinstance(made, tuple) else made
        last[torch.unravel_index(torch.tensor(2 * last.numel() // 3), last.shape)] += 5
        return made

    assert verdict_of(judge, wrong).status == "fail"


def test_indices_are_compared_with_those_of_the_code() -> None:
    chosen = set(large.chosen_tokens(ROWS, 15))
    row = next(row for row in range(100, ROWS) if row not in chosen)

    def like(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.argmax(-1, keepdim=True), x.exp()

    def wrong(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        at, y = like(x)
        at[row] = (at[row] + 1) % COLUMNS
        return at, y

    judge = prepare(like, (normal(ROWS, COLUMNS),), explain=False)
    assert "elements compared" in judge(like).reason
    verdict = verdict_of(judge, wrong)
    assert verdict.status == "fail"
    assert f"of row {row} of {ROWS}" in verdict.reason


def test_whole_calls_are_compared_in_shape_and_arguments() -> None:
    judge = prepare(norm, operands(torch.float32))
    verdict = verdict_of(judge, lambda x, w: norm(x, w)[: ROWS - 1])
    assert f"out is [{ROWS - 1}, {COLUMNS}], `like` returns [{ROWS}, {COLUMNS}]" in verdict.reason
    assert "judged alone" not in verdict.reason

    def writes(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = norm(x, weight)
        x[120, 5] = 9
        return y

    assert "the first at [120, 5]" in verdict_of(judge, writes).reason
    calls: list[None] = []

    def unstable(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        y = norm(x, weight)
        y[121, 3] *= 1 + 1e-7 * len(calls)
        return y

    verdict = verdict_of(judge, unstable)
    assert (verdict.status, "[121, 3]" in verdict.reason) == ("nondeterministic", True)


def test_a_case_that_is_kept_is_that_of_the_rows_that_fail(tmp_path: Any) -> None:
    kernel = changed((130, 4), lambda y: y + 2)
    verdict = verdict_of(check, kernel, norm, operands(torch.float32), keep=tmp_path / "case")
    assert verdict.status == "fail"
    assert verdict.replay.startswith("harness judge")


@pytest.mark.host
def test_simulated_kernels_run_one_after_the_other_where_memory_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the verdict is the same."""
    rows: list[int] = []
    original = room.stack_elements

    def noted(otherwise: int) -> int:
        rows.append(original(otherwise))
        return rows[-1]

    monkeypatch.setattr("python_inspector.trace.simulation.stack_elements", noted)
    inputs = operands(torch.float32)
    free = check(other_norm, like=norm, inputs=inputs)
    assert min(rows) > 1 << 20
    rows.clear()
    monkeypatch.setattr(large, "ROOM_ON_HOST", 1 << 17)
    bounded = check(other_norm, like=norm, inputs=inputs)
    assert max(rows) <= (1 << 17) // 128
    assert bounded.status == free.status == "pass"
    assert "2 of 200 rows" in bounded.reason


@pytest.mark.host
def test_a_small_output_is_large_where_there_is_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = (normal(10, 20),)
    assert "rows" not in check(torch.tanh, like=torch.tanh, inputs=inputs).reason
    monkeypatch.setattr(large, "ROOM_ON_HOST", 1 << 14)
    assert "of 10 rows" in check(torch.tanh, like=torch.tanh, inputs=inputs).reason


@pytest.mark.parametrize("where", [(OneCallRecording, "add"), (Given, "of")])
def test_where_there_is_no_memory_prepare_says_so(
    where: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = operands(torch.float32)

    def full(own: Any, value: Any, *_: Any, **__: Any) -> Any:
        if value == {}:  # no weights
            return value
        raise torch.cuda.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 139.80 "
            "GiB of which 1.68 GiB is free."
        )

    monkeypatch.setattr(*where, full)
    judge = prepare(norm, inputs)
    verdict = verdict_of(judge, norm)
    assert verdict.status == "blind"
    assert "4.00 GiB more are needed, GPU 0 has 139.80 GiB" in verdict.reason


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("worst [2, 5] of [3, 9]", "worst [40, 5] of [77, 9]"),
        ("worst [0..1, 0..7] of [3, 9]", "worst [7..19, 0..7] of [77, 9]"),
        ("worst [:, 5] of [3, 9]", "worst [:, 5] of [77, 9]"),
        ("largest difference 2 at (1, 8)", "largest difference 2 at (19, 8)"),
        ("axis 0: 0..2 of 3, axis 1: 2 of 9", "axis 0: 7..40 of 77, axis 1: 2 of 9"),
        ("T 1, C 2", "T 19, C 2"),
        ("[2, 5] of [9, 9]", "[2, 5] of [9, 9]"),
    ],
)
def test_places_are_those_in_the_whole(words: str, expected: str) -> None:
    places = Places(0, (7, 19, 40), 77, frozenset({"T"}))
    assert places.words(words) == expected
    assert places.of({"a": [words, 3]}) == {"a": [expected, 3]}
