"""Blocks at published sizes: transformers' own modules, each called alone on generated tensors.

Tiny models are below the tile of every kernel. Here head and hidden sizes are those of published
models; weights and inputs are generated (format/generator.py), of large outputs only chosen rows
and a sketch are stored (format/sampled.py), so that a recording of any size stays small.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch

from ..errors import FormatError
from ..format.blocks import BLOCKS
from ..format.generator import UNIT, Generator, generate
from ..format.recording import TORCH_DTYPES
from ..format.sampled import Sampling
from ..format.summary import Summary
from ..models.sizes import SIZES
from ..recorder import session
from ..recorder.recorder import Recorder
from ..recorder.where import Where
from ..taps.calls import Block
from ..taps.options import COMPONENTS, What
from ..trace.replay import aside

SOURCE = "shape:"
NORM_SPREAD = -17
"""Exponent of norm weights: sigma 0.29 around 1, or around 0 where the model adds the one."""
SHARPER = 2
"""Exponent of what Gemma2's query and key projections are larger by: scores reach the softcap."""
EPSILONS = {"eps_1e6_norm": 1e-6, "eps_1e5_norm": 1e-5, "eps_156e9_norm": 1.5625e-7}
"""Norms by what models have as eps, to be seen on small inputs."""
_LEFT_OUT = {"glu_activation", "causal_mask"}
"""Blocks whose inputs are no generated tensors, or whose outputs are exact and in tiny models."""
KINDS = tuple(sorted(set(BLOCKS) - _LEFT_OUT - COMPONENTS))

Sizes = Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """A shape, how it computes, and which of its parts are built."""

    shape: str
    dtype: str
    parts: tuple[str, ...]
    attention: str = "eager"
    sizes: Sizes = field(default_factory=dict)
    """Replaces published sizes."""
    device: str = "cpu"


Step = Callable[["Stage"], None]
"""Calls parts of a stage's model; each is a forward call of the recording."""


class Parts(torch.nn.Module):
    """Modules of one architecture side by side; a forward runs one step on them."""

    def __init__(self, config: Any, parts: Mapping[str, torch.nn.Module]) -> None:
        super().__init__()
        self.config = config
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, step: Step, stage: Stage) -> None:
        with torch.no_grad():
            step(stage)


