"""The rounded run: one rounding per operation, and samples that are what separate runs would be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from python_inspector.trace import arithmetic, spread
from python_inspector.trace.replay import run_rounded
from python_inspector.trace.simulation import Normals, Simulation, TooLargeError
from python_inspector.trace.spread import simulate
from python_inspector.trace.writes import RoundedRunError

RUNS = 5


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rounded(function: Callable[..., Any], *args: Any, runs: int = RUNS, **options: Any) -> Any:
    """The result, and the simulation that holds its samples."""
    simulation = Simulation(runs, Normals("test"), **options)
    return run_rounded(simulation)(function, args, {}).result, simulation


def samples(simulation: Simulation, t: torch.Tensor) -> torch.Tensor:
    stack = simulation.stacks.of(t)
    assert stack is not None
    return stack


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_operation_is_rounded_once_to_what_it_stores(dtype: torch.dtype) -> None:
    x, w = randn(7, 33, dtype=dtype), randn(33, 5, dtype=dtype, seed=1)
    m, simulation = rounded(torch.matmul, x, w)
    assert m.dtype == dtype
    assert torch.equal(m, (x.double() @ w.double()).to(dtype))
    name = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]
    assert simulation.operations == [{"op": "mm", "stores": name, "terms": 33}]


def test_every_cast_of_the_code_rounds() -> None:
    def norm(x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)

    x = randn(4, 64, dtype=torch.bfloat16)
    m, simulation = rounded(norm, x)
    square = x.double().square().float().double()
    scale = torch.rsqrt((square.mean(-1, keepdim=True).float().double() + 1e-5).float().double())
    expected = (x.double() * scale.float().double()).float().bfloat16()
    assert torch.equal(m, expected)
    stored = [(entry["op"], entry["stores"]) for entry in simulation.operations]
    assert stored == [
        ("pow", "f32"), ("mean", "f32"), ("add", "f32"), ("rsqrt", "f32"), ("mul", "f32"),
        ("_to_copy", "bf16"),
    ]  # fmt: skip


@pytest.mark.parametrize("positive", [False, True])
def test_sums_are_off_as_sequential_ones_are(positive: bool) -> None:
    x, w = randn(32, 1024), randn(1024, 32, seed=1)
    x, w = (x.abs(), w.abs()) if positive else (x, w)
    m, simulation = rounded(torch.matmul, x, w, runs=40)
    exact = x.double() @ w.double()
    off = samples(simulation, m)[1:].double() - exact
    total = torch.zeros(32, 32)
    for i in range(1024):
        total = total + x[:, i : i + 1] * w[i : i + 1]
    real, simulated = ((t / exact.norm()).norm() for t in (total.double() - exact, off.std(0)))
    assert 0.5 < float(real / simulated) < 1.2


def test_what_a_row_has_in_common_is_off_together() -> None:
    x = 0.1 * randn(4, 4096)
    m, simulation = rounded(torch.softmax, x, -1, runs=20)
    exact = torch.softmax(x.double(), -1)
    off = (samples(simulation, m)[1:].double() - exact) / exact
    together = off.mean(-1).std()
    assert 10 * 2.0**-24 < float(together) < 22 * 2.0**-24  # 0.25 sqrt(4096) = 16


def test_functions_are_off_by_two_roundings_and_gelu_by_those_of_its_input() -> None:
    x = randn(50, 50)
    for function, size in ((torch.tanh, torch.tanh(x)), (functional.gelu, x)):
        m, simulation = rounded(function, x, runs=40)
        off = samples(simulation, m)[1:].double() - function(x.double())
        share = (off.std(0) / (2.0**-24 * size.abs().double())).median()
        assert 1.8 < float(share) < 2.3  # the rounding of the result comes on top


@pytest.mark.parametrize("host", [True, False])
@pytest.mark.parametrize(
    "exact",
    [
        lambda x: x + x * 3 - x / 7,
        lambda x: (-x).abs().relu().clamp(max=2),
        lambda x: torch.cat([x, x[:, :1]], -1).transpose(0, 1).to(torch.bfloat16),
        lambda x: x.masked_fill(x > 0, 0.3) + torch.where(x > 0, x, 0.7),
        lambda x: functional.pad(x[torch.tensor([2, 0])], (1, 0), value=0.3).tril(),
        lambda x: x.sort(-1).values,
        lambda x: (x > 0).to(x.dtype).sum(-1),  # a count carried in floats
        lambda x: functional.one_hot((x > 0).long(), 2).to(x.dtype) @ torch.ones(2, 1),
    ],
)
def test_what_every_kernel_has_exactly_has_no_samples(
    exact: Callable[..., Any], host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An accelerator is not asked whether numbers are whole: there all samples may be the same."""
    monkeypatch.setattr(arithmetic, "is_host", lambda device: host)
    m, simulation = rounded(exact, randn(4, 6))
    stack = simulation.stacks.of(m)
    if host:
        assert stack is None
    else:
        assert stack is None or torch.equal(stack, m.expand_as(stack))


