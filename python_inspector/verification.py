"""verify(): what anybody's function makes of a recording's inputs, judged by the native harness."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Arrays = Mapping[str, Any]
Function = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], Any]

BINARY_VARIABLE = "PLUMB_HARNESS"


class HarnessError(RuntimeError):
    """The harness is not there, or did not do what it was asked; the text has its last words."""


@dataclass(frozen=True)
class Verdict:
    """The harness's judgement of one checkpoint: a status, its reason and every figure."""

    checkpoint: str
    block: str
    status: str
    reason: str
    figures: dict[str, Any] = field(repr=False)
    """The whole JSON object of the result."""

    @property
    def passed(self) -> bool:
        return self.status == "pass"


def verify(
    function: Function,
    recording: Path | str,
    checkpoint: str | None = None,
    *,
    block: str | None = None,
    arrays: str = "torch",
    upcast: bool = False,
    contract: str | None = None,
    harness: Path | str | None = None,
) -> list[Verdict]:
    """Calls `function(inputs, weights, params)` for each selected checkpoint; judges its results.

    `checkpoint` is a regular expression over ids, `block` a kind of block; both None selects all.
    Inputs and weights are dicts of torch tensors or, with arrays="numpy", of arrays; numpy has no
    bf16, so 16-bit floats are then upcast to float32, exactly, as `upcast` does for torch. The
    function returns a dict of outputs by name, or the only output itself; float32 and float64 are
    accepted for 16-bit outputs and rounded. An exception of the function is not caught.
    `contract` says how the function rounds, "eager" or "fused", where not as the reference did.

    Raises HarnessError if there is no harness binary, nothing was selected, or the function's
    outputs cannot be written.
    """
    if arrays not in ("torch", "numpy"):
        raise ValueError(f"arrays is {arrays!r}, expected torch or numpy")
    binary = find_harness(harness)
    with tempfile.TemporaryDirectory(prefix="plumbline-") as name:
        folder = Path(name)
        exported = _export(binary, Path(recording), folder, checkpoint, block, arrays, upcast)
        results = folder / "outputs.safetensors"
        save_file(_run(function, exported, arrays, folder), results)
        command: list[Any] = [binary, "judge", recording, results]
        command += [] if contract is None else ["--contract", contract]
        return _judge(command, folder / "verdicts.json", exported)


def find_harness(given: Path | str | None = None) -> Path:
    """The harness binary: given, in PLUMB_HARNESS, on PATH, or built in this repository."""
    named = given or os.environ.get(BINARY_VARIABLE)
    if named is not None:
        found = shutil.which(str(named))
        if found is None:
            source = "given" if given else BINARY_VARIABLE
            raise HarnessError(f"{named} ({source}) is no program that can be run")
        return Path(found)
    if found := shutil.which("harness"):
        return Path(found)
    built = sorted(
        Path(__file__).parents[1].glob("build/*/bin/harness"),
        key=lambda path: path.stat().st_mtime,
    )
    if not built:
        raise HarnessError(
            f"no harness binary: build it with ci/verify, or name it in {BINARY_VARIABLE}"
        )
    return built[-1]


def _export(
    binary: Path,
    recording: Path,
    folder: Path,
    checkpoint: str | None,
    block: str | None,
    arrays: str,
    upcast: bool,
) -> list[dict[str, Any]]:
    command = [binary, "export", recording, folder]
    if checkpoint is not None:
        command += ["--checkpoint", checkpoint]
    if block is not None:
        command += ["--block", block]
    if upcast or arrays == "numpy":
        command += ["--upcast"]
    done = _call(command)
    if done.returncode != 0:
        raise HarnessError(_last_words("export", done))
    exported: list[dict[str, Any]] = json.loads((folder / "checkpoints.json").read_text())[
        "checkpoints"
    ]
    if not exported:
        raise HarnessError(f"no checkpoint of {recording} was selected")
    return exported


def _run(
    function: Function, exported: list[dict[str, Any]], arrays: str, folder: Path
) -> dict[str, torch.Tensor]:
    tensors = load_file(folder / "tensors.safetensors")
    results: dict[str, torch.Tensor] = {}
    for entry in exported:
        inputs = {
            name: _given(tensors[ref["tensor"]], arrays) for name, ref in entry["inputs"].items()
        }
        weights = {name: _given(tensors[key], arrays) for name, key in entry["weights"].items()}
        returned = function(inputs, weights, entry["params"])
        for name, value in _by_name(entry, returned).items():
            results[f"{entry['id']}/{name}"] = _taken(entry["id"], name, value)
    return results


def _given(tensor: torch.Tensor, arrays: str) -> Any:
    return tensor.clone() if arrays == "torch" else tensor.numpy().copy()


def _by_name(entry: Mapping[str, Any], returned: Any) -> Mapping[str, Any]:
    expected = list(entry["outputs"])
    if isinstance(returned, Mapping):
        if returned.keys() != set(expected):
            raise HarnessError(
                f"{entry['id']}: the function returned {sorted(returned)}, "
                f"expected {sorted(expected)}"
            )
        return returned
    if len(expected) != 1:
        raise HarnessError(
            f"{entry['id']}: the function returned one value, expected a dict of {sorted(expected)}"
        )
    return {expected[0]: returned}


def _taken(checkpoint: str, name: str, value: Any) -> torch.Tensor:
    if isinstance(value, np.ndarray | np.generic):
        value = torch.from_numpy(np.array(value))
    if not isinstance(value, torch.Tensor):
        raise HarnessError(
            f"{checkpoint}: output {name} is a {type(value).__name__}, not an array or a tensor"
        )
    return value.detach().cpu().contiguous().clone()


def _judge(command: list[Any], lines: Path, exported: list[dict[str, Any]]) -> list[Verdict]:
    done = _call([*command, "--json", lines])
    if not lines.is_file():
        raise HarnessError(_last_words("judge", done))
    verdicts = [
        Verdict(item["checkpoint"], item["block"], item["status"], item["reason"], item)
        for item in map(json.loads, lines.read_text().splitlines())
        if "checkpoint" in item and "status" in item
    ]
    missing = {entry["id"] for entry in exported} - {verdict.checkpoint for verdict in verdicts}
    if missing:
        raise HarnessError(
            f"no verdict for {len(missing)} of {len(exported)} checkpoints, such as "
            f"{min(missing)}; {_last_words('judge', done)}"
        )
    return verdicts


def _call(command: list[Any]) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def _last_words(subcommand: str, done: subprocess.CompletedProcess[str]) -> str:
    words = (done.stderr or done.stdout).strip().splitlines()
    return (
        f"harness {subcommand} ended with {done.returncode}: {words[-1] if words else 'no output'}"
    )
