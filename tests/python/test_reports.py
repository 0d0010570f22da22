"""reports: the table beside PyTorch, and that every case of a small shape has a rival."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from harness_runs import command

from reports import rivals
from reports.__main__ import main
from reports.shapes import SHAPES, Sizes
from reports.table import markdown, read_lines

KEY = {"case": "rms_norm", "shape": "tiny", "tokens": 5, "context": 5, "dtype": "f32"}
OURS = {"type": "bench", **KEY, "device": "cuda:0", "status": "pass", "reason": "",
        "median_us": 10.0, "share": 0.8, "share_of": "copy"}  # fmt: skip


def rival(way: str, us: float | None, gap: str | None = None) -> dict[str, object]:
    return {"type": "rival", **KEY, "device": "cuda", "way": way, "median_us": us, "gap": gap}


def test_best_rival_with_its_ratio() -> None:
    text = markdown(
        [OURS, rival("eager", 40.0), rival("compile", 20.0), rival("x", None, "no gcc")]
    )
    assert "| 10 | 20 | compile | 2.00x | 80 % of copy | x: no gcc |" in text


def test_a_short_call_stands_beside_a_copy_of_its_size() -> None:
    text = markdown([{**OURS, "share": 0.78, "share_of_copy_of_size": 0.99}])
    assert "| 78 % of copy, 99 % of one its size |" in text


def test_wrong_kernel_gets_no_figure() -> None:
    wrong = {key: value for key, value in OURS.items() if key not in ("median_us", "share")}
    text = markdown([{**wrong, "status": "fail", "reason": "rms_norm: token"}, rival("eager", 4.0)])
    assert "| fail |" in text and "rms_norm: token" in text and "x |" not in text


def test_rivals_of_other_sizes_do_not_count() -> None:
    assert "| none |" in markdown([OURS, {**rival("eager", 4.0), "tokens": 6}])


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    path.write_text('{"type": "run"}\n{"type": \n')
    with pytest.raises(ValueError, match=r"bench\.jsonl:2"):
        read_lines([path])
    assert main(["table", str(path)]) == 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\xd0\xd1\n", "not UTF-8 text"),
        (b"[]\n", ":1: is no object"),
        (b'{"type": "baseline"}\n', "holds baseline lines, no measurements"),
        (b'{"type": "bench", "case": "add"}\n', ":1: a bench line lacks shape, tokens"),
        (json.dumps({**OURS, "median_us": "fast"}).encode(), ":1: median_us is 'fast'"),
    ],
)
def test_what_is_no_measurement_says_why(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(words)):
        read_lines([path])


def test_rivals_of_another_gpu_do_not_count() -> None:
    assert "| 40 | eager |" in markdown([OURS, {**rival("eager", 40.0), "device": "cuda:0"}])
    assert "| none |" in markdown([OURS, {**rival("eager", 4.0), "device": "cuda:1"}])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--block", "add,nosuch"], "--block nosuch: known are"),
        (["--device", "tpu"], "--device: 'tpu': expected cpu, cuda or cuda:N"),
        (["--device", "cuda:01"], "--device: 'cuda:01': expected cpu, cuda or cuda:N"),
        (["--device", "cuda:9"], "--device cuda:9: this PyTorch sees 2 GPUs"),
    ],
)
def test_rivals_refuse_what_they_do_not_know(
    wrong: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    out = tmp_path / "rivals.jsonl"
    with pytest.raises(SystemExit) as ended:
        main(["rivals", "--shape", "tiny", "--tokens", "3", "--out", str(out), *wrong])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("shape", ["tiny", "tiny-gemma2"])
def test_every_case_of_a_small_shape_is_measured(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rivals.jsonl"
    monkeypatch.setattr(rivals, "ROTATE_BYTES", 1)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # minutes otherwise
    rivals.run(SHAPES[shape], Sizes(3, 12, "f32", "cpu"), out, seconds=0)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    measured = {line["case"] for line in lines if line.get("median_us")}
    assert measured == {line["case"] for line in lines if line["type"] == "rival"}
    assert ("sdpa.window" in measured) == (shape == "tiny-gemma2")
    assert len(measured) >= 31


def test_a_run_of_rivals_that_ends_early_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> Iterator[rivals.Rival]:
        yield rivals.Rival("add", "eager", "tiny", 3, 3, "f32", "cpu", 1.0)
        raise KeyboardInterrupt

    out = tmp_path / "rivals.jsonl"
    out.write_text("old")
    monkeypatch.setattr(rivals, "measure_cases", stopped)
    monkeypatch.setattr(rivals, "ceilings", lambda _: {})
    with pytest.raises(KeyboardInterrupt):
        rivals.run(SHAPES["tiny"], Sizes(3, 3, "f32", "cpu"), out)
    assert out.read_text() == "old" and list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("shape", ["tiny", "tiny-gemma2"])
def test_the_cases_are_those_of_harness_bench(shape: str) -> None:
    sizes = ["--shape", shape, "--tokens", "3", "--context", "12"]
    refused = command("bench", *sizes, "--block", "none").stderr.split("known: all, ")[1]
    ours = refused.splitlines()[0].split(", ")
    theirs = rivals.all_cases(SHAPES[shape], Sizes(3, 12, "f32", "cpu"))
    assert ours == [case.name for case in theirs]


def test_a_baseline_of_something_else_names_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.jsonl"
    results.write_text('{"type": "checkpoint"}\n')
    assert main(["baseline", str(results), "--out", str(tmp_path / "baseline.jsonl")]) == 3
    assert "results.jsonl:1" in capsys.readouterr().err
