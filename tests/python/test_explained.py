"""What check() adds to the gates: which bug a failure is, what a pass cannot see, how long that may
take."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from checked import normal, wrong

from python_inspector import check, draw
from python_inspector.api.verdict import Verdict
from python_inspector.recorder import one_call
from python_inspector.trace import trials
from python_inspector.trace.bugs import RULES
from python_inspector.trace.trials import Deadline

pytestmark = pytest.mark.usefixtures("harness")


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    wide = x.float()
    n = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * n.to(x.dtype)


def operands(dtype: torch.dtype, rows: int = 4) -> tuple[torch.Tensor, ...]:
    return normal(rows, 64, dtype=dtype), 1 + 0.3 * normal(64, dtype=dtype, seed=9)


def blind(function: Any, inputs: Any, **options: Any) -> str:
    return ", ".join(check(function, like=function, inputs=inputs, **options).blind_to)


# Recorded once.


def test_a_failure_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    rerun = one_call.rerun_anything

    def counted(*args: Any, **options: Any) -> Any:
        runs.append("")
        return rerun(*args, **options)

    monkeypatch.setattr(one_call, "rerun_anything", counted)
    x, weight = operands(torch.bfloat16)
    verdict = wrong(lambda x, w: norm(x, w, 1e-4), norm, (x * 0.01, weight))
    assert "add #0 other 1e-05 -> 0.0001" in str(verdict.known_bug)
    assert len(runs) == 1


def test_the_search_ends_with_the_bug_that_gives_what_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted: list[Any] = []
    of = trials.Trials._with

    def counted(*args: Any) -> Any:
        planted.append(args[-1])
        return of(*args)

    monkeypatch.setattr(trials.Trials, "_with", counted)
    x, weight = operands(torch.float32)
    wrong(lambda x, w: norm(x, w) * 1.37, norm, (x, weight))
    every = len(planted)
    planted.clear()

    def forgets_to_square_the_last(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        squares = x.pow(2)
        squares[:, -1] = x[:, -1]
        return weight * (x * torch.rsqrt(squares.mean(-1, keepdim=True) + 1e-5))

    verdict = wrong(forgets_to_square_the_last, norm, (x, weight))
    assert "pow #0 is skipped in the last column" in str(verdict.known_bug)
    assert len(planted) < every


def test_bugs_have_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(trials.time, "monotonic", lambda: now[0])
    deadline = Deadline(6.0)
    now[0] = 2.0
    assert not deadline.is_over and deadline.share(2).left == 2.0
    now[0] = 6.1
    assert deadline.is_over and not Deadline(None).is_over

    of = trials.Trials._with

    def slow(*args: Any) -> Any:
        now[0] += 1
        return of(*args)

    monkeypatch.setattr(trials.Trials, "_with", slow)
    verdict = check(norm, norm, operands(torch.float32), explain=4)
    assert verdict.planted is not None and 0 < verdict.planted[0] <= 4 < verdict.planted[1]
    assert f"{verdict.planted[0]} of {verdict.planted[1]} planted bugs" in str(verdict)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_nan_everywhere_is_no_known_bug(dtype: torch.dtype) -> None:
    def like(x: torch.Tensor) -> torch.Tensor:
        return (x + 10).log()  # without the sum, or with another sign of it: NaN

    x = -normal(8, 64, dtype=dtype).abs() - 0.1
    assert wrong(lambda x: x * torch.nan, like, x).known_bug is None
    named = wrong(lambda x: -(x + 10).log(), like, x).known_bug
    assert named is not None and named.startswith("the sign of log #0 is flipped")


def test_bugs_are_planted_only_where_they_are_wanted() -> None:
    x, weight = operands(torch.bfloat16)
    assert check(norm, norm, (x, weight), explain=False).blind_to == ()
    failed = wrong(lambda x, w: norm(x, w, 1e-4), norm, (x * 0.01, weight), explain=False)
    assert failed.known_bug is None
    assert failed.blind_to == ()


def test_a_kernel_may_keep_roundings_without_bugs() -> None:
    """Other ways to round are part of the verdict, planted bugs are not."""

    def like(x: torch.Tensor) -> torch.Tensor:
        return x.tanh() * 3 + x

    x = normal(6, 8, 32, dtype=torch.bfloat16)
    kernel = lambda x: (x.tanh().float() * 3 + x.float()).to(x.dtype)  # noqa: E731
    assert check(kernel, like, x, explain=False).rounding == "keeps mul #0 in float32"


# What a pass cannot see.


def test_a_pass_says_that_it_does_not_see_eps() -> None:
    words = blind(norm, operands(torch.bfloat16))
    line = norm.__code__.co_firstlineno + 2
    assert f"add #0 is skipped (test_explained.py:{line})" in words
    assert f"add #0 other 1e-05 -> 0.0001 (test_explained.py:{line})" in words
    assert "blind to: add #0" in str(check(norm, norm, operands(torch.bfloat16)))


def test_a_pass_that_sees_eps_does_not_say_so() -> None:
    x, weight = operands(torch.bfloat16)
    assert blind(norm, (x * 1e-3, weight)) == ""
    assert blind(norm, operands(torch.float32)) == ""


def test_a_pass_does_not_see_a_softcap_that_no_score_reaches() -> None:
    def capped(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x / 50) * 50

    x = normal(8, 32, dtype=torch.bfloat16)
    assert "tanh #0 is skipped" in blind(capped, x)
    assert blind(capped, 60 * x) == ""


def rotary(q: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
    steps = torch.arange(0, q.shape[-1], 2, device=q.device).float() / q.shape[-1]
    angles = torch.cat([position_ids[..., None] * 1e4**-steps] * 2, -1)
    cos, sin = angles.cos().to(q.dtype)[:, None], angles.sin().to(q.dtype)[:, None]
    a, b = q.chunk(2, -1)
    return q * cos + torch.cat([-b, a], -1) * sin


def test_a_pass_does_not_see_the_last_rotary_dimension_at_small_positions() -> None:
    q, positions = normal(2, 4, 12, 64, dtype=torch.bfloat16), torch.arange(12)
    near = blind(rotary, (q, torch.stack([positions, positions + 1])))
    assert "add #0 is skipped, its self is the result in the last column" in near
    far = blind(rotary, (q, torch.stack([positions, positions + 1]) * 1000))
    assert "add #0" not in far


def test_positions_that_are_equal_are_told() -> None:
    q, positions = normal(2, 4, 12, 64, dtype=torch.bfloat16), torch.arange(12)
    words = blind(rotary, (q, positions.expand(2, -1)))
    assert "the index of axis 0 at which position_ids is read: all are equal" in words
    assert "position_ids" not in blind(rotary, (q, torch.stack([positions, positions + 1])))


def test_a_bias_near_zero_is_told() -> None:
    linear = torch.nn.Linear(64, 32).bfloat16()
    linear.bias.data.mul_(1e-6)
    assert "without its self" in blind(linear, normal(8, 64, dtype=torch.bfloat16))
    linear.bias.data.mul_(1e6)
    assert blind(linear, normal(8, 64, dtype=torch.bfloat16)) == ""


def test_what_does_nothing_on_these_inputs_is_told_and_what_is_no_bug_is_not() -> None:
    x = normal(8, 32)
    assert "relu #0 is skipped" in blind(torch.nn.ReLU(), x.abs())
    assert blind(torch.nn.ReLU(), x) == ""
    stable = lambda x: (x - x.amax(-1, keepdim=True)).softmax(-1)  # noqa: E731
    assert blind(stable, x) == ""


def test_drawn_cases_are_blind_to_what_none_of_them_shows() -> None:
    x, weight = operands(torch.bfloat16)
    usual = draw(x.shape, x.dtype, kinds=["normal", "outliers"], device=str(x.device))
    assert "add #0 is skipped" in blind(norm, (usual, weight))
    assert blind(norm, (draw(x.shape, x.dtype, device=str(x.device)), weight)) == ""


def test_operands_that_prove_nothing_are_named() -> None:
    x, weight = operands(torch.float32)
    ones = torch.ones_like(weight)
    assert "which element of weight is read: all are equal" in blind(norm, (x, ones))
    rows = x[:1].expand(x.shape)
    assert "the index of axis 0 at which x is read: all are equal" in blind(norm, (rows, weight))

    def attention(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (q @ k.T).softmax(-1)

    assert "q in place of k: they are equal" in blind(attention, (x, x.clone()))
    assert blind(attention, (x, x.flip(0))) == ""

    def unbiased(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return x.tanh() + bias * 0

    said = blind(unbiased, (x, weight))
    assert "the values of bias: other ones give the same" in said and "values of x" not in said


def test_hard_operands_show_what_these_do_not() -> None:
    x, weight = operands(torch.float32)
    rows = x[:1].expand(x.shape)
    said = "the index of axis 0 at which x is read: all are equal"
    assert said in check(norm, norm, (rows, weight)).blind_to
    assert said not in check(norm, norm, (rows, weight), hard=["zeros"]).blind_to


def test_a_failure_and_what_is_not_judged_have_no_blind_spots() -> None:
    x, weight = operands(torch.bfloat16)
    assert wrong(lambda x, w: 2 * norm(x, w), norm, (x, weight)).blind_to == ()


def test_the_rules_are_those_of_recordings() -> None:
    assert {kind for kind, _ in trials.of_a_failure()} == set(RULES)


def test_a_verdict_says_how_many_were_tried_where_time_was_up() -> None:
    known: dict[str, Any] = {"checkpoint": "f#0", "block": "module", "status": "pass"}
    verdict = Verdict(**known, reason="", figures={}, blind_to=("a", "b"), planted=(3, 40))
    assert str(verdict).endswith("blind to: a, b (time was up after 3 of 40 planted bugs)")


def test_errors_are_the_packages_and_dir_lists_what_there_is() -> None:
    import python_inspector

    assert set(python_inspector.__all__) <= set(dir(python_inspector))
    for name in ("WrongError", "HarnessError", "RecordError", "RecordWarning"):
        error = getattr(python_inspector, name)
        assert f"{error.__module__}.{error.__qualname__}" == f"plumbline.{name}"
        assert pickle.loads(pickle.dumps(error)) is error


# Rules meet operations as they are called.


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.norm(x, p=2, dim=1, keepdim=True),
        lambda x: torch.norm(x, dim=(0, 1)),
        lambda x: torch.cumsum(x, 0),
        lambda x: x.std(1, correction=0),
        lambda x: x.amax((0, 1)) + x.prod(1),
        lambda x: torch.logsumexp(x, (0, 1)) + torch.logcumsumexp(x, 1),
    ],
)
def test_a_failing_case_is_explained_whatever_its_axes_are(call: Any) -> None:
    verdict = wrong(lambda x: call(x) * 1.5, call, normal(6, 8).abs() + 0.5)
    assert verdict.status == "fail"


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


@pytest.mark.parametrize("seed", range(4))
def test_a_bug_that_changes_little_is_no_name_for_another(seed: int) -> None:
    """The last angles are small: a sign there is within what is allowed."""

    def one_head(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        last = rotated(x[-1:], cos.roll(1, 0), sin.roll(1, 0))
        return torch.cat([rotated(x[:-1], cos, sin), last])

    heads, tokens, head_dim = ((4, 9, 32), (2, 17, 64))[seed % 2]
    angles = torch.arange(tokens)[:, None] * 1e4 ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.cat([angles, angles], -1)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(heads, tokens, head_dim, generator=generator)
    inputs = tuple(t.bfloat16() for t in (x, angles.cos(), angles.sin()))
    assert wrong(one_head, rotated, inputs).known_bug is None
