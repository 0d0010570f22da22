"""A model's way to an accelerator: its weights stay on the host, too, until somebody writes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from python_inspector.format.delta import delta_of, oracle_of
from python_inspector.format.host_copy import HostCopy, is_on_host_too, values_on_host
from python_inspector.format.payload import tensor_bytes
from python_inspector.format.spool import BESIDE, Spool
from python_inspector.models import accelerator
from python_inspector.recorder import session
from python_inspector.recorder.outputs import _recorded_oracle

META = torch.device("meta")  # stands for an accelerator: it has no values to be fetched


def copied() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A model whose weights were copied as to an accelerator, and what they were."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.LayerNorm(4))
    before = {name: p.data for name, p in model.named_parameters()}
    accelerator._copy(list(model.parameters()), torch.device("cpu"))
    return model, before


def test_weights_are_copied_and_stay_on_the_host_too() -> None:
    model, before = copied()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.data_ptr() != before[name].data_ptr()
        values = values_on_host(parameter)
        assert values is not None and values.data_ptr() == before[name].data_ptr()
        assert HostCopy(parameter).take().data_ptr() == before[name].data_ptr()
        assert bytes(tensor_bytes(parameter)) == bytes(tensor_bytes(before[name]))


def test_a_weight_that_was_written_to_is_fetched() -> None:
    model, before = copied()
    weight = model[0].weight
    with torch.no_grad():
        weight.add_(1)
    assert values_on_host(weight) is None
    assert torch.equal(HostCopy(weight).take(), before["0.weight"] + 1)
    assert bytes(tensor_bytes(weight)) == bytes(tensor_bytes(before["0.weight"] + 1))


def test_a_host_keeps_no_second_copy() -> None:
    model = accelerator.move(torch.nn.Linear(2, 2), torch.device("cpu"))
    assert values_on_host(model.weight) is None


def test_a_large_weight_goes_to_the_file_from_the_host(tmp_path: Path) -> None:
    here = torch.arange(BESIDE // 4, dtype=torch.float32)
    there = torch.nn.Parameter(here.to(META), requires_grad=False)
    is_on_host_too(there, here)
    spool = Spool(tmp_path / "spool")
    added = spool.add(there)
    assert isinstance(added, Future)
    assert added.result().sha256 == hashlib.sha256(here.numpy().tobytes()).hexdigest()
    spool.close()


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


def test_a_device_that_cannot_start_is_no_error_yet() -> None:
    with accelerator.starting("cuda:99"):
        pass
    with accelerator.starting("cpu"):
        pass


def test_what_is_done_beside_the_start_may_fail() -> None:
    with pytest.raises(KeyError), accelerator.starting("cuda:0"):
        raise KeyError("import")


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
