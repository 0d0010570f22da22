"""check() and its neighbours need torch alone, and import nothing else that is large."""

from __future__ import annotations

import subprocess
import sys

import pytest
from harness_runs import ROOT

pytestmark = pytest.mark.usefixtures("harness")

WITHOUT = """
import sys
for name in ("transformers", "jsonschema", "tqdm", "accelerate", "hypothesis"):
    sys.modules[name] = None  # an import of it fails
"""
JUDGE = """
import torch
from python_inspector import WrongError, check, draw, invariant, prepare
like = torch.nn.RMSNorm(64, eps=1e-5)
torch.nn.init.uniform_(like.weight)
x = torch.randn(20, 64)
def kernel(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
def right(x):
    return kernel(x, like.weight, 1e-5)
try:
    check(lambda x: kernel(x, like.weight, 1e-2), like, x, keep=sys.argv[1])
except WrongError as wrong:
    assert "where" in str(wrong)
else:
    raise AssertionError
words = [
    check(right, like, x, hard=True, relations=["batch"]).status,
    check(right, like, draw(shape=("B", 64), B=(1, 9))).status,
    check("torch:tanh", torch.tanh, x, sealed=True).status,
    prepare(like, x)(right).status,
    invariant(right, x).passed,
]
print(words)
"""
LARGE = """
print([name for name in ("transformers", "torch._dynamo", "sympy") if sys.modules.get(name)])
"""


def ran(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_but_torch_is_needed(tmp_path: object) -> None:
    said = ran(WITHOUT + JUDGE, f"{tmp_path}/kept")
    assert said.splitlines()[-1] == "['pass', 'pass', 'pass', 'pass', True]"


def test_nothing_large_is_imported() -> None:
    """transformers takes four seconds, dynamo two; a small check takes milliseconds."""
    script = "import sys, torch\nfrom python_inspector import check\n"
    script += "check(torch.relu, torch.relu, torch.randn(4, 32))\n"
    assert ran(script + LARGE).splitlines()[-1] == "[]"
