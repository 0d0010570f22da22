"""Verdicts for programs: one object, small, described by its schema, with a stable fingerprint."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checked import normal, wrong
from verdict_schemas import KNOWN
from verdict_schemas import valid as described

from python_inspector import Verdict, WrongError, check, draw, exit_codes
from python_inspector.api.annotations import annotation
from python_inspector.api.verdict_json import MOST, fingerprint
from python_inspector.cli import plumbline

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

ROOT = Path(__file__).parents[2]


def valid(verdict: Verdict) -> dict[str, Any]:
    made: dict[str, Any] = described(verdict.to_json(), "verdict")
    assert len(json.dumps(made)) <= MOST
    return made


def high(x: torch.Tensor) -> torch.Tensor:
    return x.tanh() * 1.01


def test_a_pass_and_a_failure() -> None:
    good = valid(check(torch.tanh, like=torch.tanh, inputs=normal(4, 32)))
    assert (good["status"], good["cases"]) == ("pass", [])
    bad = valid(wrong(high, torch.tanh, normal(4, 32)))
    assert bad["status"] == "fail"
    assert bad["worst"]["ratio"] > 1000
    assert bad["worst"]["gate"] in bad["reason"]
    assert "128 of 128 elements" in bad["mismatch"]


def test_what_is_no_number_is_a_word() -> None:
    bad = valid(wrong(lambda x: x * torch.nan, torch.tanh, normal(4, 32)))
    assert bad["status"] == "fail"


def test_many_cases_and_long_words_stay_small() -> None:
    with pytest.raises(WrongError) as raised:
        check(high, like=torch.tanh, inputs=draw((4, 32), seeds=40), explain=False)
    verdict = raised.value.verdict
    names = tuple(f"a bug with a long name, number {i} " * 20 for i in range(40))
    made = valid(replace(verdict, blind_to=names, passing_bugs=names, not_judged=names))
    assert made["status"] == "fail"


def test_the_fingerprint_is_of_the_failure_not_of_the_values() -> None:
    first, second = (wrong(high, torch.tanh, normal(4, 32, seed=s)) for s in (1, 2))
    assert first.reason != second.reason
    assert fingerprint(first) == fingerprint(second)
    other = wrong(lambda x: torch.cat([x[:3].tanh(), x[3:]]), torch.tanh, normal(4, 32))
    assert fingerprint(other) != fingerprint(first)
    assert fingerprint(replace(first, known_bug="x")) != fingerprint(first)


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    kernels, here = ROOT / "tests/python/sealed_kernels.py", __file__
    words = ["judge", f"{kernels}:without_eps", "--like", f"{kernels}:right"]
    words += ["--inputs", f"{here}:INPUTS", "--json"]
    monkeypatch.setattr("sys.argv", ["plumbline", *words])
    assert plumbline.main() == 1
    made = described(json.loads(capsys.readouterr().out), "verdict")
    assert made["status"] == "fail"


def test_github_sees_the_kernel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "k.py").write_text("import torch\n\ndef high(x):\n    return x.tanh() * 1.01\n")
    words = ["check", f"{tmp_path}/k.py:high", "--like", "torch:tanh"]
    words += ["--inputs", f"{__file__}:TANH"]
    monkeypatch.setattr("sys.argv", ["plumbline", *words])
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert plumbline.main() == 1
    marks = [line for line in capsys.readouterr().err.splitlines() if line.startswith("::")]
    assert len(marks) == 1
    assert marks[0].startswith(f"::error file={tmp_path}/k.py,line=3,title=plumbline fail::tanh#0")
    monkeypatch.setattr("sys.argv", ["plumbline", *words, "--no-annotate"])
    plumbline.main()
    assert "::error" not in capsys.readouterr().err
    assert annotation("blind", "100 %\nx", Path("a,b.py"), 2) == (
        "::warning file=a%2Cb.py,line=2,title=plumbline blind::100 %25%0Ax"
    )


def test_every_status_has_a_code_and_every_code_a_meaning() -> None:
    statuses = KNOWN["verdict.schema.json"]["properties"]["status"]["enum"]
    assert set(exit_codes.STATUSES) == set(statuses)
    assert set(exit_codes.STATUSES.values()) < set(exit_codes.MEANINGS)


INPUTS = (normal(4, 32), normal(32, seed=1))
TANH = normal(4, 32)
