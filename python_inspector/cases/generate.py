"""Text to text with the native harness: transformers' tokenizer around `harness generate`."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import HarnessError
from ..native import find_harness


def generate(folder: Path, prompt: str, options: Sequence[str] = ()) -> Iterator[str]:
    """Continues `prompt` with the model in `folder`; yields pieces of text as they are known.

    `folder` holds a tokenizer, too. `options` go to the harness: --device, --max-new, ... Raises
    HarnessError with the harness's own words.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt)["input_ids"]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [
                str(find_harness()),
                "generate",
                *("--model", str(folder), "--tokens", ",".join(str(i) for i in ids)),
                *options,
            ],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdout is not None
        try:
            yield from _decoded(tokenizer, ids, _ids(process.stdout))
        finally:
            process.stdout.close()
            code = process.wait()
        errors.seek(0)
        words = errors.read().strip()
        if code:
            raise HarnessError(f"harness generate ended with {code}: {words or 'no output'}")


def _ids(stream: Any) -> Iterator[int]:
    """Numbers as they arrive, separated by spaces."""
    word = ""
    while character := stream.read(1):
        if not character.isspace():
            word += character
        elif word:
            yield int(word)
            word = ""


def _decoded(tokenizer: Any, prompt: list[int], ids: Iterator[int]) -> Iterator[str]:
    """The text of the new ids, held back where it ends amid a character of several tokens."""
    all_ids = list(prompt)
    said = len(tokenizer.decode(all_ids, skip_special_tokens=True))
    for new in ids:
        all_ids.append(new)
        text = tokenizer.decode(all_ids, skip_special_tokens=True)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text[said:]
            said = len(text)
