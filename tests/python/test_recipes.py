"""The recipes of ci/recipes, as far as they run without their schedulers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness_runs import ROOT, harness
from range_server import served

from reports.__main__ import main

RECIPES = ROOT / "ci" / "recipes"
FIXTURE = ROOT / "fixtures" / "llama-a1" / "whole-f32"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the harness on its PATH and as a build would leave it."""
    binary = tmp_path / "build" / "cpu" / "bin" / "harness"
    binary.parent.mkdir(parents=True)
    binary.symlink_to(harness())
    return tmp_path


def run(place: Path, command: list[str], code: int = 0, **variables: str) -> str:
    path = f"{place / 'build/cpu/bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = {"PATH": path, "PLUMB_FIXTURES": str(FIXTURE), "PLUMB_DEVICES": "cpu"}
    environment = os.environ | given | {"PYTHONPATH": str(ROOT)} | variables
    done = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def recipe(name: str) -> Any:
    return yaml.safe_load((RECIPES / name).read_text())


def check_merged(place: Path, results: Path) -> None:
    files = [str(path) for path in sorted(results.glob("*.jsonl"))]
    assert len(files) == 4
    out = place / "all"
    assert main(["merge", *files, "--out", str(out), "--harness", harness()]) == 0


def test_slurm(place: Path) -> None:
    for task in ("1", "2", "3", "4"):
        run(
            place,
            ["bash", str(RECIPES / "slurm.sh")],
            SLURM_ARRAY_TASK_ID=task,
            SLURM_ARRAY_TASK_COUNT="4",
        )
    check_merged(place, place / "verify")


@pytest.mark.parametrize("at", ["path", "address"])
def test_slurm_by_layers(place: Path, at: str) -> None:
    """A requeued task has its layers already."""
    with served(ROOT / "fixtures") as (url, handler):
        name = "gemma2-a4/decode-bf16"
        recording = f"{ROOT}/fixtures/{name}" if at == "path" else f"{url}/{name}"
        for task in ("1", "2", "2", "3", "4"):
            run(
                place,
                ["bash", str(RECIPES / "slurm.sh")],
                SLURM_ARRAY_TASK_ID=task,
                SLURM_ARRAY_TASK_COUNT="4",
                RECORDING=recording,
                XDG_CACHE_HOME=str(place / "cache"),
            )
        assert bool(handler.sent) == (at == "address")
    layers = []
    for task in "1234":
        lines = map(json.loads, (place / "verify" / f"{task}.jsonl").read_text().splitlines())
        ids = [line["checkpoint"] for line in lines if line["type"] == "checkpoint"]
        found = (re.search(r"layers\.(\d+)", id) for id in ids)
        layers += sorted({int(match[1]) for match in found if match})
    assert layers == sorted(set(layers)) and len(layers) > 1, "each layer is one task's"
    check_merged(place, place / "verify")


def test_kubernetes(place: Path) -> None:
    job = recipe("kubernetes.yaml")["spec"]
    assert job["completionMode"] == "Indexed"
    (container,) = job["template"]["spec"]["containers"]
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    assert int(variables["SHARDS"]) == job["completions"] == 4
    for index in range(job["completions"]):
        run(
            place,
            container["command"],
            **variables | {"RESULTS": str(place), "JOB_COMPLETION_INDEX": str(index)},
        )
    check_merged(place, place)


def test_github(place: Path) -> None:
    workflow = recipe("github.yml")
    jobs = workflow["jobs"]
    shards = jobs["shard"]["strategy"]["matrix"]["shard"]
    assert len(shards) == workflow["env"]["SHARDS"]
    for job in jobs.values():
        assert any("sudo ci/setup" in step.get("run", "") for step in job["steps"]), "bare runner"
    for shard in shards:
        run(place, step(jobs["shard"], "verify"), SHARD=str(shard), SHARDS=str(len(shards)))
        assert (place / f"{shard}.xml").is_file()
    shutil.copy(harness(), place / "harness")
    summary = place / "screen.md"
    on_github = {"GITHUB_STEP_SUMMARY": str(summary), "GITHUB_SHA": "2" * 40, "MAIN": "main"}
    for branch in ("main", "topic"):  # the second time there is a history
        on_github["GITHUB_REF_NAME"] = branch
        summary.unlink(missing_ok=True)
        for name in ("merge", "report", "history"):
            run(place, step(jobs["merge"], name), **on_github)
    shown = summary.read_text()
    assert "## Nothing failed" in shown and "no worse" in shown
    assert len(lines_on_screen(shown)) <= SCREEN
    kept = place / ".plumbline" / "history.sqlite"
    assert len(run(place, ["plumbline", "history", "--db", str(kept), "list"]).splitlines()) == 1
    assert (place / "report.html").is_file()


