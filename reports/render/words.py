"""Figures and limits in words, the same in HTML, Markdown and figures."""

from __future__ import annotations

import math

from ..history.compare import Trend
from ..results import Gate


def figure(value: float, digits: int = 2) -> str:
    """A number to `digits` significant digits: 0.0042, 1.6e-7, 12; "-" for what is none."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        rounded = float(f"{value:.{digits}g}")
        return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def times(ratio: float) -> str:
    """A ratio as a factor: 2.0×."""
    return f"{ratio:.1f}×" if ratio < 100 else f"{figure(ratio)}×"


def percent(share: float) -> str:
    """A share in percent; 100 % only where nothing is missing."""
    if math.isnan(share):
        return "-"
    if share < 1 and share > 0.9999:
        return "99.99 %"
    return f"{100 * share:.4g} %"


def derivation(gate: Gate) -> str:
    """How the limit follows from its factors, in the terms of the rule that made it."""
    factors = gate.derivation
    shown = {name: figure(value) for name, value in factors.items()}
    if {"c", "kappa", "reference", "floor"} <= factors.keys():
        return (
            f"{shown['c']} × κ {shown['kappa']} × "
            f"max(reference {shown['reference']}, floor {shown['floor']})"
        )
    if {"factor", "reference", "k", "reference_tensor_error", "floor"} <= factors.keys():
        return (
            f"max({shown['factor']} × reference {shown['reference']}, {shown['k']} × "
            f"max(reference's error {shown['reference_tensor_error']}, floor {shown['floor']}))"
        )
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def overall(trend: Trend) -> str:
    """All checkpoints of a device that changed, together."""
    return (
        f"of {plural(trend.changed, 'error')} that changed {trend.grown:,} grew, "
        f"{trend.mean:.2f}× in the mean (by chance: {figure(trend.chance)})"
    )


def plural(count: int, noun: str) -> str:
    """1 checkpoint, 12 checkpoints."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