@pytest.mark.parametrize("function", [torch.matmul, lambda x, w: (x @ w).log_softmax(-1)])
def test_an_accelerator_has_the_noise_of_the_host(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = randn(5, 16).masked_fill(randn(5, 16, seed=1) > 1, 3.0)
    x[0] = 0  # its first element does not tell
    found = []
    for host in (True, False):
        monkeypatch.setattr(arithmetic, "is_host", lambda device, host=host: host)
        m, simulation = rounded(function, x, randn(16, 8, seed=2))
        found.append(samples(simulation, m).clone())
    assert torch.equal(*found)
    assert not torch.equal(found[0][0], found[0][1])


def test_whole_numbers_beside_infinities_stay_whole_on_an_accelerator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arithmetic, "is_host", lambda device: False)
    x = torch.tensor([[0.0, -torch.inf], [0.0, 0.0]])
    m, simulation = rounded(lambda x: x.sum(-1), x)
    assert torch.equal(samples(simulation, m), torch.tensor([-torch.inf, 0.0]).expand(6, 2))


def test_choices_are_those_of_the_run_in_every_sample() -> None:
    def choose(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = (x @ w).softmax(-1)
        values, indices = scores.topk(2, dim=-1)
        return scores, values, indices, scores.argmax(-1)

    (scores, values, indices, first), simulation = rounded(choose, randn(9, 16), randn(16, 8))
    assert simulation.stacks.of(indices) is None
    assert torch.equal(first, indices[:, 0])
    every = samples(simulation, scores)
    assert torch.equal(samples(simulation, values), every.gather(-1, indices.expand(6, 9, 2)))


def test_a_write_reaches_every_view_of_every_sample() -> None:
    def write(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = x @ w
        out = torch.zeros(4, 2, 3)  # one value for all runs until something is written
        view = out[:, 1]
        view.copy_(product)
        product.mul_(2).add_(1)
        out[0].index_fill_(0, torch.tensor([0]), 7.0)
        return product, out, view

    (product, out, view), simulation = rounded(write, randn(4, 5), randn(5, 3))
    before = (samples(simulation, product).double() - 1) / 2
    assert torch.allclose(samples(simulation, out)[:, :, 1].double(), before, atol=1e-6)
    assert torch.equal(samples(simulation, out)[:, :, 1], samples(simulation, view))
    assert torch.equal(samples(simulation, out)[0], out)
    assert bool((samples(simulation, out)[:, 0, 0] == 7).all())
    assert bool((samples(simulation, out)[:, 1:, 0] == 0).all())
    assert float(samples(simulation, out)[:, :, 1].std(0).amax()) > 0


def test_inputs_stay_as_they_are() -> None:
    x = randn(4, 5)
    whole, part = x.clone(), x[:, 1:3]
    m, simulation = rounded(lambda x: torch.nn.functional.relu_(x.add_(1).div_(3)), x)
    assert torch.equal(x, whole)
    m, simulation = rounded(lambda part: part.tanh_(), part)
    assert torch.equal(x, whole)
    assert m.stride() == part.stride()
    assert float(samples(simulation, m).std(0).amax()) > 0


OPERATIONS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: torch.softmax(x, -1),
    lambda x: torch.softmax(x, 0),
    lambda x: x.sum((0, 2)),
    lambda x: x.mean(),
    lambda x: x.cumsum(1),
    lambda x: x.var(-1, keepdim=True),
    lambda x: x[:, :1] * x + x[0, 0],
    lambda x: torch.where(x[..., :1].abs() < 9, x, 0.0),
    lambda x: x[torch.tensor([1, 0])],
    lambda x: functional.pad(x, (1, 2)),
    lambda x: functional.layer_norm(x, (5,)),
    lambda x: functional.conv1d(x, torch.ones(3, 1, 2), padding=1, groups=3),
    lambda x: torch.bmm(x, x.mT) @ x,
    lambda x: torch.baddbmm(x @ x.mT, x, x.mT, beta=0.5, alpha=2),
    lambda x: torch.addmm(x[0, 0], x[0], torch.ones(5, 5)),
    lambda x: functional.softplus(x).exp().log1p(),
    lambda x: x.masked_fill(x[:1].detach().abs() < 0, 0.0).repeat(2, 1, 1).tril(),
    lambda x: torch.stack([x, x]).flip(0).roll(1, -1),
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_sample_is_what_a_run_on_it_gives(operation: Callable[..., Any]) -> None:
    seen = {}

    def run(x: torch.Tensor) -> Any:
        seen["noisy"] = torch.tanh(x)
        return operation(seen["noisy"])

    result, simulation = rounded(run, randn(2, 3, 5))
    stack = samples(simulation, result)
    assert float(stack.std(0).amax()) > 0
    for row, x in zip(stack, samples(simulation, seen["noisy"]), strict=True):
        assert torch.allclose(row.double(), _in_double(operation, x), rtol=3e-6, atol=3e-6)


def _in_double(operation: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    torch.set_default_dtype(torch.float64)
    try:
        result: torch.Tensor = operation(x.double())
        return result
    finally:
        torch.set_default_dtype(torch.float32)


def test_operations_without_a_rule_of_their_own_are_done_row_by_row() -> None:
    x = randn(4, 5)
    index = torch.tensor([[4, 0], [1, 1], [2, 3], [0, 0]])

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x).gather(1, index)

    found, simulation = rounded(run, x)
    whole, other = rounded(torch.tanh, x)
    expected = samples(other, whole).gather(2, index.expand(len(samples(other, whole)), 4, 2))
    assert torch.equal(samples(simulation, found), expected)


def test_the_same_seed_gives_the_same_samples() -> None:
    def stacks(seed: str) -> torch.Tensor:
        def outputs(result: Any, twin: Any) -> Any:
            return {"out": (result, ("token", "channel"))}

        x = randn(20, 30)
        found = simulate(lambda run: run(torch.tanh, (x,), {}), outputs, 3, seed)
        assert found is not None
        return found.outputs["out"]

    assert torch.equal(stacks("a#0"), stacks("a#0"))
    assert not torch.equal(stacks("a#0"), stacks("a#1"))
    assert torch.equal(stacks("a#0")[0], stacks("a#1")[0])


def test_large_stacks_are_made_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    x = randn(20, 30)
    with pytest.raises(TooLargeError, match="6 runs of 600 elements, at most 1300"):
        rounded(torch.tanh, x, limit=1300)
    sizes = []

    class Small(Simulation):
        def __init__(self, runs: int, generator: torch.Generator, **options: Any) -> None:
            super().__init__(runs, generator, limit=1900, **options)
            sizes.append(runs)

    monkeypatch.setattr("python_inspector.trace.spread.Simulation", Small)

    def outputs(result: Any, twin: Any) -> Any:
        return {"out": (result, ("token", "channel"))}

    found = simulate(lambda run: run(torch.tanh, (x,), {}), outputs, 5, "in groups")
    assert sizes == [5, 2, 2, 1]
    assert found is not None
    assert len(found.outputs["out"]) == 6
    assert len(found.operations) == 1
    assert len({tuple(row.flatten().tolist()) for row in found.outputs["out"]}) == 6


def test_fewer_kernels_are_simulated_at_once_where_memory_ends() -> None:
    def outputs(result: Any, twin: Any) -> Any:
        return {"out": (result, ("token", "channel"))}

    def softmax(x: torch.Tensor) -> torch.Tensor:
        result = torch.softmax(x, -1)
        if samples(simulations[-1], result).shape[0] > most:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return result

    def again(run: Any) -> Any:
        return run(softmax, (x,), {})

    x, simulations = randn(4, 8), []
    original = spread.run_rounded

    def noted(simulation: Simulation, *how: Any) -> Any:
        simulations.append(simulation)
        return original(simulation, *how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spread, "run_rounded", noted)
        most = 4
        found = simulate(again, outputs, 6, "softmax")
        assert found is not None
        assert len(found.outputs["out"]) == 7
        assert [simulation.runs for simulation in simulations] == [6, 3, 3]
        most = 1
        with pytest.raises(torch.cuda.OutOfMemoryError):
            simulate(again, outputs, 6, "softmax")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_fused_attention_is_one_operation(dtype: torch.dtype, kv_heads: int) -> None:
    q = randn(1, 4, 9, 8, dtype=dtype)
    k, v = (randn(1, kv_heads, 9, 8, dtype=dtype, seed=s) for s in (1, 2))

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=kv_heads < 4
        )

    m, simulation = rounded(attend, q, k, v)
    exact = attend(q.double(), k.double(), v.double())
    if dtype == torch.float32:
        assert torch.equal(m, exact.to(dtype))
    else:
        assert torch.equal(m, _with_rounded_weights(q, k, v))
    assert [entry["op"][:19] for entry in simulation.operations] == ["_scaled_dot_product"]
    off = (samples(simulation, m)[1:].double() - exact).abs().amax()
    assert 0 < float(off) < (2e-6 if dtype == torch.float32 else 2e-2)


def _with_rounded_weights(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1).double() for t in (k, v))
    scores = q.double() @ k.mT * q.shape[-1] ** -0.5
    scores = scores.masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    rounded = weights.to(q.dtype).double()
    return (rounded @ v / weights.sum(-1, keepdim=True)).to(q.dtype)


