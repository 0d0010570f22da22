"""Functions that give codes of 8 bits and a scale: what is near a tie may be either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from plumbline import WrongError, check

from python_inspector.trace.simulation import Normals, Simulation

Scaled = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
MOST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


def quantiser(
    codes: torch.dtype,
    scaled: Scaled = torch.div,
    rounded: Callable[[torch.Tensor], torch.Tensor] = torch.round,
    scale: Callable[[torch.Tensor, float], torch.Tensor] = torch.div,
) -> Any:
    def kernel(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        s = scale(x.float().abs().amax(-1, keepdim=True), MOST[codes])
        v = scaled(x.float(), s)
        if codes == torch.int8:
            v = rounded(v).clamp(-128, 127)
        return v.to(codes), s

    return kernel


def by_reciprocal(x: Any, s: Any) -> Any:
    return x * (1 / s)


def narrow(x: Any, s: Any) -> Any:
    return (x / s).to(torch.bfloat16).float()


def normal(dtype: torch.dtype, seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("seed", [3, 11])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("codes", MOST, ids=str)
def test_right_ones_pass(codes: torch.dtype, dtype: torch.dtype, seed: int) -> None:
    inputs = (normal(dtype, seed, 192, 257),)
    for kernel in (
        quantiser(codes),
        quantiser(codes, by_reciprocal),
        quantiser(codes, scale=lambda most, of: most * (1 / of)),
        quantiser(codes, by_reciprocal, scale=lambda most, of: 1 / (of / most)),
    ):
        assert check(kernel, quantiser(codes), inputs, explain=False).passed


def test_of_many_values_some_are_near_ties_that_no_simulated_kernel_decides_otherwise() -> None:
    codes = torch.float8_e4m3fn
    kernel = quantiser(codes, by_reciprocal, scale=lambda most, of: most * (1 / of))
    inputs = (normal(torch.bfloat16, 0, 1024, 2048),)
    assert check(kernel, quantiser(codes), inputs, explain=False).passed


WRONG = {
    "truncated": quantiser(torch.int8, rounded=torch.trunc),
    "divided in 16 bits": quantiser(torch.int8, narrow),
    "codes of 8 bits, divided in 16": quantiser(torch.float8_e4m3fn, narrow),
    "the scale of the next row": quantiser(torch.int8, lambda x, s: x / s.roll(1, 0)),
    "127.5": quantiser(torch.int8, scale=lambda most, of: most / 127.5),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_ones_fail(name: str) -> None:
    codes = torch.float8_e4m3fn if "codes of" in name else torch.int8
    with pytest.raises(WrongError):
        check(WRONG[name], quantiser(codes), (normal(torch.bfloat16, 5, 192, 257),), explain=False)


def half_up(v: torch.Tensor) -> torch.Tensor:
    return (v + 0.5).floor()


def test_a_tie_is_one_where_the_scale_is_a_power_of_two() -> None:
    """There is no other way to divide by it."""

    def by(scaled: Scaled, rounded: Any = torch.round) -> Any:
        return lambda x, s: rounded(scaled(x, s)).clamp(-128, 127).to(torch.int8)

    x = torch.randint(-254, 255, (16, 64), generator=torch.Generator().manual_seed(2)) / 2
    for scale, decided in ((4.0, True), (3.0, False)):
        inputs, like = (x * scale, torch.full((16, 1), scale)), by(torch.div)
        assert check(by(by_reciprocal), like, inputs).passed
        if decided:
            with pytest.raises(WrongError, match="elements differ from the expected result"):
                check(by(torch.div, half_up), like, inputs)
        else:
            assert check(by(torch.div, half_up), like, inputs).passed


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_operands_of_8_bits(dtype: torch.dtype) -> None:
    """Among them what the results do not depend on is sought by other values."""

    def linear(x: Any, weight: Any, scale: Any) -> Any:
        return torch.nn.functional.linear(x, weight.to(x.dtype)) * scale

    def kernel(x: Any, weight: Any, scale: Any) -> Any:
        return (x.float() @ weight.float().mT * scale).to(x.dtype)

    weight = normal(torch.float32, 4, 48, 64).to(dtype)
    inputs = (normal(torch.float32, 3, 16, 64), weight, torch.tensor(0.02))
    assert check(kernel, linear, inputs).passed
    unused = check(lambda x, _: x * 2, lambda x, _: x + x, (inputs[0], weight))
    assert any("the values of" in words for words in unused.blind_to)


def fp4(x: torch.Tensor, bend: float = 0.25) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of e2m1 by their borders, 16 of one scale of e4m3."""
    groups = x.float().view(len(x), -1, 16)
    scale = (groups.abs().amax(-1, keepdim=True) / 6).to(torch.float8_e4m3fn)
    v = groups / scale.float()
    borders = torch.tensor([bend, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], device=x.device)
    codes = torch.bucketize(v.abs(), borders)
    codes = (codes + 8 * (v < 0)).to(torch.uint8).view(x.shape)
    return codes[:, ::2] | (codes[:, 1::2] << 4), scale[..., 0]


