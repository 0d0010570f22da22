"""Tiny models of the architectures of transformers, of which nothing is known but a configuration.

`data/architectures.json` has what each one's configuration needs besides the common base. Weights
are drawn as those of models/tiny.py are, so that norms and biases do something; what the library's
own initialisation makes of a parameter tells which kind it is.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

import torch

from ..aliases import PACKAGE

GAIN = 1.4
SPREAD = 0.3
TABLE = resources.files(PACKAGE) / "data" / "architectures.json"


@functools.cache
def configurations() -> dict[str, dict[str, Any]]:
    """Arguments of each architecture's configuration, by model_type."""
    table = json.loads(TABLE.read_text())
    base: Mapping[str, Any] = table["base"]
    return {name: {**base, **own} for name, own in table["models"].items()}


def build_any(model_type: str, dtype: torch.dtype, attention: str, seed: int) -> torch.nn.Module:
    """The architecture's tiny causal model; the same weights for the same seed."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **configurations()[model_type])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(draw(name, parameter, seed))
    return model.eval()


def draw(name: str, made: torch.Tensor, seed: int) -> torch.Tensor:
    """Random float32 values in the place of what the initialisation made.

    Ones become 1 + 0.3 N, zeros 0.3 N; other vectors (decays, time constants) keep their values,
    off by a tenth of their spread; matrices are N(0, (1.4 / sqrt(fan in))^2), embeddings N(0, 1).
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:6], "little"))
    noise = torch.randn(made.shape, generator=generator, dtype=torch.float32)
    values = made.detach().float()
    if bool((values == 1).all()):
        return 1 + SPREAD * noise
    if bool((values == 0).all()):
        return SPREAD * noise if made.ndim < 2 else noise * (GAIN / _fan_in(made) ** 0.5)
    if made.ndim < 2:
        spread = float(values.std()) if made.numel() > 1 else SPREAD
        return values + 0.1 * spread * noise
    return noise if "embed" in name or "wte" in name else noise * (GAIN / _fan_in(made) ** 0.5)


def _fan_in(weight: torch.Tensor) -> float:
    """Of matrices of experts, which may be transposed, the geometric mean of both sides; of a
    convolution all that one output is made of."""
    if weight.ndim == 3 and weight.shape[1] > 1:
        return float(weight.shape[1] * weight.shape[2]) ** 0.5
    return float(weight[0].numel())
