"""`harness tune`: measures the ways of a linear and keeps the fastest for that device."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness_runs import command

TUNE = ("tune", "--device", "cpu", "--threads", "1", "--seconds", "0.01")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("PLUMB_CACHE", str(folder))
    return folder


def test_what_is_kept_is_what_linear_then_runs(cache: Path) -> None:
    done = command(*TUNE, "--shape", "2x64x96,64x64x96", "--dtype", "f32")
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = cache.iterdir()
    assert f"kept in {file}" in done.stdout
    rows = re.findall(r"^\s*f32 (\d+x64x96)\s+pass\s+linear/\S+", done.stdout, re.MULTILINE)
    assert rows == ["2x64x96", "64x64x96"]
    first, *kept = file.read_text().splitlines()
    assert first.startswith("plumbline-linears-1 ")
    assert len(kept) == len(re.findall(r"\byes$", done.stdout, re.MULTILINE))
    assert command(*TUNE, "--forget").stdout == f"removed {file}\n"
    assert not file.exists()


def test_a_kept_way_runs_and_is_judged(cache: Path) -> None:
    words = ("--device", "cpu", "--fixture", "fixtures/llama-a1/whole-f32", "--block", "linear")
    command(*TUNE, "--shape", "2x64x96", "--dtype", "f32")
    (file,) = cache.iterdir()
    device = file.read_text().splitlines()[0]
    one = command(*words, "--threads", "1")
    assert one.returncode == 0 and "broken" not in one.stderr
    file.write_text(f"{device}\nf32 2 many\n")
    broken = command(*words, "--threads", "1")
    assert broken.returncode == 3, broken.stdout + broken.stderr
    assert f"[{file}] line 2 is" in broken.stderr + broken.stdout


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--shape", "2x64"), 'unknown shape "2x64"'),
        (("--shape", ""), "--shape"),
        (("--shape", "tiny", "--tokens", "many"), '"many" is no number of tokens'),
        (("--shape", "2x4x8", "--device", "cpu,oracle"), "names 2 devices"),
    ],
)
def test_bad_usage(words: tuple[str, ...], error: str, cache: Path) -> None:
    done = command(*TUNE[:1], *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert error in done.stderr
    assert not cache.exists()


def test_a_device_without_a_choice(cache: Path) -> None:
    done = command("tune", "--device", "oracle", "--shape", "2x4x8")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "oracle has one way to compute a linear" in done.stderr
