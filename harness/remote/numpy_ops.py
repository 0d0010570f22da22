"""Ops in NumPy, for the device "python:numpy": as harness/remote/serve.py has functions.

Shapes, roundings and sources are those of kernels/ops/ops.h; sums are float64, values of 16 bits
float32. What is one formula (add, exp, where, ...) is computed from its text.
"""

import math

import numpy as np

formulas = True
contracts = {"gated_activation": {"fused": True}, "sdpa": {"fused": True}}

_ERF = np.frompyfunc(math.erf, 1, 1)
_UNIFORM, _ZERO = 0, 1


def _wide(x):
    return None if x is None else x.astype(np.float64)


def _function(x, number):
    if number == 0:
        return x / (1 + np.exp(-x))
    if number == 1:
        return x / 2 * (1 + _ERF(x / math.sqrt(2)).astype(np.float64))
    if number == 2:
        return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return np.tanh(x)


def embedding(ids, weight, p):
    if ids.size and (ids.min() < 0 or ids.max() >= len(weight)):
        raise IndexError(f"an id is {ids.min()} or {ids.max()}, expected 0 to {len(weight) - 1}")
    return weight[ids] * (np.float32(p.scale) if p.scale != 1 else 1)


def rms_norm(x, weight, p):
    x, weight = _wide(x), _wide(weight)
    n = x / np.sqrt((x * x).mean(-1, keepdims=True) + p.eps)
    return (p.weight_offset + weight) * (_wide(p.rounded(n)) if p.weight_after_rounding else n)


def layer_norm(x, weight, p, bias=None):
    x = _wide(x)
    d = x - x.mean(-1, keepdims=True)
    y = d / np.sqrt((d * d).mean(-1, keepdims=True) + p.eps) * _wide(weight)
    return y if bias is None else y + _wide(bias)


def linear(x, weight, p, bias=None):
    y = _wide(x) @ _wide(weight).T
    return y if bias is None else y + _wide(bias)


def activation(x, p):
    return _function(_wide(x), p.activation)


def gated_activation(gate, up, p):
    return _function(_wide(gate), p.activation) * _wide(up)


def scale(x, p):
    return _wide(x) / p.scale if p.divide else _wide(x) * p.scale


