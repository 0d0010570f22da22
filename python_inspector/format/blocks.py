"""The blocks that the harness computes; fixtures/schema/blocks.json has what each consists of."""

from __future__ import annotations

import json
from importlib import resources

from ..aliases import PACKAGE

_TABLE = resources.files(PACKAGE) / "data" / "blocks.json"
BLOCKS: tuple[str, ...] = tuple(json.loads(_TABLE.read_text()))
"""Every one but `module`, whose inputs and outputs are whatever the module had."""
