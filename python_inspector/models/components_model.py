"""A model that exists for operations that LLaMA, Gemma2 and Zamba2 do not have: divisions.

An expert router's probabilities (Mixtral's) and embeddings of unit length (CLIP's), by
transformers' own code.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.clip.modeling_clip import _get_vector_norm
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter

from ..compatibility import PreTrainedConfig


class ComponentsConfig(PreTrainedConfig):
    """Sizes; everything else is fixed."""

    model_type = "components"
    vocab_size: int = 47
    hidden_size: int = 32
    num_local_experts: int = 6
    num_experts_per_tok: int = 3


class ComponentsModel(PreTrainedModel):
    """The embedding's rows, divided by their length, and the router's choice for them."""

    config_class = ComponentsConfig
    _supports_sdpa = True

    def __init__(self, config: ComponentsConfig) -> None:
        super().__init__(config)
        self.embed_tokens = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.router = MixtralTopKRouter(config)
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Weights are drawn by python_inspector.models.tiny."""

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        use_cache: bool = False,
        logits_to_keep: int = 0,
    ) -> CausalLMOutput:
        hidden = self.embed_tokens(input_ids)
        hidden = hidden / _get_vector_norm(hidden)
        logits, _, _ = self.router(hidden)
        return CausalLMOutput(logits=logits)


def build_components(dtype: torch.dtype) -> torch.nn.Module:
    """The model with uninitialised weights."""
    model: torch.nn.Module = ComponentsModel._from_config(ComponentsConfig(), dtype=dtype)
    return model
