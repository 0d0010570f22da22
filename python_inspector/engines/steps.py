"""The calls of a recorded run: which ids the model was given, in which step, after what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError
from ..format.model_files import name_of
from ..format.named_recordings import recording_folder
from ..format.operands import read
from ..format.recording import chained_outputs
from ..format.safetensors_file import SafetensorsFile, read_header
from ..format.shared_payloads import require_shared
from ..format.strict_json import load_json


@dataclass(frozen=True)
class Step:
    """One call of the model, as it is described to a function."""

    index: int
    ids: Any = field(repr=False)
    """[batch, tokens], int64."""
    position: int
    """Tokens that came before, padding among them."""
    total: int
    """Tokens of the whole sequence, for whoever makes room for a cache."""
    padding: tuple[int, ...]
    """Tokens of padding on the left of every row."""
    config: Mapping[str, Any] = field(repr=False)
    """The model's configuration, as transformers writes it."""

    @property
    def first(self) -> bool:
        """Whether a sequence begins here: caches of the one before are to be forgotten."""
        return self.position == 0

    @property
    def tokens(self) -> int:
        return int(self.ids.shape[1])


@dataclass(frozen=True)
class Place:
    """Where an output of the chain belongs: the id of a checkpoint, and its output."""

    checkpoint: str
    output: str
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.checkpoint}/{self.output}"


class RecordedRun:
    """The steps of a chained recording, and what a model may hand over in each."""

    def __init__(self, recording: Path | str) -> None:
        self.folder = recording_folder(Path(recording))
        if self.folder.is_file():
            self.folder = self.folder.parent
        self._json = load_json(self.folder / "recording.json")
        require_shared(self.folder / "recording.json", self._json["tensors"])
        run = self._json["provenance"]["run"]
        self.config: Mapping[str, Any] = self._json.get("config", {})
        self.dtype: str = self._json["provenance"]["dtype"]
        self.goes_on = run["mode"] not in ("whole", "padded")
        self.padding = tuple(run["left_pad"] or ())
        tensors = read_header(self.folder / self._json["files"]["tensors"]["path"])
        embeddings = [c for c in self._json["checkpoints"] if c["block"] == "embedding"]
        # Of the model, whose code may have changed them before its embedding got them.
        inputs = [c["inputs"].get("given", c["inputs"]["ids"]) for c in embeddings]
        self.ids = [self._ids(tensors, item["tensor"]) for item in inputs]
        if not self.ids or not any(self._chained(c) for c in self._json["checkpoints"]):
            raise FormatError(
                f"{self.folder}: is no chained recording of a whole model; record it again with "
                f"--chained (record(..., chained=True))"
            )

    @property
    def batch(self) -> int:
        return int(self.ids[0].shape[0])

    def _ids(self, tensors: SafetensorsFile, key: str) -> Any:
        entry = self._json["tensors"][key]
        return read(tensors, name_of(entry, key), "numpy").reshape(entry["shape"])

    def _chained(self, checkpoint: Mapping[str, Any]) -> bool:
        return any("chained_delta" in output for output in checkpoint["outputs"].values())

    def sequences(self) -> list[list[int]]:
        """Steps that continue each other: all of them, or each alone."""
        steps = list(range(len(self.ids)))
        return [steps] if self.goes_on else [[step] for step in steps]

    def steps(self, sequence: list[int]) -> Iterator[Step]:
        """The calls of one sequence; ids as NumPy arrays."""
        lengths = [self.ids[step].shape[1] for step in sequence]
        before = [0, *accumulate(lengths)]
        for step, position in zip(sequence, before, strict=False):
            padding = self.padding if self.padding else (0,) * self.batch
            yield Step(step, self.ids[step], position, sum(lengths), padding, self.config)

    def all_ids(self, sequence: list[int]) -> Any:
        """[batch, tokens] of the whole sequence."""
        return np.concatenate([self.ids[step] for step in sequence], axis=1)

    def places(self, step: int) -> dict[str, Place]:
        """What may be handed over of a step, by the names that a function may use.

        "logits"; the path of a module, with its function if it has one ("model.layers.0",
        "model.layers.0.self_attn:kv_cache/keys_after"); the checkpoint's id in place of that.
        """
        found: dict[str, Place] = {}
        for checkpoint in self._json["checkpoints"]:
            if checkpoint["step"] != step:
                continue
            for output in chained_outputs(checkpoint["block"], checkpoint["path"]):
                if output in checkpoint["outputs"]:
                    place = self._place(checkpoint, output)
                    path = checkpoint["id"].rpartition("#")[0]
                    names = [place.name, f"{path}/{output}"]
                    names += [path, checkpoint["id"]] if output == "out" else []
                    names += ["logits"] if checkpoint["block"] == "lm_head" else []
                    found |= dict.fromkeys(names, place)
        return found

    def _place(self, checkpoint: Mapping[str, Any], output: str) -> Place:
        key = checkpoint["outputs"][output]["tensor"]
        shape = tuple(self._json["tensors"][key]["shape"])
        return Place(checkpoint["id"], output, shape)
