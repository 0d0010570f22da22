"""The examples of how far check() reaches, as its page has them, run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "python_inspector" / "check.md"
CHAPTER = PAGE.read_text(encoding="utf-8").split("\n## How far it reaches\n")[1]
SECTIONS = CHAPTER.split("\n## ")[0].split("\n### ")


def code_of(section: str) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE))


EXAMPLES = {it.partition("\n")[0]: code_of(it) for it in SECTIONS[1:] if code_of(it)}


@pytest.mark.usefixtures("harness")
@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example_runs(title: str) -> None:
    import torch

    torch.manual_seed(3)
    names: dict[str, Any] = {"__name__": "example"}
    source = code_of(SECTIONS[0]) + EXAMPLES[title]
    exec(compile(source, str(PAGE), "exec"), names)


def test_every_section_but_the_last_has_one() -> None:
    assert len(EXAMPLES) == len(SECTIONS) - 2 == 9
