"""The inspector command: recordings end to end, messages and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from python_inspector import tiny
from python_inspector.cases import run
from python_inspector.cli.inspector import main
from python_inspector.format.validate import validate
from python_inspector.recorder.where import Where
from python_inspector.taps.options import Options, Proof, What

CORPUS = Path(__file__).parents[1] / "data" / "recordings"
RECORD = ("record", "--model", "tiny:llama", "--layers", "0", "--blocks", "rms_norm,linear")


def record(out: Path, *options: str) -> dict[str, Any]:
    assert main([*RECORD, "--out", str(out), *options]) == 0
    assert validate(out) == []
    result: dict[str, Any] = json.loads((out / "recording.json").read_text())
    return result


def refused(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    """Runs a command that must fail with this code and one line; the line."""
    assert main(words) == code
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("inspector: ")
    return lines[0]


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys; from python_inspector.cli.inspector import build_parser; build_parser(); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_recording_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "llama" / "decode-bf16"
    recording = record(
        out, "--dtype", "bf16", "--tokens", "6", "--batch", "2", "--steps", "2", "--seed", "3",
        "--effort", "fast",
    )  # fmt: skip
    printed = capsys.readouterr().out
    assert "3 forward calls, about" in printed
    assert f"{len(recording['checkpoints'])} checkpoints" in printed
    assert recording["name"] == "llama/decode-bf16"
    provenance = recording["provenance"]
    assert provenance["run"] == {
        "mode": "decode", "batch": 2, "tokens": 6, "steps": 2,
        "chunks": None, "left_pad": None, "cache": "dynamic", "spread": 4,
    }  # fmt: skip
    assert provenance["model"]["source"] == "tiny:llama-a1"
    assert provenance["model"]["seed"] == 3
    assert provenance["dtype"] == "bf16" and provenance["attention"] == "eager"
    assert provenance["command"].startswith("inspector record --model tiny:llama")
    assert {c["block"] for c in recording["checkpoints"]} == {"rms_norm", "linear"}
    assert {c["step"] for c in recording["checkpoints"]} == {0, 1, 2}
    assert "layers.1" not in json.dumps([c["id"] for c in recording["checkpoints"]])

    assert main(["validate", str(tmp_path)]) == 0
    assert "1 recordings, 0 bad" in capsys.readouterr().out
    assert main(["show", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "tiny:llama-a1" in shown and "rms_norm" in shown and "decode, batch 2" in shown
    assert main(["show", str(out), "--checkpoint", r"input_layernorm#0$"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("model.layers.0.input_layernorm#0  (rms_norm, step 0)")
    assert "param   eps = 1e-05" in shown and "[batch 2, token 6, channel 32]" in shown


def test_rows_of_token_ids_are_padded(tmp_path: Path) -> None:
    recording = record(tmp_path / "r", "--token-ids", "5,6,7", "--token-ids", "8")
    assert recording["provenance"]["run"]["left_pad"] == [0, 2]
    assert recording["provenance"]["run"]["mode"] == "padded"


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        (("--chunks", "2,3"), "chunked"),
        (("--left-pad", "2,0", "--steps", "1"), "padded-decode"),
        (("--cache", "dynamic", "--logits-to-keep", "1"), "decode"),
    ],
)
def test_modes(tmp_path: Path, options: tuple[str, ...], mode: str) -> None:
    assert record(tmp_path / "r", *options)["provenance"]["run"]["mode"] == mode


def test_a_local_path_records_the_same_as_the_tiny_model(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    tiny.build("llama").save_pretrained(saved)  # type: ignore[operator]
    first = record(tmp_path / "a", "--token-ids", "4,5,6")
    words = ("--model", str(saved), "--copy-weights", "--token-ids", "4,5,6")
    second = record(tmp_path / "b", *words)
    assert second["provenance"]["model"]["source"] == str(saved)
    assert second["provenance"]["model"]["seed"] is None
    for key in ("checkpoints", "tensors", "network"):
        assert first[key] == second[key]
    hashes = [r["provenance"]["model"]["weights_sha256"] for r in (first, second)]
    assert hashes[0] == hashes[1]


def test_several_recordings_share_a_weights_file(tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    for name in ("a", "b"):
        recording = record(tmp_path / name, "--tokens", "3", "--weights", str(weights))
        assert recording["files"]["weights"]["path"] == "../weights.safetensors"


def test_other_weights_under_the_shared_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = str(tmp_path / "weights.safetensors")
    record(tmp_path / "a", "--tokens", "3", "--weights", weights)
    capsys.readouterr()
    words = [*RECORD, "--tokens", "3", "--weights", weights, "--seed", "2"]
    text = refused(capsys, 3, *words, "--out", str(tmp_path / "b"))
    assert "weights.safetensors exists and its" in text
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--model", "tiny:nosuch"), "no tiny model 'nosuch'"),
        (("--token-ids", "3,999"), "token id 999 is outside the model's vocabulary of 61"),
        (("--token-ids=-1,3",), "token id -1"),
        (("--token-ids", "3,4", "--batch", "2"), "--batch 2, but 1 rows"),
        (("--token-ids", "3,4", "--left-pad", "1"), "--left-pad goes with --tokens"),
        (("--tokens", "0"), "--tokens 0, expected at least 1"),
        (("--batch", "0"), "--batch 0"),
        (("--steps", "-1"), "--steps -1"),
        (("--steps", "2", "--cache", "none"), "need a cache"),
        (("--left-pad", "1,0", "--batch", "3"), "2 numbers, the batch 3 rows"),
        (("--tokens", "9", "--chunks", "2,3"), "add up to 5"),
        (("--prompt", "hello"), "has no tokenizer"),
    ],
)
def test_usage_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str
) -> None:
    text = refused(capsys, 2, *RECORD, "--out", str(tmp_path / "r"), *words)
    assert expected in text
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("record",),
        ("record", "--model", "tiny:llama"),
        ("record", "--model", "tiny:llama", "--out", "x", "--dtype", "int8"),
        ("record", "--model", "tiny:llama", "--out", "x", "--layers", "a"),
        ("record", "--model", "tiny:llama", "--out", "x", "--chunks", "1;2"),
        ("record", "--model", "tiny:llama", "--out", "x", "--tokens", "1", "--prompt", "a"),
        ("nonsense",),
    ],
)
def test_argument_errors(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--model", "/nowhere/at/all"), "--model /nowhere/at/all: there is no such folder"),
        (("--model", "./missing"), "--model ./missing: there is no such folder"),
        (("--blocks", "norm"), "unknown block 'norm'"),
    ],
)
def test_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str
) -> None:
    text = refused(capsys, 3, *RECORD, "--out", str(tmp_path / "r"), *words)
    assert expected in text


def test_debug_shows_where(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="unknown block"):
        main(["--debug", *RECORD, "--blocks", "norm", "--out", str(tmp_path / "r")])


def test_a_folder_that_is_no_recording_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "is no recording" in refused(capsys, 3, *RECORD, "--out", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_another_recording_is_replaced_only_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = record(tmp_path / "r", "--tokens", "3", "--effort", "fast")
    words = (*RECORD, "--tokens", "4", "--effort", "fast", "--out", str(tmp_path / "r"))
    text = refused(capsys, 2, *words)
    assert "has a recording already; --overwrite replaces it" in text
    assert json.loads((tmp_path / "r" / "recording.json").read_text()) == first
    assert main([*words, "--overwrite"]) == 0
    replaced = json.loads((tmp_path / "r" / "recording.json").read_text())
    assert replaced["provenance"]["run"]["tokens"] == 4
    assert "--overwrite" not in replaced["provenance"]["command"]


def test_ctrl_c_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_model", interrupted)
    assert "interrupted" in refused(capsys, 130, *RECORD, "--out", str(tmp_path / "r"))
    assert list(tmp_path.iterdir()) == []


def test_too_small_a_disk_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr(run.shutil, "disk_usage", lambda path: Usage)
    text = refused(capsys, 3, *RECORD, "--out", str(tmp_path / "deep" / "r"))
    assert "has 1000" in text


@pytest.mark.parametrize(
    "name", ["llama-a1/decode-f32", "gemma2-a4/whole-f32", "llama-a1/whole-f16"]
)
def test_the_size_estimate_is_within_a_factor_of_two(tmp_path: Path, name: str) -> None:
    from python_inspector.cases import committed

    (case,) = committed.select(f"^{name}$")
    model = run.load_model(case.source)
    plan = case.plan(case.ids(model))
    guess = run.estimate(model, plan, case.asked)
    where = Where(tmp_path / "r", command="test")
    summary = run.record_run(model, case.source, plan, case.asked, where)
    assert guess.weights == pytest.approx(summary.weight_bytes, rel=0.1)
    assert 0.5 < guess.tensors / summary.tensor_bytes < 2


def test_the_size_estimate_of_some_rows(tmp_path: Path) -> None:
    source = run.Source("tiny:gemma2", "bf16")
    model = run.load_model(source)
    plan = run.RunPlan(run.random_run_ids(source, model, 1, 300), 300)
    asked = Options(What(rows=8, whole_layers=(0,)), Proof(spread=2))
    guess = run.estimate(model, plan, asked, copies_weights=False)
    assert guess.weights == 0
    summary = run.record_run(model, source, plan, asked, Where(tmp_path / "r", command="test"))
    assert 0.4 < guess.tensors / summary.tensor_bytes < 2.5
    assert guess.tensors < 0.6 * run.estimate(model, plan, Options()).tensors


def test_validate_reports_every_bad_recording(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(CORPUS / "good"), str(CORPUS / "bad-version-4")]) == 3
    printed = capsys.readouterr().out
    assert "ok   " in printed and "BAD  " in printed and "recording.json: version: " in printed
    assert "2 recordings, 1 bad" in printed


def test_validate_of_nothing_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no recording.json" in refused(capsys, 3, "validate", str(tmp_path))
    assert "missing" in refused(capsys, 3, "show", str(tmp_path))
    good = str(CORPUS / "good")
    assert "unterminated" in refused(capsys, 2, "show", good, "--checkpoint", "[")


def test_tiny_lists_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny", "--list"]) == 0
    printed = capsys.readouterr().out
    assert all(f"tiny:{name} " in printed for name in (*tiny.MODELS, *tiny.ALIASES))


def test_bench_gets_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    programs = {(): "inspector bench ", ("verify",): "bench verify", ("check",): "bench check"}
    for words, program in programs.items():
        with pytest.raises(SystemExit) as stopped:
            main(["bench", *words, "--rounds", "x"])
        assert stopped.value.code == 2
        assert program in capsys.readouterr().err


def test_record_leaves_torch_as_it_was(tmp_path: Path) -> None:
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    record(tmp_path / "r", "--tokens", "2")
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == (threads, grad)


def test_names_that_tables_print_stand_for_recordings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "llama-a1/decode-bf16"]) == 0
    assert capsys.readouterr().out.startswith("llama-a1/decode-bf16\n")
    line = refused(capsys, 3, "show", "llama-a1/decode-bf61")
    assert line.endswith("; did you mean llama-a1/decode-bf16?")
