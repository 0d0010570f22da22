"""Backward kernels of activations, rotations, convolutions, recurrences and routers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from backward_tables import Backward, Dice, Function, Sizes, Table, kernel
from torch.nn import functional

Tensor = torch.Tensor


def silu_glu(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate) * up


def gelu_glu(gate: Tensor, up: Tensor) -> Tensor:
    return functional.gelu(gate, approximate="tanh") * up


def _silu_backward(
    *, x_term: bool = True, of_up: bool = False, swapped: bool = False, ones: bool = False
) -> Backward:
    def backward(xs: Sequence[Tensor], g: Tensor) -> Sequence[Tensor]:
        gate, up = (t.float() for t in xs)
        g, s = torch.ones_like(gate) if ones else g.float(), (up if of_up else gate).sigmoid()
        slope = s * (1 + gate * (1 - s)) if x_term else s
        made = g * up * slope, g * gate * s
        return made[::-1] if swapped else made

    return backward


def _gelu_backward(*, exact: bool = False, slope: bool = True, swapped: bool = False) -> Backward:
    def backward(xs: Sequence[Tensor], g: Tensor) -> Sequence[Tensor]:
        wide = [t.float() for t in xs]
        with torch.enable_grad():
            gate = wide[0].detach().requires_grad_()
            y = functional.gelu(gate, approximate="none" if exact else "tanh")
            (d,) = torch.autograd.grad(y.sum(), gate)
        made = g.float() * wide[1] * (d if slope else 1.0), g.float() * y.detach()
        return made[::-1] if swapped else made

    return backward


def silu_glus(sizes: Sizes, dtype: torch.dtype) -> Table:
    dice, shape = Dice(sizes, dtype), (2, sizes.tokens, sizes.width)

    def of(**options: Any) -> Function:
        return kernel(silu_glu, _silu_backward(**options))

    return Table(
        silu_glu,
        (dice(*shape), dice(*shape)),
        {
            "closed form": of(),
            "eager": silu_glu,
            "float32 inside": lambda a, b: silu_glu(a.float(), b.float()).to(a.dtype),
        },
        {
            "slope without its x term": of(x_term=False),
            "gate and up exchanged": of(swapped=True),
            "sigmoid of up": of(of_up=True),
            "cotangent taken as 1": of(ones=True),
        },
    )


def gelu_glus(sizes: Sizes, dtype: torch.dtype) -> Table:
    dice, shape = Dice(sizes, dtype), (2, sizes.tokens, sizes.width)

    def of(**options: Any) -> Function:
        return kernel(gelu_glu, _gelu_backward(**options))

    return Table(
        gelu_glu,
        (dice(*shape, scale=2.0), dice(*shape)),
        {"closed form": of(), "eager": gelu_glu},
        {
            "slope of erf": of(exact=True),
            "no slope": of(slope=False),
            "gate and up exchanged": of(swapped=True),
        },
    )


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x.float(), -1).to(x.dtype)


def softmaxes(sizes: Sizes, dtype: torch.dtype) -> Table:
    def backward(*, row: bool = True, axis: int = -1) -> Backward:
        def of(xs: Sequence[Tensor], g: Tensor) -> Sequence[Tensor]:
            y = xs[0].float().softmax(-1)
            terms = y * g.float()
            return (terms - y * terms.sum(axis, keepdim=True) if row else terms,)

        return of

    def of(**options: Any) -> Function:
        return kernel(softmax, backward(**options))

    return Table(
        softmax,
        (Dice(sizes, dtype)(2, sizes.tokens, sizes.width, scale=2.0),),
        {"closed form": of(), "eager": softmax},
        {"without the sum of its row": of(row=False), "sum along the other axis": of(axis=-2)},
    )


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def rotaries(sizes: Sizes, dtype: torch.dtype) -> Table:
    dice, dim = Dice(sizes, dtype), sizes.head_dim
    angles = torch.arange(sizes.tokens)[:, None] * 10000.0 ** (-torch.arange(0, dim, 2) / dim)
    angles = torch.cat([angles, angles], -1)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def of(sign: float) -> Function:
        def backward(xs: Sequence[Tensor], g: Tensor) -> Sequence[Tensor]:
            _, cos, sin = (t.float() for t in xs)
            return (_rotated(g.float(), cos, sign * sin),)

        return kernel(_rotated, backward)

    return Table(
        _rotated,
        (dice(2, sizes.heads, sizes.tokens, dim), cos, sin),
        {"inverse": of(-1.0), "eager": _rotated},
        {"forward in backward": of(1.0), "no sine": of(0.0)},
    )


def dropped(x: Tensor, kept: Tensor) -> Tensor:
    return x * kept / 0.75


def dropouts(sizes: Sizes, dtype: torch.dtype) -> Table:
    dice, shape = Dice(sizes, dtype), (4, sizes.tokens, sizes.width)

    def of(scale: float = 0.75, shift: int = 0) -> Function:
        def backward(xs: Sequence[Tensor], g: Tensor) -> Sequence[Tensor]:
            return (g.float() * xs[1].roll(shift, -1) / scale,)

        return kernel(dropped, backward)

    return Table(
        dropped,
        (dice(*shape), (dice.ids(4, *shape) > 0)),
        {"closed form": of(), "eager": dropped},
        {"no scale": of(scale=1.0), "another mask": of(shift=1)},
    )


def causal_conv(x: Tensor, weight: Tensor) -> Tensor:
    """[batch, channel, token] by the taps of each channel."""
    taps = weight.shape[-1]
    return functional.conv1d(
        functional.pad(x, (taps - 1, 0)), weight[:, None], groups=weight.shape[0]
    )


def convolutions(sizes: Sizes, dtype: torch.dtype) -> Table:
    dice, taps = Dice(sizes, dtype), 4

    def of(*, flipped: bool = False, last: bool = True, dw_flipped: bool = False) -> Function:
        def backward(xs: Sequence[Tensor], g: Tensor) -> Sequence[Tensor]:
            x, weight = (t.float() for t in xs)
            g, n = g.float(), x.shape[-1]
            padded, ahead = functional.pad(x, (taps - 1, 0)), functional.pad(g, (0, taps - 1))
            order = weight if flipped else weight.flip(-1)
            dx = sum(order[:, i, None] * ahead[..., i : i + n] for i in range(taps))
            until = n if last else n - 1
            dw = [(g * padded[..., i : i + n])[..., :until].sum((0, 2)) for i in range(taps)]
            return dx, torch.stack(dw[::-1] if dw_flipped else dw, -1)

        return kernel(causal_conv, backward)

    return Table(
        causal_conv,
        (dice(4, 16, sizes.tokens), dice(16, taps)),
        {"shifts": of(), "eager": causal_conv},
        {
            "taps flipped": of(flipped=True),
            "taps of dw flipped": of(dw_flipped=True),
            "dw without the last token": of(last=False),
        },
    )


def decays(dt: Tensor, log: Tensor, x: Tensor) -> Tensor:
    """A state that decays by exp(-softplus(dt) exp(log)): [batch, token, channel]."""
    step = functional.softplus(dt.float())
    decay = torch.exp(-step * log.float().exp())
    state, out = torch.zeros_like(x[:, 0].float()), []
    for t in range(x.shape[1]):
        state = state * decay[:, t] + step[:, t] * x[:, t].float()
        out.append(state)
    return torch.stack(out, 1).to(x.dtype)


def scans(sizes: Sizes, dtype: torch.dtype) -> Table:
    dice, shape = Dice(sizes, dtype), (2, sizes.tokens, 16)

    def of(
        *, chunk: int = 1 << 20, softplus: bool = True, exponential: bool = True, late: int = 0
    ) -> Function:
        def backward(xs: Sequence[Tensor], g: Tensor) -> Sequence[Tensor]:
            dt, log, x = (t.float() for t in xs)
            step, rate = functional.softplus(dt), log.exp()
            decay, states = torch.exp(-step * rate), [torch.zeros_like(x[:, 0])]
            for t in range(x.shape[1]):
                states.append(states[-1] * decay[:, t] + step[:, t] * x[:, t])
            back = torch.zeros_like(x[:, 0])
            d_step, d_decay, d_x = (torch.zeros_like(x) for _ in range(3))
            for t in range(x.shape[1] - 1, -1, -1):
                if (t + 1) % chunk == 0:
                    back = torch.zeros_like(back)
                back = back + g[:, t].float()
                d_x[:, t], d_step[:, t] = back * step[:, t], back * x[:, t]
                d_decay[:, t] = back * states[t]
                back = back * decay[:, max(0, t - late)]
            d_log = (d_decay * decay * -step).sum((0, 1)) * (rate if exponential else 1.0)
            d_dt = (d_step - d_decay * decay * rate) * (dt.sigmoid() if softplus else 1.0)
            return d_dt, d_log, d_x

        return kernel(decays, backward)

    return Table(
        decays,
        (dice(*shape), dice(16, scale=0.5, shift=-1.0), dice(*shape)),
        {"backwards": of(), "eager": decays},
        {
            "state's gradient ends at a chunk": of(chunk=8),
            "decay of the token before": of(late=1),
            "softplus' slope is missing": of(softplus=False),
            "exp(A_log)'s slope is missing": of(exponential=False),
        },
    )


def routed(x: Tensor, router: Tensor, experts: Tensor) -> Tensor:
    """Each token through all experts, weighed by the softmax of its router."""
    weights = (x.float() @ router.float().T).softmax(-1).to(x.dtype)
    each = torch.einsum("th,eoh->teo", x, experts)
    return (weights[..., None] * each).sum(1)


def routers(sizes: Sizes, dtype: torch.dtype) -> Table:
    dice, width = Dice(sizes, dtype), sizes.width

    def of(*, constant: bool = False, row: bool = True, weighed: bool = True) -> Function:
        def backward(xs: Sequence[Tensor], g: Tensor) -> Sequence[Tensor]:
            x, router, experts = (t.float() for t in xs)
            g, weights = g.float(), (x @ router.T).softmax(-1)
            each = torch.einsum("th,eoh->teo", x, experts)
            d_each = (weights if weighed else 1 + 0 * weights)[..., None] * g[:, None]
            d_weights = (g[:, None] * each).sum(-1)
            inner = (weights * d_weights).sum(-1, keepdim=True) if row else 0.0
            d_scores = weights * (d_weights - inner) * (not constant)
            d_x = d_scores @ router + torch.einsum("teo,eoh->th", d_each, experts)
            return d_x, d_scores.T @ x, torch.einsum("teo,th->eoh", d_each, x)

        return kernel(routed, backward)

    return Table(
        routed,
        (
            dice(2 * sizes.tokens, width), dice(4, width, scale=0.2), dice(4, 32, width, scale=0.2)
        ),
        {"closed form": of(), "eager": routed},
        {
            "router weights are constants": of(constant=True),
            "no sum of a row": of(row=False),
            "experts are not weighed": of(weighed=False),
        },
    )  # fmt: skip
