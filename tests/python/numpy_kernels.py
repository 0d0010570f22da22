"""Kernels in NumPy, as a user would pass them to verify()."""

from __future__ import annotations

from typing import Any

import numpy as np


def rms_norm(inputs: Any, weights: Any, params: Any) -> Any:
    """In float64, whatever the recorded dtype."""
    x = inputs["x"].astype(np.float64)
    mean = (x * x).mean(-1, keepdims=True)
    return weights["weight"] * (x / np.sqrt(mean + params["eps"]))
