"""A run that several processes record: the same bytes as by one, and what may befall them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import ROOT
from test_cli import refused
from test_joined import checkpoints, require_same

from python_inspector.cases import processes
from python_inspector.cli import inspector as cli
from python_inspector.errors import ProcessError
from python_inspector.format import spool

pytestmark = pytest.mark.filterwarnings("ignore::python_inspector.errors.RecordWarning")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--calls 9", "--calls 9, but the run has 3 forward calls (from 0)"),
        ("--chunks 2,3 --tokens 5 --calls 2-4", "--calls 4, but the run has 4 forward calls"),
        ("--jobs 0", "--jobs 0, expected at least 1"),
        ("--jobs 2 --chained", "--chained takes one process: drop --jobs"),
        ("--jobs 2 --weights w.safetensors", "--weights takes one process: drop --jobs"),
        ("--jobs 2 --device-map auto", "--device-map takes one process: drop --jobs"),
        ("--calls 0 --chained", "--chained goes from call to call: drop --calls"),
    ],
)
def test_usage_errors(
    words: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(subprocess, "Popen", None)  # none is started
    given = ("record", "--model", "tiny:llama", "--steps", "2", "--out", str(tmp_path / "x"))
    assert expected in refused(capsys, 2, *given, *words.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["2-1", "x", ""])
def test_what_is_no_list_of_calls(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["record", "--model", "tiny:llama", "--out", "x", "--calls", text])
    assert f"{text!r} is not a list of calls like 0,2 or 1-4" in capsys.readouterr().err


# The command line.


def saved_model(folder: Path) -> Path:
    """A model of two layers, in `folder`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    built: Any = LlamaForCausalLM(config)
    built.to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("model"))


def words(model: Path, out: Path, options: str) -> list[str]:
    given = "--tokens 6 --spread 2 --no-bugs --name test/run"
    return ["record", "--model", str(model), "--out", str(out), *given.split(), *options.split()]


INTERRUPTIBLE = """
import signal, sys
from python_inspector.cli import inspector as cli
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background ignores
sys.exit(cli.main(sys.argv[1:]))
"""
IGNORING = """
import signal, sys
from python_inspector.cli import inspector as cli
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a job in the background does
sys.exit(cli.main(sys.argv[1:]))
"""


def started(
    given: Sequence[str], code: str = INTERRUPTIBLE, **variables: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *given], cwd=ROOT, env=os.environ | variables, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finished(given: Sequence[str], **variables: str) -> tuple[int, str, str]:
    """The command's exit code and what it said."""
    command = started(given, **variables)
    said, errors = command.communicate()
    return command.returncode, said, errors


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_two_processes_write_the_bytes_of_one(model: Path, tmp_path: Path) -> None:
    assert cli.main(words(model, tmp_path / "one", "--steps 1 --jobs 1")) == 0
    given = words(model, tmp_path / "deep" / "two", "--steps 1 --jobs 2")
    code, said, errors = finished(given)
    assert code == 0, errors
    assert "recording 2 forward calls in 2 processes, about " in said
    require_same(tmp_path / "deep" / "two", tmp_path / "one")
    assert names(tmp_path / "deep") == ["two"]


def test_of_chosen_calls_each_process_takes_some(model: Path, tmp_path: Path) -> None:
    for out, options in (("one", "--jobs 1"), ("two", "--jobs 2")):
        assert cli.main(words(model, tmp_path / out, f"--steps 4 --calls 0,2,4 {options}")) == 0
    require_same(tmp_path / "two", tmp_path / "one")
    assert {c["step"] for c in checkpoints(tmp_path / "two")} == {0, 2, 4}


DYING = """
import os, signal, sys
if "--beside" in sys.argv:
    {}
"""
ADVICE = "--jobs 1 records all in one process"
DEATHS = {
    "it says why": (
        r"os.write(2, b'a first line\nno luck today\n'); os._exit(7)",
        "exit code 7: no luck today; " + ADVICE,
    ),
    "it is killed": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        "signal 9: it said nothing; " + ADVICE,
    ),
}


