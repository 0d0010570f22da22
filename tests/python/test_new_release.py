"""What a release of transformers may change: names cost names, never the recording."""

from __future__ import annotations

import importlib.util
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import command
from recorded import Recording, asked, ids
from transformers import DynamicCache
from transformers.models.llama import modeling_llama
from transformers.models.zamba2 import modeling_zamba2

from python_inspector import RecordWarning, record, tiny
from python_inspector.compatibility import rope_init_function
from python_inspector.foreign import cache_in
from python_inspector.format.validate import validate

NAME = "transformers.models.llama.modeling_llama_of_tomorrow"
LAYERS = {"attention", "decoder_layer"}
INSIDE = {"sdpa", "matmul", "scale", "masked_add", "softmax"}
BLIND = 8  # the harness's exit code where nothing failed, but not every feature can be seen
# What the file takes from others, with the name that it has for the cache.
AROUND = """
from dataclasses import make_dataclass
from transformers.utils import ModelOutput

def _output(name, *fields):
    made = [(field, object, None) for field in (*fields, "past_key_values")]
    return make_dataclass(name, made, bases=(ModelOutput,))

BaseModelOutputWithPast = _output(
    "BaseModelOutputWithPast", "last_hidden_state", "hidden_states", "attentions"
)
CausalLMOutputWithPast = _output(
    "CausalLMOutputWithPast", "loss", "logits", "hidden_states", "attentions"
)
_create_causal_mask = create_causal_mask

def create_causal_mask(**given):
    given["past_" "key_values"] = given.pop("past_key_values")
    return _create_causal_mask(**given)
"""


def of_tomorrow(folder: Path, **renamed: str) -> Any:
    """The tiny LLaMA, its modeling file with other names."""
    text = Path(str(modeling_llama.__file__)).read_text() + AROUND
    for old, new in renamed.items():
        assert old in text
        text = text.replace(old, new)
    file = folder / "modeling.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(NAME, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    model = tiny.build("llama-a1")
    other = module.LlamaForCausalLM._from_config(model.config, attn_implementation="eager")
    other.load_state_dict(model.state_dict())
    return other.eval()


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    sys.modules.pop(NAME, None)


def recorded(model: Any, out: Path, **options: Any) -> Recording:
    """A prompt and a step, on a cache that the model makes."""
    x = ids(model, 2, 6)
    with record(model, *asked(out, spread=0, **options)), torch.no_grad():
        cache = cache_in(model(x[:, :5], use_cache=True))
        model(x[:, 5:], **{_name_of_cache(model): cache})
    return Recording(out)


def _name_of_cache(model: Any) -> str:
    names = model.forward.__wrapped__.__code__.co_varnames
    return next(name for name in ("memory", "cache", "past_key_values") if name in names)


@pytest.mark.parametrize("chained", [False, True])
def test_a_cache_is_known_by_what_it_is(tmp_path: Path, chained: bool) -> None:
    today = recorded(tiny.build("llama-a1"), tmp_path / "t", chained=chained)
    model = of_tomorrow(tmp_path, past_key_values="memory")
    other = recorded(model, tmp_path / "r", chained=chained)
    assert other.json["checkpoints"] == today.json["checkpoints"]


def test_of_arguments_and_outputs_the_cache() -> None:
    cache = DynamicCache()
    assert cache_in({"x": 1, "anything": cache}) is cache
    assert cache_in((torch.zeros(1), cache)) is cache
    assert cache_in({"state": [1]}) == [1]
    assert cache_in({"past_key_values": None, "x": cache.layers}) is None
    assert cache_in(torch.zeros(1)) is None


def test_frequencies_of_a_function_without_a_device_come_to_the_one_asked_for() -> None:
    """Newer releases compute them on the host; the model's own may be on a GPU."""
    rotary = tiny.build("llama-a1").model.rotary_emb

    def of_config(config: Any, **options: Any) -> tuple[torch.Tensor, float]:
        return rotary.inv_freq, options.get("seq_len", 1.0)

    rotary.compute_default_rope_parameters = of_config
    made, scaling = rope_init_function(rotary)(rotary.config, torch.device("meta"))
    assert (made.device.type, scaling) == ("meta", 1.0)
    assert rope_init_function(rotary)(rotary.config, seq_len=3) == (rotary.inv_freq, 3)


def told(recording: Recording) -> str:
    return "\n".join(recording.json["provenance"]["warnings"])


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("old", "new", "reason", "lost"),
    [
        ("n_rep", "times", r"self_attn\] the tap repeat_kv .*KeyError: 'n_rep'", {"repeat_kv"}),
        ("self.layer_idx", "self.number", "the tap LlamaAttention .*'layer_idx'", LAYERS),
        ("query", "queries", "the tap sdpa .*KeyError: 'query'", {"sdpa", *LAYERS}),
        ("eager_attention_forward", "f", "have no eager_attention_forward", INSIDE | LAYERS),
        ("LlamaAttention", "Llama2Attention", "have no LlamaAttention", {"attention"}),
    ],
)
def test_what_a_tap_does_not_find_costs_a_name(
    tmp_path: Path, old: str, new: str, reason: str, lost: set[str]
) -> None:
    today = recorded(tiny.build("llama-a1"), tmp_path / "t")
    model = of_tomorrow(tmp_path, **{old: new})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordWarning)
        other = recorded(model, tmp_path / "r")
    assert re.search(reason, told(other))
    assert len(told(other).splitlines()) == len(set(told(other).splitlines()))
    assert validate(tmp_path / "r") == []
    kinds = [Counter(c["block"] for c in r.checkpoints) for r in (today, other)]
    assert {kind for kind in kinds[0] if kinds[0][kind] != kinds[1][kind]} == lost
    assert kinds[1]["module"] >= len(lost)
    verified = command("--fixture", str(tmp_path / "r"), "--device", "cpu", "--repeat", "1")
    assert verified.returncode in (0, BLIND), verified.stdout


def test_a_fault_that_stops_a_second_run_is_told_by_the_tap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter of another call: the tap's run has no other one."""

    def forward(self: Any, hidden_state: torch.Tensor, layer_idx: int | None = None) -> Any:
        gate_up = self.gate_up_proj(hidden_state)
        other = (2, 1, 0)[self.layer_dic[layer_idx]]
        gate_up = gate_up + self.gate_up_proj_adapter_list[other](hidden_state)
        gate, up = torch.chunk(gate_up, 2, dim=-1)
        return self.down_proj(self.act_fn(gate) * up)

    monkeypatch.setattr(modeling_zamba2.Zamba2MLP, "forward", forward)
    with pytest.warns(RecordWarning, match=r"feed_forward\] the tap Zamba2MLP does not fit"):
        recording = recorded(tiny.build("zamba2-a6"), tmp_path / "r")
    assert {c["path"].split(".")[2] for c in recording.of("glu_activation")} == {"3"}
    done = command("--fixture", str(tmp_path / "r"), "--block", "glu_mlp", "--repeat", "1")
    assert done.returncode == 1
