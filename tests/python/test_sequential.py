"""Kernels that add one float32 term after the other are right, also where their errors add up."""

from collections.abc import Callable

import numpy
import pytest
import torch
from test_planted_bugs import again_of, outputs, randn

from python_inspector import check
from python_inspector.api.verdict import WrongError
from python_inspector.trace import sequential
from python_inspector.trace.replay import aside
from python_inspector.trace.rounded import rounded_run
from python_inspector.trace.simulation import Normals, Simulation
from python_inspector.trace.spread import simulate

torch.set_num_threads(1)
N = 1024

EQUAL = (0.5 + 0.5 * torch.rand(24, 1, generator=torch.Generator().manual_seed(3))).repeat(1, N)
SPARSE = torch.where(randn(24, N) > 1.3, randn(24, N, seed=1), 0.0)
TWO = torch.where(SPARSE == 0, 0.3, 2.1) * EQUAL


def summed(terms: torch.Tensor) -> torch.Tensor:
    """Along the last axis, one after the other."""
    total = numpy.add.accumulate(terms.contiguous().cpu().numpy(), axis=-1)[..., -1]
    return torch.from_numpy(total.copy()).to(terms.device)


def softmax(x: torch.Tensor) -> torch.Tensor:
    weights = (x - x.amax(-1, keepdim=True)).exp()
    return weights / summed(weights)[..., None]


def variance(x: torch.Tensor) -> torch.Tensor:
    return summed((x - x.mean(-1, keepdim=True)).square()) / x.shape[-1]


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    mean = (summed(x) / x.shape[-1])[..., None]
    squares = (x - mean).square()
    return (x - mean) * torch.rsqrt(summed(squares) / x.shape[-1] + 1e-5)[..., None]


