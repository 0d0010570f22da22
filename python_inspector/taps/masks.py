"""Attention masks as numbers: causal, window, offsets and valid keys instead of a tensor.

Slots count tokens in the cache, not positions: query slot q may see key slot k when k <= q, when
q - k < window (if there is one) and when the key is valid (transformers' masking_utils.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..format.axes import Named, broadcast_shape

KEYS = ("batch", "kv_token")
MASK = ("batch", "head", "token", "kv_token")


@dataclass
class Visibility:
    """Which keys a query may see, and the tensor transformers made of it (None: no mask passed)."""

    causal: bool
    window: int | None
    query_offset: int
    key_offset: int
    batch: int
    queries: int
    keys: int
    key_valid: torch.Tensor | None
    """Bool [batch, kv_token]; None if every key is valid."""
    made: torch.Tensor | None = field(default=None, repr=False)

    def params(self) -> dict[str, Any]:
        """The mask params of the format, less fully_masked."""
        return {
            "causal": self.causal,
            "window": self.window,
            "query_offset": self.query_offset,
            "key_offset": self.key_offset,
        }

    def inputs(self) -> dict[str, Named]:
        return {} if self.key_valid is None else {"key_valid": (self.key_valid, KEYS)}

    def allowed(self) -> torch.Tensor:
        """Bool [batch or 1, 1, token, kv_token]."""
        device = None if self.key_valid is None else self.key_valid.device
        device = self.made.device if self.made is not None else device
        q = torch.arange(self.queries, device=device)[:, None] + self.query_offset
        k = torch.arange(self.keys, device=device)[None, :] + self.key_offset
        allowed = k <= q if self.causal else torch.ones_like(k <= q)
        if self.window is not None:
            allowed = allowed & (q - k < self.window)
        allowed = allowed[None, None]
        return allowed if self.key_valid is None else allowed & self.key_valid[:, None, None, :]


def from_interface(kwargs: Mapping[str, Any], mask: torch.Tensor | None) -> Visibility:
    """What a mask function of transformers (eager_mask, sdpa_mask) was asked, and its answer."""
    offset, keys = int(kwargs["kv_offset"]), int(kwargs["kv_length"])
    padding = kwargs.get("attention_mask")
    key_valid = None
    if padding is not None:
        missing = max(0, offset + keys - padding.shape[-1])  # a missing tail is not valid
        padded = torch.nn.functional.pad(padding, (0, missing))[:, offset : offset + keys].bool()
        key_valid = None if bool(padded.all()) else padded
    window = kwargs.get("local_size")
    return Visibility(
        causal=True,
        window=None if window is None else int(window),
        query_offset=int(kwargs["q_offset"]),
        key_offset=offset,
        batch=int(kwargs["batch_size"]),
        queries=int(kwargs["q_length"]),
        keys=keys,
        key_valid=key_valid,
        made=mask,
    )


def additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where a key may be seen, finfo(dtype).min elsewhere, as transformers' eager_mask has it."""
    zero = torch.zeros((), dtype=dtype, device=allowed.device)
    return torch.where(allowed, zero, torch.finfo(dtype).min)


def effective(mask: torch.Tensor | None, queries: int, keys: int, causal: bool) -> torch.Tensor:
    """Bool [.., token, kv_token] that an attention function really applied.

    Without a mask, transformers' sdpa is causal from the upper left if there is more than one
    query, and sees everything otherwise.
    """
    if mask is None:
        square = torch.ones(queries, keys, dtype=torch.bool)
        return (square.tril() if causal and queries > 1 else square)[None, None]
    if mask.dtype == torch.bool:
        return mask
    return mask > torch.finfo(mask.dtype).min / 2


def says_the_same(visibility: Visibility, mask: torch.Tensor | None, causal: bool) -> bool:
    """Whether the numbers give exactly the mask that was applied."""
    allowed = visibility.allowed()
    if mask is None:
        real = effective(None, visibility.queries, visibility.keys, causal)
        return torch.equal(allowed.cpu().expand_as(real), real) if len(allowed) == 1 else False
    rebuilt = allowed if mask.dtype == torch.bool else additive(allowed, mask.dtype)
    if mask.shape[-2:] != rebuilt.shape[-2:]:
        return False
    both = broadcast_shape(mask, rebuilt)
    return both is not None and torch.equal(rebuilt.expand(both), mask.expand(both))


def largest_score(
    q: torch.Tensor,
    k: torch.Tensor,
    allowed: torch.Tensor,
    scale: float,
    softcap: float | None,
) -> float:
    """max |score| in float64, scaled, after softcap, over allowed entries that are numbers, as the
    oracle takes it; 0 if there is none.

    q [batch, head, token, head_dim], k [batch, kv_head, kv_token, head_dim].
    """
    scores = _scores(q.detach().double(), k.detach().double(), scale).abs()
    seen = scores[allowed.to(scores.device).expand_as(scores) & ~scores.isnan()]
    largest = torch.max(seen) if seen.numel() else torch.zeros((), dtype=torch.float64)
    return float(largest if softcap is None else torch.tanh(largest / softcap) * softcap)


def leaves_no_score(
    q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor, scale: float, softcap: float | None
) -> bool:
    """Whether some row is minus infinity once the additive mask is added, so that its softmax is
    NaN: a score of -16 and the lowest number of float16 overflow."""
    scores = _scores(q.detach(), k.detach(), scale)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    return bool((scores + mask).isneginf().all(-1).any())


def _scores(q: torch.Tensor, k: torch.Tensor, scale: float) -> torch.Tensor:
    """[batch, head, token, kv_token]"""
    batch, heads, tokens, width = q.shape
    groups = q.reshape(batch, k.shape[1], -1, tokens, width)
    return ((groups @ k.unsqueeze(2).mT) * scale).reshape(batch, heads, tokens, -1)
