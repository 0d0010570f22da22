"""Kernels that do not do the work: results that are kept, guessed, or of other inputs."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .norms import rms_norm_like
from .rows import Kernel, Problem, Tensor


class _KeptByShape:
    def __init__(self) -> None:
        self._kept: dict[object, Tensor] = {}

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        if x.shape not in self._kept:
            self._kept[x.shape] = rms_norm_like(x, w)
        return self._kept[x.shape].clone()


class _KeptWeights(_KeptByShape):
    """Preprocessed weights of the first call."""

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        return rms_norm_like(x, self._kept.setdefault(0, w.clone()))


class _FirstCallAlone:
    def __init__(self) -> None:
        self._called = False

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        result = torch.zeros_like(x) if self._called else rms_norm_like(x, w)
        self._called = True
        return result


def rows() -> Iterator[Kernel]:
    problem = Problem("rms_norm called again", rms_norm_like, lambda v: (v(9, 70), v.about_one(70)))
    yield from problem.wrong(
        ("stale", "the result of the first call", _KeptByShape),
        ("stale", "weights of the first call", _KeptWeights),
        ("stale", "right on the first call alone", _FirstCallAlone),
        ("cheat", "its input", lambda x, w: x.clone()),
        ("cheat", "zeros", lambda x, w: torch.zeros_like(x)),
        ("cheat", "the first row for all", lambda x, w: rms_norm_like(x[:1], w).expand(9, 70)),
        ("input", "its input holds the result", lambda x, w: x.copy_(rms_norm_like(x, w))),
        ("precision", "returned in float16", lambda x, w: rms_norm_like(x, w).half(), "", "f32"),
    )  # fmt: skip
    yield from problem.right(("out of place", lambda x, w: rms_norm_like(x.clone(), w.clone())))
