"""What of a run is to be recorded, and which kinds of blocks that leaves out unless asked for."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from ..format.sampled import Sampling

COMPOSITES = {
    "attention", "glu_mlp", "decoder_layer", "lm_head", "low_rank_adapter",
    "mamba2_mixer", "shared_transformer", "mamba_layer", "hybrid_layer",
}  # fmt: skip
"""Blocks made of blocks: their oracle repeats what their parts' oracles did."""

COMPONENTS = {
    "concat", "slice", "permute", "cast", "mul", "div", "add_scalar", "mask_fill", "position_ids",
    "conv1d", "conv_cache", "ssm_cache",
}  # fmt: skip
"""Kinds that a recording holds only where they are asked for by name: they are many and small."""


@dataclass(frozen=True)
class Options:
    """What record() was asked for; its text explains them."""

    blocks: Collection[str] | None = None
    layers: Collection[int] | None = None
    calls: Collection[int] | None = None
    oracle: bool | Literal["leaves"] = True
    internals: bool = True
    force: bool = False
    masked_rows: Literal["excluded", "judged"] = "excluded"
    sampling: Sampling | None = None
    direct: bool = False
    chained: bool = False
    spread: int = 0
    bugs: bool = False
    rows: int | None = None
    whole_layers: Collection[int] = ()
    outside: bool = True
    """What stands in no layer, too."""
    chain_elsewhere: bool = False
    """Without what a chained recording of the same run holds (recorder/chain.py)."""
    inside: frozenset[str] = frozenset()
    """What simulated kernels do beside float32 arithmetic (format/contract_words.py)."""

    @property
    def operations(self) -> bool:
        """Whether single torch operations are recorded."""
        return self.internals and self.oracle != "leaves"

    @property
    def components(self) -> bool:
        """Whether any kind of COMPONENTS was asked for."""
        return self.blocks is not None and not COMPONENTS.isdisjoint(self.blocks)

    def wants(self, kind: str, path: str) -> bool:
        """Whether a block of this kind, called at this module path, is to be recorded."""
        if kind in COMPONENTS and self.blocks is None:
            return False
        if self.blocks is not None and kind not in self.blocks:
            return False
        if self.oracle == "leaves" and kind in COMPOSITES:
            return False
        return self.covers(path)

    def covers(self, path: str) -> bool:
        """Whether this module path is in a layer that is recorded, or outside of them."""
        index = layer_of(path)
        return self.outside if index is None else self.layers is None or index in self.layers

    def whole(self, path: str) -> bool:
        """Whether calls at this path are recorded with all their tokens."""
        return self.rows is None or layer_of(path) in self.whole_layers


def layer_of(path: str) -> int | None:
    """The decoder layer that a module path lies in; None for what stands outside of them."""
    index = re.search(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)(?:\.|$)", path)
    return None if index is None else int(index[1])