def softmax(x, p):
    x = _wide(x)
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def matmul(a, b, p):
    b = _wide(b)
    if b.ndim > 2 and b.shape[-3] != a.shape[-3]:  # heads of a that share one of b
        b = np.repeat(b, a.shape[-3] // b.shape[-3], -3)
    return _wide(a) @ (np.swapaxes(b, -1, -2) if p.transpose_b else b)


def masked_add(x, mask, p):
    return _wide(x) + _wide(mask)


def repeat_heads(x, p):
    heads = p.outputs["out"]["shape"][1]
    return np.repeat(x, heads // x.shape[1], 1)


def rotary_table(positions, inv_freq, p):
    angles = positions[..., None].astype(np.float32) * inv_freq.astype(np.float32)
    shape = p.outputs["cos"]["shape"]
    angles = _wide(np.concatenate([angles, angles], -1) if shape[-1] > angles.shape[-1] else angles)
    factor = p.attention_scaling
    return (np.cos(angles) * factor).reshape(shape), (np.sin(angles) * factor).reshape(shape)


def rotary(x, cos, sin, p):
    width = cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    cos, sin = (t[:, None] if t.ndim == x.ndim - 1 else t for t in (cos, sin))
    if p.interleaved:
        swapped = np.stack([-turned[..., 1::2], turned[..., ::2]], -1).reshape(turned.shape)
        cos, sin = (np.repeat(t[..., : width // 2], 2, -1) for t in (cos, sin))
    else:
        half = width // 2
        swapped = np.concatenate([-turned[..., half:], turned[..., :half]], -1)
    first, second = p.rounded(_wide(turned) * cos), p.rounded(_wide(swapped) * sin)
    return np.concatenate([first + second, rest], -1)


def causal_mask(p, key_valid=None, explicit_mask=None):
    batch, heads, queries, keys = p.outputs["out"]["shape"]
    allowed = _allowed(p, queries, keys, key_valid)
    if explicit_mask is not None and explicit_mask.dtype == bool:
        allowed, explicit_mask = allowed & explicit_mask, None
    if p.outputs["out"]["dtype"] == "BOOL":
        return np.broadcast_to(allowed, (batch, heads, queries, keys))
    lowest = -np.inf if p.fully_masked == _ZERO else p.lowest
    mask = np.where(allowed, 0 if explicit_mask is None else _wide(explicit_mask), lowest)
    return np.broadcast_to(mask, (batch, heads, queries, keys))


def _allowed(p, queries, keys, key_valid):
    i = np.arange(queries)[:, None] + int(p.query_offset)
    j = np.arange(keys)[None] + int(p.key_offset)
    allowed = np.ones((1, 1, queries, keys), bool)
    if p.causal:
        allowed = allowed & (j <= i)
    if p.window:
        allowed = allowed & (j > i - int(p.window))
    return allowed if key_valid is None else allowed & key_valid[:, None, None, :]


def mask_fill(x, mask, p):
    return np.where(mask, p.scale, _wide(x))


def position_ids(p, valid=None):
    batch, tokens = p.outputs["out"]["shape"]
    if valid is None:
        return np.broadcast_to(np.arange(tokens) + int(p.offset), (batch, tokens))
    return np.where(valid, np.cumsum(valid, 1) - 1 + int(p.offset), 0)


def causal_conv1d(x, weight, p, bias=None, state_before=None):
    taps = weight.shape[-1]
    before = np.zeros((x.shape[0], x.shape[2], taps)) if state_before is None else state_before
    past = np.concatenate([_wide(before).swapaxes(1, 2), _wide(x)], 1)
    total = np.zeros(x.shape) if bias is None else np.broadcast_to(_wide(bias), x.shape)
    for k in range(taps):
        begin = k + 1
        total = total + _wide(weight)[:, 0, k] * past[:, begin : begin + x.shape[1]]
    out = _wide(p.rounded(total))
    return _wanted(
        p,
        out=_function(out, p.activation) if p.has_activation else out,
        state_after=past[:, -taps:].swapaxes(1, 2),
    )


def ssd_scan(x, dt, b, c, a_log, d, dt_bias, p, state=None):
    def inside(t):
        return _wide(p.rounded(t)) if p.step else t

    x, dt, b, c = (_wide(t) for t in (x, dt, b, c))
    batch, tokens, heads, width = x.shape
    b, c = (np.repeat(t, heads // t.shape[2], 2) for t in (b, c))
    v = _wide(p.rounded(dt + _wide(dt_bias)))
    dt = _wide(p.rounded(np.where(v > 20, v, np.log1p(np.exp(np.minimum(v, 20))))))
    if not p.step:
        low, high = (float(p.rounded(np.float64(t))) for t in (p.dt_min, p.dt_max))
        dt = np.clip(dt, low, high)
    s = np.zeros((batch, heads, width, b.shape[-1])) if state is None else _wide(state)
    y = np.zeros(x.shape)
    for t in range(tokens):
        decay = np.exp(dt[:, t] * -np.exp(_wide(a_log)))[..., None, None]
        step = inside(dt[:, t, :, None] * b[:, t])[:, :, None] * x[:, t, :, :, None]
        s = s * decay + inside(step)
        read = inside((inside(s) * c[:, t, :, None]).sum(-1))
        y[:, t] = read + inside(x[:, t] * _wide(d)[:, None])
    return _wanted(p, y=y, state_after=s)


def _wanted(p, **results):
    """Those that are asked for, in the table's order."""
    return tuple(result for name, result in results.items() if name in p.outputs)


def copy(x, p):
    return x


def cast(x, p):
    return x


def mask_rows(x, valid, p):
    return np.where(valid[..., None], x, 0)


def transpose(x, p):
    return np.swapaxes(x, -1, -2)


def cumsum(x, p):
    x = x if x.dtype.kind == "f" else x.astype(np.int64)
    return np.cumsum(_wide(x) if x.dtype.kind == "f" else x, axis=int(p.axis))


def gated_rms_norm(x, gate, weight, p):
    x, gate = _wide(x), _wide(gate)
    h = x * (gate / (1 + np.exp(-gate)))
    groups = h.reshape(*h.shape[:-1], -1, int(p.group_size))
    n = groups / np.sqrt((groups * groups).mean(-1, keepdims=True) + p.eps)
    return _wide(weight) * _wide(p.rounded(n.reshape(h.shape)))


def _reduced(x, p, function):
    axes = tuple(i for i in range(x.ndim) if int(p.axes) >> i & 1)
    x = _wide(x) if x.dtype.kind == "f" else x.astype(np.int64)
    return np.asarray(function(x, axes)).reshape(p.outputs["out"]["shape"])


def sum(x, p):
    return _reduced(x, p, lambda x, axes: x.sum(axes))


def mean(x, p):
    return _reduced(x, p, lambda x, axes: x.mean(axes))


def prod(x, p):
    return _reduced(x, p, lambda x, axes: x.prod(axes))


def min(x, p):
    return _reduced(x, p, lambda x, axes: x.min(axes))


def max(x, p):
    return _reduced(x, p, lambda x, axes: x.max(axes))


def any(x, p):
    return _reduced(x, p, lambda x, axes: (x != 0).any(axes))


def all(x, p):
    return _reduced(x, p, lambda x, axes: (x != 0).all(axes))


def norm(x, p):
    return _reduced(x, p, lambda x, axes: np.sqrt((x * x).sum(axes)))


def log_sum_exp(x, p):
    def of(x, axes):
        largest = x.max(axes, keepdims=True, initial=-np.inf)
        largest = np.where(np.isfinite(largest), largest, 0)
        return np.log(np.exp(x - largest).sum(axes, keepdims=True)) + largest

    return _reduced(x, p, of)


def permute(x, p):
    return x.transpose([int(axis) for axis in np.atleast_1d(p.per_axis)[: x.ndim]])


def flip(x, p):
    return np.flip(x, tuple(i for i in range(x.ndim) if int(p.axes) >> i & 1))


def concat(a, b, p):
    return np.concatenate([a, b], int(p.axis))


def index_select(x, ids, p):
    return np.take(x, ids.astype(np.int64), int(p.axis))


def gather(x, ids, p):
    return np.take_along_axis(x, ids.astype(np.int64), int(p.axis))


def fill(p):
    return np.full(p.outputs["out"]["shape"], p.scale)


def sdpa(q, k, v, p, key_valid=None, explicit_mask=None):
    q, k, v = _wide(q), _wide(k), _wide(v)
    heads, queries, keys = q.shape[1], q.shape[2], k.shape[2]
    k, v = (np.repeat(t, heads // t.shape[1], 1) for t in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * p.scale
    if p.cap:
        scores = np.tanh(scores / p.cap) * p.cap
    allowed = _allowed(p, queries, keys, key_valid)
    if explicit_mask is not None and explicit_mask.dtype == bool:
        allowed = allowed & explicit_mask
    elif explicit_mask is not None:
        scores = scores + _wide(explicit_mask)
    none = ~allowed.any(-1, keepdims=True)
    if none.any():
        if p.fully_masked == _ZERO:
            return np.swapaxes(np.where(none, 0, _attended(scores, allowed | none, v)), 1, 2)
        allowed = allowed | none
        scores = np.where(none, 0, scores)
    return np.swapaxes(_attended(scores, allowed, v), 1, 2)


def _attended(scores, allowed, v):
    scores = np.where(allowed, scores, -np.inf)
    largest = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    return e / e.sum(-1, keepdims=True) @ v
