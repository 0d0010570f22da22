"""Draws a tiny random model and a run of it, from a seed and an index alone.

Sizes are odd and even and stay below the tile of any kernel; what a family does not have is not
drawn for it. Weights are those of python_inspector.models.tiny, whose gain is scaled by 0.7 to 1.4;
half of the models have values as trained ones have them, too (values.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from python_inspector import tiny
from python_inspector.format.recording import TORCH_DTYPES
from python_inspector.models.inputs import RunPlan, pad_left, random_ids
from tests.panel.values import KINDS, change

ROPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
_CACHES = ((None, "dynamic", "dynamic", "static"), (None, "dynamic", "dynamic"))
"""The second: of Zamba2, whose states the recorder does not know in a static cache."""
_TABLE = 80  # positions that a model without scaling knows


@dataclass(frozen=True)
class Draw:
    """One recording to be: a model, its weights, and what it is run on."""

    seed: int
    index: int
    family: str
    config: dict[str, Any]
    dtype: str
    attention: str
    weight_seed: int
    weight_scale: float
    tokens: int
    steps: int
    batch: int
    chunks: tuple[int, ...] | None
    left_pad: tuple[int, ...] | None
    cache: str | None
    chained: bool
    emulator: str
    """Which width of sub-groups the emulated GPU has."""
    marks: tuple[str, ...] = field(default=())
    """What is peculiar to it, for a table."""
    values: str = ""
    """A kind of weights of values.py."""

    def about(self) -> str:
        """The draw in a line."""
        run = f"{self.batch} x {self.tokens} tokens"
        parts = [
            self.family,
            self.dtype,
            self.attention,
            *self.marks,
            self.values,
            f"weights x {self.weight_scale:.2f}",
            run if self.chunks is None else f"{run} in {'+'.join(map(str, self.chunks))}",
            f"{self.steps} steps" if self.steps else "",
            f"padding {list(self.left_pad)}" if self.left_pad else "",
            f"{self.cache} cache" if self.cache else "",
            "chained" if self.chained else "",
        ]
        return ", ".join(part for part in parts if part)

    def model(self) -> torch.nn.Module:
        """In eval mode, its weights drawn in float32 and rounded once."""
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.for_model(self.family, **self.config)
        model = AutoModelForCausalLM.from_config(
            config, dtype=TORCH_DTYPES[self.dtype], attn_implementation=self.attention
        )
        gain = tiny.ZAMBA2_GAIN if self.family == "zamba2" else tiny.GAIN
        weights = tiny.draw_weights(
            model,
            self.weight_seed,
            zero_centred_norms=self.family == "gemma2",
            gain=gain * self.weight_scale,
        )
        change(weights, self.values, self.dtype, self.weight_seed)
        tiny.load_weights(model, weights)
        return model.eval()

    def plan(self) -> RunPlan:
        """What the model is run on."""
        width = self.tokens + self.steps
        ids = random_ids(self.batch, width, self.config["vocab_size"], seed=self.weight_seed)
        if self.left_pad:
            ids = pad_left(ids, self.left_pad)
        room = width + self.index % 4
        return RunPlan(
            ids, self.tokens, self.steps, self.chunks, self.left_pad, self.cache, max_length=room
        )


def draw(seed: int, index: int, *, trained: bool = False) -> Draw:
    """The panel's recording `index` under a seed: the same on any machine. `trained`: half of them
    have values as trained models have, or an untied head."""
    dice = random.Random(f"{seed}:{index}")
    family = FAMILIES[index % len(FAMILIES)]
    config, marks = _MODELS[family](dice)
    untied, values = _as_trained(seed, index, family) if trained else (False, "")
    if untied:
        config["tie_word_embeddings"] = False
        marks = [*marks, "untied"]
    eager = family == "gemma2" or dice.random() < 0.5
    return Draw(
        seed=seed,
        index=index,
        family=family,
        config=config,
        dtype=dice.choice(("f32", "f32", "bf16", "bf16", "f16")),
        attention="eager" if eager else "sdpa",
        weight_seed=dice.randrange(1, 10**6),
        weight_scale=2 ** dice.uniform(-0.515, 0.485),
        chained=dice.random() < 0.6,
        emulator=dice.choice(("emu:32", "emu:64")),
        marks=tuple(marks),
        values=values,
        **_run(dice, _CACHES[family == "zamba2"]),
    )


def _as_trained(seed: int, index: int, family: str) -> tuple[bool, str]:
    """Whether the head is untied where that is unusual, and the kind of values."""
    dice = random.Random(f"{seed}:{index}:values")
    untied = family in ("gemma2", "zamba2") and dice.random() < 0.5
    return untied, dice.choice(("", "", "", *KINDS))


def _run(dice: random.Random, caches: tuple[str | None, ...]) -> dict[str, Any]:
    tokens, batch = dice.randint(1, 19), dice.choice((1, 1, 2, 3))
    cache = dice.choice(caches)
    chunks, left_pad = None, None
    if cache and tokens > 3 and dice.random() < 0.35:
        first = dice.randint(1, tokens - 2)
        second = dice.randint(1, tokens - first - 1)
        chunks = (first, second, tokens - first - second)
    elif tokens > 2 and dice.random() < 0.4:
        left_pad = tuple(dice.randrange(tokens) for _ in range(batch))
        left_pad = left_pad if any(left_pad) else (1, *left_pad[1:])
    steps = dice.randint(0 if chunks else 1, 3) if cache else 0
    run = {"tokens": tokens, "batch": batch, "steps": steps, "cache": cache}
    return {**run, "chunks": chunks, "left_pad": left_pad}


def _transformer(dice: random.Random) -> dict[str, Any]:
    hidden = dice.choice((16, 21, 24, 27, 32, 33, 40, 45, 48))
    heads = dice.choice([n for n in (1, 2, 3, 4, 5, 6, 8) if hidden % n == 0])
    groups = [n for n in range(1, heads + 1) if heads % n == 0]
    return {
        "vocab_size": dice.randint(23, 97),
        "hidden_size": hidden,
        "intermediate_size": dice.choice((16, 23, 31, 40, 48, 57)),
        "num_hidden_layers": dice.choice((1, 2, 2, 3)),
        "num_attention_heads": heads,
        "num_key_value_heads": dice.choice(groups),
        "head_dim": dice.choice((4, 6, 8, 10, 12, 16, 18)),
        "rms_norm_eps": dice.choice((1e-5, 1e-6)),
        "tie_word_embeddings": dice.random() < 0.4,
        "max_position_embeddings": _TABLE,
    }


def _rope(dice: random.Random, head_dim: int) -> tuple[dict[str, Any], str]:
    kind = dice.choice(ROPES)
    theta = dice.choice((10000.0, 500000.0))
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": theta}
    known = _TABLE
    if kind == "linear":
        rope["factor"] = dice.choice((2.0, 4.0))
    elif kind == "dynamic":
        known = dice.choice((6, 10, 20))
        rope["factor"] = dice.choice((2.0, 4.0))
    elif kind == "llama3":
        scale = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rope |= scale | {"original_max_position_embeddings": 16}
    elif kind == "yarn":
        original = dice.choice((16, 4096))
        known = 4 * original
        rope |= {"factor": 4.0, "original_max_position_embeddings": original}
    elif kind == "longrope":
        original = dice.choice((6, 10, 20))
        known, pairs = 4 * original, range(head_dim // 2)
        rope |= {"factor": 4.0, "original_max_position_embeddings": original}
        rope["short_factor"] = [1.0 + 0.05 * i for i in pairs]
        rope["long_factor"] = [1.0 + 0.3 * i for i in pairs]
    return {"rope_parameters": rope, "max_position_embeddings": known}, kind


def _with_rope(dice: random.Random, config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    rope, kind = _rope(dice, config["head_dim"])
    return config | rope, [] if kind == "default" else [f"rope {kind}"]


def _llama(dice: random.Random) -> tuple[dict[str, Any], list[str]]:
    config, marks = _with_rope(dice, _transformer(dice))
    for name in ("attention_bias", "mlp_bias"):
        config[name] = dice.random() < 0.3
        marks += [name] if config[name] else []
    return config, marks


def _mistral(dice: random.Random) -> tuple[dict[str, Any], list[str]]:
    config, marks = _with_rope(dice, _transformer(dice))
    config["sliding_window"] = dice.choice((None, 2, 3, 4, 7))
    return config, [*marks, f"window {config['sliding_window']}"]


def _qwen2(dice: random.Random) -> tuple[dict[str, Any], list[str]]:
    config, marks = _with_rope(dice, _transformer(dice))
    config["use_sliding_window"] = dice.random() < 0.6
    config["sliding_window"] = dice.choice((2, 4, 7))
    config["max_window_layers"] = dice.randint(0, config["num_hidden_layers"])
    used = config["use_sliding_window"]
    return config, [*marks, *([f"window {config['sliding_window']}"] if used else [])]


def _gemma2(dice: random.Random) -> tuple[dict[str, Any], list[str]]:
    config = _transformer(dice)
    config |= {
        "query_pre_attn_scalar": dice.choice((config["head_dim"], 20)),
        "sliding_window": dice.choice((2, 3, 5, 8)),
        "attn_logit_softcapping": dice.choice((None, 3.0, 30.0)),
        "final_logit_softcapping": dice.choice((None, 2.0, 30.0)),
    }
    caps = config["attn_logit_softcapping"], config["final_logit_softcapping"]
    return config, [f"window {config['sliding_window']}", f"softcaps {caps[0]}, {caps[1]}"]


def _zamba2(dice: random.Random) -> tuple[dict[str, Any], list[str]]:
    # The attention of a hybrid layer is twice as wide as the model, its head_dim has to be even.
    hidden, heads = dice.choice(((24, 2), (24, 4), (32, 4), (33, 3), (27, 3), (40, 4)))
    layers = ["linear_attention", "hybrid", *dice.choice((["linear_attention"], ["hybrid"], []))]
    mamba_heads = dice.choice([n for n in (2, 3, 4, 6) if 2 * hidden % n == 0])
    groups = [n for n in (1, 2, 3) if mamba_heads % n == 0 and 2 * hidden % n == 0]
    rope, adapters = dice.random() < 0.6, dice.random() < 0.5
    config = {
        "vocab_size": dice.randint(23, 97),
        "hidden_size": hidden,
        "intermediate_size": dice.choice((23, 31, 40, 48)),
        "num_hidden_layers": len(layers),
        "layers_block_type": layers,
        "num_attention_heads": heads,
        "n_mamba_heads": mamba_heads,
        "mamba_d_state": dice.choice((4, 7, 8)),
        "mamba_ngroups": dice.choice(groups),
        "mamba_d_conv": dice.choice((2, 3, 4)),
        "chunk_size": dice.choice((3, 4, 8)),
        "adapter_rank": dice.choice((2, 3, 4)),
        "num_mem_blocks": dice.choice((1, layers.count("hybrid"))),
        "use_shared_attention_adapter": adapters,
        "use_mem_rope": rope,
        "time_step_min": dice.choice((0.001, 0.5)),
        "add_bias_linear": dice.random() < 0.3,
        "max_position_embeddings": _TABLE,
    }
    return config, [name for name, on in (("rope", rope), ("adapters", adapters)) if on]


_MODELS: dict[str, Callable[[random.Random], tuple[dict[str, Any], list[str]]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "gemma2": _gemma2,
    "zamba2": _zamba2,
}
FAMILIES = tuple(_MODELS)
