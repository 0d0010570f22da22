"""The process of a function under check(sealed=...): it starts before a reference exists, loads the
function, calls it on tensors from files and leaves what comes back as files.

It waits for its job on standard input with all imports done. Memory that is freed and memory that
is allocated holds bytes that are huge as a float and NaN as a float16, so an element that was never
written shows (MALLOC_PERTURB_ on the host, a filled cache of torch's on a GPU).
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from ..arrays import converter
from ..errors import NO_GRADIENT
from ..named_code import load as load_code
from . import travel
from .worker_process import DONE, ERROR

POISON = 0xFE
"""Of every byte: a float32 of -1.7e38, a NaN in float16."""
WORDS = 2000
"""Characters of an error that the judge is told."""


def main() -> int:
    line = sys.stdin.readline()
    if not line:  # the judge ended without a job for this process
        return 0
    job = json.loads(line)
    sys.path[:] = job["path"]
    folder = Path(job["folder"])
    try:
        function = load_code(job["function"])
        if job["made"]:
            args, _ = travel.load(folder / "made")
            function = function(*args)
        for case in range(job["cases"]):
            for call in range(job["repeat"]):
                _call(function, folder / f"in-{case}", folder / f"out-{case}-{call}", job["arrays"])
    except BaseException as error:  # SystemExit, too, which a function may raise
        told = traceback.format_exception(error)[-1].strip()
        (folder / ERROR).write_text(json.dumps(told[:WORDS]))
        return 1
    (folder / DONE).touch()
    return 0


def _call(function: Any, given: Path, out: Path, arrays: str) -> None:
    """One call on fresh copies; its results, and its arguments afterwards."""
    with torch.no_grad():
        args, kwargs = travel.load(given)
        try:
            returned = _applied(function, args, kwargs, arrays)
        except RuntimeError as error:
            if NO_GRADIENT not in str(error):
                raise
            args, kwargs = travel.load(given)
            with torch.enable_grad():
                returned = _applied(function, args, kwargs, arrays)
        _synchronise()
        travel.Packed(returned, "the result").save(out)
        travel.Packed((args, kwargs), "the arguments").save(Path(f"{out}-after"))


def _applied(function: Any, args: Any, kwargs: Any, arrays: str) -> Any:
    convert = converter(arrays)
    if convert is not None:
        args, kwargs = (_converted(value, convert) for value in (args, kwargs))
    _poison()
    return function(*args, **kwargs)


def _converted(value: Any, convert: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return convert(value)
    if isinstance(value, dict):
        return {name: _converted(item, convert) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_converted(item, convert) for item in value)
    return value


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


if __name__ == "__main__":
    sys.exit(main())
