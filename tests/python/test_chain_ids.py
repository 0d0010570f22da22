"""A chain starts at the ids that the model was given, whatever its code makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import verify
from recorded import Recording, ids

from python_inspector import record, tiny
from python_inspector.engines.steps import RecordedRun
from python_inspector.format.validate import validate
from python_inspector.taps.options import Proof, What


def test_it_starts_at_the_ids_that_the_model_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.build("llama-a1")
    x = ids(model, 2, 7)
    x[:, 3] = 60
    with record(model, tmp_path / "right", What(blocks=()), Proof(chained=True)), torch.no_grad():
        model(x, use_cache=False)
    decoder: Any = type(model.model)
    forward = decoder.forward

    def clamped(self: Any, input_ids: torch.Tensor, **arguments: Any) -> Any:
        return forward(self, input_ids.clamp(max=30), **arguments)

    monkeypatch.setattr(decoder, "forward", clamped)
    with record(model, tmp_path / "wrong", What(blocks=()), Proof(chained=True)), torch.no_grad():
        model(x, use_cache=False)
    (right,) = Recording(tmp_path / "right").of("embedding")
    assert right["inputs"].keys() == {"ids"}
    recording = Recording(tmp_path / "wrong")
    (embedding,) = recording.of("embedding")
    assert torch.equal(recording.raw(embedding["inputs"]["given"]["tensor"]), x)
    assert torch.equal(recording.raw(embedding["inputs"]["ids"]["tensor"]), x.clamp(max=30))
    assert validate(tmp_path / "wrong") == []
    assert (RecordedRun(tmp_path / "wrong").ids[0] == x.numpy()).all()
    for name, code in (("right", 0), ("wrong", 1)):
        done = verify(tmp_path, "--fixture", str(tmp_path / name), *["--mode", "both"])
        assert done.code in (code, 8 - 8 * code), done.stdout
    (chain,) = (result for result in done.results if result["checkpoint"] == "(chain)")
    assert chain["chain"]["culprit"] == "model.embed_tokens#0"
    assert "gave model.embed_tokens#0 (embedding) other ids than it was given" in done.stdout
    assert all(r["status"] != "fail" for r in done.results if r is not chain), "alone all is right"
