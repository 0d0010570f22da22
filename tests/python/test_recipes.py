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


def run(place: Path, command: list[str], **variables: str) -> None:
    path = f"{place / 'build/cpu/bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = {"PATH": path, "PLUMB_FIXTURES": str(FIXTURE), "PLUMB_DEVICES": "cpu"}
    environment = os.environ | given | {"PYTHONPATH": str(ROOT)} | variables
    done = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


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
    (verify,) = (step["run"] for step in jobs["shard"]["steps"] if step.get("name") == "verify")
    (merge,) = (step["run"] for step in jobs["merge"]["steps"] if step.get("name") == "merge")
    for shard in shards:
        run(place, ["bash", "-c", verify], SHARD=str(shard), SHARDS=str(len(shards)))
    shutil.copy(harness(), place / "harness")
    run(place, ["bash", "-ec", merge.replace("python ", f"{sys.executable} ")])
    assert (place / "results.jsonl").is_file()
