"""ci/limits.py: no constant of the judge gets looser unseen."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "ci" / "limits.py"

SOURCE = """struct LimitConstants {
  double c_f32 = 4;  // a comment = 5;
  double floor = 0x1p-10;
  int64_t least = 64;
};
"""


def evidence(panel: int = 10, worst: float = 0.5, date: str = "2020-01-02T00:00:00Z") -> Any:
    return {"panel": panel, "worst": worst, "at": "cpu f32 a b#0", "devices": ["cpu"], "date": date}


LIMITS: Any = {
    "commands": ["harness"],
    "contracts": {
        "f32": {
            "dtypes": ["f32"],
            "constants": {
                "c_f32": {"value": 4, "looser": "larger", "gates": ["tensor", "element"]},
                "floor": {"value": 2**-10, "looser": "larger", "gates": ["element"]},
                "least": {"value": 64, "looser": "smaller", "gates": ["tensor"]},
            },
            "evidence": {"tensor": evidence(), "element": evidence()},
        }
    },
}


class Tree:
    """A repository with one commit: the file and the source as above."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.limits = copy.deepcopy(LIMITS)
        self.entry = self.limits["contracts"]["f32"]
        (root / "harness" / "judge").mkdir(parents=True)
        (root / "ci").mkdir()
        self.write(SOURCE)
        for command in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-q", "-m", "x")):
            identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
            subprocess.run(["git", "-C", str(root), *identity, *command], check=True)

    def write(self, source: str) -> None:
        (self.root / "harness" / "judge" / "limits.h").write_text(source)
        (self.root / "ci" / "limits.json").write_text(json.dumps(self.limits))

    def set(self, name: str, value: float) -> None:
        """A number, in source and file."""
        self.entry["constants"][name]["value"] = value
        old = {"c_f32": "= 4", "floor": "= 0x1p-10", "least": "= 64"}[name]
        self.write(SOURCE.replace(f"{name} {old}", f"{name} = {value}"))

    def check(self, *arguments: str) -> tuple[int, str]:
        command = [sys.executable, str(SCRIPT), "--root", str(self.root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_the_projects_own_file_is_that_of_the_source() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_unchanged_passes(tree: Tree) -> None:
    code, text = tree.check()
    assert code == 0
    assert text.startswith("3 constants as in harness/judge/limits.h")


def test_source_and_file_must_be_one(tree: Tree) -> None:
    tree.write(SOURCE.replace("c_f32 = 4", "c_f32 = 3"))
    assert "f32: c_f32 is 4, in harness/judge/limits.h it is 3" in tree.check()[1]
    tree.write(SOURCE.replace("int64_t least", "int64_t other"))
    code, text = tree.check()
    assert code == 1
    assert "f32: least is no constant" in text
    assert "other of harness/judge/limits.h is missing" in text
    tree.write(SOURCE.replace("double c_f32 = 4;", "double c_f32 = 2 + 2;"))
    code, text = tree.check()
    assert code == 3
    assert "cannot read 'double c_f32 = 2 + 2;'" in text


@pytest.mark.parametrize(("name", "value"), [("c_f32", 5), ("floor", 0.5), ("least", 32)])
def test_a_looser_number_needs_new_evidence(tree: Tree, name: str, value: float) -> None:
    tree.set(name, value)
    code, text = tree.check()
    assert code == 1
    old = LIMITS["contracts"]["f32"]["constants"][name]["value"]
    assert f"f32: {name} is {value:g}, was {old:g}: looser" in text
    assert "its evidence is still that of 2020-01-02" in text
    assert "measure again: harness" in text

    fewer = evidence(panel=9, date="2020-01-03T00:00:00Z")
    tree.entry["evidence"] = {"tensor": fewer, "element": fewer}
    tree.set(name, value)
    assert "it rests on 9 verdicts, before on 10" in tree.check()[1]

    newer = evidence(panel=10, date="2020-01-03T00:00:00Z")
    tree.entry["evidence"] = {"tensor": newer, "element": newer}
    tree.set(name, value)
    assert tree.check()[0] == 0


@pytest.mark.parametrize(("name", "value"), [("c_f32", 3), ("floor", 2.0**-11), ("least", 128)])
def test_a_tighter_number_needs_none(tree: Tree, name: str, value: float) -> None:
    tree.set(name, value)
    assert tree.check()[0] == 0


def test_every_gate_of_a_looser_number_needs_it(tree: Tree) -> None:
    tree.entry["evidence"]["tensor"] = evidence(date="2020-01-03T00:00:00Z")
    tree.set("c_f32", 5)
    code, text = tree.check()
    assert code == 1
    assert "for the gate element" in text
    assert "for the gate tensor" not in text


def test_a_direction_or_gates_that_change_are_no_way_round(tree: Tree) -> None:
    tree.entry["constants"]["c_f32"] |= {"looser": "smaller", "gates": ["other"]}
    tree.entry["evidence"]["other"] = evidence(date="2020-01-03T00:00:00Z")
    tree.set("c_f32", 5)
    text = tree.check()[1]
    assert "looser was larger, is smaller" in text
    assert "for the gate tensor its evidence is still" in text
    assert "for the gate other it names other gates than before" in text


def test_evidence_must_be_there_and_for_it(tree: Tree) -> None:
    tree.entry["evidence"]["tensor"] = evidence(worst=1.25)
    del tree.entry["evidence"]["element"]
    tree.set("c_f32", 4)
    text = tree.check()[1]
    assert "tensor: correct code is at 1.25 of the limit (cpu f32 a b#0), in 10 verdicts" in text
    assert "f32: c_f32: no evidence of the gate element" in text


def result(statistic: float, dtype: str = "f32", status: str = "pass") -> str:
    gates = [
        {"name": "bits", "statistic": 0, "limit": 0},
        {"name": "tensor", "statistic": statistic, "limit": 2.0},
        {"name": "element", "statistic": 1, "limit": 4.0},
    ]
    line = {"type": "checkpoint", "dtype": dtype, "status": status, "device": "cpu"}
    line |= {"recording": "r", "checkpoint": f"c#{statistic:g}", "outputs": [{"gates": gates}]}
    return json.dumps(line)


def test_evidence_is_measured(tree: Tree, tmp_path: Path) -> None:
    run = {"type": "run", "command": "harness --json x", "started": "2020-01-03T00:00:00Z"}
    lines = [json.dumps(run), result(1), result(1.5), result(1, dtype="bf16")]
    results = tmp_path / "x"
    results.write_text("\n".join([*lines, result(9, status="blind")]))
    tree.write(SOURCE.replace("c_f32 = 4", "c_f32 = 5"))
    code, text = tree.check("--measure", str(results))
    assert code == 1
    assert "rests on 2 verdicts, before on 10" in text
    written = json.loads((tree.root / "ci" / "limits.json").read_text())
    assert written["commands"] == ["harness --json x"]
    entry = written["contracts"]["f32"]
    assert entry["constants"]["c_f32"]["value"] == 5
    tensor = evidence(2, 0.75, "2020-01-03T00:00:00Z") | {"at": "cpu f32 r c#1.5"}
    assert entry["evidence"]["tensor"] == tensor
    assert entry["evidence"]["element"]["worst"] == 0.25


def test_results_without_a_gate_are_named(tree: Tree, tmp_path: Path) -> None:
    results = tmp_path / "x"
    results.write_text(result(1, dtype="bf16"))
    code, text = tree.check("--measure", str(results))
    assert code == 3
    assert "no verdict of f32 has the gate" in text
