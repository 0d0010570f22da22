"""Recordings that are made here, and what all recordings vary of each block."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness_runs import ROOT, command, harness

from python_inspector import verify
from python_inspector.cases.case import Case
from python_inspector.cases.made_cases import DTYPES, LAST_POSITION, MADE_CASES, VOCABULARY
from python_inspector.cli.inspector import main
from python_inspector.format.coverage import Row, coverage, table
from python_inspector.format.validate import validate
from python_inspector.recorder.where import Where

BLIND = 8  # the harness's exit code where nothing failed, but not every feature can be seen


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """All of them, by name."""
    root = tmp_path_factory.mktemp("made")
    for case in MADE_CASES:
        out = root / case.name
        out.parent.mkdir(exist_ok=True)
        case.record(Where(out, case.name, command="test"))
    yield {case.name: root / case.name for case in MADE_CASES}


def devices(name: str) -> str:
    """The CPU, GPUs, and the emulated one; thin rows do not ask for both of its widths."""
    kinds = r"cpu|cuda:\d+|hip:\d+|emu:" + ("64" if name.startswith("thin-") else "(?:32|64)")
    return ",".join(re.findall(rf"^({kinds}) +usable", command("devices").stdout, re.MULTILINE))


@pytest.mark.sampled
@pytest.mark.parametrize("name", [case.name for case in MADE_CASES])
def test_the_native_blocks_pass(made: dict[str, Path], name: str) -> None:
    case = next(case for case in MADE_CASES if case.name == name)
    assert validate(made[name]) == []
    mode = ["--mode", "both"] if isinstance(case, Case) and case.asked.proof.chained else []
    done = command("--fixture", str(made[name]), "--device", devices(name), "--repeat", "1", *mode)
    assert done.returncode in (0, BLIND), done.stdout


def test_thin_rows_are_filled(made: dict[str, Path]) -> None:
    grouped = (ROOT / "fixtures/border-llama32-1b").glob("*-grouped")
    rows = {(row.block, row.name): row for row in coverage([*made.values(), *grouped])}
    for block in ("softcap", "layer_norm", "conv_cache", "ssm_cache", "add_scalar", "cast"):
        batch = rows[block, "axis batch"]  # nothing is cast in float32
        assert all(batch.count[dtype] for dtype in DTYPES if (block, dtype) != ("cast", "f32"))
    for dtype in DTYPES:
        assert max(rows["rotary_table", "largest of positions"].values[dtype]) == LAST_POSITION
        assert max(rows["embedding", "rows of weight"].values[dtype]) == VOCABULARY
        assert max(rows["embedding", "largest of ids"].values[dtype]) == VOCABULARY - 1
        assert {5, 32} <= rows["decoder_layer", "axis batch"].values[dtype]
        assert "interleaved" in rows["rotary", "style"].values[dtype]
    heads = rows["matmul", "heads of a per head of b"]
    assert all({2, 3} <= heads.values[dtype] for dtype in ("f32", "bf16"))


def test_a_param_that_nothing_varies_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    folder = ROOT / "fixtures/llama-a1/decode-bf16"
    assert main(["coverage", str(folder), "--thin"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["block", "what", "f32", "bf16", "f16", "values"]
    recording = json.loads((folder / "recording.json").read_text())
    count = sum(c["block"] == "repeat_kv" for c in recording["checkpoints"])
    (line,) = [line for line in printed if line.startswith("repeat_kv") and "repeats" in line]
    assert line.split() == ["repeat_kv", "repeats", "-", f"{count}/1", "-", "only", "2"]


def test_a_row_with_many_of_each_dtype_is_not_thin() -> None:
    row = Row("softmax", "axis batch")
    for dtype in DTYPES:
        row.count[dtype] += 10
        row.values[dtype] |= {1, 2}
    assert not row.is_thin
    assert list(table([row], thin=True)) == ["block  what  f32  bf16  f16  values"]
    row.count["f16"] -= 1
    assert row.is_thin


@pytest.mark.parametrize("mapping", ["of groups", "interleaved"])
def test_a_product_with_another_head_mapping_fails(mapping: str) -> None:
    """Head h uses kv head h / groups; h modulo kv heads passed every recording before."""

    def product(i: Any, w: Any, p: Any) -> Any:
        a, b = i["a"], i["b"]
        groups = a.shape[1] // b.shape[1]
        b = b.repeat_interleave(groups, 1) if mapping == "of groups" else b.repeat(1, groups, 1, 1)
        return a @ (b.mT if p["transpose_b"] else b)

    folder = ROOT / "fixtures/border-llama32-1b/whole-f32-grouped"
    verdicts = verify(product, folder, block="matmul", harness=harness(), margins=False)
    statuses = [verdict.status for verdict in verdicts]
    assert statuses == ["pass" if mapping == "of groups" else "fail"] * 4