def step(job: dict[str, Any], name: str) -> list[str]:
    (found,) = (step["run"] for step in job["steps"] if step.get("name") == name)
    return ["bash", "-eo", "pipefail", "-c", found]  # as GitHub calls it


SCREEN = 45


def lines_on_screen(markdown: str) -> list[str]:
    """What is seen of a summary before anything is unfolded."""
    return re.sub(r"<details>.*?</details>", "", markdown, flags=re.DOTALL).splitlines()


TESTS = """
import torch

def test_right(plumbline):
    plumbline.check(torch.tanh, like=torch.nn.Tanh(), inputs=torch.ones(4, 16).cumsum(1))

def test_wrong(plumbline):
    plumbline.check(lambda x: x.tanh() * WRONG, torch.nn.Tanh(), torch.ones(4, 16).cumsum(1))
"""


def test_the_action_judges_and_keeps_history(place: Path) -> None:
    action = yaml.safe_load((ROOT / "ci" / "action" / "action.yml").read_text())
    (judge,) = (step for step in action["runs"]["steps"] if step.get("id") == "judge")
    assert judge["run"] == '"$GITHUB_ACTION_PATH/judge"'
    summary, output = place / "summary.md", place / "output"
    given = {
        "GITHUB_ACTION_PATH": str(ROOT / "ci" / "action"), "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_OUTPUT": str(output), "GITHUB_SHA": "2" * 40, "RUNNER_TEMP": str(place / "tmp"),
        "PLUMB_PYTEST": "", "PLUMB_ARGUMENTS": "", "PLUMB_KEPT": ".plumbline",
        "PLUMB_MAIN": "main", "GITHUB_REF_NAME": "main",
    }  # fmt: skip
    assert given.keys() >= judge["env"].keys()
    assert "give the input pytest or harness" in run(
        place, ["bash", "-c", judge["run"]], 2, **given
    )
    given["PLUMB_ARGUMENTS"] = f"--device cpu --fixture '{FIXTURE}' --block rms_norm,linear"
    for _ in range(2):
        summary.unlink(missing_ok=True)
        run(place, ["bash", "-c", judge["run"]], **given)
    reports = Path(output.read_text().splitlines()[-1].removeprefix("reports="))
    assert {"harness.xml", "results.jsonl", "report.html"} <= {f.name for f in reports.iterdir()}
    assert "no worse" in summary.read_text()
    (place / "test_it.py").write_text(TESTS.replace("WRONG", "1.01"))
    given |= {"PLUMB_ARGUMENTS": "", "PLUMB_PYTEST": f"-q --rootdir '{place}' '{place}/test_it.py'"}
    summary.unlink()
    run(place, ["bash", "-c", judge["run"]], 1, **given)
    assert "2 verdicts: 1 fail, 1 pass" in summary.read_text()
    assert len(lines_on_screen(summary.read_text())) <= SCREEN
    assert (reports / "pytest.xml").is_file() and (reports / "verdicts.html").is_file()


def test_what_the_wheel_of_the_action_depends_on(place: Path) -> None:
    output = place / "output"
    for _ in range(2):
        run(place, [str(ROOT / "ci" / "action" / "install"), "--key"], GITHUB_OUTPUT=str(output))
    one, other = output.read_text().splitlines()
    assert one == other and re.fullmatch(r"key=[0-9a-f]{16}", one)


WORKFLOWS = [*RECIPES.glob("*.yml"), ROOT / "ci/action/action.yml",
             *(ROOT / ".github/workflows").glob("*.yml")]  # fmt: skip


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: str(file.relative_to(ROOT)))
def test_steps_are_what_github_takes(file: Path) -> None:
    document = yaml.safe_load(file.read_text())
    jobs = document["jobs"].values() if "jobs" in document else [document["runs"]]
    for job in jobs:
        for each in job["steps"]:
            assert ("run" in each) != ("uses" in each), each
            assert "uses" not in each or re.fullmatch(r"[\w./-]+@v\d+", each["uses"])
            assert "jobs" in document or "uses" in each or each["shell"] == "bash"
            script = re.sub(r"\$\{\{.*?\}\}", "x", each.get("run", ""))
            done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
            assert done.returncode == 0, done.stderr
