"""Published sizes of models by name, as config.json has them; the harness reads the same file."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from ..aliases import PACKAGE

SIZES: dict[str, dict[str, Any]] = json.loads(
    (resources.files(PACKAGE) / "data" / "sizes.json").read_text()
)
