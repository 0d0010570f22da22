"""What overflows on its way in the reference: kernels have its infinity, or what is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checked import normal, wrong

from python_inspector import check
from python_inspector.format.delta import delta_of, oracle_of
from python_inspector.format.validate import validate
from python_inspector.recorder.difference import difference

torch.set_num_threads(1)

F16, F32 = torch.float16, torch.float32
INF, NAN = float("inf"), float("nan")
Kernel = Callable[[torch.Tensor], torch.Tensor]


def large_first(rows: int, dtype: torch.dtype, by: float) -> torch.Tensor:
    """[64, 12] factors of 0.7 and more, in some rows six that are larger and six that are smaller
    by that much."""
    x = normal(64, 12).abs() / 2 + 0.7
    x[:rows, :6] *= by
    x[:rows, 6:] /= by
    return x.to(dtype)


def opposites() -> torch.Tensor:
    x = normal(16, 64) * 1e37
    x[:3, :20], x[:3, 20:40] = 2e38, -2e38
    return x


def prod(x: torch.Tensor) -> torch.Tensor:
    return x.prod(-1)


CASES: dict[str, tuple[torch.Tensor, Kernel, Kernel]] = {
    "prod of one": (large_first(1, F16, 20), prod, lambda x: x.float().prod(-1).to(F16)),
    "prod of half": (large_first(32, F16, 20), prod, lambda x: x.float().prod(-1).to(F16)),
    "prod of all": (large_first(64, F16, 20), prod, lambda x: x.float().prod(-1).to(F16)),
    "prod in float32": (
        large_first(4, F32, 1e10), prod, lambda x: x.reshape(64, 2, 6).mT.reshape(64, 12).prod(-1),
    ),
    "sum in float32": (opposites(), lambda x: x.sum(-1), lambda x: x.double().sum(-1).float()),
    "mean of squares": (
        (normal(16, 64) * 150).to(F16), lambda x: x.square().mean(-1),
        lambda x: x.float().square().mean(-1).to(F16),
    ),
    "one after the other": (
        (normal(16, 64) * 50).to(F16), lambda x: x * 1000 * 0.001,
        lambda x: (x.float() * 1000 * 0.001).to(F16),
    ),
}  # fmt: skip
"""Operands, the code, and a kernel with room for what is on its way."""


@pytest.mark.host  # a GPU multiplies in float32
@pytest.mark.usefixtures("harness")
@pytest.mark.parametrize("name", CASES)
def test_what_overflows_on_its_way_need_not(name: str) -> None:
    x, like, kernel = CASES[name]
    lost = ~like(x).isfinite()
    assert lost.any() and kernel(x).isfinite().all()

    def half(x: torch.Tensor) -> torch.Tensor:
        chosen = torch.arange(lost.numel()).reshape(lost.shape) % 2 == 0
        return torch.where(chosen & lost, like(x), kernel(x))

    def instead(value: float | torch.Tensor) -> Kernel:
        """Of one element that is lost in the reference."""

        def changed(x: torch.Tensor) -> torch.Tensor:
            y = kernel(x).clone()
            y.flatten()[lost.flatten().nonzero()[0]] = value
            return y

        return changed

    for right in (like, kernel) if name == "one after the other" else (like, kernel, half):
        check(right, like=like, inputs=x)
    first = kernel(x)[lost][0]
    for bad in (NAN, -INF, 1.5 * first, first - 4 * kernel(x).abs().amax()):
        wrong(instead(bad), like, x)
    wrong(lambda x: 1.05 * kernel(x), like, x)


@pytest.mark.host
@pytest.mark.usefixtures("harness")
def test_what_is_beyond_the_range_is_infinite(tmp_path: Path) -> None:
    x = large_first(3, F16, 20)
    x[5] = 4.0
    assert prod(x).isinf().sum() == 4
    kernel = CASES["prod of one"][2]
    check(kernel, like=prod, inputs=x, keep=tmp_path / "kept")
    for folder in tmp_path.rglob("recording.json"):
        assert validate(folder.parent) == []
    wrong(lambda x: kernel(x).nan_to_num(), prod, x)  # saturates


def test_what_a_delta_says() -> None:
    r = torch.tensor([1.0, INF, INF, INF, -INF, NAN, NAN, NAN, INF, 2.0], dtype=F16)
    o = torch.tensor([1.5, INF, 60000, 70000, 3, NAN, 0, 4, 1e-60, INF], dtype=torch.float64)
    known = [1.5, INF, 60000, INF, 3, NAN, 2.0**-149, 4, 2.0**-149, INF]
    expected = torch.tensor(known, dtype=torch.float64)
    delta = delta_of(r, o)
    assert torch.equal(oracle_of(r, delta).nan_to_num(-7), expected.nan_to_num(-7))
    assert delta[[1, 3, 5]].tolist() == [0, 0, 0]  # the same, as far as r can say
    older = torch.tensor([-INF, 0.0, NAN])
    assert oracle_of(torch.tensor([INF, INF, NAN]), older).isnan().tolist() == [True, False, True]
    told = difference(r[:3], o[:3], None, "x")
    assert told.delta is not None and torch.equal(told.delta, delta[:3])
    assert told.error == INF
    hidden = difference(r[:3], o[:3], torch.tensor([True, True, False]), "x")
    assert 0 < hidden.error < 1
