"""Faults reported by other projects, in torch code against small modules of transformers: each is
caught, and the right code passes. No line of the package knows any of these modules."""

import foreign_attention
import foreign_experts
import foreign_rotary
import pytest
import torch
from foreign_kernel import Case
from torch.utils._pytree import tree_leaves

from python_inspector.format.axes import Named, by_dimensions
from python_inspector.recorder.alternatives import judgement_of
from python_inspector.taps.calls import Block
from python_inspector.taps.options import Options
from python_inspector.trace.gates import CERTAIN, Gates
from python_inspector.trace.replay import Again, Twin, aside
from python_inspector.trace.reruns import Reruns, rerun_anything

CASES = [*foreign_rotary.CASES, *foreign_attention.CASES, *foreign_experts.CASES]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def outputs(result: object, twin: Twin) -> dict[str, Named]:
    tensors = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
    return {f"out.{i}": by_dimensions(t) for i, t in enumerate(tensors)}


def contract_of(case: Case) -> tuple[Reruns, dict[str, Gates]]:
    again: Again = lambda run: run(case.function, case.args, {}, case.modules)  # noqa: E731
    seed = f"{case.name}#0"
    with aside(), torch.no_grad():
        reruns, warnings = rerun_anything(
            outputs, again, seed, lambda *_: None, runs=16, repeat=True
        )
        assert not warnings
        named = {f"{i}": by_dimensions(t) for i, t in enumerate(tree_leaves(case.args))}
        block = Block("module", named, outputs)
        for name, open_ in reruns.undecided.items():
            assert reruns.oracle is not None
            if reruns.oracle[name][0].is_floating_point():
                block.valid[name] = (~open_.mask, reruns.oracle[name][1])
        options = Options()
        judgement = judgement_of(block, again, reruns, options, seed, bugs=False)
    assert judgement is not None
    return reruns, judgement.gates


def margin(reruns: Reruns, gates: dict[str, Gates], result: object) -> float:
    """The largest statistic / limit of any output."""
    assert reruns.oracle is not None and reruns.repeated is not None
    largest = 0.0
    for name, (y, _) in outputs(result, lambda x: x).items():
        r = reruns.repeated[name][0]
        assert (y.shape, y.dtype) == (r.shape, r.dtype)
        if name in gates:
            largest = max(largest, gates[name].margin(y))
        else:
            open_ = reruns.undecided.get(name)
            right = torch.equal(y, r) if open_ is None else open_.allows(y, r)
            largest = largest if right else CERTAIN
    return largest


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_wrong_code_fails_and_right_code_passes(case: type, dtype: str) -> None:
    made = case(DTYPES[dtype])
    with torch.no_grad():
        reruns, gates = contract_of(made)
        right = margin(reruns, gates, made.kernel(*made.args))
        wrong = margin(reruns, gates, made.kernel(*made.args, wrong=True))
    assert right <= 1, f"{made.name}: the right code is {right:.3g} of its limits"
    assert wrong > 1, f"{made.name}: the wrong code is {wrong:.3g} of its limits"
