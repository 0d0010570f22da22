"""Names imported from the neighbouring package: python_inspector in a checkout, and where both
are installed, plumbline.inspector."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__ == "reports":
    from python_inspector import __version__
    from python_inspector.models.sizes import SIZES
    from python_inspector.needs import advice_for, extra
    from python_inspector.usage import Parser
else:
    from ..inspector import __version__
    from ..inspector.models.sizes import SIZES
    from ..inspector.needs import advice_for, extra
    from ..inspector.usage import Parser

__all__ = ["PACKAGE", "SIZES", "Parser", "__version__", "advice_for", "extra"]

PACKAGE = __name__.rpartition(".")[0]
"""How this package is called here: reports, or plumbline.reports."""
