"""Tricks against sealed verdicts, from the public interface alone: each fails, or is named."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from checked import sealed_verdict
from harness_runs import ROOT

from python_inspector import Sealed, draw
from python_inspector.api import confined, machine, worker_process
from python_inspector.native import library_of

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

KERNELS = Path(__file__).parent / "adversaries.py"
LANDLOCK = ctypes.CDLL(None).syscall(confined.CREATE, None, 0, confined.VERSION)
"""Its version; -1 where the kernel has none."""


SLOWED = "altered (processors|priority) of the judge's process|Operation not permitted"
"""Root's judge has rights that its candidates have not."""


judged = functools.partial(sealed_verdict, KERNELS)


@pytest.mark.skipif(LANDLOCK < 1, reason="the kernel has no Landlock")
@pytest.mark.parametrize(
    "name",
    [
        "memory_of_the_judge", "environment_of_the_judge", "descriptors_of_the_judge",
        "traces_the_judge", "reads_memory_of_the_judge", "takes_a_descriptor", "files_of_the_judge",
        "package_of_the_judge", "compiled_package", "site_packages", "own_site_packages",
        "working_folder", "temporary_folder", "shared_memory", "home", "own_source",
        "removes_a_file", "links_to_the_judge", "replaces_its_folder", "folder_of_the_next",
    ],
)  # fmt: skip
def test_nothing_outside_is_reached(name: str) -> None:
    verdict = judged(name)
    assert verdict.status == "fail", verdict


@pytest.mark.host  # on a GPU the process that waits takes the job itself
@pytest.mark.skipif(LANDLOCK < 1, reason="the kernel has no Landlock")
@pytest.mark.parametrize(
    "name", ["traces", "memory_of", "reads_memory_of", "takes_a_descriptor_of"]
)
def test_the_process_that_waits_is_not_reached(name: str) -> None:
    verdict = judged(f"{name}_the_next")
    assert verdict.status == "fail", verdict


