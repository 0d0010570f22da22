"""Options of the harness that would say nothing: refused, with what to do."""

from __future__ import annotations

import subprocess

import pytest
from harness_runs import ROOT, harness


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--shard-by", "layers"), "[--shard-by] says how --shard i/n cuts: add that"),
        (("--memory", "-5"), "[--memory] is -5 bytes, needs 1048576 (1MiB) or more, or 0"),
        (("--memory", "1KB"), "[--memory] is 1024 bytes, needs 1048576 (1MiB) or more, or 0"),
    ],
)
def test_an_option_that_says_nothing_is_refused(options: tuple[str, str], words: str) -> None:
    done = subprocess.run([harness(), *options], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and words in done.stderr


def said(*words: object) -> tuple[int, str]:
    done = subprocess.run(
        [harness(), *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


FIXTURE = ROOT / "fixtures" / "llama-a1" / "whole-f32"
NORMS = ("--device", "cpu", "--block", "rms_norm", "--repeat", "1")


@pytest.mark.parametrize(
    "words",
    [
        (FIXTURE, *NORMS),
        ("verify", "--fixture", FIXTURE, *NORMS),
        ("verify", "llama-a1/whole-f32", *NORMS),
        (FIXTURE, *NORMS, "--dtype", "float32"),
        (FIXTURE, *NORMS, "--dtype", "torch.float32"),
    ],
)
def test_what_people_type_first_works(words: tuple[object, ...]) -> None:
    code, text = said(*words)
    assert code == 0 and "7 checkpoints in" in text, text


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--devise", "cpu"), "harness does not take --devise; did you mean --device?"),
        (("list", "--blok"), "list does not take --blok; did you mean --block?"),
        (("devises",), 'no command "devises", and no recording is called so; did you mean harness '
                       "devices?"),
        (("./nowhere",), "./nowhere: is no folder here"),
        (("--dtype", "float33"), 'unknown dtype "float33"; known: f32'),
        (("generate", "--max-new-tokens"), "--max-new: 1 required"),
    ],
)  # fmt: skip
def test_what_is_not_understood_names_what_was_meant(words: tuple[str, ...], hint: str) -> None:
    code, text = said(*words)
    assert code in (2, 3) and hint in text, text
    assert len(text.strip().splitlines()) <= 2
