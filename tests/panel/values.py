"""Weights that drawn ones are not like: what trained and broken models have."""

from __future__ import annotations

import random
from collections.abc import Mapping

import torch

KINDS = ("large scores", "denormals", "outliers")


def change(weights: Mapping[str, torch.Tensor], kind: str, dtype: str, seed: int) -> None:
    """Changes float32 weights in place, by their names.

    "large scores": queries 20 times as large, so that softmax is a choice. "denormals": one norm's
    weights of the size of the dtype's denormals; not of bf16, whose products flush them on CPUs
    with AVX-512 BF16 (VDPBF16PS takes denormals as zero): such a failure is right. "outliers": two
    channels of embeddings and norms 30 times as large, as trained models have them.
    """
    dice = random.Random(seed)
    if kind == "large scores":
        for name, weight in weights.items():
            if name.endswith("q_proj.weight"):
                weight.mul_(20)
    elif kind == "denormals" and dtype != "bf16":
        norms = sorted(name for name in weights if name.endswith("norm.weight"))
        weights[dice.choice(norms)].mul_(3e-6 if dtype == "f16" else 1e-39)
    elif kind == "outliers":
        for name, weight in weights.items():
            if name.endswith(("embed_tokens.weight", "norm.weight")):
                for channel in dice.sample(range(weight.shape[-1]), 2):
                    weight[..., channel] *= 30
