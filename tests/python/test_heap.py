"""What a process does with memory that is freed: Python's collector while modules are imported, and
torch's memory on a GPU."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import weakref
from collections.abc import Iterator
from types import ModuleType

import pytest

from python_inspector.heap import lasting_imports, rarely_collect, share_device


class Holds:
    """Something that refers to something else."""

    def __init__(self, other: object) -> None:
        self.other = other


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The collector of a process that has imported nothing large; as it was afterwards."""
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    thresholds = gc.get_threshold()
    gc.unfreeze()
    gc.collect()  # what other tests left may hold the last reference to what is frozen here
    yield
    gc.unfreeze()
    gc.enable()
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("collector")
def test_what_is_imported_is_left_alone_and_garbage_is_still_collected() -> None:
    with lasting_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    frozen = gc.get_freeze_count()
    assert frozen > 0

    knot: list[object] = []
    knot.append(knot)
    del knot
    assert gc.collect() > 0
    assert gc.get_freeze_count() == frozen


@pytest.mark.usefixtures("collector")
def test_the_collector_is_back_after_an_import_that_fails() -> None:
    with pytest.raises(ImportError), lasting_imports():
        raise ImportError("no such module")
    assert gc.isenabled()


@pytest.mark.usefixtures("collector")
def test_nothing_is_kept_where_the_modules_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", ModuleType("transformers"))
    with lasting_imports():
        assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("collector")
def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with lasting_imports():
        assert not gc.isenabled()
    assert not gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("collector")
def test_garbage_is_looked_for_rarely_but_still() -> None:
    usual = (700, 10, 10)
    gc.set_threshold(*usual)
    rarely_collect()
    assert gc.get_threshold()[0] > usual[0]

    knot: set[object] = set()
    gone = weakref.ref(knot)
    knot.add(Holds(knot))
    del knot
    kept: list[list[None]] = []
    while gone() is not None and len(kept) < 100_000:
        kept.append([])
    assert usual[0] < len(kept) < 100_000


@pytest.mark.parametrize(("imported", "given"), [(False, None), (True, None), (False, "max:1")])
def test_freed_memory_of_a_gpu_is_for_other_processes(
    imported: bool, given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless somebody wants something else, or it is too late."""
    name = "PYTORCH_ALLOC_CONF"
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv(name, given or "")
    if given is None:
        monkeypatch.delenv(name)
    if imported:
        importlib.import_module("torch")
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    share_device()
    expected = given or (None if imported else "expandable_segments:True")
    assert os.environ.get(name) == expected
