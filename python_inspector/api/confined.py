"""What a process of a sealed function may not do, by the kernel: write or signal outside of its own
(Landlock, Linux 5.13; signals since 6.12), look into other processes, get rid of its mark.

Nothing here needs a right, and nothing is imported: it is entered before torch is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import struct
from collections.abc import Iterable
from pathlib import Path

CREATE, ADD, RESTRICT = 444, 445, 446
"""landlock_create_ruleset(2) and the others, on all architectures."""
VERSION, BENEATH = 1, 1
WRITE, TRUNCATE = 1 << 1, 1 << 14
CHANGES = WRITE | sum(1 << bit for bit in range(4, 13))
"""Writing, removing and making of files of every kind."""
LINKS = 1 << 13
"""Moving and linking into other folders."""
SIGNALS = 2
NO_NEW_RIGHTS, CAPABILITIES, OF_FILES = 38, 0x20080522, 0xF
"""PR_SET_NO_NEW_PRIVS; the version that capset(2) takes; reading and owning of any file."""
MARK = resource.RLIMIT_MSGQUEUE
"""A limit that nothing needs: what is lowered is inherited and cannot be raised again."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "pts", "ptmx", "dri", "kfd", "accel")
"""Of /dev, besides all that begins with "nvidia"."""
CACHES = (".triton", ".cache/torch_extensions", ".nv")
"""Of compilers, below the user's folder."""


def enter(folder: Path) -> bool:
    """This process and all that it starts write below `folder` alone; False where the kernel
    cannot. Its processes can be recognised by their mark in any case."""
    hard = resource.getrlimit(MARK)[1]
    lower = hard // 2 if hard >= 0 else 1 << 18
    resource.setrlimit(MARK, (lower, lower))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(NO_NEW_RIGHTS, 1, 0, 0, 0)
    _drop_capabilities(libc)
    version = libc.syscall(CREATE, None, 0, VERSION)
    if version < 1:
        return False
    changes = CHANGES | (LINKS if version > 1 else 0) | (TRUNCATE if version > 2 else 0)
    signals = SIGNALS if version > 5 else 0
    attributes = struct.pack("QQQ", changes, 0, signals)[: 24 if signals else 8]
    rules = libc.syscall(CREATE, attributes, len(attributes), 0)
    if rules < 0:
        return False
    for path in (folder, *_caches()):
        _allow(libc, rules, path, changes)
    for path in (*_devices(), Path(f"/proc/{os.getpid()}")):
        _allow(libc, rules, path, (WRITE | TRUNCATE) & changes)
    done: bool = libc.syscall(RESTRICT, rules, 0) == 0
    os.close(rules)
    return done


def is_marked(process: int) -> bool:
    """Whether a running process descends from one that has entered."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path(f"/proc/{process}/limits").read_text().splitlines()
        words = next(line for line in lines if line.startswith("Max msgqueue size")).split()
        own = resource.getrlimit(MARK)[1]
        return words[-2] != "unlimited" and (own < 0 or int(words[-2]) < own)
    return False


def writable() -> dict[str, str]:
    """Variables that keep what compilers write where it is allowed."""
    default = f"/tmp/torchinductor_{os.environ.get('USER') or os.getuid()}"
    inductor = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", default))
    for path in (inductor, *(Path.home() / name for name in CACHES)):
        with contextlib.suppress(OSError):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return {"TORCHINDUCTOR_CACHE_DIR": str(inductor)}


def _caches() -> Iterable[Path]:
    yield from (Path.home() / name for name in CACHES)
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR")
    yield from (Path(os.environ[name]) for name in names if os.environ.get(name))


def _devices() -> Iterable[Path]:
    yield from (it for it in Path("/dev").iterdir() if it.name.startswith(("nvidia", *DEVICES)))


def _allow(libc: ctypes.CDLL, rules: int, path: Path, changes: int) -> None:
    with contextlib.suppress(OSError):
        at = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            libc.syscall(ADD, rules, BENEATH, struct.pack("=Qi", changes, at), 0)
        finally:
            os.close(at)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Of root: it keeps those that concern files."""
    header = struct.pack("Ii", CAPABILITIES, 0)
    found = ctypes.create_string_buffer(24)
    if libc.capget(header, found) == 0:
        kept = [n & OF_FILES if i < 3 else 0 for i, n in enumerate(struct.unpack("6I", found.raw))]
        libc.capset(header, struct.pack("6I", *kept))
