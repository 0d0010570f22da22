"""What of a run is to be recorded, and which kinds of blocks that leaves out unless asked for."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from ..effort import DEFAULT_RUNS, EFFORTS
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
class What:
    """Which calls are recorded, and how much of each."""

    blocks: Collection[str] | None = None
    """Only these kinds; None: all but COMPONENTS."""
    layers: Collection[int] | None = None
    """Only these decoder layers, by index."""
    outside: bool = True
    """What is in no layer, too."""
    calls: Collection[int] | None = None
    """Only these forward calls of the model, from 0; all must be made, from the first on."""
    rows: int | None = None
    """Of calls with more tokens only so many, of blocks that compute each token by itself; other
    blocks in `whole_layers` alone, with their inputs whole and their large outputs sampled. A model
    of billions of parameters then takes less than a gigabyte besides its weights."""
    whole_layers: Collection[int] | None = None
    """With `rows`; None: the first layer of each kind and the last."""
    sampling: Sampling | None = None
    """Large outputs as chosen rows and a sketch of all (format/sampled.py)."""
    internals: bool = True
    """Single torch operations inside functions."""
    direct: bool = False
    """Only what the model's own forward calls, not what runs inside that."""
    masked_rows: Literal["excluded", "judged"] = "excluded"
    """Attention rows without an allowed key. Those of an attention that makes NaN of one, as
    float16 may, are never judged."""
    force: bool = False
    """What a guard would refuse (recorder/guards.py), with a warning."""

    def covers(self, path: str) -> bool:
        """Whether this module path is in a layer that is recorded, or outside of them."""
        index = layer_of(path)
        return self.outside if index is None else self.layers is None or index in self.layers

    @property
    def components(self) -> bool:
        """Whether any kind of COMPONENTS was asked for."""
        return self.blocks is not None and not COMPONENTS.isdisjoint(self.blocks)


@dataclass(frozen=True)
class Proof:
    """What is computed to judge the calls."""

    oracle: bool | Literal["leaves"] = True
    """The float64 run of each call. False: delta is null, and the recording says so. "leaves": no
    composite blocks and no single operations, which is faster."""
    spread: int = DEFAULT_RUNS
    """So many simulated kernels show what a correct kernel may (trace/spread.py); 0: none, and no
    rounded model, which is faster."""
    bugs: bool = True
    """Other ways to round and planted bugs, in calls without a native block, as far as that is
    affordable (trace/judgement.py)."""
    chained: bool = False
    """The whole model in float64, over all calls: what its layers, caches and head give is recorded
    with what they gave in the run (recorder/chain.py)."""
    chain_elsewhere: bool = False
    """Without what a chained recording of the same run holds."""
    backward: bool = False
    """The gradients of the first call of each path and function that is recorded, too
    (recorder/backward_calls.py)."""
    loss: Literal["cross_entropy"] | None = None
    """With `backward`, the gradients of all weights by the model's own loss, too, in its first call
    (recorder/losses.py)."""
    contract: str | None = None
    """What simulated kernels do inside, so that kernels may ("eager+sums-16",
    format/contract_words.py); checkpoints where it changes anything state it."""

    @classmethod
    def of(cls, effort: str, **others: Any) -> Proof:
        """By a word, as `inspector record --effort` takes."""
        return cls(**(EFFORTS[effort] | others))


@dataclass(frozen=True)
class Options:
    """What record() was asked for."""

    what: What = What()
    proof: Proof = Proof()
    inside: frozenset[str] = frozenset()
    """How simulated kernels depart from float32 arithmetic (format/contract_words.py)."""

    @property
    def operations(self) -> bool:
        """Whether single torch operations are recorded."""
        return self.what.internals and self.proof.oracle != "leaves"

    @property
    def bugs(self) -> bool:
        return self.proof.bugs and self.proof.spread > 0

    def wants(self, kind: str, path: str) -> bool:
        """Whether a block of this kind, called at this module path, is to be recorded."""
        if kind in COMPONENTS and self.what.blocks is None:
            return False
        if self.what.blocks is not None and kind not in self.what.blocks:
            return False
        if self.proof.oracle == "leaves" and kind in COMPOSITES:
            return False
        return self.what.covers(path)

    def whole(self, path: str) -> bool:
        """Whether calls at this path are recorded with all their tokens."""
        whole = self.what.whole_layers
        return self.what.rows is None or (whole is not None and layer_of(path) in whole)


def layer_of(path: str) -> int | None:
    """The decoder layer that a module path is in; None for what is in none."""
    index = re.search(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)(?:\.|$)", path)
    return None if index is None else int(index[1])
