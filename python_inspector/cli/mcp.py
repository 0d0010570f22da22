"""`plumbline mcp`: the judge for agents, as a server of the Model Context Protocol on stdio
(https://modelcontextprotocol.io). Three tools: judge, explain, problem."""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import __version__, needs
from ..api.worker_process import start_ahead
from ..errors import UsageError
from ..named_code import load

KEPT = 32
"""Verdicts that explain() knows."""
INSTRUCTIONS = (
    "Judges kernels against torch code with limits derived for each call. FILE.py:NAME names a "
    "function or module; inputs name a function without arguments, or a tuple, that gives the "
    "arguments (plumbline.draw makes hard ones). judge() runs the kernel in a process of its "
    "own. A pass that is blind to a bug proves nothing about it: ask problem() which those are."
)


class Tools:
    """What the server offers; each call sees the files as they are now."""

    def __init__(self) -> None:
        self._verdicts: OrderedDict[str, Any] = OrderedDict()

    def judge(
        self,
        kernel: str,
        like: str,
        inputs: str,
        contract: str | None = None,
        timeout: float = 60.0,
        salt: int | None = None,
    ) -> dict[str, Any]:
        """Judges a kernel (FILE.py:NAME) against torch code `like` (FILE.py:NAME) on `inputs`
        (FILE.py:NAME). Status: pass, fail, blind, nondeterministic, or error (it raised, crashed,
        hung). `fingerprint` is for explain()."""
        from ..api.checking import check
        from ..api.sealed import Sealed
        from ..api.verdict import WrongError

        reference, given = _loaded(like), _made(inputs)
        try:
            verdict = check(
                kernel, reference, given, contract=contract, salt=salt, sealed=Sealed(timeout)
            )
        except WrongError as error:
            verdict = error.verdict
        made = verdict.to_json()
        self._verdicts[made["fingerprint"]] = verdict
        while len(self._verdicts) > KEPT:
            self._verdicts.popitem(last=False)
        return made

    def explain(self, fingerprint: str) -> str:
        """All that is known of a verdict of this session, in words: every gate with its limit,
        where it fails, the rounding that its bits follow, the known bug that it is."""
        verdict = self._verdicts.get(fingerprint)
        if verdict is None:
            raise UsageError(f"no verdict of the last {KEPT} has the fingerprint {fingerprint!r}")
        lines = [str(verdict)]
        for case in verdict.cases or (verdict,):
            for output in case.figures.get("outputs", ()):
                lines += [
                    f"{case.checkpoint} {output['name']}: {gate['name']} "
                    f"{gate['statistic']:.3g}, limit {gate['limit']:.3g}"
                    f"{'' if gate['passed'] else ' FAILS'} {gate['where']}".rstrip()
                    for gate in output["gates"]
                    if gate["limit"] or not gate["passed"]
                ]
        return "\n".join(lines)

    def problem(self, like: str, inputs: str, seconds: float = 20.0) -> dict[str, Any]:
        """What inputs cannot show of `like`: bugs that would pass (blind_to), and what does no work
        and passes (solved_by). Ask it before a kernel is written."""
        from ..api.problem import problem

        return problem(_loaded(like), _made(inputs), seconds=seconds).to_json()


def add_mcp(parser: argparse.ArgumentParser) -> None:
    parser.description = "A server of the Model Context Protocol on stdio: judge, explain, problem."
    parser.set_defaults(run=serve)


def serve(_: argparse.Namespace) -> int:
    needs.require("plumbline mcp", "torch", "transformers", "mcp")
    start_ahead()
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("plumbline", instructions=INSTRUCTIONS, version=__version__)
    tools = Tools()
    for tool in (tools.judge, tools.explain, tools.problem):
        server.tool(name=tool.__name__)(_quiet(tool))
    server.run("stdio")
    return 0


def _quiet(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Whatever code prints goes to stderr: stdout is the protocol's. An agent reads errors."""
    from mcp.server.mcpserver.exceptions import ToolError

    @functools.wraps(tool)
    def call(*args: Any, **kwargs: Any) -> Any:
        with contextlib.redirect_stdout(sys.stderr):
            try:
                return tool(*args, **kwargs)
            except Exception as error:
                raise ToolError(f"{type(error).__name__}: {error}") from error

    return call


def _loaded(named: str) -> Any:
    """The object as its file has it now, with what the file imports from its folder."""
    place = named.rpartition(":")[0]
    if place.endswith(".py"):
        folder = Path(place).resolve().parent
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and Path(file).parent == folder and not name.startswith(__package__ or ""):
                del sys.modules[name]
    found = load(named)
    if isinstance(found, type):
        raise UsageError(f"{named}: is a class; name a module made of it")
    return found


def _made(named: str) -> Any:
    made = _loaded(named)
    return made() if callable(made) else made
