"""The calls of a function in its own process: on tensors from files, what comes back goes to files.

Memory that is freed and memory that is allocated holds bytes that are huge as a float and NaN as a
float16, so an element that was never written shows (MALLOC_PERTURB_ on the host, a filled cache of
torch's on a GPU).
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..arrays import converted, converter
from ..errors import NO_GRADIENT
from ..named_code import load as load_code
from . import sanitizing, timed, travel
from .worker_process import DONE, ERROR, RAISED

POISON = 0xFE
"""Of every byte: a float32 of -1.7e38, a NaN in float16."""
WORDS = 2000
"""Characters of an error that the judge gets."""


def run(job: Mapping[str, Any], folder: Path, answers: int) -> int:
    """The whole job; an exit code."""
    sys.path[:] = job["path"]
    torch.set_num_threads(job["threads"])
    server = timed.Server(folder, answers, job["device"])  # before the function is imported
    try:
        function = load_code(job["function"])
        if job["made"]:
            args, _ = travel.load(folder / "made")
            function = function(*args)
        grad = [_case(function, job, folder, case, job["repeat"]) for case in range(job["cases"])]
        if job["timed"]:
            server.serve(function, converter(job["arrays"]), grad=any(grad))
            for case in range(job["cases"]):
                _case(function, job, folder, case, job["repeat"] + 1, job["repeat"])
        if job["control"]:
            sanitizing.fire(job["control"], server)
    except BaseException as error:  # SystemExit, too, which a function may raise
        (folder / ERROR).write_text(_words_of(error))
        return 1
    (folder / DONE).touch()
    return 0


def _words_of(error: BaseException) -> str:
    return json.dumps(traceback.format_exception(error)[-1].strip()[:WORDS])


def _case(
    function: Any, job: Mapping[str, Any], folder: Path, case: int, last: int, first: int = 0
) -> bool:
    given, out = folder / f"in-{case}", folder / f"out-{case}"
    if job["gradients"]:
        from ..recorder.kernel_gradients import Asked

        asked, _ = travel.load(folder / f"gradients-{case}")
        function = Asked.unpacked(asked).of(function)
    outs = [Path(f"{out}-{i}") for i in range(last)]
    needs = []
    for i in range(first, last):
        try:
            needs.append(_call(function, given, outs[i], outs[0] if i else None, job["arrays"]))
        except Exception as error:
            if case not in job["may_raise"]:
                raise
            Path(f"{outs[i]}-{RAISED}").write_text(_words_of(error))
            break
    return any(needs)


def _call(function: Any, given: Path, out: Path, first: Path | None, arrays: str) -> bool:
    """One call on fresh copies; its results, and its arguments afterwards. Whether it needs
    gradients."""
    differentiates = False
    with torch.no_grad():
        args, kwargs = travel.load(given)
        try:
            returned = _applied(function, args, kwargs, arrays)
        except RuntimeError as error:
            if NO_GRADIENT not in str(error):
                raise
            differentiates = True
            args, kwargs = travel.load(given)
            with torch.enable_grad():
                returned = _applied(function, args, kwargs, arrays)
        _synchronise()
        travel.leave(returned, (args, kwargs), out, given, first)
    return differentiates


def _applied(function: Any, args: Any, kwargs: Any, arrays: str) -> Any:
    convert = converter(arrays)
    if convert is not None:
        args, kwargs = (converted(value, convert) for value in (args, kwargs))
    _poison()
    return function(*args, **kwargs)


def _poison() -> None:
    """Fills what torch would hand out next; the host's memory is the C library's to fill."""
    if not torch.cuda.is_initialized():
        return
    for device in range(torch.cuda.device_count()):
        most = min(torch.cuda.mem_get_info(device)[0] // 4, 1 << 30)
        filled, size = [], most // 2
        while size >= 1 << 20:  # small and large allocations are in pools of their own
            filled.append(torch.full((size,), POISON, dtype=torch.uint8, device=f"cuda:{device}"))
            size //= 2
        filled += [
            torch.full((1 << 18,), POISON, dtype=torch.uint8, device=f"cuda:{device}")
            for _ in range(64)
        ]
        torch.cuda.synchronize(device)


def _synchronise() -> None:
    """Every stream of every device has ended."""
    if torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)
