"""inspector generate: text in, text out."""

from __future__ import annotations

from pathlib import Path

import models
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from python_inspector.cases.generate import generate
from python_inspector.cli.inspector import main
from python_inspector.errors import HarnessError


def speaking(folder: Path) -> models.Saved:
    """A tiny model whose token i is the word "w<i>"."""
    saved = models.save("llama-a1", folder)
    words = {f"w{i}": i for i in range(saved.vocabulary)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)
    return saved


def test_text_goes_on_with_the_models_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLUMB_HARNESS", models.harness())
    saved = speaking(tmp_path / "model")
    expected = models.generated(
        saved.folder, [5, 9, 14], tmp_path, "--max-new", "8", "--device", "cpu"
    )
    options = ["--max-new", "8", "--device", "cpu", "--ignore-stop"]
    code = main(["generate", "--model", str(saved.folder), "--prompt", "w5 w9 w14", "--", *options])
    assert code == 0
    said = " ".join(f"w{i}" for i in [5, 9, 14, *expected])
    assert capsys.readouterr().out == said + "\n"


def test_the_harness_says_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUMB_HARNESS", models.harness())
    saved = speaking(tmp_path / "model")
    (saved.folder / "model.safetensors").unlink()
    with pytest.raises(HarnessError, match=r"ended with 3: .*has neither model\.safetensors"):
        list(generate(saved.folder, "w5", ["--device", "cpu"]))
