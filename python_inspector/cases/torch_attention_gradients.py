"""The backward ops of attention and of the Mamba2 scan, in rows as torch_ops.py has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from .torch_call import Op

Tensor = torch.Tensor


def _allowed(
    queries: int, keys: int, causal: bool, window: int | None, query_offset: int, key_offset: int
) -> Tensor:
    behind = (query_offset + torch.arange(queries))[:, None] - (key_offset + torch.arange(keys))
    allowed = behind >= 0 if causal else torch.ones_like(behind, dtype=torch.bool)
    return allowed if window is None else allowed & (behind < window)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None, allowed: Tensor
) -> tuple[Tensor, Tensor]:
    """And log sum exp of the scores."""
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * scale
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    scores = scores.masked_fill(~allowed, float("-inf"))
    sums = scores.logsumexp(-1)
    if softcap is not None:
        v = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
        return (scores - sums[..., None]).exp() @ v, sums
    with sdpa_kernel(SDPBackend.MATH):
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=allowed, scale=scale, enable_gqa=True
        )
    return out, sums


def _sdpa_backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    *,
    scale: float,
    softcap: float | None,
    fully_masked: str,
    **mask: Any,
) -> dict[str, Tensor]:
    """By torch.autograd in float32. The op's delta is that of `out` as it is given: by what it
    differs from the result's, log sum exp has a gradient, too."""
    with torch.enable_grad():
        wide = [it.detach().float().requires_grad_() for it in (q, k, v)]
        allowed = _allowed(q.shape[2], k.shape[2], **mask).to(q.device)
        result, sums = _attention(wide[0], wide[1], wide[2], scale, softcap, allowed)
        given = d_out.float().transpose(1, 2)
        behind = (given * (out.float().transpose(1, 2) - result.detach())).sum(-1)
        found = torch.autograd.grad((result, sums), wide, (given, -behind))
    return {f"d_{name}": it.to(q.dtype) for name, it in zip("qkv", found, strict=True)}


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Its gradient passes as it is."""
    return x + (x.to(dtype).float() - x).detach()


def _scan(operands: Mapping[str, Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """One token after the other; the states' dtype is float32."""
    x, dt, b, c, a_log, d, dt_bias, state = operands.values()
    steps = _rounded(functional.softplus(_rounded(dt + dt_bias, dtype)), dtype)
    decays = (-steps * a_log.exp()).exp()
    b, c = (it.repeat_interleave(x.shape[2] // it.shape[2], 2) for it in (b, c))
    rows = []
    for t in range(x.shape[1]):
        entering = (steps[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
        state = state * decays[:, t, :, None, None] + entering
        rows.append((state * c[:, t, :, None]).sum(-1) + d[:, None] * x[:, t])
    return torch.stack(rows, 1), state


def _ssd_scan_backward(
    d_y: Tensor,
    d_state_after: Tensor,
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    a_log: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    *,
    chunk_size: int,
) -> dict[str, Tensor]:
    """By torch.autograd in float32, whatever the chunk."""
    operands = {"x": x, "dt": dt, "b": b, "c": c, "a_log": a_log, "d": d, "dt_bias": dt_bias,
                "state": state}  # fmt: skip
    with torch.enable_grad():
        wide = {name: it.detach().float().requires_grad_() for name, it in operands.items()}
        found = torch.autograd.grad(_scan(wide, x.dtype), list(wide.values()), (d_y, d_state_after))
    return {
        f"d_{name}": grad.to(it.dtype)
        for (name, it), grad in zip(operands.items(), found, strict=True)
    }


def _masked(**more: Any) -> Mapping[str, Any]:
    return {"scale": 0.3125, "softcap": None, "causal": False, "window": None, "query_offset": 0,
            "key_offset": 0, "fully_masked": "uniform"} | more  # fmt: skip


ATTENTION_BACKWARD: dict[str, Op] = {
    "sdpa_backward": Op(
        lambda d_out, q, k, v, out, **params: _sdpa_backward(d_out, q, k, v, out, **params),
        (
            ((2, 9, 4, 8), (2, 4, 9, 16), (2, 2, 33, 16), (2, 2, 33, 8), (2, 9, 4, 8)),
            ((1, 70, 3, 20), (1, 3, 70, 20), (1, 1, 94, 20), (1, 1, 94, 20), (1, 70, 3, 20)),
        ),
        (
            _masked(),
            _masked(causal=True, query_offset=24),
            _masked(causal=True, window=9, query_offset=17, softcap=1.5),
            _masked(softcap=2.5),
        ),
        dict.fromkeys(("d_out", "q", "k", "v", "out"), "small"),
        sums_products=True,
    ),
    "ssd_scan_backward": Op(
        lambda d_y, d_state_after, x, dt, b, c, a_log, d, dt_bias, state, **params: (
            _ssd_scan_backward(d_y, d_state_after, x, dt, b, c, a_log, d, dt_bias, state, **params)
        ),
        tuple(
            (
                *((n, t, h, p), (n, h, p, k), (n, t, h, p), (n, t, h), (n, t, g, k), (n, t, g, k)),
                *((h,), (h,), (h,), (n, h, p, k)),
            )
            for n, t, h, p, g, k in ((2, 5, 4, 6, 2, 9), (1, 66, 2, 4, 1, 7))
        ),
        ({"chunk_size": 64},),
        dict.fromkeys(("x", "dt", "b", "c", "a_log", "d", "dt_bias"), "small")
        | dict.fromkeys(("d_y", "d_state_after", "state"), "wide"),
        sums_products=True,
    ),
}
