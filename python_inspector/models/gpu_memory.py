"""An accelerator's memory, asked without torch: importing that takes seconds."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def memory_of(device: str) -> int | None:
    """Bytes that a CUDA device like `cuda:1` has; None where nobody says so."""
    index = re.fullmatch(r"cuda(?::(\d+))?", device)
    if index is None:
        return None
    try:
        with _nvml() as nvml:
            handles = _candidates(nvml, int(index[1] or 0))
            sizes = [_total(nvml, handle) for handle in handles]
    except (OSError, AttributeError, _NvmlError):
        return None
    return min(sizes) if sizes else None


class _NvmlError(Exception):
    """A call failed: no such device, or no leave to ask."""


@contextmanager
def _nvml() -> Iterator[ctypes.CDLL]:
    nvml = ctypes.CDLL(_LIBRARY)
    _require(nvml.nvmlInit_v2())
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _candidates(nvml: ctypes.CDLL, index: int) -> Sequence[ctypes.c_void_p]:
    """The device that CUDA gives this index, or all that it may be: CUDA counts the fastest first,
    the library by their places on the bus."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return _counted(nvml, str(index))
    names = [name.strip() for name in visible.split(",")]
    if index >= len(names):
        return []
    if names[index].isdigit():
        return _counted(nvml, names[index])
    return [_by_uuid(nvml, names[index])]


def _counted(nvml: ctypes.CDLL, index: str) -> list[ctypes.c_void_p]:
    count = ctypes.c_uint()
    _require(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)))
    if int(index) >= count.value:
        return []
    if os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return [_by_index(nvml, int(index))]
    return [_by_index(nvml, each) for each in range(count.value)]


def _by_index(nvml: ctypes.CDLL, index: int) -> ctypes.c_void_p:
    """_NvmlError for one that is cut into instances: CUDA would use one of those."""
    handle, mode, pending = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
    _require(nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)))
    asked = nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(mode), ctypes.byref(pending))
    if asked == _SUCCESS and mode.value:
        raise _NvmlError
    return handle


def _by_uuid(nvml: ctypes.CDLL, name: str) -> ctypes.c_void_p:
    """Of a device or an instance of one. CUDA also takes a UUID's beginning, the library does
    not."""
    handle = ctypes.c_void_p()
    _require(nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)))
    return handle


def _total(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> int:
    memory = _Memory()
    _require(nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)))
    return int(memory.total)


def _require(code: int) -> None:
    if code != _SUCCESS:
        raise _NvmlError
