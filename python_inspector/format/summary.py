"""What a recording came to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Summary:
    """What `commit` wrote."""

    path: Path
    checkpoints: int
    tensors: int
    json_bytes: int
    tensor_bytes: int
    weight_bytes: int
    weights_path: Path | None
    weights_shared: bool
    """The weights file was there already and holds the same values."""
    hash_and_spool_seconds: float
    commit_seconds: float

    @property
    def total_bytes(self) -> int:
        """What this recording added to the disk."""
        return (
            self.json_bytes + self.tensor_bytes + (0 if self.weights_shared else self.weight_bytes)
        )
