"""Is a recording's own reference within the limits that its simulated kernels give it?

The reference is a kernel that was not simulated: torch's. Where it is beyond the limits, either
it is a poor one (GELU's tails, powers that round twice) or the simulation is: each is listed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..format.delta import oracle_of
from ..format.model_files import open_files, read_tensor
from ..format.recording import as_number
from ..format.strict_json import load_json
from ..format.validate import RECORDING
from ..native import judge_library
from ..trace.gate_statistics import Scales, layout_of

LEAST_FOR_GAIN = 64
"""Fewer elements have no gain of their own."""

Json = Mapping[str, Any]
Read = Callable[[str], torch.Tensor]


@dataclass
class Checked:
    """One output: the statistic that is furthest, over its limit."""

    checkpoint: str
    output: str
    gate: str
    worst: float


def check(folder: Path) -> Iterator[Checked]:
    """Every output of a recording that has simulated kernels and is stored whole."""
    recording = load_json(folder / RECORDING)
    table = recording["tensors"]
    files = open_files(folder, recording)

    def read(key: str) -> torch.Tensor:
        return read_tensor(files, table, key)

    for checkpoint in recording["checkpoints"]:
        for name, output in checkpoint["outputs"].items():
            if "spread" in output and "rows" not in output:
                gate, worst = _worst(output, table[output["tensor"]]["dtype"], read)
                yield Checked(checkpoint["id"], name, gate, worst)


def broadcast_valid(mask: torch.Tensor, valid: Json, output: Json) -> torch.Tensor:
    """The mask with one dimension per axis of the output, of size 1 where it has none."""
    axes = list(valid["axes"])
    order = [axes.index(axis) for axis in output["axes"] if axis in axes]
    mask = mask.permute(order)
    for position, axis in enumerate(output["axes"]):
        if axis not in axes:
            mask = mask.unsqueeze(position)
    return mask


def _worst(output: Json, dtype: str, read: Read) -> tuple[str, float]:
    r = read(output["tensor"])
    o = r.double() if output["delta"] is None else oracle_of(r, read(output["delta"]))
    valid = output.get("valid")
    mask = None
    if valid is not None:
        mask = broadcast_valid(read(valid["tensor"]), valid, output).expand(r.shape)
    scales = Scales(layout_of(r.shape, output["axes"]), o, mask, storage=r.dtype)
    figures = {name: abs(float(v)) for name, v in scales.statistics(r[None]).items()}
    if r.numel() < LEAST_FOR_GAIN:
        del figures["gain"]
    spread = output["spread"]
    judge, narrow = judge_library(), dtype != "f32"
    limits = {
        name: judge.spread_limit(*map(as_number, spread[name][:2]), narrow=narrow)
        for name in figures
    }
    if output.get("model") is not None:
        m = r.flatten().clone()
        m[read(output["model"]["at"]).long()] = read(output["model"]["values"])
        figures["bits"] = float(scales.differing(r[None], m.reshape(r.shape)[None]))
        limits["bits"] = judge.bits_limit(*map(as_number, spread["bits"]))
    return max(((n, _ratio(v, limits[n])) for n, v in figures.items()), key=lambda pair: pair[1])


def _ratio(value: float, limit: float) -> float:
    if value == 0:
        return 0.0
    return value / limit if limit else math.inf
