"""What processes do to the machine: which are a worker's, what they take, what they alter."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..format.folders import in_memory
from . import confined

LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


def marked(worker: int, others: Collection[int] = ()) -> list[int]:
    """The processes of a worker: they have its mark, and only such are between them and this one,
    which orphans among them are given to. None of `others`, workers that wait."""
    parents: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = (path / "stat").read_bytes().rpartition(b")")[2].split()
                if fields[0] != b"Z" or int(fields[17]) > 1:  # its first thread alone has ended
                    parents[int(path.name)] = int(fields[1])

    def is_its(pid: int) -> bool:
        between: list[int] = []
        while pid in parents and pid != os.getpid() and len(between) < len(parents):
            between.append(pid)
            pid = parents[pid]
        return (
            bool(between)
            and pid == os.getpid()
            and all(it not in others and (it == worker or confined.is_marked(it)) for it in between)
        )

    return [pid for pid in parents if is_its(pid)]


def signal_all(processes: Collection[int], number: int) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def standing(process: int = 0) -> dict[tuple[str, int], Any]:
    """What another process of the same user may change of one, by thread or limit; of this one by
    default."""
    found: dict[tuple[str, int], Any] = {}
    with contextlib.suppress(OSError):  # it has ended
        found |= {("limits", kind): resource.prlimit(process, kind) for kind in LIMITS}
        for path in Path(f"/proc/{process or 'self'}/task").iterdir():
            thread = int(path.name)
            with contextlib.suppress(OSError):  # this thread has
                found["processors", thread] = os.sched_getaffinity(thread)
                found["priority", thread] = os.getpriority(os.PRIO_PROCESS, thread)
                found["policy", thread] = os.sched_getscheduler(thread)
    return found


def restored(before: Mapping[tuple[str, int], Any]) -> list[str]:
    """What has changed; it is put back where this process may."""
    now = standing()
    altered = [it for it in before if it in now and now[it] != before[it]]
    for what, number in altered:
        with contextlib.suppress(OSError, ValueError):
            if what == "processors":
                os.sched_setaffinity(number, before[what, number])
            elif what == "priority":
                os.setpriority(os.PRIO_PROCESS, number, before[what, number])
            elif what == "policy":
                os.sched_setscheduler(number, before[what, number], os.sched_param(0))
            else:
                resource.setrlimit(number, before[what, number])
    return sorted({what for what, _ in altered})


def resident(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def rooms() -> dict[str, int]:
    """Bytes that are free, of memory and of the disks that a function could fill."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    line = next(line for line in lines if line.startswith("MemAvailable"))
    found = {"memory": int(line.split()[1]) * 1024}
    for path in {in_memory() or "", tempfile.gettempdir(), str(Path.home()), str(Path.cwd())} - {
        ""
    }:
        with contextlib.suppress(OSError):
            found[path] = shutil.disk_usage(path).free
    return found
