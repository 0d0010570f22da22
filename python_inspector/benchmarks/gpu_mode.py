"""GPU MODE's form (github.com/gpu-mode/reference-kernels): task.yml names files and tests,
reference.py has ref_kernel(data) and generate_input(**test), a submission custom_kernel(data).

The files of the task are placed as task.yml names them. Those of the candidate's process lack
reference.py and the program that tests. What ref_kernel fills without a look at it is given to both
as fresh memory, because the benchmark compares results alone.
"""

from __future__ import annotations

import inspect
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import needs
from ..api.sealed import Made
from ..errors import UsageError
from ..named_code import load
from .files import apart, existing, loaded
from .filled import Filling, destinations
from .stated import HARD, OWN, Stated
from .tensors import placed

SUBMISSION, REFERENCE = "@SUBMISSION@", "reference.py"


def stated(
    task: Path,
    submission: Path,
    scratch: Path,
    *,
    inputs: Sequence[str] = (OWN, HARD),
    salt: int | None = None,
    device: str = "cpu",
) -> Stated:
    """Inputs "own" are the tests of task.yml, "hard" are those with other seeds, because these
    are public. Raises UsageError for files of another form, for several devices, and where
    ref_kernel is no rule."""
    file = task / "task.yml" if task.is_dir() else task
    said = _read(file)
    theirs, ours = (_placed(file, said, submission, scratch / name) for name in ("like", "given"))
    for name in (REFERENCE, said.get("config", {}).get("main", "eval.py")):
        (ours / name).unlink(missing_ok=True)
    with apart(theirs):
        reference = loaded(f"{theirs / REFERENCE}:ref_kernel")
        generate = loaded(f"{theirs / REFERENCE}:generate_input")
        _require_rule(loaded(f"{theirs / REFERENCE}:check_implementation"), reference, file)
        tests = said["tests"] if OWN in inputs else []
        if HARD in inputs:
            seeds = random.Random(salt)
            other = [test for test in said["tests"] if "seed" in test]
            tests = [*tests, *({**test, "seed": seeds.randrange(1 << 31)} for test in other)]
        given = {_words(test): (_generated(generate, test, device),) for test in tests}
        where = _destinations(reference, next(iter(given.values())), file) if given else []
    return Stated(
        like=Filling(reference, where, "ref_kernel"),
        inputs=given,
        candidate=Made(f"{__name__}:candidate", (str(ours / "submission.py"), where)),
    )


def candidate(file: str, where: Sequence[int]) -> Callable[..., Any]:
    """In the candidate's process."""
    return Filling(load(f"{file}:custom_kernel"), where, "custom_kernel")


def _read(file: Path) -> Mapping[str, Any]:
    needs.require("plumbline judge gpu-mode", "torch", "transformers")  # which needs yaml
    import yaml

    try:
        said = yaml.safe_load(existing(file).read_text())
    except yaml.YAMLError as error:
        raise UsageError(f"{file}: {error}") from None
    if not isinstance(said, Mapping) or not said.get("files") or not said.get("tests"):
        raise UsageError(f"{file}: expected `files` and `tests`")
    if said.get("lang", "py") != "py" or said.get("multi_gpu"):
        kind = "several devices" if said.get("multi_gpu") else f"the language {said['lang']}"
        raise UsageError(f"{file}: is for {kind}, which are not judged")
    if not all(isinstance(test, Mapping) for test in said["tests"]):
        raise UsageError(f"{file}: a test is a mapping of generate_input's arguments")
    return said


def _placed(file: Path, said: Mapping[str, Any], submission: Path, folder: Path) -> Path:
    """The task's files under the names that they have for each other."""
    folder.mkdir()
    for entry in said["files"]:
        own = entry["source"] == SUBMISSION
        source = existing(submission if own else file.parent / entry["source"])
        shutil.copy(source, folder / ("submission.py" if own else Path(entry["name"]).name))
    return folder


def _require_rule(check: Any, reference: Any, file: Path) -> None:
    """UsageError where their check does not compare with ref_kernel."""
    code = inspect.unwrap(check).__code__
    if "ref_kernel" not in code.co_names and not any(it is reference for it in _held(check)):
        raise UsageError(
            f"{file}: check_implementation does not call ref_kernel: other results than its own "
            "are right, and nothing here says which"
        )


def _held(function: Any) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        yield cell.cell_contents


def _destinations(reference: Any, args: tuple[Any, ...], file: Path) -> list[int]:
    try:
        return destinations(reference, args)
    except Exception as error:
        told = f"{file}: ref_kernel raises {type(error).__name__}: {error}"
        raise UsageError(told) from error


def _generated(generate: Callable[..., Any], test: Mapping[str, Any], device: str) -> Any:
    torch.manual_seed(42)  # as the benchmark does before its first test
    try:
        data = generate(**test)
    except (AssertionError, RuntimeError, TypeError) as error:
        raise UsageError(f"generate_input({_words(test)}): {error}") from None
    return placed(data, device)


def _words(test: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in test.items())
