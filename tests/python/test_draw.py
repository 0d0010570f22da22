"""draw(): hard operands, and the cases that check() makes of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checked import wrong

from python_inspector import check, draw
from python_inspector.api.kinds import KINDS, NAMED_KINDS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("harness")


@pytest.mark.host
def test_the_example_passes() -> None:
    example = ROOT / "tests" / "examples" / "judge_module.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", example]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_seed_is_a_case_of_the_next_kind() -> None:
    drawn = draw((4, 32), seeds=11)
    verdict = check(lambda x: x.double().softmax(-1), lambda x: x.softmax(-1), inputs=drawn)
    kinds = [case.checkpoint.partition(":")[2].partition("#")[0] for case in verdict.cases]
    assert kinds == [*KINDS, "normal", "outliers"]
    assert verdict.reason == "11 of 11 cases pass"


def test_a_case_that_fails_is_told_by_its_kind() -> None:
    def overflowing(x: torch.Tensor) -> torch.Tensor:
        return x.exp() / x.exp().sum(-1, keepdim=True)

    drawn = draw((4, 32), kinds=["normal", "outliers"], seeds=2)
    verdict = wrong(overflowing, lambda x: x.softmax(-1), drawn)
    assert verdict.reason.startswith("1 of 2 cases pass\n  lambda:outliers#0 (module): fail")


def test_draws_of_one_call_differ_and_repeat() -> None:
    drawn = draw((3, 5), torch.bfloat16)
    assert torch.equal(drawn.tensor(4), drawn.tensor(4))
    assert not torch.equal(drawn.tensor(0), drawn.tensor(0, salt=1))
    ids = draw((3, 5), torch.int64, high=7).tensor(1)
    assert int(ids.min()) >= 0 and int(ids.max()) < 7
    assert draw((2, 2), torch.bool).tensor(0).dtype == torch.bool


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_drawn_values_are_what_their_kind_says(dtype: torch.dtype) -> None:
    by_kind = {k: draw((4, 48), dtype, kinds=[k]).tensor(0) for k in KINDS | NAMED_KINDS}
    assert all(bool(by_kind[kind].isfinite().all()) for kind in KINDS)
    assert 0 < float(by_kind["small"].abs().max()) < 0.01
    assert bool((by_kind["equal"] == by_kind["equal"][:, :1]).all())
    assert by_kind["zeros"].any(1).tolist() == [False, True, False, True]
    assert 0 < int(by_kind["inf"].isinf().sum()) < 10 and not by_kind["inf"].isnan().any()
    smallest = torch.finfo(dtype).smallest_normal
    assert bool((by_kind["denormals"].abs() < smallest).any())
    assert bool((by_kind["negative"] <= 0).all())
    assert float(by_kind["outliers"].abs().max()) > 50
    assert float(by_kind["huge"].abs().max()) > 500
    assert int((by_kind["sparse"] == 0).sum()) >= 160
    assert len(by_kind["ties"].unique()) < 40


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kinds": ["odd"]}, "unknown kind 'odd'; known are normal"),
        ({"seeds": 0}, "0 seeds"),
        ({"shape": (0, 3)}, "is empty"),
    ],
)
def test_a_draw_that_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        draw(**{"shape": (2, 2), **options})


def sizes(verdict: Any) -> list[str]:
    return [case.drawn.partition(": ")[2] for case in verdict.cases]


def test_a_named_extent_has_one_size_in_all_draws_of_a_case() -> None:
    x = draw(("B", "T", 8), kinds=["normal"], seeds=40, B=(1, 5), T=(1, 70))
    table, ids = draw(("V", 8), V=(9, 40)), draw(("B", "T"), torch.int64, high="V")
    bias = draw(("T",))
    seen = []

    def like(x: Any, table: Any, ids: Any, bias: Any) -> Any:
        seen.append((tuple(x.shape), len(table), tuple(ids.shape), len(bias)))
        return x + torch.nn.functional.embedding(ids, table) + bias[:, None]

    verdict = check(like, like, (x, table, ids, bias), explain=False, spread=2)
    assert verdict.passed
    assert all(ids == shape[:2] and bias == shape[1] for shape, _, ids, bias in seen)
    assert {shape[0] for shape, *_ in seen} == {1, 2, 3, 4, 5}
    tokens = [shape[1] for shape, *_ in seen]
    borders = [it for it in tokens if it in (1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 70)]
    assert len(tokens) > len(borders) > len(tokens) / 2
    assert sizes(verdict) == sizes(check(like, like, (x, table, ids, bias), explain=False))


def test_a_failure_says_what_draws_it_again() -> None:
    def tail_lost(x: torch.Tensor) -> torch.Tensor:
        y = x.tanh()
        y[:, len(y[0]) // 16 * 16 :] = 0
        return y

    x = draw(("B", "T"), kinds=["normal"], seeds=12, B=(1, 4), T=(1, 40))
    verdict = wrong(tail_lost, torch.tanh, x, explain=False)
    first = next(case for case in verdict.cases if not case.passed)
    seed = int(first.drawn.removeprefix("seeds=[").partition("]")[0])
    assert f"drawn with: seeds=[{seed}]: " in str(verdict)
    assert verdict.to_json()["drawn"] == first.drawn
    again = draw(("B", "T"), kinds=["normal"], seeds=[seed], B=(1, 4), T=(1, 40))
    assert wrong(tail_lost, torch.tanh, again, explain=False).drawn == first.drawn


@pytest.mark.parametrize(
    ("draws", "words"),
    [
        ([{"shape": ("B", 4)}], r"extent B has no range; give one: B=\(1, 200\)"),
        ([{"shape": ("B",), "B": (1, 3)}, {"shape": ("B",), "B": (1, 4)}], "B is .1, 4. in one"),
        ([{"shape": ("B",), "B": (0, 3)}], r"B=\(0, 3\) is no range"),
        ([{"shape": (4,), "B": (1, 3)}], "has no B, which has a range"),
        ([{"shape": (4,), "seeds": []}], "0 seeds"),
    ],
)
def test_extents_that_make_no_sense_are_refused(draws: list[Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check(torch.add, torch.add, tuple(draw(**it) for it in draws))
