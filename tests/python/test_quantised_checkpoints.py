"""Folders of models with quantised weights, as transformers' quantisers write them, run natively:
greedy tokens are those of transformers on the weights that the codes mean."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from harness_runs import command, need_device
from plumbline import tiny
from safetensors.torch import load_file, save_file
from transformers import TorchAoConfig

from python_inspector.cases.quantised_ops import Size, weight
from python_inspector.quantised import dequantize

OPERANDS = ("codes", "scales", "zeros", "global_scale", "group_index")
GROUP = 16
PROMPT = [3, 14, 15, 9, 26]


@dataclass(frozen=True)
class Scheme:
    layout: str
    names: tuple[str, ...]
    """Of the layout's tensors, as files have them."""
    config: Mapping[str, Any]
    group: Callable[[int, int], tuple[int, int]] = lambda rows, columns: (1, GROUP)
    """Of rows and columns of a weight."""
    also: Callable[[int, int], Mapping[str, torch.Tensor]] = lambda rows, columns: {}
    """What files have besides."""


def compressed(layout: str, form: str, names: tuple[str, ...], **weights: Any) -> Scheme:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    packed = "weight_packed" in names and layout.startswith("int4")
    return Scheme(
        layout,
        names,
        {
            "quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
            "config_groups": {"group_0": group},
        },
        (lambda rows, columns: (1, columns)) if weights["strategy"] == "channel"
        else (lambda rows, columns: (1, weights["group_size"])),
        (lambda rows, columns: {"weight_shape": torch.tensor([rows, columns])}) if packed
        else (lambda rows, columns: {}),
    )  # fmt: skip


def torchao(kind: str, layout: str, names: tuple[str, ...], **data: Any) -> Scheme:
    by_row = "granularity" not in data or data["granularity"]["_type"] == "PerRow"
    type_ = {"_type": kind, "_version": 2, "_data": data}
    return Scheme(
        layout,
        names,
        {
            "quant_method": "torchao", "quant_type": {"default": type_},
            "include_input_output_embeddings": False, "modules_to_not_convert": None,
        },
        (lambda rows, columns: (1, columns)) if by_row else (lambda rows, columns: (1, GROUP)),
    )  # fmt: skip


_GPTQ = ("qweight", "scales", "qzeros", "g_idx")
_GPTQ_CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}
_CT = ("weight_packed", "weight_scale")
_AO = ("_weight_qdata", "_weight_scale", "_weight_zero_point")
_PER_GROUP = {"_type": "PerGroup", "_version": 1, "_data": {"group_size": GROUP}}
_PER_ROW = {"_type": "PerRow", "_version": 1, "_data": {"dim": -1}}

SCHEMES = {
    "gptq": Scheme("gptq", _GPTQ, {**_GPTQ_CONFIG, "checkpoint_format": "gptq", "meta": {}}),
    "gptq without a format": Scheme("gptq", _GPTQ, _GPTQ_CONFIG),
    "gptq v2": Scheme("gptq-v2", _GPTQ, {**_GPTQ_CONFIG, "checkpoint_format": "gptq_v2"}),
    "awq": Scheme("awq", _GPTQ[:3], {"quant_method": "awq", "bits": 4, "group_size": GROUP,
                                     "zero_point": True, "version": "gemm"}),
    "fp8 of blocks": Scheme("fp8", ("weight", "weight_scale_inv"),
                            {"quant_method": "fp8", "activation_scheme": "dynamic",
                             "weight_block_size": [8, GROUP]}, lambda rows, columns: (8, GROUP)),
    "compressed int4": compressed("int4", "pack-quantized", _CT, num_bits=4, type="int",
                                  strategy="group", group_size=GROUP, symmetric=True),
    "compressed int4 with zeros": compressed("int4-zero", "pack-quantized",
                                             (*_CT, "weight_zero_point"), num_bits=4, type="int",
                                             strategy="group", group_size=GROUP, symmetric=False),
    "compressed int8": compressed("int8", "int-quantized", ("weight", "weight_scale"), num_bits=8,
                                  type="int", strategy="channel", symmetric=True),
    "compressed fp8": compressed("fp8", "float-quantized", ("weight", "weight_scale"), num_bits=8,
                                 type="float", strategy="channel", symmetric=True),
    "compressed nvfp4": compressed("nvfp4", "nvfp4-pack-quantized",
                                   (*_CT, "weight_global_scale"), num_bits=4, type="float",
                                   strategy="tensor_group", group_size=GROUP, symmetric=True),
    "compressed mxfp4": compressed("mxfp4", "mxfp4-pack-quantized", _CT, num_bits=4, type="float",
                                   strategy="group", group_size=GROUP, symmetric=True),
    "torchao int8": torchao("Int8WeightOnlyConfig", "int8-zero", _AO, group_size=None,
                            granularity=_PER_ROW),
    "torchao int4": torchao("IntxWeightOnlyConfig", "int8-zero", _AO, granularity=_PER_GROUP,
                            intx_packing_format={"_data": "UNPACKED_TO_INT8"}),
    "torchao fp8": torchao("Float8WeightOnlyConfig", "fp8", _AO[:2], granularity=_PER_ROW),
}  # fmt: skip