@pytest.mark.parametrize(("by", "expected"), DEATHS.values(), ids=DEATHS)
def test_a_process_beside_it_that_dies(
    by: str, expected: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(DYING.format(by))
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    given = words(model, tmp_path / "out" / "x", "--steps 2 --jobs 2")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        assert cli.main(given) == 3
    errors = capsys.readouterr().err
    assert f"the process for the stretch 1.2:3.0 ended with {expected}" in errors
    (left,) = names(tmp_path / "out")  # what this one had finished
    assert left.startswith(".x.partial-")

    assert cli.main([*given, "--resume"]) == 0
    assert " taken over), " in capsys.readouterr().out
    assert names(tmp_path / "out") == ["x"]


def pids_beside(out: Path) -> list[int]:
    """Processes that record some of the calls of `out` and have finished some checkpoints."""
    partials = out.parent.glob(f"..{out.name}.stretch-*.partial-*")
    return [int(path.name.rpartition("-")[2]) for path in partials if has_begun(path)]


def has_begun(partial: Path) -> bool:
    """Whether some of its checkpoints are finished."""
    payloads = partial / ".payloads"
    return payloads.exists() and payloads.stat().st_size > spool.HEADER_ROOM + 2048


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def stopped() -> Iterator[list[int]]:
    """Processes that a test has stopped; they end with it, at the latest."""
    found: list[int] = []
    yield found
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def stop_beside(out: Path, count: int, stopped: list[int]) -> None:
    """Waits until all have begun, stops them there, and waits until `out` itself has begun."""

    def all_are() -> bool:
        for process in set(pids_beside(out)) - set(stopped):
            os.kill(process, signal.SIGSTOP)
            stopped.append(process)
        return len(stopped) == count

    wait_until(all_are)
    wait_until(lambda: any(map(has_begun, out.parent.glob(f".{out.name}.partial-*"))))


def status(process: int) -> dict[str, str]:
    """What the kernel says of a process; {} where there is none."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def is_gone(process: int) -> bool:
    return status(process).get("State", "Z")[0] in "ZX"


def is_signalled(process: int) -> bool:
    """Whether SIGINT waits for it to go on."""
    pending = int(status(process)["ShdPnd"], 16)
    return bool(pending >> (signal.SIGINT - 1) & 1)


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


@needs_proc
def test_ctrl_c_ends_all_processes_and_the_command_can_be_resumed(
    model: Path, tmp_path: Path, stopped: list[int]
) -> None:
    given = words(model, tmp_path / "x", "--steps 4 --jobs 3")
    command = started(given)
    stop_beside(tmp_path / "x", 2, stopped)
    command.send_signal(signal.SIGINT)
    wait_until(lambda: all(map(is_signalled, stopped)) or command.poll() is not None)
    for process in stopped:
        os.kill(process, signal.SIGCONT)
    _, errors = command.communicate()
    assert command.returncode == 130
    assert "inspector: interrupted; " in errors
    assert all(map(is_gone, stopped))
    assert not (tmp_path / "x").exists()
    left = names(tmp_path)
    assert len(left) == 3 and any(name.startswith(".x.partial-") for name in left)
    # Of the others what they have finished, or all, where one was stopped too late.
    for stretch in ("2.2-4.1", "4.1-5.0"):
        partial, whole = f"..x.stretch-{stretch}.partial-", f".x.stretch-{stretch}"
        assert sum(name.startswith(partial) or name == whole for name in left) == 1

    others = words(model, tmp_path / "x", "--steps 4 --jobs 2")  # cut elsewhere
    code, _, errors = finished([*others, "--resume"])
    assert code == 3
    assert "run.options.stretch is " in errors
    assert set(left) <= set(names(tmp_path))

    code, _, errors = finished([*given, "--resume"])
    assert code == 0, errors
    assert cli.main(words(model, tmp_path / "whole", "--steps 4 --jobs 1")) == 0
    require_same(tmp_path / "x", tmp_path / "whole")
    assert names(tmp_path) == ["whole", "x"]


@needs_proc
@pytest.mark.parametrize("code", [INTERRUPTIBLE, IGNORING])
def test_it_ends_when_the_process_that_started_it_is_killed(
    code: str, model: Path, tmp_path: Path, stopped: list[int]
) -> None:
    # So many that it is not done before it looks for its parent again.
    command = started(words(model, tmp_path / "x", "--steps 96 --jobs 2"), code)
    stop_beside(tmp_path / "x", 1, stopped)
    command.kill()
    command.communicate()
    (beside,) = stopped
    os.kill(beside, signal.SIGCONT)
    wait_until(lambda: is_gone(beside))
    left = names(tmp_path)
    (partial,) = (name for name in left if name.startswith("..x.stretch-"))
    assert partial.endswith(f".partial-{beside}")  # what was finished until then
    assert not any(name.startswith(".x.stretch-") for name in left)


def test_a_recording_that_another_command_makes_is_left_alone(
    model: Path, tmp_path: Path, stopped: list[int]
) -> None:
    given = words(model, tmp_path / "x", "--steps 16 --jobs 3")
    command = started(given)
    stop_beside(tmp_path / "x", 2, stopped)
    left = names(tmp_path)
    for options in ("--jobs 1", "--jobs 2", "--jobs 2 --resume"):
        code, _, errors = finished(words(model, tmp_path / "x", f"--steps 2 {options}"))
        assert code == 3
        assert f"{tmp_path / 'x'} is being recorded by a process that still runs: wait" in errors
        assert names(tmp_path) == left
    for process in stopped:
        os.kill(process, signal.SIGCONT)
    _, errors = command.communicate()
    assert command.returncode == 0, errors
    assert {c["step"] for c in checkpoints(tmp_path / "x")} == {*range(17)}
    assert names(tmp_path) == ["x"]


def test_the_lock_of_a_command_that_was_killed_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / ".x.lock").touch()
    with processes.alone(tmp_path / "x"):
        assert names(tmp_path) == [".x.lock"]
        with pytest.raises(ProcessError, match="still runs"), processes.alone(tmp_path / "x"):
            pass
        with processes.alone(tmp_path / "y"):
            pass
    assert names(tmp_path) == []


def test_modules_are_found_as_the_first_process_finds_them(model: Path, tmp_path: Path) -> None:
    (tmp_path / "inspect.py").write_text("raise SystemExit('of the folder it was started in')")
    code = (
        "import sys; sys.path[0] = '/none'; "
        "from plumbline.inspector.cli import inspector; inspector.main()"
    )
    given = words(model, tmp_path / "x", "--no-oracle --jobs 2 --steps 1")
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *given], cwd=tmp_path, capture_output=True, text=True
    )
    assert (tmp_path / "x" / "recording.json").exists(), done.stderr


STARTING = """
import os, subprocess, sys
class Started(Exception): pass
def start(*_, **__):
    heavy = {"torch", "transformers", "numpy"} & set(sys.modules)
    assert not heavy, heavy
    raise Started
subprocess.Popen = start
os.sched_getaffinity = lambda process: range(16)
from python_inspector.cli import inspector as cli
from python_inspector.cases import shares
shares.memory_of = lambda device: 80 << 30
shares.LEAST = shares.STARTED = 0
cli.main(["--debug", *sys.argv[1:]])
"""


def test_nothing_heavy_is_imported_before_the_others_start(model: Path, tmp_path: Path) -> None:
    given = words(model, tmp_path / "x", "--steps 4 --device cuda:0")
    done = subprocess.run([sys.executable, "-c", STARTING, *given], capture_output=True, text=True)
    assert done.stderr.strip().endswith("Started"), done.stderr
