"""python -m tests.panel.moved: figures of recordings moved by an editor, who also makes the hashes
and the stated errors fit. Of the checkpoints that have a figure: how many are refused with our own
float64 block and without, and by the oracle device alone, in float64 and as recorded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from python_inspector.format.recording import DTYPES

ROOT = Path(__file__).resolve().parents[2]
HARMLESS = ("pass", "blind", "unsupported")
WAYS = {
    "refereed": ("--device", "cpu", "--referee", "native"),
    "alone": ("--device", "cpu", "--referee", "none"),
    "oracle f64": ("--device", "oracle", "--referee", "none"),
    "oracle": ("--device", "oracle", "--no-fuse", "--referee", "none", "--dtype"),
}
RECORDINGS = (
    "llama-a1/whole-f32",
    "llama-a1/decode-bf16",
    "llama-a1/whole-f16",
    "gemma2-a4/whole-f32",
    "gemma2-a4/decode-bf16",
    "zamba2-a6/decode-bf16",
    "border-llama32-1b/whole-f16-sdpa",
)


class Editor:
    """A recording that is open; tensors can be added."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.document = json.loads((folder / "recording.json").read_text())
        self._file = self.document["files"]["tensors"]
        self._tensors = load_file(folder / self._file["path"])
        self._next = len(self.document["tensors"])

    def read(self, key: str) -> torch.Tensor | None:
        """None where it is generated, or a weight."""
        entry = self.document["tensors"][key]
        if entry.get("file") != "tensors":
            return None
        return self._tensors[entry.get("name", key)]

    def add(self, tensor: torch.Tensor) -> str:
        key = f"t{self._next}"
        self._next += 1
        self._tensors[key] = tensor.contiguous().clone()
        self.document["tensors"][key] = {
            "file": "tensors",
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "sha256": hashlib.sha256(_bytes(tensor)).hexdigest(),
        }
        return key

    def save(self) -> None:
        file = self.folder / self._file["path"]
        save_file(self._tensors, file)
        data = file.read_bytes()
        self._file |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (self.folder / "recording.json").write_text(json.dumps(self.document))


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


Output = dict[str, Any]
Move = Callable[[Editor, dict[str, Any], Output], bool]
"""Of one output of a checkpoint; whether there is something to move."""


def _off(share: float, every: int) -> Move:
    """The oracle of every so many elements is off by a share of the output's size."""

    def move(editor: Editor, checkpoint: dict[str, Any], output: Output) -> bool:
        r = editor.read(output["tensor"])
        if r is None or not r.is_floating_point() or "rows" in output or not r.isfinite().all():
            return False
        if not r.numel() or not r.any():
            return False
        key = output.get("delta")
        delta = torch.zeros(r.shape) if key is None else editor.read(key)
        assert delta is not None
        moved = delta.flatten().clone()
        moved[::every] += share * float(r.double().square().mean().sqrt())
        if not moved.isfinite().all():
            return False
        delta = moved.reshape(r.shape)
        valid = _valid(editor, output, r)
        o = (r.double() + delta.double())[valid]
        error = (o - r.double()[valid]).norm() / o.norm()
        output |= {"delta": editor.add(delta), "error": float(error)}
        return True

    return move


def _valid(editor: Editor, output: Output, r: torch.Tensor) -> torch.Tensor:
    if "valid" not in output:
        return torch.ones(r.shape, dtype=torch.bool)
    mask = editor.read(output["valid"]["tensor"])
    assert mask is not None
    extents = dict(zip(output["valid"]["axes"], mask.shape, strict=True))
    return mask.reshape([extents.get(axis, 1) for axis in output["axes"]]).expand(r.shape)


def _model(every: int) -> Move:
    """Every so many bits of m are the next ones."""

    def move(editor: Editor, checkpoint: dict[str, Any], output: Output) -> bool:
        r = editor.read(output["tensor"])
        if "model" not in output or r is None or not r.numel():
            return False
        at = torch.arange(0, r.numel(), every)
        bits = r.flatten()[at].view(torch.int16) ^ 1
        output["model"] = {"at": editor.add(at), "values": editor.add(bits.view(r.dtype))}
        return True

    return move


