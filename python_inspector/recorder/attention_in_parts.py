"""torch's attention as operations of their own, so that its backward is seen.

Scores and the softmax are float32, as fused kernels have them, and what multiplies the values is
rounded to storage.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily

_FUSED = functional.scaled_dot_product_attention
_MANY_HEADS = functional.multi_head_attention_forward


class _InParts(TorchFunctionMode):
    """Of this thread: others that run meanwhile get torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.attends = False
        """Whether the attention was called."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is _FUSED and not (kwargs.get("dropout_p") or (len(args) > 4 and args[4])):
            self.attends = True
            return _attention(*args, **kwargs)
        self.attends |= func is _MANY_HEADS
        return (_many_heads() if func is _MANY_HEADS else func)(*args, **kwargs)


@functools.cache
def _many_heads() -> Callable[..., Any]:
    """torch's own function, which calls the attention out of any mode's sight."""
    own = {
        "scaled_dot_product_attention": _attention,
        "has_torch_function": lambda relevant: False,
    }
    made = types.FunctionType(_MANY_HEADS.__code__, vars(functional) | own)
    made.__defaults__, made.__kwdefaults__ = _MANY_HEADS.__defaults__, _MANY_HEADS.__kwdefaults__
    return made


@contextmanager
def attention_in_parts() -> Iterator[_InParts]:
    """Code inside that calls torch's attention calls this one, by whatever name."""
    parts = _InParts()
    with ExitStack() as stack:
        if not torch._C._is_torch_function_enabled():  # as simulated kernels run: no other mode
            while torch._C._len_torch_function_stack():
                stack.enter_context(_pop_mode_temporarily())
            stack.enter_context(torch._C._EnableTorchFunction())
        stack.enter_context(parts)
        yield parts


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Rows of a bool mask without a key are zeros."""
    if enable_gqa and query.ndim > 2:
        key, value = (_each_head(t, query.shape[-3]) for t in (key, value))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query.float() @ key.float().mT * scale
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    if attn_mask is None:
        return scores.softmax(-1).to(value.dtype) @ value
    if attn_mask.dtype != torch.bool:
        return (scores + attn_mask).softmax(-1).to(value.dtype) @ value
    empty = ~attn_mask.any(-1, keepdim=True)
    weights = scores.masked_fill(~(attn_mask | empty), -math.inf).softmax(-1)
    return weights.masked_fill(empty, 0.0).to(value.dtype) @ value


def _each_head(t: torch.Tensor, heads: int) -> torch.Tensor:
    return t.repeat_interleave(heads // t.shape[-3], -3)
