"""What was not judged is said, and is no pass: outputs that were not given, chains not run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import ROOT, command, verify
from recorded import Recording
from safetensors.torch import save_file

RECORDING = "fixtures/llama-a1/whole-f32"
NORMS = ("--checkpoint", "layernorm#0$")


@pytest.fixture(scope="module")
def outputs() -> dict[str, torch.Tensor]:
    """Transformers' own, of all checkpoints."""
    recording = Recording(ROOT / RECORDING)
    return {
        f"{checkpoint['id']}/{name}": recording.raw(output["tensor"]).clone()
        for checkpoint in recording.checkpoints
        for name, output in checkpoint["outputs"].items()
    }


def judged(
    tmp_path: Path, outputs: dict[str, torch.Tensor], wanted: Callable[[str], bool], *options: str
) -> tuple[int, str]:
    """The exit code and the last line."""
    given = {name: value for name, value in outputs.items() if wanted(name)}
    save_file(given, tmp_path / "outputs.safetensors")
    done = command("judge", RECORDING, str(tmp_path / "outputs.safetensors"), *options)
    return done.returncode, done.stdout.splitlines()[-1]


def test_a_pass_that_judged_a_part_is_none(
    tmp_path: Path, outputs: dict[str, torch.Tensor]
) -> None:
    assert judged(tmp_path, outputs, lambda name: True)[0] == 0
    one = "model.norm#0/out"
    for options in ((), ("--strict",)):
        code, last = judged(tmp_path, outputs, lambda name: name == one, *options)
        assert code == 4
        count = len({name.rpartition("/")[0] for name in outputs})
        assert f"incomplete: outputs of {count - 1} of {count} checkpoints were not given" in last
    code, last = judged(tmp_path, outputs, lambda name: name == one, "--partial")
    assert code == 0 and f"; outputs of {count - 1} of {count} checkpoints were not" in last
    code, last = judged(tmp_path, outputs, lambda name: name == one, "--checkpoint", "model.norm#0")
    assert code == 0 and "not given" not in last


def test_what_an_option_selects_has_to_be_given(
    tmp_path: Path, outputs: dict[str, torch.Tensor]
) -> None:
    code, last = judged(tmp_path, outputs, lambda name: "layers.0.input_layernorm" in name, *NORMS)
    assert code == 4 and "outputs of 5 of 6 checkpoints were not given" in last
    wrong = {name: value * 2 for name, value in outputs.items()}
    code, last = judged(tmp_path, wrong, lambda name: "layers.0.input_layernorm" in name, *NORMS)
    assert code == 1 and "; outputs of 5 of 6 checkpoints were not given" in last


def test_a_chain_that_was_not_run_is_named(tmp_path: Path) -> None:
    chained = ("--fixture", "fixtures/llama-a1/decode-f32", "--device", "cpu", "--repeat", "1")
    words = "not run: the chain of 1 recording, from token ids to logits (--mode both)"
    assert words in verify(tmp_path, *chained).stdout
    assert "not run" not in verify(tmp_path, *chained, "--mode", "both").stdout
    assert "not run" not in verify(tmp_path, *chained, "--block", "sdpa").stdout
    assert "not run" not in verify(tmp_path, "--fixture", RECORDING, "--device", "cpu").stdout


def with_other_scale(folder: Path) -> Path:
    """A chained recording whose middle layer says a scale that its float64 results contradict, and
    with that a largest score which our block does not find either."""
    name = "llama-a1/decode-f32"
    shutil.copytree(ROOT / "fixtures" / name, folder / name)
    shutil.copy(ROOT / "fixtures/llama-a1/weights-f32.safetensors", folder / "llama-a1")
    path = folder / name / "recording.json"
    content: dict[str, Any] = json.loads(path.read_text())
    for checkpoint in content["checkpoints"]:
        attention = checkpoint["params"].get("attention", checkpoint["params"])
        if checkpoint["id"].startswith("model.layers.1") and "max_abs_score" in attention:
            attention["scale"] *= 2
    path.write_text(json.dumps(content))
    return folder / name


def test_a_parameter_that_is_wrong_fails_and_the_chain_is_judged(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--mode", "both", "--repeat", "1")
    done = verify(tmp_path, "--fixture", str(with_other_scale(tmp_path)), *options)
    status = {result["checkpoint"]: result["status"] for result in done.results}
    assert done.code == 1 and "bad_input" not in status.values()
    assert status["model.layers.1.self_attn:sdpa#0"] == status["model.layers.1#0"] == "fail"
    assert status["model.layers.0#0"] == status["model.layers.2#0"] == "pass"
    (chain,) = (result for result in done.results if result["checkpoint"] == "(chain)")
    assert chain["status"] == "fail"
    assert chain["chain"]["culprit"].startswith("model.layers.1.self_attn")
