"""Operations that torch calls on a GPU alone, as the rounded run computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch._ops import OpOverload

from python_inspector.trace import rounded
from python_inspector.trace.attention_model import is_attention
from python_inspector.trace.replay import run_rounded
from python_inspector.trace.simulation import Normals, Simulation
from python_inspector.trace.stored import stored_dtypes

aten = torch.ops.aten


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dtypes of results are those of tensors without values: no kernel of the host is asked."""

    def dtypes(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return stored_dtypes(func, *torch.utils._pytree.tree_map(_without_values, (args, kwargs)))

    monkeypatch.setattr(rounded, "stored_dtypes", dtypes)


def _without_values(value: Any) -> Any:
    return value.to("meta") if isinstance(value, torch.Tensor) else value


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).half()


def run(func: OpOverload, *args: Any, runs: int = 5) -> Any:
    return run_rounded(Simulation(runs, Normals("test")))(func, args, {}).result


@pytest.mark.usefixtures("gpu")
def test_softmax_of_float16_into_float32_is_rounded_once() -> None:
    x = randn(4, 33)
    for func, of in (
        (aten._softmax.default, torch.softmax),
        (aten._log_softmax.default, torch.log_softmax),
    ):
        m = run(func, x, -1, True)
        assert m.dtype == torch.float32
        assert torch.equal(m, of(x.double(), -1).float())


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("_scaled_dot_product_flash_attention", ()),
        ("_scaled_dot_product_efficient_attention", (None, True)),
        ("_scaled_dot_product_cudnn_attention", (None, True)),
    ],
)
def test_attention_has_every_result_of_its_schema(name: str, options: tuple[Any, ...]) -> None:
    func = getattr(aten, name).default
    q, k, v = (randn(1, 2, 8, 16, seed=seed) for seed in range(3))
    results = run(func, q, k, v, *options)
    returns = func._schema.returns
    assert is_attention(name)
    assert len(results) == len(returns)
    for result, named in zip(results, returns, strict=True):
        assert isinstance(result, torch.Tensor) == isinstance(named.type, torch.TensorType)
    host = run(aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, v)
    assert len(host) == 2
    assert torch.equal(results[0], host[0])
