"""check(sealed=Sealed(sanitize=True)): a sealed function runs once more under compute-sanitizer.

After its calls the same process launches a kernel that is wrong on purpose, under a name that
nothing of the function has seen. Without that kernel in the report nothing is concluded from it.
"""

from __future__ import annotations

import ctypes
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .worker_process import Bounds, SealedError, WaitingWorker, printable

if TYPE_CHECKING:
    from .timed import Server

PROGRAM = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck")
BROKEN = "sanitizer does not work here"
VARIABLES = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Each tensor is an allocation of its own: what is beyond its end is seen."""
SLOWER = 20.0
"""Times the seconds that the function may take otherwise."""
ENTRY = re.compile(
    r"^=+ (?!\w+ SUMMARY)(?:Error: |Warning: )?(Invalid .*|.*hazard.*|Race reported.*)$", re.I
)
PLACE = re.compile(r"^=+ {4,}at (?:0x[0-9a-f]+ in )?(.+?)(?:\+0x[0-9a-f]+.*)?$", re.I)
MOST = 3
"""Findings that a verdict names."""


@dataclass(frozen=True)
class Sanitized:
    """`findings` of the function, each once; `broken` says why the report proves nothing."""

    findings: tuple[str, ...] = ()
    broken: str = ""

    def __str__(self) -> str:
        if self.broken:
            return f"{BROKEN}: {self.broken}"
        if self.findings:
            more = len(self.findings) - MOST
            return "; ".join(self.findings[:MOST]) + (f" and {more} more" if more > 0 else "")
        return f"{' and '.join(TOOLS)} found nothing, and what is wrong on purpose"


def sanitized(job: Mapping[str, Any], give: Callable[[Path], None], bounds: Bounds) -> Sanitized:
    """Runs the calls of a job under each tool."""
    program = shutil.which(PROGRAM)
    if program is None:
        return Sanitized(broken=f"{PROGRAM} is not on PATH")
    findings: list[str] = []
    for tool in TOOLS:
        found = _of_tool(program, tool, job, give, bounds)
        if found.broken:
            return found
        findings += found.findings
    return Sanitized(tuple(findings))


def _of_tool(
    program: str, tool: str, job: Mapping[str, Any], give: Callable[[Path], None], bounds: Bounds
) -> Sanitized:
    name = f"wrong_on_purpose_{secrets.token_hex(8)}"
    with tempfile.TemporaryDirectory(prefix="plumbline-report-") as folder:
        report = Path(folder) / "report"
        launcher = [program, "--tool", tool, "--log-file", str(report)]
        worker, said = WaitingWorker(launcher, VARIABLES), ""
        try:
            give(worker.folder)
            once = {**job, "timed": False, "repeat": 1, "control": tool}
            longer = Bounds(bounds.timeout * SLOWER, bounds.memory)
            worker.run(once, longer, lambda it: it.ask(do="fire", name=name))
        except SealedError as error:  # an invalid access ends the process, too
            said = str(error)
        finally:
            worker.end()
        text = report.read_text(errors="replace") if report.is_file() else ""
    entries = entries_of(text)
    findings = [f"{tool}: {words}" for words in entries if name not in words]
    if not entries:
        why = f"{tool} did not find the kernel that is wrong on purpose"
        return Sanitized(broken=f"{why}; the function {said}" if said else why)
    return Sanitized(tuple(findings))


def entries_of(report: str) -> list[str]:
    """What it complains of, each with the kernel, once."""
    found: dict[str, None] = {}
    lines = report.splitlines()
    for i, line in enumerate(lines):
        if entry := ENTRY.match(line):
            rest = takewhile(lambda it: it.strip("= "), lines[i + 1 :])
            place = next((it[1] for it in map(PLACE.match, rest) if it), "")
            words = entry[1] if not place or place in entry[1] else f"{entry[1]} in {place}"
            found[printable(words)] = None
    return list(found)


PTX = """
.version 6.0
.target sm_50
.address_size 64
.visible .entry NAME(.param .u64 end) {
  .reg .u64 %rd<3>; .reg .u32 %r<3>;
  .shared .align 4 .u32 word;
  ld.param.u64 %rd1, [end];
  mov.u32 %r1, %tid.x;
  BODY
  ret;
}
"""
BODIES = {
    "memcheck": "cvta.to.global.u64 %rd2, %rd1; st.global.u32 [%rd2], %r1;",
    "racecheck": "st.shared.u32 [word], %r1; ld.shared.u32 %r2, [word]; "
    "cvta.to.global.u64 %rd2, %rd1; st.global.u32 [%rd2+-4], %r2;",
}
"""A write to the word after the end of an allocation; a word of shared memory that all threads
write."""


def fire(tool: str, server: Server) -> None:
    """Launches, in the function's process, a kernel that the tool has to find."""
    import torch

    question = server.question()
    if torch.cuda.is_available():
        server.answer("fired")
        torch.cuda.synchronize()
        held = torch.zeros(256, dtype=torch.int32, device="cuda")
        _launch(ctypes.CDLL("libcuda.so.1"), question["name"], tool, held.data_ptr() + 1024)
        torch.cuda.synchronize()
    else:
        server.answer("there is no GPU")


def _launch(driver: ctypes.CDLL, name: str, tool: str, end: int) -> None:
    text = PTX.replace("NAME", name).replace("BODY", BODIES[tool])
    module, kernel, given = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64(end)
    given_at = (ctypes.c_void_p * 1)(ctypes.addressof(given))
    for code in (
        driver.cuModuleLoadData(ctypes.byref(module), text.encode()),
        driver.cuModuleGetFunction(ctypes.byref(kernel), module, name.encode()),
        driver.cuLaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 0, None, given_at, None),
    ):
        if code != 0:
            raise RuntimeError(f"the kernel that is wrong on purpose: driver error {code}")
