"""Bugs planted in the trace of any torch code, and what a judge makes of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import command
from safetensors.torch import save_file
from torch.nn import functional

from python_inspector import record
from python_inspector.format.axes import Named, by_dimensions
from python_inspector.models.any_tiny import build_any
from python_inspector.taps.calls import Block
from python_inspector.trace.bugs import KINDS, Bug
from python_inspector.trace.gates import CERTAIN
from python_inspector.trace.judgement import Judgement, Output, judgement
from python_inspector.trace.planting import POSITIONS, chosen, listing_of, positions, with_bug
from python_inspector.trace.replay import Again, Twin, aside, run_lifted, run_rounded
from python_inspector.trace.resolution import Fate, fate_of
from python_inspector.trace.simulation import Normals, Simulation
from python_inspector.trace.spread import Simulated, judged, simulate

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def outputs(result: Any, twin: Twin) -> dict[str, Named]:
    results = result if isinstance(result, tuple) else (result,)
    return {f"out.{i}": by_dimensions(t) for i, t in enumerate(results)}


def again_of(function: Callable[..., Any], *args: torch.Tensor) -> Again:
    return lambda run: run(function, args, {})


def judged_call(
    function: Callable[..., Any], *args: torch.Tensor, bugs: bool = True
) -> tuple[Again, Judgement, Simulated]:
    again = again_of(function, *args)
    with aside(), torch.no_grad():
        simulated = simulate(again, outputs, 16, "test#0")
        assert simulated is not None
        oracle = outputs(again(run_lifted).result, lambda x: x)
        floating = {}
        for name, (r, axes) in outputs(function(*args), lambda x: x).items():
            if r.is_floating_point():
                floating[name] = Output(r, judged(oracle[name][0], axes, None, None, r.dtype))
        found = judgement(again, outputs, simulated, floating, args, "test#0", bugs=bugs)
    return again, found, simulated


def norm(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def glu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.silu(gate) * up


def names(function: Callable[..., Any], *args: torch.Tensor) -> dict[str, str]:
    listing = listing_of(again_of(function, *args), "test#0")
    return {bug.name: bug.kind for bug in listing.bugs}


def test_the_bugs_of_a_norm_say_what_is_wrong_and_where() -> None:
    found = names(norm, randn(4, 64))
    assert found["pow #0 exponent 2 -> 2.02"] == "constant"
    assert found["add #0 other 1e-05 -> 1.01e-05"] == "constant"
    assert found["the last of 64 terms of mean #0 is dropped"] == "last term"
    assert found["rsqrt #0 is skipped"] == "skip"
    assert found["the sign of mul #0 is flipped"] == "sign"
    assert found["mul #0 other is shifted by one along axis 0"] == "shift"
    assert found["the result of rsqrt #0 is rounded to bf16"] == "rounding"


def test_gate_and_up_an_index_and_operands_are_exchanged() -> None:
    table, ids = randn(9, 8), torch.tensor([0, 3, 8])
    assert (
        names(glu, randn(4, 8), randn(4, 8, seed=1))["mul #0 with gate and up exchanged"] == "swap"
    )
    found = names(lambda ids, table: functional.embedding(ids, table)[1:], ids, table)
    assert found["embedding #0 index off by one"] == "index"
    assert found["slice #0 starts one earlier"] == "index"
    assert (
        names(torch.sub, randn(4, 8), randn(4, 8))["sub #0 with its operands exchanged"] == "swap"
    )
    allowed = names(lambda x: x.masked_fill(torch.arange(8) > 3, 0.0), randn(4, 8))
    assert allowed["gt #0 without its border (<= for <)"] == "index"


def with_exponent(x: torch.Tensor) -> torch.Tensor:
    return x / (x.abs().pow(2.02).mean(-1, keepdim=True) + 1e-5).sqrt()


def without_root(x: torch.Tensor) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-5)


def without_last(x: torch.Tensor) -> torch.Tensor:
    return x / (x[:, :-1].square().sum(-1, keepdim=True) / 64 + 1e-5).sqrt()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("pow #0 exponent 2 -> 2.02", with_exponent),
        ("rsqrt #0 is skipped", without_root),
        ("the last of 64 terms of mean #0 is dropped", without_last),
    ],
)
def test_a_planted_bug_computes_what_the_wrong_code_does(
    name: str, wrong: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = randn(6, 64)
    again = again_of(norm, x)
    bug = next(bug for bug in listing_of(again, "test#0").bugs if bug.name == name)
    named = with_bug(again, outputs, run_rounded(Simulation(0, Normals("x"))), bug)
    assert named is not None
    torch.testing.assert_close(named["out.0"][0], wrong(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bug_of_a_norm_is_killed_but_for_eps(dtype: str) -> None:
    _, found, _ = judged_call(norm, randn(24, 64).to(DTYPES[dtype]))
    assert len(found.bugs.planted) > 20
    passing = [bug.name for bug in found.bugs.planted if bug.margin <= 1]
    assert all(name.startswith("add #0") for name in passing)


def halves(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = make(a)
        out[:, :4].copy_(a)
        out[:, 4:].copy_(b)
        return out * 2

    return run


@pytest.mark.parametrize(
    "make",
    [
        lambda a: a.new_empty(3, 8),
        lambda a: a.new_empty_strided((3, 8), (1, 3)),
        lambda a: torch.empty(3, 8, dtype=a.dtype),
        lambda a: torch.empty_like(a.repeat(1, 2)),
        lambda a: torch.empty_strided((3, 8), (8, 1), dtype=a.dtype),
        lambda a: torch.empty_permuted((3, 8), (1, 0), dtype=a.dtype),
        lambda a: a.new(3, 8),
    ],
    ids=["new", "new strided", "empty", "like", "strided", "permuted", "legacy"],
)
@pytest.mark.parametrize("runner", ["rounded", "float64"])
def test_a_slice_written_beside_its_place_leaves_zeros(
    make: Callable[[torch.Tensor], torch.Tensor], runner: str
) -> None:
    """Not what the memory happened to hold, which torch makes NaN here."""
    a, b = randn(3, 4), randn(3, 4, seed=1)
    again = again_of(halves(make), a, b)
    bugs = {bug.name: bug for bug in listing_of(again, "x#0").bugs}
    run = run_lifted if runner == "float64" else run_rounded(Simulation(0, Normals("x")))
    torch.use_deterministic_algorithms(True)
    try:
        named = with_bug(again, outputs, run, bugs["slice #0 starts one later"])
    finally:
        torch.use_deterministic_algorithms(False)
    assert named is not None
    expected = 2 * torch.cat([torch.zeros(3, 1), a[:, :3], b], 1)
    torch.testing.assert_close(named["out.0"][0].float(), expected)
    assert not any(bug.site.op.startswith("empty") for bug in bugs.values())


def test_bugs_that_change_nothing_are_no_bugs() -> None:
    _, found, _ = judged_call(lambda x: torch.relu(x.exp()) + 1.0, randn(8, 16))
    same = [bug.name for bug in found.bugs.same]
    assert "relu #0 is skipped" in same
    assert all(bug.name not in same for bug in found.bugs.planted)


def test_a_bug_that_does_not_run_is_counted_apart() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return x[:, x.argmax().clamp(max=0) : 5].exp() * torch.arange(1.0, 6.0)[: x.shape[1]]

    again = again_of(run, randn(3, 5))
    broken = Bug(listing_of(again, "x#0").bugs[0].site, "skip", "a hole", _no_such_shape, ())
    assert with_bug(again, outputs, run_rounded(Simulation(0, Normals("x"))), broken) is None


def _no_such_shape(seen: Any) -> Any:
    raise RuntimeError("The size of tensor a (3) must match the size of tensor b (4)")


def test_another_choice_is_certain() -> None:
    def route(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, at = x.softmax(-1).topk(2)
        return values, at

    _, found, _ = judged_call(route, randn(12, 8))
    by_name = {bug.name: bug for bug in found.bugs.planted}
    assert by_name["_softmax #0 self is shifted by one along axis 1"].margin == CERTAIN


def test_kinds_take_turns_and_places_of_one_pattern_come_last() -> None:
    def deep(x: torch.Tensor) -> torch.Tensor:
        for _ in range(30):
            x = torch.tanh(x * 1.5)
        return x.pow(2).mean(-1)

    bugs = listing_of(again_of(deep, randn(4, 8)), "test#0").bugs
    picked = chosen(bugs, 30, "test#0")
    assert {bug.kind for bug in picked} >= set(KINDS) - {"swap", "index"}
    assert {"pow", "mean"} <= {bug.site.op for bug in picked}
    assert picked == chosen(bugs, 30, "test#0")


def fate(function: Callable[..., Any], x: torch.Tensor, name: str) -> Fate:
    again, found, _ = judged_call(function, x, bugs=False)
    bug = next(bug for bug in listing_of(again, "test#0").bugs if bug.name == name)
    with aside(), torch.no_grad():
        return fate_of(bug, again, outputs, found.gates, run_lifted, run_rounded, "test#0")


def test_a_survivor_that_is_the_same_function_is_told_from_one_that_is_not() -> None:
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return (x - x.amax(-1, keepdim=True)).softmax(-1)

    x = randn(8, 16)
    assert fate(shifted, x, "sub #0 other is shifted by one along axis 0") is Fate.SAME_FUNCTION
    assert fate(shifted, x, "sub #0 self is shifted by one along axis 1") is Fate.SURVIVES
    # 1.01 eps moves a row of size 1 by 5e-8: less than one rounding of float32, and than bf16's.
    eps = "add #0 other 1e-05 -> 1.01e-05"
    assert fate(norm, randn(8, 64).bfloat16(), eps) is Fate.BELOW_RESOLUTION
    assert fate(norm, 1e-3 * randn(8, 64), eps) is Fate.SURVIVES


def test_positions_hold_the_worst_and_some_of_all() -> None:
    m = torch.zeros(40, 50)
    y = m.clone()
    y[7, :9] = torch.arange(1.0, 10.0)
    at = positions(y, m)
    assert len(at) == POSITIONS and bool((at[1:] > at[:-1]).all())
    assert set(range(350, 359)) <= set(at.tolist())
    assert positions(torch.ones(5), torch.zeros(5)).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.filterwarnings("ignore::python_inspector.RecordWarning")
@pytest.mark.parametrize("dtype", DTYPES)
def test_margins_are_those_of_the_harness(tmp_path: Path, dtype: str) -> None:
    """Outputs with a bug in them, judged by the binary from the recording: each passes where its
    margin here is at most 1, and its worst statistic / limit is the same."""
    model = build_any("apertus", DTYPES[dtype], "eager", 11)
    found: dict[str, list[tuple[dict[str, torch.Tensor], dict[str, float]]]] = {}

    def plant(seed: str, block: Block, again: Again, reruns: Any) -> None:
        if len(found) >= 14:
            return
        found[seed] = []
        for bug in chosen(listing_of(again, seed).bugs, 6, seed):
            named = with_bug(again, block.outputs, run_rounded(Simulation(0, Normals(seed))), bug)
            if named is None:
                continue
            gates = reruns.judgement.gates
            y = {name: t.clone().contiguous() for name, (t, _) in named.items()}
            if all(name in gates and y[name].shape == gates[name].r.shape for name in y):
                found[seed].append((y, {name: gates[name].margin(y[name]) for name in y}))

    with record(model, tmp_path / "run" / dtype) as recorder:
        recorder.on_judgement = plant
        with torch.no_grad():
            model(torch.arange(3, 25).view(2, 11), use_cache=False)
    compared = 0
    for i in range(6):
        batch = {seed: bugs[i] for seed, bugs in found.items() if len(bugs) > i}
        compared += _compare(tmp_path, tmp_path / "run" / dtype, batch)
    assert compared > 50


def _compare(folder: Path, recording: Path, batch: dict[str, tuple[Any, dict[str, float]]]) -> int:
    tensors = {f"{seed}/{name}": t for seed, (y, _) in batch.items() for name, t in y.items()}
    save_file(tensors, folder / "out.safetensors")
    results = folder / "results.jsonl"
    command("judge", str(recording), str(folder / "out.safetensors"), "--json", str(results))
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    compared = 0
    for line in lines:
        if line["type"] != "checkpoint" or line["checkpoint"] not in batch:
            continue
        margins = batch[line["checkpoint"]][1]
        for output in line["outputs"]:
            margin = margins[output["name"]]
            passed = all(gate["passed"] for gate in output["gates"])
            assert passed == (margin <= 1), (line["checkpoint"], output["name"], margin)
            worst = max(_ratio(gate) for gate in output["gates"])
            if margin < CERTAIN:
                assert margin == pytest.approx(worst, rel=1e-9), (
                    line["checkpoint"],
                    output["name"],
                )
            compared += 1
    return compared


def _ratio(gate: dict[str, Any]) -> float:
    statistic, limit = float(gate["statistic"]), float(gate["limit"])
    return statistic / limit if limit else 0.0 if gate["passed"] else CERTAIN
