"""What correct kernels do not agree on proves nothing, and lends no limit to the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checked import normal, wrong

from python_inspector import check, record
from python_inspector.models.inputs import run_model
from python_inspector.recorder.where import Where

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.panel.draw import draw

Function = Callable[..., torch.Tensor]


def overflowing_norm(x: torch.Tensor) -> torch.Tensor:
    """Squares in x's own dtype."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def right_norm(x: torch.Tensor) -> torch.Tensor:
    y = x.double()
    return (y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


@pytest.mark.parametrize("x", [(400 * normal(20, 32)).half(), 1e20 * normal(20, 32)])
@pytest.mark.parametrize("factor", [0.0, 1.0, 2.0])
def test_where_every_row_overflows_nothing_is_proved(x: torch.Tensor, factor: float) -> None:
    kernel: Function = lambda x: factor * right_norm(x)  # noqa: E731
    verdict = wrong(kernel, overflowing_norm, x)
    assert verdict.status == "blind"
    assert verdict.reason.startswith("20 of 20 rows are ill conditioned")


@pytest.mark.parametrize(("value", "status"), [(0.0, "blind"), (1.0, "fail")])
def test_differences_of_which_nothing_is_left(value: float, status: str) -> None:
    a, b = normal(20, 64), normal(20, 64, seed=6)
    b -= (a * b).sum(-1, keepdim=True) / (a * a).sum(-1, keepdim=True) * a

    def cosines(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cosine_similarity(a, b, dim=-1)

    verdict = wrong(lambda a, b: torch.full((20,), value), cosines, (a, b))
    assert verdict.status == status
    assert "1 of 1 row is ill conditioned" in str(verdict)


def difference(x: torch.Tensor, y: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    return (x + offset) - (y + offset)


def nearly_equal(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """In the first of 33 rows little is left."""
    x, y, offset = normal(33, 64), normal(33, 64, seed=6), torch.zeros(33, 1)
    y[:rows] = x[:rows] + 1e-3 * y[:rows]
    offset[:rows] = 1e4
    return x, y, offset


@pytest.mark.parametrize("rows", [4, 16, 20])
def test_rows_set_aside_are_no_place_for_anything(rows: int) -> None:
    def garbage(*args: torch.Tensor) -> torch.Tensor:
        out = difference(*args)
        out[rows // 2] = 1
        return out

    verdict = wrong(garbage, difference, nearly_equal(rows))
    assert verdict.status == "fail"
    assert f"as correct runs are there, allowed 32; worst [{rows // 2}, :]" in verdict.reason


@pytest.mark.parametrize(("rows", "status"), [(4, "pass"), (16, "pass"), (17, "blind")])
def test_most_rows_have_to_be_judged(rows: int, status: str) -> None:
    def right(x: torch.Tensor, y: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        return (x - y) + (offset - offset)

    given = nearly_equal(rows)
    verdict = check(right, difference, given) if rows < 17 else wrong(right, difference, given)
    assert verdict.status == status
    assert f"{rows} of 33 rows are ill conditioned" in str(verdict)
    judged = f"{64 * (33 - rows)} of {64 * 33} elements judged"
    assert any(judged in it for it in verdict.figures["details"])


def test_one_overflowing_row_does_not_loosen_the_others() -> None:
    x = normal(200, 32).half()
    x[17] *= 1000
    verdict = check(right_norm, like=overflowing_norm, inputs=x)
    assert "1 of 200 rows are ill conditioned" in str(verdict)
    assert "set aside: [17, :] of [200, 32]" in str(verdict)
    assert check(overflowing_norm, like=overflowing_norm, inputs=x).passed
    others = torch.where(torch.arange(200)[:, None] == 17, 1.0, 1.02)
    assert wrong(lambda x: (right_norm(x) * others).half(), overflowing_norm, x).status == "fail"


def test_a_number_where_there_is_none_still_fails() -> None:
    x = normal(8, 32).half()
    x[3] *= 1000

    def kernel(x: torch.Tensor) -> torch.Tensor:
        y = right_norm(x)
        y[3, 2] = torch.nan
        return y

    assert wrong(kernel, overflowing_norm, x).status == "fail"


def test_an_element_that_cancels_is_no_ill_conditioned_row() -> None:
    """Of rows of one value, small ones are off by more of themselves, by no more than others."""
    x = normal(64, 1, 48, dtype=torch.bfloat16)
    sums: Function = lambda x: (x * x - x.abs()).sum(-1)  # noqa: E731
    verdict = check(sums, like=sums, inputs=x)
    assert not verdict.ill_conditioned


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def flushing_softmax(x: torch.Tensor) -> torch.Tensor:
    y = torch.softmax(x.double(), -1).to(x.dtype)
    return torch.where(y.abs() < torch.finfo(x.dtype).smallest_normal, 0.0, y)


def scores(low: float) -> torch.Tensor:
    """Whose exponentials reach from 1 to far below the smallest denormal number."""
    x = low * normal(6, 64).abs()
    x[:, 0] = 0
    return x


@pytest.mark.parametrize("low", [-60.0, -140.0, -300.0])
def test_denormal_results_are_judged_by_their_steps(low: float) -> None:
    x = scores(low)
    y = torch.softmax(x.double(), -1)
    assert ((y > 0) & (y < torch.finfo(torch.float32).smallest_normal)).any() or low > -90
    assert check(softmax, like=softmax, inputs=x).passed
    assert check(lambda x: torch.softmax(x.double(), -1).float(), like=softmax, inputs=x).passed


def test_rows_of_denormals_alone_are_measured_in_steps() -> None:
    x = 1e-41 * (1 + normal(6, 64).abs())
    scaled: Function = lambda x: x * 0.3  # noqa: E731
    assert check(lambda x: (x.double() * 0.3).float(), like=scaled, inputs=x).passed
    assert wrong(lambda x: x * 0.31, scaled, x).status == "fail"


def test_a_kernel_that_flushes_denormals_is_told_so() -> None:
    verdict = wrong(flushing_softmax, softmax, scores(-140.0))
    assert verdict.status == "fail"
    assert "it flushes denormals to zero: y is 0 in all " in verdict.reason
    assert "flushes" not in wrong(lambda x: 1.01 * softmax(x), softmax, scores(-140.0)).reason


@pytest.mark.host
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_stated_error_is_held_to_all_rows_though_some_are_set_aside(
    harness: Path, tmp_path: Path
) -> None:
    drawn = draw(20261127, 11, trained=True)  # queries so large that softmax is a choice
    folder, results = tmp_path / "r", tmp_path / "results.jsonl"
    model = drawn.model()
    with record(model, Where(folder, seed=drawn.weight_seed)):
        run_model(model, drawn.plan())
    command = [harness, "--fixture", folder, "--device", "cpu", "--repeat", "1", "--json", results]
    assert subprocess.run(command, capture_output=True).returncode in (0, 8)
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    set_aside = [
        (line["checkpoint"], output["name"])
        for line in lines
        for output in line.get("outputs", [])
        if output.get("ill_conditioned") and output["recorded_error"]
    ]
    stored = json.loads((folder / "recording.json").read_text())
    id, name = set_aside[0]
    (checkpoint,) = (c for c in stored["checkpoints"] if c["id"] == id)
    checkpoint["outputs"][name]["error"] *= 0.9
    (folder / "recording.json").write_text(json.dumps(stored))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 3
    assert f"outputs.{name}.error is" in done.stdout + done.stderr