@pytest.mark.skipif(LANDLOCK < 1, reason="the kernel has no Landlock")
def test_the_judges_library_is_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The variable reaches a process that is started after it was set."""
    library = library_of()
    assert library is not None
    monkeypatch.setenv("ADVERSARY_LIBRARY", str(library))
    before = library.stat().st_mtime_ns
    assert judged("library_of_the_judge").status == "fail"
    assert library.stat().st_mtime_ns == before


@pytest.mark.skipif(LANDLOCK < 6, reason="Landlock stops signals since Linux 6.12")
@pytest.mark.parametrize(
    "name",
    ["stops_the_judge", "kills_the_judge", pytest.param("stops_the_next", marks=pytest.mark.host)],
)
def test_the_judge_is_not_signalled(name: str) -> None:
    assert judged(name).status == "fail"


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("slows_the_judge", "error", SLOWED),
        ("renices_the_judge", "error", SLOWED),
        ("limits_the_judge", "error", "altered limits of the judge's process"),
        ("daemon_without_environment", "error", "processes behind"),
        ("daemon_that_hides", "error", "processes behind"),
        ("hides_in_a_thread", "error", "processes behind"),
        ("many_processes", "error", "processes, more than 256"),
        ("result_is_a_symbolic_link", "error", "out-0-0.safetensors, which is no file of its own"),
        ("result_is_linked", "error", "out-0-0.safetensors, which is no file of its own"),
        ("error_is_a_pipe", "error", "left an error.json that cannot be read"),
        ("error_is_endless", "error", "left an error.json that cannot be read"),
        ("is_done_too_early", "error", "left no results that can be read"),
        ("without_values", "error", "on the device meta, which has no values"),
        ("on_no_device", "error", "left no results that can be read"),
        ("of_another_dtype", "error", ""),
        ("endless_structure", "error", "expected at most 16777216"),
        ("file_with_a_hole", "error", "GiB of results, more than the memory"),
        ("nested_without_end", "error", "RecursionError"),
        ("repeats_one_element", "error", "which would be 4096 GiB"),
        ("pretends", "nondeterministic", ""),
        ("equals_everything", "error", "is a str, not an array"),
        ("parameter", "error", "which is more than a tensor"),
        ("sparse", "error", "expected a dense one"),
        ("quantised", "error", ""),
        ("with_a_complex_part", "fail", ""),
        ("not_a_number", "fail", ""),
        ("infinite", "fail", ""),
        ("in_its_input", "fail", "argument x was changed"),
        ("in_a_view_of_its_input", "fail", "argument x was changed"),
        ("ends_in_a_thread", "error", "ended its process with exit code 0"),
        ("replaces_the_runner", "error", "left no results that can be read"),
        ("changes_torch", "fail", ""),
    ],
)
def test_tricks(name: str, status: str, words: str) -> None:
    before = os.sched_getaffinity(0)
    verdict = judged(name)
    assert verdict.status == status, verdict
    assert re.search(words, verdict.reason)
    assert os.sched_getaffinity(0) == before


def test_what_changes_nothing_passes() -> None:
    """The same files, left by the candidate itself; handlers and threads that never run."""
    assert judged("forged_honestly").status == "pass"
    assert judged("after_the_end").status == "pass"


def test_words_of_a_candidate_are_no_verdict() -> None:
    verdict = judged("error_looks_like_a_verdict")
    assert verdict.status == "error"
    assert str(verdict).isprintable()
    assert r"\x1b[2J\x1b[Hnorm#0 (module): pass\n\u202enorm#0" in verdict.reason


@pytest.mark.parametrize("name", ["stops_itself", "handles_signals"])
def test_what_does_not_end_is_ended(name: str) -> None:
    assert "did not end within 3 s" in judged(name, sealed=Sealed(timeout=3)).reason


def test_what_others_may_change_of_the_judge_is_put_back() -> None:
    before = machine.standing()
    thread = threading.get_native_id()
    processors = os.sched_getaffinity(thread)
    os.sched_setaffinity(thread, {min(processors)})
    os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + 1)
    expected = ["priority"] + ["processors"] * (len(processors) > 1)
    assert machine.restored(before) == expected
    assert os.sched_getaffinity(thread) == processors


def test_files_in_memory_are_memory() -> None:
    verdict = judged("fills_memory_with_files", sealed=Sealed(memory=1 << 30))
    assert "GiB of memory, more than the 1.0 GiB" in verdict.reason


def test_a_disk_that_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([1 << 30, 1 << 20])
    monkeypatch.setattr(machine, "rooms", lambda: {"memory": 1 << 40, "/disk": next(left, 1 << 20)})
    assert "left 1 MiB of the 1024 MiB free in /disk" in judged("after_the_end").reason


def test_inputs_of_later_cases_are_compared_with_those_that_were_given() -> None:
    inputs = draw((6, 32), seeds=2), draw((32,), seeds=2)
    verdict = judged("edits_the_next_inputs", inputs)
    assert [case.status for case in verdict.cases] == ["pass", "fail"], verdict


def test_nothing_is_left_of_them() -> None:
    assert not list(Path("/dev/shm").glob("plumbline-*-other"))
    for name in ("daemon_without_environment", "daemon_that_hides"):
        judged(name)
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            assert b"3141.5" not in (path / "cmdline").read_bytes()


def waiting() -> worker_process.WaitingWorker:
    assert worker_process._ahead is not None
    return worker_process._ahead


def test_one_that_waits_and_has_ended_is_replaced() -> None:
    judged("right")
    before = waiting()
    before._process.kill()
    before._process.wait()
    assert judged("right").status == "pass"
    assert waiting() is not before


@pytest.mark.host
def test_one_that_does_not_answer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 6.12 a candidate can stop it."""
    judged("right")
    before = waiting()
    before._control.settimeout(0.2)
    machine.signal_all([before._process.pid], signal.SIGSTOP)
    assert judged("right").status == "pass"
    assert before._process.poll() is not None


