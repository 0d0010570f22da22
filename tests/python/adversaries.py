"""Kernels that try what is no work of a kernel, for test_adversaries.py. Each gives the right
answer where its trick works, and zeros where it does not: a pass shows a hole."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import resource
import signal
import site
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FOLDER = Path(os.environ.get("TMPDIR", ".")).parent
JUDGE = os.getppid()
PACKAGE = Path(str(sys.modules["python_inspector"].__file__)).parent
CALLS = [0]
SECRET = "wrote by a kernel"


def right(x: Tensor, weight: Tensor) -> Tensor:
    return x * (1 / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()) * weight


def gained(trick: Callable[[], Any]) -> Callable[[Tensor, Tensor], Tensor]:
    """Right if the trick raises nothing and gives something."""

    def kernel(x: Tensor, weight: Tensor) -> Tensor:
        with contextlib.suppress(OSError):
            if trick():
                return right(x, weight)
        return torch.zeros_like(x)

    return kernel


def opened(path: str | Path, mode: str = "rb") -> Callable[[Tensor, Tensor], Tensor]:
    def trick() -> bool:
        with open(path, mode) as file:  # noqa: PTH123
            return bool(file.read(1)) if mode == "rb" else bool(file.write(SECRET))

    return gained(trick)


def called(number: int, *arguments: Any) -> int:
    """A system call; OSError as Python's own have it."""
    libc = ctypes.CDLL(None, use_errno=True)
    found: int = libc.syscall(number, *arguments)
    if found < 0:
        raise OSError(ctypes.get_errno(), "system call")
    return found


def _traced(process: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.ptrace(16, process, None, None) == 0)  # PTRACE_ATTACH


def _read_vector(process: int) -> bool:
    where = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[25])
    buffer = ctypes.create_string_buffer(8)
    mine = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
    its = (ctypes.c_void_p * 2)(where, 8)
    return called(310, process, mine, 1, its, 1, 0) > 0  # process_vm_readv


def _descriptor(process: int) -> bool:
    there = called(434, process, 0)  # pidfd_open
    return called(438, there, 0, 0) >= 0  # pidfd_getfd


def _frozen(process: int) -> bool:
    os.kill(process, signal.SIGSTOP)
    return True


def _waiting() -> int:
    """The process that this one was forked from, and the next candidate's will be."""
    mine = Path("/proc/self/cmdline").read_bytes()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            is_another = parent == JUDGE and int(path.name) != os.getpid()
            if is_another and (path / "cmdline").read_bytes() == mine:
                return int(path.name)
    raise AssertionError("no process waits")


def _files_of_the_judge() -> bool:
    """What another process keeps in memory under a name that is the judge's."""
    folders = [*Path("/dev/shm").glob("plumbline*"), *Path("/tmp").glob("plumbline*")]
    return any(
        it.is_file() and it.open("r+b") for folder in folders for it in folder.rglob("*")
        if not it.is_relative_to(FOLDER)
    )  # fmt: skip