def normalised(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def rms(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


LOOPS: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor], torch.Tensor]] = {
    "sum": (summed, lambda x: x.sum(-1), EQUAL),
    "sum over the first axis": (lambda x: summed(x.T), lambda x: x.sum(0), EQUAL.T.contiguous()),
    "sum of all": (lambda x: summed(x.flatten())[None], lambda x: x.sum()[None], EQUAL),
    "mean": (lambda x: summed(x) / N, lambda x: x.mean(-1), EQUAL),
    "softmax": (softmax, lambda x: x.softmax(-1), SPARSE),
    "softmax of columns": (lambda x: softmax(x.T).T, lambda x: x.softmax(0), SPARSE.T.contiguous()),
    "log_softmax": (lambda x: softmax(x).log(), lambda x: x.log_softmax(-1), SPARSE),
    "variance": (variance, lambda x: x.var(-1, correction=0), TWO),
    "deviation": (lambda x: variance(x).sqrt(), lambda x: x.std(-1, correction=0), TWO),
    "norm": (lambda x: summed(x * x).sqrt(), lambda x: torch.linalg.vector_norm(x, dim=-1), EQUAL),
    "layer norm": (layer_norm, normalised, TWO),
    "RMS norm": (
        lambda x: x * torch.rsqrt(summed(x * x)[..., None] / N + 1e-6), rms, TWO
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_loops_over_a_row_of_like_terms_are_right(name: str) -> None:
    loop, like, x = LOOPS[name]
    check(loop, like=like, inputs=x)


def without_the_last(like: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda x: like(torch.cat([x[..., :-1], x[..., -1:] * 0], -1))


@pytest.mark.parametrize("name", ["sum", "mean", "variance", "norm"])
def test_a_term_of_a_thousand_is_missed(name: str) -> None:
    _, like, x = LOOPS[name]
    with pytest.raises(WrongError):
        check(without_the_last(like), like=like, inputs=x)


@pytest.mark.parametrize("n", [70, 1024, 5000])
@pytest.mark.parametrize("kind", ["equal", "sparse", "uniform", "either sign"])
def test_what_is_lost_is_what_a_loop_loses(n: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(n)
    x = torch.rand(200, n, generator=generator)
    if kind == "equal":
        x = x[:, :1].repeat(1, n)
    elif kind == "sparse":
        x = torch.where(x < 0.1, x, x[:, :1])
    elif kind == "either sign":
        x = x - 0.5
    off = summed(x).double() - x.double().sum(-1)
    lost = sequential.lost(x)
    size = x.double().abs().sum(-1)
    assert float((lost / size).square().mean().sqrt()) == pytest.approx(
        float((off / size).square().mean().sqrt()), rel=0.2
    )
    if n > 70 and kind != "either sign":
        assert float(torch.corrcoef(torch.stack([lost, off]))[0, 1]) > 0.97


def test_more_terms_are_added_in_parts() -> None:
    n = 3 * sequential.LONGEST - 5
    x = torch.full((2, n), 0.7)
    parts = torch.nn.functional.pad(x, (0, 5)).unflatten(-1, (3, -1))
    off = (summed(parts).double() - parts.double().sum(-1)).sum(-1)
    assert torch.allclose(sequential.lost(x), off, rtol=1e-2)


def test_sums_that_overflow_or_have_no_terms_say_nothing() -> None:
    x = torch.tensor([[3e38, 3e38, -3e38], [1.5, 2.0, 3.25]])
    made = simulated(lambda t: t.sum(-1), x, runs=3)
    assert bool(made[:, 1].isfinite().all())
    assert sequential.lost(torch.zeros(2, 1)).tolist() == [0, 0]
    assert sequential.of_weights(torch.zeros(2, 3).double(), 1).tolist() == [[0], [0]]


def simulated(
    function: Callable[..., torch.Tensor], *args: torch.Tensor, runs: int, plain: bool = True
) -> torch.Tensor:
    simulation = Simulation(runs, Normals("sequential"), plain=plain)
    with aside(), rounded_run(simulation):
        made = simulation.stacks.of(function(*args))
    assert made is not None
    return made


@pytest.mark.parametrize("rows", [24, 1 << 18])
def test_the_first_kernel_is_the_plain_one_and_no_other(rows: int) -> None:
    x = torch.rand(rows, 3, generator=torch.Generator().manual_seed(1)) if rows > 24 else EQUAL
    both = [simulated(lambda t: t.sum(-1), x, runs=3, plain=plain) for plain in (True, False)]
    expected = (x.double().sum(-1) + sequential.lost(x)).float()
    assert torch.equal(both[0][1], expected)
    assert not torch.equal(both[1][1], expected)
    assert torch.equal(both[0][2:], both[1][2:])


def test_one_of_several_groups_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not all kernels fit at once."""
    again = again_of(lambda t: t * t.softmax(-1), SPARSE)
    with aside():
        together = simulate(again, outputs, 4, "groups#0")
        monkeypatch.setattr("python_inspector.trace.simulation.LIMIT", 3 * SPARSE.numel())
        apart = simulate(again, outputs, 4, "groups#0")
    assert together is not None and apart is not None
    errors = [
        (s.stacks["out.0"] - s.stacks["out.0"][:1]).norm(dim=(1, 2)) for s in (together, apart)
    ]
    for found in errors:
        assert float(found[1]) > 3 * float(found[2:].max())


def test_functions_made_of_tanh_are_right() -> None:
    x = randn(9, 70, seed=5) * 3
    check(lambda t: 0.5 * t * (1 + (0.5 * t).tanh()), like=torch.nn.functional.silu, inputs=x)
    check(lambda t: 0.5 * (1 + (0.5 * t).tanh()), like=torch.sigmoid, inputs=x)
    with pytest.raises(WrongError):
        check(
            lambda t: 0.5 * t * (1.00001 + (0.5 * t).tanh()),
            like=torch.nn.functional.silu,
            inputs=x,
        )


@pytest.mark.parametrize("seed", range(6))
def test_a_softmax_in_powers_of_two_is_right(seed: int) -> None:
    """It rounds x log2(e), however close x is to the maximum."""
    x = 20 * torch.randn(9, 70, generator=torch.Generator().manual_seed(seed)) + 100

    def kernel(x: torch.Tensor) -> torch.Tensor:
        y = x * 1.4426950408889634
        y = torch.exp2(y - y.amax(-1, keepdim=True))
        return y / y.sum(-1, keepdim=True)

    assert check(kernel, lambda x: x.softmax(-1), x).passed
    with pytest.raises(WrongError):
        check(lambda x: kernel(x * (1 + 2**-17)), lambda x: x.softmax(-1), x)
