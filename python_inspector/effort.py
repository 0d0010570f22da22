"""How much is computed to judge a recording: the words of `inspector record --effort`."""

from __future__ import annotations

from typing import Any

DEFAULT_RUNS = 16
"""Simulated kernels of an output."""
EFFORTS: dict[str, dict[str, Any]] = {
    "none": {"oracle": False, "spread": 0, "bugs": False},
    "fast": {"spread": 4, "bugs": False},
    "normal": {},
    "full": {"spread": 4 * DEFAULT_RUNS},
}
"""What each asks of taps.options.Proof."""


def described() -> str:
    """Each word, and what it asks for."""
    return "; ".join(f"{word}: {_described(**asked)}" for word, asked in EFFORTS.items())


def _described(oracle: bool = True, spread: int = DEFAULT_RUNS, bugs: bool = True) -> str:
    kernels = f"{spread} simulated kernels" if oracle else "no float64 run"
    return kernels if bugs else f"{kernels}, no planted bugs"
