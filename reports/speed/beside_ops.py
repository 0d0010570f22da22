"""What torch calls each native op, from the neighbouring package; it loads torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__ == "reports.speed":
    from python_inspector.cases.torch_ops import ELEMENTWISE, OPS, REDUCTIONS, Op
else:
    from ...inspector.cases.torch_ops import ELEMENTWISE, OPS, REDUCTIONS, Op

__all__ = ["ELEMENTWISE", "OPS", "REDUCTIONS", "Op"]