@pytest.mark.parametrize("seed", range(4))
def test_borders_that_all_values_are_compared_with(seed: int) -> None:
    """A scale near a tie opens the codes of its own group alone."""
    inputs = (normal(torch.bfloat16, seed, 9, 64),)
    assert check(fp4, fp4, inputs, explain=False).passed
    with pytest.raises(WrongError):
        check(lambda x: fp4(x, 0.3), fp4, inputs, explain=False)


FP8 = torch.float8_e4m3fn


def paged(q: Any, codes: Any, scales: Any, table: Any) -> Any:
    keys = (codes[table].float() * scales[table]).reshape(-1, 16)
    return torch.softmax(q @ keys.mT, -1) @ keys


def of_experts(x: Any, codes: Any, scales: Any, table: Any) -> Any:
    weights = codes.index_select(0, table).transpose(1, 2).contiguous().float()
    return torch.cat([x, x[:, :8]], 1)[:, :16] @ (weights * scales[table].mT)


@pytest.mark.parametrize("like", [paged, of_experts])
def test_codes_that_are_moved(like: Any) -> None:
    codes = (normal(torch.float32, 2, 6, 8, 16) * 30).to(FP8)
    scales = normal(torch.float32, 3, 6, 8, 1).abs() * 0.02
    inputs = normal(torch.float32, 4, 5, 16), codes, scales, torch.tensor([4, 1, 2])
    assert check(like, like, inputs, explain=False).passed
    for wrong in (
        lambda q, codes, scales, table: like(q, codes, scales, table.roll(1)),
        lambda q, codes, scales, table: like(q, codes, scales.roll(1, 0), table),
    ):
        if like is paged and wrong(*inputs).allclose(like(*inputs), atol=1e-5):
            continue  # attention asks not which page comes first
        with pytest.raises(WrongError):
            check(wrong, like, inputs, explain=False)


