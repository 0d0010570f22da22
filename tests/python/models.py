"""Tiny models as folders on disk, what transformers makes of tokens, and what the harness does."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import ROOT, harness
from safetensors.torch import load_file
from torch.utils._python_dispatch import _disable_current_modes
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from python_inspector import tiny
from python_inspector.trace.replay import run_lifted

_SMALL: dict[str, Any] = {
    "vocab_size": 59,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
# In addition to those of python_inspector/models/tiny.py, by name: model_type and configuration.
FURTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("mistral", _SMALL | {"sliding_window": 6, "head_dim": 12}),
    "qwen2": ("qwen2", _SMALL),
    "qwen2-window": (
        "qwen2",
        _SMALL
        | {
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
        },
    ),
    # Then transformers ties no block either: each hybrid layer has a transformer of its own.
    "zamba2-untied": (
        "zamba2",
        {**tiny.MODELS["zamba2-a6"].config, "tie_word_embeddings": False},
    ),
}


@dataclass(frozen=True)
class Saved:
    """A tiny model in eval mode, and the folder that save_pretrained made of it."""

    model: torch.nn.Module
    folder: Path

    @property
    def vocabulary(self) -> int:
        return int(self.model.config.vocab_size)


def save(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> Saved:
    model = further(name, dtype) if name in FURTHER else tiny.build(name, dtype)
    model.save_pretrained(folder)
    return Saved(model, folder)


def further(name: str, dtype: torch.dtype) -> torch.nn.Module:
    model_type, numbers = FURTHER[name]
    config = AutoConfig.for_model(model_type, **numbers)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")
    gain = tiny.ZAMBA2_GAIN if model_type == "zamba2" else tiny.GAIN
    tiny.load_weights(model, tiny.draw_weights(model, tiny.DEFAULT_SEED, gain=gain))
    return model.eval()


def tokens(vocabulary: int, count: int, rows: int = 1) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(3, vocabulary, (rows, count), generator=generator).tolist()


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [harness(), *command], cwd=ROOT, capture_output=True, text=True, check=False
    )


def forward(
    folder: Path, rows: list[list[int]], work: Path, *options: str, device: str = "cpu"
) -> torch.Tensor:
    """The harness's logits of all tokens, in double."""
    file, out = write_tokens(rows, work), work / "logits.safetensors"
    done = run(
        "forward",
        *("--model", str(folder), "--tokens", str(file), "--device", device, "--out", str(out)),
        *options,
    )
    assert done.returncode == 0, done.stderr
    return load_file(out)["logits"].double()


def generated(folder: Path, prompt: list[int], work: Path, *options: str) -> list[int]:
    return generated_rows(folder, [prompt], work, *options)[0]


def generated_rows(
    folder: Path, prompts: list[list[int]], work: Path, *options: str
) -> list[list[int]]:
    report = work / "generated.jsonl"
    done = run(
        "generate",
        *("--model", str(folder), "--tokens", str(write_tokens(prompts, work))),
        *("--json", str(report), "--ignore-stop"),
        *options,
    )
    assert done.returncode == 0, done.stderr
    line = json.loads(report.read_text().splitlines()[1])
    return list(line["tokens"])


def write_tokens(rows: list[list[int]], work: Path) -> Path:
    file = work / "tokens.txt"
    file.write_text("\n".join(" ".join(str(i) for i in row) for row in rows) + "\n")
    return file


@torch.no_grad()
def reference(model: torch.nn.Module, rows: list[list[int]]) -> torch.Tensor:
    return model(input_ids=torch.tensor(rows), use_cache=False).logits.double()


def padded(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """What transformers' generate() is given for rows of different lengths."""
    length = max(len(row) for row in rows)
    ids = torch.tensor([[0] * (length - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


@torch.no_grad()
def cached(model: torch.nn.Module, rows: list[list[int]], chunk: int) -> torch.Tensor:
    """The same in pieces of `chunk` tokens, the cache in between."""
    cache, parts = None, []
    for ids in torch.tensor(rows).split(chunk, 1):
        out = model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        parts.append(out.logits.double())
    return torch.cat(parts, 1)


@torch.no_grad()
def oracle(model: torch.nn.Module, rows: list[list[int]]) -> torch.Tensor:
    """The same code in float64."""
    call = {"input_ids": torch.tensor(rows), "use_cache": False}
    return run_lifted(model.forward, (), call, [model]).result.logits


@torch.no_grad()
def refine_frequencies(model: torch.nn.Module) -> None:
    """Rotary frequencies as the same code computes them in float64, rounded once to float32."""
    rotary = getattr(model.model, "rotary_emb", None)
    if rotary is None:
        return
    compute = ROPE_INIT_FUNCTIONS.get(rotary.rope_type, rotary.compute_default_rope_parameters)
    exact = run_lifted(compute, (model.config,), {}).result[0]
    assert exact.dtype == torch.float64
    for name in ("inv_freq", "original_inv_freq"):
        rotary.register_buffer(name, in_float32(exact), persistent=False)


def round_longrope(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of the frequencies that a call computes itself, under the lift."""
    compute = ROPE_INIT_FUNCTIONS["longrope"]

    def rounded(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, float]:
        frequencies, scaling = compute(*args, **kwargs)
        return in_float32(frequencies), scaling

    monkeypatch.setitem(ROPE_INIT_FUNCTIONS, "longrope", rounded)


def in_float32(x: torch.Tensor) -> torch.Tensor:
    """Rounded, under the lift as well."""
    with _disable_current_modes():
        return x.float().double()


def error(x: torch.Tensor, truth: torch.Tensor) -> float:
    """Root mean square of the error, relative."""
    return float((x - truth).square().mean().sqrt() / truth.square().mean().sqrt())
