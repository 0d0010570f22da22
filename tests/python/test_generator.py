"""Generated tensors: the rule of fixtures/README.md, and how a recording states it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from python_inspector.errors import FormatError
from python_inspector.format.generator import UNIT, Generator, generate, splitmix64
from python_inspector.format.payload import tensor_bytes
from python_inspector.format.writer import RecordingWriter

MASK = (1 << 64) - 1


def hash_of(seed: int, i: int) -> int:
    """SplitMix64 in Python's own integers."""
    z = seed + (i + 1) * 0x9E3779B97F4A7C15 & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


@pytest.mark.parametrize("seed", [0, 1234567, (1 << 63) - 1])
def test_the_hash_is_splitmix64(seed: int) -> None:
    made = [int(h) & MASK for h in splitmix64(seed, 2, 40)]
    assert made == [hash_of(seed, i) for i in range(2, 40)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("exponent", "offset"), [(UNIT, 0), (-17, 1), (-21, 0)])
def test_values_follow_the_rule(dtype: torch.dtype, exponent: int, offset: int) -> None:
    made = generate(Generator(5, exponent, offset), dtype, (4, 25))
    quarters = [[hash_of(5, i) >> bits & 0xFFFF for bits in (0, 16, 32, 48)] for i in range(100)]
    exact = [offset + (sum(q) - 131070) * 2.0**exponent for q in quarters]
    expected = torch.tensor(exact, dtype=torch.float64).float().to(dtype)
    assert torch.equal(made, expected.reshape(4, 25))


def test_a_long_tensor_is_made_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = generate(Generator(9, UNIT), torch.bfloat16, (3, 7))
    monkeypatch.setattr("python_inspector.format.generator._CHUNK", 4)
    assert torch.equal(generate(Generator(9, UNIT), torch.bfloat16, (3, 7)), whole)


def test_impossible_rules_are_refused() -> None:
    for rule in ((-1, UNIT, 0), (1, 1, 0), (1, -41, 0), (1, UNIT, 2)):
        with pytest.raises(FormatError):
            Generator(*rule)
    with pytest.raises(FormatError, match="float64"):
        generate(Generator(1, UNIT), torch.float64, (2,))


def test_a_generated_tensor_is_stated_not_stored(tmp_path: Path) -> None:
    rule = Generator(3, UNIT)
    made = generate(rule, torch.float32, (2, 3))
    with RecordingWriter(tmp_path / "x") as writer:
        writer.generated(made, rule)
        key, weight = writer.tensor(made), writer.weight("w", made)
        other = writer.tensor(made.clone())
        made += 1
        changed = writer.tensor(made)
        assert len({key, weight, other, changed}) == 4, "only that very tensor, unchanged"
        header = {"name": "x", "provenance": {}, "config": {}, "network": []}
        writer.commit(header)
    recording = json.loads((tmp_path / "x" / "recording.json").read_text())
    digest = hashlib.sha256(tensor_bytes(made - 1)).hexdigest()
    expected = {"generator": rule.to_json(), "dtype": "f32", "shape": [2, 3], "sha256": digest}
    assert recording["tensors"][key] == expected
    assert recording["tensors"][weight] == expected | {"name": "w"}
    assert "file" in recording["tensors"][other]
    assert "weights" not in recording["files"], "no weight has a payload"
