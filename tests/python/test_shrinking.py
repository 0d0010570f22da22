"""check(keep=...): the smallest case that fails, and what compares it without this package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checked import normal, wrong

from python_inspector import Sealed, WrongError, check, draw
from python_inspector.api.inputs import Case
from python_inspector.api.shrinking import smallest, tensors_of
from python_inspector.cli import plumbline

pytestmark = pytest.mark.usefixtures("harness")
HERE = Path(__file__).parent


def compared(keep: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """By the script, in a Python that sees neither this checkout nor its folder of tests."""
    command = [sys.executable, "-I", str(keep / "smallest" / "compare.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")


def shapes(case: Case) -> list[list[int]]:
    return [list(t.shape) for t in tensors_of(case)]


def test_extents_and_values_are_cut() -> None:
    x, w = normal(6, 4, 40), normal(40, seed=2)
    x[3, 1, 33] = 900.0

    def fails(case: Case) -> bool:
        x, w = case.arguments[0]
        return x.shape[-1:] == w.shape and bool((x.amax((0, 1)) * w.abs() > 0.5).any())

    assert fails(Case(None, ((x, w), {})))
    found = smallest(Case(None, ((x, w), {})), fails, 60)
    assert shapes(found) == [[1, 1, 1], [1]]
    assert tensors_of(found)[0].unique().tolist() == [1.0]


@pytest.mark.host  # whole numbers may be indices, which are not cut on a GPU
def test_either_end_may_be_what_fails() -> None:
    for wanted in (0, 39):
        case = Case(None, ((torch.arange(40),), {}))
        found = smallest(case, lambda it, of=wanted: of in it.arguments[0][0].tolist(), 60)
        assert tensors_of(found)[0].tolist() == [wanted]


def test_what_fails_only_as_it_is_stays_as_it_is() -> None:
    case = Case("x", ((normal(3, 5),), {"n": 2}))
    assert smallest(case, lambda smaller: False, 60) is case
    assert smallest(case, lambda smaller: True, 0) is case


def test_a_tensor_that_is_given_twice_stays_one() -> None:
    x = normal(4, 6)
    found = smallest(Case(None, ((x, [x]), {})), lambda case: True, 60)
    assert found.arguments[0][0] is found.arguments[0][1][0]
    assert shapes(found) == [[1, 1]]


def tail_lost(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    y = x @ weight
    y[..., len(weight[0]) // 16 * 16 :] = 0
    return y


def test_a_failure_is_kept_in_its_smallest_case(tmp_path: Path) -> None:
    verdict = wrong(
        tail_lost, torch.matmul, (normal(3, 7, 20), normal(20, 33)), keep=tmp_path, explain=False,
        shrink=60,
    )  # fmt: skip
    script = tmp_path / "smallest" / "compare.py"
    assert verdict.smallest == f"[1, 1, 1], [1, 1]; python {script}"
    assert f"smallest case that fails: {verdict.smallest}" in str(verdict)
    assert verdict.to_json()["smallest"] == verdict.smallest
    assert "plumbline" not in script.read_text() and "inspector" not in script.read_text()
    assert "fail" in (tmp_path / "smallest" / "verdict.txt").read_text()

    done = compared(tmp_path)
    assert done.returncode == 1, done.stderr
    assert "out [0, 0, 0] of [1, 1, 1]: 0, right is 1\n  largest error 1, limit " in done.stdout
    kernels = tmp_path.parent / "kernels.py"
    kernels.write_text(
        "def right(x, w):\n    return x @ w\n\ndef high(x, w):\n    return x @ w * 2\n"
    )
    assert compared(tmp_path, f"{kernels}:right").returncode == 0
    assert "times the limit" in compared(tmp_path, f"{kernels}:high").stdout
    assert compared(tmp_path, f"{kernels}:high").returncode == 1


def test_the_case_that_failed_is_the_one_that_is_kept(tmp_path: Path) -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.abs() > 1e6, 0.0, x.relu())

    options: dict[str, Any] = {"hard": ["huge", "small"], "keep": tmp_path, "shrink": 60}
    verdict = wrong(kernel, torch.relu, normal(6, 40), **options)
    assert verdict.smallest.startswith("[1, 1]; ")
    assert "relu:huge#0" in (tmp_path / "smallest" / "verdict.txt").read_text()
    drawn = draw(("B", 4), kinds=["normal", "huge"], B=(1, 9))
    assert wrong(kernel, torch.relu, drawn, **options).smallest.startswith("[1, 1]; ")


def in_place(x: torch.Tensor, out: list[torch.Tensor], *, factor: float, most: float) -> Any:
    out[0].copy_(x * factor)
    return {"least": x.amin(-1).clamp_max(most), "at": x.argmax(-1)}


def test_any_arguments_and_results_are_written(tmp_path: Path) -> None:
    def kernel(x: Any, out: Any, *, factor: float, most: float) -> Any:
        found = in_place(x, out, factor=factor, most=most)
        return {**found, "least": found["least"] * 1.5}

    from python_inspector.api.inputs import Called

    x, inf = normal(5, 9).to(torch.bfloat16), float("inf")
    inputs = Called((x, [torch.zeros_like(x)]), {"factor": 2.0, "most": inf})
    wrong(kernel, in_place, inputs, keep=tmp_path, shrink=2, explain=False)
    done = compared(tmp_path)
    assert done.returncode == 1, done.stderr
    assert (
        'kernel(given["0"], [given["1"]], factor=2.0, most=float("inf"))'
        in (tmp_path / "smallest" / "compare.py").read_text()
    )
    for name in ("out.least", "out.at", "out.0_after"):
        assert f"\n{name} " in f"\n{done.stdout}"


def test_nothing_is_sought_without_a_gate_or_time(tmp_path: Path) -> None:
    options: dict[str, Any] = {"keep": tmp_path, "explain": False}
    assert wrong(torch.sin, torch.tanh, normal(3, 5), shrink=0, **options).smallest == ""
    assert wrong(lambda x: None, torch.tanh, normal(3, 5), **options).smallest == ""
    assert check(torch.tanh, torch.tanh, normal(3, 5), **options).smallest == ""
    assert not (tmp_path / "smallest").exists()
    wrong(torch.sin, torch.tanh, normal(3, 5), shrink=1, **options)
    assert (tmp_path / "smallest").is_dir()
    assert check(torch.tanh, torch.tanh, normal(3, 5), **options).passed, "and that is replaced"
    assert not (tmp_path / "smallest").exists()


def test_a_kernel_that_breaks_on_smaller_cases_keeps_its_verdict(tmp_path: Path) -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        if x.shape != (8, 6):
            raise RuntimeError("made for one shape")
        return x.tanh() * 1.5

    verdict = wrong(kernel, torch.tanh, normal(8, 6), keep=tmp_path, shrink=5, explain=False)
    assert verdict.smallest.startswith("[8, 6]; ")


@pytest.mark.host
def test_of_a_sealed_kernel_too(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    x, weight = normal(4, 6), normal(6, seed=1)
    kernels = HERE / "sealed_kernels.py"
    with pytest.raises(WrongError) as raised:
        check(
            f"{kernels}:without_eps", right, (x, weight), keep=tmp_path,
            sealed=Sealed(timeout=40), explain=False, shrink=4,
        )  # fmt: skip
    assert "compare.py" in raised.value.verdict.smallest
    words = ["judge", f"{kernels}:without_eps", "--like", f"{kernels}:right", "--json"]
    words += ["--inputs", f"{__file__}:INPUTS", "--keep", str(tmp_path), "--hard", "small"]
    monkeypatch.setattr("sys.argv", ["plumbline", *words])
    assert plumbline.main() == 1
    made = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert made["smallest"] and [it["checkpoint"] for it in made["cases"]][1] == "right:small#0"


def right(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * (1 / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()) * weight


INPUTS = (normal(4, 6), normal(6, seed=1))