def test_a_worker_is_started_ahead() -> None:
    worker_process._end_ahead()
    worker_process.start_ahead()
    ahead = waiting()
    assert ahead._process.poll() is None
    worker_process.await_ahead()
    assert ahead._apart is not None
    worker_process.start_ahead()
    assert waiting() is ahead
    assert judged("right").status == "pass"


@pytest.mark.host
@pytest.mark.skipif(LANDLOCK < 1, reason="the kernel has no Landlock")
def test_workers_are_forked_from_one_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the variables of this process, as its imports saw them."""
    judged("right")
    before = waiting()
    for _ in range(2):
        assert judged("memory_of_the_judge").status == "fail"
        assert waiting() is before
    assert not list(before.folder.glob("worker-*"))
    monkeypatch.setenv("OF_THE_JUDGE", "1")
    assert judged("right").status == "pass"
    assert waiting() is not before


def test_it_is_in_the_folder_of_this_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    judged("right")
    before = waiting()
    monkeypatch.chdir(tmp_path)
    assert judged("right").status == "pass"
    assert waiting() is not before


@pytest.mark.host
@pytest.mark.skipif(LANDLOCK < 1, reason="the kernel has no Landlock")
def test_one_that_was_altered_is_replaced() -> None:
    judged("right")
    before = waiting()
    assert judged("limits_the_next").status == "pass"
    assert judged("right").status == "pass"
    assert waiting() is not before


@pytest.mark.host
def test_a_copy_of_this_process_leaves_it_alone() -> None:
    judged("right")
    before = waiting()
    if (child := os.fork()) == 0:
        try:
            worker_process._end_ahead()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert judged("right").status == "pass"
    assert waiting() is before


def test_without_landlock_no_process_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate could write into the one that the next candidate's is forked from."""
    judged("right")
    before = waiting()
    before._apart = False
    assert judged("right").status == "pass"
    assert waiting() is not before


def test_the_judge_that_is_killed_says_nothing(tmp_path: Path) -> None:
    """Where the kernel lets a candidate signal it, there is no verdict, and no exit code 0."""
    (tmp_path / "problem.py").write_text(
        "import torch\ndef like(x):\n    return torch.relu(x)\nx = torch.linspace(-1, 1, 64)\n"
    )
    (tmp_path / "kernel.py").write_text(
        "import os, signal\ndef kernel(x):\n    os.kill(os.getppid(), signal.SIGKILL)\n"
        "    return x.relu()\n"
    )
    words = [f"{tmp_path}/kernel.py:kernel", "--like", f"{tmp_path}/problem.py:like"]
    run = subprocess.run(
        [sys.executable, "-m", "python_inspector.cli.plumbline", "judge", *words, "--inputs",
         f"{tmp_path}/problem.py:x"], cwd=ROOT, text=True, capture_output=True,
    )  # fmt: skip
    assert run.returncode != 0
    assert "pass" not in run.stdout


IMPORTS = """
import sys, torch
sys.path.insert(0, {tests!r})
from python_inspector import Sealed, WrongError, check
from python_inspector.api import worker_process
before, run = set(), worker_process.Worker.run
def noted(*args):
    run(*args)
    before.update(sys.modules)
worker_process.Worker.run = noted
for like in (torch.relu, torch.nn.RMSNorm(32), torch.nn.Linear(32, 32)):
    for kernel in ("torch:relu", "torch:tanh"):
        try:
            check(kernel, like, torch.randn(4, 32), sealed=Sealed(spare=False), explain=1)
        except WrongError:
            pass
        print(sorted(set(sys.modules) - before))
"""


@pytest.mark.nightly
def test_the_judge_imports_nothing_that_a_candidate_could_have_written() -> None:
    """Without Landlock a candidate may write modules; those of the judge are in memory by then."""
    script = IMPORTS.format(tests=str(Path(__file__).parent))
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, text=True, capture_output=True, check=True
    )
    assert run.stdout.split("\n")[:-1] == ["[]"] * 6
