"""check(backward=True): right backward kernels pass, those with a fault of a port do not."""

from __future__ import annotations

import functools
from collections.abc import Callable

import backward_attention
import backward_kernels
import backward_sums
import pytest
import torch
from backward_attention import Form
from backward_tables import Sizes, Table

from python_inspector import WrongError, prepare

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

SIZES = Sizes()
Made = Callable[[Sizes, torch.dtype], Table]
TABLES: dict[str, Made] = {
    made.__name__: made
    for made in (
        *(backward_sums.norms, backward_sums.layer_norms, backward_sums.linears),
        *(backward_sums.embeddings, backward_sums.losses),
        *(backward_kernels.silu_glus, backward_kernels.gelu_glus, backward_kernels.softmaxes),
        *(backward_kernels.rotaries, backward_kernels.dropouts, backward_kernels.convolutions),
        *(backward_kernels.scans, backward_kernels.routers),
    )
} | {
    "causal": functools.partial(backward_attention.table, form=Form()),
    "capped": functools.partial(backward_attention.table, form=Form(SIZES.cap)),
    "windowed": functools.partial(backward_attention.table, form=Form(SIZES.cap, SIZES.window)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", TABLES)
def test_right_kernels_pass_and_faults_fail(name: str, dtype: torch.dtype) -> None:
    table = TABLES[name](SIZES, dtype)
    judge = prepare(table.like, inputs=table.operands, backward=True, explain=False)
    unseen = table.unseen if dtype == torch.bfloat16 else frozenset()
    passed = set()
    for kind, kernel in (table.right | table.wrong).items():
        try:
            judge(kernel)
            passed.add(kind)
        except WrongError as error:
            assert kind in table.wrong, f"{kind}: {error}"
    assert passed == table.right.keys() | unseen


def test_the_faults_are_many() -> None:
    tables = [made(SIZES, torch.float32) for made in TABLES.values()]
    assert sum(len(table.right) for table in tables) >= 34
    assert sum(len(table.wrong) for table in tables) >= 86
