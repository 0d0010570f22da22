"""What transformers imports while a model class is loaded: nothing that no recording needs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from harness_runs import ROOT
from transformers import utils

from python_inspector.imports import _UNNEEDED, only_what_is_needed

NAMES = list(_UNNEEDED)


def is_there() -> bool:
    """Whether a package is installed, as transformers asks it."""
    return True


def answers() -> list[Callable[[], bool]]:
    return [getattr(utils, name) for name in NAMES]


@pytest.fixture
def not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has all packages and has not imported their users."""
    for name, user in _UNNEEDED.items():
        monkeypatch.delitem(sys.modules, user, raising=False)
        monkeypatch.setattr(utils, name, is_there)


@pytest.mark.usefixtures("not_imported")
def test_inside_they_are_not_there() -> None:
    with only_what_is_needed():
        assert not any(answer() for answer in answers())
    assert answers() == [is_there] * len(NAMES)


@pytest.mark.usefixtures("not_imported")
def test_they_are_back_after_an_import_that_fails() -> None:
    with pytest.raises(ImportError), only_what_is_needed():
        raise ImportError("no such module")
    assert answers() == [is_there] * len(NAMES)


@pytest.mark.usefixtures("not_imported")
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_hidden_where_its_user_is_imported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, _UNNEEDED[name], ModuleType(_UNNEEDED[name]))
    with only_what_is_needed():
        assert [answer is is_there for answer in answers()] == [name == each for each in NAMES]
    assert answers() == [is_there] * len(NAMES)


RECORDING = """
import sys
from transformers import utils
for name in {names}:
    setattr(utils, name, lambda: True)
from python_inspector import cli
words = "inspector record --model tiny:llama --layers 0 --no-oracle --out {out}".split()
sys.argv = words
code = cli.main({arguments})
assert code == 0, code
print([name for name in ("sklearn", "scipy", "torchvision") if name in sys.modules])
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Where the three are, if one has to believe it."""
    for path in (
        "sklearn/metrics.py: roc_curve",
        "scipy/optimize.py: linear_sum_assignment",
        "torchvision/io.py: ImageReadMode, decode_image",
        "torchvision/transforms/functional.py: pil_to_tensor",
    ):
        file, _, names = path.partition(": ")
        module = tmp_path / file
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text("".join(f"{name} = None\n" for name in names.split(", ")))
    modes = "NEAREST_EXACT = BOX = BILINEAR = HAMMING = BICUBIC = LANCZOS = NEAREST = 0"
    (tmp_path / "torchvision/transforms/__init__.py").write_text(
        f"class InterpolationMode: {modes}"
    )
    for name in ("sklearn", "scipy", "torchvision"):
        (tmp_path / name / "__init__.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [("", "[]"), ("words[1:]", "['sklearn', 'scipy', 'torchvision']")],
)
def test_the_command_goes_without_them_and_a_call_of_it_does_not(
    arguments: str, expected: str, packages: Path, tmp_path: Path
) -> None:
    code = RECORDING.format(names=NAMES, out=tmp_path / "x", arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(packages)!r})\n{code}"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == expected
