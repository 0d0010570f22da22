"""A recorded model as a GGUF file, as llama.cpp's converter writes it, without a vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from ..layouts import interleaved_from_half
from ..weights import config_of, weights_of
from .engine import head_dim, require, rope_theta, windows

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "gemma2": "gemma2"}
TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def write(recording: Path | str, path: Path) -> tuple[str, ...]:
    """Writes the model; what of its configuration the format cannot say."""
    hf = config_of(recording)
    kind = hf["model_type"]
    require(kind in ARCHITECTURES, f"no architecture for {kind}")
    writer = gguf.GGUFWriter(str(path), ARCHITECTURES[kind])
    notes = _settings(writer, hf)
    names = gguf.get_tensor_name_map(
        getattr(gguf.MODEL_ARCH, ARCHITECTURES[kind].upper()), hf["num_hidden_layers"]
    )
    for name, weight in weights_of(recording).items():
        if name == "lm_head.weight" and hf["tie_word_embeddings"]:
            continue
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        _add(writer, theirs, _converted(hf, name, weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return notes


def _settings(writer: Any, hf: dict[str, Any]) -> tuple[str, ...]:
    size = head_dim(hf)
    writer.add_vocab_size(hf["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_token_list([str(token) for token in range(hf["vocab_size"])])  # some count them
    writer.add_context_length(hf["max_position_embeddings"])
    writer.add_embedding_length(hf["hidden_size"])
    writer.add_block_count(hf["num_hidden_layers"])
    writer.add_feed_forward_length(hf["intermediate_size"])
    writer.add_head_count(hf["num_attention_heads"])
    writer.add_head_count_kv(hf["num_key_value_heads"])
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(rope_theta(hf))
    writer.add_layer_norm_rms_eps(hf["rms_norm_eps"])
    if hf["model_type"] == "gemma2":
        scalar = hf["query_pre_attn_scalar"]
        require(scalar == size, f"a scale of 1 / sqrt({scalar}) for heads of {size}: it has no key")
        writer.add_attn_logit_softcapping(hf["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(hf["final_logit_softcapping"])
        writer.add_sliding_window(hf["sliding_window"])
        return ()
    return ("a window, for which the architecture has no key",) if any(windows(hf)) else ()


def _converted(hf: dict[str, Any], name: str, weight: torch.Tensor) -> torch.Tensor:
    """As its converter does: pairs of rotary rows side by side, 1 in Gemma's norm weights."""
    rotary = name.endswith(("q_proj.weight", "k_proj.weight"))
    if rotary and ARCHITECTURES[hf["model_type"]] == "llama":
        weight = interleaved_from_half(head_dim(hf), axis=0)(weight)
    if hf["model_type"] == "gemma2" and name.endswith("norm.weight"):
        weight = weight.float() + 1
    return weight


def _add(writer: Any, name: str, weight: torch.Tensor) -> None:
    """Vectors in float32, as all its files have them."""
    if weight.dim() == 1 or weight.dtype == torch.float32:
        writer.add_tensor(name, weight.float().numpy())
        return
    bits = weight.contiguous().view(torch.int16).numpy().view(np.uint16)
    kind = getattr(gguf.GGMLQuantizationType, TYPES[weight.dtype])
    if weight.dtype == torch.bfloat16:
        writer.add_tensor(name, bits.view(np.uint8), raw_dtype=kind)
    else:
        writer.add_tensor(name, bits.view(np.float16))
