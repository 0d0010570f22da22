"""An output's bits are excused by what the output itself is made of, not by what ran before it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_module_verdicts import judged, recorded
from test_planted_bugs import again_of, outputs, randn

from python_inspector import WrongError, check
from python_inspector.trace.replay import aside
from python_inspector.trace.rounded import rounded_run
from python_inspector.trace.simulation import Normals, Simulation
from python_inspector.trace.spread import Simulated, simulate

BF16 = torch.bfloat16
X, W = randn(48, 64).to(BF16), randn(64, seed=1).to(BF16)


def flow_of(function: Callable[..., Any], *args: torch.Tensor) -> tuple[list[list[str]], list[str]]:
    """The operations that each result is made by, and the sums that no rounding feeds though there
    are some before them."""
    simulation = Simulation(2, Normals("flow"))
    with aside(), rounded_run(simulation):
        results = function(*args)
    names = [entry["op"] for entry in simulation.operations]
    made = [[names[i] for i in simulation.makers(t) or ()] for t in results]
    return made, [e["op"] for e in simulation.operations if e.get("fed") is False]


def test_outputs_are_made_by_their_own_operations() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        scaled = x * w
        mean = x.float().mean(0).to(BF16)
        both = (scaled.float() + mean.float()).sum(-1).to(BF16)
        return scaled, mean, both, scaled.T[3:], x.clone()

    made, unfed = flow_of(function, X, W)
    assert made == [
        ["mul"],
        ["mean", "_to_copy"],
        ["mul", "mean", "_to_copy", "add", "sum", "_to_copy"],
        ["mul"],
        [],
    ]
    assert unfed == ["mean"]


def test_what_is_written_in_place_is_made_of_both_but_where_nothing_is_left() -> None:
    def function(x: torch.Tensor) -> Any:
        added = x * 3
        added.add_(x.exp())
        copied = x * 5
        copied.copy_(x.tanh())
        part = torch.zeros_like(x)
        part[:4] = x[:4].sin()
        return added, copied, part

    made, _ = flow_of(function, X)
    assert made == [["mul", "exp", "add"], ["tanh"], ["sin"]]


def test_all_may_follow_a_number_that_the_code_reads() -> None:
    def function(x: torch.Tensor) -> Any:
        largest = float((x * 2).abs().max())
        return x.float().sum(-1) / largest, x * 2

    made, unfed = flow_of(function, X)
    assert made[0][:1] == ["mul"] and "sum" in made[0]
    assert unfed == []


def test_composites_of_several_results_are_seen_inside() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        q, k = torch.nn.functional.linear(x, w[None]), x.softmax(-1)
        return torch.cat([q, q], -1), torch.nn.functional.layer_norm(k, (64,))

    made, unfed = flow_of(function, X, W)
    assert [operation for operation in made[0] if operation != "cat"] == ["mm"]
    assert made[1] == ["_softmax", "native_layer_norm"]
    assert unfed == ["_softmax"]


def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The second has nothing to do with the rounding of the first."""
    return x * w, (x.float() * x.float()).sum(0).to(x.dtype)


def both_summed_in_16_bits(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = torch.zeros_like(w)
    for row in x:
        total = (total.float() + row.float() * row.float()).to(x.dtype)
    return x * w, total


def both_in_other_orders(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    squares = x.float() * x.float()
    total = torch.zeros_like(squares[0])
    for row in squares.flip(0):
        total = total + row
    return (x.float() * w.float()).to(x.dtype), total.to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bits_behind_another_rounding_are_demanded(dtype: torch.dtype) -> None:
    x, w = randn(12, 256).to(dtype), randn(256, seed=1).to(dtype)
    check(both_in_other_orders, like=both, inputs=(x, w))
    with pytest.raises(WrongError, match="rounded model"):
        check(both_summed_in_16_bits, like=both, inputs=(x, w))


def many(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The second output is rounded at three points, the call at too many to try parts of them."""
    first = x
    for i in range(20):
        first = first * (1 + i / 64)
    return first, (x * 1.7).sin() * 0.3


def many_in_float32(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return many(x)[0], (x.float() * 1.7).sin().to(x.dtype) * 0.3


def many_with_a_scale_that_is_off(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return many(x)[0], (x.float() * 1.703).sin().to(x.dtype) * 0.3


def test_other_ways_to_round_are_of_the_output_s_own_points() -> None:
    check(many_in_float32, like=many, inputs=X)
    with pytest.raises(WrongError):
        check(many_with_a_scale_that_is_off, like=many, inputs=X)


def squares_behind_a_rounding(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return both(x, x[0])


def test_recordings_say_what_an_output_is_made_by(tmp_path: Path, harness: Path) -> None:
    x = randn(12, 256).to(BF16)
    folder = recorded(tmp_path / "r", squares_behind_a_rounding, x)
    right = both_in_other_orders(x, x[0])
    item = judged(harness, folder, out_0=right[0], out_1=right[1])
    assert item["status"] == "pass", item["reason"]
    wrong = both_summed_in_16_bits(x, x[0])
    item = judged(harness, folder, out_0=wrong[0], out_1=wrong[1])
    assert item["status"] == "fail"

    def older(_: Any, checkpoint: dict[str, Any]) -> None:
        for output in checkpoint["outputs"].values():
            del output["trace"]

    folder = recorded(tmp_path / "older", squares_behind_a_rounding, x, older)
    assert judged(harness, folder, out_0=right[0], out_1=right[1])["status"] == "pass"


def test_kept_simulations_know_the_operations_of_outputs() -> None:
    with aside():
        found = simulate(again_of(both, X, W), outputs, 2, "flow#0")
    assert isinstance(found, Simulated)
    assert [entry["op"] for entry in found.models({}).operations_of("out.0")] == ["mul"]
    assert len(found.operations_of("elsewhere")) == len(found.operations)