@pytest.mark.parametrize("keys", [500, 1300])
def test_fused_attention_rounds_weights_against_the_largest_score_so_far(keys: int) -> None:
    q = randn(1, 1, 3, 8, dtype=torch.bfloat16) * 4
    k, v = (randn(1, 1, keys, 8, dtype=torch.bfloat16, seed=s) for s in (1, 2))
    m, _ = rounded(functional.scaled_dot_product_attention, q, k, v, runs=2)
    r = functional.scaled_dot_product_attention(q, k, v)
    assert float((m.float() - r.float()).norm() / r.float().norm()) < 3e-3
    mask = torch.zeros(3, keys, dtype=torch.bool)
    mask[1, keys - 5 :] = True  # a block without a key before the one with some
    masked, _ = rounded(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        q, k, v, runs=2,
    )  # fmt: skip
    assert bool((masked[0, 0, ::2] == 0).all())
    assert bool(masked.isfinite().all())
    exact = torch.softmax(q[0, 0, 1].double() @ k[0, 0, -5:].double().mT * 8**-0.5, -1)
    assert torch.allclose(masked[0, 0, 1].double(), exact @ v[0, 0, -5:].double(), rtol=2e-2)


def test_code_that_is_not_seen_is_refused() -> None:
    @torch.library.custom_op("plumbline_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with pytest.raises(RoundedRunError, match=r"plumbline_test\.twice\.default is a custom"):
        rounded(lambda x: torch.ops.plumbline_test.twice(x), randn(3))
