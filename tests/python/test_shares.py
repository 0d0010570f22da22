"""Where a run is cut, and for how many processes."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest
from harness_runs import ROOT

from python_inspector.cases import shares
from python_inspector.cases.shares import cut, sensible, stretches, works
from python_inspector.cli.inspector import build_parser
from python_inspector.stretches import Place, text_of

GEMMA = {"model_type": "gemma2", "num_hidden_layers": 2, "vocab_size": 64, "hidden_size": 32}


def asked(model: Path | str, words: str) -> Namespace:
    given = ["record", "--model", str(model), "--out", "x", *words.split()]
    return build_parser().parse_args(given)


def with_config(folder: Path, config: object) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def published(folder: Path, name: str) -> Path:
    config = ROOT / "tests" / "configs" / f"{name}.json"
    return with_config(folder, json.loads(config.read_text()))


@pytest.fixture(autouse=True)
def a_large_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "memory_of", lambda name: 140 << 30 if "cuda" in name else None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(16), raising=False)


def with_weights(folder: Path, size: int) -> Path:
    """In two files."""
    for name in ("a.safetensors", "b.safetensors"):
        (folder / name).touch()
        os.truncate(folder / name, size // 2)
    return folder


# Cuts.


@pytest.mark.parametrize(
    ("work", "count", "expected"),
    [
        ([1, 1, 1, 1], 1, "0.0:2.0"),
        ([1, 1, 1, 1], 2, "0.0:1.0 1.0:2.0"),
        ([1, 1, 1, 1], 3, "0.0:1.0 1.0:2.0"),
        ([1, 1, 1, 1], 4, "0.0:0.1 0.1:1.0 1.0:1.1 1.1:2.0"),
        ([1, 1, 1, 1], 9, "0.0:0.1 0.1:1.0 1.0:1.1 1.1:2.0"),
        ([1, 1, 1, 9], 3, "0.0:0.1 0.1:1.1 1.1:2.0"),
        ([9, 1, 1, 1], 2, "0.0:0.1 0.1:2.0"),
        ([0, 0, 0, 1], 2, "0.0:1.1 1.1:2.0"),
        ([0, 0, 0, 0], 2, "0.0:2.0"),
    ],
)
def test_the_largest_stretch_is_as_small_as_can_be(
    work: Sequence[float], count: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "SKIPPED", 0.0)
    places: list[Place] = [(0, 0), (0, 1), (1, 0), (1, 1)]
    found = cut([*zip(places, map(float, work), strict=True)], count)
    assert " ".join(map(text_of, found)) == expected


def test_who_begins_late_has_less_to_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "SKIPPED", 0.5)
    places = [((call, 0), 1.0) for call in range(9)]
    first, second = cut(places, 2)
    assert first == ((0, 0), (6, 0)) and second == ((6, 0), (9, 0))


# Places and their work.


def found(folder: Path, words: str, calls: Sequence[int] = (0,)) -> dict[Place, float]:
    return dict(works(asked(folder, words), calls))


@pytest.mark.parametrize("config", [
    {"model_type": "of somebody", "num_hidden_layers": 2},
    {"model_type": "gemma2"},
    [],
])  # fmt: skip
def test_a_call_of_other_models_is_one_place(config: object, tmp_path: Path) -> None:
    with_config(tmp_path, config)
    assert [*found(tmp_path, "--steps 2", (0, 2))] == [(0, 0), (2, 0)]
    (tmp_path / "config.json").write_text("{")
    assert [*found(tmp_path, "--steps 2", (1,))] == [(1, 0)]
    assert [*found(tmp_path / "none", "")] == [(0, 0)]


def test_the_layers_of_a_described_model_are_places(tmp_path: Path) -> None:
    with_config(tmp_path, GEMMA)
    places = [*found(tmp_path, "--steps 1", (0, 1))]
    assert places == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_work_grows_with_what_is_recorded(tmp_path: Path) -> None:
    """The ratios are those measured on an H200 (shares.py)."""
    folder = published(tmp_path, "gemma-2-2b")
    few, many = found(folder, "--tokens 8"), found(folder, "--tokens 512")
    rows = found(folder, "--tokens 512 --rows 16")
    assert many[0, 3] > 3 * few[0, 3]
    assert many[0, 26] > 6 * many[0, 3]
    assert rows[0, 0] == many[0, 0] and rows[0, 25] == many[0, 25]
    assert rows[0, 3] < 2 * few[0, 3] and rows[0, 26] < many[0, 26] / 20
    whole = found(folder, "--tokens 512 --rows 16 --whole-layers 3")
    assert whole[0, 3] == many[0, 3] and whole[0, 0] == rows[0, 3]
    some = found(folder, "--tokens 512 --layers 3")
    assert some[0, 3] == many[0, 3] and some[0, 4] == 0 and some[0, 26] == many[0, 26]
    assert found(folder, "--tokens 512 --no-oracle")[0, 3] < many[0, 3] / 4
    assert found(folder, "--tokens 512 --batch 2")[0, 3] > 1.5 * many[0, 3]


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ("", [(11, 11)]),
        ("--tokens 5 --steps 2", [(5, 5), (1, 6), (1, 7)]),
        ("--chunks 5,10 --steps 1", [(5, 5), (10, 15), (1, 16)]),
        ("--chunks 5,10 --cache none", [(5, 5), (10, 10)]),
        ("--batch 2 --tokens 5", [(10, 5)]),
        ("--left-pad 3,0 --tokens 5", [(10, 5)]),
        ("--token-ids 1,2,3 --token-ids 4", [(6, 3)]),
        ("--prompt some_words_of_a_prompt", [(6, 6)]),
    ],
)
def test_tokens_of_each_call(words: str, sizes: list[tuple[int, int]]) -> None:
    assert [*shares._sizes(asked("x", words))] == sizes


# How many.


@pytest.mark.parametrize(
    ("name", "size", "words", "expected"),
    [
        ("gemma-2-2b", 5.2e9, "--tokens 512 --steps 4", 4),
        ("gemma-2-2b", 5.2e9, "--tokens 512 --steps 4 --rows 16", 3),
        ("gemma-2-2b", 5.2e9, "--tokens 512 --steps 4 --no-oracle", 2),
        ("gemma-2-2b", 5.2e9, "--tokens 512", 3),
        ("Meta-Llama-3-8B", 16e9, "--tokens 1024 --steps 2 --rows 16", 2),
        ("Llama-3.2-1B", 2.5e9, "--tokens 128 --rows 16", 1),
    ],
)
def test_as_many_as_are_worth_their_start(
    name: str, size: float, words: str, expected: int, tmp_path: Path
) -> None:
    folder = with_weights(published(tmp_path, name), int(size))
    options = asked(folder, words + " --device cuda:0")
    assert len(stretches(options, range(1 + options.steps))) == expected
    options.jobs = 3
    assert len(stretches(options, range(1 + options.steps))) == 3


def test_a_tiny_model_takes_one(tmp_path: Path) -> None:
    folder = with_weights(with_config(tmp_path, GEMMA), 1 << 16)
    assert len(stretches(asked(folder, "--steps 9 --device cuda"), range(10))) == 1


@pytest.mark.parametrize("words", ["", "--device cuda --chained", "--device cuda --weights w"])
def test_what_takes_one_process(words: str, tmp_path: Path) -> None:
    folder = with_weights(published(tmp_path, "gemma-2-2b"), 5 << 30)
    assert len(stretches(asked(folder, "--tokens 512 " + words), [0])) == 1


@pytest.mark.parametrize(
    ("device", "cores", "gigabytes", "expected"),
    [
        ("cuda:0", 16, 80, 4),
        ("cuda", 9, 80, 2),
        ("cuda", 3, 80, 1),
        ("cuda", 32, 80, 4),
        ("cuda", 32, 100, 5),
        ("cuda", 16, 32, 2),
        ("cuda", 16, 31, 1),
        ("cpu", 16, 80, 1),
    ],
)
def test_as_many_as_there_is_room_for(
    device: str, cores: int, gigabytes: int, expected: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """4 cores each, and of the device's memory twice the weights, which are 4 GiB, and 8 GiB; one
    of them may take a third."""
    monkeypatch.setattr(
        shares, "memory_of", lambda name: gigabytes << 30 if "cuda" in name else None
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(cores), raising=False)
    assert sensible(device, str(tmp_path), 100) == 1  # of a model that is nowhere
    with_weights(tmp_path, 4 << 30)
    assert sensible(device, str(tmp_path), 100) == expected
