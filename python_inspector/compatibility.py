"""What differs between the versions of torch and transformers that recording works with.

The rest of the package is written against the newest proven version; where an older one has a thing
under another name, elsewhere or not at all, it is asked for here. `ci/versions`
records with pairs of both and has the harness verify what came out.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib import metadata
from typing import Any

from . import versions

ZAMBA2 = (5, 17)
"""Of transformers: 5.15 has the functions that its taps need, but cannot build small models."""


versions.require("recording", *versions.PROVEN)

# Below, so that a version that has none of it gets the line above.
import torch  # noqa: E402
from transformers import cache_utils, configuration_utils, modeling_utils  # noqa: E402
from transformers.generation import GenerationMixin  # noqa: E402
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402


class _Absent:
    """In place of a class that this version does not have: no object is one."""


# 5.6 and newer.
LinearAttentionLayer: Any = getattr(cache_utils, "LinearAttentionLayer", _Absent)
LinearAttentionAndFullAttentionLayer: Any = getattr(
    cache_utils, "LinearAttentionAndFullAttentionLayer", _Absent
)
# Spelled "Pretrained" before 5.0.
PreTrainedConfig: Any = getattr(configuration_utils, "PreTrainedConfig", None) or getattr(
    configuration_utils, "PretrainedConfig", None
)
MAKES_POSITIONS = "_prepare_position_ids_for_generation"
"""The method of GenerationMixin that makes position ids of a mask, where it is one of its own."""
has_positions_method = hasattr(GenerationMixin, MAKES_POSITIONS)


def positions_of_mask(model: Any, ids: Any, mask: Any) -> Any:
    """The position ids that generate() gives a padded batch."""
    if has_positions_method:
        return getattr(model, MAKES_POSITIONS)(ids, {"attention_mask": mask})
    return (mask.long().cumsum(-1) - 1).masked_fill(mask == 0, 0)


def no_init_weights() -> AbstractContextManager[None]:
    """Modules made meanwhile have weights that were never drawn."""
    own = importlib.util.find_spec("transformers.initialization")  # 5.0 and newer
    home = importlib.import_module(own.name) if own else modeling_utils
    made: AbstractContextManager[None] = vars(home)["no_init_weights"]()
    return made


def attention_function(name: str, eager: Callable[..., Any]) -> Callable[..., Any]:
    """The attention function of that name; `eager` is the modeling file's own."""
    table = modeling_utils.ALL_ATTENTION_FUNCTIONS
    chosen: Callable[..., Any] = eager if name == "eager" else table[name]
    return chosen


def mask_question(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a mask function was asked, with q_length and q_offset where the slots were given."""
    if "q_length" in asked:
        return asked
    slots = asked["cache_position"]
    return {**asked, "q_length": len(slots), "q_offset": int(slots[0])}


def rope_parameters(config: Any) -> Mapping[str, Any]:
    """The rotary parameters of a config, rope_theta among them."""
    parameters = getattr(config, "rope_parameters", None)
    if parameters is not None:
        known: Mapping[str, Any] = parameters
        return known
    scaling = getattr(config, "rope_scaling", None) or {}
    original = getattr(config, "original_max_position_embeddings", None)
    own = {"rope_theta": config.rope_theta}
    if original is not None and scaling:  # without any it is read by nothing, nor written by 5.x
        own["original_max_position_embeddings"] = original
    return own | dict(scaling)


def config_dict(config: Any) -> dict[str, Any]:
    """A config as the newest version writes it, which is what the harness reads."""
    written: dict[str, Any] = config.to_dict()
    if "rope_theta" in written and "rope_parameters" not in written:
        written["rope_parameters"] = {"rope_type": "default", **rope_parameters(config)}
        defaults = PreTrainedConfig().to_dict()
        for name in _WRITTEN_NO_MORE & defaults.keys() & written.keys():
            if written[name] == defaults[name]:
                del written[name]
    return written


_WRITTEN_NO_MORE = frozenset(
    """
    add_cross_attention bad_words_ids begin_suppress_tokens cross_attention_hidden_size
    decoder_start_token_id diversity_penalty do_sample early_stopping
    encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id is_decoder length_penalty max_length min_length
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores prefix
    pruned_heads remove_invalid_values repetition_penalty return_dict_in_generate sep_token_id
    suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder
    tokenizer_class top_k top_p torchscript typical_p use_bfloat16
    """.split()  # noqa: SIM905
)
"""What configs had before 5.0: of generation and of heads. The harness refuses a key that it does
not know; one that has its default says nothing."""


def rope_init_function(module: Any) -> Callable[..., Any]:
    """The unedited function that computes (inv_freq, attention_scaling) of a config and a device;
    one that takes no device computes on the host, as the model itself does then.
    """
    function: Callable[..., Any]
    if module.rope_type == "default" and hasattr(module, "compute_default_rope_parameters"):
        function = module.compute_default_rope_parameters
    else:
        function = ROPE_INIT_FUNCTIONS[module.rope_type]
    if "device" in inspect.signature(function).parameters:
        return function

    def moved(config: Any, device: Any = None, **options: Any) -> tuple[torch.Tensor, Any]:
        inv_freq, scaling = function(config, **options)
        return inv_freq if device is None else inv_freq.to(device), scaling

    return moved


def check_model_type(model_type: str, chained: bool = False) -> None:
    """VersionError where this version's model of that type cannot be recorded."""
    this = f"this is {metadata.version('transformers')}"
    if model_type == "zamba2" and versions.numbers(metadata.version("transformers")) < ZAMBA2:
        raise versions.VersionError(
            f"recording Zamba2 needs transformers {versions.dotted(ZAMBA2)} or newer, whose mixers "
            f"run their scan as functions of their own; {this}"
        )
    if chained and model_type == "gemma2" and not _modeling_has(model_type, _SCALED_EMBEDDING):
        raise versions.VersionError(
            "recording Gemma2 with a chained oracle needs transformers 5.5 or newer, whose "
            f"embedding is what scales; {this}: record it without chained"
        )


def model_warnings(model_type: str) -> list[str]:
    """What a recording of that type says of this version."""
    if model_type != "gemma2" or _modeling_has(model_type, _SCALED_EMBEDDING):
        return []
    return [
        "this version of transformers scales Gemma2's embedding in no block (5.5 and newer in the "
        "embedding): every block can be judged, the model as a chain cannot"
    ]


_SCALED_EMBEDDING = "Gemma2TextScaledWordEmbedding"


def _modeling_has(model_type: str, name: str) -> bool:
    file = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    return hasattr(file, name)
