"""Simulated kernels of calls, kept for other processes in the folder of PLUMB_CACHE.

They take most of the time of a recording; the call itself, its float64 run and all limits are made
again. The key is what decides them: all operations of the call as torch sees them, the content of
all their operands, its results, the name that seeds the noise, options, versions, the code of this
package and of the judge. What torch does not see whole, and what depends on choices, is not kept.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import platform
from pathlib import Path
from typing import Any

import torch

from ..format.cache_folder import CacheFolder, named_folder
from ..native import library_of
from ..trace.given import Given
from ..trace.program import digest_of
from ..trace.replay import Again
from ..trace.room import room
from ..trace.spread import Simulated
from ..version import __version__


def key_of(again: Again, seed: str, runs: int) -> str | None:
    """Of a call's simulated kernels; None where they are not to be kept. UsageError for a folder
    that is not the user's alone."""
    folder = named_folder()
    if folder is None or torch.is_autocast_enabled():
        return None
    folder.require_own()
    try:
        program = digest_of(again)
    except Exception:  # it cannot run under a mode: nothing is known of it
        return None
    if program is None:
        return None
    words = {"program": program, "seed": seed, "runs": runs, "room": room(), **_circumstances()}
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


def may_be_kept(given: Given | None) -> bool:
    """Whether the operations alone decide: nothing is chosen, taken as given, or asked for."""
    return given is not None and not (
        given.events
        or given.unliftable
        or given.kept
        or given.lacks_keys
        or given.leaves_torch
        or given.inside.names
        or given.inside.products
        or given.inside.used
    )


def load(key: str, device: torch.device) -> Simulated | None:
    """None where there is nothing of that key, or it cannot be read."""
    folder = named_folder()
    file = None if folder is None else folder.read(key)
    if folder is None or file is None:
        return None
    try:
        held = torch.load(file, map_location=device, weights_only=True)
        if held["key"] != key:
            raise ValueError(f"{file} holds {held['key']}")
        known = json.loads(held["words"])
        return Simulated(
            held["models"],
            known["operations"],
            known["runs"],
            known["makers"],
            known["truncates"],
            known["spreads"],
            held["ill"],
        )
    except Exception:  # cut off, of another torch, or no such file at all
        folder.remove(file)
        return None


def keep(key: str, simulated: Simulated) -> None:
    """Models and spread entries of simulated kernels, without their samples."""
    folder = named_folder()
    if folder is None or not all(simulated.spreads.get(name) for name in simulated.stacks):
        return
    words = json.dumps(
        {
            "operations": simulated.operations,
            "runs": simulated.runs,
            "makers": simulated.makers,
            "truncates": simulated.truncates,
            "spreads": simulated.spreads,
        }
    )
    models = {name: stack[:1].cpu().clone() for name, stack in simulated.stacks.items()}
    ill = {name: rows.cpu().clone() for name, rows in simulated.ill.items()}
    buffer = io.BytesIO()
    torch.save({"key": key, "words": words, "models": models, "ill": ill}, buffer)
    _write(folder, key, buffer.getvalue())


def _write(folder: CacheFolder, key: str, data: bytes) -> None:
    try:
        folder.write(key, data)
    except OSError:  # a full disk: a cache is no reason to fail
        return


def _circumstances() -> dict[str, Any]:
    """What else simulated kernels, or how they are run, may depend on."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "plumbline": __version__,
        "code": _code(),
        "judge": _judge(),
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "python": platform.python_version(),
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "gpu": gpu,
        "threads": torch.get_num_threads(),
        "switches": [
            str(torch.get_default_dtype()),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_grad_enabled(),
            torch.backends.mkldnn.is_available(),
        ],
    }


@functools.cache
def _code() -> str:
    """Of this package's own files."""
    found = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        found.update(f"{file.name}\n".encode() + file.read_bytes())
    return found.hexdigest()


def _judge() -> list[Any]:
    path = library_of()
    if path is None:
        return []
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]
