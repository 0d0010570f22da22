"""Rows of minus infinity before a softmax: padding of a float16 model whose scores are large.

transformers masks with the lowest finite number, -65504, and a score of -16 or less makes minus
infinity of it: torch's softmax gives NaN in such a row, our kernels give zeros. Both are right.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import Recording, asked

from python_inspector import record, verify
from python_inspector.models.inputs import run_model
from tests.panel.draw import draw

pytestmark = pytest.mark.usefixtures("harness")


def recorded(folder: Path, **options: Any) -> Recording:
    drawn = draw(20261203, 36, trained=True)
    model = drawn.model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "is NaN in the run or in the oracle, not in both"
        with record(model, *asked(folder, seed=drawn.weight_seed, **options)):
            run_model(model, drawn.plan())
    return Recording(folder)


@pytest.fixture(scope="module")
def overflowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording in which some rows of a softmax have no finite score."""
    folder = tmp_path_factory.mktemp("overflowed") / "recording"
    recording = recorded(folder)
    scores = [recording.raw(c["inputs"]["x"]["tensor"]) for c in recording.of("softmax")]
    lost = [x.isneginf().all(-1) for x in scores]
    assert 0 < sum(int(rows.sum()) for rows in lost) < sum(rows.numel() for rows in lost) / 2
    return folder


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.float(), -1)


def lost_rows(x: torch.Tensor) -> torch.Tensor:
    return x.isneginf().all(-1, keepdim=True)


def zeros(x: torch.Tensor) -> torch.Tensor:
    return softmax(x).masked_fill(lost_rows(x), 0.0)


def uniform(x: torch.Tensor) -> torch.Tensor:
    return softmax(x).masked_fill(lost_rows(x), 1 / x.shape[-1])


def partly(x: torch.Tensor) -> torch.Tensor:
    """Zeros but for one element of such a row."""
    y = zeros(x)
    y[..., :1] = torch.where(lost_rows(x), torch.nan, y[..., :1])
    return y


def larger(x: torch.Tensor) -> torch.Tensor:
    return zeros(x) * 1.01


def nothing(x: torch.Tensor) -> torch.Tensor:
    """NaN in the last row of each head, which has keys."""
    y = zeros(x)
    y[..., -1, :] = torch.nan
    return y


def statuses(kernel: Callable[[torch.Tensor], torch.Tensor], recording: Path) -> set[str]:
    def kernel_of(inputs: Any, weights: Any, params: Any) -> torch.Tensor:
        return kernel(inputs["x"]).to(inputs["x"].dtype)

    return {verdict.status for verdict in verify(kernel_of, recording, block="softmax")}


@pytest.mark.parametrize("kernel", [softmax, zeros])
def test_nan_and_zeros_are_right(kernel: Any, overflowed: Path) -> None:
    assert statuses(kernel, overflowed) == {"pass"}


@pytest.mark.parametrize("kernel", [uniform, partly, larger, nothing])
def test_anything_else_is_wrong(kernel: Any, overflowed: Path) -> None:
    assert "fail" in statuses(kernel, overflowed)


def test_attention_judges_no_row_that_is_nan(tmp_path: Path) -> None:
    """Rows without a key are judged where that is asked for and they have values."""
    recording = recorded(tmp_path / "recording", masked_rows="judged")
    for block in ("sdpa", "attention", "decoder_layer"):
        first, second = recording.of(block)
        assert "valid" not in first["outputs"]["out"]
        judged = recording.valid(second)
        assert 0 < judged.sum() < judged.numel()
        assert bool(recording.raw(second["outputs"]["out"]["tensor"])[judged].isfinite().all())
