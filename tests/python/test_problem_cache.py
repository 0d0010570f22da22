"""PLUMB_CACHE: simulated kernels are kept for the very same problem, and for no other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checked import normal

from python_inspector import UsageError, WrongError, check, prepare
from python_inspector.cli import cache
from python_inspector.format import cache_folder
from python_inspector.format.cache_folder import CacheFolder
from python_inspector.recorder import problem_cache
from python_inspector.trace import reruns

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

Kernel = Callable[..., Any]


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def operands(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return normal(24, 64, dtype=dtype), normal(64, dtype=dtype, seed=6)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv(cache_folder.VARIABLE, str(path))
    return path


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls whose simulated kernels ran."""
    ran: list[str] = []
    original = reruns.simulate

    def noted(again: Any, outputs: Any, runs: int, seed: str, *rest: Any) -> Any:
        ran.append(seed)
        return original(again, outputs, runs, seed, *rest)

    monkeypatch.setattr(reruns, "simulate", noted)
    return ran


def verdict_of(kernel: Kernel, like: Kernel, inputs: Any, **options: Any) -> str:
    try:
        return str(check(kernel, like, inputs, **options))
    except WrongError as error:
        return str(error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_problem_that_is_kept_gives_the_same_verdicts(
    dtype: torch.dtype, folder: Path, simulated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def halved(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return norm(x, weight) / 2

    kernels = (norm, halved, lambda x, w: norm(x, w, 0.1))
    first = [verdict_of(kernel, norm, operands(dtype)) for kernel in kernels]
    assert len(simulated) == 1
    again = [verdict_of(kernel, norm, operands(dtype)) for kernel in kernels]
    assert len(simulated) == 1
    monkeypatch.delenv(cache_folder.VARIABLE)
    without = [verdict_of(kernel, norm, operands(dtype)) for kernel in kernels]
    assert first == again == without
    (file,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


class Scaled(torch.nn.Module):
    def __init__(self, scale: float, weight: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.weight = torch.nn.Parameter(torch.full((64,), weight))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh() * self.weight * self.scale


def offset_of(constant: torch.Tensor) -> Kernel:
    return lambda x: (x + constant).exp()


X = normal(24, 64)
CHANGES: list[tuple[str, tuple[Kernel, Any, dict[str, Any]], tuple[Kernel, Any, dict[str, Any]]]]
CHANGES = [
    ("code", (lambda x: x.exp() * 2, X, {}), (lambda x: x.exp() * 3, X, {})),
    ("order", (lambda x: x.exp() * 2, X, {}), (lambda x: x.exp() + x.exp(), X, {})),
    ("input", (torch.exp, X, {}), (torch.exp, X + 2.0**-20, {})),
    ("shape", (torch.exp, X, {}), (torch.exp, X.reshape(64, 24), {})),
    ("strides", (torch.exp, X, {}), (torch.exp, X.T.contiguous().T, {})),
    ("dtype", (torch.exp, X, {}), (torch.exp, X.bfloat16(), {})),
    ("attribute", (Scaled(2), X, {}), (Scaled(3), X, {})),
    ("weight", (Scaled(2), X, {}), (Scaled(2, 1.5), X, {})),
    ("closure", (offset_of(torch.ones(64)), X, {}), (offset_of(torch.zeros(64)), X, {})),
    ("runs", (torch.exp, X, {}), (torch.exp, X, {"spread": 8})),
]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second"), [it[1:] for it in CHANGES], ids=[it[0] for it in CHANGES]
)
def test_whatever_changes_a_problem_is_another_one(
    first: Any, second: Any, folder: Path, simulated: list[str]
) -> None:
    for like, x, options in (first, second, first, second):
        check(like, like=like, inputs=(x,), explain=False, **options)
    assert len(simulated) == 2
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    "changed",
    [
        lambda patch: patch.setattr(problem_cache, "__version__", "0.0.1"),
        lambda patch: patch.setattr(problem_cache, "_code", lambda: "other"),
        lambda patch: patch.setattr(problem_cache, "_judge", lambda: ["other", 1, 2]),
        lambda patch: patch.setattr(torch, "__version__", "0.1"),
        lambda patch: patch.setattr(problem_cache.platform, "python_version", lambda: "4"),
    ],
)
def test_other_versions_use_nothing_of_it(
    changed: Callable[[pytest.MonkeyPatch], None],
    folder: Path,
    simulated: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check(torch.exp, like=torch.exp, inputs=(X,))
    changed(monkeypatch)
    check(torch.exp, like=torch.exp, inputs=(X,))
    assert len(simulated) == 2


def with_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() * 2) + x


@pytest.mark.parametrize(
    "like",
    [
        lambda x: x.exp() * (2 if x.sum().item() > 0 else 3),
        lambda x: x.exp().argmax(-1).float() * x[:, 0].exp(),
        lambda x: x.exp().masked_fill(x.exp() > 2, 0.5),
        with_numpy,
    ],
)
def test_what_depends_on_choices_or_is_not_seen_is_not_kept(
    like: Kernel, folder: Path, simulated: list[str]
) -> None:
    for _ in range(2):
        check(like, like=like, inputs=(X,), explain=False)
    assert len(simulated) == 2
    assert not folder.exists()


@pytest.mark.parametrize("data", [b"", b"no file of torch", None])
def test_a_file_that_is_damaged_is_made_again(
    data: bytes | None, folder: Path, simulated: list[str]
) -> None:
    check(torch.exp, like=torch.exp, inputs=(X,))
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if data is None else data)
    check(torch.exp, like=torch.exp, inputs=(X,))
    assert len(simulated) == 2
    assert len(file.read_bytes()) == len(whole)


def test_a_file_of_another_problem_is_not_believed(folder: Path, simulated: list[str]) -> None:
    check(torch.exp, like=torch.exp, inputs=(X,))
    (one,) = folder.iterdir()
    kept = one.read_bytes()
    check(torch.exp, like=torch.exp, inputs=(X * 2,))
    (other,) = set(folder.iterdir()) - {one}
    other.write_bytes(kept)
    check(torch.exp, like=torch.exp, inputs=(X * 2,))
    assert len(simulated) == 3


def test_a_folder_that_others_can_write_to_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(UsageError, match=r"has mode 0777 .* expected mode 0700"):
        prepare(torch.exp, (X,))
    folder.chmod(0o700)
    assert prepare(torch.exp, (X,))(torch.exp).passed


def test_it_stays_within_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_folder, "MOST", 4000)
    folder = CacheFolder(tmp_path / "cache")
    for i in range(6):
        folder.write(f"file{i}", bytes(900))
        os.utime(folder.path / f"file{i}.problem", (i, i))
        if i:
            assert folder.read("file0") is not None  # which is used
            os.utime(folder.path / "file0.problem", (100 + i, 100 + i))
    assert sorted(file.stem for file in folder.files()) == ["file0", "file3", "file4", "file5"]
    folder.write("large", bytes(1001))
    assert folder.read("large") is None
    assert not [path for path in folder.path.iterdir() if path.suffix != ".problem"]


def test_another_process_uses_it(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "case.py"
    script.write_text(
        "import torch\n"
        "torch.set_num_threads(1)\n"
        "from python_inspector import check\n"
        "from python_inspector.trace import reruns\n"
        "def none(*_): raise SystemExit('simulated')\n"
        "import sys\n"
        "if sys.argv[1:]: reruns.simulate = none\n"
        "x = torch.arange(512.0).reshape(8, 64) / 512\n"
        "def like(x): return x.exp() * 3\n"
        "print(check(like, like=like, inputs=(x,)))\n"
    )
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    told = [
        subprocess.run(
            [sys.executable, script, *words], env=environment, capture_output=True, text=True,
            check=True,
        ).stdout
        for words in ([], ["without"])
    ]  # fmt: skip
    assert told[0] == told[1] != ""


def test_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache.main([]) == 0
    assert capsys.readouterr().out == f"{folder}: 0 problems, 0 bytes of at most {1 << 30}\n"
    check(torch.exp, like=torch.exp, inputs=(X,))
    assert cache.main([]) == 0
    assert f"{folder}: 1 problems, " in capsys.readouterr().out
    assert cache.main(["clear"]) == 0
    assert capsys.readouterr().out == f"{folder}: 1 problems removed\n"
    assert not list(folder.iterdir())
    assert cache.main(["empty"]) == 2
    monkeypatch.delenv(cache_folder.VARIABLE)
    assert cache.main([]) == 0
    assert "names no folder" in capsys.readouterr().out
