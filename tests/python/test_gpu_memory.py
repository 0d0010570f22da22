"""An accelerator's memory as its library says it, here one that this machine need not have."""
# ruff: noqa: N802  (the library names them so)

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from python_inspector.described import DESCRIBED
from python_inspector.models import gpu_memory
from python_inspector.models.gpu_memory import memory_of
from python_inspector.taps import ARCHITECTURES

GIGABYTES = {"GPU-a": 80, "GPU-b": 24, "MIG-c": 10}
"""Of two devices, and of an instance of one."""


class Nvml:
    """Answers as the library does; a handle is a number, from 1."""

    def __init__(self, *, count: int = 2, refused: int = 0, cut: bool = False) -> None:
        self.count, self.refused, self.cut = count, refused, cut
        self.open = 0

    def nvmlInit_v2(self) -> int:
        self.open += not self.refused
        return self.refused

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = self.count
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return 0 if index.value < self.count else 2

    def nvmlDeviceGetHandleByUUID(self, name: bytes, handle: Any) -> int:
        if name.decode() not in GIGABYTES:
            return 6
        handle._obj.value = list(GIGABYTES).index(name.decode()) + 1
        return 0

    def nvmlDeviceGetMigMode(self, handle: Any, mode: Any, pending: Any) -> int:
        mode._obj.value = self.cut
        return 0 if self.cut else 3  # not supported

    def nvmlDeviceGetMemoryInfo(self, handle: ctypes.c_void_p, memory: Any) -> int:
        assert handle.value is not None
        memory._obj.total = list(GIGABYTES.values())[handle.value - 1] << 30
        memory._obj.free = 1
        return 0


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    library = Nvml()
    mine = SimpleNamespace(**(vars(ctypes) | {"CDLL": lambda name: library}))
    monkeypatch.setattr(gpu_memory, "ctypes", mine)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    return library


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [
        ("cuda:0", None, 80),
        ("cuda", None, 80),
        ("cuda:1", None, 24),
        ("cuda:2", None, None),
        ("cuda:0", "1", 24),
        ("cuda:0", "1,0", 24),
        ("cuda:1", "1, 0", 80),
        ("cuda:1", "0", None),
        ("cuda:0", "", None),
        ("cuda:0", "-1", None),
        ("cuda:0", "GPU-b", 24),
        ("cuda:1", "GPU-b,MIG-c", 10),
        ("cuda:0", "GPU-", None),
        ("cpu", None, None),
        ("mps", None, None),
        ("cuda:x", None, None),
    ],
)
def test_the_memory_of_the_device_that_is_meant(
    device: str, visible: str | None, expected: int | None, nvml: Nvml,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert memory_of(device) == (None if expected is None else expected << 30)
    assert nvml.open == 0


@pytest.mark.usefixtures("nvml")
def test_where_cuda_may_mean_any_of_them_the_smallest_counts() -> None:
    assert memory_of("cuda:0") == 24 << 30


def test_nobody_says_what_an_instance_of_a_device_that_is_cut_has(nvml: Nvml) -> None:
    nvml.cut = True
    assert memory_of("cuda:0") is None
    assert nvml.open == 0


def test_a_library_that_gives_no_answer(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.refused = 9
    assert memory_of("cuda:0") is None

    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(gpu_memory.ctypes, "CDLL", missing)
    assert memory_of("cuda:0") is None


def test_the_described_architectures_are_those_with_taps() -> None:
    assert list(DESCRIBED) == list(ARCHITECTURES)
