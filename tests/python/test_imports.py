"""What transformers imports while a model class is loaded: nothing that no recording needs."""

from __future__ import annotations

import importlib
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
    return [getattr(place, name) for name in NAMES for place in (utils, utils.import_utils)]


@pytest.fixture
def not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has all packages and has not imported their users."""
    importlib.import_module("torch._dynamo")  # nothing stands in for it behind these tests
    for name, user in _UNNEEDED.items():
        monkeypatch.delitem(sys.modules, user, raising=False)
        monkeypatch.setattr(utils, name, is_there)
        monkeypatch.setattr(utils.import_utils, name, is_there)


@pytest.mark.usefixtures("not_imported")
def test_inside_they_are_not_there() -> None:
    with only_what_is_needed():
        assert not any(answer() for answer in answers())
    assert set(answers()) == {is_there}


@pytest.mark.usefixtures("not_imported")
def test_they_are_back_after_an_import_that_fails() -> None:
    with pytest.raises(ImportError), only_what_is_needed():
        raise ImportError("no such module")
    assert set(answers()) == {is_there}


@pytest.mark.usefixtures("not_imported")
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_hidden_where_its_user_is_imported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, _UNNEEDED[name], ModuleType(_UNNEEDED[name]))
    with only_what_is_needed():
        seen = [name == each for each in NAMES for _place in range(2)]
        assert [answer is is_there for answer in answers()] == seen
    assert set(answers()) == {is_there}


RECORDING = """
import sys
from transformers import utils
for name in {names}:
    setattr(utils, name, lambda: True)
    setattr(utils.import_utils, name, lambda: True)
from python_inspector.cli import inspector as cli
words = "inspector record --model tiny:llama --layers 0 --no-oracle --out {out}".split()
sys.argv = words
code = cli.main({arguments})
assert code == 0, code
names = "sklearn", "scipy", "torchvision", "torch.distributed.tensor", "sympy"
print(" ".join(name for name in names if name in sys.modules))
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
    [("", ""), ("words[1:]", "sklearn scipy torchvision torch.distributed.tensor sympy")],
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
    assert done.stdout.splitlines()[-1] == expected


COMPILING = """
import sys, torch
from python_inspector.imports import _StandIn, only_what_is_needed
with only_what_is_needed():
    from transformers import masking_utils, modeling_layers
assert isinstance(sys.modules["torch._dynamo"], _StandIn)
assert torch.compiler.disable(abs) is abs and torch.compiler.disable()(abs) is abs
{uses}
assert not any(isinstance(module, _StandIn) for module in sys.modules.values())
"""


@pytest.mark.parametrize(
    "uses",
    [
        "assert torch.compile(lambda x: x + 1, backend='eager')(torch.ones(2)).tolist() == [2, 2]",
        "torch._dynamo.config.suppress_errors = True",
        "from torch._dynamo import config",
        "import torch._dynamo.exc as e\nassert e.Unsupported is torch._dynamo.exc.Unsupported",
        "from torch._dynamo.utils import counters as found; import torch._dynamo.utils\n"
        "assert found is torch._dynamo.utils.counters",
        "import torch._dynamo.backends.registry; torch._dynamo.backends.registry.list_backends()",
        "square = {'batch_size': 1, 'q_length': 3, 'kv_length': 3, 'allow_is_causal_skip': False}\n"
        "mask = masking_utils.sdpa_mask(**square, use_vmap=True)\n"
        "assert mask[0, 0].tolist() == torch.ones(3, 3).tril().bool().tolist()",
    ],
)
def test_who_compiles_gets_what_that_needs(uses: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILING.format(uses=uses)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