def _spread(field: str, factor: float) -> Move:
    def move(editor: Editor, checkpoint: dict[str, Any], output: Output) -> bool:
        if field not in output:
            return False
        for name, figures in output[field].items():
            if isinstance(figures, list):
                output[field][name] = [factor * figure for figure in figures]
        return True

    return move


def _score(factor: float) -> Move:
    def move(editor: Editor, checkpoint: dict[str, Any], output: Output) -> bool:
        params = checkpoint["params"].get("attention", checkpoint["params"])
        if not params.get("max_abs_score"):
            return False
        params["max_abs_score"] *= factor
        return True

    return move


def _members(values: float, bits: float) -> Move:
    def move(editor: Editor, checkpoint: dict[str, Any], output: Output) -> bool:
        for member in output.get("members", []):
            tensor = editor.read(member["values"])
            assert tensor is not None
            if values != 1:
                member["values"] = editor.add((tensor.double() * values).to(tensor.dtype))
            member["bits"] = [bits * figure for figure in member["bits"]]
        return bool(output.get("members"))

    return move


def _stated(editor: Editor, checkpoint: dict[str, Any], output: Output) -> bool:
    output["error"] = 2 * (output.get("error") or 0)
    return bool(output["error"])


MOVES: dict[str, Move] = {
    "error x 2": _stated,
    "delta: one element by 10 %": _off(0.1, 1 << 62),
    "delta: all by 1 %": _off(0.01, 1),
    "delta: all by 1e-6": _off(1e-6, 1),
    "m: all bits": _model(1),
    "m: every 10th bit": _model(10),
    "m: every 100th bit": _model(100),
    "spread x 10": _spread("spread", 10),
    "spread x 1000": _spread("spread", 1000),
    "truncated x 1000": _spread("truncated", 1000),
    "max_abs_score x 10": _score(10),
    "max_abs_score / 10": _score(0.1),
    "members: values 1 % off": _members(1.01, 1),
    "members: bits x 100": _members(1, 100),
}


def moved(editor: Editor, move: Move) -> set[str]:
    """The ids of checkpoints that had the figure."""
    found = set()
    for checkpoint in editor.document["checkpoints"]:
        had = [move(editor, checkpoint, output) for output in checkpoint["outputs"].values()]
        if any(had):
            found.add(checkpoint["id"])
    return found


def statuses(harness: Path, folder: Path, way: Sequence[str]) -> dict[str, str]:
    lines = folder.parent / "lines.jsonl"
    command = [str(harness), "--fixture", str(folder), *way, "--threads", "1", "--json", str(lines)]
    done = subprocess.run(command, capture_output=True, text=True)
    if not lines.exists():
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    lines.unlink()
    found = {r["checkpoint"]: r["status"] for r in rows if r["type"] == "checkpoint"}
    if "(recording)" in found:
        raise SystemExit(f"{folder}: no harness reads it")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.panel.moved", description=__doc__)
    parser.add_argument("--fixtures", type=Path, default=ROOT / "fixtures")
    parser.add_argument("--harness", type=Path, default=ROOT / "build/cpu/bin/harness")
    parser.add_argument("--recording", nargs="+", default=RECORDINGS)
    parser.add_argument("--move", nargs="+", choices=MOVES, default=list(MOVES))
    options = parser.parse_args(arguments)
    had: Counter[str] = Counter()
    refused: Counter[tuple[str, str]] = Counter()
    for name in options.recording:
        for words in options.move:
            with tempfile.TemporaryDirectory() as work:
                folder = Path(work, name)
                shutil.copytree(options.fixtures / name, folder)
                for weights in (options.fixtures / name).parent.glob("weights-*"):
                    shutil.copy(weights, folder.parent)
                editor = Editor(folder)
                ids = moved(editor, MOVES[words])
                if not ids:
                    continue
                editor.save()
                had[words] += len(ids)
                dtype = editor.document["provenance"]["dtype"]
                for way, flags in WAYS.items():
                    given = (*flags, dtype) if flags[-1] == "--dtype" else flags
                    said = statuses(options.harness, folder, given)
                    refused[words, way] += sum(said.get(id) not in HARMLESS for id in ids)
    print(f"{'':28}{'had':>8}" + "".join(f"{way:>12}" for way in WAYS))
    for words in (words for words in options.move if had[words]):
        row = "".join(f"{refused[words, way]:12}" for way in WAYS)
        print(f"{words:28}{had[words]:8}{row}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
