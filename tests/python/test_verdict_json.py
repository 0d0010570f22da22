"""Verdicts for programs: one object, small, described by its schema, with a stable fingerprint."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from checked import normal, wrong

from python_inspector import Verdict, WrongError, check, draw
from python_inspector.api.verdict_json import MOST, fingerprint
from python_inspector.cli import plumbline

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("harness")

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "python_inspector/data/verdict.schema.json").read_text())


def valid(verdict: Verdict) -> dict[str, Any]:
    made = verdict.to_json()
    jsonschema.validate(json.loads(json.dumps(made, allow_nan=False)), SCHEMA)
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
    made = json.loads(capsys.readouterr().out)
    jsonschema.validate(made, SCHEMA)
    assert made["status"] == "fail"


INPUTS = (normal(4, 32), normal(32, seed=1))
