"""When a worker ends by itself: it is not confined, or its judge is no more."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from checked import sealed_verdict
from harness_runs import ROOT

from python_inspector.api import confined, lifeline, machine, worker_process

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")
KERNELS = Path(__file__).parent / "sealed_kernels.py"
TIME = 60.0
"""Seconds that nothing here takes; more is a failure."""


# --- Not confined

STAND_IN = """
import os, sys
if "python_inspector.api.sealed_worker" in sys.orig_argv:
    import ctypes
    from types import SimpleNamespace
    from python_inspector.api import confined
    first, library = os.getpid(), ctypes.CDLL(None, use_errno=True)
    class Without:  # what is forked from the first process has no Landlock
        prctl, capget, capset = library.prctl, library.capget, library.capset
        def syscall(self, number, *rest):
            if number == {number} and os.getpid() != first:
                return -1
            if number == confined.CREATE and rest[0]:
                return os.open("/dev/null", os.O_RDONLY)
            return 7 if number == confined.CREATE else 0
    confined.ctypes = SimpleNamespace(
        CDLL=lambda *rest, **named: Without(), create_string_buffer=ctypes.create_string_buffer
    )
"""


@pytest.fixture
def alone() -> Iterator[None]:
    """No process waits, before and afterwards."""
    worker_process._end_ahead()
    yield
    worker_process._end_ahead()


@pytest.mark.host
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("number", [confined.CREATE, confined.RESTRICT])
def test_a_forked_process_that_is_not_confined_calls_nothing(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(STAND_IN.format(number=number))
    monkeypatch.syspath_prepend(str(tmp_path))
    verdict = sealed_verdict(KERNELS, "right")
    assert verdict.status == "error"
    assert "ended its process with exit code 1 before its calls had ended" in verdict.reason
    (tmp_path / "sitecustomize.py").write_text(STAND_IN.format(number=0))
    worker_process._end_ahead()
    assert sealed_verdict(KERNELS, "right").status == "pass", "the stand-in alone ends nothing"


# --- Its judge has ended

JUDGE = """
import sys, torch
from python_inspector import Sealed, check
from python_inspector.api import worker_process
from python_inspector.format import scratch
scratch.in_memory = lambda: "{folder}"  # it is not removed
if {waits}:
    worker_process.WaitingWorker.forked = lambda self: self
check("{kernel}:kernel", torch.relu, torch.ones(4), sealed=Sealed(timeout=600))
"""
KERNEL = """
import ctypes, os
def kernel(x):
    name = "{name}"
    if os.fork() == 0:
        name += "-child"
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)  # PR_SET_NAME
    ctypes.PyDLL(None).pause()  # no other thread runs Python meanwhile
"""


def named(name: str) -> list[int]:
    found = []
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (path / "comm").read_text().startswith(name) and machine.resident(int(path.name)):
                found.append(int(path.name))
    return found


def until(count: int, name: str) -> list[int]:
    begin = time.monotonic()
    while len(found := named(name)) != count and time.monotonic() - begin < TIME:
        time.sleep(0.05)
    return found


@pytest.mark.host
@pytest.mark.parametrize("waits", [False, True])
def test_calls_end_with_the_judge(waits: bool, tmp_path: Path) -> None:
    """Killed, it cannot tell them."""
    name = f"w{os.getpid()}-{int(waits)}"
    (tmp_path / "kernel.py").write_text(KERNEL.format(name=name))
    script = JUDGE.format(waits=waits, kernel=tmp_path / "kernel.py", folder=tmp_path)
    judge = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT)
    try:
        running = until(2, name)
        assert len(running) == 2
        judge.kill()
        judge.wait()
        assert until(0, name) == []
    finally:
        judge.kill()
        machine.signal_all(named(name), 9)


@pytest.mark.usefixtures("alone")
def test_workers_outlive_the_thread_that_started_them() -> None:
    thread = threading.Thread(target=sealed_verdict, args=(KERNELS, "right"))
    thread.start()
    thread.join()
    before = worker_process._ahead
    assert before is not None and before._process.poll() is None
    assert sealed_verdict(KERNELS, "right").status == "pass"


def test_a_copy_of_the_judge_does_not_keep_its_workers() -> None:
    """It has no end of a lifeline."""
    mine, worker = lifeline.of_a_worker()
    if (child := os.fork()) == 0:
        os._exit(int(mine.fileno() >= 0))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    mine.close()
    worker.close()


def test_a_worker_whose_judge_has_ended_by_then_ends() -> None:
    judge, worker = lifeline.of_a_worker()
    judge.close()
    if (child := os.fork()) == 0:
        os.setsid()
        lifeline.end_with(worker.fileno())
        os._exit(0)
    worker.close()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (1, -9)
