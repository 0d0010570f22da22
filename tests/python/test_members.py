"""Other ways to round the same code: kernels that keep float32 inside follow a member, bit for bit
but for what simulated kernels of that member leave open; wrong ones follow none."""

from collections.abc import Callable

import pytest
import torch
from test_planted_bugs import again_of, judged_call, outputs, randn
from torch.nn import functional

from python_inspector import WrongError, check
from python_inspector.native import judge_library
from python_inspector.trace import members
from python_inspector.trace.following import ONCE, alike_in_row
from python_inspector.trace.members import SCALES, Kept, ways_of
from python_inspector.trace.planting import listing_of
from python_inspector.trace.replay import aside, run_rounded
from python_inspector.trace.simulation import Normals, Simulation
from python_inspector.trace.sites import Site

BF16 = torch.bfloat16


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def norm_in_float32(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    wide = x.float()
    root = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * root * weight.float()).to(x.dtype)


def mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return (functional.silu(x @ gate) * (x @ up)) @ down


def mlp_in_float32(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    return mlp(*(t.float() for t in (x, gate, up, down))).to(x.dtype)


def mlp_rounding_the_product(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    wide = x.float()
    product = functional.silu(wide @ gate.float()) * (wide @ up.float())
    return (product.to(BF16).float() @ down.float()).to(BF16)


def moved(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def moved_in_float32(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return moved(x.float(), cos.float(), sin.float()).to(x.dtype)


NORM = (randn(24, 64).to(BF16), (1 + 0.2 * randn(64, seed=1)).to(BF16))
MLP = tuple(
    t.to(BF16)
    for t in (
        randn(40, 48),
        randn(48, 80, seed=1) / 7,
        randn(48, 80, seed=2) / 7,
        randn(80, 48) / 9,
    )
)
ANGLES = torch.arange(24.0)[:, None] * torch.cat([0.3 ** torch.arange(8.0)] * 2)
ROTARY = (randn(3, 24, 16).to(BF16), ANGLES.cos().to(BF16), ANGLES.sin().to(BF16))


@pytest.mark.parametrize(
    ("function", "args", "kernel", "member"),
    [
        (norm, NORM, norm_in_float32, ONCE),
        (mlp, MLP, mlp_in_float32, ONCE),
        (mlp, MLP, mlp_rounding_the_product, "keeps all in float32 but mul #0"),
        (moved, ROTARY, moved_in_float32, ONCE),
    ],
)
def test_a_kernel_that_keeps_float32_follows_a_member(
    function: Callable[..., torch.Tensor],
    args: tuple[torch.Tensor, ...],
    kernel: Callable[..., torch.Tensor],
    member: str,
) -> None:
    _, found, _ = judged_call(function, *args, bugs=False)
    gates, y = found.gates["out.0"], kernel(*args)
    assert gates.differing(y, gates.m) > 100
    followed = next(m for m in found.members["out.0"] if m.name == member)
    assert gates.differing(y, followed.values) <= judge_library().bits_limit(*followed.bits)
    assert gates.margin(y) <= 1


def test_a_wrong_kernel_follows_no_member() -> None:
    _, found, _ = judged_call(norm, *NORM, bugs=False)
    gates, y = found.gates["out.0"], norm_in_float32(*NORM, eps=3e-3)
    for member in found.members["out.0"]:
        assert gates.differing(y, member.values) > 5 * judge_library().bits_limit(*member.bits)
    assert gates.margin(y) > 1


def test_bits_tell_what_no_error_does() -> None:
    """eps ten times as large is half a rounding of bf16: every norm of errors passes."""
    x, weight = randn(64, 512).to(BF16), (1 + 0.2 * randn(512, seed=1)).to(BF16)
    _, found, _ = judged_call(norm, x, weight, bugs=False)
    gates = found.gates["out.0"]
    assert gates.margin(norm_in_float32(x, weight)) <= 1
    ratios = gates.ratios(norm_in_float32(x, weight, eps=1e-4))
    assert ratios.pop("conformance") > 1
    assert max(ratios.values()) <= 1


def test_members_are_few_distinct_and_no_less_accurate() -> None:
    _, found, _ = judged_call(mlp, *MLP, bugs=False)
    gates, members = found.gates["out.0"], found.members["out.0"]
    assert members[0].name == ONCE and 2 <= len(members) <= 9 + len(SCALES)
    for i, member in enumerate(members):
        assert gates.tensor_no_less_accurate(member.values)
        for other in (gates.m, *(m.values for m in members[:i])):
            assert gates.differing(member.values, other) > 8


def mixed(scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return scores.float().softmax(-1).to(v.dtype) @ v


def mixed_at_the_end(scores: torch.Tensor, v: torch.Tensor, term: float = 1.0) -> torch.Tensor:
    """Weights are divided by their sum afterwards, as in flash attention."""
    weights = (scores.float() - scores.float().amax(-1, keepdim=True)).exp()
    sums = weights.sum(-1, keepdim=True)
    weights[..., -1] *= term
    return (weights.to(v.dtype).float() @ v.float() / sums).to(v.dtype)


def cancelling(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores, and values of which the last rows' weighted sum is nearly zero."""
    scores = 0.3 * randn(24, 14, seed=seed)
    v = randn(14, 16, seed=seed + 100)
    weights = scores[-1:].bfloat16().double().softmax(-1)
    v[0] -= ((weights @ v.double())[0] / weights[0, 0]).float() * (1 - 2**-4)
    return scores.bfloat16(), v.bfloat16()


def failures(kernel: Callable[..., torch.Tensor]) -> int:
    failed = 0
    for seed in range(25, 37):
        try:
            check(kernel, mixed, cancelling(seed), explain=False)
        except WrongError:
            failed += 1
    return failed


def test_errors_at_another_scale_are_right_where_summands_cancel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert failures(mixed_at_the_end) == 0
    assert failures(lambda scores, v: mixed_at_the_end(scores, v, 0.97)) == 12
    monkeypatch.setattr(members, "SCALES", ())
    assert failures(mixed_at_the_end) > 0


def test_float32_has_no_members() -> None:
    _, found, _ = judged_call(norm, *(t.float() for t in NORM), bugs=False)
    assert found.members == {}


def test_all_subsets_of_few_points_and_only_all_of_many() -> None:
    four = {i: Site("mul", i) for i in range(4)}
    assert len(ways_of(four)) == 15
    assert Kept("keeps mul #0, mul #2 in float32", frozenset({0, 2})) in ways_of(four)
    ten = ways_of({i: Site("mul", i) for i in range(10)})
    assert len(ten) == 21 and ten[0].name == ONCE
    assert [way.name for way in ways_of({i: Site("mul", i) for i in range(40)})] == [ONCE]
    assert ways_of({}) == []


def test_points_are_named_as_bugs_are() -> None:
    points = listing_of(again_of(norm, *NORM), "x#0").points
    assert [str(site) for site in points.values()] == ["_to_copy #1", "mul #1"]


@pytest.mark.parametrize(("function", "args"), [(norm, NORM), (mlp, MLP), (moved, ROTARY)])
def test_ways_tried_in_one_run_give_what_each_gives_alone(
    function: Callable[..., torch.Tensor], args: tuple[torch.Tensor, ...]
) -> None:
    again = again_of(function, *args)
    points = listing_of(again, "x#0").points
    last = max(points)
    scaled = [Kept(f"at {scale}", frozenset(points) - {last}, scale) for scale in SCALES]
    ways = [*ways_of(points), *scaled]
    call = members.Call(again, outputs, run_rounded, "x#0")
    with aside(), torch.no_grad():
        found = call.at_once(ways)
        alone = {way: call.alone(way, ["out.0"]) for way in ways}
    assert all(torch.equal(found[way]["out.0"], alone[way]["out.0"]) for way in ways)
    assert len({tuple(found[way]["out.0"].flatten().tolist()) for way in ways}) > 5


def test_kept_results_reach_views_moves_and_writes() -> None:
    """Everything kept: the same as the code in float32, wherever the values went meanwhile."""

    def run(x: torch.Tensor) -> torch.Tensor:
        y = (x * 1.1).view(4, 6).T.contiguous()
        y = torch.cat([y[:, :2], y[:, 2:] * 0.7], 1)
        y = torch.where(y > 0, y, y * 0.3)[torch.tensor([5, 4, 3, 2, 1, 0])]
        return y.masked_fill(y > 9, 0.0) / 3.0

    x = randn(2, 12).to(BF16)
    simulation = Simulation(0, Normals("x"), kept=range(99))
    with aside(), torch.no_grad():
        rerun = again_of(run, x)(run_rounded(simulation))
        found = outputs(rerun.result, rerun.twin)["out.0"][0]
    assert torch.equal(found, run(x.float()).to(BF16))
    assert not torch.equal(found, run(x))


def test_alike_values_of_a_row_are_counted_by_their_significand() -> None:
    row = torch.tensor([[1.0, 2.0, -4.0, 1.5, 0.0, 0.0], [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]])
    assert alike_in_row(row.to(BF16)) == 2
    assert alike_in_row(row) == 0
