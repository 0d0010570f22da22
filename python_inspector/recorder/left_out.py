"""Rows of outputs that a caller does not want to be judged: padding, slots that are not read."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import RecordError
from ..taps.calls import Block
from ..trace.reruns import Reruns


class Valid:
    """Bools over the first dimensions of outputs: [batch, token] of [batch, token, channel]."""

    def __init__(self, valid: Any) -> None:
        self._mask = torch.as_tensor(valid)
        if self._mask.dtype != torch.bool or self._mask.ndim == 0:
            raise RecordError(
                f"[check] valid is {self._mask.dtype} {list(self._mask.shape)}, expected bools "
                "over the first dimensions of an output"
            )

    def restrict(self, block: Block, reruns: Reruns) -> None:
        """The elements of outputs that are judged; RecordError where it fits none."""
        oracle = reruns.oracle or {}
        for name, (o, axes) in oracle.items():
            if not self._fits(o):
                continue
            mask = self._mask.to(o.device)
            mask = mask.reshape(*mask.shape, *[1] * (o.ndim - mask.ndim)).expand(o.shape)
            if name in block.valid:
                mask = mask & block.valid[name][0]
            block.valid[name] = (mask.contiguous(), axes)
        if oracle and not any(self._fits(o) for o, _ in oracle.values()):
            shapes = ", ".join(f"{name} {list(o.shape)}" for name, (o, _) in oracle.items())
            raise RecordError(
                f"[check] valid is {list(self._mask.shape)}, which no output begins with: {shapes}"
            )

    def left_out(self, t: torch.Tensor) -> int:
        """Elements of an output."""
        if not self._fits(t):
            return 0
        return int((~self._mask).sum()) * (t.numel() // max(1, self._mask.numel()))

    def _fits(self, t: torch.Tensor) -> bool:
        return t.shape[: self._mask.ndim] == self._mask.shape
