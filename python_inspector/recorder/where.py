"""Where a recording goes, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..format.writer import Progress


@dataclass(frozen=True)
class Where:
    """Where a recording goes, and what its provenance says of it."""

    folder: Path | str
    name: str | None = None
    """None: the last two folders of the path."""
    source: str | None = None
    """Where the model comes from: `tiny:NAME`, a path, the id of a model on the hub."""
    seed: int | None = None
    revision: str | None = None
    run: Mapping[str, Any] | None = None
    """What is said of the run instead of what is seen."""
    command: str | None = None
    created: str | None = None
    weights_path: Path | str | None = None
    """A file next to the folder, whose weights several recordings of the model share."""
    model_folder: Path | str | None = None
    """What the model was loaded from. Weights that its safetensors files hold are referred to
    (file, name, SHA-256) instead of copied."""
    weights_sha256: Callable[[], str] | None = None
    """Of all weights of the model, where it is known."""
    progress: Progress | None = None

    @property
    def label(self) -> str:
        whole = Path(self.folder).resolve()
        return self.name or f"{whole.parent.name}/{whole.name}"
