"""Tiny runs under record(), and a recording read back, for the tests of the capture side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from python_inspector import record, tiny
from python_inspector.format.delta import oracle_of
from python_inspector.format.model_files import name_of
from python_inspector.recorder.where import Where
from python_inspector.taps.options import Proof, What

torch.set_num_threads(1)  # tiny operations: threads only get in each other's way

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def ids(model: torch.nn.Module, batch: int = 2, tokens: int = 15) -> torch.Tensor:
    """Random ids from 3 on, different rows."""
    generator = torch.Generator().manual_seed(7)
    config: Any = model.config
    return torch.randint(3, config.vocab_size, (batch, tokens), generator=generator)


def built(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """A tiny model where the test's tensors are."""
    return tiny.build(name, dtype).to(torch.empty(1).device)


def run(model: torch.nn.Module, mode: str, x: torch.Tensor | None = None) -> list[torch.Tensor]:
    """Runs N (whole), P (decode), K (chunked) or L (padded-decode) of tiny models; the logits."""
    x = ids(model) if x is None else x
    pads = torch.ones_like(x)
    if mode.startswith("padded"):
        pads[0, :3] = 0
    positions = (pads.cumsum(-1) - 1).clamp(min=0)
    cuts = {"whole": [15], "padded": [15], "chunked": [5, 15]}.get(mode, [11, 12, 13, 14, 15])
    logits, cache, start = [], None, 0
    for end in cuts:
        kwargs: dict[str, Any] = {"use_cache": mode not in ("whole", "padded")}
        if cache is not None:
            kwargs["past_key_values"] = cache
        if mode.startswith("padded"):
            kwargs["attention_mask"] = pads[:, :end]
            kwargs["position_ids"] = positions[:, start:end]
        with torch.no_grad():
            out = model(x[:, start:end], **kwargs)
        cache, start = getattr(out, "past_key_values", None), end
        logits.append(out.logits)
    return logits


def asked(folder: Path, **options: Any) -> tuple[Where, What, Proof]:
    """What record() takes, from the names of its fields."""
    of = {kind: {} for kind in (Where, What, Proof)}
    for name, value in options.items():
        kind = next(kind for kind in of if name in kind.__annotations__)
        of[kind][name] = value
    return Where(folder, **of[Where]), What(**of[What]), Proof(**of[Proof])


def recorded(out: Path, name: str, mode: str, dtype: str, attention: str = "eager", **options: Any):
    """A tiny model's run, recorded at `out` and read back."""
    model = tiny.build(name, DTYPES[dtype], attention=attention)
    with record(model, *asked(out, **options)):
        run(model, mode)
    return Recording(out)


class Recording:
    """A recording as the tests want it: checkpoints by id, tensors as float64."""

    def __init__(self, folder: Path) -> None:
        self.json = json.loads((folder / "recording.json").read_text())
        self.files = {
            name: load_file(folder / entry["path"]) for name, entry in self.json["files"].items()
        }
        self.checkpoints: list[dict[str, Any]] = self.json["checkpoints"]
        self.by_id = {c["id"]: c for c in self.checkpoints}

    def of(self, block: str) -> list[dict[str, Any]]:
        return [c for c in self.checkpoints if c["block"] == block]

    def raw(self, key: str) -> torch.Tensor:
        entry = self.json["tensors"][key]
        return self.files[entry["file"]][name_of(entry, key)].reshape(entry["shape"])

    def tensor(self, key: str) -> torch.Tensor:
        raw = self.raw(key)
        return raw.double() if raw.is_floating_point() else raw

    def inputs(self, checkpoint: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {name: self.tensor(ref["tensor"]) for name, ref in checkpoint["inputs"].items()}

    def weights(self, checkpoint: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {name: self.tensor(key) for name, key in checkpoint["weights"].items()}

    def oracle(self, checkpoint: dict[str, Any], name: str = "out") -> torch.Tensor:
        """o = r + delta in float64."""
        output = checkpoint["outputs"][name]
        r = self.tensor(output["tensor"])
        return r if output["delta"] is None else oracle_of(r, self.tensor(output["delta"]))

    def valid(self, checkpoint: dict[str, Any], name: str = "out") -> torch.Tensor:
        """Bool tensor of the output's shape."""
        output = checkpoint["outputs"][name]
        shape = self.raw(output["tensor"]).shape
        if "valid" not in output:
            return torch.ones(shape, dtype=torch.bool)
        mask = self.raw(output["valid"]["tensor"])
        sizes = dict(zip(output["valid"]["axes"], mask.shape, strict=True))
        return mask.reshape([sizes.get(axis, 1) for axis in output["axes"]]).expand(shape)
