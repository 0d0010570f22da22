"""A model that exists for its parts: blocks and features that LLaMA and Gemma2 do not have.

LayerNorm, every activation function, an MLP with packed projections, biases and GELU by erf, rotary
on a part of the head in interleaved pairs (GLM's), attention under explicit masks, norms of
small activations (which see eps), and a head with a bias. transformers' own functions do the work.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.glm.modeling_glm import apply_rotary_pos_emb
from transformers.models.llama.modeling_llama import LlamaRMSNorm, eager_attention_forward

from ..compatibility import PreTrainedConfig, attention_function

SMALL = 2.0**-9
"""Scale of the activations of the small norms: their mean square is of the order of eps."""


class BlocksConfig(PreTrainedConfig):
    """Sizes; everything else is fixed."""

    model_type = "blocks"
    vocab_size: int = 47
    hidden_size: int = 32
    intermediate_size: int = 40
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 12
    rotary_dim: int = 8
    norm_eps: float = 1e-5


class BlocksMLP(torch.nn.Module):
    """down(gelu(gate) * up) with gate and up packed in one projection, gate first."""

    def __init__(self, config: BlocksConfig) -> None:
        super().__init__()
        self.gate_up_proj = torch.nn.Linear(config.hidden_size, 2 * config.intermediate_size)
        self.down_proj = torch.nn.Linear(config.intermediate_size, config.hidden_size)
        self.act_fn = torch.nn.GELU()

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(hidden_states).chunk(2, dim=-1)
        return self.down_proj(self.act_fn(gate) * up)


class BlocksAttention(torch.nn.Module):
    """Attention without a mask of its own: it sees what the mask it is given allows."""

    is_causal = False

    def __init__(self, config: BlocksConfig) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = 0
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.head_dim**-0.5
        width = config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = torch.nn.Linear(config.hidden_size, width)
        self.k_proj = torch.nn.Linear(config.hidden_size, kv_width)
        self.v_proj = torch.nn.Linear(config.hidden_size, kv_width)
        self.o_proj = torch.nn.Linear(width, config.hidden_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        key = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        value = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        attend = attention_function(self.config._attn_implementation, eager_attention_forward)
        out, weights = attend(
            self, query, key, value, attention_mask, scaling=self.scaling, is_causal=False
        )
        return self.o_proj(out.reshape(*hidden_states.shape[:-1], -1).contiguous()), weights


class BlocksPreTrainedModel(PreTrainedModel):
    """What transformers must know to choose an attention function."""

    config_class = BlocksConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Weights are drawn by python_inspector.models.tiny."""


class BlocksModel(BlocksPreTrainedModel):
    """The blocks in a row, each on a normed input."""

    def __init__(self, config: BlocksConfig) -> None:
        super().__init__(config)
        self.embed_tokens = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.norm = torch.nn.LayerNorm(config.hidden_size, config.norm_eps)
        self.gelu = torch.nn.GELU()
        self.gelu_tanh = torch.nn.GELU(approximate="tanh")
        self.silu = torch.nn.SiLU()
        self.tanh = torch.nn.Tanh()
        self.small_layer_norm = torch.nn.LayerNorm(config.hidden_size, config.norm_eps)
        self.small_llama_norm = LlamaRMSNorm(config.hidden_size, config.norm_eps)
        self.small_gemma_norm = Gemma2RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = BlocksMLP(config)
        self.self_attn = BlocksAttention(config)
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> BaseModelOutput:
        hidden = self.embed_tokens(input_ids)
        normed = self.norm(hidden)
        for function in (self.gelu, self.gelu_tanh, self.silu, self.tanh):
            function(3 * normed)
        for norm in (self.small_layer_norm, self.small_llama_norm, self.small_gemma_norm):
            norm(SMALL * hidden)
        hidden = hidden + self.mlp(normed)
        table = rotary_table(input_ids.shape[1], self.config.rotary_dim, hidden)
        for mask in explicit_masks(
            self.config.num_attention_heads, self.config._attn_implementation, hidden
        ):
            hidden = hidden + self.self_attn(self.norm(hidden), table, mask)[0]
        return BaseModelOutput(last_hidden_state=self.norm(hidden))


class BlocksForCausalLM(BlocksPreTrainedModel):
    """The blocks under a head with a bias."""

    def __init__(self, config: BlocksConfig) -> None:
        super().__init__(config)
        self.model = BlocksModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        use_cache: bool = False,
        logits_to_keep: int = 0,
    ) -> CausalLMOutput:
        hidden = self.model(input_ids=input_ids).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(hidden[:, -logits_to_keep:, :]))


def rotary_table(tokens: int, width: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [1, tokens, width] as GLM has them, angles in float32."""
    inv_freq = 1.0 / 10000.0 ** (torch.arange(0, width, 2, device=like.device).float() / width)
    angles = torch.arange(tokens, device=like.device).float()[:, None] * inv_freq
    angles = torch.cat([angles, angles], -1)[None]
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def explicit_masks(
    heads: int, implementation: str | None, hidden: torch.Tensor
) -> list[torch.Tensor | None]:
    """Masks that no causal rule gives: none, an additive one per head, an additive and a bool one.

    The additive ones hold finite biases (a slope per head, as ALiBi) and, in the second, forbidden
    keys. The bool one, for sdpa only, leaves the first query of the first row without a key.
    """
    batch, tokens = hidden.shape[:2]
    place = torch.arange(tokens, device=hidden.device)
    distance = (place[:, None] - place[None, :]).abs().float()
    slopes = 2.0 ** -torch.arange(1, heads + 1, device=hidden.device)
    biases = (-slopes[:, None, None] * distance).expand(batch, -1, -1, -1).to(hidden.dtype)
    allowed = ((place[:, None] * 3 + place[None, :]) % 5 != 0).expand(batch, 1, -1, -1).clone()
    allowed |= torch.eye(tokens, dtype=torch.bool, device=hidden.device)
    forbidden = torch.finfo(hidden.dtype).min
    masks: list[torch.Tensor | None] = [None, biases]
    masks.append(torch.where(allowed, biases[:, :1], forbidden))
    if implementation == "sdpa":
        allowed[0, 0, 0] = False
        masks.append(allowed)
    return masks


def build_blocks(dtype: torch.dtype, attention: str, sizes: dict[str, Any]) -> torch.nn.Module:
    """The model with uninitialised weights."""
    config = BlocksConfig(**sizes)
    model: torch.nn.Module = BlocksForCausalLM._from_config(
        config, dtype=dtype, attn_implementation=attention
    )
    return model