@pytest.mark.parametrize("codes", [*MOST, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize(
    "moved",
    [
        lambda cache, y: cache.index_put_((torch.tensor([1, 3]),), y[:2]),
        lambda cache, y: cache.copy_(y),
        lambda cache, y: torch.where(y.float() > 1, y, cache),
        lambda cache, y: torch.stack([cache, y]).flip(0),
        pytest.param(lambda cache, y: y.roll(1, 1), marks=pytest.mark.host),  # none of CUDA's
        lambda cache, y: torch.nn.functional.pad(y, (0, 1)),
        lambda cache, y: torch.zeros_like(y.float(), dtype=y.dtype).copy_(y),
        lambda cache, y: y.repeat_interleave(2, 0).mT.contiguous(),
    ],
)
def test_codes_that_were_chosen_are_moved(moved: Any, codes: torch.dtype) -> None:
    inputs = normal(torch.float32, 2, 5, 8) * 9, (normal(torch.float32, 3, 5, 8) * 9).to(codes)

    def like(x: Any, cache: Any) -> Any:
        return moved(cache, x.to(codes)).float()

    assert check(like, like, inputs, explain=False).passed
    with pytest.raises(WrongError):
        check(lambda x, cache: like(x.roll(1, 0), cache), like, inputs, explain=False)


@pytest.mark.parametrize("codes", MOST, ids=str)
def test_a_copy_that_casts(codes: torch.dtype) -> None:
    inputs = torch.zeros(2, 4, 8, dtype=codes), normal(torch.float32, 2, 2, 8) * 9, torch.tensor(2)

    def append(cache: Any, x: Any, at: Any, by: float = 2.0) -> None:
        cache[:, at] = x / by

    assert check(append, append, inputs, explain=False).passed
    with pytest.raises(WrongError):
        check(lambda *it: append(*it, by=2.3), append, inputs, explain=False)
    with pytest.raises(WrongError):
        check(lambda c, x, at: append(c, x, at - 1), append, inputs, explain=False)


def as_bytes(kernel: Any) -> Any:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        codes, s = kernel(x)
        return codes.view(torch.uint8), s

    return run


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_codes_that_are_given_back_as_bytes(dtype: torch.dtype) -> None:
    inputs, like = (normal(dtype, 5, 192, 257),), as_bytes(quantiser(FP8))
    for right in (quantiser(FP8), quantiser(FP8, by_reciprocal)):
        assert check(as_bytes(right), like, inputs, explain=False).passed
    for wrong in (WRONG["codes of 8 bits, divided in 16"], quantiser(FP8, narrow)):
        with pytest.raises(WrongError):
            check(as_bytes(wrong), like, inputs, explain=False)
    with pytest.raises(WrongError):
        check(lambda x: (like(x)[0] + 1, like(x)[1]), like, inputs, explain=False)


@pytest.mark.parametrize("codes", MOST, ids=str)
@pytest.mark.parametrize("moved", [lambda c, y: c.copy_(y), lambda c, y: torch.cat([c, y]).mT])
def test_codes_near_a_tie_stay_open_where_they_are_moved(moved: Any, codes: torch.dtype) -> None:
    inputs = torch.zeros(512, 1024, dtype=codes), normal(torch.bfloat16, 0, 512, 1024)

    def moving(kernel: Any) -> Any:
        return lambda cache, x: moved(cache, kernel(x)[0])

    right = quantiser(codes, by_reciprocal, scale=lambda most, of: most * (1 / of))
    like = moving(quantiser(codes))
    assert check(moving(right), like, inputs, explain=False).passed
    with pytest.raises(WrongError):
        check(moving(quantiser(codes, narrow)), like, inputs, explain=False)


@pytest.mark.parametrize("codes", [*MOST, torch.float8_e5m2], ids=str)
def test_codes_that_are_cast_stay_what_they_are_at_any_scale(codes: torch.dtype) -> None:
    values = torch.tensor([-96.0, 3.0, 5.0]).to(codes)
    simulation = Simulation(2, Normals("codes"), scale=0.25)
    kept = simulation.kept_wide(values, torch.bfloat16, stacked=False)
    assert torch.equal(kept, values.float().expand(3, 3))


GRID = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
BORDERS = (GRID[1:] + GRID[:-1]) / 2
Exponents = Callable[[torch.Tensor], torch.Tensor]


def by_log(most: torch.Tensor) -> torch.Tensor:
    return torch.floor(torch.log2(most)) - 2


def by_frexp(most: torch.Tensor) -> torch.Tensor:
    return torch.frexp(most).exponent - 3.0


def mxfp4(x: torch.Tensor, ties: str = "even", exponents: Exponents = by_log) -> Any:
    """Codes of 32 neighbours under a power of two, and its exponent."""
    groups = x.float().view(len(x), -1, 32)
    exponent = exponents(groups.abs().amax(-1, keepdim=True))
    v = groups / torch.exp2(exponent)
    borders = BORDERS.to(v.device)
    codes = torch.bucketize(v.abs(), borders, right=ties == "up")
    if ties == "even":
        codes += (v.abs()[..., None] == borders).any(-1) & (codes % 2 == 1)
    codes = (codes + 8 * (v < 0)).to(torch.uint8)
    return codes.view(x.shape), (exponent + 127).to(torch.uint8)[..., 0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_ties_under_a_power_of_two_are_decided(dtype: torch.dtype, seed: int) -> None:
    x = normal(torch.float32, seed, 33, 64)
    x[:, 3] *= 40
    inputs = ((x * 4).round().div(4).to(dtype),)
    assert check(lambda x: mxfp4(x, exponents=by_frexp), mxfp4, inputs, explain=False).passed
    for ties in ("down", "up"):
        with pytest.raises(WrongError):
            check(lambda x, ties=ties: mxfp4(x, ties), mxfp4, inputs, explain=False)