class Stage:
    """What a step works with: the model and generated tensors, known to the recording as such."""

    def __init__(self, model: Parts, recorder: Recorder, subject: Subject) -> None:
        self.model: Any = model
        self.config: Any = model.config
        self.dtype = TORCH_DTYPES[subject.dtype]
        self.device = subject.device
        self.file = modeling_file(self.config.model_type)
        self._recorder = recorder
        self._inputs: dict[tuple[Any, ...], torch.Tensor] = {}
        for name, parameter in model.named_parameters():
            recorder.writer.generated(parameter, weight_generator(name, parameter, self.config))

    def tensor(self, name: str, *shape: int, exponent: int = UNIT) -> torch.Tensor:
        """A generated tensor, the same for the same name, shape and exponent."""
        key = (name, shape, exponent)
        if key not in self._inputs:
            generator = Generator(seed_of(name), exponent)
            made = generate(generator, self.dtype, shape, self.device)
            self._recorder.writer.generated(made, generator)
            self._inputs[key] = made
        return self._inputs[key]

    def record(self, name: str, block: Block, run: Callable[..., Any], given: Any) -> None:
        """A function that belongs to no model, as a block."""
        result = run(*given)
        self._recorder.record("", name, block, result, lambda again: again(run, given, {}))

    def hidden(self, tokens: int) -> torch.Tensor:
        return self.tensor("hidden", 1, tokens, self.config.hidden_size)

    def positions(self, tokens: int, offset: int = 0) -> torch.Tensor:
        return torch.arange(offset, offset + tokens, device=self.device)[None]

    def cache(self, tokens: int) -> Any:
        """A cache with generated keys and values of layer 0, as it is after `tokens` tokens (a
        window keeps fewer); None for no tokens."""
        if tokens == 0:
            return None
        from transformers import DynamicCache

        shape = (1, self.config.num_key_value_heads, tokens, self.config.head_dim)
        zeros = torch.zeros(shape, dtype=self.dtype, device=self.device)
        with aside():
            cache = DynamicCache(config=self.config)
            cache.update(zeros, zeros, 0)
        layer: Any = cache.layers[0]
        shape = tuple(layer.keys.shape)
        layer.keys = self.tensor("cached keys", *shape)
        layer.values = self.tensor("cached values", *shape)
        return cache

    def mask(self, queries: int, cache: Any, *, sliding: bool) -> torch.Tensor | None:
        """The mask transformers makes for that many queries behind what the cache holds."""
        make = self.file.create_causal_mask
        if sliding:
            make = self.file.create_sliding_window_causal_mask
        return make(
            config=self.config,
            inputs_embeds=torch.empty(1, queries, 1, dtype=self.dtype, device=self.device),
            attention_mask=None,
            past_key_values=cache,
        )

    def table(self, tokens: int, offset: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of the positions, by the model's own module."""
        return self.model.rotary_emb(self.hidden(1), self.positions(tokens, offset))

    @property
    def sliding(self) -> bool:
        """Whether layer 0 has a window."""
        return getattr(self.config, "layer_types", ["full_attention"])[0] == "sliding_attention"


def record_parts(
    subject: Subject,
    steps: Sequence[Step],
    where: Where,
    run: Mapping[str, Any],
    sampling: Sampling,
    advance: Callable[[], None],
) -> Summary:
    """Builds the subject, runs the steps on it and records them; `advance`: after each."""
    model = build(subject)
    what = What(blocks=KINDS, internals=False, sampling=sampling, direct=True)
    run = {"batch": 1, "steps": 0, "chunks": None, "left_pad": None, "cache": None} | dict(run)
    where = replace(where, source=SOURCE + subject.shape, run=run)
    with session.record(model, where, what) as recorder:
        stage = Stage(model, recorder, subject)
        for step in steps:
            model(step, stage)
            advance()
    assert recorder.summary is not None
    return recorder.summary


def _one_layer(sizes: Sizes) -> dict[str, Any]:
    """A layer of each kind, with a small vocabulary: nothing here needs it whole."""
    theta, scaling = sizes.get("rope_theta"), sizes.get("rope_scaling", {})
    rope = {"rope_type": "default", "rope_theta": theta} | scaling
    kinds = ["linear_attention", "hybrid"] if sizes["model_type"] == "zamba2" else []
    left_out = ("rope_theta", "rope_scaling", "tie_word_embeddings", "layers_block_type")
    return {
        **{key: value for key, value in sizes.items() if key not in left_out},
        "vocab_size": 1000,
        "num_hidden_layers": max(len(kinds), 1),
        **({"layers_block_type": kinds} if kinds else {}),
        **({"rope_parameters": rope} if theta else {}),
    }


def build(subject: Subject) -> Parts:
    """The parts with generated weights, in eval mode; FormatError for an unknown shape."""
    if subject.shape not in SIZES:
        raise FormatError(f"no shape {subject.shape!r}; known are {', '.join(SIZES)}")
    from transformers import AutoConfig

    config = AutoConfig.for_model(**{**_one_layer(SIZES[subject.shape]), **subject.sizes})
    config._attn_implementation = subject.attention
    dtype = TORCH_DTYPES[subject.dtype]
    parts = {name: _part(name, config, dtype) for name in subject.parts}
    model = Parts(config, parts).eval()
    for name, parameter in model.named_parameters():
        rule = weight_generator(name, parameter, config)
        parameter.data = generate(rule, dtype, tuple(parameter.shape), subject.device)
    return model.to(subject.device)


def _part(name: str, config: Any, dtype: torch.dtype) -> torch.nn.Module:
    """A part by name; its weights are allocated, not drawn. A rotary embedding stays float32."""
    from ..compatibility import no_init_weights

    file = modeling_file(config.model_type)
    prefix = {"llama": "Llama", "gemma2": "Gemma2", "zamba2": "Zamba2"}[config.model_type]

    def kind(suffix: str) -> Any:
        return getattr(file, prefix + suffix)

    hidden, eps = config.hidden_size, config.rms_norm_eps
    nn = torch.nn

    def hybrid() -> nn.Module:
        parts = kind("AttentionDecoderLayer")(config, block_id=0), nn.Linear(hidden, hidden, False)
        return kind("HybridLayer")(*parts, kind("MambaDecoderLayer")(config, layer_idx=1))

    makers: dict[str, Callable[[], nn.Module]] = {
        "norm": lambda: kind("RMSNorm")(hidden, eps=eps),
        "self_attn": lambda: kind("Attention")(config, 0),
        "mlp": lambda: kind("MLP")(config),
        "layer": lambda: kind("DecoderLayer")(config, 0),
        "mamba": lambda: kind("MambaDecoderLayer")(config, layer_idx=0),
        "hybrid": hybrid,
        "odd_linear": lambda: nn.Linear(1031, 257),
        "wide_linear": lambda: nn.Linear(4104, 1032, bias=False),
        "layer_norm": lambda: nn.LayerNorm(hidden),
        "odd_layer_norm": lambda: nn.LayerNorm(1031),
        "odd_norm": lambda: kind("RMSNorm")(1031, eps=eps),
        "embedding": lambda: nn.Embedding(257, hidden),
        "large_embedding": lambda: nn.Embedding(config.vocab_size, hidden),
        "silu": nn.SiLU,
        "gelu": nn.GELU,
        "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    }
    if name == "rotary_emb":
        return kind("RotaryEmbedding")(config=config)
    if name == "causal_lm":  # without layers; its rotary embedding stays float32, too
        return kind("ForCausalLM")._from_config(
            type(config)(**(config.to_dict() | {"num_hidden_layers": 0, "layer_types": []})),
            dtype=dtype,
        )
    if name in EPSILONS:
        return kind("RMSNorm")(hidden, eps=EPSILONS[name]).to(dtype)
    with no_init_weights():
        return makers[name]().to(dtype)


def modeling_file(model_type: str) -> Any:
    """The Python module of transformers that defines an architecture."""
    from transformers import AutoModelForCausalLM  # noqa: F401  (registers the architectures)

    name = f"transformers.models.{model_type}.modeling_{model_type}"
    __import__(name)
    return sys.modules[name]


def weight_generator(name: str, parameter: torch.Tensor, config: Any) -> Generator:
    """Matrices of about 1 / sqrt(inner size), embeddings of 1, norms around what does nothing."""
    if parameter.dim() > 1:
        inner = 1 if "embed" in name else parameter[0].numel()
        scores = config.model_type == "gemma2" and name.endswith(("q_proj.weight", "k_proj.weight"))
        exponent = UNIT - round(math.log2(inner) / 2) + (SHARPER if scores else 0)
        return Generator(seed_of(name), exponent)
    factor = name.endswith(("norm.weight", "mamba.D"))
    centred = config.model_type == "gemma2" and "layer_norm" not in name
    return Generator(seed_of(name), NORM_SPREAD, 1 if factor and not centred else 0)


def seed_of(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "little")


def attention_module(groups: int) -> Any:
    """What an attention function reads of the module it is called for."""
    return SimpleNamespace(num_key_value_groups=groups, training=False, is_causal=True)
