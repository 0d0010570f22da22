"""Options of the harness that would say nothing: refused, with what to do."""

from __future__ import annotations

import subprocess

import pytest
from harness_runs import harness


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
