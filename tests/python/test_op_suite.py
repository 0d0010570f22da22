"""--suite ops: every op of a device, on calls made from its row in the op table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from harness_runs import command, verify

OPS = ("--suite", "ops", "--device", "cpu")
FLOATS = ("f32", "f16", "bf16")


def test_every_op_is_judged_in_every_dtype(tmp_path: Path) -> None:
    run = verify(tmp_path, *OPS)
    assert run.code == 0, run.stdout
    listed = {line.split()[0] for line in command("list", "--ops").stdout.splitlines()}
    judged = Counter((it["block"], it["dtype"]) for it in run.results if it["status"] == "pass")
    passed = sum(judged.values())
    floats = {(op, dtype) for op in listed for dtype in FLOATS}
    assert floats <= set(judged)
    assert {("exp", "f64"), ("add", "i64"), ("sum", "bool"), ("gemm", "i8")} <= set(judged)
    assert ("exp", "i64") not in judged and ("softmax", "f64") not in judged
    judged = Counter({it: n for it, n in judged.items() if it[0] != "fill"})  # one number: blind
    assert min(n for it, n in judged.items() if it in floats) >= 15
    assert min(n for (_, dtype), n in judged.items() if dtype != "bool") >= 4
    blind = {it["reason"] for it in run.results if it["status"] == "blind"}
    known = (" every element of the output is ", "d_dt_bias: 1 of 1 row is ill conditioned")
    assert all(any(words in " " + reason for words in known) for reason in blind), blind
    assert f"{passed} pass" in run.stdout


def test_a_call_is_repeated_by_its_id(tmp_path: Path) -> None:
    named = "cumsum/bf16/padded-in-place#7"
    (once,) = verify(tmp_path, *OPS, "--checkpoint", named).results
    assert once["checkpoint"] == named and named in once["again"]
    assert once["runs"] == 2 and once["determinism"] == "D0"
    (again,) = verify(tmp_path, *OPS, "--checkpoint", named, "--no-times").results
    assert again["output_sha256"] == once["output_sha256"]


def test_what_a_device_lacks_is_unsupported_by_name(plugins: Path, tmp_path: Path) -> None:
    tiny = ("--plugin", str(plugins / "tiny_device.so"), "--suite", "ops", "--device", "tiny:0")
    run = verify(tmp_path, *tiny, "--dtype", "f32")
    assert run.code == 0, run.stdout
    passed = {it["block"] for it in run.results if it["status"] == "pass"}
    assert passed == {"add", "mul", "rms_norm", "add_rms_norm"}  # the last composed
    assert "[linear] device tiny:0 has no such op" in run.stdout
    assert verify(tmp_path, *tiny, "--dtype", "f32", "--strict").code == 4
    assert verify(tmp_path, *tiny, "--checkpoint", "^linear/").code == 4


def test_a_wrong_kernel_fails(plugins: Path, tmp_path: Path) -> None:
    run = verify(tmp_path, "--plugin", str(plugins / "rms_norm_wrong.so"), *OPS)
    assert run.code == 1
    assert {it["block"] for it in run.results if it["status"] == "fail"} == {"rms_norm"}
    assert "again: harness --suite ops --checkpoint" in run.stdout


NORMS = ("--device", "cpu", "--dtype", "f32", "--checkpoint", "^rms_norm/.*contiguous")


# Elements go to other rows, or are made of their places; rows are added up, or have no letter B.
WITHOUT_ROWS = {
    *("index_select", "gather", "index_add", "scatter_add", "concat", "permute", "pad", "flip"),
    *("roll", "fill", "arange", "uniform", "normal"),
    *("embedding_backward", "cross_entropy", "cross_entropy_backward", "quantize", "dequantize"),
    *("linear_cross_entropy", "linear_cross_entropy_backward"),
}


def test_rows_keep_their_bits_where_contracts_promise_them(tmp_path: Path) -> None:
    run = verify(tmp_path, "--relations", "--device", "cpu", "--dtype", "f32")
    assert run.code == 0, run.stdout
    told = {(it["block"], line) for it in run.results for line in it["details"]}
    tried = {block for block, line in told if "relations: the same bits in " in line}
    assert tried == {it["block"] for it in run.results} - WITHOUT_ROWS
    assert ("rms_norm", "relations: not tried: its operands have no rows") in told
    assert " further calls of " in run.stdout


@pytest.mark.parametrize(
    ("fault", "demand", "code", "words"),
    [
        (0, "bits", 0, "further calls"),
        (1, "contract", 1, "with NaN in every other row"),
        (2, "contract", 0, "other bits within limits: rms_norm "),
        (2, "bits", 1, "in the whole call, "),
    ],
)
def test_a_kernel_whose_rows_depend_on_others_is_found(
    fault: int, demand: str, code: int, words: str, plugins: Path, tmp_path: Path
) -> None:
    plugin = ("--plugin", str(plugins / f"row_norm_{fault}.so"))
    assert verify(tmp_path, *plugin, "--suite", "ops", *NORMS).code == 0  # nothing else sees it
    run = verify(tmp_path, *plugin, *NORMS, "--relations", demand)
    assert run.code == code and words in run.stdout
    if code:
        (failed, *_) = [it for it in run.results if it["status"] == "fail"]
        assert failed["reason"].startswith(("neighbours: ", "batch: "))
        assert f"--relations {demand}" in failed["again"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--relations", "limits"), "--relations"),
        (("--block", "add"), "has no recordings"),
        (("--suite", "caches"), "has no recordings"),
        (("--mode", "both"), "has no recordings"),
        (("--shard", "1/2"), "has no recordings"),
        (("--checkpoint", "nothing"), "is found in no call of the ops"),
        (("--checkpoint", "("), "is not a regular expression"),
    ],
)
def test_what_has_no_meaning_is_refused(words: tuple[str, str], error: str) -> None:
    run = command(*OPS, *words)
    assert run.returncode == 2
    assert error in run.stderr


def test_an_op_that_no_block_calls_is_covered_by_the_suite() -> None:
    run = command("support", "--impl", "--device", "cpu", "--fixture", "fixtures/llama-a1")
    rows = {line.split()[0]: line for line in run.stdout.splitlines() if "/" in line}
    cumsum = [row for name, row in rows.items() if name.startswith("cumsum/")]
    assert cumsum
    assert all("run by --suite ops" in row or "not run: " in row for row in cumsum)
