"""reports: the table next to PyTorch, and that every case of a small shape has a rival."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from harness_runs import command

from reports.__main__ import main
from reports.speed import rivals
from reports.speed.shapes import SHAPES, Sizes
from reports.speed.table import markdown, read_lines

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


MODEL = {"model": "tiny", "tokens": 9, "dtype": "f32", "device": "cuda:0"}
STARTED = {"started": "2026-01-02T03:04:05Z"}
OUR_MODEL = {"type": "model_bench", **MODEL, "status": "pass", "reason": "",
             "prefill_tokens_per_s": 4000.0, "decode_tokens_per_s": 200.0}  # fmt: skip


def rival_of_model(way: str, prefill: float | None, decode: float | None) -> dict[str, object]:
    ratios = {"prefill_ratio": prefill, "decode_ratio": decode}
    gap = None if prefill else "not done within 9 s"
    return {"type": "rival_model", **MODEL, **STARTED, "way": way, **ratios, "gap": gap}


def test_whole_models_have_a_table_of_their_own() -> None:
    rivals_of_it = [rival_of_model("eager", 1.5, 3.0), rival_of_model("compile", 1.75, 2.0)]
    text = markdown([OUR_MODEL, *rivals_of_it])
    row = "| tiny | 9 | f32 | 4,000 | eager | 1.50x | 200 | compile | 2.00x |  |"
    assert row in text and "rival us" not in text
    text = markdown([OUR_MODEL, rivals_of_it[0], rival_of_model("compile", None, None)])
    assert "| eager | 3.00x | compile: not done within 9 s |" in text


def test_a_mix_of_runs_is_marked(tmp_path: Path) -> None:
    def run(started: str, words: str = "cuda:0: a GPU") -> dict[str, object]:
        return {"type": "run", "started": started, "devices": [words]}

    early, late = "2026-01-02T03:00:00Z", "2026-01-02T08:00:00Z"
    text = markdown([run(early), OURS, run(late)])
    assert text.startswith("Measured 2026-01-02 03:00 to 2026-01-02 08:00 UTC.\n\n| shape")
    text = markdown([run(early), OURS, run("2026-01-03T05:00:00Z")])
    assert "**Not of one run**: 26 hours from its first" in text
    text = markdown([run(early), OURS, run(late, "cuda:0: another GPU")])
    assert "**Not of one machine**: cuda:0: a GPU; cuda:0: another GPU." in text
    assert "**1 of its parts do not say when" in markdown([{"type": "rival_run"}, OURS])


@pytest.mark.parametrize(
    "line", [OURS, rival("eager", 1.0), OUR_MODEL, rival_of_model("eager", 1.0, 1.0)]
)
def test_what_was_measured_twice_is_no_table(line: dict[str, object], tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path in (first, second):
        path.write_text(json.dumps(line) + "\n")
    with pytest.raises(ValueError, match=f"{second}:1: measures what {first}:1 has: two runs"):
        read_lines([first, second])
    other = {**line, "dtype": "f16"}
    second.write_text(json.dumps(other) + "\n")
    assert read_lines([first, second]) == [line, other]


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
        (b'{"type": "rival_model", "model": "a"}\n', "lacks tokens, dtype, device, way, started"),
        (b'{"type": "run", "started": "today"}\n', ":1: started is 'today': Invalid isoformat"),
        (b'{"type": "run", "started": 3}\n', ":1: started is 3: "),
        (json.dumps({**OURS, "median_us": "fast"}).encode(), ":1: median_us is 'fast'"),
        (json.dumps({**OURS, "median_us": 0}).encode(), ":1: median_us is 0, expected a number"),
        (json.dumps({k: OURS[k] for k in OURS if k != "median_us"}).encode(), "lacks median_us"),
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
    refused = command("bench", *sizes, "--block", "none").stderr.split(
        "known: all, ops, products, "
    )[1]
    ours = refused.splitlines()[0].split(", ")
    theirs = rivals.all_cases(SHAPES[shape], Sizes(3, 12, "f32", "cpu"))
    assert ours == [it.name for it in theirs if not it.name.startswith(("ops.", "products."))]


def test_the_single_ops_are_those_of_harness_bench(tmp_path: Path) -> None:
    sizes = ["--shape", "tiny", "--tokens", "3", "--context", "12", "--dtype", "f32"]
    out = tmp_path / "ops.jsonl"
    command("bench", *sizes, "--block", "ops,products", "--seconds", "0", "--json", str(out))
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    theirs = rivals.all_cases(SHAPES["tiny"], Sizes(3, 12, "f32", "cpu"))
    ours = sorted(line["case"] for line in lines if line["type"] == "bench")
    assert ours == sorted(
        case.name for case in theirs if case.name.startswith(("ops.", "products."))
    )


def test_a_baseline_of_something_else_names_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.jsonl"
    results.write_text('{"type": "checkpoint"}\n')
    assert main(["baseline", str(results), "--out", str(tmp_path / "baseline.jsonl")]) == 3
    assert "results.jsonl:1" in capsys.readouterr().err
