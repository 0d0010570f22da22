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


@pytest.mark.parametrize("axes", ["B T H D", "BTHD", ["B", "T", "H", "D"], {"out": "B T H D"}])
def test_axes_are_what_the_user_calls_them(axes: Any) -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = x.tanh()
        out[:, 11] *= 1.01
        return out

    reason = wrong(kernel, torch.tanh, normal(2, 12, 3, 16), axes=axes).reason
    assert "where: token 11" in reason and "head" not in reason


def test_names_that_do_not_fit_are_refused() -> None:
    x = normal(2, 3, 4)
    with pytest.raises(RecordError, match="axes has 2 names: B T; the outputs have dimensions"):
        check(torch.tanh, like=torch.tanh, inputs=x, axes="B T")
    with pytest.raises(RecordError, match="axes has 2 names for out: B T; it has 3 dimensions"):
        check(torch.tanh, like=torch.tanh, inputs=x, axes={"out": "B T"})
    with pytest.raises(RecordError, match="axes has 'y', which is no output; there are out"):
        check(torch.tanh, like=torch.tanh, inputs=x, axes={"y": "B T C"})


def test_a_kept_case_is_judged_again(
    tmp_path: Path, harness: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, place = normal(4, 16), tmp_path / "a case"
    verdict = wrong(lambda x: x.tanh() * 1.01, torch.tanh, x, keep=place)
    assert f"again: {verdict.replay}" in str(verdict)
    assert verdict.replay in capsys.readouterr().out
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