def quantised(scheme: Scheme, folder: Path) -> torch.nn.Module:
    """Writes a model's folder; the model with the weights that its codes mean."""
    model = tiny.build("llama")
    model.config.tie_word_embeddings = False
    folder.mkdir()
    files = {n: t.clone().contiguous() for n, t in model.state_dict().items()}
    for number, (path, module) in enumerate(model.model.layers.named_modules()):
        if not isinstance(module, torch.nn.Linear):
            continue
        rows, columns = module.weight.shape
        group = scheme.group(rows, columns)
        engine = torch.Generator().manual_seed(number)
        tensors, _ = weight(scheme.layout, torch.float32, engine, Size(rows, columns, group))
        if scheme.layout == "nvfp4":
            tensors["scales"] = tensors["scales"].to(torch.float8_e4m3fn)
        elif tensors["scales"].dtype == torch.float32:
            tensors["scales"] = tensors["scales"] / 64
        dense = dequantize(scheme.layout, *tensors.values(), group=group)[:rows, :columns]
        with torch.no_grad():
            module.weight.copy_(dense)
        prefix = f"model.layers.{path}."
        del files[prefix + "weight"]
        named = (tensors[name] for name in OPERANDS if name in tensors)
        stored = dict(zip(scheme.names, named, strict=True)) | scheme.also(rows, columns)
        files |= {prefix + name: t.contiguous() for name, t in stored.items()}
    save_file(files, folder / "model.safetensors")
    config = {**model.config.to_dict(), "quantization_config": scheme.config}
    (folder / "config.json").write_text(json.dumps(config, default=str))
    return model.eval()


@pytest.mark.parametrize("name", SCHEMES)
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model = quantised(SCHEMES[name], folder)
    with torch.no_grad():
        made = model.generate(
            torch.tensor([PROMPT]), max_new_tokens=8, do_sample=False, eos_token_id=None
        )
    expected = made[0, len(PROMPT) :].tolist()
    assert len(set(expected)) > 1
    for device in ("cpu", "emu:32"):
        need_device(device)
        asked = ("--max-new", "8", "--device", device, "--dtype", "f32")
        assert models.generated(folder, PROMPT, tmp_path, *asked) == expected, device


def refused(folder: Path) -> str:
    run = command("forward", "--model", str(folder), "--tokens", "1,2", "--device", "cpu")
    assert run.returncode in (3, 4), run.stdout
    return run.stderr


_REFUSED: dict[str, tuple[str, Mapping[str, Any], str]] = {
    "another method": ("gptq", {"quant_method": "hqq"}, 'quant_method is "hqq"'),
    "no method": ("gptq", {"quant_method": None}, 'quant_method is ""'),
    "other bits": ("gptq", {"bits": 3}, "bits is 3, of gptq 4 are implemented"),
    "another form": ("gptq", {"checkpoint_format": "marlin"}, 'checkpoint_format is "marlin"'),
    "bits by layer": ("gptq", {"dynamic": {"+:q": {"bits": 8}}}, "dynamic is not implemented"),
    "gemv": ("awq", {"version": "gemv"}, 'version is "gemv"'),
    "a cache": ("compressed int8", {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme is not"),
    "unknown form": ("compressed int8", {"format": "dense"}, 'format is "dense", known are pack-'),
    "embeddings": ("torchao int8", {"include_input_output_embeddings": True}, "include_input_out"),
}


@pytest.mark.parametrize("what", _REFUSED)
def test_what_is_not_implemented_is_named(what: str, tmp_path: Path) -> None:
    name, change, said = _REFUSED[what]
    folder = tmp_path / "model"
    quantised(SCHEMES[name], folder)
    document = json.loads((folder / "config.json").read_text())
    document["quantization_config"] |= change
    (folder / "config.json").write_text(json.dumps(document))
    found = refused(folder)
    assert said in found and "quantization_config" in found


def test_activations_that_are_quantised_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    quantised(SCHEMES["compressed int8"], folder)
    document = json.loads((folder / "config.json").read_text())
    document["quantization_config"]["config_groups"]["group_0"]["input_activations"] = {
        "num_bits": 8
    }
    (folder / "config.json").write_text(json.dumps(document))
    assert "input_activations is not implemented" in refused(folder)


def test_tensors_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    quantised(SCHEMES["gptq"], folder)
    files = load_file(folder / "model.safetensors")
    first = "model.layers.0.self_attn.q_proj."
    files[first + "qweight"] = files[first + "qweight"].float()
    del files[first + "scales"], files[first + "g_idx"]  # the index may be left out
    files[first + "scale"] = torch.ones(1)
    save_file(files, folder / "model.safetensors")
    found = refused(folder)
    assert f"missing (1): {first}scales" in found and f'unused (1): "{first}scale"' in found
    assert f"{first}qweight f32 [4, 32] instead of i32 [4, 32]" in found


def test_folders_of_torchao(tmp_path: Path) -> None:
    """Its own files."""
    ao = pytest.importorskip("torchao.quantization")
    model = tiny.build("llama")
    model.save_pretrained(tmp_path / "floats")
    kinds = {"int8": ao.Int8WeightOnlyConfig(), "fp8": ao.Float8WeightOnlyConfig()}
    for name, kind in kinds.items():
        config = TorchAoConfig(kind)
        saved = type(model).from_pretrained(tmp_path / "floats", quantization_config=config)
        saved.save_pretrained(tmp_path / name)
        with torch.no_grad():
            made = saved.generate(torch.tensor([PROMPT]), max_new_tokens=8, do_sample=False)
        asked = ("--max-new", "8", "--device", "cpu", "--dtype", "f32")
        tokens = models.generated(tmp_path / name, PROMPT, tmp_path, *asked)
        assert tokens == made[0, len(PROMPT) :].tolist(), name
