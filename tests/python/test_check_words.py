"""check(): names for the axes of outputs, and cases that are kept."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from checked import normal, wrong

from python_inspector import check
from python_inspector.errors import RecordError

pytestmark = pytest.mark.usefixtures("harness")


def off_at(*index: Any) -> Any:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = x.tanh()
        out[index] *= 1.01
        return out

    return kernel


def test_axes_that_nobody_named_are_told_by_index_and_size() -> None:
    x = normal(2, 12, 3, 16)  # [B, T, H, D]
    reason = wrong(off_at(slice(None), 11), torch.tanh, x).reason
    assert "head" not in reason and "token 11" not in reason and "batch" not in reason
    assert "axis 1: 11 of 12" in reason
    assert "] of [2, 12, 3, 16]" in reason
    rows = wrong(off_at(29), torch.tanh, normal(40, 3, 16)).reason  # varlen: [tokens, heads, D]
    assert "axis 0: 29 of 40" in rows and "batch" not in rows
    images = wrong(off_at(slice(None), 2), torch.tanh, normal(2, 5, 8, 8)).reason
    assert "axis 1: 2 of 5" in images and "head" not in images
    numbers = wrong(lambda i: i + (i == 5).long(), lambda i: i * 1, torch.arange(8).view(2, 4))
    assert "the first at [1, 1] of [2, 4]" in numbers.reason


@pytest.mark.parametrize("axes", ["B T H D", "BTHD", ["B", "T", "H", "D"], {"out": "B T H D"}])
def test_named_axes_are_told_by_their_names(axes: Any) -> None:
    x = normal(2, 12, 3, 16)
    reason = wrong(off_at(slice(None), 11), torch.tanh, x, axes=axes).reason
    assert "T >= 11" in reason or "T 11" in reason
    assert "axis" not in reason


def test_names_of_ones_own_are_taken() -> None:
    images = normal(2, 5, 8, 8)
    reason = wrong(off_at(slice(None), 2), torch.tanh, images, axes="N C H W").reason
    assert "C 2" in reason
    words = "batch tokens heads head_dim"
    x = normal(2, 12, 3, 16)
    reason = wrong(off_at(slice(None), slice(None), 1), torch.tanh, x, axes=words).reason
    assert "heads 1" in reason


def test_names_that_do_not_fit_are_refused() -> None:
    x = normal(2, 3, 4)
    with pytest.raises(RecordError, match="axes has 2 names: B T; the outputs have dimensions"):
        check(torch.tanh, like=torch.tanh, inputs=x, axes="B T")
    with pytest.raises(RecordError, match="axes has 2 names for out: B T; it has 3 dimensions"):
        check(torch.tanh, like=torch.tanh, inputs=x, axes={"out": "B T"})
    with pytest.raises(RecordError, match="a name is letters, digits, _ and -"):
        check(torch.tanh, like=torch.tanh, inputs=x, axes=["B", "T", "\x1b[31m"])
    with pytest.raises(RecordError, match="axes has 'y', which is no output; there are out"):
        check(torch.tanh, like=torch.tanh, inputs=x, axes={"y": "B T C"})


def test_a_kept_case_is_judged_again(
    tmp_path: Path, harness: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, place = normal(4, 16), tmp_path / "a case"
    verdict = wrong(lambda x: x.tanh() * 1.01, torch.tanh, x, keep=place)
    assert f"again: {verdict.replay}" in str(verdict)
    assert place.stat().st_mode & 0o777 == 0o700
    assert capsys.readouterr().out == "", "where plumbline --json prints"
    command = shlex.split(verdict.replay)
    assert command[:2] == ["harness", "judge"]
    done = subprocess.run([harness, *command[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    passed = check(torch.tanh, like=torch.tanh, inputs=x, keep=place)  # in place of the other
    done = subprocess.run(
        [harness, *shlex.split(passed.replay)[1:]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (place / "notes").touch()
    with pytest.raises(RecordError, match="holds notes, which is none of a case's files"):
        check(torch.tanh, like=torch.tanh, inputs=x, keep=place)
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="is a file, expected a folder"):
        check(torch.tanh, like=torch.tanh, inputs=x, keep=tmp_path / "file")
