"""What is done otherwise where a model is on an accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from python_inspector.format.delta import delta_of, oracle_of
from python_inspector.recorder import session
from python_inspector.recorder.outputs import _recorded_oracle

META = torch.device("meta")  # like an accelerator: it has no values on the host


def test_threads_are_fewer_only_where_nothing_is_computed_on_the_host() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with session._fewer_threads(torch.nn.Linear(2, 2, device="meta")):
            assert torch.get_num_threads() == 2  # offloaded: accelerate brings it to the host
        with session._fewer_threads(torch.nn.ReLU()):
            assert torch.get_num_threads() == 2
        with session._fewer_threads(Everywhere(("cuda", "cpu"))):
            assert torch.get_num_threads() == 2
        with session._fewer_threads(Everywhere(("cuda",))):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


class Everywhere(torch.nn.Module):
    """Has parameters on devices that this machine lacks."""

    def __init__(self, devices: tuple[str, ...]) -> None:
        super().__init__()
        self._devices = devices

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        return (SimpleNamespace(device=torch.device(name)) for name in self._devices)


def test_the_recorded_oracle_is_the_same_wherever_the_delta_lies() -> None:
    r = torch.randn(64, generator=torch.Generator().manual_seed(3)).bfloat16()
    o = r.double() * (1 + 1e-3)
    r[:4] = torch.tensor([float("inf"), float("nan"), float("inf"), 1.0])
    o[:4] = torch.tensor([float("inf"), float("nan"), 2.0, float("inf")])
    delta = delta_of(r, o)
    here = oracle_of(r, delta)

    class Elsewhere(torch.Tensor):
        device = META

    there = _recorded_oracle(r, o, delta.as_subclass(Elsewhere))
    assert torch.equal(there.view(torch.int64)[4:], here.view(torch.int64)[4:])
    assert there[:4].isnan().tolist() == here[:4].isnan().tolist() == [False, True, False, False]
    assert float(there[0]) == float(here[0]) == float("inf") and float(there[3]) == float("inf")
    assert float(there[2]) == float(here[2]) == 2
