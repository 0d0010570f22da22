"""The JSON lines that the harness writes are what harness/results.schema.json says."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "harness" / "results.schema.json").read_text())
STATUSES = set(SCHEMA["$defs"]["status"]["enum"])


def closed(schema: Any) -> Any:
    """The schema with no room for members that it does not describe."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema and isinstance(schema.get("required"), list):
        out.setdefault("additionalProperties", False)
        assert set(schema["required"]) == set(schema["properties"])
    return out


def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(
        {**closed({k: v for k, v in SCHEMA.items() if k != "required"})}
    )


def harness_binary() -> str:
    built = ROOT / "build" / "cpu" / "bin" / "harness"
    found = str(built) if built.is_file() else shutil.which("harness")
    if found is None:
        pytest.skip("no harness is built: run ci/verify")
    return found


def written(out: Path, *words: str) -> list[dict[str, Any]]:
    """What the harness writes with --json."""
    binary = harness_binary()
    if not any((ROOT / "fixtures").rglob("recording.json")):
        pytest.skip("no recordings in fixtures/")
    command = [binary, *words, "--json", str(out)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert out.is_file(), run.stdout + run.stderr
    text = out.read_text(encoding="utf-8")
    assert text.endswith("\n")
    parsed = [json.loads(line, parse_constant=pytest.fail) for line in text[:-1].split("\n")]
    assert parsed[-1]["exit_code"] == run.returncode
    return parsed


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("results") / "results.jsonl"
    return written(out, "--device", "cpu", "--block", "rms_norm", "--margins")


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_every_line_is_what_the_schema_says(lines: list[dict[str, Any]]) -> None:
    check = validator()
    for line in lines:
        errors = [f"{e.json_path}: {e.message}" for e in best_errors(check, line)]
        assert not errors, errors


def test_comparisons_are_what_the_schema_says(tmp_path: Path) -> None:
    words = ("compare-devices", "--device", "cpu,oracle", "--block", "kv_cache")
    lines = written(tmp_path / "results.jsonl", *words)
    assert [line["type"] for line in lines[1:4]] == ["checkpoint", "checkpoint", "comparison"]
    for line in lines:
        errors = [f"{e.json_path}: {e.message}" for e in best_errors(validator(), line)]
        assert not errors, errors


def best_errors(
    check: jsonschema.Draft202012Validator, line: dict[str, Any]
) -> list[jsonschema.ValidationError]:
    """Errors against the one alternative that the line's type selects."""
    chosen = check.evolve(schema={**check.schema, "oneOf": [{"$ref": f"#/$defs/{line['type']}"}]})
    errors: list[jsonschema.ValidationError] = []
    for error in chosen.iter_errors(line):
        errors.extend(error.context or [error])
    return errors


def test_the_lines_are_a_run_checkpoints_and_a_summary(lines: list[dict[str, Any]]) -> None:
    kinds = [line["type"] for line in lines]
    assert kinds[0] == "run"
    assert kinds[-1] == "summary"
    assert set(kinds[1:-1]) == {"checkpoint"}
    counts = dict.fromkeys(STATUSES, 0)
    for line in lines[1:-1]:
        counts[line["status"]] += 1
    assert lines[-1]["counts"] == counts
    assert lines[-1]["checkpoints"] == len(lines) - 2


def test_a_result_says_whether_it_repeats_and_what_would_pass(lines: list[dict[str, Any]]) -> None:
    judged = [line for line in lines if line.get("status") == "pass"]
    assert {(line["determinism"], line["runs"]) for line in judged} == {("D0", 2)}
    eps = [line["margins"]["eps ten times as large"] for line in judged]
    assert min(eps) < 1 < max(eps)
    passing = ["eps ten times as large" in line["passing_bugs"] for line in judged]
    assert passing == [margin <= 1 for margin in eps]


def test_every_judged_output_has_gates_and_histograms(lines: list[dict[str, Any]]) -> None:
    judged = [line for line in lines if line.get("status") in ("pass", "fail")]
    assert judged
    for line in judged:
        for output in line["outputs"]:
            names = [gate["name"] for gate in output["gates"]]
            assert len(set(names)) == len(names)
            assert {"classes", "tensor", "element"} <= set(names), names
            assert sum(output["informative"]["octaves"]) > 0
            assert sum(output["informative"]["ulps"]) > 0


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("status", "passed"),
        ("fused", 1),
        ("seconds", "infinity"),
        ("golden_sha256", "00"),
        ("surprise", 0),
        ("reason", None),
    ],
)
def test_the_schema_refuses_wrong_lines(
    lines: list[dict[str, Any]], member: str, value: object
) -> None:
    line = copy.deepcopy(lines[1])
    line[member] = value
    assert not validator().is_valid(line)
    if member in lines[1]:
        del line[member]
        assert not validator().is_valid(line)
