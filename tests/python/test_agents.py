"""What agents use: `plumbline mcp` through the SDK's own client, problem(), SKILL.md."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from checked import normal
from verdict_schemas import valid

from python_inspector import draw, problem
from python_inspector.cli import plumbline

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

ROOT = Path(__file__).parents[2]
SKILL = ROOT / ".agents/skills/judge-kernels/SKILL.md"
PROBLEM = """
import torch
from python_inspector import draw
def norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight
def inputs():
    print("whatever code prints")
    return draw((6, 32), seeds=2), draw((32,), seeds=2)
"""
KERNEL = """
def norm(x, weight):
    return x / ((x * x).mean(-1, keepdim=True) + {eps}).sqrt() * weight
"""


async def called(folder: Path) -> list[Any]:
    from mcp import Client, StdioServerParameters, stdio_client

    server = StdioServerParameters(
        command=sys.executable, args=["-m", "python_inspector.cli.plumbline", "mcp"],
        env=dict(os.environ) | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    names = {
        "kernel": f"{folder}/kernel.py:norm", "like": f"{folder}/problem.py:norm",
        "inputs": f"{folder}/problem.py:inputs",
    }  # fmt: skip
    said = []
    async with Client(stdio_client(server)) as client:
        tools = await client.list_tools()
        assert [tool.name for tool in tools.tools] == ["judge", "explain", "problem"]
        for eps in ("1e-5", "1e-2"):
            (folder / "kernel.py").write_text(KERNEL.format(eps=eps))
            said.append(await client.call_tool("judge", {**names, "salt": 5}))
        mark = json.loads(said[-1].content[0].text)["fingerprint"]
        said.append(await client.call_tool("explain", {"fingerprint": mark}))
        about = {"like": names["like"], "inputs": names["inputs"], "seconds": 5}
        said.append(await client.call_tool("problem", about))
        said.append(await client.call_tool("judge", {**names, "like": "nothing.py:x"}))
    return said


def test_the_tools_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(PROBLEM)
    right, wrong, explained, about, missing = anyio.run(called, tmp_path)
    assert json.loads(right.content[0].text)["status"] == "pass"
    assert json.loads(wrong.content[0].text)["status"] == "fail"  # the file as it is now
    assert "FAILS" in explained.content[0].text
    assert json.loads(about.content[0].text)["solved_by"] == []
    assert missing.is_error
    assert "there is no such file" in missing.content[0].text


def test_what_inputs_cannot_show() -> None:
    positive = problem(torch.relu, normal(4, 32).abs(), seconds=2)
    assert positive.solved_by == ("argument 0",)
    assert "solved without work by: argument 0" in str(positive)
    assert problem(torch.relu, normal(4, 32), seconds=2).solved_by == ()
    negative = problem(torch.relu, -normal(4, 32).abs(), seconds=2)
    assert (negative.verdict.status, negative.solved_by) == ("blind", ())

    def with_eps(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-12)

    assert any("add" in bug for bug in problem(with_eps, normal(4, 32), seconds=5).blind_to)
    drawn = problem(torch.tanh, draw((4, 32), seeds=2), seconds=2)
    assert drawn.to_json()["status"] == "pass"


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "relu.py").write_text("import torch\nrelu = torch.relu\nx = torch.rand(4, 32)\n")
    words = ["problem", f"{tmp_path}/relu.py:relu", "--inputs", f"{tmp_path}/relu.py:x"]
    monkeypatch.setattr("sys.argv", ["plumbline", *words, "--seconds", "1", "--json"])
    assert plumbline.main() == 1
    made = valid(json.loads(capsys.readouterr().out), "problem")
    assert made["solved_by"] == ["argument 0"]


def test_the_skill_names_what_there_is() -> None:
    text = SKILL.read_text()
    assert text.startswith("---\nname: judge-kernels\n")
    for command in re.findall(r"`plumbline (\w+)", text):
        assert command in plumbline.COMMANDS
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        code = re.sub(r"^ {3}", "", block, flags=re.MULTILINE).replace(
            "plumbline", "python_inspector"
        )
        names: dict[str, Any] = {}
        exec(compile(code.replace(', device="cuda"', ""), "SKILL.md", "exec"), names)
        assert names["norm"](torch.ones(2, 3), torch.ones(3)).shape == (2, 3)
        assert len(names["inputs"]()) == 2
