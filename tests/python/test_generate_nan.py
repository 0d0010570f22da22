"""harness generate: a NaN ends it where it matters, after all that was right."""

from __future__ import annotations

import json
from pathlib import Path

import models
import pytest
import torch

PROMPT = [3, 4, 5]


def run_rows(
    folder: Path, prompts: list[list[int]], work: Path, *options: str
) -> tuple[int, list[list[int]], str]:
    """Exit code, the tokens that were shown, what was said."""
    tokens = models.write_tokens(prompts, work)
    where = ("--model", str(folder), "--tokens", str(tokens), "--max-new", "30")
    done = models.run("generate", *where, *options)
    shown = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    return done.returncode, shown, done.stderr


def run(folder: Path, work: Path, *options: str) -> tuple[int, list[int], str]:
    code, shown, said = run_rows(folder, [PROMPT], work, *options)
    return code, shown[0], said


@pytest.fixture
def broken(tmp_path: Path) -> tuple[Path, list[int]]:
    """A model for which one of the tokens that it generates is NaN, and the tokens until then."""
    saved = models.save("llama-a1", tmp_path / "model")
    right = models.generated(saved.folder, PROMPT, tmp_path, "--max-new", "30")
    at = next(i for i in range(12, 29) if right[i] not in right[:i] + PROMPT)
    with torch.no_grad():
        saved.model.get_input_embeddings().weight[right[at]] = float("nan")
    saved.model.save_pretrained(tmp_path / "broken")
    return tmp_path / "broken", right[: at + 1]


@pytest.mark.parametrize("sampled", [(), ("--temperature", "0.0001", "--top-k", "1")])
def test_what_was_right_is_shown_and_then_the_error(
    broken: tuple[Path, list[int]], tmp_path: Path, sampled: tuple[str, ...]
) -> None:
    folder, expected = broken
    code, shown, said = run(folder, tmp_path, "--ignore-stop", *sampled)
    assert shown == expected
    assert code == 5
    assert "[generate] the logit of token 0 is NaN" in said


def test_behind_the_stop_it_is_of_no_matter(broken: tuple[Path, list[int]], tmp_path: Path) -> None:
    folder, expected = broken
    report = tmp_path / "report.jsonl"
    stop = ("--stop", str(expected[-1]), "--json", str(report))
    code, shown, said = run(folder, tmp_path, *stop)
    assert (code, shown) == (0, expected), said
    last = json.loads(report.read_text().splitlines()[-1])
    assert last["tokens"] == [expected]
    assert last["decoded_tokens"] == len(expected) - 1


def test_a_sequence_that_has_stopped_does_not_end_the_others(
    broken: tuple[Path, list[int]], tmp_path: Path
) -> None:
    folder, expected = broken
    prompts = [[a, b, 7] for a in range(10, 20) for b in (11, 23)]
    right = models.generated_rows(folder.parent / "model", prompts, tmp_path, "--max-new", "30")
    at = next(i for i, ids in enumerate(right) if expected[-1] not in ids + prompts[i])
    stop = ("--stop", str(expected[-1]))
    code, shown, said = run_rows(folder, [PROMPT, prompts[at]], tmp_path, *stop)
    assert (code, shown) == (0, [expected, right[at]]), said