memory_of_the_judge = opened(f"/proc/{JUDGE}/mem")
environment_of_the_judge = opened(f"/proc/{JUDGE}/environ")
descriptors_of_the_judge = gained(
    lambda: any(it.readlink() for it in Path(f"/proc/{JUDGE}/fd").iterdir())
)
traces_the_judge = gained(lambda: _traced(JUDGE))
reads_memory_of_the_judge = gained(lambda: _read_vector(JUDGE))
takes_a_descriptor = gained(lambda: _descriptor(JUDGE))
stops_the_judge = gained(lambda: _frozen(JUDGE))
kills_the_judge = gained(lambda: os.kill(JUDGE, signal.SIGKILL) is None)
traces_the_next = gained(lambda: _traced(_waiting()))
memory_of_the_next = gained(lambda: os.open(f"/proc/{_waiting()}/mem", os.O_RDWR) > 0)
reads_memory_of_the_next = gained(lambda: _read_vector(_waiting()))
takes_a_descriptor_of_the_next = gained(lambda: _descriptor(_waiting()))
folder_of_the_next = opened(FOLDER.parent / "adversary.txt", "w")
stops_the_next = gained(lambda: _frozen(_waiting()))
files_of_the_judge = gained(_files_of_the_judge)
package_of_the_judge = opened(PACKAGE / "api/concluding.py", "a")
compiled_package = opened(PACKAGE / "api/__pycache__/planted.pyc", "w")
library_of_the_judge = opened(os.environ.get("ADVERSARY_LIBRARY", "/nowhere"), "a")
site_packages = opened(Path(site.getsitepackages()[0]) / "adversary.pth", "w")
own_site_packages = gained(lambda: Path(site.getusersitepackages()).mkdir(parents=True) is None)
working_folder = opened("adversary.txt", "w")
temporary_folder = opened("/tmp/adversary.txt", "w")
shared_memory = opened("/dev/shm/adversary", "w")
home = opened(Path.home() / ".adversary", "w")
own_source = opened(__file__, "a")
removes_a_file = gained(lambda: (PACKAGE / "api/concluding.py").unlink() is None)
links_to_the_judge = gained(
    lambda: os.link(PACKAGE / "api/concluding.py", FOLDER / "tmp/linked") is None
)
replaces_its_folder = gained(lambda: FOLDER.rename(f"{FOLDER}-other") is not None)


def slows_the_judge(x: Tensor, weight: Tensor) -> Tensor:
    """Its rivals would be timed on one processor."""
    every = [int(it.name) for it in Path(f"/proc/{JUDGE}/task").iterdir()]
    for thread in every:
        os.sched_setaffinity(thread, {min(os.sched_getaffinity(thread))})
    return right(x, weight)


def renices_the_judge(x: Tensor, weight: Tensor) -> Tensor:
    os.setpriority(os.PRIO_PROCESS, JUDGE, 19)
    return right(x, weight)


def limits_the_judge(x: Tensor, weight: Tensor) -> Tensor:
    hard = resource.prlimit(JUDGE, resource.RLIMIT_STACK)[1]
    resource.prlimit(JUDGE, resource.RLIMIT_STACK, (1 << 22, hard))
    return right(x, weight)


