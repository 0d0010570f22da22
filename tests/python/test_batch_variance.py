"""invariant() finds each kernel whose rows depend on the batch, and passes the repaired ones."""

from __future__ import annotations

import pytest
import torch
from batch_variance import ROWS, Row, odd_batches

from python_inspector import WrongError, invariant

IDS = [f"{row.report}, {row.fault}" for row in ROWS]


def batch_of(row: Row) -> dict[str, int] | None:
    """Of calls in which a size of the batch is another one, too."""
    return {"x": 0, "chosen": 0} if row.right.__name__ == "combine_in_order" else None


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_a_kernel_that_varies_with_the_batch_is_found(row: Row) -> None:
    with pytest.raises(WrongError) as raised:
        invariant(row.wrong, row.inputs(), batch=batch_of(row))
    verdict = raised.value.verdict
    gates = verdict.figures["outputs"][0]["gates"]
    assert row.shows in {gate["name"] for gate in gates if not gate["passed"]}
    assert next(gate for gate in gates if gate["name"] == "repeat")["passed"]


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_the_repaired_kernel_passes(row: Row) -> None:
    verdict = invariant(row.right, row.inputs(), batch=batch_of(row))
    assert verdict.passed
    where = "the kernel is given no torch tensor of a device with streams"
    on_host = row.inputs()[0].device.type == "cpu"
    assert verdict.not_judged == ((f"stream: {where}",) if on_host else ())


def test_two_equal_calls_prove_nothing() -> None:
    """vllm-project/vllm#49603: what a test of a kernel against itself sees."""
    x, weight = torch.randn(6, 256), torch.randn(24, 256)
    assert invariant(odd_batches, (x, weight), vary="repeat").passed
