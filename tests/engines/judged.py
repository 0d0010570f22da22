"""Cases of a recording, and the harness's verdicts on what a kernel makes of them."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from python_inspector.native import find_harness

from .kernel import Angles, Case


@dataclass(frozen=True)
class Judged:
    checkpoint: str
    status: str
    reason: str
    diagnosis: str

    @property
    def passed(self) -> bool:
        return self.status == "pass"


@lru_cache(maxsize=16)
def cases(folder: Path) -> dict[str, list[Case]]:
    """All cases of a recording by block, those of blocks that no kernel computes left out."""
    with tempfile.TemporaryDirectory(prefix="plumbline-") as name:
        known = {c["block"] for c in _recording(folder)["checkpoints"]}
        words = [str(find_harness()), "export", str(folder), name]
        for block in sorted(known & BLOCKS):
            words += ["--block", block]
        if known & BLOCKS:
            _call(words, {0})
            exported = json.loads((Path(name) / "checkpoints.json").read_text())["checkpoints"]
            tensors = load_file(Path(name) / "tensors.safetensors")
        else:
            exported, tensors = [], {}
    tables = _tables(folder, exported, tensors)
    found: dict[str, list[Case]] = {}
    for entry in exported:
        if entry["block"] != "rotary_table":
            case = _case(entry, tensors, tables)
            found.setdefault(case.block, []).append(case)
    return found


BLOCKS = {
    "rms_norm", "rotary", "rotary_positions", "rotary_table", "glu_activation", "activation",
    "softcap", "sdpa", "linear", "glu_mlp", "lm_head",
}  # fmt: skip


def reference_errors(folder: Path) -> dict[str, float]:
    """The relative error that the recording states of each checkpoint's reference; the worst."""
    return {
        entry["id"]: max(output.get("error") or 0.0 for output in entry["outputs"].values())
        for entry in _recording(folder)["checkpoints"]
    }


@lru_cache(maxsize=16)
def stored_rows(folder: Path) -> dict[tuple[str, str], tuple[int, torch.Tensor]]:
    """Of outputs that are sampled, by checkpoint and name: the axis and its rows that are stored.

    The stated error of the reference is theirs.
    """
    recording = _recording(folder)
    found: dict[tuple[str, str], tuple[int, torch.Tensor]] = {}
    with safe_open(folder / recording["files"]["tensors"]["path"], "pt") as stored:
        for entry in recording["checkpoints"]:
            for name, output in entry["outputs"].items():
                if "rows" in output:
                    axes = output["axes"]
                    axis = axes.index("token" if "token" in axes else "kv_token")
                    rows = stored.get_tensor(output["rows"]["tensor"])
                    found[entry["id"], name] = (axis, rows)
    return found


def judge(folder: Path, outputs: Mapping[str, Mapping[str, torch.Tensor]]) -> list[Judged]:
    """Verdicts on outputs by checkpoint and name."""
    flat = {
        f"{checkpoint}/{name}": tensor.clone()
        for checkpoint, named in outputs.items()
        for name, tensor in named.items()
    }
    with tempfile.TemporaryDirectory(prefix="plumbline-") as name:
        results, lines = Path(name) / "outputs.safetensors", Path(name) / "verdicts.jsonl"
        save_file(flat, results)
        words = [find_harness(), "judge", folder, results, "--json", lines]
        done = _call([str(word) for word in words], set(range(10)))
        if not lines.is_file():
            raise RuntimeError(f"harness judge {folder}: {done.stderr or done.stdout}")
        items = map(json.loads, lines.read_text().splitlines())
        found = [_judged(item) for item in items if "checkpoint" in item and "status" in item]
    missing = outputs.keys() - {each.checkpoint for each in found}
    if missing:
        raise RuntimeError(f"harness judge {folder}: no verdict on {sorted(missing)}")
    return found


def _judged(item: Mapping[str, Any]) -> Judged:
    words = [str(line) for line in item["details"] if "rounds like" in line]
    words += [item["diagnosis"]] if item.get("diagnosis") else []
    if item.get("known_bug"):
        words.append(f"equals the block with: {item['known_bug']['bug']}")
    return Judged(item["checkpoint"], item["status"], item["reason"], "; ".join(words))


def _case(entry: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], tables: Any) -> Case:
    inputs = {name: tensors[ref["tensor"]] for name, ref in entry["inputs"].items()}
    weights = {name: tensors[key] for name, key in entry["weights"].items()}
    cos = entry["inputs"].get("cos")
    angles = tables.get(cos["tensor"]) if cos else None
    if entry["block"] == "rotary_positions":
        scaling = entry["params"].get("attention_scaling", 1.0)
        angles = Angles(inputs["positions"], inputs["inv_freq"], scaling)
    names = tuple(entry["outputs"])
    return Case(entry["id"], entry["block"], entry["params"], inputs, weights, names, angles)


def _tables(
    folder: Path, exported: list[dict[str, Any]], tensors: Mapping[str, torch.Tensor]
) -> dict[str, Angles]:
    """What each recorded table was made of, by the key of its cosines."""
    cosines = {c["id"]: c["outputs"] for c in _recording(folder)["checkpoints"]}
    return {
        cosines[entry["id"]]["cos"]["tensor"]: Angles(
            tensors[entry["inputs"]["positions"]["tensor"]],
            tensors[entry["inputs"]["inv_freq"]["tensor"]],
            entry["params"]["attention_scaling"],
        )
        for entry in exported
        if entry["block"] == "rotary_table" and "tensor" in cosines[entry["id"]]["cos"]
    }


@lru_cache(maxsize=16)
def _recording(folder: Path) -> Any:
    return json.loads((folder / "recording.json").read_text())


def _call(words: list[str], allowed: set[int]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in allowed:
        raise RuntimeError(f"{' '.join(words[:3])}: {done.stderr or done.stdout}")
    return done