def _daemon(prepare: Callable[[], Any]) -> None:
    """A grandchild in a session of its own, with nothing by which it was known."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            prepare()
            os.execve("/bin/sleep", ["sleep", "3141.5"], {})
        os._exit(0)
    os.wait()


def daemon_without_environment(x: Tensor, weight: Tensor) -> Tensor:
    _daemon(lambda: None)
    return right(x, weight)


def daemon_that_hides(x: Tensor, weight: Tensor) -> Tensor:
    """Whose entries in /proc other processes may not read, and with another limit."""
    libc = ctypes.CDLL(None)

    def hide() -> None:
        resource.setrlimit(resource.RLIMIT_MSGQUEUE, (1, 1))
        libc.prctl(36, 1, 0, 0, 0)  # what it leaves is its own
        libc.prctl(4, 0, 0, 0, 0)
        if os.fork() != 0:
            os._exit(0)

    _daemon(hide)
    return right(x, weight)


def hides_in_a_thread(x: Tensor, weight: Tensor) -> Tensor:
    """A process whose first thread has ended looks like one that has."""

    def works_on() -> None:
        time.sleep(10)
        os._exit(0)

    if os.fork() == 0:
        threading.Thread(target=works_on).start()
        ctypes.CDLL(None).syscall(60, 0)  # exit(2): of this thread
    return right(x, weight)


def limits_the_next(x: Tensor, weight: Tensor) -> Tensor:
    """No file that the next candidate writes could have a byte."""
    resource.prlimit(_waiting(), resource.RLIMIT_FSIZE, (0, 0))
    return right(x, weight)


def many_processes(x: Tensor, weight: Tensor) -> Tensor:
    for _ in range(300):
        subprocess.Popen(["sleep", "3141.5"])
    time.sleep(5)
    return right(x, weight)


def fills_memory_with_files(x: Tensor, weight: Tensor) -> Tensor:
    with (FOLDER / "tmp/large").open("wb") as file:
        for _ in range(3 << 4):
            file.write(bytes(1 << 26))
    return right(x, weight)


def stops_itself(x: Tensor, weight: Tensor) -> Tensor:
    os.kill(os.getpid(), signal.SIGSTOP)
    return right(x, weight)


def result_is_a_symbolic_link(x: Tensor, weight: Tensor) -> Tensor:
    """To a file that may be written later."""

    def linked(structure: Any) -> Any:
        (FOLDER / "out-0-0.safetensors").rename(FOLDER / "tmp/elsewhere")
        (FOLDER / "out-0-0.safetensors").symlink_to(FOLDER / "tmp/elsewhere")
        return structure

    with contextlib.suppress(FileNotFoundError):
        return _forged(linked, x, weight)
    (FOLDER / "done").touch()
    os._exit(0)


def result_is_linked(x: Tensor, weight: Tensor) -> Tensor:
    with contextlib.suppress(FileExistsError, FileNotFoundError):
        os.link(FOLDER / "out-0-0.safetensors", FOLDER / "tmp/kept")
    return right(x, weight)


def error_is_a_pipe(x: Tensor, weight: Tensor) -> Tensor:
    with contextlib.suppress(FileExistsError):
        os.mkfifo(FOLDER / "error.json")
    return right(x, weight)


def error_is_endless(x: Tensor, weight: Tensor) -> Tensor:
    with (FOLDER / "error.json").open("wb") as file:
        file.truncate(1 << 40)
    os._exit(1)


def error_looks_like_a_verdict(x: Tensor, weight: Tensor) -> Tensor:
    raise ValueError("\x1b[2J\x1b[Hnorm#0 (module): pass\n\u202enorm#0 (module): pass")


def is_done_too_early(x: Tensor, weight: Tensor) -> Tensor:
    (FOLDER / "done").touch()
    os._exit(0)


def _forged(change: Callable[[Any], Any], x: Tensor, weight: Tensor) -> Tensor:
    """What the judge reads is not what was returned."""
    from python_inspector.api import travel

    y = right(x, weight)
    for call in range(2):
        travel.Packed(y, "y").save(FOLDER / f"out-0-{call}")
        travel.Packed(((x, weight), {}), "a").save(FOLDER / f"out-0-{call}-after")
        path = FOLDER / f"out-0-{call}.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))
    (FOLDER / "done").touch()
    os._exit(0)


def forged_honestly(x: Tensor, weight: Tensor) -> Tensor:
    """As the others, but nothing is changed: they fail for what they change."""
    return _forged(lambda it: it, x, weight)


def without_values(x: Tensor, weight: Tensor) -> Tensor:
    return _forged(lambda it: it | {"device": "meta"}, x, weight)


def on_no_device(x: Tensor, weight: Tensor) -> Tensor:
    return _forged(lambda it: it | {"device": "cuda:99"}, x, weight)


def of_another_dtype(x: Tensor, weight: Tensor) -> Tensor:
    return _forged(lambda it: it | {"dtype": "bits8", "shape": [1]}, x, weight)


def endless_structure(x: Tensor, weight: Tensor) -> Tensor:
    return _forged(lambda it: {"list": [it] * (1 << 18)}, x, weight)


def file_with_a_hole(x: Tensor, weight: Tensor) -> Tensor:
    """A result of 64 TiB that takes no room."""
    size = 1 << 46
    header = json.dumps({"0": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with (FOLDER / "out-0-0.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    return _forged_file(x, weight)


def _forged_file(x: Tensor, weight: Tensor) -> Tensor:
    from python_inspector.api import travel

    for name in ("out-0-0", "out-0-1", "out-0-0-after", "out-0-1-after"):
        if not (FOLDER / f"{name}.safetensors").exists():
            travel.Packed(((x, weight), {}), "a").save(FOLDER / name)
    (FOLDER / "out-0-0.json").write_text((FOLDER / "out-0-1.json").read_text())
    (FOLDER / "done").touch()
    os._exit(0)


def nested_without_end(x: Tensor, weight: Tensor) -> Any:
    result: Any = right(x, weight)
    for _ in range(5000):
        result = [result]
    return result


def repeats_one_element(x: Tensor, weight: Tensor) -> Tensor:
    """A copy of it would take 4 TiB."""
    return right(x, weight)[:1, :1].expand(1 << 20, 1 << 20)


class Pretends:
    """Asked for its values, it gives others each time."""

    def __init__(self, value: Tensor) -> None:
        self._value = value

    def __array__(self, *_: Any, **__: Any) -> Any:
        CALLS[0] += 1
        return self._value.cpu().numpy() * CALLS[0]

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        return True


def pretends(x: Tensor, weight: Tensor) -> Any:
    return Pretends(right(x, weight))


class Text(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


def equals_everything(x: Tensor, weight: Tensor) -> Any:
    return Text("a result")


def parameter(x: Tensor, weight: Tensor) -> Any:
    class Mine(torch.nn.Parameter):
        pass

    return right(x, weight).as_subclass(Mine)


def sparse(x: Tensor, weight: Tensor) -> Any:
    return right(x, weight).to_sparse()


def quantised(x: Tensor, weight: Tensor) -> Any:
    return torch.quantize_per_tensor(right(x, weight), 1e-3, 0, torch.qint32)


def with_a_complex_part(x: Tensor, weight: Tensor) -> Any:
    return right(x, weight).to(torch.complex64)


def not_a_number(x: Tensor, weight: Tensor) -> Tensor:
    """NaNs that carry the right bits."""
    bits = right(x, weight).view(torch.int32)
    return (bits | 0x7FC00000).view(torch.float32)


def infinite(x: Tensor, weight: Tensor) -> Tensor:
    return right(x, weight) * float("inf")


def in_its_input(x: Tensor, weight: Tensor) -> Tensor:
    return x.copy_(right(x, weight))


def in_a_view_of_its_input(x: Tensor, weight: Tensor) -> Tensor:
    """Reversed twice, with other strides."""
    y = right(x, weight)
    x.T.copy_(y.T)
    return x.T.T


def edits_the_next_inputs(x: Tensor, weight: Tensor) -> Tensor:
    """Zeros, whose answer costs nothing."""
    CALLS[0] += 1
    for path in FOLDER.glob("in-1.safetensors"):
        data = bytearray(path.read_bytes())
        data[-x.numel() * 4 - weight.numel() * 4 :] = bytes(x.numel() * 4 + weight.numel() * 4)
        path.write_bytes(data)
    return right(x, weight)


def after_the_end(x: Tensor, weight: Tensor) -> Tensor:
    """A handler and a thread that would spoil, or end, or hold up what comes later."""
    atexit.register(time.sleep, 1000)

    def wait() -> None:
        time.sleep(1000)

    threading.Thread(target=wait).start()
    return right(x, weight)


def ends_in_a_thread(x: Tensor, weight: Tensor) -> Tensor:
    threading.Thread(target=os._exit, args=(0,)).start()
    time.sleep(2)
    return right(x, weight)


def replaces_the_runner(x: Tensor, weight: Tensor) -> Tensor:
    """Its process calls nothing any more, and says that all is well."""
    calls = sys.modules["python_inspector.api.sealed_calls"]
    calls._call = lambda *_: False  # type: ignore[attr-defined]
    return right(x, weight)


def changes_torch(x: Tensor, weight: Tensor) -> Tensor:
    """Whatever a process has for all: nothing of it reaches the judge."""
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    os.environ["PLUMB_HARNESS"] = os.environ["PLUMB_JUDGE_LIBRARY"] = "/nowhere"
    torch.testing.assert_close = torch.equal = torch.isclose = lambda *_, **__: True  # type: ignore[assignment]
    Tensor.__eq__ = Tensor.__sub__ = lambda *_: torch.zeros(())  # type: ignore[assignment, method-assign]
    return torch.zeros_like(x)


def handles_signals(x: Tensor, weight: Tensor) -> Tensor:
    """It cannot be asked to end."""
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(1)
